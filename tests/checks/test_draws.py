"""Shared randomness and ties are found: repeats, weights of neighbours or calls, copied heads and uneven ones."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attncheck import AttentionLayer, check, simulate
from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.checks.claims import TWO_VALUES
from attncheck.checks.draws import _distinct, marks
from attncheck.checks.registry import check_named
from attncheck.checks.sample import Sample
from attncheck.evidence.looks import Budget
from attncheck.faults import EXPOSURES, exposing
from attncheck.faults.tampered import CORRUPTIONS
from attncheck.looks.plan import Cost
from attncheck.looks.profiles import ANCHORS, PROFILES
from attncheck.looks.result import violated
from attncheck.simulators.weights import WeightLaws, draw_with_weights
from attncheck.subject import Subject, collapsed
from tests.results import results_of
from tests.simulators import literal

LAYER = AttentionLayer(width=16)
# More than the check plans for.
MOST_DRAWS = 6_000


def other_neurons(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    outputs = simulate(layer, size, int(rng.integers(2**63)), coordinates=layer.width).outputs
    outputs[:, :, 2:] *= 1.3
    return {"outputs": outputs}


def test_a_scale_of_all_neurons_but_two_is_seen() -> None:
    """On the draws that the check plans for; test_structure.py tests every check against one fault."""
    cost = Cost(MOST_DRAWS, Budget().level(), PROFILES["default"].power)
    assert violated(results_of(other_neurons, LAYER, "outputs", cost=cost, only="outputs.law"))


def test_single_numbers_may_coincide() -> None:
    """In single precision 50,000 numbers have ties by chance: runs are compared instead."""
    layer = AttentionLayer(width=16, seq_len=4, input_correlation=1.0)
    drawn = simulate(layer, 50_000, seed=1).as_dict()
    sample = Sample.from_mapping(layer, {"outputs": drawn["outputs"].astype(np.float32)}, 50_000)
    assert _distinct(np.sort(np.abs(sample.outputs[:, :, 0]), axis=1)).max() <= 2
    found = marks(sample.outputs.reshape(len(sample), -1))
    assert len(np.unique(found)) == len(found) > 40_000
    assert len(np.unique(np.abs(sample.outputs[:, 0, 0]))) < 50_000


def test_draws_in_another_order_or_with_another_sign_are_repeats() -> None:
    sample = simulate(LAYER.replace(num_heads=4), 300, seed=1)
    for field, axis in (("outputs", 1), ("scores", 1), ("scores", 2), ("input_gram", 1)):
        values = getattr(sample, field)
        flipped = np.flip(values, axis) if field != "input_gram" else np.flip(values, (1, 2))
        repeated = np.concatenate([values, flipped, -values, values])
        found = marks(repeated.reshape(1200, -1)).reshape(4, 300)
        np.testing.assert_array_equal(found[1:], np.broadcast_to(found[0], (3, 300)))
        assert len(np.unique(found)) == 300


def signed(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Draw outputs with weights of ±1, as declared."""
    return {"outputs": draw_with_weights(layer, size, 1, rng, "rademacher").outputs}


def given(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Compute attention of given inputs with weights of ±1, as declared."""
    weights = dict.fromkeys(literal.MATRICES, "rademacher")
    return dict(literal.attend(layer, inputs, literal.head_matrices(layer, len(inputs), rng, weights)).as_dict())


for simulator in (signed, given):
    vars(simulator)["weights"] = "rademacher"


@pytest.mark.sampled
@pytest.mark.parametrize(
    "layer",
    [
        AttentionLayer(width=1, seq_len=2, num_heads=1),  # K Kᵀ = x xᵀ, y = ±x: the limit allows for inputs of any law
        AttentionLayer(width=1, seq_len=1, num_heads=1, clip=1.0, input_std=2.0),  # most numbers are ±1
        AttentionLayer(width=4, seq_len=1, num_heads=1, clip=0.5, input_std=1e6),
        AttentionLayer(width=3, seq_len=2, num_heads=2, activation="relu"),
        AttentionLayer(width=2, seq_len=1, num_heads=1),  # sums of few signs are 0, if they do not differ in rounding
    ],
    ids=str,
)
def test_right_weights_of_two_values_are_no_fault(layer: AttentionLayer) -> None:
    report = check(given, layer, profile="smoke")
    assert report.verdict == "consistent", [result.check for result in report.violated]
    if layer.width == 2:
        (result,) = (result for result in report.results if result.check == "structure.weights")
        assert result.reason == TWO_VALUES


def test_weights_of_two_values_may_give_zeros() -> None:
    layer = AttentionLayer(width=4, num_heads=1)  # 1/√4 is exact: sums that cancel are 0
    outputs = signed(layer, 2_000, stream(0, "signed"))["outputs"]
    assert (outputs == 0.0).all(axis=(1, 2)).mean() > 0.001
    report = check(signed, layer, profile="smoke")
    assert report.verdict == "consistent", [result.check for result in report.violated]


PAPER, _, _, GROUPED = ANCHORS[:4]
TIES = check_named("exactness.extremes")


def ties(outputs: FloatArray, layer: AttentionLayer) -> float:
    subject = Subject.of(exposing(collapsed, EXPOSURES["outputs"]))
    setting = subject.probe(layer, stream(0, "tests", "ties"))
    data = TIES.measure(Sample(layer, outputs), None)
    return TIES.test(setting, data).p_value


def drawn(layer: AttentionLayer, size: int) -> FloatArray:
    return np.asarray(simulate(layer, size, seed=1).outputs)


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
    results = [each for name in ("scores", "conditional", "draws") for each in results_of(subject, GROUPED, name)]
    wrong = [result.check for result in violated(results)]
    named = {"scores.each_head", "scores.key_each_head", "conditional.value_each_head"}
    assert named <= set(wrong)
    assert [name for name in wrong if name.startswith("draws.") or "heads" in name or "copies" in name] == []
    assert wrong[0] in named
