"""Regimes: each law at finite width approaches its own prediction at its order, and not its neighbour's.

Laws are computed, or tested on attncheck's own draws. ``attncheck.theory.rates.regimes`` gives the predictions, and
the draws that distinguish them.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

import attncheck as ac
from attncheck._lib.streams import digest
from attncheck.evidence.comparisons import order_between
from attncheck.evidence.families import Uniform
from attncheck.layers.regimes import REGIMES
from attncheck.pytest_plugin import theory
from attncheck.runs.statements import LEVEL, Statement
from attncheck.simulators.weights import draw_with_weights
from attncheck.theory.limits.mixture import ScaleMixture, condense
from attncheck.theory.rates.deviation import REPLICATES
from attncheck.theory.rates.distance import distance
from attncheck.theory.rates.gap import ERRORS
from attncheck.theory.rates.regimes import gaussian, kolmogorov, prediction

FloatArray = NDArray[np.float64]

# Chance that these draws miss a neighbour, at the level of a look.
_MISSED = 1e-5
# Widths of an order, a bound on the effect of the next order on it, and degrees of freedom of errors from repetitions.
_WIDTHS, _CURVATURE, _DF = (512, 8192), 0.05, REPLICATES - 1
# Widths of drawn regimes, the largest number of draws, and the width for stating regimes that need more.
_DRAWN_WIDTH, _LITERAL_WIDTH, _MOST, _STATED_WIDTH = 128, 16, 120_000, 512
_STATED = ("standard", "positions")
# Draws of the conditional variances with tied queries and keys.
_TIED_DRAWS, _TIED_WIDTHS = 40_000, (64, 512)
_MEASURED = tuple(
    name for name in REGIMES if name not in ("many heads", "tied queries and keys", "non-Gaussian weights")
)


def _seed(run_seed: int, *parts: str) -> int:
    return int(digest([run_seed, "regimes", *parts]), 16) % 2**32


def _own_distance(name: str, width: int, seed: int, size: int = 128) -> tuple[float, float]:
    """Return the Kolmogorov distance of the law at a width from its own prediction, and its standard error."""
    regime, position = REGIMES[name], prediction(name).position
    if regime.layer.tied_query_key:
        return _tied_distance(width, seed)
    reference = "infinite width" if regime.layer.head_dim is not None else "limit"
    literal = {"weights": regime.weights, "size": 4096} if regime.weights != "gaussian" else {"size": size}
    found = distance(
        regime.layer,
        position=position,
        width=width,
        seed=seed,
        reference=reference,
        **literal,
    )
    return found.value, found.error / ERRORS


def _tied_distance(width: int, seed: int) -> tuple[float, float]:
    """Return the distance from the prediction of the mixture of normals with drawn variances, and its error."""
    found = prediction("tied queries and keys")
    variances = _tied_variances(found.layer.replace(width=width), seed)
    points = math.sqrt(found.own.mean()) * np.linspace(0.05, 4.0, 80)
    values = special.ndtr(-points / np.sqrt(variances)[:, None])
    difference = values.mean(axis=0) - found.own.upper_tail(points)
    worst = int(np.argmax(np.abs(difference)))
    return float(abs(difference[worst])), float(values[:, worst].std()) / math.sqrt(len(values))


def _tied_variances(layer: ac.AttentionLayer, seed: int) -> FloatArray:
    from attncheck.checks.marginals import conditional_covariance
    from attncheck.methods import simulate_chunks

    chunks = simulate_chunks(layer, _TIED_DRAWS, 4_000, seed=seed)
    return np.concatenate([conditional_covariance(layer, draws)[:, 0, 0] for draws in chunks])


@theory("regimes.order", name=_MEASURED)
def test_each_law_approaches_its_own_prediction_as_one_over_n(name: str, run_seed: int, note: Statement) -> None:
    found = prediction(name)
    values, errors = zip(*(_own_distance(name, n, _seed(run_seed, name, str(n))) for n in _WIDTHS), strict=True)
    assert found.order == -1.0
    note.order("order", values, errors, _WIDTHS, allowance=_CURVATURE, df=_DF)
    # The distance from the neighbour stays at the distance of the predictions.
    note.exceeds("half the separation, beyond", 0.5 * found.separation - values[1], errors[1], 0.0, df=_DF)


@theory("regimes.tied")
def test_tied_scores_make_outputs_approach_their_gaussian_as_one_over_n(run_seed: int, note: Statement) -> None:
    found = (_tied_distance(n, _seed(run_seed, "tied", str(n))) for n in _TIED_WIDTHS)
    values, errors = zip(*found, strict=True)
    note.order("order", values, errors, _TIED_WIDTHS, allowance=2.0 * _CURVATURE)


@theory("regimes.neighbours", name=tuple(name for name in REGIMES if name != "many heads"))
def test_neighbours_are_rejected_by_as_many_draws_as_computed_and_predictions_are_not(
    name: str, run_seed: int, note: Statement
) -> None:
    found, regime = prediction(name), REGIMES[name]
    literal = regime.weights != "gaussian"
    width = _LITERAL_WIDTH if literal else _STATED_WIDTH if name in _STATED else _DRAWN_WIDTH
    value, error = _own_distance(name, width, _seed(run_seed, name, "own"))
    note(own_distance=value)
    if name in _STATED:
        # Not drawn: it would take minutes.
        note.exceeds("half the separation, beyond", 0.5 * found.separation - value, error, 0.0, df=_DF)
        return
    size = found.draws(LEVEL, 1.0 - _MISSED, value + ERRORS * error)
    note(draws=size)
    assert size < _MOST
    seed = _seed(run_seed, name, "draws")
    drawn = _draws(regime.layer.replace(width=width), size, seed, regime.weights)[:, found.position]
    note.p_value("own prediction", _p_value(drawn, found.own, value + ERRORS * error))
    note.rejects("neighbour", _p_value(drawn, found.neighbour, 0.0))


def _draws(layer: ac.AttentionLayer, size: int, seed: int, weights: str) -> FloatArray:
    if weights == "gaussian":
        return ac.simulate(layer, size, seed=seed, method="collapsed", coordinates=1).outputs[:, :, 0]
    return draw_with_weights(layer, size, 1, np.random.default_rng(seed), weights).outputs[:, :, 0]


def _p_value(drawn: FloatArray, law: ScaleMixture, allowed: float) -> float:
    """Return the p-value of the hypothesis that the law of the draws is within the allowed distance of `law`."""
    tail = law.upper_tail(np.abs(drawn))
    return Uniform(allowance=allowed).test(np.where(drawn < 0, tail, 1.0 - tail)).p_value


@theory("regimes.linear_attention", shape=((2, 1), (1, 1), (3, 2), (4, 4)))
def test_linear_attention_is_a_chi_square_mixture(shape: tuple[int, int], note: Statement) -> None:
    seq_len, heads = shape
    layer = ac.AttentionLayer(width=16, seq_len=seq_len, num_heads=heads, attention_map="linear", clip=1e9)
    law, degrees = ac.limit(layer), seq_len * heads
    apart = kolmogorov(law.mixture(0), _chi_square(degrees, heads))
    note(distance=apart, excess_kurtosis=law.excess_kurtosis())
    assert apart < 1e-4
    assert law.excess_kurtosis() == pytest.approx(6.0 / degrees, rel=1e-12)
    # The degrees of freedom of one more score would be rejected.
    assert kolmogorov(law.mixture(0), _chi_square(degrees + 1, heads)) > 3e-4
    # Softmax has another law.
    assert kolmogorov(law.mixture(0), ac.limit(layer.replace(attention_map="softmax")).mixture(0)) > 0.01


def _chi_square(degrees: int, heads: int) -> ScaleMixture:
    """Return the law of √(χ²/H) N by evenly spaced quantiles of χ²."""
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    return condense(stats.chi2.ppf(quantiles, degrees) / heads, np.ones(len(quantiles)))


@theory("regimes.laplace")
def test_linear_attention_of_two_positions_and_one_head_is_laplace(note: Statement) -> None:
    law = ac.limit(ac.AttentionLayer(width=16, seq_len=2, num_heads=1, attention_map="linear", clip=1e9))
    t = np.linspace(0.0, 8.0, 801)
    note(tail=float(law.sf(8.0)))
    assert np.abs(law.sf(t) - 0.5 * np.exp(-t)).max() < 1e-15
    assert np.abs(law.pdf(t[1:]) - 0.5 * np.exp(-t[1:])).max() < 1e-14
    assert law.cdf(-30.0) == pytest.approx(0.5 * math.exp(-30.0), rel=1e-12)
    # Laplace's law with a scale off by 1e-9 would be rejected.
    assert np.abs(law.sf(t) - 0.5 * np.exp(-(1.0 + 1e-9) * t)).max() > 1e-10


@theory("regimes.many_heads")
def test_many_heads_approach_their_gaussian_as_one_over_their_number(note: Statement) -> None:
    found = prediction("many heads")
    # Millions of draws distinguish it from one head: their number is stated, not drawn.
    assert kolmogorov(ac.limit(found.layer).mixture(0), found.own) < 0.2 * found.separation
    layer = ac.AttentionLayer(width=16, seq_len=4, num_heads=1, query_std=2.0)
    target = gaussian(float(ac.infinite_heads_kernel(layer).matrix[0, 0]))
    laws = {heads: ac.limit(layer.replace(num_heads=heads)) for heads in (4, 8, 32, 64)}
    far = {heads: kolmogorov(law.mixture(0), target) for heads, law in laws.items()}
    note(**{f"distance at H={heads}": value for heads, value in far.items()})
    for few, many in ((4, 32), (8, 64)):
        order = order_between((far[few], far[many]), (few, many))
        # There is no 1/√H term, as in a sum of independent skewed terms.
        assert abs(order + 1.0) < 0.1, f"order {order:.3f}"
    kurtosis = [heads * law.excess_kurtosis() for heads, law in laws.items()]
    assert max(kurtosis) < (1.0 + 1e-6) * min(kurtosis)
    # Repeated heads are fewer heads: the distance stops falling.
    assert far[4] > 5.0 * far[32]


@theory("regimes.width_and_heads")
def test_what_the_width_adds_does_not_average_over_heads(note: Statement) -> None:
    """All heads share inputs: a part of order 1/n of the excess kurtosis stays for any number of heads."""
    few, many = (
        ac.finite_width_law(ac.AttentionLayer(width=256, num_heads=heads), size=512).excess_kurtosis()
        - ac.limit(ac.AttentionLayer(width=256, num_heads=heads)).excess_kurtosis()
        for heads in (1, 32)
    )
    note(two_heads=256 * few, many_heads=256 * many)
    assert 256 * few == pytest.approx(35.0, rel=0.2)
    assert 256 * many == pytest.approx(19.0, rel=0.2)
    # Averaging would have left less than half of this at 32 heads.
    assert many > 0.35 * few


@theory("regimes.closed_forms")
def test_predictions_in_closed_form_are_the_limits(note: Statement) -> None:
    for name in ("1/n scaling", "one position"):
        law = prediction(name).own
        assert law.variance() < 1e-9 * law.mean() ** 2
    layer = ac.AttentionLayer(width=16, seq_len=3, score_scaling="1/n", input_correlation=0.5, value_std=1.5, clip=1e9)
    mean = 1.5**2 * (3 + 6 * 0.5) / 9
    for position in range(3):
        assert ac.limit(layer).variance(position) == pytest.approx(mean, rel=1e-9)
    tied = prediction("tied queries and keys")
    assert kolmogorov(tied.own, ac.limit(tied.layer).mixture(tied.position)) < 1e-9
    relu = ac.limit(REGIMES["relu inputs"].layer).kernel.matrix
    note(relu=relu[0, 0], relu_off_diagonal=relu[0, 1])
    assert relu[0, 0] == pytest.approx(0.5, rel=1e-12)
    assert relu[0, 1] == pytest.approx(0.5 / math.pi, rel=1e-9)
    rms = REGIMES["normalised inputs"].layer
    assert ac.limit(rms).kernel.matrix[0, :2] == pytest.approx([1.0, 1.0 / math.pi], rel=1e-9)
    assert ac.limit(rms.replace(norm="layer")).kernel.matrix[0, :2] == pytest.approx([1.0, 0.0], abs=1e-9)
