"""Single precision is accepted, even with ties up to rounding."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import attncheck as ac
from attncheck.checks.functionals import FUNCTIONALS
from attncheck.checks.sample import Sample
from attncheck.evidence.families import TwoSample
from attncheck.layers.inputs import Activation
from tests.simulators.cases import PLAIN

LAYERS = (
    *PLAIN,
    # Saturated inputs without a finite binary expansion, and sigmoid weights that underflow in single precision.
    ac.AttentionLayer(width=3, seq_len=2, num_heads=2, clip=0.1),
    ac.AttentionLayer(width=2, seq_len=2, num_heads=1, attention_map="sigmoid", query_std=3.0, input_std=4.0),
)


def single(layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    drawn = ac.simulate(layer, size, int(rng.integers(2**63)), method="direct", coordinates=min(2, layer.width))
    return {name: array.astype(np.float32) for name, array in drawn.as_dict().items()}


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_rounding_moves_no_functional(layer: ac.AttentionLayer) -> None:
    """Without the allowance, column sizes would move by 0.7, inputs by 0.1, outputs by 0.02."""
    size, neurons = 2_000, min(2, layer.width)
    drawn = ac.simulate(layer, size, seed=1, coordinates=neurons).as_dict()
    rounded = {name: array.astype(np.float32) for name, array in drawn.items()}
    exact, ours = (Sample.from_mapping(layer, arrays, size) for arrays in (drawn, rounded))
    examined = [each for each in FUNCTIONALS if each.applies(layer, neurons)]
    assert len(examined) >= 10
    for functional in examined:
        family = TwoSample(unit=functional.unit)
        moved = family.test(functional.compute(ours), functional.compute(exact)).effect
        assert moved < 0.006, functional.name


@pytest.mark.parametrize("layer", [PLAIN[1], PLAIN[3]], ids=str)  # rank-one scores, and saturated inputs
def test_single_precision_is_consistent(layer: ac.AttentionLayer) -> None:
    report = ac.check(single, layer, properties=["exactness", "draws"], profile="smoke")
    assert report.verdict == "consistent", [result.check for result in report.violated]


@pytest.mark.parametrize("activation", ["identity", "clip"])
def test_sigmoid_weights_that_underflow_are_no_fault(activation: Activation) -> None:
    layer = ac.AttentionLayer(
        width=1, seq_len=1, num_heads=1, attention_map="sigmoid", input_std=30, activation=activation
    )
    report = ac.check("attncheck.subject:direct", layer, properties=["outputs"], profile="smoke")
    assert report.verdict == "inconclusive"  # few laws can be examined there, and no result is wrong
    assert {result.verdict for result in report.results} == {"consistent", "not examined"}
