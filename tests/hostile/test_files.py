"""Damaged files are refused in one line that names the file, and nothing else happens."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from .conftest import Runs

GATE = ("gate", "whole.jsonl", "--baseline", "baseline.jsonl", "--json", "gate.json", "--summary", "summary.md")
REPORT = ("report", "whole.jsonl", "--out", "page.html")
CHECK = ("check", "--layer", "layer.toml", "--samples", "samples.npz", "--record", "checked.jsonl")
_DEEP = 100_000


class Damage(NamedTuple):
    """A file, what happens to its bytes, and the command that reads it."""

    name: str
    change: Callable[[bytes], bytes]
    command: tuple[str, ...]


def edited(**values: Any) -> Callable[[bytes], bytes]:
    """Return a function that replaces values in the second line of a record, without computing the digest again."""

    def change(content: bytes) -> bytes:
        first, second, *lines = content.splitlines(keepends=True)
        return b"".join([first, json.dumps(json.loads(second) | values).encode(), b"\n", *lines])

    return change


class _Executes:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


def pickled(content: bytes) -> bytes:
    """Return an archive whose array runs code when it is unpickled."""
    with zipfile.ZipFile("pickled.npz", "w") as archive, archive.open("outputs.npy", "w") as file:
        np.lib.format.write_array(file, np.array([_Executes()], dtype=object), allow_pickle=True)
    made = Path("pickled.npz").read_bytes()
    Path("pickled.npz").unlink()
    return made


DAMAGED = {
    "bits": Damage("whole.jsonl", lambda content: content[:5000] + b"\xff\x00" + content[5002:], GATE),
    "number edited": Damage("whole.jsonl", edited(p_values=[0.321]), GATE),
    "deep": Damage("whole.jsonl", lambda content: b"[" * _DEEP + b"]" * _DEEP + b"\n", REPORT),
    "picture": Damage("baseline.jsonl", lambda content: b"\x89PNG\r\n\x1a\n" + bytes(1000), GATE),
    "layer of another kind": Damage("layer.toml", lambda content: b"[layer]\nwidth = 'wide'\n", CHECK),
    "function of another module": Damage("layer.toml", lambda content: content + b'mask = "os:system"\n', CHECK),
    "archive cut": Damage("samples.npz", lambda content: content[: len(content) // 2], CHECK),
    "pickled": Damage("samples.npz", pickled, CHECK),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_refused_by_name(kind: str, runs: Runs) -> None:
    name, change, command = DAMAGED[kind]
    Path(name).write_bytes(change(Path(name).read_bytes()))
    outputs = ("page.html", "gate.json", "summary.md")
    for output in outputs:
        Path(output).write_text("an output of an earlier command\n")
    before = {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    code, said = runs(*command)
    assert code == 2
    (line,) = said.splitlines()
    assert name in line or "layer" in line
    after = {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    replaced = {output for output in outputs if output in command}  # a gate's, which would pass for this one's
    assert {path for path in after if after[path] != before.get(path)} == replaced & {"gate.json", "summary.md"}
    assert all(name.encode() in after[output] for output in replaced - {"page.html"})
