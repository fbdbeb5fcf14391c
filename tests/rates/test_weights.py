"""Weights of other laws: their characteristic functions, controls, and the law of literal draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck.simulators.weights import WEIGHT_LAWS, draw_with_weights
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
        (layer, {"weights": "uniform", "metric": "kl"}, "metric"),
        (layer, {"weights": "uniform", "width": 4}, "width"),
        (layer.replace(head_dim=2), {"weights": "uniform"}, "head_dim"),
        (layer.replace(num_kv_heads=1), {"weights": "uniform"}, "num_kv_heads"),
        (layer.replace(attention_map="relu"), {"weights": "uniform"}, "attention_map"),
    ]:
        with pytest.raises(ac.InputError, match=field):
            # Arguments of any type: mypy cannot tell which parameter they are for.
            ac.distance(changed, **arguments)  # type: ignore[arg-type]
