"""Zero limits: distances and rates against draws and closed forms; tests/theory compares their laws."""

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


@pytest.mark.parametrize(
    "layer",
    [LINEAR, RELU, LINEAR.replace(norm="layer"), LINEAR.replace(score_scaling="n^-0.75")],
    ids=lambda layer: layer.describe(),
)
def test_every_draw_and_the_law_are_the_theorems_times_a_factor(layer: ac.AttentionLayer) -> None:
    drawn, other, scale = _drawn(layer), _drawn(restored(layer)), layer.score_factor
    assert scale == layer.head_width ** (-0.25 if layer.score_scaling == "n^-0.75" else -0.5)
    np.testing.assert_allclose(drawn.outputs, scale * other.outputs, rtol=1e-12)
    np.testing.assert_allclose(drawn.scores, scale * other.scores, rtol=1e-12)
    law, wide = (ac.finite_width_law(each, size=128) for each in (layer, restored(layer)))
    assert law.sf(0.3, 1) == pytest.approx(float(wide.sf(0.3 / scale, 1)), rel=1e-9)
    assert law.excess_kurtosis(1) == pytest.approx(wide.excess_kurtosis(1), rel=1e-9)
    assert law.ppf(0.9, 1) == pytest.approx(scale * float(wide.ppf(0.9, 1)), rel=1e-9)
    points = np.array([-1.0, -0.1, 0.0, 0.1, 1.0])
    np.testing.assert_allclose(law.difference(points, 1), law.cdf(points, 1) - law.limit.cdf(points, 1), atol=1e-12)
    np.testing.assert_array_equal(law.density_difference(points, 1), law.pdf(points, 1))
    # Softmax is not homogeneous, so its limit is not 0.
    softmax = layer.replace(attention_map="softmax")
    drawn, other = _drawn(softmax), _drawn(restored(softmax))
    assert np.abs(drawn.outputs / other.outputs - scale).max() > 0.01
    assert not vanishes(softmax)


def test_distances_from_zero_are_those_of_draws() -> None:
    drawn = ac.simulate(RELU, _DRAWS, seed=2).outputs[:, 1, 0]
    # The cdfs differ most next to 0, and "tv" is all mass off 0.
    shares = {"ks": (drawn > 0).astype(float), "tv": (drawn != 0).astype(float), "w1": np.abs(drawn)}
    for metric, values in shares.items():
        distance = ac.distance(RELU, metric, position=1, size=1024)
        spread = math.hypot(float(values.std()) / math.sqrt(_DRAWS), distance.error / 4.0)
        assert abs(float(values.mean()) - distance.value) < _QUANTILE * spread
    assert ac.distance(RELU, "kl", position=1, size=16).value == math.inf


def test_one_position_has_closed_forms() -> None:
    """By moments of χ: the lengths of h and Wh to the third power, a key and a value, two normals."""
    n = 8

    def chi(power: float) -> float:
        gammas = math.lgamma((n + power) / 2) - math.lgamma(n / 2)
        return math.exp(gammas + 0.5 * power * math.log(2 / n))

    layer = LINEAR.replace(width=n, seq_len=1, activation="identity")
    distance = ac.distance(layer, "w1", size=2048)
    expected = n**-0.5 * (2 / math.pi) * chi(3) ** 2 * chi(1) ** 2
    assert distance.value == pytest.approx(expected, abs=1.75 * distance.error)
    assert distance.error < 0.05 * expected
    assert distance.leading == pytest.approx(n**-0.5 * 2 / math.pi, rel=1e-6)
    # A score of two positions: the inputs' lengths once for both, a key and a normal.
    layer = ac.AttentionLayer(width=n, seq_len=2, score_scaling="1/n", activation="identity")
    score = ac.distance(layer, "w1", of="scores", size=2048)
    expected = n**-0.5 * (2 / math.pi) ** 0.5 * chi(1) ** 3 * chi(2)
    assert score.value == pytest.approx(expected, abs=1.75 * score.error)


def test_sizes_fall_as_a_root_unless_heads_have_a_fixed_size() -> None:
    """`properties/theory/test_rates.py` tests these orders and constants."""
    widths = (64, 128, 256, 512)
    falling = ac.rate(LINEAR, widths, "w1", size=64)
    assert falling.predicted == -0.5
    assert falling.leading == pytest.approx(1.0, rel=1e-6)  # E|y| of Laplace's law
    scores = ac.distance(ac.AttentionLayer(width=64, score_scaling="1/n"), "w1", of="scores", size=16)
    assert 8.0 * scores.leading == pytest.approx(math.sqrt(2 / math.pi), rel=1e-9)
    layer = LINEAR.replace(head_dim=4)
    fixed = ac.rate(layer, widths, "w1", size=64)
    assert fixed.predicted == -1.0
    assert fixed.gap is not None
    drawn = np.abs(ac.simulate(layer.replace(width=256), 5_000, seed=5).outputs[:, 0, 0])
    assert abs(drawn.mean() - fixed.gap.value) < _QUANTILE * drawn.std() / math.sqrt(5_000) + fixed.gap.error + 0.01


def test_other_powers_have_distances_but_no_rate_in_the_inverse_width() -> None:
    layer = ac.AttentionLayer(width=64, score_scaling="n^-0.75")
    assert math.isnan(ac.distance(layer, size=16).leading)
    with pytest.raises(
        ac.InputError, match=r"score_scaling='n\^-0.75': makes distances fall as another power than 1/n"
    ):
        ac.rate(layer)
    scores = ac.rate(layer, (64, 128, 256, 512), "w1", of="scores", size=64)
    assert scores.predicted == -0.25
    assert scores.order.value == pytest.approx(-0.25, abs=0.01)
    assert not math.isnan(ac.distance(layer.replace(score_scaling="n^-2"), size=64).leading)
