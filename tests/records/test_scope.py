"""Passes on little evidence say so in the first line; on too little they are none."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck import faults
from attncheck.checks.registry import CHECKS
from attncheck.gate import gate
from attncheck.gate.outputs import sentence
from attncheck.records.scope import FEWEST_LAWS, Scope
from attncheck.runs.parts import read_run
from attncheck.runs.samples.command import check_files
from attncheck.runs.view import RunView
from attncheck.subject import collapsed
from tests.recorded import examine

LAYER = ac.AttentionLayer(width=8, seq_len=3, num_heads=2)
BLIND = faults.exposing(collapsed, ["outputs"])
ALL = {check.name: 1 for check in CHECKS}


def reach(*names: str, count: int = 10) -> Scope:
    return Scope.of(dict.fromkeys(names, count), dict.fromkeys(ALL, count))


class TestScope:
    @pytest.mark.parametrize(
        ("names", "words"),
        [
            (["outputs.limit", "draws.signs"], "limit only"),
            (["outputs.limit", "outputs.law", "exactness.input"], "outputs only"),
            (["outputs.law", "scores.scale"], "little examined"),
            (["corollary2.output_size", "corollary2.two_scores"], "outputs and scores only"),
            (ALL, ""),
            (["outputs.limit", "scores.of_tomorrow"], ""),  # checks of other versions are not judged
        ],
    )
    def test_words_say_what_was_examined(self, names: Iterable[str], words: str) -> None:
        assert reach(*names).words == words

    def test_checks_that_hold_no_law_are_none(self) -> None:
        assert reach("draws.signs", "outputs.symmetry", "exactness.repeats").laws == 0
        assert "none on a law" in reach("draws.signs").doubt()
        assert reach("outputs.law", "scores.scale").doubt().startswith("too little was examined: ")

    def test_few_laws_settle_nothing_unless_there_are_no_more(self) -> None:
        few = {"scores.scale": FEWEST_LAWS - 1}
        assert Scope.of(few, {"scores.scale": 100}).doubt()
        assert not Scope.of(few, few).doubt()

    def test_a_number_that_is_asked_for_holds(self) -> None:
        assert reach("scores.scale", count=7).doubt(8) == "7 results were examined, 8 are required"
        assert not reach("scores.scale", count=7).doubt(7)


class TestFirstLines:
    def test_check_tells_that_outputs_are_all(self) -> None:
        report = ac.check(BLIND, LAYER, properties=["exactness", "outputs"], profile="smoke")
        assert str(report).startswith("CONSISTENT, OUTPUTS ONLY: ")
        report.require()
        with pytest.raises(AssertionError, match="are required"):
            report.require(min_examined=len(report.results))
        with pytest.raises(ac.InputError, match="min_examined=-1: must be at least 0"):
            report.require(min_examined=-1)

    def test_nothing_but_draws_is_inconclusive(self) -> None:
        report = ac.check(BLIND, LAYER, properties=["scores", "draws"], profile="smoke")
        assert report.verdict == "inconclusive"
        assert "none on a law" in str(report).splitlines()[1]

    @pytest.mark.parametrize(
        ("names", "options", "first_line", "headline"),
        [
            (["exactness", "outputs"], {}, "CONSISTENT, OUTPUTS ONLY: ", "Outputs only: "),
            (["outputs"], {"min_examined": "1000"}, "INCONCLUSIVE: ", ""),
        ],
    )
    def test_run_page_and_gate_say_the_same(
        self, tmp_path: Path, names: list[str], options: dict[str, Any], first_line: str, headline: str
    ) -> None:
        record, base = tmp_path / "record.jsonl", tmp_path / "base.jsonl"
        report = examine(record, BLIND, names, [LAYER], **options)
        base.write_bytes(record.read_bytes())
        assert report.summary().startswith(first_line)
        assert RunView(read_run(record)).headline.startswith(headline)
        assert sentence(gate(record, base)).startswith(first_line if headline else "INCO")
        assert (RunView(read_run(record)).verdict == "consistent") is bool(headline)

    def test_file_of_outputs(self, tmp_path: Path) -> None:
        drawn = collapsed(LAYER, 4_000, np.random.default_rng(0))
        np.savez(tmp_path / "samples.npz", outputs=drawn["outputs"])
        (tmp_path / "layer.toml").write_text("[layer]\nwidth = 8\nseq_len = 3\nnum_heads = 2\n")
        code, text = check_files([tmp_path / "layer.toml"], [tmp_path / "samples.npz"])
        assert int(code) == 0
        assert text.startswith("CONSISTENT, OUTPUTS ONLY: ")
