"""Run records: JSON Lines with a versioned schema, readable however the run ended.

The first line is the manifest, then one line per result or statement of the theory, and a closing line with the
digest. A record without a closing line is of a run that did not finish. The closing line also holds a hash of all
bytes before it, so that a record that was edited is told from one that was written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import numpy as np

from attncheck._lib.errors import InputError

#: The schema that is written and read.
SCHEMA = 5
_AGAIN = "make the record again"
_NO_MANIFEST = "has no manifest in its first line", "pass a record that attncheck wrote"
# How a compressed record begins.
_XZ = b"\xfd7zXZ\0"
# How `Writer` begins a record.
_OPENING = b'{"type":"manifest"'


class PlannedResult(msgspec.Struct, frozen=True):
    """One planned result."""

    id: str
    item: str
    check: str


class Manifest(msgspec.Struct, frozen=True, tag="manifest", tag_field="type"):
    """What a run is: versions, seed, budget, subject and everything it planned to do.

    ``planned`` has the results on the subject, and ``statements`` the ids of statements of attncheck's own theory.
    ``fixed`` has the keys of the cases that are visited whatever the seed. ``baseline`` marks a record that keeps
    only what runs are compared with. ``shard`` is the number of a part of a run and how many parts there are; what
    is planned is the whole run in each. ``draws`` is what the first looks of the whole run take, with the profile
    thorough. ``commit`` names what was checked out, and ``source`` is a digest of the file that the subject is in:
    both are empty where nothing says so.
    """

    schema: int
    versions: dict[str, str]
    seed: int
    profile: str
    false_alarm: float
    level: float
    subject: str
    planned: list[PlannedResult]
    statements: list[str] = []
    machine: dict[str, str] = {}
    started: str = ""
    fixed: list[str] = []
    baseline: bool = False
    shard: tuple[int, int] | None = None
    draws: int | None = None
    commit: str = ""
    source: str = ""


class Result(msgspec.Struct, frozen=True, tag="result", tag_field="type"):
    """One check on one layer: what was planned, what was seen in each look, and the verdict.

    ``size`` is the draws of one look, of the ``affordable`` ones; ``power`` is the chance of a violated verdict
    that they were planned for. ``p_values`` and ``effects`` have one entry per look; ``effect``, ``low`` and
    ``high`` are of the look that decided; the null expects ``null_effect``, or allows everything up to it where
    ``at_most``; ``mde`` is the smallest effect that a look of this size
    detects with the planned power; ``alternative`` is what the check states, or the gap where that is larger.
    ``plot`` shows the look that decided, see
    `attncheck.evidence.plot_data`. ``summary`` is what the first look left to be added up with other cases, see
    `attncheck.evidence.summaries`. The result of a pool has ``{"pool": what, "of": keys of cases}`` for a case.
    ``arithmetic`` is what rounded, where it is not what the manifest has.
    """

    id: str
    key: str
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
    p_values: list[float]
    effects: list[float]
    effect: float | None
    low: float | None
    high: float | None
    null_effect: float | None
    mde: float | None
    alternative: float | None
    combined: float
    continuous: bool
    text: str
    hint: str
    seconds: float
    illustration: str = ""
    diagnosis: list[str] = []
    plot: dict[str, Any] | None = None
    at_most: bool = False
    summary: dict[str, Any] | None = None
    arithmetic: str = ""


class StatementResult(msgspec.Struct, frozen=True, tag="theory", tag_field="type"):
    """One statement of the theory on one case, computed or drawn without the subject: no looks decided on it.

    ``verdict`` is "consistent" or "violated"; ``numbers`` are what the statement is about, by name. ``arithmetic`` is
    what rounded, where it is not what the manifest has.
    """

    id: str
    key: str
    verdict: str
    numbers: dict[str, float]
    case: str
    reason: str
    seconds: float
    arithmetic: str = ""

    @property
    def name(self) -> str:
        """The statement, without its case."""
        return self.id.partition("@")[0]


class Closing(msgspec.Struct, frozen=True, tag="closing", tag_field="type"):
    """How a run ended.

    ``causes`` says what is most likely wrong, the first first. ``failed`` says why results are missing, each error of
    the subject once. ``digest`` is of all digits, see `run_digest`.
    ``content`` is of all bytes before the closing line, filled in by `Writer`.
    """

    digest: str
    verdict: str
    reasons: list[str]
    reported: int
    seconds: float
    content: str = ""
    causes: list[str] = []
    failed: list[str] = []


Line = Manifest | Result | StatementResult | Closing


class ReportedResult(Protocol):
    """A result, or a reader's own struct of one."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def key(self) -> str:
        """What it is known by."""

    @property
    def item(self) -> str:
        """Property and case."""

    @property
    def case(self) -> dict[str, Any]:
        """The case as built-in types."""

    @property
    def verdict(self) -> str:
        """A value of `Verdict`."""

    @property
    def p_values(self) -> list[float]:
        """One for each look."""

    @property
    def combined(self) -> float:
        """The trail's q."""

    @property
    def continuous(self) -> bool:
        """Whether the first p-value is uniform under the null."""


def case_key(result: ReportedResult) -> str:
    """Return the key of the case of a result, or the name of its pool."""
    return result.item.rpartition("@")[2]


def of_layer(result: ReportedResult) -> bool:
    """Return whether a result is of one attention layer: of no program, nor of several cases."""
    return not {"program", "pool"} & set(result.case)


def of_pool(result: ReportedResult) -> bool:
    """Return whether a result is of several cases together.

    Raises
    ------
    InputError
        If it is written as no run writes a pool.
    """
    if "pool" not in result.case:
        return False
    name, of = result.case["pool"], result.case.get("of")
    several = isinstance(of, list) and len(set(map(str, of))) > 1 and all(isinstance(key, str) for key in of)
    if not several or name != case_key(result):
        raise InputError(f"pool={name!r}: is not one that a run writes, of several cases; {_AGAIN}")
    return True


class _SchemaHead(msgspec.Struct):
    type: Any = None
    schema: Any = None
    baseline: Any = False


def result_digest(r: Any) -> bytes:
    """Return the digest of the key, verdict and numbers of one `Result`, or of a struct that has them.

    No prose is in it, and no name: a message that is written better, or a check that is renamed, leaves it as it was.
    """
    looks = [r.size, r.level, r.power, r.p_values, r.effects, r.combined]
    numbers = [r.effect, r.low, r.high, r.null_effect, r.mde]
    return _sha256([r.key, r.verdict, *looks, *numbers])


def theory_digest(theory: StatementResult) -> bytes:
    """Return the digest of the key, verdict and numbers of one statement of the theory."""
    return _sha256([theory.key, theory.verdict, theory.numbers])


def _sha256(digits: Any) -> bytes:
    return hashlib.sha256(msgspec.json.encode(digits, order="sorted")).digest()


def combined_digest(digests: bytes | bytearray) -> str:
    """Return the digest of a run from those of its results, end to end in any order."""
    # Sorted as they lie: a million objects would take three times the memory.
    ordered = np.sort(np.frombuffer(digests, dtype=np.dtype((np.void, hashlib.sha256().digest_size))))
    return hashlib.sha256(ordered.tobytes()).hexdigest()[:16]


def run_digest(results: Iterable[Result | StatementResult]) -> str:
    """Return the digest of what a run reported, whatever its order or the time it took.

    Two runs with the same seed, subject and plan have the same digest with any number of workers, after any module,
    property or message was renamed. Other digits, and so another digest, may come of another processor (OpenBLAS
    chooses its kernels by it: the manifest's ``arithmetic`` names them), of another BLAS than the one that NumPy and
    SciPy bring along, and of another release of NumPy (its sums, its random distributions), SciPy (its special
    functions, quadrature and optimisers) or hypothesis (the configurations that it draws). The manifest's
    ``versions`` names the releases.
    """
    digests = (theory_digest(each) if isinstance(each, StatementResult) else result_digest(each) for each in results)
    return combined_digest(b"".join(digests))


def read(path: Path) -> Iterator[Line]:
    """Iterate over the lines of a record, one in memory at a time.

    A last line that was cut short (a run that was killed) is left out; anything else that cannot be read is
    refused.

    Raises
    ------
    InputError
        If the file is missing, has no manifest or half of one, is of another schema, has a broken line or was edited.
    """
    return read_as(path, Line)


def read_as(path: Path, lines: Any, baseline: bool = False) -> Iterator[Any]:
    """Iterate over the lines of a record as structs of the reader's own.

    Parameters
    ----------
    path : Path
    lines : type
        A union of tagged structs for manifest, result and closing line, with the fields that are wanted.
    baseline : bool
        Whether a record that keeps only what a baseline does will do; it may be compressed.

    Raises
    ------
    InputError
        As for `read`.
    """
    source = _Source(path, "baseline" if baseline else "record")
    decoder = msgspec.json.Decoder(lines)
    content = hashlib.sha256()
    ended = False
    with _opened(source) as file:
        # A large file of another kind may be one long line.
        if file.peek(1)[:1] != b"{":
            raise source.error(*_NO_MANIFEST)
        for number, raw in enumerate(file, 1):
            if number == 1:
                _check_head(source, raw)
            if not raw.endswith(b"\n"):
                return
            line = _decoded(source, number, raw, decoder)
            kind = line.__struct_config__.tag
            if ended or (kind == "manifest") != (number == 1):
                raise source.error(f"line {number} does not belong there")
            if kind == "closing":
                ended = True
                if line.content != content_hash(content):
                    raise source.error("was edited after the run")
            content.update(raw)
            yield line


@dataclasses.dataclass(frozen=True)
class _Source:
    """A file that is read as a record or as a baseline, for what is wrong with it."""

    path: Path
    what: str

    def error(self, problem: str, remedy: str = "") -> InputError:
        return InputError(f"{self.what}={self.path}: {problem}; {remedy or f'make the {self.what} again'}")


@contextlib.contextmanager
def _opened(source: _Source) -> Iterator[io.BufferedReader]:
    """Open a record, which may be compressed."""
    try:
        with open(source.path, "rb") as file:
            if not file.peek(len(_XZ)).startswith(_XZ):
                yield file
                return
            import lzma  # some builds of Python lack it

            try:
                with lzma.open(file) as inside:
                    yield cast("io.BufferedReader", inside)
            except (lzma.LZMAError, EOFError) as error:
                raise source.error(f"is cut or damaged ({str(error).rstrip('.')})") from None
    except OSError as error:
        raise source.error(f"cannot be read ({error.strerror})", "pass the path of a run record") from None


@contextlib.contextmanager
def sensible(path: Path, number: int) -> Iterator[None]:
    """Say of which line of a record it is that what is made of it is refused: no run writes such a line.

    Raises
    ------
    InputError
        Naming record and line, in the place of one that names neither.
    """
    try:
        yield
    except InputError as error:
        problem = str(error).rpartition("; ")[0]  # its remedy is for who calls the ledger
        raise InputError(f"record={path}: line {number} was edited or damaged ({problem}); {_AGAIN}") from None


def _check_head(source: _Source, first: bytes) -> None:
    """Refuse a first line that is not a manifest of this schema, or a baseline's where a whole record is wanted."""
    head = _SchemaHead()
    if first.endswith(b"\n"):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            head = msgspec.json.decode(first, type=_SchemaHead)
    elif first.startswith(_OPENING) or _OPENING.startswith(first):
        raise source.error("is cut in its first line")
    if head.type != "manifest":
        raise source.error(*_NO_MANIFEST)
    if type(head.schema) is not int or head.schema != SCHEMA:
        # Only a number that is larger can be of a version to come.
        remedy = "upgrade attncheck" if type(head.schema) is int and head.schema > SCHEMA else ""
        raise source.error(f"has schema {head.schema!r}, this version reads {SCHEMA}", remedy)
    if head.baseline and source.what != "baseline":
        raise source.error("is a baseline, which keeps only what runs are held against", "pass the record of a run")


def _decoded(source: _Source, number: int, raw: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise source.error(f"line {number} is broken ({error})") from None


def content_hash(content: hashlib._Hash) -> str:
    """Return the hash that a closing line holds of the bytes before it."""
    return content.hexdigest()[:32]
