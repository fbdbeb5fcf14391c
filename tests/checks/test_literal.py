"""Checks of any weight law against literal draws: exact, and about as powerful as for Gaussian weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.checks.check import Setting
from attncheck.checks.registry import check_named
from attncheck.checks.returned import FIELDS
from attncheck.looks.plan import Cost
from attncheck.looks.result import violated
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws, draw_with_weights
from tests.refusals import refused
from tests.results import results_of

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
