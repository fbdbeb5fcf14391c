"""Zero limits: laws at finite width, distances and rates against draws and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

import attncheck as ac
from attncheck.layers.draws import Draws
from attncheck.simulators.layers import draw_program
from attncheck.simulators.multipliers import DirectMultiplier
from attncheck.theory.rates.marginal import restored, vanishes

LINEAR = ac.AttentionLayer(width=16, seq_len=2, num_heads=1, attention_map="linear", score_scaling="1/n")
RELU = LINEAR.replace(attention_map="relu", head_dim=4, num_heads=2, mask="causal")
_DRAWS = 20_000
# Two-sided 1e-6 for each comparison.
_QUANTILE = 4.9


def _drawn(layer: ac.AttentionLayer) -> Draws:
    return draw_program(layer, 50, 2, np.random.default_rng(3), DirectMultiplier)


@pytest.mark.parametrize("layer", [LINEAR, RELU, LINEAR.replace(norm="layer")], ids=lambda layer: layer.describe())
def test_every_draw_is_the_theorems_times_a_factor(layer: ac.AttentionLayer) -> None:
    own, other = _drawn(layer), _drawn(restored(layer))
    assert layer.score_factor == layer.head_width**-0.5
    np.testing.assert_allclose(own.outputs, layer.score_factor * other.outputs, rtol=1e-12)
    np.testing.assert_allclose(own.scores, layer.score_factor * other.scores, rtol=1e-12)
    # Softmax is not homogeneous, so its limit is not 0.
    softmax = layer.replace(attention_map="softmax")
    own, other = _drawn(softmax), _drawn(restored(softmax))
    assert np.abs(own.outputs / other.outputs - layer.score_factor).max() > 0.01
    assert not vanishes(softmax)


@pytest.mark.parametrize("layer", [LINEAR, RELU], ids=lambda layer: layer.describe())
def test_the_law_is_that_of_draws_and_its_limit_is_zero(layer: ac.AttentionLayer) -> None:
    law, position = ac.finite_width_law(layer, size=1024), 1
    drawn = ac.simulate(layer, _DRAWS, seed=1).outputs[:, position, 0]
    for t in (-0.2, 0.05, 0.5):
        chance = float(law.sf(t, position))
        spread = math.hypot(math.sqrt(chance * (1 - chance) / _DRAWS), float(law.cdf_error(t, position)) / 4.0)
        assert abs(float((drawn > t).mean()) - chance) < _QUANTILE * spread
    spread = math.sqrt(0.25 / _DRAWS) + law.atom_error(position) / 4.0
    assert abs(float((drawn == 0).mean()) - law.atom(position)) < _QUANTILE * spread
    points = np.array([-1.0, -0.1, 0.0, 0.1, 1.0])
    np.testing.assert_allclose(
        law.difference(points, position), law.cdf(points, position) - law.limit.cdf(points, position), atol=1e-12
    )
    np.testing.assert_array_equal(law.density_difference(points, position), law.pdf(points, position))
    h = 1e-4
    slope = (law.cdf(0.3 + h, position) - law.cdf(0.3 - h, position)) / (2 * h)
    assert law.pdf(0.3, position) == pytest.approx(float(slope), rel=1e-4)
    # On the scale of y this is the theorem's law, to rounding.
    wide, scale = ac.finite_width_law(restored(layer), size=1024), layer.score_factor
    assert law.sf(0.3, position) == pytest.approx(float(wide.sf(0.3 / scale, position)), rel=1e-9)
    assert law.excess_kurtosis(position) == pytest.approx(wide.excess_kurtosis(position), rel=1e-9)
    assert law.ppf(0.9, position) == pytest.approx(scale * float(wide.ppf(0.9, position)), rel=1e-9)


def test_distances_from_zero_are_those_of_draws() -> None:
    drawn = ac.simulate(RELU, _DRAWS, seed=2).outputs[:, 1, 0]
    # The cdfs differ most next to 0, and "tv" is all mass off 0.
    shares = {"ks": (drawn > 0).astype(float), "tv": (drawn != 0).astype(float), "w1": np.abs(drawn)}
    for metric, values in shares.items():
        found = ac.distance(RELU, metric, position=1, size=1024)
        spread = math.hypot(float(values.std()) / math.sqrt(_DRAWS), found.error / 4.0)
        assert abs(float(values.mean()) - found.value) < _QUANTILE * spread
    assert ac.distance(RELU, "kl", position=1, size=16).value == math.inf


def test_one_position_has_closed_forms() -> None:
    """By moments of χ: the lengths of h and Wh to the third power, a key and a value, two normals."""
    n = 8
    layer = LINEAR.replace(width=n, seq_len=1, activation="identity")

    def chi(power: float) -> float:
        gammas = math.lgamma((n + power) / 2) - math.lgamma(n / 2)
        return math.exp(gammas + 0.5 * power * math.log(2 / n))

    expected = n**-0.5 * (2 / math.pi) * chi(3) ** 2 * chi(1) ** 2
    found = ac.distance(layer, "w1", size=2048)
    assert found.value == pytest.approx(expected, abs=1.75 * found.error)
    assert found.error < 0.05 * expected
    assert found.leading == pytest.approx(n**-0.5 * 2 / math.pi, rel=1e-6)
    # A score of two positions: the inputs' lengths once for both, a key and a normal.
    score = ac.distance(
        ac.AttentionLayer(width=n, seq_len=2, score_scaling="1/n", activation="identity"), "w1", of="scores", size=2048
    )
    assert score.value == pytest.approx(n**-0.5 * (2 / math.pi) ** 0.5 * chi(1) ** 3 * chi(2), abs=1.75 * score.error)


def test_the_mean_size_falls_as_a_root() -> None:
    """`properties/theory/test_rates.py` tests these orders and constants."""
    widths = (64, 128, 256, 512)
    found = ac.rate(LINEAR, widths, "w1", size=256)
    assert found.predicted == -0.5
    assert found.leading == pytest.approx(1.0, rel=1e-6)  # E|y| of Laplace's law
    scores = ac.rate(ac.AttentionLayer(width=8, score_scaling="1/n"), widths, "w1", of="scores", size=128)
    assert scores.leading == pytest.approx(math.sqrt(2 / math.pi), rel=1e-9)


def test_heads_of_fixed_size_keep_their_factor() -> None:
    layer = LINEAR.replace(head_dim=4)
    found = ac.rate(layer, (64, 128, 256, 512), "w1", size=512)
    assert found.predicted == -1.0
    assert found.gap is not None
    drawn = np.abs(ac.simulate(layer.replace(width=256), 5_000, seed=5).outputs[:, 0, 0])
    assert abs(drawn.mean() - found.gap.value) < _QUANTILE * drawn.std() / math.sqrt(5_000) + found.gap.error + 0.01
