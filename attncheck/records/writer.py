"""Writer of run records: locked, line by line, readable at any time."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from pathlib import Path
from typing import IO

import msgspec

from attncheck._lib.errors import InputError
from attncheck.records.schema import OPENING, Line, Seal

try:
    import fcntl
except ImportError:  # not available on Windows
    fcntl = None  # type: ignore[assignment]


class Writer:
    """Appends lines to a locked record, without buffering.

    An older record is replaced only when the manifest has been written. After a failed write, earlier lines stay
    readable, and further lines are refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._file: io.FileIO | None = None
        self._failure = ""
        self._seal = Seal()

    def write(self, line: Line) -> None:
        """Append one line; raise `InputError` if the file cannot be written or is locked."""
        if self._failure:
            raise InputError(self._failure)
        data = msgspec.json.encode(line) + b"\n"
        if seal := self._seal.add(data):
            data = msgspec.json.encode(msgspec.structs.replace(line, seal=seal)) + b"\n"
        try:
            if self._file is None:
                self._file = _created(self.path, data)
            else:
                self._append(self._file, data)
        except OSError as error:
            remedy = "choose" if error.errno in (errno.EPERM, errno.EACCES) else "free some space or choose"
            self._failure = f"record={self.path}: cannot be written ({error.strerror or error}); {remedy} another path"
            raise InputError(self._failure) from None
        self._size += len(data)

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


def set_aside(path: Path) -> str:
    """Rename an old record, so that it is not mistaken for a later run's; return a sentence about it for the user.

    The sentence is empty if there is no record, or if it cannot be renamed, e.g. because a run is writing it.

    Examples
    --------
    >>> set_aside(Path("none.jsonl"))
    ''
    """
    earlier = path.with_name(f"{path.name}.earlier")
    try:
        if path.is_file():
            _check_replaceable(path, path)
            os.replace(path, earlier)
            return f"The record of an earlier run is now {earlier}."
    except (InputError, OSError):
        return ""
    return ""


def _created(path: Path, data: bytes) -> io.FileIO:
    """Replace the file at `path` by one that starts with `data`, and return it open and locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path.resolve()
    if target.exists() and not target.is_file():  # devices and pipes are not replaced, and folders fail
        return _started(target, data)
    _check_replaceable(target, path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        file = _started(fresh, data)
        os.replace(fresh, target)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    return file


def _check_replaceable(target: Path, path: Path) -> None:
    """Raise `InputError` if there is a file that is not a record, or that another run is writing."""
    if not target.exists():
        return
    with open(target, "rb") as file:
        if file.read(len(OPENING)) not in (b"", OPENING):
            raise InputError(f"record={path}: is not a record; choose another path")
        try:
            _lock(file)
        except BlockingIOError:
            remedy = "wait for it, or choose another path"
            raise InputError(f"record={path}: another run is writing to it; {remedy}") from None


def _started(path: Path, data: bytes) -> io.FileIO:
    """Open a file, lock it, and write its first bytes."""
    file = open(path, "wb", buffering=0)  # noqa: SIM115 -- Writer.close closes it
    try:
        _lock(file)
        _write_all(file, data)
    except OSError:
        file.close()
        raise
    return file


def _lock(file: IO[bytes]) -> None:
    """Lock a file until it is closed, if the system supports that."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _write_all(file: io.FileIO, data: bytes) -> None:
    """Write all bytes, in parts if necessary."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]
