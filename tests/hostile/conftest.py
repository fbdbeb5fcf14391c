"""Valid files, made once: two records of a tiny simulator, a baseline, samples and a layer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

import attncheck as ac
from attncheck.commands.cli import main
from attncheck.records.schema import Closing, Result, decoded, run_digest
from attncheck.subject import collapsed

Runs = Callable[..., tuple[int, str]]

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
RUN = ("run", "--subject", "tiny_simulator:simulate", "--only", "scores", "--profile", "smoke", "--workers", "0")


def sealed(content: bytes) -> bytes:
    """Return an edited record with its digest computed again."""
    *lines, last = content.splitlines(keepends=True)
    results = [decoded(line, Result) for line in lines[1:]]  # as they are read
    closing = msgspec.structs.replace(msgspec.json.decode(last, type=Closing), digest=run_digest(results))
    return b"".join([*lines, msgspec.json.encode(closing), b"\n"])


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    (folder / "tiny_simulator.py").write_text(SIMULATOR)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        for seed, name in ((5, "earlier.jsonl"), (6, "whole.jsonl")):
            assert main([*RUN, "--seed", str(seed), "--record", name]) == 0
        assert main(["gate", "earlier.jsonl", "--baseline", "baseline.jsonl", "--write-baseline"]) == 0
    layer = ac.AttentionLayer(width=8, seq_len=2, num_heads=2)
    arrays = collapsed(layer, 400, np.random.default_rng(3))
    np.savez(folder / "samples.npz", outputs=arrays["outputs"], scores=arrays["scores"])
    rows = np.asarray(arrays["outputs"]).reshape(400, layer.seq_len, -1)[..., 0]
    np.savetxt(folder / "samples.csv", rows, delimiter=",", header="y1,y2", comments="")
    (folder / "layer.toml").write_text(layer.to_toml(), "utf-8")
    return folder


@pytest.fixture
def runs(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runs:
    """Return a function that runs a command in a folder with all valid files: its exit code and all its output."""
    shutil.copytree(sources, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(arguments)
        output = capsys.readouterr()
        assert "internal error" not in output.err
        return code, output.out + output.err

    return run
