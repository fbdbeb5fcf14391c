"""Trends along a call and differences between heads are found and named; ties are not bounds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import attncheck as ac
from attncheck import AttentionLayer
from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.checks.registry import check_named
from attncheck.checks.sample import Sample
from attncheck.faults import EXPOSURES, exposing
from attncheck.faults.tampered import CORRUPTIONS
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.profiles import ANCHORS, PROFILES
from attncheck.looks.result import violated
from attncheck.records.schema import Result
from attncheck.simulators.weights import WeightLaws
from attncheck.subject import Subject, collapsed

PAPER, NARROW, ONE, GROUPED = ANCHORS[:4]
TIES = check_named("exactness.extremes")


def looks(name: str, subject: object, only: str = "", layer: AttentionLayer = GROUPED) -> list[Result]:
    return run_item(Item(name, layer, only=only), Subject.of(subject), 0, PROFILES["smoke"].cost(layer))


def alone(check: str, subject: object, layer: AttentionLayer = GROUPED) -> Result:
    (result,) = looks(check.partition(".")[0], subject, check, layer)
    return result


def ties(outputs: FloatArray, layer: AttentionLayer) -> float:
    subject = Subject.of(exposing(collapsed, EXPOSURES["outputs"]))
    setting = subject.probe(layer, stream(0, "tests", "ties"))
    data = TIES.measure(Sample(layer, outputs), None)
    return TIES.test(setting, data).p_value


def drawn(layer: AttentionLayer, size: int) -> FloatArray:
    return np.asarray(ac.simulate(layer, size, seed=1).outputs)


def test_ties_that_are_no_bound_are_none() -> None:
    outputs = drawn(PAPER, 20_000)
    assert ties(outputs, PAPER) == 1.0
    # Single, half and brain precision.
    for bits in (23, 10, 7):
        mantissa, exponent = np.frexp(outputs)
        coarse = np.ldexp(np.round(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)
        assert ties(coarse, PAPER) == 1.0
    # Equal positions, and draws with nothing above or below 0.
    equal = PAPER.replace(input_correlation=1.0)
    assert len(np.unique(drawn(equal, 1)[0].round(9), axis=0)) == 1
    assert ties(drawn(equal, 20_000), equal) == 1.0
    assert ties(np.minimum(outputs, 0.0), PAPER) == 1.0


@pytest.mark.parametrize("weights", ["uniform", "truncated normal", "student5", "rademacher"])
def test_weights_of_two_values_alone_may_tie(weights: str) -> None:
    blind = exposing(collapsed, EXPOSURES["outputs"])
    setting = Subject.of(blind).probe(PAPER, stream(0, "tests", "ties"))
    reason = TIES.reason_not_examined(dataclasses.replace(setting, weights=WeightLaws.of(weights)))
    assert bool(reason) == (weights == "rademacher")


def test_a_head_of_its_own_scale_is_named_and_is_no_dependence() -> None:
    subject = CORRUPTIONS["one_head_larger"].subject
    results = [each for name in ("scores", "conditional", "draws") for each in looks(name, subject)]
    wrong = [result.check for result in violated(results)]
    named = {"scores.each_head", "scores.key_each_head", "conditional.value_each_head"}
    assert named <= set(wrong)
    assert [name for name in wrong if name.startswith("draws.") or "heads" in name or "copies" in name] == []
    assert wrong[0] in named


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("scores.each_head", "query_std"),
        ("scores.key_each_head", "key_std"),
        ("conditional.value_each_head", "value_std"),
    ],
)
def test_a_scale_that_all_heads_share_is_no_difference(check: str, change: str) -> None:
    def shared(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        return collapsed(layer.replace(**{change: 1.3}), size, rng)

    assert alone(check, shared).verdict == "consistent"


@pytest.mark.parametrize(
    ("check", "layer", "reason"),
    [
        ("scores.each_head", ONE, "one head only"),
        ("scores.each_head", PAPER.replace(score_scaling="1/n", tied_query_key=True), "W_Q is W_K"),
        ("scores.key_each_head", PAPER.replace(num_kv_heads=1), "one group of heads only"),
        ("conditional.value_each_head", PAPER.replace(num_kv_heads=1), "one group of heads only"),
    ],
)
def test_where_there_is_nothing_to_compare_the_reason_is_said(check: str, layer: AttentionLayer, reason: str) -> None:
    result = alone(check, collapsed, layer)
    assert result.verdict == "not examined"
    assert reason in result.reason
