"""Run records: JSON Lines with a versioned schema, readable even after an interrupted run.

A record consists of a manifest, a line per result, and a closing line with the digest of the results. Without a
closing line the run did not finish.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from attncheck._lib.errors import InputError
from attncheck._lib.files import most_content
from attncheck._lib.text import inert
from attncheck.records.explanation import Explanation

#: The schema version that is written and read.
SCHEMA = 7
_AGAIN = "make the record again"
_NO_MANIFEST = "has no manifest in its first line", "pass a record that attncheck wrote"
#: First bytes of a compressed record.
GZIP = b"\x1f\x8b"
#: First bytes of a record.
OPENING = b'{"type":"manifest"'
# A number of bytes larger than any file.
_ENDLESS = 2**62


class PlannedResult(msgspec.Struct, frozen=True):
    """A result that the plan of a run announces: its id, test item and check."""

    id: str
    item: str
    check: str


class Manifest(msgspec.Struct, frozen=True, tag="manifest", tag_field="type"):
    """Versions, seed, budget, subject and plan of a run.

    ``planned`` lists the planned results, ``fixed`` the keys of the cases that do not depend on the seed. ``draws`` is
    the number of draws that a look may always take (profile thorough), ``min_examined`` the number of examined
    results that a pass needs. ``source``, a digest of the subject's file, may be empty. ``checks`` are the modules of
    planned checks of other packages.
    """

    schema: int
    versions: dict[str, str]
    seed: int
    profile: str
    false_alarm: float
    level: float
    subject: str
    planned: list[PlannedResult]
    machine: dict[str, str] = {}
    started: str = ""
    fixed: list[str] = []
    draws: int | None = None
    source: str = ""
    checks: list[str] = []
    min_examined: int | None = None


class Result(msgspec.Struct, frozen=True, tag="result", tag_field="type"):
    """One check on one case: its planned looks, their outcomes, and the verdict.

    ``size`` is the number of draws of one look, at most ``affordable``; ``power`` is the planned probability of a
    violated verdict. ``p_values`` and ``effects`` have one entry per look; ``effect``, ``low``, ``high`` and
    ``plot`` (`attncheck.evidence.plot_data`) belong to the deciding look. The effect under the null is ``null_effect``,
    or any effect up to it if ``at_most`` is true. ``mde`` is the smallest effect that is detected with the planned
    power. ``alternative`` is the check's alternative, or the MDE if that is larger. ``summary`` is what the first look
    contributes to pools (`attncheck.evidence.summaries`). Results of pools have the case
    ``{"pool": name, "of": case keys}``. ``repeatable`` is false if the subject's draws depend on more
    than the generator.
    """

    id: str
    item: str
    property: str
    check: str
    claim: str
    kind: str
    case: dict[str, Any]
    verdict: str
    reason: str
    size: int
    affordable: int
    level: float
    power: float
    p_values: list[float] = []
    effects: list[float] = []
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    null_effect: float | None = None
    mde: float | None = None
    alternative: float | None = None
    combined: float = 1.0
    continuous: bool = False
    text: str = ""
    hint: str = ""
    seconds: float = 0.0
    diagnosis: list[str] = []
    plot: dict[str, Any] | None = None
    at_most: bool = False
    summary: dict[str, Any] | None = None
    repeatable: bool = True


class Closing(msgspec.Struct, frozen=True, tag="closing", tag_field="type"):
    """The last line of a run's record.

    ``digest`` is the `run_digest`; ``reasons`` say why the run does not pass; ``explanations`` say what may be wrong,
    best first. ``failed`` lists errors of the subject. ``seal`` is a digest of all earlier content of the record.
    """

    digest: str
    verdict: str
    reasons: list[str]
    seconds: float
    explanations: list[Explanation] = []
    failed: list[str] = []
    seal: str = ""


Line = Manifest | Result | Closing
# First bytes of a closing line, and the name of its last field.
_CLOSING, _SEAL = b'{"type":"closing"', b',"seal":'


def case_key(result: Result) -> str:
    """Return the key of a result's case, or its pool's name."""
    return result.item.rpartition("@")[2]


def of_layer(result: Result) -> bool:
    """Return whether a result is on a single attention layer."""
    return not {"program", "pool"} & set(result.case)


def case_label(result: Result) -> str:
    """Return what a result was examined on, as text: "layer", "program", or "cases" for a pool."""
    return "cases" if of_pool(result) else "layer" if of_layer(result) else "program"


def of_pool(result: Result) -> bool:
    """Return whether a result belongs to a pool; raise `InputError` if the result is malformed."""
    if "pool" not in result.case:
        return False
    name, of = result.case["pool"], result.case.get("of")
    several = isinstance(of, list) and len(set(map(str, of))) > 1 and all(isinstance(key, str) for key in of)
    if not several or name != case_key(result):
        raise InputError(f"pool={name!r}: is not a valid pool of several cases; {_AGAIN}")
    return True


class _SchemaHead(msgspec.Struct):
    type: Any = None
    schema: Any = None


def line_digest(line: Result) -> bytes:
    """Return the digest of the id, the verdict and the numbers of a result, without its texts."""
    digits: list[Any] = [line.id, line.verdict]
    digits += [line.size, line.level, line.power, line.p_values, line.effects, line.combined]
    digits += [line.effect, line.low, line.high, line.null_effect, line.mde]
    return hashlib.sha256(msgspec.json.encode(digits, order="sorted")).digest()


def run_digest(results: Iterable[Result]) -> str:
    """Return the digest of a run's results, independent of order, times and number of workers.

    The digest depends on the seed, the subject and the plan, but not on names or texts. It may change with the
    processor and BLAS (``arithmetic``) and with releases of NumPy, SciPy and hypothesis (``versions``).
    """
    return hashlib.sha256(b"".join(sorted(map(line_digest, results)))).hexdigest()[:16]


def read(path: Path, field: str = "record") -> Iterator[Any]:
    """Iterate over the lines of a record, one in memory at a time, skipping a truncated last line.

    The file may be compressed by gzip, and may hold several records, one after the other. `field` is the name of the
    file in error messages.

    Raises
    ------
    InputError
        If the file is missing, has no complete manifest, another schema or a broken line.
    """
    source = _Source(path, field)
    ended, seal = False, Seal()
    with _opened(source) as (file, most):
        # Look at the first byte only, because a large file of another kind may consist of one line.
        if file.peek(1)[:1] != b"{":
            raise source.error(*_NO_MANIFEST)
        for number, raw in enumerate(_lines(source, file, most), 1):
            if number == 1:
                _check_head(source, raw)
            if not raw.endswith(b"\n"):
                if ended or raw.startswith(OPENING[: len(OPENING) // 2 + 1]):
                    raise source.error("ends within the first line of a record")
                return
            line = _decoded(source, number, raw)
            kind = line.__struct_config__.tag
            if kind != "manifest" and (ended or number == 1):
                raise source.error(f"line {number} is out of place")
            if kind == "manifest":
                _check_head(source, raw)
                seal = Seal()
            ended = kind == "closing"
            digits = seal.add(raw).encode()
            # The seal must be the last field: a field after it would replace an earlier field of the same name.
            if ended and not (digits and raw.endswith(b'"%b"}\n' % digits)):
                raise source.error("was edited or damaged: its lines changed after the run had closed it")
            yield line


class Seal:
    """Running digest of the lines of a record; the last field of the closing line, the seal, is this digest.

    Of the closing line, only the part before the seal enters the digest.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, line: bytes) -> str:
        """Add a line; return the seal if it is a closing line, else an empty text."""
        content, field, _ = line.rpartition(_SEAL) if line.startswith(_CLOSING) else (line, b"", b"")
        self._hash.update(content)
        return self._hash.hexdigest()[:16] if field else ""


@dataclasses.dataclass(frozen=True)
class _Source:
    """A file to read as a record; `what` is its name in error messages."""

    path: Path
    what: str

    def error(self, problem: str, remedy: str = "") -> InputError:
        return InputError(f"{self.what}={self.path}: {problem}; {remedy or f'make the {self.what} again'}")


@contextlib.contextmanager
def _opened(source: _Source) -> Iterator[tuple[io.BufferedReader, int]]:
    """Open a record, which may be compressed; return the file and the maximum number of bytes to read from it."""
    try:
        with open(source.path, "rb") as file:
            if not file.peek(len(GZIP)).startswith(GZIP):
                yield file, _ENDLESS
                return
            try:
                with gzip.open(file) as inside:
                    yield cast("io.BufferedReader", inside), most_content(source.path)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise source.error(f"is truncated or damaged ({str(error).rstrip('.')})") from None
    except OSError as error:
        raise source.error(f"cannot be read ({error.strerror})", "pass the path of a run record") from None


def _lines(source: _Source, file: io.BufferedReader, most: int) -> Iterator[bytes]:
    """Iterate over the lines of a file, whose ends may be those of Windows, as git writes them there.

    Raises `InputError` if the file contains more than `most` bytes.
    """
    while raw := file.readline(most + 1):
        most -= len(raw)
        if most < 0:
            raise source.error("expands to an implausible size")
        yield raw.replace(b"\r\n", b"\n")


def _check_head(source: _Source, first: bytes) -> None:
    """Reject a first line that is not a manifest of this schema."""
    head = _SchemaHead()
    if first.endswith(b"\n"):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            head = msgspec.json.decode(first, type=_SchemaHead)
    elif first.startswith(OPENING) or OPENING.startswith(first):
        raise source.error("ends within its first line")
    if head.type != "manifest":
        raise source.error(*_NO_MANIFEST)
    if type(head.schema) is not int or head.schema != SCHEMA:
        # Later versions have a larger integer.
        remedy = "upgrade attncheck" if type(head.schema) is int and head.schema > SCHEMA else ""
        raise source.error(f"has schema {head.schema!r}, this version reads {SCHEMA}", remedy)


def _decoded(source: _Source, number: int, raw: bytes) -> Any:
    try:
        return decoded(raw, Line)
    except msgspec.DecodeError as error:
        raise source.error(f"line {number} is broken ({error})") from None


def decoded(raw: bytes, kind: Any) -> Any:
    """Decode JSON, without control characters in texts; raises ``msgspec.DecodeError`` for any invalid content."""
    try:
        return msgspec.convert(inert(msgspec.json.decode(raw)), kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
