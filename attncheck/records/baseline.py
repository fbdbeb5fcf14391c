"""Baselines: reduced records, usually compressed, that later runs are compared with.

They contain the ids and verdicts of all examined results, but numbers only of fixed cases and pools.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from attncheck._lib.errors import InputError
from attncheck._lib.files import write_whole
from attncheck.evidence.verdicts import Verdict
from attncheck.records.schema import Closing, Manifest, StatementResult, content_hash, read

#: Suffix of compressed files.
COMPRESSED = ".xz"
# Numbers are rounded to this fraction of the half-width of their interval.
_SHARE = 0.01
_ROUNDED = ("effect", "low", "high", "mde")


class BaselineResult(msgspec.Struct, frozen=True, tag="result", tag_field="type", omit_defaults=True):
    """A result in a baseline; on cases that depend on the seed, only id and verdict are kept."""

    id: str
    verdict: Verdict = Verdict.CONSISTENT
    size: int = 0
    power: float = 0.0
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    null_effect: float | None = None
    mde: float | None = None
    case: dict[str, Any] = {}

    @property
    def check(self) -> str:
        """The name of the check."""
        return self.id.partition("@")[0]

    @property
    def item(self) -> str:
        """The test item: property and case."""
        return f"{self.id.partition('.')[0]}@{self.id.partition('@')[2]}"

    @property
    def of(self) -> tuple[str, ...]:
        """The cases of a pool."""
        return tuple(self.case.get("of", ()))


_LINES = Manifest | BaselineResult | StatementResult | Closing


@dataclasses.dataclass(frozen=True, eq=False)
class Baseline:
    """A baseline in memory.

    ``results`` holds examined results by id; ``closing`` is None if the run did not finish.
    """

    path: Path
    manifest: Manifest
    results: dict[str, BaselineResult]
    closing: Closing | None

    @property
    def verdict(self) -> str:
        """The verdict of its run."""
        return "incomplete" if self.closing is None else self.closing.verdict

    @cached_property
    def single(self) -> list[BaselineResult]:
        """Results on single cases."""
        return [each for each in self.results.values() if not each.of]

    @property
    def violated(self) -> int:
        """Number of violated results, pools included."""
        return sum(each.verdict == Verdict.VIOLATED for each in self.results.values())


def read_baseline(path: Path) -> Baseline:
    """Read a baseline, or a whole record as one; raise `InputError` if it is damaged, edited or empty."""
    lines = read(path, _LINES, baseline=True)
    manifest: Manifest = next(lines)
    results: dict[str, BaselineResult] = {}
    closing = None
    for line in lines:
        if isinstance(line, Closing):
            closing = line
        elif isinstance(line, BaselineResult) and line.verdict != Verdict.NOT_EXAMINED:
            results.setdefault(line.id, line)
    if not results:
        raise InputError(f"baseline={path}: has no examined result; make the baseline again")
    return Baseline(path, manifest, results, closing)


def write_baseline(run: Path, target: Path) -> int:
    """Write the baseline of a finished run atomically, compressed if named ``.xz``; return its size in bytes."""
    lines = read(run, _LINES)
    manifest: Manifest = next(lines)
    fixed, kept, closing = set(manifest.fixed), [], None
    for line in lines:
        if isinstance(line, Closing):
            closing = line
        elif isinstance(line, BaselineResult) and line.verdict != Verdict.NOT_EXAMINED:
            kept.append(_slim(line, fixed))
    # This order compresses well and does not depend on the number of workers.
    kept.sort(key=lambda pair: pair[0])
    head = msgspec.structs.replace(manifest, planned=[], statements=[], baseline=True)
    content = b"".join([_encoded(head), *(line for _, line in kept)])
    if closing is not None:
        sealed = msgspec.structs.replace(closing, content=content_hash(hashlib.sha256(content)))
        content += _encoded(sealed)
    content = _compressed(content) if COMPRESSED in target.suffixes else content
    write_whole(target, content, "baseline")
    return len(content)


def _slim(line: BaselineResult, fixed: set[str]) -> tuple[tuple[list[str], str], bytes]:
    """Return a sort key, and the result as stored in the baseline."""
    if line.of:
        return (list(line.of), line.id), _encoded(_rounded(line))
    if fixed and line.item.partition("@")[2] not in fixed:
        return ([], line.id), _encoded(BaselineResult(line.id, line.verdict))
    return ([], line.id), _encoded(_rounded(msgspec.structs.replace(line, case={})))


def _rounded(line: BaselineResult) -> BaselineResult:
    """Return a result with effect, interval and MDE rounded relative to the interval."""
    half = 0.5 * (line.high - line.low) if line.high is not None and line.low is not None else 0.0
    if not half > 0.0:
        return line
    places = math.ceil(-math.log10(_SHARE * half))
    values = {name: getattr(line, name) for name in _ROUNDED}
    return msgspec.structs.replace(
        line, **{name: round(value, places) for name, value in values.items() if value is not None}
    )


def _encoded(line: msgspec.Struct) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _compressed(content: bytes) -> bytes:
    import lzma  # lzma is missing in some builds of Python

    return lzma.compress(content, preset=6 | lzma.PRESET_EXTREME)
