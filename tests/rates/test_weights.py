"""Other weight laws: characteristic functions, controls, and the law of literal draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.layers.kernel import input_covariance
from attncheck.simulators.weights import WEIGHT_LAWS, WeightLaws, draw_with_weights
from attncheck.theory.rates.distance import of_sum
from attncheck.theory.rates.entries import ENTRY_LAWS
from attncheck.theory.rates.gap import Gap
from attncheck.theory.rates.law import gap_of
from attncheck.theory.rates.marginal import OutputEntry, ScoreEntry
from attncheck.theory.rates.weights import SumEntry, kept_mde

_NAMES = ("uniform", "rademacher", "truncated normal", "student5")


@pytest.mark.parametrize("name", _NAMES)
def test_characteristic_functions_are_those_of_the_entries(name: str) -> None:
    function, fourth = ENTRY_LAWS[name]
    entries = WEIGHT_LAWS[name](np.random.default_rng(0), (200_000,))
    for x in (0.1, 0.7, 2.0, 5.0):
        # Beyond with a chance of 1e-6.
        assert abs(np.cos(x * entries).mean() - function(np.array(x))) < 4.9 / math.sqrt(2 * len(entries)) + 1e-6
    x = 0.05
    third = float(np.log(function(np.array(x))) + 0.5 * x**2) * 24 / x**4
    if name != "student5":  # infinite fifth moment of |x|: the expansion has a term |x|^5
        assert third == pytest.approx(fourth, rel=0.01)


def _entry(layer: ac.AttentionLayer, weights: str | dict[str, str], of: str = "outputs") -> SumEntry:
    last = layer.seq_len - 1
    marginal = OutputEntry(layer, last) if of == "outputs" else ScoreEntry(layer, last, 0)
    return SumEntry(marginal, WeightLaws.of(weights))


def _off(gap: Gap, drawn: FloatArray) -> float:
    """Return the distance of unsigned draws from a law, in P(|y| > t), at every hundredth non-zero draw.

    Between two of them P changes by 0.005 for 20,000 draws, which misses no smooth difference.
    """
    ordered = np.sort(np.abs(drawn))
    points = ordered[::100][ordered[::100] > 0]
    tail = 2.0 * (gap.limit.upper_tail(points) + gap.deviation.upper_tail(points).mean(axis=0))
    return float(np.abs(tail - 1.0 + np.searchsorted(ordered, points, "right") / len(ordered)).max())


_FEW = ac.AttentionLayer(width=3, num_heads=1, seq_len=2)


# Narrow widths, where weight laws matter most: the same draws reject that of normal weights.
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("layer", "weights", "of"),
    [
        (_FEW.replace(width=2, attention_map="relu", query_std=1.5, value_std=0.7), "student5", "outputs"),
        (_FEW.replace(seq_len=1, attention_map="linear", output_std=2.0), "student5", "outputs"),
        (_FEW.replace(num_heads=2, num_kv_heads=1, key_std=0.8), "student5", "outputs"),
        (_FEW.replace(width=2, seq_len=3, position_std=1.0, mask="causal", input_std=1.5), "uniform", "outputs"),
        (_FEW.replace(norm="layer", activation="relu"), "student5", "outputs"),
        (_FEW.replace(norm="rms", input_correlation=0.5), {"output": "rademacher"}, "outputs"),
        (_FEW.replace(width=16, head_dim=2, attention_map="sigmoid"), {"output": "rademacher"}, "outputs"),
        (_FEW.replace(width=2, position_std=0.5), "student5", "scores"),
        (_FEW.replace(width=2, norm="rms", score_scaling="1/n"), {"query": "uniform", "key": "uniform"}, "scores"),
    ],
    ids=lambda value: value.describe() if isinstance(value, ac.AttentionLayer) else str(value),
)
def test_it_is_the_law_of_literal_draws(layer: ac.AttentionLayer, weights: str | dict[str, str], of: str) -> None:
    entry, size, last = _entry(layer, weights, of), 40_000, layer.seq_len - 1
    gap, normal = kept_mde(entry, 2048, 0), gap_of(entry.marginal, layer, 1024, 0, False)
    draws = draw_with_weights(layer, size, 1, np.random.default_rng(1), weights)
    drawn = draws.outputs[:, last, 0] if of == "outputs" else draws.scores[:, 0, last, 0]
    # Errors are of P(y > t), half of those of P(|y| > t).
    told = 2.0 * sum(each.distance("ks")[1] for each in (gap, normal))
    # Beyond this the law is rejected at 1e-6.
    assert stats.kstwo.sf(max(0.0, _off(gap, drawn) - told), size) > 1e-6
    assert stats.kstwo.sf(max(0.0, _off(normal, drawn) - told), size) < 1e-6


def test_it_is_the_law_of_literal_draws_of_one_neuron() -> None:
    """At widths where normal weights are too coarse a neighbour: the limit is rejected."""
    layer, size = ac.AttentionLayer(width=1, num_heads=2, seq_len=2), 20_000
    gap = kept_mde(_entry(layer, "uniform"), 1024, 0)
    drawn = draw_with_weights(layer, size, 1, np.random.default_rng(1), "uniform").outputs[:, 1, 0]
    grid = np.linspace(-20.0, 20.0, 4001)
    at = ac.limit(layer).cdf(grid)
    told, limit = 2.0 * gap.distance("ks")[1], stats.ks_1samp(drawn, lambda t: np.interp(t, grid, at))
    assert stats.kstwo.sf(max(0.0, _off(gap, drawn) - told), size) > 1e-6
    assert stats.kstwo.sf(limit.statistic, size) < 1e-6


@pytest.mark.sampled
@pytest.mark.parametrize("name", _NAMES)
def test_laws_at_a_width_are_those_of_literal_draws(name: str) -> None:
    layer, size = ac.AttentionLayer(width=16, seq_len=3, num_heads=1, mask="causal", query_std=1.5), 20_000
    # The law's standard error is at most an eighth of the draws' noise; heavy tails need twice as many for an error
    # below 0.01.
    law = ac.finite_width_law(layer, size=2**13 if name == "student5" else 2**12, weights=name)
    drawn = law.sample(size, seed=1)[:, 2, 0]
    for t in (-1.5, 0.2, 0.8, 2.0):
        chance = float(law.sf(t, 2))
        spread = math.hypot(math.sqrt(chance * (1 - chance) / size), float(law.cdf_error(t, 2)) / 4)
        assert float(law.cdf_error(t, 2)) < 0.01
        # Exceeded with a chance of 1e-6; errors of eight repetitions, at most half of the spread.
        assert abs((drawn > t).mean() - chance) < 4.9 * spread
    assert abs(drawn.var() - law.variance(2)) < 4.9 * (drawn**2).std() / math.sqrt(size) + law.variance_error(2)
    h = 1e-4
    slope = (law.cdf(0.3 + h, 2) - law.cdf(0.3 - h, 2)) / (2 * h)
    assert law.pdf(0.3, 2) == pytest.approx(float(slope), rel=1e-4)
    assert law.cdf(law.ppf(0.9, 2), 2) == pytest.approx(0.9, abs=1e-9)
    assert law.cdf_error(1e3, 2) == math.inf
    assert f"with weights {name}" in str(law)
    assert law.limit.cdf(0.5, 2) == ac.limit(layer).cdf(0.5, 2)


def test_kurtosis_has_the_fourth_cumulants_of_the_output_weights() -> None:
    layer = ac.AttentionLayer(width=16, seq_len=2, num_heads=1)
    # For uniform weights the computation is as exact as the draws; signs differ clearly from normal weights.
    sizes = {"uniform": 2**12, "rademacher": 2**11, "student5": 64}
    laws = {name: ac.finite_width_law(layer, size=size, weights=name) for name, size in sizes.items()}
    found = {name: (law.excess_kurtosis(), law.excess_kurtosis_error()) for name, law in laws.items()}
    assert found.pop("student5")[1] == math.inf
    gaussian = ac.finite_width_law(layer, size=2048).excess_kurtosis()
    drawn = laws["uniform"].sample(20_000)[..., 0][:, 0]
    noise = (drawn**4).std() / drawn.var() ** 2 / math.sqrt(len(drawn))
    assert abs((drawn**4).mean() / drawn.var() ** 2 - 3 - found["uniform"][0]) < 6 * noise + found["uniform"][1]
    assert found["rademacher"][0] + found["rademacher"][1] < gaussian


# The method with normal weights, whose law independent mixtures also give. An unnamed normal entry uses
# characteristic functions.
def test_with_normal_weights_it_is_what_mixtures_say(monkeypatch: pytest.MonkeyPatch) -> None:
    normal = ENTRY_LAWS["gaussian"][0]
    monkeypatch.setitem(ENTRY_LAWS, "uniform", (lambda x: normal(x), 1e-300))
    monkeypatch.setitem(WEIGHT_LAWS, "uniform", WEIGHT_LAWS["gaussian"])
    kept_mde.cache_clear()
    layer = ac.AttentionLayer(width=8, seq_len=2, num_heads=1)
    entry = _entry(layer, "uniform")
    for metric in ("ks", "w1", "tv", "kl"):
        expected, found = ac.distance(layer, metric, size=2048, position=1), of_sum(entry, metric, 2**12, 0)
        assert abs(expected.value - found.value) < 1.75 * (expected.error + found.error)
        assert found.error < 0.3 * found.value
    gap, mixture = kept_mde(entry, 2**12, 0), ac.finite_width_law(layer, size=2048)
    variance = gap.limit.mean() + gap.deviation.moment(1)
    spread = 4 * variance.std(ddof=1) / math.sqrt(8)
    assert abs(variance.mean() - mixture.variance(1)) < 1.75 * (spread + mixture.variance_error(1))
    kept_mde.cache_clear()


def test_errors_of_the_divergence_are_told_and_hold() -> None:
    """Four standard errors of eight repetitions: 99.5% of Student's law; one of twelve exceeds them with 6%."""
    layer = ac.AttentionLayer(width=8, seq_len=2, num_heads=1)
    best = ac.distance(layer, "kl", weights="uniform", size=2**14, seed=99)
    found = [ac.distance(layer, "kl", weights="uniform", size=512, seed=seed) for seed in range(12)]
    off = [abs(each.value - best.value) / math.hypot(each.error, best.error) for each in found]
    # Two or more do with a chance of 0.2%.
    assert sum(each > 1.0 for each in off) < 2
    assert best.error < 0.1 * best.value
    # Half of the errors is too small: some exceed 2 standard errors.
    assert max(off) > 0.25


def test_the_divergence_falls_with_the_width_and_follows_the_fourth_cumulant() -> None:
    layer = ac.AttentionLayer(width=64, seq_len=2, num_heads=1)
    signs, tails = (ac.distance(layer, "kl", weights=name, size=2**10) for name in ("rademacher", "student5"))
    gaussian = ac.distance(layer, "kl", size=512)
    assert signs.value + signs.error < gaussian.value < tails.value - tails.error
    wide = ac.distance(layer, "kl", weights="student5", size=2**9, width=24)
    assert wide.value > 3.0 * tails.value


def test_controls_have_mean_zero_and_lessen_the_noise() -> None:
    layer = ac.AttentionLayer(width=8, seq_len=3, input_correlation=0.3, query_std=1.5, key_std=0.8, num_kv_heads=1)
    shapes = (layer, layer.replace(norm="rms", num_kv_heads=None), layer.replace(head_dim=3, position_std=1.0))
    # Named laws enter by the fourth cumulant: one negative and one positive.
    for changed, name, of in [*((each, "uniform", "outputs") for each in shapes), (layer, "uniform", "scores")]:
        ratios, controls, sizes = _entry(changed, name, of).draw(20_000, np.random.default_rng(2))
        weighted = np.column_stack([ratios - 1.0, ratios[:, None] * controls])
        used = weighted.std(axis=0) > 1e-9
        z = weighted[:, used].mean(axis=0) / weighted[:, used].std(axis=0) * math.sqrt(len(weighted))
        assert np.abs(z).max() < 5.3
        tail = ratios * (np.exp(-0.5 * (sizes**2).sum(axis=2) / 0.5)).mean(axis=1)
        solved = np.linalg.lstsq(weighted[:, used], tail - tail.mean(), rcond=None)[0]
        assert (tail - weighted[:, used] @ solved).std() < 0.8 * tail.std()


def test_only_the_fourth_cumulant_enters_the_first_term() -> None:
    layer = ac.AttentionLayer(width=16, seq_len=2, num_heads=1)
    rademacher, student = (
        16 * ac.distance(layer, weights=name, size=16).leading for name in ("rademacher", "student5")
    )
    gaussian = 16 * ac.distance(layer, size=128).leading
    # `properties/theory/test_rates.py` tests the sign of each law's effect.
    assert rademacher < gaussian < student
    assert (student - gaussian) / (gaussian - rademacher) == pytest.approx(3.0, rel=0.25)


# Each matrix's law alone: order 1/n², except for W^O; normal weights are rejected.
def test_laws_of_single_matrices_add_less_than_that_of_the_output_matrix() -> None:
    layer = ac.AttentionLayer(width=16, seq_len=2, num_heads=1)
    gaussian = ac.distance(layer, "w1", size=2048)
    found = {
        name: ac.distance(layer, "w1", weights={name: "student5"}, size=2**12) for name in ("query", "value", "output")
    }
    added = {name: abs(each.value - gaussian.value) for name, each in found.items()}
    assert added["output"] > found["output"].error + gaussian.error
    for name in ("query", "value"):
        assert added[name] < 0.5 * added["output"] + found[name].error
        assert found[name].leading == pytest.approx(gaussian.leading, rel=0.05)


_CLIPPED = ac.AttentionLayer(width=16, seq_len=2, num_heads=1, clip=1.0)


@pytest.mark.parametrize("of", ["outputs", "scores"])
def test_the_law_of_the_input_matrices_enters_the_first_term_under_a_nonlinearity(of: str) -> None:
    """By the mean conditional variance of literal draws."""
    signs, normal = (_entry(_CLIPPED, {"inputs": name}, of) for name in ("rademacher", "gaussian"))
    drawn = kept_mde(signs, 2**15, 0).deviation.moment(1)
    first, without = (
        float((each.expansion @ each.cells.variances).mean())
        for each in (
            entry.leading(gap_of(entry.marginal, _CLIPPED, 64, 0, False).deviation, 0) for entry in (signs, normal)
        )
    )
    # Student's law of eight repetitions, exceeded with a chance of 1e-6; and the order 1/n² with a factor of 3.
    noise = float(stats.t.isf(5e-7, 7)) * drawn.std(ddof=1) / math.sqrt(8)
    allowed = noise + 3.0 / _CLIPPED.width * abs(first - without)
    assert abs(drawn.mean() - first) < allowed
    assert abs(drawn.mean() - without) > allowed


@pytest.mark.parametrize("changes", [{"clip": 1.0}, {"activation": "tanh"}, {"activation": "relu", "norm": "layer"}])
def test_signs_times_normals_are_normal(changes: dict[str, Any]) -> None:
    """Likewise a coordinate of W^i h at every width: the signs' effect on E φ² and E φ cancels that of h's length."""
    layer = ac.AttentionLayer(width=64, seq_len=2, num_heads=1, input_std=1.7, **changes)
    law = OutputEntry(layer, 0).fluctuations(infinite=False)
    of_length, both = law.mean.gram[0], law.mean.gram[0] + law.mean_of_law(-2.0).gram[0]
    assert abs(both[0, 0]) < 1.0 / layer.width**2
    if layer.activation != "relu":
        assert abs(of_length[0, 0]) > 0.1 / layer.width
        return
    # The last row is for means. Products of two tokens vary with the length: (∂E φ)² with a variance of 2/n.
    assert abs(both[0, -1]) < 1.0 / layer.width**2 < abs(of_length[0, -1])
    slope = layer.input_std / (2.0 * math.sqrt(2.0 * math.pi))
    assert both[0, 1] == pytest.approx(2.0 / layer.width * slope**2, rel=0.01)


def test_a_fourth_cumulant_adds_a_fourth_derivative() -> None:
    """Shared and own matrices, with positions: by polynomials in tanh, on a grid."""
    layer = ac.AttentionLayer(
        width=32, seq_len=2, num_heads=1, activation="tanh", input_correlation=0.3, input_std=1.2, position_std=0.5
    )
    t = np.polynomial.Polynomial([0.0, 1.0])
    derivatives, of_square = [t], t**2
    for _ in range(4):
        derivatives.append(derivatives[-1].deriv() * (1.0 - t**2))
        of_square = of_square.deriv() * (1.0 - t**2)
    grid = np.linspace(-9.0, 9.0, 361)
    masses = np.exp(-0.5 * (grid[:, None] ** 2 + grid**2))
    root = np.linalg.cholesky(input_covariance(layer.inputs))
    first, second = np.tanh(root[0, 0] * grid[:, None]), np.tanh(root[1, 0] * grid[:, None] + root[1, 1] * grid)
    shared = sum(math.comb(4, k) * derivatives[k](first) * derivatives[4 - k](second) for k in range(5))
    own = derivatives[4](first) * t(second) + t(first) * derivatives[4](second)
    unlike, alone = 0.3**2 * shared + 0.7**2 * own, (0.3**2 + 0.7**2) * of_square(first)
    # 3κ/(24 n), κ = 6 for Student's law.
    scale = 1.2**4 * 3.0 * 6.0 / (24.0 * layer.width)
    off, on = (scale * (masses * each).sum() / masses.sum() for each in (unlike, alone))
    found = OutputEntry(layer, 0).fluctuations(infinite=False).mean_of_law(6.0).gram[0]
    assert found == pytest.approx(np.array([[on, off], [off, on]]), rel=1e-3)


def test_numbers_that_vanish_are_told_from_zero_and_on_their_scale() -> None:
    layer = ac.AttentionLayer(width=8, seq_len=2, num_heads=1, attention_map="linear", score_scaling="1/n")
    from_zero = ac.distance(layer, "w1", weights="uniform", size=2**11)
    scaled = ac.distance(layer, "w1", weights="uniform", size=2**11, reference="scaled limit")
    law = ac.finite_width_law(layer, size=2**11, weights="uniform")
    drawn = law.sample(20_000, seed=3)[:, 0, 0]
    noise = np.abs(drawn).std() / math.sqrt(len(drawn))
    assert abs(np.abs(drawn).mean() - from_zero.value) < from_zero.error + 4.9 * noise
    assert from_zero.value > 2.0 * scaled.value * layer.score_factor
    assert ac.distance(layer, "kl", weights="uniform", size=2**11).value == math.inf


def test_bad_arguments_are_named() -> None:
    layer = ac.AttentionLayer(width=8)
    low_rank = layer.replace(head_dim=2)
    for changed, arguments, field in [
        (layer, {"weights": "cauchy"}, "weights"),
        (layer, {"weights": {"output": "cauchy"}}, "weights"),
        (layer, {"weights": {"bias": "uniform"}}, "weights"),
        (layer, {"weights": {"query_bias": ("uniform", 1.0)}}, "weights"),
        (low_rank, {"weights": "uniform", "width": math.inf}, "width"),
        (low_rank, {"weights": "uniform", "reference": "infinite width"}, "reference"),
        # Sums of few signs are often 0.
        (layer, {"weights": "rademacher", "width": 2, "size": 512}, "width=2: with weights rademacher gives a law"),
    ]:
        with pytest.raises(ac.InputError, match=field):
            # mypy cannot match arguments of any type to parameters.
            ac.distance(changed, **arguments)  # type: ignore[arg-type]
