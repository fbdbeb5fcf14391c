"""The tangent kernel: one law under two readings, its limit, and the kernels of other limits that it is not.

Properties of the theory rather than of a subject: draws are attncheck's own. With finitely many heads and scores
divided by √n the kernel stays random at infinite width and couples neurons; it does neither with infinitely many heads,
nor with scores divided by n.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from attncheck._lib.streams import seed_sequence
from attncheck.layers.attention import AttentionLayer
from attncheck.pytest_plugin import Note, theory
from attncheck.readings import tangent_kernel
from attncheck.simulators.tangent import TangentDraws
from attncheck.strategies import layers
from attncheck.theory.limits.tangent import TangentLimit

FloatArray = NDArray[np.float64]

_LAYER = AttentionLayer(width=16, seq_len=3, num_heads=2, query_std=1.5)
# Each statement is called wrong with about this chance where it holds.
_LEVEL = 1e-9
_QUANTILE = float(stats.norm.isf(_LEVEL / 2.0))
_FEW, _MANY = 4_000, 100_000
_WIDTHS = (16, 128)
# The next order, 1/n², bends a slope between these widths by less than this.
_CURVATURE = 0.1


def _numbers(draws: TangentDraws) -> FloatArray:
    """Return numbers of each draw that see each part, what is between neurons, and the outputs beside it, (9, size)."""
    last = draws.parts.shape[-1] - 1
    one = [draws.parts[:, part, 0, 0, 0, last] for part in range(4)]
    between = [draws.parts[:, part, 0, -1, last, 0] for part in range(3)]
    trace = np.einsum("niirr->n", draws.kernel)
    return np.stack([*one, *between, trace, np.einsum("nri,nijrq,nqj->n", draws.outputs, draws.kernel, draws.outputs)])


def _distances(one: FloatArray, other: FloatArray) -> FloatArray:
    """Return Kolmogorov and Smirnov's distance of two samples of each number."""
    return np.array([stats.ks_2samp(a, b, method="asymp").statistic for a, b in zip(one, other, strict=True)])


@theory("tangent.readings", layers(max_entries=300, max_width=8))
def test_the_collapsed_kernel_has_the_law_of_literal_gradients(
    layer: AttentionLayer, run_seed: int, note: Note
) -> None:
    k = min(2, layer.width)
    literal = tangent_kernel(layer, _FEW, seed_sequence(run_seed, "tangent", layer.key, 0), "direct", k)
    ours = tangent_kernel(layer, _FEW, seed_sequence(run_seed, "tangent", layer.key, 1), "collapsed", k)
    found = _distances(_numbers(literal), _numbers(ours))
    most = math.sqrt(math.log(2.0 * len(found) / _LEVEL) / _FEW)
    note(distance=found.max(), most=most)
    assert found.max() < most, f"distances {found.round(3)}, at most {most:.3f}"
    # Of another law, whose distance is twice as much, the sample is further away than this.
    assert most < 0.1


def _moments(draws: TangentDraws, mean: float) -> tuple[FloatArray, FloatArray]:
    """Return the means of Θ, of its squared deviation and of the squared kernel between neurons, and their errors."""
    own, between = draws.kernel[:, 0, 0, 0, 0], draws.kernel[:, 0, 1, 0, 0]
    each = np.stack([own, (own - mean) ** 2, between**2])
    return each.mean(axis=1), each.std(axis=1) / math.sqrt(each.shape[1])


@theory("tangent.order")
def test_its_mean_approaches_that_of_infinitely_many_heads_as_one_over_n(run_seed: int, note: Note) -> None:
    law = TangentLimit(_LAYER)
    limit, error = law.mean()[0, 0], law.mean_error()[0, 0]
    found = []
    for n in _WIDTHS:
        draws = tangent_kernel(
            _LAYER.replace(width=n), _MANY, seed_sequence(run_seed, "tangent", "order", n), coordinates=2
        )
        mean, spread = _moments(draws, limit)
        found.append((mean[0] - limit, math.hypot(spread[0], error)))
    (narrow, narrow_error), (wide, wide_error) = found
    reach = math.log(_WIDTHS[1] / _WIDTHS[0])
    order = math.log(wide / narrow) / reach
    half = _CURVATURE + _QUANTILE * math.hypot(narrow_error / narrow, wide_error / wide) / reach
    note(order=order, half_width=half)
    assert abs(order + 1.0) < half, f"order {order:.3f}, half a width {half:.3f}"
    # Order -1/2 would have been told apart.
    assert half < 0.5


@theory("tangent.random")
def test_it_stays_random_and_couples_neurons(run_seed: int, note: Note) -> None:
    """The order 1/n is taken off by two widths. The kernels of infinitely many heads and of 1/n scores do neither."""
    limit = TangentLimit(_LAYER).mean()[0, 0]
    narrow, wide = (
        _moments(
            tangent_kernel(
                _LAYER.replace(width=n), _MANY // 2, seed_sequence(run_seed, "tangent", "random", n), coordinates=2
            ),
            limit,
        )
        for n in (128, 256)
    )
    draws = tangent_kernel(_LAYER, _MANY // 2, seed_sequence(run_seed, "tangent", "random", "limit"), "limit", 2)
    predicted, spread = _moments(draws, limit)
    found = 2.0 * wide[0] - narrow[0]
    error = np.sqrt(4.0 * wide[1] ** 2 + narrow[1] ** 2 + spread**2)
    note(variance=found[1], between=found[2])
    off = np.abs(found - predicted) / error
    assert (off[1:] < _QUANTILE).all(), f"{off.round(1)} standard errors from the limit"
    # A kernel that is constant, or diagonal in the neurons, would have been told apart, but for a chance of 0.1%.
    assert (predicted[1:] > (_QUANTILE + 3.1) * error[1:]).all()


@theory("tangent.divided_by_n")
def test_with_scores_divided_by_n_it_is_constant_and_diagonal_in_the_limit(run_seed: int, note: Note) -> None:
    """What W^Q and W^K add falls as 1/n: that of 1/√n scores does not fall at all."""
    found, widths = [], (64, 512)
    for n in widths:
        layer = _LAYER.replace(width=n, score_scaling="1/n")
        parts = (
            tangent_kernel(layer, _MANY, seed_sequence(run_seed, "tangent", "divided", n))
            .parts[:, :2, 0, 0, 0, 0]
            .sum(axis=1)
        )
        found.append((parts.mean(), parts.std() / math.sqrt(_MANY)))
    (narrow, narrow_error), (wide, wide_error) = found
    reach = math.log(widths[1] / widths[0])
    order = math.log(wide / narrow) / reach
    half = _CURVATURE + _QUANTILE * math.hypot(narrow_error / narrow, wide_error / wide) / reach
    note(order=order, half_width=half)
    assert abs(order + 1.0) < half, f"order {order:.3f}, half a width {half:.3f}"
    assert half < 0.5
