"""Regimes: each law at finite width approaches its own limit at its order, and limits have their closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

import attncheck as ac
from attncheck._lib.streams import digest
from attncheck.layers.kernel import input_kernel
from attncheck.layers.regimes import REGIMES
from attncheck.theory.limit import cached_limit
from attncheck.theory.limits.mixture import ScaleMixture, condense
from attncheck.theory.rates.deviation import REPLICATES
from attncheck.theory.rates.distance import distance
from attncheck.theory.rates.gap import ERRORS

from .p_values import order_between
from .statement import Look, statement

FloatArray = NDArray[np.float64]

# Widths of an order, a bound on the effect of the next order on it, and degrees of freedom of errors from repetitions.
_WIDTHS, _CURVATURE, _DF = (512, 8192), 0.05, REPLICATES - 1
# Draws of the conditional variances with tied queries and keys.
_TIED_DRAWS, _TIED_WIDTHS = 40_000, (64, 512)
_MEASURED = tuple(
    name for name in REGIMES if name not in ("many heads", "tied queries and keys", "non-Gaussian weights")
)


def _seed(run_seed: int, *parts: str) -> int:
    return int(digest([run_seed, "regimes", *parts]), 16) % 2**32


def _tied_distance(width: int, seed: int) -> tuple[float, float]:
    """Return the distance from the limit of the mixture of normals with drawn variances, and its error."""
    layer = REGIMES["tied queries and keys"]
    own = cached_limit(layer).mixture(0)
    variances = _tied_variances(layer.replace(width=width), seed)
    points = math.sqrt(own.mean()) * np.linspace(0.05, 4.0, 80)
    values = special.ndtr(-points / np.sqrt(variances)[:, None])
    difference = values.mean(axis=0) - own.upper_tail(points)
    worst = int(np.argmax(np.abs(difference)))
    return float(abs(difference[worst])), float(values[:, worst].std()) / math.sqrt(len(values))


def _tied_variances(layer: ac.AttentionLayer, seed: int) -> FloatArray:
    from attncheck.checks.laws import conditional_covariance
    from attncheck.methods import simulate_chunks

    chunks = simulate_chunks(layer, _TIED_DRAWS, 4_000, seed=seed)
    return np.concatenate([conditional_covariance(layer, draws)[:, 0, 0] for draws in chunks])


@statement(name=_MEASURED)
def test_each_law_approaches_its_own_prediction_as_one_over_n(name: str, run_seed: int, look: Look) -> None:
    layer = REGIMES[name]
    reference = "infinite width" if layer.head_dim is not None else "limit"
    found = [
        distance(
            layer,
            position=layer.seq_len - 1,
            width=n,
            seed=_seed(run_seed, name, str(n)),
            reference=reference,
            size=128,
        )
        for n in _WIDTHS
    ]
    values, errors = [each.value for each in found], [each.error / ERRORS for each in found]
    look.order("order", values, errors, _WIDTHS, allowance=_CURVATURE, df=_DF)


@statement()
def test_tied_scores_make_outputs_approach_their_gaussian_as_one_over_n(run_seed: int, look: Look) -> None:
    found = (_tied_distance(n, _seed(run_seed, "tied", str(n))) for n in _TIED_WIDTHS)
    values, errors = zip(*found, strict=True)
    look.order("order", values, errors, _TIED_WIDTHS, allowance=2.0 * _CURVATURE)


def _kolmogorov(one: ScaleMixture, other: ScaleMixture) -> float:
    """Return ``sup |F - F'|`` of two scale mixtures."""
    points = math.sqrt(max(one.mean(), other.mean())) * np.sinh(np.linspace(1e-4, math.asinh(12.0), 4_000))
    return float(np.abs(one.upper_tail(points) - other.upper_tail(points)).max())


def _gaussian(variance: float) -> ScaleMixture:
    return ScaleMixture(np.array([variance]), np.ones(1), 0.0)


@pytest.mark.parametrize("shape", [(2, 1), (1, 1), (3, 2), (4, 4)])
def test_linear_attention_is_a_chi_square_mixture(shape: tuple[int, int]) -> None:
    seq_len, heads = shape
    layer = ac.AttentionLayer(width=16, seq_len=seq_len, num_heads=heads, attention_map="linear", clip=1e9)
    law, degrees = ac.limit(layer), seq_len * heads
    apart = _kolmogorov(law.mixture(0), _chi_square(degrees, heads))
    assert apart < 1e-4
    assert law.excess_kurtosis() == pytest.approx(6.0 / degrees, rel=1e-12)
    # The degrees of freedom of one more score would be rejected.
    assert _kolmogorov(law.mixture(0), _chi_square(degrees + 1, heads)) > 3e-4
    # Softmax has another law.
    assert _kolmogorov(law.mixture(0), ac.limit(layer.replace(attention_map="softmax")).mixture(0)) > 0.01


def _chi_square(degrees: int, heads: int) -> ScaleMixture:
    """Return the law of √(χ²/H) N by evenly spaced quantiles of χ²."""
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    return condense(stats.chi2.ppf(quantiles, degrees) / heads, np.ones(len(quantiles)))


def test_linear_attention_of_two_positions_and_one_head_is_laplace() -> None:
    law = ac.limit(ac.AttentionLayer(width=16, seq_len=2, num_heads=1, attention_map="linear", clip=1e9))
    t = np.linspace(0.0, 8.0, 801)
    assert np.abs(law.sf(t) - 0.5 * np.exp(-t)).max() < 1e-15
    assert np.abs(law.pdf(t[1:]) - 0.5 * np.exp(-t[1:])).max() < 1e-14
    assert law.cdf(-30.0) == pytest.approx(0.5 * math.exp(-30.0), rel=1e-12)
    # Laplace's law with a scale off by 1e-9 would be rejected.
    assert np.abs(law.sf(t) - 0.5 * np.exp(-(1.0 + 1e-9) * t)).max() > 1e-10


def test_many_heads_approach_their_gaussian_as_one_over_their_number() -> None:
    wide = REGIMES["many heads"]
    own, one_head = _gaussian(float(ac.infinite_heads_kernel(wide).matrix[0, 0])), wide.replace(num_heads=1)
    # Millions of draws distinguish it from one head.
    near = _kolmogorov(ac.limit(wide).mixture(0), own)
    assert near < 0.2 * _kolmogorov(ac.limit(one_head).mixture(0), own)
    layer = ac.AttentionLayer(width=16, seq_len=4, num_heads=1, query_std=2.0)
    target = _gaussian(float(ac.infinite_heads_kernel(layer).matrix[0, 0]))
    laws = {heads: ac.limit(layer.replace(num_heads=heads)) for heads in (4, 8, 32, 64)}
    far = {heads: _kolmogorov(law.mixture(0), target) for heads, law in laws.items()}
    for few, many in ((4, 32), (8, 64)):
        order = order_between((far[few], far[many]), (few, many))
        # There is no 1/√H term, as in a sum of independent skewed terms.
        assert abs(order + 1.0) < 0.1, f"order {order:.3f}"
    kurtosis = [heads * law.excess_kurtosis() for heads, law in laws.items()]
    assert max(kurtosis) < (1.0 + 1e-6) * min(kurtosis)
    # Repeated heads are fewer heads: the distance stops falling.
    assert far[4] > 5.0 * far[32]


def test_what_the_width_adds_does_not_average_over_heads() -> None:
    """All heads share inputs: a part of order 1/n of the excess kurtosis stays for any number of heads."""
    few, many = (
        ac.finite_width_law(ac.AttentionLayer(width=256, num_heads=heads), size=512).excess_kurtosis()
        - ac.limit(ac.AttentionLayer(width=256, num_heads=heads)).excess_kurtosis()
        for heads in (1, 32)
    )
    assert 256 * few == pytest.approx(35.0, rel=0.2)
    assert 256 * many == pytest.approx(19.0, rel=0.2)
    # Averaging would have left less than half of this at 32 heads.
    assert many > 0.35 * few


def test_predictions_in_closed_form_are_the_limits() -> None:
    for name in ("1/n scaling", "one position"):
        law = ac.limit(REGIMES[name]).mixture(0)
        assert law.variance() < 1e-9 * law.mean() ** 2
    layer = ac.AttentionLayer(width=16, seq_len=3, score_scaling="1/n", input_correlation=0.5, value_std=1.5, clip=1e9)
    mean = 1.5**2 * (3 + 6 * 0.5) / 9
    for position in range(3):
        assert ac.limit(layer).variance(position) == pytest.approx(mean, rel=1e-9)
    tied = REGIMES["tied queries and keys"]
    kernel = input_kernel(tied).matrix
    weights = np.exp(tied.query_std * tied.key_std * kernel[0])
    weights /= weights.sum()
    own = _gaussian(float(weights @ kernel @ weights))
    assert _kolmogorov(own, ac.limit(tied).mixture(0)) < 1e-9
    relu = ac.limit(REGIMES["relu inputs"]).kernel.matrix
    assert relu[0, 0] == pytest.approx(0.5, rel=1e-12)
    assert relu[0, 1] == pytest.approx(0.5 / math.pi, rel=1e-9)
    rms = REGIMES["normalised inputs"]
    assert ac.limit(rms).kernel.matrix[0, :2] == pytest.approx([1.0, 1.0 / math.pi], rel=1e-9)
    assert ac.limit(rms.replace(norm="layer")).kernel.matrix[0, :2] == pytest.approx([1.0, 0.0], abs=1e-9)
