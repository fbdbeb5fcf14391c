"""Atomic writes, and checks of output paths."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from attncheck._lib.errors import InputError, refuse

# A compressed file may contain `_SMALL` bytes, plus `_EXPANSION` bytes per byte of its size.
_SMALL, _EXPANSION = 2**24, 50


def write_file(path: Path, content: bytes, option: str = "out") -> Path:
    """Write a file atomically, creating its folder; return its path.

    Raises InputError, with the name of the `option`, if that fails; an existing file then stays unchanged.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder, "pages", "page.html"), b"<!DOCTYPE html>").read_bytes()
    b'<!DOCTYPE html>'
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # devices and pipes are written to, not replaced; folders fail
        else:
            _replace(path.resolve(), content)
    except OSError as error:
        raise InputError(
            f"{option}={path}: cannot be written ({error.strerror or error}); choose another path"
        ) from None
    return path


def most_content(path: Path) -> int:
    """Return the maximum number of bytes to read from a compressed file.

    Compression shrinks records to a twentieth; a file that expands much more was made to exhaust memory.
    """
    return _SMALL + _EXPANSION * path.stat().st_size


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
    """Raise `InputError` if one of the paths, given by argument name, is a folder or not writable."""
    for name, path in outputs.items():
        if path is None:
            continue
        problem = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                problem = "is a folder"
            elif not os.access(path if path.exists() else path.parent, os.W_OK):
                problem = "cannot be written (no permission)"
        except OSError as error:
            problem = f"cannot be written ({error.strerror or error})"
        if problem:
            refuse(name, str(path), problem, "choose another path")


def refuse_same(inputs: Mapping[str, Path | None], outputs: Mapping[str, Path | None]) -> None:
    """Raise `InputError` if an output is the same file as an input or another output; paths are given by argument name.

    Examples
    --------
    >>> refuse_same({"run": Path("run.jsonl")}, {"json": Path("./run.jsonl")})
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: json='run.jsonl': is also the path of run; choose another path
    """
    known = {path.resolve(): name for name, path in inputs.items() if path is not None}
    for name, path in outputs.items():
        if path is not None and (first := known.setdefault(path.resolve(), name)) != name:
            refuse(name, str(path), f"is also the path of {first}", "choose another path")
