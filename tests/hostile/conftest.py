"""Valid files, made once: the record of a run, a baseline, samples and a layer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import attncheck as ac
from attncheck.commands.cli import main
from attncheck.subject import collapsed
from tests.recorded import Recorded

Runs = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory, recorded: Recorded) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name in ("baseline.jsonl", "whole.jsonl"):
        shutil.copy(recorded.right, folder / name)
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
    shutil.copytree(sources, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(arguments)
        output = capsys.readouterr()
        assert "internal error" not in output.err
        return code, output.out + output.err

    return run
