"""Run records while they are written: locked, line by line, readable whatever happens."""

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
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


# What the first line of every record begins with.
_BEGIN = b'{"type":"manifest"'


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


def _create(path: Path, data: bytes) -> io.FileIO:
    """Put a file that starts with `data` in the place of `path`, and return it open and locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path.resolve()
    if target.is_file() and not _is_record(target):
        raise InputError(f"record={path}: holds something else than a record; choose another path")
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


def _is_record(path: Path) -> bool:
    """Return whether a file may be replaced: it is empty, or begins as a record does."""
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
