"""Checks of any weight law against literal draws: exact, and about as powerful as for Gaussian weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck import AttentionLayer, check, simulate
from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.checks.check import Setting
from attncheck.checks.claims import TWO_VALUES
from attncheck.checks.draws import _distinct, marks
from attncheck.checks.registry import check_named
from attncheck.checks.returned import FIELDS
from attncheck.checks.sample import Sample
from attncheck.evidence.looks import Budget
from attncheck.faults import EXPOSURES, exposing
from attncheck.faults.tampered import CORRUPTIONS
from attncheck.looks.plan import Cost
from attncheck.looks.profiles import ANCHORS, PROFILES
from attncheck.looks.result import violated
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws, draw_with_weights
from attncheck.subject import Subject, collapsed
from tests.refusals import refused
from tests.results import results_of
from tests.simulators import literal

Laws = str | Mapping[str, Any]
PAPER = ac.AttentionLayer(width=16, seq_len=4, num_heads=2)
NARROW = ac.AttentionLayer(width=4, seq_len=6, num_heads=2)
CAUSAL = ac.AttentionLayer(width=8, seq_len=3, num_heads=4, num_kv_heads=2, mask="causal")
TURNED = ac.AttentionLayer(width=8, seq_len=3, num_heads=2, head_dim=4, rotary_base=100.0)
ONE_WEIGHT = ac.AttentionLayer(width=1, seq_len=1, num_heads=1)
UNIFORM = WeightLaws.of("uniform")
LINEAR: dict[str, Any] = {
    name + end: law
    for name in ("query", "key", "value", "output")
    for end, law in (("", "uniform"), ("_bias", ("uniform", 1.0)))
}
SETTING = Setting(PAPER, frozenset({*FIELDS, "masked scores"}), 2, UNIFORM)
COST = Cost(1500, 5e-4, 0.9)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A subject with weight laws `own` and a scale of W_Q, which declares others."""

    own: Laws
    weights: Laws
    scale: float = 1.0
    single: bool = False
    hides: bool = False

    def __call__(self, layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        wrong = layer.replace(query_std=layer.query_std * self.scale)
        drawn = draw_with_weights(wrong, size, min(2, layer.width), rng, self.own).as_dict()
        if self.hides:
            drawn["scores"] = np.where(layer.visible, drawn["scores"], -np.inf)
        return {name: array.astype(np.float32) if self.single else array for name, array in drawn.items()}


def uniform(scale: float = 1.0, **changes: bool) -> Drawn:
    return Drawn("uniform", "uniform", scale, **changes)


# A whole run examines uniform weights below.
RIGHT = [
    *((Drawn(law, law), PAPER, name) for law in ("student5", "truncated normal") for name in ("exactness", "scores")),
    *((Drawn("rademacher", "rademacher"), PAPER, name) for name in ("conditional", "independence")),
    *((uniform(single=True), NARROW, name) for name in ("scores", "conditional", "exactness")),  # singular
    *((uniform(single=True, hides=True), CAUSAL, name) for name in ("scores", "conditional", "exactness")),
    *((Drawn(LINEAR, LINEAR), layer, name) for layer in (NARROW, TURNED) for name in ("scores", "exactness")),
    *((Drawn(LINEAR, LINEAR), CAUSAL, name) for name in ("conditional", "outputs")),
    (uniform(), ONE_WEIGHT, "exactness"),
    (Drawn({"key": "uniform"}, {"key": "uniform"}), ONE_WEIGHT, "exactness"),
]


def with_bias(matrix: str, std: float) -> Drawn:
    """Declare biases, and draw another one of a matrix, or none."""
    others = {key: law for key, law in LINEAR.items() if key != f"{matrix}_bias"}
    return Drawn(others | ({f"{matrix}_bias": ("uniform", std)} if std else {}), LINEAR)


WRONG = [
    (uniform(1.1), PAPER, "scores"),
    (with_bias("query", 0.0), CAUSAL, "scores"),
    (with_bias("key", 2.0), CAUSAL, "scores"),
    (with_bias("value", 0.0), CAUSAL, "exactness"),
    (Drawn("uniform", {"query": "uniform"}), ONE_WEIGHT, "exactness"),  # told apart where weights are few
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("drawn", "layer", "name"), [*RIGHT, *WRONG])
def test_right_simulators_pass_and_wrong_ones_do_not(drawn: Drawn, layer: ac.AttentionLayer, name: str) -> None:
    results = results_of(drawn, layer, name, cost=COST)
    assert any(result.p_values for result in results)
    assert bool(violated(results)) == ((drawn, layer, name) in WRONG)


def test_nearly_all_that_gaussian_weights_are_held_to_is_examined() -> None:
    layer = ac.AttentionLayer(width=4, seq_len=3, num_heads=2)
    report = ac.check(uniform(), layer, profile="smoke")
    assert report.verdict == "consistent"
    report.require(min_examined=80)


def test_biases_of_gaussian_weights_are_not_what_is_computed() -> None:
    laws = WeightLaws.of({"output_bias": ("gaussian", 1.0)})
    assert GAUSSIAN_LAWS.gaussian
    assert not laws.gaussian
    assert str(WeightLaws.of({"value": "uniform"})) == "gaussian (query, key, output, inputs), uniform (value)"
    assert WeightLaws.read("output_bias=gaussian:1") == laws
    drawn = draw_with_weights(PAPER, 4000, 2, np.random.default_rng(0), laws).outputs
    plain = draw_with_weights(PAPER, 4000, 2, np.random.default_rng(0), "gaussian").outputs
    added = drawn - plain
    assert np.ptp(added, axis=1).max() < 1e-12
    assert added.var() == pytest.approx(1 / (PAPER.num_heads * PAPER.width), rel=0.1)


@pytest.mark.parametrize(
    ("laws", "message"),
    [
        ("query=uniform,query=student5", "names query twice"),
        ("output_bias=uniform:1, output_bias=uniform:1", "names output_bias twice"),
        *(
            ({"key_bias": value}, r"weights\['key_bias'\]")
            for value in ("uniform", ("uniform",), ("odd", 1.0), ("uniform", -1.0), ("uniform", "one"))
        ),
        ({"inputs_bias": ("uniform", 1.0)}, "inputs_bias"),
        ({"queries": "uniform"}, "matrix='queries': is not known; use one of 'query', 'key'"),
        ({"query": "cauchy"}, r"weights\['query'\]='cauchy': is not known"),
        (1.0, "is neither a name nor a mapping of matrices to names"),
    ],
)
def test_a_matrix_has_one_law_and_a_bias_a_number(laws: Any, message: str) -> None:
    refused(lambda: (WeightLaws.read if isinstance(laws, str) else WeightLaws.of)(laws), message)


def test_what_has_no_literal_form_is_not_examined() -> None:
    assert "holds for Gaussian weights" in check_named("scores.each_head").reason_not_examined(SETTING)
    copies = check_named("scores.key_copies")
    assert copies.reason_not_examined(SETTING) == ""
    signs = dataclasses.replace(SETTING, weights=WeightLaws.of("rademacher"))
    assert "two-valued weights" in copies.reason_not_examined(signs)


@pytest.mark.usefixtures("verdicts_only")
def test_layers_add_up_in_the_unit_of_the_check() -> None:
    layers = [PAPER, ac.AttentionLayer(width=4, seq_len=1, num_heads=1)]
    report = ac.check(uniform(1.05), layers, properties=["scores"], profile="smoke")
    pools = {pool.id: pool for pool in report.pools}
    assert pools["scores.law@all"].p_values  # one number a draw in one layer, blocks in the others
    scale = pools["scores.scale@all"]
    assert scale.verdict in ("violated", "explained")
    assert scale.effect == pytest.approx(0.1025, abs=0.03)
    assert scale.text.startswith("common deviation of: score variance given inputs and keys")


# Shared randomness and ties are found: repeats, weights of neighbours or calls, copied heads and uneven ones


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


@pytest.mark.sampled(5)
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


STANDARD, _, _, GROUPED = ANCHORS[:4]
TIES = check_named("exactness.extremes")


def ties(outputs: FloatArray, layer: AttentionLayer) -> float:
    subject = Subject.of(exposing(collapsed, EXPOSURES["outputs"]))
    setting = subject.probe(layer, stream(0, "tests", "ties"))
    data = TIES.measure(Sample(layer, outputs), None)
    return TIES.test(setting, data).p_value


def drawn(layer: AttentionLayer, size: int) -> FloatArray:
    return np.asarray(simulate(layer, size, seed=1).outputs)


def test_ties_that_are_no_bound_are_none() -> None:
    outputs = drawn(STANDARD, 20_000)
    assert ties(outputs, STANDARD) == 1.0
    # Single, half and brain precision.
    for bits in (23, 10, 7):
        mantissa, exponent = np.frexp(outputs)
        coarse = np.ldexp(np.round(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)
        assert ties(coarse, STANDARD) == 1.0
    # Equal positions, and draws with nothing above or below 0.
    equal = STANDARD.replace(input_correlation=1.0)
    assert len(np.unique(drawn(equal, 1)[0].round(9), axis=0)) == 1
    assert ties(drawn(equal, 20_000), equal) == 1.0
    assert ties(np.minimum(outputs, 0.0), STANDARD) == 1.0


@pytest.mark.parametrize("weights", ["uniform", "truncated normal", "student5", "rademacher"])
def test_weights_of_two_values_alone_may_tie(weights: str) -> None:
    blind = exposing(collapsed, EXPOSURES["outputs"])
    setting = Subject.of(blind).probe(STANDARD, stream(0, "tests", "ties"))
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
