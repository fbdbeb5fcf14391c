"""Files that grow line by line, under a lock that keeps other runs from writing to the same name."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from attncheck._lib.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def create(path: Path, data: bytes) -> io.FileIO:
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
        write_all(file, data)
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


def write_all(file: io.FileIO, data: bytes) -> None:
    """Write all bytes: a disk that fills up takes a part and says so only when asked again."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]
