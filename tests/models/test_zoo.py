"""The collection of public models, on three of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from benchmarks import zoo  # noqa: E402  # found by the path above


def test_right_models_and_a_mistake(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept = tmp_path / "rows.jsonl"
    zoo.main(["gpt2", "bert", "mobilevit", "--resume", str(kept)])
    page = capsys.readouterr().out
    assert "3 of 3 models inspected" in page
    assert "2 have nothing wrong. Statements that something is wrong: 1 (1 mistake in a release)" in page
    assert "scales of BatchNorm2d are drawn around 0" in page
    zoo.main(["gpt2", "bert", "mobilevit", "--resume", str(kept)])
    assert capsys.readouterr().out == page


def test_a_statement_that_nobody_examined_is_listed_as_such() -> None:
    assert zoo.judged(zoo.ZooRow("transformers: new"), "scores times 7")[0] == "not examined"
