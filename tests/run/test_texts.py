"""The texts of a run: its summary, with verdict, table and detectable effects, and messages of violations."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest

from attncheck import AttentionLayer, InputError, faults
from attncheck._lib.text import chance
from attncheck.checks.claims import CLAIMS
from attncheck.checks.registry import EVERY_CHECK
from attncheck.checks.sample import Sample
from attncheck.diagnosis.causes import by_cause, violated
from attncheck.diagnosis.differences import diagnose, differences
from attncheck.diagnosis.estimates import Observation
from attncheck.diagnosis.messages import explain
from attncheck.faults import FAULTS
from attncheck.layers.regimes import REGIMES
from attncheck.looks.item import Item
from attncheck.looks.result import violated as worst_first
from attncheck.records.schema import Result
from attncheck.records.text import label_of
from attncheck.runs.details import MAIN_CHECKS, mdes, not_detected
from attncheck.runs.parts import read_run
from attncheck.runs.summary import labelled, summarize
from attncheck.runs.view import NOT_PROVED, RunView
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws, draw_with_weights
from attncheck.subject import Subject, collapsed
from tests.recorded import WRONG, Recorded, examine
from tests.regimes import FAULT_OF

from .conftest import GROUPED, LAYER, examined, planned, results_of, view_of

change = msgspec.structs.replace
BLIND = faults.exposing(collapsed, ["outputs", "scores"])


@functools.cache
def scores(subject: Any = None) -> list[Result]:
    return results_of(planned("scores", subject=subject), "scores")


def test_a_violated_summary_begins_with_the_causes_of_the_report(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    report = examine(record, WRONG, layers=[LAYER], causes=True)
    first = by_cause(violated(read_run(record).tallies))[0]
    assert first.hint
    lines = report.summary().splitlines()
    assert str(report.explanations[0]) == "W_Q and W_K are the same matrix"
    assert lines[1] == "  cause:    W_Q and W_K are the same matrix"
    labels = {line.partition(":")[0].strip() for line in lines[:15]}
    assert {"cause", "observed", "first", "layer", "replay"} <= labels
    assert f"{first.leading.name} on 1 of 1 layer: " in next(line for line in lines if line.startswith("  first:"))
    assert f"attncheck replay {record} {first.leading.name}@" in report.summary()
    assert NOT_PROVED not in lines
    assert len(lines) <= 40


def test_a_consistent_summary_ends_with_what_it_does_not_prove(recorded: Recorded) -> None:
    record = read_run(recorded.right)
    lines = summarize(RunView(record)).splitlines()
    assert lines[0].startswith("CONSISTENT: ")
    assert NOT_PROVED in lines
    assert any(line.startswith("No tested layer has: ") and "window, softcap, sink" in line for line in lines)
    assert not any(line.startswith("  cause:") for line in lines)
    assert len(lines) <= 25
    (detectable, *_) = mdes(record.results, record.pools)
    assert detectable in lines
    assert "what a green run proves, and what it does not" in NOT_PROVED.lower()
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert "## What a green run proves, and what it does not\n" in readme


def test_layers_and_programs_are_counted_together_as_configurations() -> None:
    of_program = [
        change(result, property="netsor", item=f"netsor@{number}", case={"program": {}, "widths": [number]})
        for number, result in enumerate(scores())
        if result.p_values
    ]
    view = view_of(planned("scores", "netsor"), [*scores(), *of_program])
    assert f"and {1 + len(of_program)} cases;" in view.sentence


def test_what_only_layers_with_a_violation_have_is_said() -> None:
    (result,) = (result for result in scores() if result.check == "scores.scale")
    both = LAYER.replace(mask="causal", head_dim=2)
    bad, other = (
        change(result, case=layer.to_dict(), item=f"scores@{key}", verdict="violated")
        for key, layer in enumerate([both, both.replace(head_dim=None)])
    )
    good = change(result, case=LAYER.replace(head_dim=2).to_dict(), item="scores@9")
    masked = change(good, case=LAYER.replace(mask="causal", width=4).to_dict())
    for results, text in (
        ([bad, other, good], "scores.scale on 2 of 3 layers; only with causal: "),
        ([bad, good], "on 1 of 2 layers; only with causal: "),
        ([bad, other, good, masked], "on 2 of 4 layers: "),
        ([bad, other], "on 2 of 2 layers: "),
        ([good], ""),
    ):
        lines = "\n".join(labelled(view_of(planned("scores"), results).lines))
        assert text in lines
        assert lines.startswith("  hint:" if text else "")
        assert text or not lines


def test_the_detectable_error_is_the_median_of_what_was_examined() -> None:
    (scale,) = (result for result in scores() if result.check == "scores.scale")
    results = [change(scale, mde=mde) for mde in (1.5, 1.01, 1.02, math.inf, 1.03)]
    left_out = change(scale, mde=None, p_values=[], verdict="not examined")
    (line,) = mdes([*results, left_out], [])
    assert line == "Smallest detectable error in score variance given inputs and keys: 3% on the median layer"
    pool = change(scale, item="scores.scale@all", mde=1.001)
    (line,) = mdes(results, [pool])
    assert ": 0.1% pooled, 3% on" in line
    (line,) = mdes(results, [change(pool, text=pool.text.replace("variance", "shift"))])
    assert "pooled" not in line  # in another unit
    assert mdes([], []) == []


def test_what_exposes_less_is_told_by_the_next_check() -> None:
    results = results_of(planned("exactness", subject=BLIND), "exactness")
    lines = mdes(results, [])
    assert len(lines) == 3
    for check, line in zip(("exactness.score_energy", "exactness.output_energy"), lines, strict=False):
        (result,) = (result for result in results if result.check == check)
        assert line.startswith(f"Smallest detectable {label_of(result)}: ")


def test_main_checks_are_checks() -> None:
    assert set(MAIN_CHECKS) <= {check.name for check in EVERY_CHECK}


def test_whole_properties_are_told_in_short() -> None:
    unable = [change(result, p_values=[], verdict="not examined", reason="no programs") for result in scores()]
    assert not_detected(unable) == {"no programs": [f"scores ({len(unable)} checks)"]}
    assert not_detected(unable[1:]) == {"no programs": sorted(result.check for result in unable[1:])}


def test_what_exposing_more_would_gain_is_counted() -> None:
    results = scores(BLIND)
    first, *others = view_of(planned("scores", subject=BLIND), results).remedies
    gained = sum(not result.p_values and "does not expose" in result.reason for result in results)
    assert first == f"Return input_gram and key_gram too: up to {gained} more results."
    examined = [result for result in scores() if result.p_values]
    assert len(examined) <= gained + sum(bool(result.p_values) for result in results)
    assert all(line.startswith("Not examined: ") for line in others)
    assert view_of(planned("scores"), examined).remedies == []


# Messages and diagnoses of violations -------------------------------------------------------------


GAUSSIAN = "the outputs are Gaussian"
WIDER = LAYER.replace(seq_len=12, num_heads=8)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("fault", "check", "layer", "phrases"),
    [
        ("scores_over_n", "scores.scale", LAYER, ["holds at every width", "score variance 0.1", "score scaling"]),
        ("tied_query_key", "scores.tied", LAYER, ["W_Q, W_K and W_V are different", "K and Q look tied", "itself"]),
        ("query_std_10", "scores.scale", LAYER, ["the standard deviation of W_Q"]),
        ("missing_head_scaling", "conditional.", LAYER, [GAUSSIAN, "times the declared", "H^{-1/2}"]),
        ("softmax_over_columns", "conditional.", LAYER, [GAUSSIAN, "the attention map, its axis"]),
        ("leaking_mask", "conditional.", GROUPED, [GAUSSIAN, "the mask differ"]),
        ("shared_keys", "scores.", LAYER, ["are independent given the inputs", "W_K is shared between heads"]),
        ("repeated_stream", "draws.", LAYER, ["Draws are independent", "random streams repeat"]),
        ("shifted_outputs", "conditional.", WIDER, ["something is added to the outputs, such as a bias"]),
        ("key_std_10", "scores.", LAYER, ["key variance 1.2", "the standard deviation of W_K"]),
        ("value_std_10", "conditional.", LAYER, ["value variance 1.2", "of W_V differs"]),
    ],
)
def test_a_message_names_the_fault_in_words_and_numbers(
    fault: str, check: str, layer: AttentionLayer, phrases: list[str]
) -> None:
    """The check of the first quantity that is wrong leads: it also shows in everything after."""
    name = check.partition(".")[0]
    run = planned(name, layer=layer, subject=f"attncheck.faults:{fault}", record=Path("a record.jsonl"))
    results, message = examined(run, name, layer)
    worst = worst_first(list(results))[0]
    assert worst.check.startswith(check)
    claim, *rest = message.splitlines()
    assert claim == f"VIOLATED: {CLAIMS[worst.claim].statement} ({CLAIMS[worst.claim].source})"
    assert rest[0] == f"  layer:    {layer.describe()}"
    assert f"p = {', '.join(map(chance, worst.p_values))} on {worst.size:,} draws a look" in message
    assert len(worst.p_values) >= 3
    assert f"{worst.effect:.4g} [{worst.low:.4g}, {worst.high:.4g}], expected" in message
    assert rest[-1] == f"  replay:   attncheck replay 'a record.jsonl' {worst.id}"
    for phrase in phrases:
        assert phrase in message


def test_the_strongest_of_a_claim_leads_and_is_replayed() -> None:
    """A larger effect may come from a smaller sample, with less evidence."""
    (result, *_) = [r for r in results_of(planned("scores"), "scores") if r.p_values]

    def bad(check: str, p: float, effect: float) -> Result:
        fields = {"verdict": "violated", "p_values": [p, p, p], "null_effect": 1.0, "alternative": 1.1}
        return msgspec.structs.replace(result, id=f"{check}@0", check=check, effect=effect, **fields)

    # Both clear, then both unclear.
    for weak, strong in ((1.9, 1.5), (1.15, 1.12)):
        results = [bad("scores.weak", 1e-9, weak), bad("scores.strong", 1e-40, strong)]
        message = explain(results, Path("r.jsonl"))
        assert [each.check for each in worst_first(results)] == ["scores.strong", "scores.weak"]
        assert message.endswith("replay:   attncheck replay r.jsonl scores.strong@0")
        assert message.index("scores.strong ") < message.index("scores.weak ")
    assert explain([], None) == ""


def test_outputs_of_another_scale_are_not_called_gaussian() -> None:
    (result,) = results_of(planned("non_gaussianity"), "non_gaussianity")
    bad = msgspec.structs.replace(result, verdict="violated", p_values=[1e-9])
    scale = "output variance 0.106 [0.100, 0.112], declared 0.422 by draws of the exact law"
    assert "outputs are Gaussian" in explain([bad], None)
    message = explain([msgspec.structs.replace(bad, diagnosis=[scale])], None)
    assert "outputs are Gaussian" not in message
    assert "likely:   the scale of the outputs differs from the declared one" in message


def test_a_subject_that_fails_now_and_then_keeps_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = mock.Mock(side_effect=InputError("subject=mine: failed"))
    monkeypatch.setattr("attncheck.diagnosis.differences.diagnose", failing)
    run = planned("scores", subject="attncheck.faults:tied_query_key")
    assert worst_first(run.examine(run.items_on("scores", [LAYER])))


def test_intervals_that_hold_what_is_expected_are_explained() -> None:
    """The interval holds for any law, heavy tails included; the p-value for the declared one."""
    run = planned("scores", subject="attncheck.faults:tied_query_key", record=Path("a record.jsonl"))
    for low, high in ((-1.0, 1.0), (0.5, 1.0)):
        changes = {"low": low, "high": high, "null_effect": 0.0}
        results = [msgspec.structs.replace(result, **changes) for result in results_of(run, "scores")]
        assert ("(intervals are valid for any law of the draws" in explain(results, None)) is (low < 0.0)


#: Subject, property, layer and the beginning of a sentence of the diagnosis, empty if there is none.
DIAGNOSES = [
    *(
        ("attncheck.subject:collapsed", name, layer, "")
        for name in ("scores", "conditional")
        for layer in (LAYER, GROUPED)
    ),
    # Without Gram matrices, numbers are compared with those of the exact law.
    (faults.exposing(FAULTS["missing_head_scaling"], ["outputs"]), "outputs", GROUPED, "output variance "),
    (faults.exposing(FAULTS["scores_over_n"], ["outputs", "scores"]), "scores", LAYER, r"score variance 0\.1"),
    *(
        (FAULTS[FAULT_OF[regime]].subject, "exactness", REGIMES[regime], sentence)
        for regime, sentence in {
            # 4 of 20 heads repeat others: (4·2² + 12) / 20 = 1.4.
            "many heads": r"output variance given scores and values 1\.(3[5-9]|4[0-5]) .* times the declared",
            "relu inputs": r"mean product of inputs at two positions -?0\.00\S* .*, declared 0\.1[56]",
            "positions": r"mean square of the inputs (0\.9|1\.0)\S* .*, declared (1\.9|2\.0)",
            "non-Gaussian weights": r"value variance 0\.33\S* .* times the declared",
        }.items()
    ),
]
#: Observations, what they say, and whether they differ from what is declared.
OBSERVATIONS = [
    (Observation("m", 0.25, 0.24, 0.26, 1.0), "m 0.250 [0.240, 0.260], declared 1.00", True),
    (Observation("m", 0.25, 0.24, 0.26, 1.0, source="given x"), "m 0.250 [0.240, 0.260], declared 1.00 given x", True),
    (Observation("m", 0.25, 0.24, 0.26, 1.0, ratio=True), "m 0.250 [0.240, 0.260] times the declared", True),
    (Observation("m", 1.15, 1.12, 1.1764, 1.1821), "m 1.150 [1.120, 1.176], declared 1.182", True),
    (Observation("m", 0.01, -0.01, 0.03, 0.0), "", False),
    (Observation("m", 0.0, 0.0, 0.0, 0.44, positive=True), "", True),
    # Few large draws dominate such a mean of a positive number, and its interval is no evidence.
    (Observation("m", 0.449, -36.6, 37.5, 82.7, positive=True), "", False),
    (Observation("m", 0.449, 0.1, 37.5, 82.7, positive=True), "", True),
    (Observation("m", 0.449, -36.6, 37.5, 82.7), "", True),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("subject", "name", "layer", "sentence"), DIAGNOSES)
def test_a_diagnosis_says_what_differs(subject: Any, name: str, layer: AttentionLayer, sentence: str) -> None:
    sentences = diagnose(Item(name, layer), Subject.of(subject), 0, [])
    assert any(re.match(sentence, text) for text in sentences) if sentence else sentences == []


def test_numbers_are_held_to_the_declared_biases() -> None:
    """Large biases of a right subject are no difference; larger outputs differ in these only."""
    layer = AttentionLayer(width=16, num_heads=4, head_dim=4)
    laws = WeightLaws.of({f"{name}_bias": ("uniform", 4.0) for name in ("query", "key", "value", "output")})
    drawn = draw_with_weights(layer, 4_000, 2, np.random.default_rng(1), laws).as_dict()
    assert differences_of(layer, drawn, laws) == []
    assert len(differences_of(layer, drawn)) >= 5
    larger = differences_of(layer, drawn | {"outputs": 1.3 * drawn["outputs"]}, laws)
    assert [text[:16] for text in larger] == ["output variance "], larger


def differences_of(layer: AttentionLayer, drawn: dict[str, Any], laws: WeightLaws = GAUSSIAN_LAWS) -> list[str]:
    return differences(Sample.from_mapping(layer, drawn, 4_000), np.random.SeedSequence(2), laws)


@pytest.mark.parametrize(("observation", "text", "differs"), OBSERVATIONS)
def test_an_observation_reads_as_a_sentence(observation: Observation, text: str, differs: bool) -> None:
    assert text in ("", str(observation))
    assert observation.differs == differs
