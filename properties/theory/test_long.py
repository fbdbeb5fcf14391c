"""Long sequences: attention's distance from uniform, and neighbouring limits that are rejected.

First the width goes to infinity, then the length. Formulas are tested against draws at one length, and against closed
forms at great lengths.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.streams import seed_sequence
from attncheck.evidence.comparisons import order_between
from attncheck.layers.attention import AttentionLayer
from attncheck.methods import Method, simulate
from attncheck.pytest_plugin import theory
from attncheck.runs.statements import Statement
from attncheck.theory.limits.long import condensed, distance_from_uniform, inverse_participation

FloatArray = NDArray[np.float64]

_DRAWS = 800
# Bound on the order 1/n² at these widths.
_WIDTHS, _NEXT = (64, 128), 0.02
_LAYER = AttentionLayer(width=64, seq_len=16, num_heads=2)


def _distances(layer: AttentionLayer, size: int, seed: np.random.SeedSequence, method: Method) -> FloatArray:
    """Return ‖A - 11ᵀ/s‖²_F of each draw, averaged over heads."""
    weights = np.exp(simulate(layer, size, seed, method).scores)
    shares = np.einsum("nhij,nhij->nhi", weights, weights) / weights.sum(axis=-1) ** 2
    return np.asarray(shares.sum(axis=-1).mean(axis=-1) - 1.0)


def _mean(
    layer: AttentionLayer, run_seed: int, name: str, size: int = _DRAWS, method: Method = "collapsed"
) -> tuple[float, float]:
    found = _distances(layer, size, seed_sequence(run_seed, "long", name, layer.key), method)
    return float(found.mean()), float(found.std() / math.sqrt(size))


def _off_by_one_over_n(
    layer: AttentionLayer, run_seed: int, name: str, widths: tuple[int, int] = _WIDTHS
) -> tuple[float, float]:
    """Return the mean and its standard error, extrapolated from a width and its double to remove the order 1/n."""
    (narrow, narrow_error), (wide, wide_error) = (_mean(layer.replace(width=n), run_seed, name) for n in widths)
    return 2.0 * wide - narrow, math.hypot(2.0 * wide_error, narrow_error)


@theory("long.uniform")
def test_attention_is_uniform_but_for_a_part_that_no_length_removes(run_seed: int, note: Statement) -> None:
    """E‖A - 11ᵀ/s‖² = q - 1 - q (2q - 1)(q - 1)/s + …, q = e^{σ²}, from the moments of Σ e^p and Σ e^{2p}."""
    expected = distance_from_uniform(_LAYER)
    found, error = _off_by_one_over_n(_LAYER, run_seed, "uniform")
    # Neighbours: uniform attention, and the infinite-length limit.
    note.equals("distance", found, error, expected, neighbours=[0.0, math.e - 1.0], allowance=_NEXT)
    for std in (0.5, 1.0, 1.5):
        q = math.exp(std**2)
        lengths = (10**6, 10**8)
        gaps = [q - s * inverse_participation(s, std) for s in lengths]
        order = order_between(gaps, lengths)
        note(**{f"order_{std}": order})
        assert abs(order + 1.0) < 0.001
        assert abs(1e8 * gaps[1] / (q * (2.0 * q - 1.0) * (q - 1.0)) - 1.0) < 1e-4


@theory("long.heads")
def test_heads_of_a_fixed_size_have_another_limit(run_seed: int, note: Statement) -> None:
    """Scores given a query have the variance σ²χ²_ν/ν instead of σ²; Gaussian scores are the neighbour."""
    layer = _LAYER.replace(seq_len=64, num_heads=4, head_dim=2, norm="rms", query_std=0.8)
    expected, gaussian = (distance_from_uniform(each) for each in (layer, layer.replace(head_dim=None)))
    found, error = _off_by_one_over_n(layer, run_seed, "heads")
    note.equals("distance", found, error, expected, neighbours=[gaussian], allowance=_NEXT)

    def at(nu: int, exponent: int) -> float:
        return distance_from_uniform(AttentionLayer(width=64, seq_len=10**exponent, head_dim=nu))

    # E q^k for q = e^{χ²_ν/ν}: the distance as above, averaged over χ².
    one, two, three = ((1.0 - 2.0 * k / 32) ** -16.0 for k in (1, 2, 3))
    gaps = [one - 1.0 - at(32, exponent) for exponent in (5, 6)]
    assert abs(order_between(gaps, (1.0, 10.0)) + 1.0) < 0.001
    assert abs(1e6 * gaps[1] / (2.0 * three - 3.0 * two + one) - 1.0) < 1e-3
    assert one - math.e > 0.05
    # Two neurons have no limit: the effect of tenfold length does not fall.
    added = np.diff([at(2, exponent) for exponent in (3, 4, 5, 6)])
    note(added=added[-1])
    assert (np.diff(added) > 0.0).all()
    assert added[0] > 1.0


@theory("long.tied")
def test_tied_queries_and_keys_are_not_uniform(run_seed: int, note: Statement) -> None:
    """With scores divided by n, positions attend to themselves if W_Q = W_K; with two matrices to all alike."""
    own = _LAYER.replace(score_scaling="1/n")
    tied = own.replace(tied_query_key=True)
    expected = distance_from_uniform(tied)
    found, error = _off_by_one_over_n(tied, run_seed, "tied", (128, 256))
    neighbours = [0.0, distance_from_uniform(_LAYER)]
    note.equals("distance", found, error, expected, neighbours=neighbours, allowance=0.25 * _NEXT)
    assert distance_from_uniform(own) == 0.0
    widths = (64, 512)
    values, errors = zip(*(_mean(own.replace(width=n), run_seed, "own") for n in widths), strict=True)
    note.order("order", values, errors, widths, neighbours=[-0.5, 0.0], allowance=0.1)


@theory("long.condensation")
def test_attention_condenses_beyond_the_root_of_two(run_seed: int, note: Statement) -> None:
    """σ² = b² ln s. Neighbours: a transition at b = 1, 1 - 1/b, and the typical share in place of the mean."""

    def share(b: float, exponent: int) -> float:
        return inverse_participation(10**exponent, b * math.sqrt(math.log(10.0**exponent)))

    s = 128
    for b in (1.0, 2.0):
        layer = AttentionLayer(width=8, seq_len=s, num_heads=1, query_std=b * math.sqrt(math.log(s)))
        distance, error = _mean(layer, run_seed, "limit", 200, "limit")
        found, error = (distance + 1.0) / s, error / s
        expected = inverse_participation(s, layer.query_std)
        # The limit is far off at this length.
        note.equals(f"share_{b}", found, error, expected, neighbours=[condensed(b)])
    # Below: a power of s. Rare rows dominate the mean; the typical share falls as s^-(√2 - b)².
    order = math.log10(share(1.0, 48) / share(1.0, 24)) / 24.0
    assert abs(order + 1.0 / 8.0) < 0.01
    assert (math.sqrt(2.0) - 1.0) ** 2 - 1.0 / 8.0 > 0.04
    assert share(1.2, 48) < 0.01 < 1.0 - 1.0 / 1.2
    near, far = (share(2.0, exponent) for exponent in (12, 24))
    gap = far - condensed(2.0)
    note(order=order, gap=gap)
    assert 0.5 < gap / (near - condensed(2.0)) < 0.6
    assert abs(far - (1.0 - 1.0 / 2.0)) > abs(near - (1.0 - 1.0 / 2.0)) > 0.1
