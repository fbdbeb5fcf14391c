"""Runs: planned before they start, the same for the same seed, and in words and numbers where something is wrong."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import attncheck.run
import attncheck.shrink
from attncheck import faults
from attncheck.attention import AttentionLayer
from attncheck.case import Case
from attncheck.checks.claims import CLAIMS
from attncheck.checks.programs import PROGRAM_CHECKS
from attncheck.checks.registry import CHECKS, EVERY_CHECK, PROGRAM_PROPERTIES, PROPERTIES, checks_of
from attncheck.checks.sample import Sample
from attncheck.diagnosis import Estimate, _score_estimates, diagnose
from attncheck.errors import InputError
from attncheck.examples import draw_examples
from attncheck.messages import explain
from attncheck.profiles import ANCHORS, PROFILES, REGIME_ANCHORS
from attncheck.records import Closing, Result, read
from attncheck.regimes import REGIMES
from attncheck.report.causes import causes
from attncheck.report.gather import gather
from attncheck.run import Run, RunReport
from attncheck.simulators import simulate
from attncheck.strategies import layers
from attncheck.subject import Subject, collapsed
from attncheck.summary import (
    MAIN_CHECKS,
    NOT_PROVED,
    all_refused,
    detectable,
    skipped,
    summarize,
    unseen,
    usual_causes,
    verdict_sentence,
    visited_layers,
)
from attncheck.unit import Cost, Unit, run_unit, violated
from attncheck.words import chance, reads

LAYER = AttentionLayer(width=8, seq_len=3, num_heads=2)
GROUPED = AttentionLayer(width=16, seq_len=3, num_heads=4, num_kv_heads=2, mask="causal")
COST = Cost(3_000, 1e-3, 0.9)


def made(record: Path | None = None, **options: Any) -> Run:
    """Return a run from what a person would type."""
    return Run.of(
        **{"subject": None, "seed": "0", "profile": "smoke", "false_alarm": "1e-6", "record": record, **options}
    )


def planned(*names: str, layer: AttentionLayer = LAYER, **options: Any) -> Run:
    """Return a run whose plan is some properties on one layer."""
    run = made(**options)
    return run.settled([unit.id for name in names for unit in run.units_on(name, [layer])])


def results_of(run: Run, name: str, layer: AttentionLayer = LAYER) -> list[Result]:
    return [msgspec.convert(fields, Result) for fields in run.examine(name, layer)[0]]


class TestOf:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"seed": "-1"}, "seed=-1: must be at least 0; pass a whole number, or random"),
            ({"seed": "1.5"}, "seed='1.5': must be a whole number"),
            ({"seed": True}, "seed=True: must be a whole number, not a boolean"),
            ({"profile": "fast"}, "profile='fast': is not known; use one of 'smoke', 'default', 'thorough'"),
            ({"false_alarm": "0"}, "false_alarm=0.0: must be greater than 0"),
            ({"false_alarm": "1"}, "false_alarm=1.0: must be less than 1"),
            ({"false_alarm": "nan"}, "false_alarm=nan: must be finite"),
            ({"false_alarm": "few"}, "false_alarm='few': must be a number"),
            ({"draws": "1e6"}, "draws='1e6': has no effect with the profile smoke; use the profile thorough"),
            ({"draws": "0.5", "profile": "thorough"}, "draws=0.5: must be a whole number"),
            ({"draws": "inf", "profile": "thorough"}, "draws=inf: must be a whole number"),
            ({"draws": "many", "profile": "thorough"}, "draws='many': must be a whole number"),
            ({"subject": "nowhere:f"}, "subject=nowhere:f: cannot be imported"),
        ],
    )
    def test_unusable_option_is_named(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError) as caught:
            made(**options)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_numbers_may_be_typed_or_given(self) -> None:
        assert made(seed="7", false_alarm="1e-3") == made(seed=7, false_alarm=1e-3)
        assert made(profile="thorough", draws="1e6").draws == made(profile="thorough", draws=10**6).draws == 10**6
        assert made(profile="thorough").draws == PROFILES["thorough"].draws


class TestPlan:
    def test_units_are_anchors_and_then_examples(self) -> None:
        for name, profile in PROFILES.items():
            units = made(profile=name).units("scores", layers(max_entries=500))
            found = [unit.layer for unit in units]
            visited = ANCHORS[: profile.anchors] + REGIME_ANCHORS[: profile.regimes]
            assert found[: len(visited)] == list(visited) == list(profile.layers)
            assert len(visited) < len(found) == len(set(found)) <= len(visited) + profile.examples

    def test_level_comes_from_what_is_planned(self) -> None:
        run = planned("scores", "draws")
        assert [each.check for each in run.planned] == [check.name for check in CHECKS if check in run_checks(run)]
        assert run.level == run.budget.level(len(run.planned))
        assert run.settled([*run.unit_ids, *run.unit_ids]).planned == run.planned

    def test_draws_are_shared_out_over_the_plan(self) -> None:
        run = planned("scores", "draws", profile="thorough", draws=10**6)
        assert run.affordable(LAYER) == 500_000
        assert run.settled(run.unit_ids * 2).affordable(LAYER) == 500_000
        wide = AttentionLayer(width=2048)
        assert run.affordable(wide) == 500_000 > PROFILES["thorough"].affordable(wide)

    def test_unknown_property_is_named(self) -> None:
        with pytest.raises(InputError, match="property='score': is not known; use one of exactness"):
            made().units_on("score", [LAYER])


def run_checks(run: Run) -> list[Any]:
    return [check for unit in run.unit_ids for check in checks_of(unit.partition("@")[0])]


class TestExamples:
    def test_same_seed_same_layers_whatever_the_state_of_the_world(self) -> None:
        first = draw_examples(layers(), 8, 3, "scores")
        random.seed(1)
        settings.register_profile("of somebody else", max_examples=2, derandomize=True, database=None)
        settings.load_profile("of somebody else")
        try:
            assert draw_examples(layers(), 8, 3, "scores") == first
        finally:
            settings.load_profile("default")

    def test_every_key_and_seed_has_layers_of_its_own(self) -> None:
        drawn = [tuple(draw_examples(layers(), 8, seed, key)) for seed, key in ((0, "a"), (0, "b"), (1, "a"))]
        assert len(set(drawn)) == 3

    def test_cap_is_hard_and_few_values_are_fewer_layers(self) -> None:
        assert len(draw_examples(layers(), 5, 0, "a")) == 5
        assert draw_examples(layers(), 0, 0, "a") == []
        assert draw_examples(st.just(LAYER), 5, 0, "a") == [LAYER]


class TestExamine:
    def test_results_are_built_in_types_and_repeat_to_the_digit(self) -> None:
        run = planned("scores", subject=faults.FAULTS["tied_query_key"].subject)
        results, message = run.examine("scores", LAYER)
        assert json.loads(json.dumps(results)) == results
        assert [result["id"] for result in results] == [each.id for each in run.planned]
        again, repeated = run.examine("scores", LAYER)
        for one, two in zip(results, again, strict=True):
            assert {**one, "seconds": 0} == {**two, "seconds": 0}
        assert message == repeated

    def test_unit_with_one_check_is_that_part_of_the_whole(self) -> None:
        subject = Subject.of("attncheck.subject:collapsed")
        (one,) = run_unit(Unit("scores", LAYER, only="scores.scale"), subject, 0, COST)
        assert one.check == "scores.scale"
        assert one.verdict == "consistent"

    def test_consistent_unit_has_no_message(self) -> None:
        run = planned("scores", subject="attncheck.subject:collapsed")
        results, message = run.examine("scores", LAYER)
        assert message == ""
        assert {result["verdict"] for result in results} <= {"consistent", "not examined"}


class TestMessage:
    @pytest.mark.parametrize(
        ("fault", "name", "layer", "said"),
        [
            (
                "scores_over_n",
                "scores",
                LAYER,
                ["formula (*) holds at every width", "score variance 0.1", "score_scaling='1/n'", "the score scaling"],
            ),
            (
                "tied_query_key",
                "scores",
                LAYER,
                ["W_Q, W_K and W_V are different matrices", "K and Q look tied", "position with itself"],
            ),
            (
                "missing_head_scaling",
                "conditional",
                LAYER,
                ["the outputs are Gaussian", "times the declared", "head_scaling=False", "H^{-1/2}"],
            ),
            ("softmax_over_columns", "conditional", LAYER, ["the outputs are Gaussian", "the attention map, its axis"]),
            ("leaking_mask", "conditional", GROUPED, ["the outputs are Gaussian", "the mask differ"]),
            ("shared_keys", "scores", LAYER, ["are independent given the inputs", "W_K is shared between heads"]),
            ("repeated_stream", "draws", LAYER, ["Draws are independent", "random streams repeat"]),
            ("shifted_outputs", "conditional", LAYER, ["something is added to the outputs, such as a bias"]),
            ("key_std_10", "scores", LAYER, ["key variance 1.2", "the standard deviation of W_K"]),
            ("value_std_10", "conditional", LAYER, ["value variance 1.2", "of W_V differs"]),
        ],
    )
    def test_names_the_fault_in_words_and_numbers(
        self, fault: str, name: str, layer: AttentionLayer, said: list[str]
    ) -> None:
        run = planned(name, layer=layer, subject=f"attncheck.faults:{fault}", record=Path("a record.jsonl"))
        results, message = run.examine(name, layer)
        worst = violated([msgspec.convert(fields, Result) for fields in results])[0]
        claim, *rest = message.splitlines()
        assert claim == f"VIOLATED: {CLAIMS[worst.claim].statement} ({CLAIMS[worst.claim].source})"
        assert rest[0] == f"  layer:    {layer.describe()}"
        assert f"p = {', '.join(map(chance, worst.p_values))} on {worst.size:,} draws a look" in message
        assert len(worst.p_values) >= 3
        assert f"{worst.effect:.4g} [{worst.low:.4g}, {worst.high:.4g}], expected" in message
        assert rest[-1] == f"  replay:   attncheck replay 'a record.jsonl' {worst.id}"
        for words in said:
            assert words in message

    def test_first_cause_is_first(self) -> None:
        """A wrong scale of the scores shows in the heads' sizes too, and in all that follows."""
        for fault, check in (
            ("scores_over_n", "scores.scale"),
            ("tied_query_key", "scores.tied"),
            ("query_std_10", "scores.scale"),
        ):
            run = planned("scores", subject=f"attncheck.faults:{fault}")
            assert violated(results_of(run, "scores"))[0].check == check

    def test_the_strongest_of_a_claim_leads_and_is_replayed(self) -> None:
        """The larger effect in departures may be of the smaller sample, and say less."""
        (result, *_) = [r for r in results_of(planned("scores"), "scores") if r.p_values]

        def seen(check: str, p: float, effect: float) -> Result:
            return msgspec.structs.replace(
                result,
                id=f"{check}@0",
                check=check,
                verdict="violated",
                p_values=[p, p, p],
                effect=effect,
                null_effect=1.0,
                departure=1.1,
            )

        # Both clear, then both unclear.
        for weak, strong in ((1.9, 1.5), (1.15, 1.12)):
            results = [seen("scores.weak", 1e-9, weak), seen("scores.strong", 1e-40, strong)]
            message = explain(results, Path("r.jsonl"))
            assert [each.check for each in violated(results)] == ["scores.strong", "scores.weak"]
            assert message.endswith("replay:   attncheck replay r.jsonl scores.strong@0")
            assert message.index("scores.strong ") < message.index("scores.weak ")

    def test_nothing_violated_nothing_said(self) -> None:
        assert explain([], None) == ""

    def test_outputs_of_another_scale_are_not_called_gaussian(self) -> None:
        (result,) = results_of(planned("non_gaussianity"), "non_gaussianity")
        bad = msgspec.structs.replace(result, verdict="violated", p_values=[1e-9])
        scale = "output variance 0.106 [0.100, 0.112], declared 0.422 by draws of the exact law"
        assert "outputs are Gaussian" in explain([bad], None)
        said = explain([msgspec.structs.replace(bad, diagnosis=[scale])], None)
        assert "outputs are Gaussian" not in said
        assert "likely:   the scale of the outputs differs from the declared one" in said

    def test_a_subject_that_fails_now_and_then_keeps_its_verdict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(*arguments: Any) -> list[str]:
            raise InputError("subject=mine: failed")

        monkeypatch.setattr(attncheck.run, "diagnose", failing)
        run = planned("scores", subject="attncheck.faults:tied_query_key")
        assert violated(results_of(run, "scores"))


class TestShrink:
    def test_is_bounded_and_deterministic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        layer = GROUPED.replace(activation="tanh", input_correlation=0.5, query_std=0.5, attention_map="linear")
        subject = Subject.of("attncheck.faults:output_std_10")
        counted: list[Case] = []
        examine = run_unit

        def counting(unit: Unit, *arguments: Any) -> list[Result]:
            counted.append(unit.layer)
            assert unit.role == "shrink"
            return examine(unit, *arguments)

        monkeypatch.setattr(attncheck.shrink, "run_unit", counting)
        found = []
        for _ in range(2):
            counted.clear()
            found.append(attncheck.shrink.shrink(Unit("conditional", layer), "conditional.scale", subject, 0, COST))
            assert 1 <= len(counted) == len(set(counted)) <= attncheck.shrink.MOST_CANDIDATES == 20
        assert found[0] == found[1]
        assert found[0] is not None
        assert found[0].weight_entries < layer.weight_entries

    def test_stays_where_the_fault_is(self) -> None:
        """Heads that share keys cannot be seen in one head."""
        subject = Subject.of("attncheck.faults:shared_keys")
        smaller = attncheck.shrink.shrink(Unit("scores", GROUPED), "scores.key_heads", subject, 0, COST)
        assert isinstance(smaller, AttentionLayer)
        assert smaller.kv_heads > 1

    @pytest.mark.parametrize(
        ("fault", "check", "stays"),
        [("positions_apart", "scores.scale", True), ("query_std_10", "scores.scale", False)],
    )
    def test_positions_stay_where_the_fault_needs_them(self, fault: str, check: str, stays: bool) -> None:
        layer = LAYER.replace(position_std=0.7, position_reach=0.5)
        subject = Subject.of(f"attncheck.faults:{fault}")
        smaller = attncheck.shrink.shrink(Unit("scores", layer), check, subject, 0, COST)
        assert isinstance(smaller, AttentionLayer)
        assert smaller.weight_entries < layer.weight_entries
        assert bool(smaller.position_std) is stays

    def test_positions_go_together_with_their_reach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A fault that shows at this reach and without positions, but not between."""
        layer = LAYER.replace(position_std=0.7, position_reach=0.5)

        def violating(unit: Unit, *arguments: Any) -> bool:
            case = unit.layer
            return isinstance(case, AttentionLayer) and (case.position_std == 0.0 or case.position_reach == 0.5)

        monkeypatch.setattr(attncheck.shrink, "_violates", violating)
        smaller = attncheck.shrink.shrink(Unit("scores", layer), "scores.scale", Subject.of(collapsed), 0, COST)
        assert smaller == AttentionLayer(width=1, seq_len=1, num_heads=1)

    def test_is_labelled_as_an_illustration(self) -> None:
        run = planned("scores", subject="attncheck.faults:tied_query_key")
        said = r"smaller:  the fault shows too on n=1 s=1 H=1: .+ \S+ \[.+, .+\], expected \S+ "
        assert re.search(said + r"\(an illustration on fresh draws, not a verdict\)", run.examine("scores", LAYER)[1])

    def test_finds_nothing_below_the_smallest(self) -> None:
        layer = AttentionLayer(width=1, seq_len=1, num_heads=1)
        run = planned("scores", layer=layer, subject="attncheck.faults:tied_query_key")
        assert violated(results_of(run, "scores", layer))[0].illustration == ""


class TestDiagnosis:
    def test_right_subject_has_none(self) -> None:
        for name, layer in itertools.product(("scores", "conditional"), (LAYER, GROUPED)):
            assert diagnose(Unit(name, layer), Subject.of("attncheck.subject:collapsed"), 0) == []

    def test_outputs_alone_are_compared_with_the_exact_law(self) -> None:
        blind = faults.exposing(faults.FAULTS["missing_head_scaling"], ["outputs"])
        sentences = diagnose(Unit("outputs", GROUPED), Subject.of(blind), 0)
        assert sentences[0].startswith("output variance ")
        assert "all of it fits a layer with head_scaling=False" in sentences

    def test_scores_without_grams_are_compared_with_the_exact_law(self) -> None:
        blind = faults.exposing(faults.FAULTS["scores_over_n"], ["outputs", "scores"])
        sentences = diagnose(Unit("scores", LAYER), Subject.of(blind), 0)
        assert sentences[0].startswith("score variance 0.1")
        assert "all of it fits a layer with score_scaling='1/n'" in sentences

    @pytest.mark.parametrize(
        ("regime", "sentence"),
        [
            ("causal", "all of it fits a layer with mask='none'"),
            ("1/n scaling", r"all of it fits a layer with score_scaling='1/sqrt\(n\)'"),
            ("linear attention", "all of it fits a layer with attention_map='softmax'"),
            ("tied queries and keys", "all of it fits a layer with tied_query_key=False"),
            ("many heads", r"output variance given scores and values (1\.9|2\.0)\S* .* times the declared"),
            ("relu inputs", r"mean product of inputs at two positions -?0\.00\S* .*, declared 0\.1[56]"),
            ("positions", r"mean square of the inputs (0\.9|1\.0)\S* .*, declared (1\.9|2\.0)"),
            ("non-Gaussian weights", r"value variance 0\.33\S* .* times the declared"),
        ],
    )
    def test_what_is_wrong_in_a_regime_is_said(self, regime: str, sentence: str) -> None:
        chosen = REGIMES[regime]
        subject = Subject.of(faults.FAULTS[chosen.fault].subject)
        sentences = diagnose(Unit("exactness", chosen.layer), subject, 0)
        assert any(re.match(sentence, said) for said in sentences), sentences

    def test_estimate_reads_as_a_sentence(self) -> None:
        estimate = Estimate("score variance", 0.25, 0.24, 0.26, 1.0)
        assert str(estimate) == "score variance 0.250 [0.240, 0.260], declared 1.00"
        assert estimate.differs
        drawn = dataclasses.replace(estimate, source="given the drawn inputs")
        assert str(drawn) == "score variance 0.250 [0.240, 0.260], declared 1.00 given the drawn inputs"
        assert (
            str(dataclasses.replace(estimate, ratio=True)) == "score variance 0.250 [0.240, 0.260] times the declared"
        )
        assert not Estimate("mean", 0.01, -0.01, 0.03, 0.0).differs
        assert Estimate("output variance", 0.0, 0.0, 0.0, 0.44, positive=True).differs
        near = Estimate("score variance", 1.15, 1.12, 1.1764, 1.1821)
        assert near.differs
        assert str(near) == "score variance 1.150 [1.120, 1.176], declared 1.182"  # not [1.12, 1.18] and 1.18

    @pytest.mark.parametrize(("width", "seq_len", "heads"), [(3, 11, 8), (16, 3, 2)])
    @pytest.mark.parametrize("mixed", [False, True])
    def test_the_score_variance_is_the_mean_square_of_the_scores(
        self, width: int, seq_len: int, heads: int, mixed: bool
    ) -> None:
        layer = AttentionLayer(width=width, seq_len=seq_len, num_heads=heads)
        size, rng = 1000, np.random.default_rng(0)
        drawn = simulate(layer, size, 0, coordinates=width)

        def projected() -> NDArray[np.float64]:
            heads_of = drawn.inputs @ rng.normal(0.0, width**-0.5, (size, width, heads * width))
            if mixed:  # a wrong reshape: what is of one position is spread over several
                return heads_of.reshape(size, heads, seq_len, width)
            return heads_of.reshape(size, seq_len, heads, width).swapaxes(1, 2)

        scores = projected() @ projected().swapaxes(-1, -2) * width**-0.5
        sample = Sample(layer, drawn.outputs, scores=scores, input_gram=drawn.input_gram)
        variance, *others = _score_estimates(sample, lambda: sample)
        diagonal = np.diagonal(sample.need("input_gram"), axis1=1, axis2=2)
        assert variance.name == "score variance"
        assert variance.value == pytest.approx(float((scores**2).mean()))
        # Those of all pairs of positions: the mean of G_ii G_jj is that of the trace, squared.
        assert variance.declared == pytest.approx(float((diagonal.mean(axis=1) ** 2).mean()))
        assert any(estimate.differs for estimate in (variance, *others)) == mixed
        # A mean square is not the mean ratio times the mean variance: entries of small variance have large ratios.
        assert [estimate.name for estimate in others if estimate.differs] in ([], ["score variance entry by entry"])

    def test_an_interval_of_a_positive_number_that_reaches_below_zero_says_nothing(self) -> None:
        # Few large draws make such a mean: "[-36.6, 37.5], declared 82.7" would be no evidence.
        estimate = Estimate("output variance", 0.449, -36.6, 37.5, 82.7, positive=True)
        assert not estimate.differs
        assert dataclasses.replace(estimate, low=0.1).differs
        assert dataclasses.replace(estimate, positive=False).differs


class TestReport:
    def test_results_come_in_any_order(self, tmp_path: Path) -> None:
        digests = []
        for order in (1, -1):
            run = planned("scores", "draws", subject="attncheck.subject:collapsed", record=tmp_path / f"{order}.jsonl")
            report = run.open_report()
            for name in ("scores", "draws")[::order]:
                report.take(run.examine(name, LAYER)[0])
            assert report.finish()
            digests.append(closing_of(tmp_path / f"{order}.jsonl").digest)
            assert "CONSISTENT" in report.summary()
        assert digests[0] == digests[1]

    def test_what_is_missing_or_too_much_is_incomplete(self, tmp_path: Path) -> None:
        for number, names in enumerate([["scores"], ["scores", "draws", "draws"], ["scores", "draws", "inputs"]]):
            run = planned("scores", "draws", subject="attncheck.subject:collapsed", record=tmp_path / f"{number}.jsonl")
            report = run.open_report()
            for name in names:
                report.take(run.examine(name, LAYER)[0])
            assert not report.finish()
            closing = closing_of(tmp_path / f"{number}.jsonl")
            assert closing.verdict == "incomplete"
            assert closing.reasons
            assert closing.reasons[0] in report.summary()

    def test_nothing_reported_has_no_table(self, tmp_path: Path) -> None:
        report = planned("scores", record=tmp_path / "record.jsonl").open_report()
        assert not report.finish()
        owed = len(report.run.planned)
        started = f"INCOMPLETE: attncheck.subject:direct, 0 of {owed} planned results examined, on 0 claims and 0"
        assert report.summary().startswith(started)
        assert "property" not in report.summary()

    def test_needs_a_path(self) -> None:
        with pytest.raises(InputError, match="record=None: is missing"):
            RunReport(planned("scores"))

    def test_summary_tells_what_no_layer_examined(self, tmp_path: Path) -> None:
        blind = faults.exposing(collapsed, ["outputs", "scores"])
        run = planned("scores", "draws", subject=blind, record=tmp_path / "record.jsonl")
        report = run.open_report()
        for name in ("scores", "draws"):
            report.take(run.examine(name, LAYER)[0])
        assert report.finish()
        text = report.summary()
        assert "Not examined on any layer:" in text
        without = "  the subject does not expose input_gram, key_gram: draws.keys, draws.scores, scores"
        assert without in text
        assert "not examined" in next(line for line in text.splitlines() if line.startswith(" scores"))


class TestSummary:
    def test_violated_begins_with_the_causes_that_the_report_has(self, tmp_path: Path) -> None:
        record = tmp_path / "record.jsonl"
        report = planned("scores", subject="attncheck.faults:tied_query_key", record=record).open_report()
        report.take(report.run.examine("scores", LAYER)[0])
        assert not report.finish()
        first = causes(gather(record).tallies)[0]
        assert first.hint
        lines = report.summary().splitlines()
        after = lines.index("What usually causes this, the most telling first:")
        assert lines[after + 1] == f"  1. {first.hint} ({first.leading.name} is violated on 1 of 1 layer)"
        assert after < next(number for number, line in enumerate(lines) if line.startswith(" property"))
        assert NOT_PROVED not in lines

    def test_consistent_ends_with_what_it_does_not_prove(self, tmp_path: Path) -> None:
        report = planned("scores", subject=collapsed, record=tmp_path / "record.jsonl").open_report()
        report.take(report.run.examine("scores", LAYER)[0])
        assert report.finish()
        lines = report.summary().splitlines()
        assert NOT_PROVED in lines
        assert not any("usually causes" in line for line in lines)
        assert "what a green run proves, and what it does not" in NOT_PROVED.lower()
        readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
        assert "## What a green run proves, and what it does not\n" in readme

    def test_what_is_skipped_is_told_with_its_reason(self) -> None:
        results = results_of(planned("scores"), "scores")
        assert skipped(results) == []
        idle = [
            msgspec.structs.replace(r, unit="inputs@0", property="inputs", p_values=[], reason="too dear")
            for r in results
        ]
        assert skipped([*results, *idle]) == ["Skipped, nothing to examine:", "  inputs on 1 layer: too dear"]

    def test_what_is_skipped_is_counted_by_reason(self) -> None:
        (one, *_) = results_of(planned("scores"), "scores")
        reasons = ["not this layer", "the subject does not expose value_gram", "too dear", "not this layer"]
        idle = [
            msgspec.structs.replace(one, unit=f"inputs@{unit}", property="inputs", p_values=[], reason=reason)
            for unit, reason in enumerate(reasons)
        ]
        # Another check of the same unit, for another reason: the telling one counts, and the unit once.
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
            msgspec.structs.replace(r, property="netsor", unit=f"netsor@{n}", layer={"program": {}, "widths": [n]})
            for n, r in enumerate(of_layer)
            if r.p_values
        ]
        both = [*of_layer, *of_program]
        said = verdict_sentence(run, both, run.conclude(both))
        assert f"and {1 + len(of_program)} configurations;" in said
        idle = [msgspec.structs.replace(r, p_values=[], reason="too dear") for r in of_program]
        assert skipped(idle) == ["Skipped, nothing to examine:", f"  netsor on {len(idle)} programs: too dear"]

    def test_what_only_layers_with_a_violation_have_is_said(self) -> None:
        (result,) = (r for r in results_of(planned("scores"), "scores") if r.check == "scores.scale")
        both = LAYER.replace(mask="causal", head_dim=2)
        bad = [
            msgspec.structs.replace(result, layer=layer.to_dict(), unit=f"scores@{k}", verdict="violated")
            for k, layer in enumerate([both, both.replace(head_dim=None)])
        ]
        good = msgspec.structs.replace(result, layer=LAYER.replace(head_dim=2).to_dict(), unit="scores@9")
        assert usual_causes([*bad, good])[1].endswith("(scores.scale is violated on 2 of 3 layers; only with causal)")
        assert usual_causes([bad[0], good])[1].endswith("violated on 1 of 2 layers; only with causal)")
        masked = msgspec.structs.replace(good, layer=LAYER.replace(mask="causal", width=4).to_dict())
        assert usual_causes([*bad, good, masked])[1].endswith("violated on 2 of 4 layers)")
        assert usual_causes(bad)[1].endswith("violated on 2 of 2 layers)")

    def test_what_to_widen_is_said_where_no_layer_is_supported(self) -> None:
        subject: Any = functools.partial(collapsed)
        subject.supports = lambda layer: layer.width == 5 or "width 5 only"
        run = planned("scores", layer=GROUPED, subject=subject)
        results = [msgspec.convert(fields, Result) for fields in run.examine("scores", GROUPED)[0]]
        (line,) = all_refused(run, results)
        assert ".supports refuses the layer that it was asked for: width 16, " in line
        assert "mask causal, num_kv_heads 2" in line
        assert "attncheck.AttentionLayer(width=16, " in line
        assert line in summarize(run, results, run.conclude(results)).splitlines()
        assert all_refused(planned("scores"), results_of(planned("scores"), "scores")) == []


class TestDetectable:
    def test_tells_the_median_and_the_worst_gap_of_what_was_examined(self) -> None:
        (made_here,) = (r for r in results_of(planned("scores"), "scores") if r.check == "scores.scale")
        gaps = (1.5, 1.01, 1.02, math.inf, 1.03)
        results = [msgspec.structs.replace(made_here, gap=gap) for gap in gaps]
        left_out = msgspec.structs.replace(made_here, gap=None, p_values=[], verdict="not examined")
        heading, line = detectable([*results, left_out])
        assert heading.endswith("had a chance of 90% to call violated:")
        assert line.split()[0] == made_here.claim
        assert "1.03 at the median, nothing at the worst of 5 layers, expected 1" in line
        assert line.endswith(next(check.reads for check in CHECKS if check.name == "scores.scale").rstrip(":"))

    def test_what_exposes_less_is_told_by_the_next_check(self) -> None:
        blind = faults.exposing(collapsed, ["outputs", "scores"])
        results = results_of(planned("exactness", subject=blind), "exactness")
        _, *lines = detectable(results)
        assert [line.split()[0] for line in lines] == ["scores", "outputs", "joint"]
        for check in ("exactness.score_energy", "exactness.output_energy"):
            (result,) = (r for r in results if r.check == check)
            assert any(f"{result.gap:.3g} on 1 layer" in line and reads(result) in line for line in lines)

    def test_nothing_examined_nothing_seen(self) -> None:
        assert detectable([]) == []

    def test_main_checks_are_checks(self) -> None:
        assert set(MAIN_CHECKS) <= {check.name for check in EVERY_CHECK}

    def test_stands_in_the_summary_of_a_run(self, tmp_path: Path) -> None:
        report = planned("scores", record=tmp_path / "record.jsonl").open_report()
        report.take(report.run.examine("scores", LAYER)[0])
        report.finish()
        (heading, *_) = detectable(report.results)
        assert heading in report.summary().splitlines()


def test_the_summary_tells_what_layers_had() -> None:
    (line,) = visited_layers(results_of(planned("scores", layer=GROUPED), "scores", GROUPED))
    assert line.startswith("Layers visited: 1; causal 1, grouped heads 1, fixed head_dim 0, ")


def test_whole_properties_are_told_in_short() -> None:
    results = results_of(planned("scores"), "scores")
    unable = [msgspec.structs.replace(r, p_values=[], reason="no programs") for r in results]
    assert unseen(unable) == ["Not examined on any layer:", f"  no programs: scores ({len(unable)} checks)"]
    assert unseen(unable[1:])[1].count("scores.") == len(unable) - 1


def closing_of(path: Path) -> Closing:
    lines = list(read(path))
    assert isinstance(lines[-1], Closing)
    return lines[-1]


def test_every_check_has_a_hint_and_a_claim() -> None:
    assert all(check.hint and check.claim in CLAIMS for check in EVERY_CHECK)


def test_every_claim_is_examined_by_a_property() -> None:
    assert {check.claim for check in EVERY_CHECK} == set(CLAIMS)
    assert {check.property_name for check in CHECKS} == set(PROPERTIES)
    assert {check.property_name for check in PROGRAM_CHECKS} == set(PROGRAM_PROPERTIES)


@pytest.fixture(autouse=True)
def _streams_are_left_alone() -> Iterator[None]:
    """No examination may touch a global generator."""
    before = np.random.get_state(legacy=False)  # noqa: NPY002
    yield
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    np.testing.assert_equal(before, after)
