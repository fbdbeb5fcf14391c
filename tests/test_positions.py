"""Positions that are added to the inputs, and queries tied to keys: descriptions, names, limits and what checks say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck.checks.check import Setting
from attncheck.checks.registry import CHECKS
from attncheck.checks.sample import FIELDS
from attncheck.errors import InputError
from attncheck.evidence.streams import digest
from attncheck.expansion import expand
from attncheck.limits.kernel import input_covariance, input_kernel
from attncheck.simulators.collapsed import draw_inputs

PLACED = ac.AttentionLayer(width=64, seq_len=5, position_std=1.5, position_reach=1.2, activation="identity")
TIED = ac.AttentionLayer(width=64, seq_len=3, tied_query_key=True, score_scaling="1/n", activation="relu")


def test_names_of_layers_without_them_are_as_they_were() -> None:
    layer = ac.AttentionLayer(width=16)
    fields = set(layer.to_dict())
    assert fields.isdisjoint({"position_std", "position_reach", "tied_query_key"})
    # As in records that were made before there were such fields.
    assert digest(layer.to_dict()) == "ce30bb2a5e65"
    assert ac.AttentionLayer.from_dict({**layer.to_dict(), "position_std": 0.0}) == layer


@pytest.mark.parametrize("layer", [PLACED, TIED], ids=["positions", "tied"])
def test_descriptions_come_back(layer: ac.AttentionLayer) -> None:
    assert ac.AttentionLayer.from_dict(layer.to_dict()) == layer
    assert ac.AttentionLayer.from_toml(layer.to_toml()) == layer
    assert digest(layer.to_dict()) != digest(ac.AttentionLayer(width=64, seq_len=layer.seq_len).to_dict())
    assert "position_std=1.5" in PLACED.describe()
    assert "tied_query_key=True" in TIED.describe()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"position_std": -1.0}, "position_std="),
        ({"position_std": 1e-9}, "position_std="),
        ({"position_std": np.nan}, "position_std="),
        ({"position_reach": 2.0}, "position_reach="),
        ({"position_std": 1.0, "position_reach": 0.0}, "position_reach="),
        ({"position_std": 1.0, "position_reach": 3.0, "input_correlation": 1.0}, "position_reach="),
        ({"tied_query_key": 1}, "tied_query_key="),
        ({"tied_query_key": True}, "tied_query_key="),
        ({"tied_query_key": True, "score_scaling": "1/n", "key_std": 2.0}, "key_std="),
        ({"tied_query_key": True, "score_scaling": "1/n", "num_kv_heads": 1}, "num_kv_heads="),
    ],
)
def test_impossible_ones_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        ac.AttentionLayer(width=4, **fields)


def test_positions_have_the_declared_covariance() -> None:
    distance = np.subtract.outer(np.arange(5), np.arange(5))
    expected = np.eye(5) + 1.5**2 * np.exp(-(distance**2) / (2 * 1.2**2))
    assert np.allclose(input_covariance(PLACED), expected)
    assert np.allclose(input_kernel(PLACED).matrix, expected)
    size = 4_000
    inputs = draw_inputs(PLACED, size, np.random.default_rng(3))
    grams = inputs @ inputs.swapaxes(-1, -2) / PLACED.width
    standard = grams.std(axis=0) / size**0.5
    assert np.all(np.abs(grams.mean(axis=0) - expected) < 5 * standard)
    # The reach taken for a variance is told apart.
    wrong = np.eye(5) + 1.5**2 * np.exp(-(distance**2) / (2 * 1.2))
    assert np.any(np.abs(grams.mean(axis=0) - wrong) > 8 * standard)


def test_positions_do_not_share_the_length_of_h() -> None:
    """Given no h, what is added is Gaussian: the kurtosis of x is 3 times (1 + 2/n) for the part of h alone."""
    layer = PLACED.replace(width=2, seq_len=1)
    x = draw_inputs(layer, 200_000, np.random.default_rng(5))[:, 0, 0]
    fourth = 3 * (1.0 * (1 + 2 / 2) + 2 * 1.5**2 + 1.5**4)
    standard = (x**4).std() / len(x) ** 0.5
    assert abs((x**4).mean() - fourth) < 5 * standard
    assert abs((x**4).mean() - 3 * (1 + 2 / 2) * (1 + 1.5**2) ** 2) > 5 * standard


def test_tied_scores_approach_the_kernel_and_outputs_a_normal() -> None:
    kernel = input_kernel(TIED).matrix
    weights = np.exp(kernel) / np.exp(kernel).sum(axis=1, keepdims=True)
    expected = weights @ kernel @ weights.T
    law = ac.limit(TIED)
    assert np.allclose(law.covariance(), expected, rtol=1e-12)
    assert law.excess_kurtosis(1) == pytest.approx(0.0, abs=1e-12)
    assert law.variance(1) == pytest.approx(expected[1, 1], rel=1e-9)
    assert np.allclose(law.cdf(0.7, 2), stats.norm.cdf(0.7, scale=expected[2, 2] ** 0.5), atol=1e-9)
    assert np.allclose(ac.simulate(TIED, 3, reading="limit").scores, kernel)
    assert not np.allclose(ac.limit(TIED.replace(tied_query_key=False)).covariance(), expected, rtol=1e-2)
    wide = ac.simulate(TIED.replace(width=4096), 200, seed=1)
    assert np.abs(wide.scores - kernel).max() < 8 / 64


def test_a_tied_layer_is_outside_the_assumption() -> None:
    coverage = expand(TIED).program.coverage()
    assert not coverage.proved
    assert any("(b)" in str(line) for line in coverage.lines)
    setting = Setting(TIED, frozenset({*FIELDS, "masked scores"}), 2)
    reasons = {check.name: check.reason_not_examined(setting) for check in CHECKS if check.claim == "scores"}
    assert all("W_Q is W_K" in reason for reason in reasons.values())


@pytest.mark.parametrize("layer", [PLACED.replace(width=8), TIED.replace(width=8)], ids=["positions", "tied"])
def test_checks_find_right_simulators_right_and_others_wrong(layer: ac.AttentionLayer) -> None:
    properties = ["exactness", "outputs", "inputs", "conditional"]
    assert ac.check("attncheck.subject:direct", layer, properties=properties, profile="smoke").verdict == "consistent"
    found = ac.check("attncheck.faults:value_std_10", layer, properties=["conditional"], profile="smoke")
    assert found.verdict == "violated"


def deaf(layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
    """Ignore positions and tying."""
    draws = ac.simulate(
        layer.replace(position_std=0.0, position_reach=1.0, tied_query_key=False), size, int(rng.integers(2**31))
    )
    return draws.as_dict()


@pytest.mark.parametrize("layer", [PLACED.replace(width=8), TIED.replace(width=8)], ids=["positions", "tied"])
def test_a_simulator_that_ignores_them_is_found(layer: ac.AttentionLayer) -> None:
    assert ac.check(deaf, layer, properties=["exactness"], profile="smoke").verdict == "violated"
