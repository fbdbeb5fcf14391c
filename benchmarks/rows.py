"""Rows of a page, kept as they are measured, so that an interrupted benchmark continues where it stopped.

A file of rows has one JSON line each. Its first line names the state of the code; rows of another state are not used.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
#: What all pages depend on, besides their scripts.
CODE = ("attncheck", "properties", "reports")

_Row = TypeVar("_Row")


def git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)


def state(root: Path = ROOT) -> str:
    """Return the commit, and a digest of what is changed since in the code and the benchmarks."""
    changes = git(root, "diff", "HEAD", "--", *CODE, "benchmarks/*.py").stdout
    changed = f" with changes {hashlib.sha256(changes.encode()).hexdigest()[:12]}" if changes else ""
    return git(root, "rev-parse", "HEAD").stdout.strip() + changed


class Rows:
    """Rows by key, in a file if given.

    Parameters
    ----------
    path : Path or None
        Without a file nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[str, Any] = {}
        if path is None:
            return
        # What follows the last line break was cut off while it was written.
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        first, *lines = whole.split(b"\n")
        header = msgspec.json.encode({"state": state()})
        if first == header:
            path.write_bytes(whole + b"\n")
            for line in lines:
                entry = msgspec.json.decode(line)
                self._found[entry["key"]] = entry["row"]
            return
        if first:
            print(f"{path.name}: the rows are of another state of the code, and are replaced", file=sys.stderr)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(header + b"\n")

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def get(self, key: str, kind: type[_Row], make: Callable[[], _Row]) -> _Row:
        """Return a row from the file, or make and keep it."""
        if key in self._found:
            return msgspec.convert(self._found[key], kind, dec_hook=lambda _, values: np.array(values))
        row = make()
        self.keep(key, row)
        return row

    def keep(self, key: str, row: Any) -> None:
        """Append a row."""
        if self._path is not None:
            line = msgspec.json.encode({"key": key, "row": row}, enc_hook=lambda array: array.tolist())
            with self._path.open("ab") as file:
                file.write(line + b"\n")
            print(f"{self._path.stem}: {key}", file=sys.stderr, flush=True)
