"""Files that appear with their last byte: a reader never sees half of one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from attncheck._lib.errors import InputError


def write_whole(path: Path, content: bytes, option: str = "out") -> Path:
    """Write a file in one step, in a folder that is made where there is none; return its path.

    Parameters
    ----------
    path : Path
    content : bytes
    option : str
        What named the file, for the error.

    Raises
    ------
    InputError
        If it cannot be written; a file that was there stays as it was.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "made", "page.html"), b"<!DOCTYPE html>").read_bytes()
    b'<!DOCTYPE html>'
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a device or a pipe is written to, not replaced; a folder fails here
        else:
            _replace(path.resolve(), content)
    except OSError as error:
        raise InputError(
            f"{option}={path}: cannot be written ({error.strerror or error}); choose another path"
        ) from None
    return path


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content)
        os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
