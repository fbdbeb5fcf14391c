"""Added positions, and queries tied to keys: descriptions, names, limits and checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck.checks.check import Setting
from attncheck.checks.claims import CLAIMS
from attncheck.checks.registry import CHECKS
from attncheck.checks.returned import FIELDS
from attncheck.layers.expansion import expand
from attncheck.layers.kernel import input_covariance, input_kernel, psd_root
from attncheck.records.tallies import Space
from attncheck.simulators.collapsed import attend, draw_hidden, output_covariance

PLACED = ac.AttentionLayer(width=64, seq_len=5, position_std=1.5, position_reach=1.2, activation="identity")
TIED = ac.AttentionLayer(width=64, seq_len=3, tied_query_key=True, score_scaling="1/n", activation="relu")


def test_positions_have_the_declared_covariance() -> None:
    distance = np.subtract.outer(np.arange(5), np.arange(5))
    expected = np.eye(5) + 1.5**2 * np.exp(-(distance**2) / (2 * 1.2**2))
    assert np.allclose(input_covariance(PLACED.inputs), expected)
    assert np.allclose(input_kernel(PLACED.inputs).matrix, expected)


def test_tied_scores_approach_the_kernel_and_outputs_a_normal() -> None:
    kernel = input_kernel(TIED.inputs).matrix
    weights = np.exp(kernel) / np.exp(kernel).sum(axis=1, keepdims=True)
    expected = weights @ kernel @ weights.T
    law = ac.limit(TIED)
    assert np.allclose(law.covariance(), expected, rtol=1e-12)
    assert law.excess_kurtosis(1) == pytest.approx(0.0, abs=1e-12)
    assert law.variance(1) == pytest.approx(expected[1, 1], rel=1e-9)
    assert np.allclose(law.cdf(0.7, 2), stats.norm.cdf(0.7, scale=expected[2, 2] ** 0.5), atol=1e-9)
    assert np.allclose(ac.simulate(TIED, 3, method="limit").scores, kernel)
    assert not np.allclose(ac.limit(TIED.replace(tied_query_key=False)).covariance(), expected, rtol=1e-2)
    wide = ac.simulate(TIED.replace(width=4096), 200, seed=1)
    assert np.abs(wide.scores - kernel).max() < 8 / 64


def test_a_tied_layer_is_outside_the_assumption() -> None:
    coverage = expand(TIED).program.coverage()
    assert not coverage.proved
    assert any("(b)" in str(line) for line in coverage.lines)
    setting = Setting(TIED, frozenset({*FIELDS, "masked scores"}), 2)
    reasons = {check.name: check.reason_not_examined(setting) for check in CHECKS}
    of_separate = {"scale", "law", "tied", "each_head", "head_pairs", "heads", "heads_energy", "marginal", "size"}
    of_separate |= {"spread", "kurtosis"}
    names = {f"scores.{name}" for name in of_separate} | {
        "independence.score_inputs",
        "independence.score_gram",
        "independence.output_scores_by_head",
        "outputs.limit_scores",
        "draws.scores",
        "independence.values_any_scores",
    }
    assert {name for name, reason in reasons.items() if "W_Q is W_K" in reason} == names
    # Checks that do not need Gaussian scores given keys still run.
    assert not any(reasons[name] for name in ("scores.key_law", "exactness.score_off", "conditional.scale"))


def test_the_gap_of_a_score_with_positions_falls_as_one_over_n() -> None:
    """`rates.outputs` of the properties tests outputs."""
    layer = ac.AttentionLayer(width=64, position_std=1.5)
    found = ac.rate(layer, (64, 128, 256, 512), of="scores", size=256)
    assert found.order.low < -1.0 < found.order.high
    assert found.order.high < -0.8
    # Positions share no length: if they did, the score's distance would be that of a layer without them.
    without = ac.rate(layer.replace(position_std=0.0), (64, 128, 256, 512), of="scores", size=256)
    assert found.leading < 0.7 * without.leading


def test_a_report_counts_layers_without_the_fields_with_those_that_have_them() -> None:
    layers = (PLACED, TIED, TIED.replace(tied_query_key=False))
    space = Space({layer.key: layer.to_dict() for layer in layers}, frozenset({TIED.key}))
    assert space.values["tied_query_key"] == {"no": 2, "yes": 1}
    assert space.values["position_std"] == {"1.5": 1, "0": 2}


_HELD = ac.AttentionLayer(width=16, seq_len=3, num_heads=1, position_std=1.5, position_reach=1.2)


def _added(reach: float, size: int, rng: np.random.Generator) -> Any:
    """Return positions of another reach, or 0 for independent ones."""
    noise = rng.standard_normal((size, _HELD.seq_len, _HELD.width))
    distance = np.subtract.outer(np.arange(_HELD.seq_len), np.arange(_HELD.seq_len))
    covariance = np.exp(-(distance**2) / (2.0 * reach**2)) if reach else np.eye(_HELD.seq_len)
    return _HELD.position_std * np.linalg.cholesky(covariance) @ noise


@pytest.mark.sampled
@pytest.mark.usefixtures("no_causes")
@pytest.mark.parametrize(("reach", "distance"), [(2.4, 1), (0.0, 2)])
def test_messages_on_wrong_positions_are_about_positions(reach: float, distance: int) -> None:
    def wrong(layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        hidden, lengths = draw_hidden(layer, size, rng)
        return attend(layer, hidden * lengths[:, None, None] + _added(reach, size, rng), 2, rng).as_dict()

    text = next(ac.check(wrong, _HELD, properties=["exactness"], profile="smoke").messages())
    assert text.startswith("VIOLATED: Inputs are x^i = φ(W^i h + e^i)")
    assert "position_std² exp(-(i - j)²/(2 position_reach²))" in text
    (cause,) = (line for line in text.splitlines() if line.startswith("  likely:   the activation"))
    assert "position_std, position_reach or the law of the position vectors e^i" in cause
    assert f"mean product of inputs at positions {distance} apart (position_std, position_reach)" in text
    plain = CLAIMS["inputs"].text_of(_HELD.replace(position_std=0.0, position_reach=1.0).to_dict())
    assert "e^i" not in plain


@pytest.mark.usefixtures("no_causes")
def test_messages_on_tied_layers_claim_what_holds_of_them() -> None:
    layer = TIED.replace(width=16)

    def rooted(layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        drawn = ac.simulate(layer, size, int(rng.integers(2**31)), coordinates=2)
        scores = drawn.scores * layer.width**0.5
        covariance = output_covariance(layer, scores, psd_root(drawn.as_dict()["value_gram"]))
        outputs = psd_root(covariance) @ rng.standard_normal((size, layer.seq_len, 2))
        return {**drawn.as_dict(), "scores": scores, "outputs": outputs}

    text = next(ac.check(rooted, layer, properties=["exactness"], profile="smoke").messages())
    assert text.startswith("VIOLATED: Scores are K Kᵀ/ν, as W_Q is W_K")
    for claim in CLAIMS.values():
        assert "Gaussian given the keys" not in claim.text_of(layer.to_dict())
    assert "Gaussian given the keys" in CLAIMS["scores"].text_of(layer.replace(tied_query_key=False).to_dict())
