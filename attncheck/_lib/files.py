"""Files that appear with their last byte: a reader never sees half of one. None is written over what is read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from attncheck._lib.errors import InputError, refuse


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


def check_writable(outputs: Mapping[str, Path | None]) -> None:
    """Refuse what cannot be written, before anything is done that should be written there.

    Parameters
    ----------
    outputs : mapping of str to Path or None
        By the name of the argument.

    Raises
    ------
    InputError
        If a path is a folder, or there is no folder for it, or nobody may write there.
    """
    for name, path in outputs.items():
        if path is None:
            continue
        problem = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                problem = "is a folder"
            elif not os.access(path if path.exists() else path.parent, os.W_OK):
                problem = "cannot be written (nobody may write there)"
        except OSError as error:
            problem = f"cannot be written ({error.strerror or error})"
        if problem:
            refuse(name, str(path), problem, "choose another path")


def refuse_same(inputs: Mapping[str, Path | None], outputs: Mapping[str, Path | None]) -> None:
    """Refuse to write over what is read, or two things into one file.

    Parameters
    ----------
    inputs, outputs : mapping of str to Path or None
        By the name of the argument.

    Raises
    ------
    InputError
        If an output has the path of an input or of another output.

    Examples
    --------
    >>> refuse_same({"run": Path("run.jsonl")}, {"json": Path("./run.jsonl")})
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: json='run.jsonl': is the path of run too; choose another path
    """
    known = {Path(os.path.abspath(path)): name for name, path in inputs.items() if path is not None}
    for name, path in outputs.items():
        if path is not None and (first := known.setdefault(Path(os.path.abspath(path)), name)) != name:
            refuse(name, str(path), f"is the path of {first} too", "choose another path")
