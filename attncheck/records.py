"""Run records: JSON Lines with a versioned schema, readable however the run ended.

The first line is the manifest, then one line per result, and a closing line with the digest. A record
without a closing line is of a run that did not finish.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from attncheck.errors import InputError

SCHEMA = 1


class Planned(msgspec.Struct, frozen=True):
    """One planned result."""

    id: str
    unit: str
    check: str


class Manifest(msgspec.Struct, frozen=True, tag="manifest", tag_field="type"):
    """What a run is: versions, seed, budget, subject and everything it planned to do."""

    schema: int
    versions: dict[str, str]
    seed: int
    profile: str
    false_alarm: float
    level: float
    subject: str
    planned: list[Planned]
    machine: dict[str, str] = {}
    started: str = ""


class Result(msgspec.Struct, frozen=True, tag="result", tag_field="type"):
    """One check on one layer: what was planned, what was seen in each look, and the verdict.

    ``size`` is the draws of one look, of the ``affordable`` ones; ``power`` is the chance of a violated verdict
    that they were planned for. ``p_values`` and ``effects`` have one entry per look; ``effect``, ``low`` and
    ``high`` are of the look that decided; ``gap`` is the smallest effect that a look of this size
    detects with the planned power.
    """

    id: str
    unit: str
    property: str
    check: str
    claim: str
    kind: str
    layer: dict[str, Any]
    verdict: str
    reason: str
    size: int
    affordable: int
    level: float
    power: float
    p_values: list[float]
    effects: list[float]
    effect: float | None
    low: float | None
    high: float | None
    null_effect: float | None
    gap: float | None
    departure: float | None
    combined: float
    continuous: bool
    text: str
    hint: str
    seconds: float
    illustration: str = ""
    diagnosis: list[str] = []


class Closing(msgspec.Struct, frozen=True, tag="closing", tag_field="type"):
    """How a run ended; ``digest`` is of all digits that do not depend on time or machine."""

    digest: str
    verdict: str
    reasons: list[str]
    reported: int
    seconds: float


Line = Manifest | Result | Closing
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def run_digest(results: Iterable[Result]) -> str:
    """Return the digest of results, whatever their order, the time they took or the machine.

    Two runs with the same seed, subject and plan have the same digest with any number of workers.
    """
    lines = sorted(
        msgspec.json.encode(
            [r.id, r.layer, r.verdict, r.reason, r.size, r.level, r.p_values, r.effects, r.low, r.high],
            order="sorted",
        )
        for r in results
    )
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:16]


class Writer:
    """Appends lines to a record; every line is on disk before the next is made.

    The record is written under a temporary name and takes its own name when the manifest is on disk, so
    that two runs never interleave in one file.

    Raises
    ------
    InputError
        If the path cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path.with_name(f".{path.name}.{os.getpid()}"), "wb", buffering=0)  # noqa: SIM115 -- closed in close()
            os.replace(self._file.name, path)
        except OSError as error:
            raise InputError(f"record={path}: cannot be written ({error}); choose another path") from None

    def write(self, line: Line) -> None:
        """Append one line."""
        self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        """Close the file; the record stays as it is."""
        self._file.close()


def read(path: Path) -> Iterator[Line]:
    """Iterate over the lines of a record.

    A last line that was cut short (a run that was killed) is left out; anything else that cannot be read is
    refused.

    Raises
    ------
    InputError
        If the file is missing, has no manifest, is of a newer schema, or has a broken line.
    """
    decoder = msgspec.json.Decoder(Line)
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    return
                if number == 1:
                    _check_schema(path, raw)
                try:
                    yield decoder.decode(raw)
                except msgspec.DecodeError as error:
                    message = f"record={path}: line {number} is broken ({error})"
                    raise InputError(f"{message}; make the record again, or remove that line") from None
    except OSError as error:
        raise InputError(f"record={path}: cannot be read ({error.strerror}); pass the path of a run record") from None


def read_manifest(path: Path) -> Manifest:
    """Return the first line of a record."""
    first = next(read(path), None)
    if not isinstance(first, Manifest):
        raise InputError(f"record={path}: has no manifest in its first line; pass a record that attncheck wrote")
    return first


def _check_schema(path: Path, raw: bytes) -> None:
    try:
        head = msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        head = {}
    if head.get("type") != "manifest":
        raise InputError(f"record={path}: has no manifest in its first line; pass a record that attncheck wrote")
    schema = head.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        remedy = "upgrade attncheck"
        raise InputError(f"record={path}: has schema {schema!r}, this version reads up to {SCHEMA}; {remedy}")
