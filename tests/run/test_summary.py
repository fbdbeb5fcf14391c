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
from attncheck.checks.registry import CHECKS, EVERY_CHECK
from attncheck.diagnosis.causes import by_hint, violated
from attncheck.records.schema import Result
from attncheck.records.text import reads
from attncheck.report.first import finding
from attncheck.runs.details import MAIN_CHECKS, detectable, mdes, skipped, unseen, visited_layers
from attncheck.runs.parts import read_run
from attncheck.runs.reporting import RunReport
from attncheck.runs.summary import NOT_PROVED, all_refused, not_examined, summarize, verdict_sentence, what_is_wrong
from attncheck.subject import collapsed

from .conftest import GROUPED, LAYER, planned, results_of


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
        assert lines[1] == f"  cause:    {report.diagnosis.causes[0]}" == "  cause:    W_Q and W_K are the same matrix"
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
        assert report.conclusion is not None
        assert report.conclusion.verdict == "violated"
        found = finding(read_run(tmp_path / "record.jsonl"))
        assert found is not None
        first = next(line for line in report.summary().splitlines() if line.startswith("  first:"))
        assert first.startswith(f"  first:    {found.failures[0].name} on ")

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

    def test_what_is_skipped_is_told_with_its_reason(self) -> None:
        results = results_of(planned("scores"), "scores")
        assert skipped(results) == []
        idle = [
            msgspec.structs.replace(r, item="inputs@0", property="inputs", p_values=[], reason="too dear")
            for r in results
        ]
        assert skipped([*results, *idle]) == ["Skipped, nothing to examine:", "  inputs on 1 layer: too dear"]

    def test_what_is_skipped_is_counted_by_reason(self) -> None:
        (one, *_) = results_of(planned("scores"), "scores")
        reasons = ["not this layer", "the subject does not expose value_gram", "too dear", "not this layer"]
        idle = [
            msgspec.structs.replace(one, item=f"inputs@{item}", property="inputs", p_values=[], reason=reason)
            for item, reason in enumerate(reasons)
        ]
        # Another check of the item, for another reason: the informative one counts, the item once.
        idle.append(msgspec.structs.replace(idle[1], reason="there is one head only"))
        assert skipped(idle) == [
            "Skipped, nothing to examine:",
            "  inputs on 2 layers: not this layer",
            "  inputs on 1 layer: the subject does not expose value_gram",
            "  inputs on 1 layer: too dear",
        ]

    def test_layers_and_programs_are_counted_together_as_configurations(self) -> None:
        run = planned("scores", "netsor")
        of_layer = results_of(planned("scores"), "scores")
        of_program = [
            msgspec.structs.replace(r, property="netsor", item=f"netsor@{n}", case={"program": {}, "widths": [n]})
            for n, r in enumerate(of_layer)
            if r.p_values
        ]
        both = [*of_layer, *of_program]
        said = verdict_sentence(run, both, run.conclude(both))
        assert f"and {1 + len(of_program)} cases;" in said
        idle = [msgspec.structs.replace(r, p_values=[], reason="too dear") for r in of_program]
        assert skipped(idle) == ["Skipped, nothing to examine:", f"  netsor on {len(idle)} programs: too dear"]

    def test_what_only_layers_with_a_violation_have_is_said(self) -> None:
        def wrong(results: list[Result]) -> str:
            return "\n".join(what_is_wrong(planned("scores"), results))

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
        (line,) = all_refused(run, results)
        assert ".supports rejects the layer requested: width 16, " in line
        assert "mask causal, num_kv_heads 2" in line
        assert "attncheck.AttentionLayer(width=16, " in line
        assert line in summarize(run, results, run.conclude(results)).splitlines()
        assert all_refused(planned("scores"), results_of(planned("scores"), "scores")) == []


class TestDetectable:
    def test_tells_the_median_and_the_worst_gap_of_what_was_examined(self) -> None:
        (made_here,) = (r for r in results_of(planned("scores"), "scores") if r.check == "scores.scale")
        mdes = (1.5, 1.01, 1.02, math.inf, 1.03)
        results = [msgspec.structs.replace(made_here, mde=mde) for mde in mdes]
        left_out = msgspec.structs.replace(made_here, mde=None, p_values=[], verdict="not examined")
        heading, line = detectable([*results, left_out])
        assert heading.endswith("(found with a probability of 90%):")
        assert line.split()[0] == made_here.claim
        assert "1.03 (median), nothing (worst) over 5 layers, expected 1" in line
        assert line.endswith(next(check.reads for check in CHECKS if check.name == "scores.scale").rstrip(":"))

    def test_what_exposes_less_is_told_by_the_next_check(self) -> None:
        blind = faults.exposing(collapsed, ["outputs", "scores"])
        results = results_of(planned("exactness", subject=blind), "exactness")
        _, *lines = detectable(results)
        assert [line.split()[0] for line in lines] == ["scores", "outputs", "joint"]
        for check in ("exactness.score_energy", "exactness.output_energy"):
            (result,) = (r for r in results if r.check == check)
            assert any(f"{result.mde:.3g} on 1 layer" in line and reads(result) in line for line in lines)

    def test_nothing_examined_nothing_seen(self) -> None:
        assert detectable([]) == []

    def test_main_checks_are_checks(self) -> None:
        assert set(MAIN_CHECKS) <= {check.name for check in EVERY_CHECK}

    def test_stands_in_the_summary_of_a_run(self, tmp_path: Path) -> None:
        report = RunReport(planned("scores", record=tmp_path / "record.jsonl"))
        report.take(report.run.examine(report.run.items_on("scores", [LAYER])))
        report.finish()
        (heading, *_) = detectable(report.results)
        assert heading in report.summary(verbose=True).splitlines()
        assert heading not in report.summary().splitlines()
        assert mdes(report.results, [])[0] in report.summary().splitlines()


def test_the_summary_tells_what_layers_had() -> None:
    (line,) = visited_layers(results_of(planned("scores", layer=GROUPED), "scores", GROUPED))
    assert line.startswith("Layers visited: 1; causal 1, grouped heads 1, fixed head_dim 0, ")


def test_whole_properties_are_told_in_short() -> None:
    results = results_of(planned("scores"), "scores")
    unable = [msgspec.structs.replace(r, p_values=[], reason="no programs") for r in results]
    assert unseen(unable) == ["Not examined on any layer:", f"  no programs: scores ({len(unable)} checks)"]
    assert unseen(unable[1:])[1].count("scores.") == len(unable) - 1


def test_what_exposing_more_would_gain_is_counted() -> None:
    results = results_of(planned("scores", subject=faults.exposing(collapsed, ["outputs", "scores"])), "scores")
    first, *others = not_examined(results)
    gained = sum(not result.p_values and "does not expose" in result.reason for result in results)
    assert first == f"Return input_gram and key_gram too: up to {gained} more results."
    whole = results_of(planned("scores"), "scores")
    assert sum(bool(r.p_values) for r in whole) <= gained + sum(bool(r.p_values) for r in results)
    assert all(line.startswith("Not examined: ") for line in others)
    assert not_examined([result for result in whole if result.p_values]) == []
