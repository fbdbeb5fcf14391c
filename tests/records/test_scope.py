"""Passes on little evidence say so in the first line; on too little they are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attncheck as ac
from attncheck import faults
from attncheck.checks.registry import CHECKS
from attncheck.gate import gate
from attncheck.gate.outputs import sentence
from attncheck.records.scope import FEWEST_LAWS, Scope
from attncheck.runs.options import RunOptions
from attncheck.runs.parts import read_run
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run
from attncheck.runs.samples.command import check_files
from attncheck.runs.view import RunView
from attncheck.subject import collapsed

LAYER = ac.AttentionLayer(width=8, seq_len=3, num_heads=2)
BLIND = faults.exposing(collapsed, ["outputs"])
ALL = {check.name: 1 for check in CHECKS}


def reach(*names: str, count: int = 10) -> Scope:
    return Scope.of(dict.fromkeys(names, count), dict.fromkeys(ALL, count))


class TestScope:
    def test_words_say_what_was_seen(self) -> None:
        assert reach("outputs.limit", "draws.signs").words == "limit only"
        assert reach("outputs.limit", "outputs.law", "exactness.input").words == "outputs only"
        assert reach("outputs.law", "scores.scale").words == "little examined"
        assert reach(*ALL).words == ""

    def test_checks_that_hold_no_law_are_none(self) -> None:
        assert reach("draws.signs", "outputs.symmetry", "exactness.repeats").laws == 0
        assert "none on a law" in reach("draws.signs").doubt()

    def test_few_laws_settle_nothing_unless_there_are_no_more(self) -> None:
        few = {"scores.scale": FEWEST_LAWS - 1}
        assert Scope.of(few, {"scores.scale": 100}).doubt()
        assert not Scope.of(few, few).doubt()

    def test_a_number_that_is_asked_for_holds(self) -> None:
        assert reach("scores.scale", count=7).doubt(8) == "7 results were examined, 8 are required"
        assert not reach("scores.scale", count=7).doubt(7)

    def test_checks_of_other_versions_are_not_judged(self) -> None:
        assert reach("outputs.limit", "scores.of_tomorrow").words == ""


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

    def test_run_page_and_gate_say_the_same(self, tmp_path: Path) -> None:
        record = tmp_path / "record.jsonl"
        run = Run.of(RunOptions(subject=BLIND, profile="smoke", record=record))
        items = [*run.items_on("exactness", [LAYER]), *run.items_on("outputs", [LAYER])]
        run = run.planning(item.id for item in items)
        report = RunReport(run)
        for item in items:
            report.take(run.examine([item]))
        assert report.finish()
        assert report.summary().startswith("CONSISTENT, OUTPUTS ONLY: ")
        assert RunView(read_run(record)).headline.startswith("Outputs only: ")
        kept = tmp_path / "base.jsonl"
        kept.write_bytes(record.read_bytes())
        assert sentence(gate(record, kept)).startswith("CONSISTENT, OUTPUTS ONLY: ")

    def test_run_holds_to_what_is_asked_for(self, tmp_path: Path) -> None:
        record = tmp_path / "record.jsonl"
        run = Run.of(RunOptions(subject=BLIND, profile="smoke", record=record, min_examined="1000"))
        (item,) = run.items_on("outputs", [LAYER])
        run = run.planning([item.id])
        report = RunReport(run)
        report.take(run.examine([item]))
        assert not report.finish()
        assert report.summary().startswith("INCONCLUSIVE: ")
        assert RunView(read_run(record)).verdict == "inconclusive"

    def test_file_of_outputs(self, tmp_path: Path) -> None:
        drawn = collapsed(LAYER, 4_000, np.random.default_rng(0))
        np.savez(tmp_path / "samples.npz", outputs=drawn["outputs"])
        (tmp_path / "layer.toml").write_text("[layer]\nwidth = 8\nseq_len = 3\nnum_heads = 2\n")
        code, text = check_files([tmp_path / "layer.toml"], [tmp_path / "samples.npz"])
        assert int(code) == 0
        assert text.startswith("CONSISTENT, OUTPUTS ONLY: ")
