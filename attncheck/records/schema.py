"""Run records: JSON Lines with a versioned schema, readable however the run ended.

The first line is the manifest, then one line per result or statement of the theory, and a closing line with the
digest. A record without a closing line is of a run that did not finish. The closing line also holds a hash of all
bytes before it, so that a record that was edited is told from one that was written.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import numpy as np

from attncheck._lib.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: The schema that is written and read.
SCHEMA = 3
_AGAIN = "make the record again"
_NO_MANIFEST = "has no manifest in its first line; pass a record that attncheck wrote"
# How `Writer` begins a record.
_OPENING = b'{"type":"manifest"'


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
    ``high`` are of the look that decided; the null expects ``null_effect``, or allows everything up to it where
    ``at_most``; ``gap`` is the smallest effect that a look of this size
    detects with the planned power; ``departure`` is what the check states, or the gap where that is larger.
    ``picture`` shows the look that decided, see
    `attncheck.evidence.pictures`. ``summary`` is what the first look left to be added up with other cases, see
    `attncheck.evidence.summaries`. The result of a pool has ``{"pool": what, "of": keys of cases}`` for a case.
    """

    id: str
    key: str
    unit: str
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
    gap: float | None
    departure: float | None
    combined: float
    continuous: bool
    text: str
    hint: str
    seconds: float
    illustration: str = ""
    diagnosis: list[str] = []
    picture: dict[str, Any] | None = None
    at_most: bool = False
    summary: dict[str, Any] | None = None


class Theory(msgspec.Struct, frozen=True, tag="theory", tag_field="type"):
    """One statement of the theory on one case, computed or drawn without the subject: no looks decided on it.

    ``verdict`` is "consistent" or "violated"; ``numbers`` are what the statement is about, by name.
    """

    id: str
    key: str
    verdict: str
    numbers: dict[str, float]
    case: str
    reason: str
    seconds: float

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


Line = Manifest | Result | Theory | Closing


class Reported(Protocol):
    """A result, or a reader's own struct of one."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def key(self) -> str:
        """What it is known by."""

    @property
    def unit(self) -> str:
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


def case_key(result: Reported) -> str:
    """Return the key of the case of a result, or the name of its pool."""
    return result.unit.partition("@")[2]


def of_pool(result: Reported) -> bool:
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


class _Head(msgspec.Struct):
    type: Any = None
    schema: Any = None


def result_digest(r: Any) -> bytes:
    """Return the digest of the key, verdict and numbers of one `Result`, or of a struct that has them.

    No prose is in it, and no name: a message that is written better, or a check that is renamed, leaves it as it was.
    """
    looks = [r.size, r.level, r.power, r.p_values, r.effects, r.combined]
    numbers = [r.effect, r.low, r.high, r.null_effect, r.gap]
    return _sha256([r.key, r.verdict, *looks, *numbers])


def theory_digest(theory: Theory) -> bytes:
    """Return the digest of the key, verdict and numbers of one statement of the theory."""
    return _sha256([theory.key, theory.verdict, theory.numbers])


def _sha256(digits: Any) -> bytes:
    return hashlib.sha256(msgspec.json.encode(digits, order="sorted")).digest()


def combined_digest(digests: bytes | bytearray) -> str:
    """Return the digest of a run from those of its results, end to end in any order."""
    # Sorted as they lie: a million objects would take three times the memory.
    ordered = np.sort(np.frombuffer(digests, dtype=np.dtype((np.void, hashlib.sha256().digest_size))))
    return hashlib.sha256(ordered.tobytes()).hexdigest()[:16]


def run_digest(results: Iterable[Result | Theory]) -> str:
    """Return the digest of what a run reported, whatever its order or the time it took.

    Two runs with the same seed, subject and plan have the same digest with any number of workers, after any module,
    property or message was renamed. Other digits, and so another digest, may come of another processor (OpenBLAS
    chooses its kernels by it: the manifest's ``arithmetic`` names them), of another BLAS than the one that NumPy and
    SciPy bring along, and of another release of NumPy (its sums, its random distributions), SciPy (its special
    functions, quadrature and optimisers) or hypothesis (the configurations that it draws). The manifest's
    ``versions`` names the releases.
    """
    digests = (theory_digest(each) if isinstance(each, Theory) else result_digest(each) for each in results)
    return combined_digest(b"".join(digests))


class Writer:
    """Appends lines to a record; every line is handed to the system before the next is made.

    The record takes its name with the manifest in it: until then an older record of that name stays. While it
    is being written, no other run can write to that name. Where a line cannot be written, a full disk for
    example, the lines before it stay readable and the writer takes no more.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = hashlib.sha256()
        self._size = 0
        self._file: io.FileIO | None = None
        self._failure = ""

    def write(self, line: Line) -> None:
        """Append one line.

        Raises
        ------
        InputError
            If the path cannot be written, another run is writing to it, or an earlier line failed.
        """
        if self._failure:
            raise InputError(self._failure)
        if isinstance(line, Closing):
            line = msgspec.structs.replace(line, content=_hex(self._content))
        data = msgspec.json.encode(line) + b"\n"
        try:
            if self._file is None:
                self._file = _create(self.path, data)
            else:
                self._append(self._file, data)
        except OSError as error:
            problem = error.strerror or error
            self._failure = f"record={self.path}: cannot be written ({problem}); free some space or choose another path"
            raise InputError(self._failure) from None
        self._size += len(data)
        self._content.update(data)

    def close(self) -> None:
        """Close the file; the record stays as it is."""
        if self._file is not None:
            self._file.close()

    def _append(self, file: io.FileIO, data: bytes) -> None:
        try:
            _write_all(file, data)
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(self._size)  # no half line at the end
            raise


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


def read_as(path: Path, lines: Any) -> Iterator[Any]:
    """Iterate over the lines of a record as structs of the reader's own.

    Parameters
    ----------
    path : Path
    lines : type
        A union of tagged structs for manifest, result and closing line, with the fields that are wanted.

    Raises
    ------
    InputError
        As for `read`.
    """
    decoder = msgspec.json.Decoder(lines)
    content = hashlib.sha256()
    ended = False
    try:
        with open(path, "rb") as file:
            # A large file of another kind may be one long line.
            if file.peek(1)[:1] != b"{":
                raise InputError(f"record={path}: {_NO_MANIFEST}")
            for number, raw in enumerate(file, 1):
                if number == 1:
                    _check_schema(path, raw)
                if not raw.endswith(b"\n"):
                    return
                line = _decoded(path, number, raw, decoder)
                kind = line.__struct_config__.tag
                if ended or (kind == "manifest") != (number == 1):
                    raise InputError(f"record={path}: line {number} does not belong there; {_AGAIN}")
                if kind == "closing":
                    ended = True
                    if line.content != _hex(content):
                        raise InputError(f"record={path}: was edited after the run; {_AGAIN}")
                content.update(raw)
                yield line
    except OSError as error:
        raise InputError(f"record={path}: cannot be read ({error.strerror}); pass the path of a run record") from None


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


def read_manifest(path: Path) -> Manifest:
    """Return the first line of a record.

    Raises
    ------
    InputError
        If there is none that can be read.
    """
    first = next(read(path))
    assert isinstance(first, Manifest)
    return first


def _check_schema(path: Path, first: bytes) -> None:
    """Refuse a first line that is not a manifest of this schema."""
    head = _Head()
    if first.endswith(b"\n"):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            head = msgspec.json.decode(first, type=_Head)
    elif first.startswith(_OPENING) or _OPENING.startswith(first):
        raise InputError(f"record={path}: is cut in its first line; {_AGAIN}")
    if head.type != "manifest":
        raise InputError(f"record={path}: {_NO_MANIFEST}")
    if type(head.schema) is int and head.schema == SCHEMA:
        return
    # Only a number that is larger can be of a version to come.
    remedy = "upgrade attncheck" if type(head.schema) is int and head.schema > SCHEMA else _AGAIN
    raise InputError(f"record={path}: has schema {head.schema!r}, this version reads {SCHEMA}; {remedy}")


def _decoded(path: Path, number: int, raw: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"record={path}: line {number} is broken ({error}); {_AGAIN}") from None


def _hex(content: hashlib._Hash) -> str:
    return content.hexdigest()[:32]


def _create(path: Path, data: bytes) -> io.FileIO:
    """Put a file that starts with `data` in the place of `path`, and return it open and locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path.resolve()
    if target.exists() and not target.is_file():
        return _started(target, data)  # a device or a pipe is written to, not replaced; a folder fails here
    existed = target.exists()
    with _locked(target):
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            fresh.unlink(missing_ok=True)
            file = _started(fresh, data)
            os.replace(fresh, target)
        except OSError:
            fresh.unlink(missing_ok=True)
            if not existed:
                target.unlink(missing_ok=True)
            raise
    return file


def _started(path: Path, data: bytes) -> io.FileIO:
    """Open a file for appending, lock it, and write its first bytes."""
    file = open(path, "ab", buffering=0)  # noqa: SIM115 -- Writer.close closes it
    try:
        _lock(file)
        _write_all(file, data)
    except OSError:
        file.close()
        raise
    return file


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file that has this name now; refuse if a run holds it."""
    while True:
        with open(path, "ab") as held:
            try:
                _lock(held)
            except BlockingIOError:
                remedy = "wait for it, or choose another path"
                raise InputError(f"record={path}: another run is writing to it; {remedy}") from None
            # Between opening and locking another run may have put its own file there.
            if path.exists() and os.path.samestat(os.fstat(held.fileno()), path.stat()):
                yield
                return


def _lock(file: IO[bytes]) -> None:
    """Lock a file for as long as it is open; where files cannot be locked, nothing happens."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def _write_all(file: io.FileIO, data: bytes) -> None:
    """Write all bytes: a disk that fills up takes a part and says so only when asked again."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]
