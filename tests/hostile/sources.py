"""Valid files of every kind that attncheck reads, to be damaged, and the commands that read them."""

from __future__ import annotations

import contextlib
import io
import json
import lzma
from pathlib import Path

import numpy as np

import attncheck as ac
from attncheck.commands.cli import main
from attncheck.programs import EXAMPLES
from attncheck.report.recipe import shipped
from attncheck.subject import collapsed

#: A simulator of two tiny layers, so that a run takes a moment.
SIMULATOR = """
import attncheck
from attncheck.subject import collapsed

def simulate(layer, size, rng):
    return collapsed(layer, size, rng)

simulate.layers = [
    attncheck.AttentionLayer(width=4, seq_len=2, num_heads=1),
    attncheck.AttentionLayer(width=8, seq_len=2, num_heads=2),
]
"""
#: A module that leaves a file behind when it is imported.
TRAP = """
from pathlib import Path

Path(__file__).with_name("executed").touch()
run = print
"""
_RUN = ["run", "--subject", "tiny_simulator:simulate", "--only", "scores", "--profile", "smoke", "--workers", "0"]
_CHECK = ["check", "--layer", "layer.toml", "--samples"]
#: Existing outputs, which a command that refuses its input must leave alone.
OUTPUTS = ("page.html", "junit.xml", "gate.json", "summary.md", "checked.jsonl", "merged.jsonl")
_GATE = ["--junit", "junit.xml", "--json", "gate.json", "--summary", "summary.md", "--annotations"]
_HISTORY = ["--history", "history.jsonl", "--key", "c" * 40]

#: The damaged file and the command that reads it. ID is replaced by an id of the record.
READINGS: tuple[tuple[str, tuple[str, ...]], ...] = tuple(
    (damaged, tuple(arguments))
    for damaged, arguments in (
        ("whole.jsonl", ["gate", "whole.jsonl", "--baseline", "baseline.jsonl.xz", *_GATE]),
        ("whole.jsonl", ["report", "whole.jsonl", "--out", "page.html"]),
        ("samples.npz", [*_CHECK, "samples.npz", "--record", "checked.jsonl"]),
        ("baseline.jsonl.xz", ["gate", "whole.jsonl", "--baseline", "baseline.jsonl.xz", *_GATE]),
        ("whole.jsonl", ["replay", "whole.jsonl", "ID", "--subject", "tiny_simulator:simulate"]),
        ("part1.jsonl", ["merge", "part1.jsonl", "part2.jsonl", "--out", "merged.jsonl", "--verbose"]),
        ("history.jsonl", ["history", "history.jsonl"]),
        ("layer.toml", [*_CHECK, "samples.npz"]),
        ("killed.jsonl", [*_RUN, "--resume", "killed.jsonl", "--record", "resumed.jsonl"]),
        ("samples.npy", [*_CHECK, "samples.npy"]),
        ("whole.jsonl.xz", ["report", "whole.jsonl.xz", "--baseline", "baseline.jsonl", "--out", "page.html"]),
        ("samples.csv", [*_CHECK, "samples.csv"]),
        ("recipe.toml", ["report", "whole.jsonl", "--recipe", "recipe.toml", "--out", "page.html"]),
        ("whole.jsonl", ["gate", "whole.jsonl", "--baseline", "baseline.jsonl", *_HISTORY]),
        ("power.json", ["report", "whole.jsonl", "--power", "power.json", "--out", "page.html"]),
        ("baseline.jsonl", ["report", "whole.jsonl", "--baseline", "baseline.jsonl", "--out", "page.html"]),
        ("merged.jsonl", ["run", "--owed", "merged.jsonl", "--subject", "tiny_simulator:simulate", "--workers", "0"]),
        ("history.jsonl", ["gate", "whole.jsonl", "--baseline", "baseline.jsonl", *_HISTORY]),
        ("stack.toml", ["stack", "stack.toml"]),
        ("program.toml", ["program", "program.toml"]),
        ("history.jsonl", ["history", "history.jsonl", "history2.jsonl", "--plot", "plot.svg"]),
        ("name", ["explain", "name"]),
    )
)


def make_sources(folder: Path) -> None:
    """Write the valid files into the current folder, with the commands themselves where they write some."""
    (folder / "tiny_simulator.py").write_text(SIMULATOR)
    (folder / "trap.py").write_text(TRAP)
    for seed, name in ((5, "earlier.jsonl"), (6, "whole.jsonl")):
        _run([*_RUN, "--seed", str(seed), "--record", name])
    _run([*_RUN, "--seed", "0", "--record", "killed.jsonl"])
    for part in (1, 2):
        _run([*_RUN, "--shard", f"{part}/2", "--record", f"part{part}.jsonl"])
    _run(["merge", "part1.jsonl", "part2.jsonl", "--out", "merged.jsonl"])
    for name in ("baseline.jsonl", "baseline.jsonl.xz"):
        _run(["gate", "earlier.jsonl", "--baseline", name, "--write-baseline"])
    for name, keys in (("history.jsonl", "a"), ("history2.jsonl", "b")):
        _run(["gate", "earlier.jsonl", "--baseline", "baseline.jsonl.xz", "--history", name, "--key", keys * 40])
    killed = (folder / "killed.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "killed.jsonl").write_bytes(b"".join(killed[:-12]))
    (folder / "whole.jsonl.xz").write_bytes(lzma.compress((folder / "whole.jsonl").read_bytes()))
    _samples(folder)
    recipe = (shipped() / "validation.toml").read_text("utf-8")
    (folder / "recipe.toml").write_text(recipe, "utf-8")
    cell = {"fault": "tied", "exposure": "outputs", "power": 0.4, "check": "scores.tied"}
    (folder / "power.json").write_text(json.dumps({"profile": "smoke", "cells": [cell]}))
    (folder / "name").write_text("scores.scale")
    for name in OUTPUTS:
        if not (folder / name).exists():
            (folder / name).write_text("an output of an earlier command\n" if name != "checked.jsonl" else "")


def _samples(folder: Path) -> None:
    layer = ac.AttentionLayer(width=8, seq_len=2, num_heads=2)
    arrays = collapsed(layer, 400, np.random.default_rng(3))
    np.savez(folder / "samples.npz", outputs=arrays["outputs"], scores=arrays["scores"])
    outputs = np.asarray(arrays["outputs"])
    np.save(folder / "samples.npy", outputs)
    rows = outputs.reshape(len(outputs), layer.seq_len, -1)[..., 0]
    np.savetxt(folder / "samples.csv", rows, delimiter=",", header="y1,y2", comments="")
    (folder / "layer.toml").write_text(layer.to_toml(), "utf-8")
    (folder / "stack.toml").write_text(ac.AttentionStack(layer=layer, depth=2).to_toml(), "utf-8")
    (folder / "program.toml").write_text(next(iter(EXAMPLES.values()))().to_toml(), "utf-8")


def _run(arguments: list[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    assert code in (0, 3), f"{arguments}: {code}\n{out.getvalue()}{err.getvalue()}"
