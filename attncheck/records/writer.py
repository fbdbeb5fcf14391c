"""Writer of run records: locked, line by line, readable at any time."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from attncheck._lib.errors import InputError
from attncheck.records.schema import Closing, Line, content_hash

try:
    import fcntl
except ImportError:  # not available on Windows
    fcntl = None  # type: ignore[assignment]


# First bytes of every record.
_BEGIN = b'{"type":"manifest"'


class Writer:
    """Appends lines to a locked record, unbuffered.

    An older record is replaced once the manifest is written. After a failed write, earlier lines stay readable and no
    more are accepted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = hashlib.sha256()
        self._size = 0
        self._file: io.FileIO | None = None
        self._failure = ""

    def write(self, line: Line) -> None:
        """Append one line; raise `InputError` if the file cannot be written or is locked."""
        if self._failure:
            raise InputError(self._failure)
        if isinstance(line, Closing):
            line = msgspec.structs.replace(line, content=content_hash(self._content))
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
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _append(self, file: io.FileIO, data: bytes) -> None:
        try:
            _write_all(file, data)
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(self._size)  # removes a partially written line
            raise


def _create(path: Path, data: bytes) -> io.FileIO:
    """Replace `path` by a file starting with `data`; return it open and locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path.resolve()
    if target.is_file() and not _is_record(target):
        raise InputError(f"record={path}: is not a record; choose another path")
    if target.exists() and not target.is_file():
        return _started(target, data)  # devices and pipes are not replaced; folders fail here
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


def _is_record(path: Path) -> bool:
    """Return whether a file is empty or a record."""
    with open(path, "rb") as file:
        begin = file.read(len(_BEGIN))
    return not begin or begin == _BEGIN


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
    """Lock the file at `path` in the context; raise `InputError` if another run has locked it."""
    while True:
        with open(path, "ab") as held:
            try:
                _lock(held)
            except BlockingIOError:
                remedy = "wait for it, or choose another path"
                raise InputError(f"record={path}: another run is writing to it; {remedy}") from None
            # Another run may have just replaced the file.
            if path.exists() and os.path.samestat(os.fstat(held.fileno()), path.stat()):
                yield
                return


def _lock(file: IO[bytes]) -> None:
    """Lock a file until it is closed, if the system supports that."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def _write_all(file: io.FileIO, data: bytes) -> None:
    """Write all bytes, in parts if necessary."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]
