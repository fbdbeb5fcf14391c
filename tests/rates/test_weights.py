"""Weights of other laws: their characteristic functions, controls, and the law of literal draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck.simulators.weights import WEIGHT_LAWS, draw_with_weights
from attncheck.theory.rates.distance import of_other_weights
from attncheck.theory.rates.other_law import OtherWidthLaw
from attncheck.theory.rates.weights import _LAWS, OtherWeights

_NAMES = ("uniform", "rademacher", "truncated normal", "student5")


@pytest.mark.parametrize("name", _NAMES)
def test_characteristic_functions_are_those_of_the_entries(name: str) -> None:
    function, fourth = _LAWS[name]
    entries = WEIGHT_LAWS[name](np.random.default_rng(0), (200_000,))
    for x in (0.1, 0.7, 2.0, 5.0):
        # Beyond with a chance of 1e-6.
        assert abs(np.cos(x * entries).mean() - function(np.array(x))) < 4.9 / math.sqrt(2 * len(entries)) + 1e-6
    x = 0.05
    third = float(np.log(function(np.array(x))) + 0.5 * x**2) * 24 / x**4
    if name != "student5":  # whose fifth moment of |x| is infinite: the expansion has a term |x|^5
        assert third == pytest.approx(fourth, rel=0.01)


_STDS = ac.AttentionLayer(width=8, num_heads=2, seq_len=3, query_std=1.5, value_std=0.7, output_std=2.0)


# The name enters by the entries and their characteristic function, which are held to each other above, and the layer
# elsewhere: each name with one layer, and each layer with one name, say what all pairs do.
@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (_STDS, "student5"),
        (_STDS.replace(num_heads=1, seq_len=2), "truncated normal"),
        (ac.AttentionLayer(width=8, num_heads=1, seq_len=2, attention_map="sigmoid", input_correlation=0.5), "uniform"),
        (
            ac.AttentionLayer(width=9, num_heads=1, seq_len=3, mask="causal", activation="relu", input_std=1.5),
            "rademacher",
        ),
    ],
    ids=lambda value: value.describe() if isinstance(value, ac.AttentionLayer) else str(value),
)
def test_it_is_the_law_of_literal_draws(layer: ac.AttentionLayer, name: str) -> None:
    position, size = layer.seq_len - 1, 20_000
    output = OtherWeights(layer, position, name)
    gap = output.gap(512, np.random.SeedSequence(0).spawn(8))
    drawn = draw_with_weights(layer, size, 1, np.random.default_rng(1), name).outputs[:, position, 0]
    cdf = ac.limit(layer).cdf(gap.points, position) + gap.cdf.mean(axis=0)
    error = 4 * gap.cdf.std(axis=0, ddof=1).max() / math.sqrt(8)
    found = stats.ks_1samp(drawn, lambda t: np.interp(t, gap.points, cdf)).statistic
    assert error < 0.01
    assert stats.kstwo.sf(max(0.0, found - error), size) > 1e-6


@pytest.mark.parametrize("name", _NAMES)
def test_laws_at_a_width_are_those_of_literal_draws(name: str) -> None:
    layer, size = ac.AttentionLayer(width=16, seq_len=3, num_heads=1, mask="causal", query_std=1.5), 20_000
    law = OtherWidthLaw(layer, name, 2**13)
    assert law == ac.finite_width_law(layer, size=2**13, weights=name)
    drawn = law.sample(size, seed=1)[:, 2, 0]
    for t in (-1.5, 0.2, 0.8, 2.0):
        chance = float(law.sf(t, 2))
        spread = math.hypot(math.sqrt(chance * (1 - chance) / size), float(law.cdf_error(t, 2)) / 4)
        assert float(law.cdf_error(t, 2)) < 0.01
        # Beyond with a chance of 1e-6; errors are those of eight repetitions, but less than half of the spread.
        assert abs((drawn > t).mean() - chance) < 4.9 * spread
    assert abs(drawn.var() - law.variance(2)) < 4.9 * (drawn**2).std() / math.sqrt(size) + law.variance_error(2)
    h = 1e-4
    slope = (law.cdf(0.3 + h, 2) - law.cdf(0.3 - h, 2)) / (2 * h)
    assert law.pdf(0.3, 2) == pytest.approx(float(slope), rel=1e-4)
    assert law.cdf(law.ppf(0.9, 2), 2) == pytest.approx(0.9, abs=1e-9)
    gap, grid = law.gap(2), np.array([0.3, 1.0])
    np.testing.assert_allclose(law.difference(grid, 2), np.interp(grid, gap.points, gap.cdf.mean(axis=0)), atol=2e-5)
    assert law.cdf_error(13 * gap.std, 2) == math.inf
    assert law.limit.cdf(0.5, 2) == ac.limit(layer).cdf(0.5, 2)


def test_kurtosis_has_the_fourth_cumulants_of_the_output_weights() -> None:
    layer = ac.AttentionLayer(width=16, seq_len=2, num_heads=1)
    laws = {name: ac.finite_width_law(layer, size=2**14, weights=name) for name in _NAMES}
    found = {name: (law.excess_kurtosis(), law.excess_kurtosis_error()) for name, law in laws.items()}
    assert found.pop("student5")[1] == math.inf
    gaussian = ac.finite_width_law(layer, size=2048).excess_kurtosis()
    drawn = laws["uniform"].sample(40_000)[..., 0][:, 0]
    noise = (drawn**4).std() / drawn.var() ** 2 / math.sqrt(len(drawn))
    assert abs((drawn**4).mean() / drawn.var() ** 2 - 3 - found["uniform"][0]) < 6 * noise + found["uniform"][1]
    assert found["rademacher"][0] + found["rademacher"][1] < gaussian


# The method with normal weights, whose law is known by mixtures as well: nothing of one is in the other.
@pytest.mark.parametrize("width", [8, 32])
def test_with_normal_weights_it_is_what_mixtures_say(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_LAWS, "gaussian", (lambda x: np.exp(-0.5 * x**2), 0.0))
    layer = ac.AttentionLayer(width=width, seq_len=2, num_heads=1)
    output = OtherWeights(layer, 0, "gaussian")
    for metric in ("ks", "w1", "tv", "kl"):
        expected, found = ac.distance(layer, metric, size=2048), of_other_weights(output, metric, 2**13, 0)
        assert abs(expected.value - found.value) < 1.75 * (expected.error + found.error)
        assert found.error < 0.6 * found.value
        assert found.leading == pytest.approx(expected.leading, rel=0.05, abs=found.leading_error)
    law, mixture = OtherWidthLaw(layer, "gaussian", 2**13), ac.finite_width_law(layer, size=2048)
    assert abs(law.variance() - mixture.variance()) < 1.75 * (law.variance_error() + mixture.variance_error())
    off = abs(law.excess_kurtosis() - mixture.excess_kurtosis())
    assert off < 1.75 * (law.excess_kurtosis_error() + mixture.excess_kurtosis_error())


def test_the_divergence_falls_with_the_width_and_follows_the_fourth_cumulant() -> None:
    layer = ac.AttentionLayer(width=64, seq_len=2, num_heads=1)
    signs, tails = (ac.distance(layer, "kl", weights=name, size=2**12) for name in ("rademacher", "student5"))
    gaussian = ac.distance(layer, "kl", size=512)
    assert signs.value + signs.error < gaussian.value < tails.value - tails.error
    wide = ac.distance(layer, "kl", weights="student5", size=2**12, width=24)
    assert wide.value > 3.0 * tails.value
    # Few draws tell the density nowhere.
    with pytest.raises(ac.InputError, match=r"^size=16: is too few"):
        ac.distance(layer, "kl", weights="student5", size=16, width=8)


def test_controls_have_mean_zero_and_lessen_the_noise() -> None:
    layer = ac.AttentionLayer(width=8, seq_len=3, input_correlation=0.3, query_std=1.5, key_std=0.8)
    # A name enters by its fourth cumulant: one that is negative and one that is positive.
    for name in ("uniform", "student5"):
        output = OtherWeights(layer, 1, name)
        # One frequency is all that is looked at: the others take nearly all of the time.
        output.__dict__["_frequencies"] = output._frequencies[20:21]
        controls, differences = output._draw(20_000, np.random.default_rng(2))
        used = controls.std(axis=0) > 0
        z = controls[:, used].mean(axis=0) / controls[:, used].std(axis=0) * math.sqrt(len(controls))
        # Eighth powers of Student's weights have no variance, and their means no normal law.
        assert np.abs(z).max() < (8.0 if name == "student5" else 5.3)
        tail = differences[:, 0]
        solved = np.linalg.lstsq(controls[:, used], tail - tail.mean(), rcond=None)[0]
        assert (tail - controls[:, used] @ solved).std() < 0.8 * tail.std()


def test_only_the_fourth_cumulant_enters_the_first_term() -> None:
    layer = ac.AttentionLayer(width=16, seq_len=2, num_heads=1)
    rademacher, student = (
        16 * ac.distance(layer, weights=name, size=16).leading for name in ("rademacher", "student5")
    )
    gaussian = 16 * ac.distance(layer, size=128).leading
    # `properties/test_rates.py` has the sign of what each law adds.
    assert rademacher < gaussian < student
    assert (student - gaussian) / (gaussian - rademacher) == pytest.approx(3.0, rel=0.25)


def test_bad_arguments_are_named() -> None:
    layer = ac.AttentionLayer(width=8)
    for changed, arguments, field in [
        (layer, {"weights": "cauchy"}, "weights"),
        (layer, {"weights": "uniform", "of": "scores"}, "of"),
        (layer, {"weights": "uniform", "width": 4}, "width"),
        (layer.replace(head_dim=2), {"weights": "uniform"}, "head_dim"),
        (layer.replace(norm="rms"), {"weights": "uniform"}, "norm"),
        (layer.replace(num_kv_heads=1), {"weights": "uniform"}, "num_kv_heads"),
        (layer.replace(attention_map="relu"), {"weights": "uniform"}, "attention_map"),
    ]:
        with pytest.raises(ac.InputError, match=field):
            # Arguments of any type: mypy cannot tell which parameter they are for.
            ac.distance(changed, **arguments)  # type: ignore[arg-type]
