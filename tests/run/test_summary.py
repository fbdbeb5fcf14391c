"""A run's summary: verdict, table, skipped checks and detectable effects."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attncheck import faults
from attncheck._lib.workers import InProcess
from attncheck.checks.registry import EVERY_CHECK
from attncheck.diagnosis.causes import by_hint, violated
from attncheck.records.schema import Result
from attncheck.records.text import reads
from attncheck.runs.details import MAIN_CHECKS, mdes, unseen
from attncheck.runs.parts import read_run
from attncheck.runs.reporting import RunReport
from attncheck.runs.summary import labelled, summarize
from attncheck.runs.view import NOT_PROVED, RunView
from attncheck.subject import collapsed

from .conftest import GROUPED, LAYER, planned, results_of, view_of


class TestSummary:
    def test_violated_begins_with_the_causes_that_the_report_has(self, tmp_path: Path) -> None:
        record = tmp_path / "record.jsonl"
        report = RunReport(planned("scores", subject="attncheck.faults:tied_query_key", record=record))
        report.take(report.run.examine(report.run.items_on("scores", [LAYER])))
        report.diagnose(InProcess())
        assert not report.finish()
        first = by_hint(violated(read_run(record).tallies))[0]
        assert first.hint
        lines = report.summary().splitlines()
        assert str(report.explanations[0]) == "W_Q and W_K are the same matrix"
        assert lines[1] == "  cause:    W_Q and W_K are the same matrix"
        shown = {line.partition(":")[0].strip() for line in lines[:15]}
        assert {"cause", "observed", "first", "layer", "replay"} <= shown
        assert f"{first.leading.name} on 1 of 1 layer: " in next(line for line in lines if line.startswith("  first:"))
        assert f"attncheck replay {record} {first.leading.name}@" in report.summary()
        assert NOT_PROVED not in lines
        assert len(lines) <= 40

    # Without causes, which do not affect the order; the test above has them.
    @pytest.mark.sampled
    @pytest.mark.usefixtures("no_causes")
    @pytest.mark.parametrize(
        ("name", "exposure", "property_name"),
        [
            ("missing_head_scaling", "outputs", "outputs"),
            ("scores_over_n", "scores", "exactness"),
            ("tied_query_key", "grams", "scores"),
            ("softmax_over_columns", "grams", "conditional"),
            ("value_std_10", "grams", "conditional"),
        ],
    )
    def test_the_page_names_the_same_check_first(
        self, tmp_path: Path, name: str, exposure: str, property_name: str
    ) -> None:
        subject = faults.exposing(faults.FAULTS[name], faults.EXPOSURES[exposure])
        report = RunReport(planned(property_name, subject=subject, record=tmp_path / "record.jsonl"))
        report.take(report.run.examine(report.run.items_on(property_name, [LAYER])))
        report.finish()
        view = RunView(read_run(tmp_path / "record.jsonl"))
        assert view.verdict == "violated"
        first = next(line for line in report.summary().splitlines() if line.startswith("  first:"))
        assert first.startswith(f"  first:    {view.failures[0].name} on ")

    def test_consistent_ends_with_what_it_does_not_prove(self, tmp_path: Path) -> None:
        report = RunReport(planned("scores", subject=collapsed, record=tmp_path / "record.jsonl"))
        report.take(report.run.examine(report.run.items_on("scores", [LAYER])))
        assert report.finish()
        lines = report.summary().splitlines()
        assert NOT_PROVED in lines
        assert not any(line.startswith("  cause:") for line in lines)
        assert len(lines) <= 25
        assert "what a green run proves, and what it does not" in NOT_PROVED.lower()
        readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
        assert "## What a green run proves, and what it does not\n" in readme

    def test_layers_and_programs_are_counted_together_as_configurations(self) -> None:
        run = planned("scores", "netsor")
        of_layer = results_of(planned("scores"), "scores")
        of_program = [
            msgspec.structs.replace(r, property="netsor", item=f"netsor@{n}", case={"program": {}, "widths": [n]})
            for n, r in enumerate(of_layer)
            if r.p_values
        ]
        both = [*of_layer, *of_program]
        assert f"and {1 + len(of_program)} cases;" in view_of(run, both).sentence

    def test_what_only_layers_with_a_violation_have_is_said(self) -> None:
        def wrong(results: list[Result]) -> str:
            return "\n".join(labelled(view_of(planned("scores"), results).lines))

        (result,) = (r for r in results_of(planned("scores"), "scores") if r.check == "scores.scale")
        both = LAYER.replace(mask="causal", head_dim=2)
        bad = [
            msgspec.structs.replace(result, case=layer.to_dict(), item=f"scores@{k}", verdict="violated")
            for k, layer in enumerate([both, both.replace(head_dim=None)])
        ]
        good = msgspec.structs.replace(result, case=LAYER.replace(head_dim=2).to_dict(), item="scores@9")
        assert "scores.scale on 2 of 3 layers; only with causal: " in wrong([*bad, good])
        assert "on 1 of 2 layers; only with causal: " in wrong([bad[0], good])
        masked = msgspec.structs.replace(good, case=LAYER.replace(mask="causal", width=4).to_dict())
        assert "on 2 of 4 layers: " in wrong([*bad, good, masked])
        assert "on 2 of 2 layers: " in wrong(bad)
        assert wrong([good]) == ""

    def test_what_to_widen_is_said_where_no_layer_is_supported(self) -> None:
        subject: Any = functools.partial(collapsed)
        subject.supports = lambda layer: layer.width == 5 or "width 5 only"
        run = planned("scores", layer=GROUPED, subject=subject)
        results = run.examine(run.items_on("scores", [GROUPED]))
        line = view_of(run, results).refused
        assert ".supports rejects the layer requested: width 16, " in line
        assert "mask causal, num_kv_heads 2" in line
        assert "attncheck.AttentionLayer(width=16, " in line
        assert line in summarize(view_of(run, results)).splitlines()
        assert view_of(planned("scores"), results_of(planned("scores"), "scores")).refused == ""


class TestDetectable:
    def test_names_the_median_of_what_was_examined(self, tmp_path: Path) -> None:
        report = RunReport(planned("scores", record=tmp_path / "record.jsonl"))
        report.take(report.run.examine(report.run.items_on("scores", [LAYER])))
        report.finish()
        (line,) = mdes(report.results, [])
        assert line in report.summary().splitlines()
        (scale,) = (result for result in report.results if result.check == "scores.scale")
        results = [msgspec.structs.replace(scale, mde=mde) for mde in (1.5, 1.01, 1.02, math.inf, 1.03)]
        left_out = msgspec.structs.replace(scale, mde=None, p_values=[], verdict="not examined")
        (line,) = mdes([*results, left_out], [])
        assert line == "Smallest detectable error in score variance given inputs and keys: 3% on the median layer"

    def test_what_exposes_less_is_told_by_the_next_check(self) -> None:
        blind = faults.exposing(collapsed, ["outputs", "scores"])
        results = results_of(planned("exactness", subject=blind), "exactness")
        lines = mdes(results, [])
        assert len(lines) == 3
        for check, line in zip(("exactness.score_energy", "exactness.output_energy"), lines, strict=False):
            (result,) = (each for each in results if each.check == check)
            assert line.startswith(f"Smallest detectable {reads(result)}: ")

    def test_nothing_examined_nothing_seen(self) -> None:
        assert mdes([], []) == []

    def test_main_checks_are_checks(self) -> None:
        assert set(MAIN_CHECKS) <= {check.name for check in EVERY_CHECK}


def test_whole_properties_are_told_in_short() -> None:
    results = results_of(planned("scores"), "scores")
    unable = [msgspec.structs.replace(r, p_values=[], verdict="not examined", reason="no programs") for r in results]
    assert unseen(unable) == {"no programs": [f"scores ({len(unable)} checks)"]}
    assert unseen(unable[1:]) == {"no programs": sorted(result.check for result in unable[1:])}


def test_what_exposing_more_would_gain_is_counted() -> None:
    run = planned("scores", subject=faults.exposing(collapsed, ["outputs", "scores"]))
    results = results_of(run, "scores")
    first, *others = view_of(run, results).remedies
    gained = sum(not result.p_values and "does not expose" in result.reason for result in results)
    assert first == f"Return input_gram and key_gram too: up to {gained} more results."
    whole = results_of(planned("scores"), "scores")
    assert sum(bool(r.p_values) for r in whole) <= gained + sum(bool(r.p_values) for r in results)
    assert all(line.startswith("Not examined: ") for line in others)
    assert view_of(planned("scores"), [result for result in whole if result.p_values]).remedies == []
