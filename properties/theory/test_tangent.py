"""The tangent kernel: one law in two methods, its limit, and neighbouring kernels that are rejected.

With finitely many heads and scores divided by √n the kernel stays random at infinite width and couples neurons; with
infinitely many heads, or scores divided by n, it does neither.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from attncheck._lib.streams import seed_sequence
from attncheck.evidence.distances import one_sample_tail
from attncheck.layers.attention import AttentionLayer
from attncheck.methods import tangent_kernel
from attncheck.pytest_plugin import theory
from attncheck.runs.statements import Statement
from attncheck.simulators.tangent import TangentDraws
from attncheck.strategies import layers
from attncheck.theory.limits.tangent import TangentLimit
from attncheck.theory.rates.deviation import REPLICATES
from attncheck.theory.rates.gap import ERRORS
from attncheck.theory.rates.tangent import TangentGap, tangent_gap

FloatArray = NDArray[np.float64]

_LAYER = AttentionLayer(width=16, seq_len=3, num_heads=2, query_std=1.5)
_FEW, _SOME, _MANY = 4_000, 20_000, 60_000
_WIDTHS, _DIVIDED_WIDTHS = (8, 64), (64, 512)
# Bound on the effect of terms of order 1/n² on an order between these widths.
_CURVATURE = 0.1
# The whole law: width, draws, and draws that compute it. The order is visible where scores dominate an entry.
_WIDE, _SAMPLE, _COMPUTED = 256, 20_000, 2**13
_STEEP, _STEEP_WIDTHS = _LAYER.replace(num_heads=4, attention_map="sigmoid"), (256, 1024)


def _numbers(draws: TangentDraws) -> FloatArray:
    """Return functionals of each part, of pairs of neurons, and of the outputs, (9, size)."""
    last = draws.parts.shape[-1] - 1
    one = [draws.parts[:, part, 0, 0, 0, last] for part in range(4)]
    between = [draws.parts[:, part, 0, -1, last, 0] for part in range(3)]
    trace = np.einsum("niirr->n", draws.kernel)
    return np.stack([*one, *between, trace, np.einsum("nri,nijrq,nqj->n", draws.outputs, draws.kernel, draws.outputs)])


@theory("tangent.readings", layers(max_entries=300, max_width=8, parts=["norm"]))
def test_the_collapsed_kernel_has_the_law_of_literal_gradients(
    layer: AttentionLayer, run_seed: int, note: Statement
) -> None:
    k = min(2, layer.width)
    literal = tangent_kernel(layer, _FEW, seed_sequence(run_seed, "tangent", layer.key, 0), "direct", k)
    ours = tangent_kernel(layer, _FEW, seed_sequence(run_seed, "tangent", layer.key, 1), "collapsed", k)
    for number, (one, other) in enumerate(zip(_numbers(literal), _numbers(ours), strict=True)):
        note.p_value(f"number {number}", float(stats.ks_2samp(one, other, method="asymp").pvalue))


def _moments(draws: TangentDraws, mean: float) -> tuple[FloatArray, FloatArray]:
    """Return the means of Θ, of its squared deviation and of the squared kernel between neurons, and their errors."""
    own, between = draws.kernel[:, 0, 0, 0, 0], draws.kernel[:, 0, 1, 0, 0]
    each = np.stack([own, (own - mean) ** 2, between**2])
    return each.mean(axis=1), each.std(axis=1) / math.sqrt(each.shape[1])


@theory("tangent.order")
def test_its_mean_approaches_that_of_infinitely_many_heads_as_one_over_n(run_seed: int, note: Statement) -> None:
    """Measured by the mean of the kernel's diagonal, for two neurons."""
    law = TangentLimit(_LAYER)
    limit, of_limit = float(np.trace(law.mean())), float(np.trace(law.mean_error()))
    values, errors = [], []
    for n in _WIDTHS:
        seed = seed_sequence(run_seed, "tangent", "order", n)
        draws = tangent_kernel(_LAYER.replace(width=n), _MANY, seed, coordinates=2)
        traces = 0.5 * np.einsum("niirr->n", draws.kernel)
        values.append(traces.mean() - limit)
        errors.append(math.hypot(traces.std() / math.sqrt(_MANY), of_limit))
    note.order("order", values, errors, _WIDTHS, allowance=_CURVATURE)


@theory("tangent.random")
def test_it_stays_random_and_couples_neurons(run_seed: int, note: Statement) -> None:
    """Tests moments extrapolated to remove the order 1/n. Kernels of infinitely many heads or 1/n scores do neither."""
    limit = TangentLimit(_LAYER).mean()[0, 0]
    narrow, wide = (
        _moments(
            tangent_kernel(
                _LAYER.replace(width=n), _SOME, seed_sequence(run_seed, "tangent", "random", n), coordinates=2
            ),
            limit,
        )
        for n in (256, 512)
    )
    draws = tangent_kernel(_LAYER, _SOME, seed_sequence(run_seed, "tangent", "random", "limit"), "limit", 2)
    predicted, spread = _moments(draws, limit)
    found = 2.0 * wide[0] - narrow[0]
    error = np.sqrt(4.0 * wide[1] ** 2 + narrow[1] ** 2 + spread**2)
    # Neighbour: a kernel that is constant, or diagonal in the neurons.
    for name, place in (("variance", 1), ("between", 2)):
        # Bound on the order 1/n²: from widths 16, 32 and 64 it is 2% of the limit.
        allowance = 0.05 * predicted[place]
        note.equals(name, found[place], error[place], predicted[place], neighbours=[0.0], allowance=allowance)


@theory("tangent.divided_by_n")
def test_with_scores_divided_by_n_it_is_constant_and_diagonal_in_the_limit(run_seed: int, note: Statement) -> None:
    """The part of W^Q and W^K falls as 1/n; with 1/√n scores it does not."""
    values, errors = [], []
    for n in _DIVIDED_WIDTHS:
        layer, seed = _LAYER.replace(width=n, score_scaling="1/n"), seed_sequence(run_seed, "tangent", "divided", n)
        parts = tangent_kernel(layer, _FEW, seed).parts[:, :2, 0, 0, 0, 0].sum(axis=1)
        values.append(parts.mean())
        errors.append(parts.std() / math.sqrt(_FEW))
    note.order("order", values, errors, _DIVIDED_WIDTHS, neighbours=[-0.5, 0.0], allowance=_CURVATURE)


def _tail(sample: FloatArray, cdf: FloatArray, gap: TangentGap, allowed: FloatArray | float) -> float:
    """Return the p-value of the hypothesis that the law of `sample` is within `allowed` of `cdf` at ``gap.points``."""
    found = (sample[:, None] <= gap.points).mean(axis=0)
    return one_sample_tail(float((np.abs(found - cdf) - allowed).max()), len(sample))


def _whole(layer: AttentionLayer, between: bool, seed: np.random.SeedSequence) -> FloatArray:
    return tangent_kernel(layer, _SAMPLE, seed, coordinates=2).kernel[:, 0, int(between), 0, 0]


@theory("tangent.law", between=(False, True))
def test_its_whole_law_is_the_computed_one_and_as_far_from_the_limit_as_computed(
    between: bool, run_seed: int, note: Statement
) -> None:
    """Rejected: constant and diagonal kernels, 1/n scores, a kernel without W^K's part, and scores a fifth larger."""
    layer = _LAYER.replace(width=_WIDE)
    key = ("tangent", "law", between)
    gap = tangent_gap(
        layer, between=between, size=_COMPUTED, seed=int(seed_sequence(run_seed, *key).generate_state(1)[0])
    )
    (law, of_law), (limit, of_limit) = gap.cdf(), gap.cdf(limit=True)
    within = of_limit + gap.distance + gap.error
    draws = tangent_kernel(layer, _SAMPLE, seed_sequence(run_seed, *key, "sample"), coordinates=2)
    entry = (slice(None), 0, int(between), 0, 0)
    sample = draws.kernel[entry]
    note(distance=gap.distance, error=gap.error)
    note.p_value("own law", _tail(sample, law, gap, of_law))
    note.p_value("as far from the limit", _tail(sample, limit, gap, within))
    constant = np.full(_SAMPLE, 0.0 if between else TangentLimit(layer).mean()[0, 0])
    divided = layer.replace(score_scaling="1/n")
    others = {
        "constant": constant,
        "1/n scores": _whole(divided, between, seed_sequence(run_seed, *key, "divided")),
    }
    # Between neurons the law is known to a hundredth, which rejects near neighbours.
    if between:
        larger = layer.replace(query_std=1.2 * layer.query_std)
        others |= {
            "without W^K": sample - draws.parts[:, 1][entry],
            "larger scores": _whole(larger, between, seed_sequence(run_seed, *key, "larger")),
        }
    for name, other in others.items():
        note.rejects(name, _tail(other, limit, gap, within))


@theory("tangent.law_order")
def test_its_whole_law_approaches_the_limit_as_one_over_n(run_seed: int, note: Statement) -> None:
    seeds = seed_sequence(run_seed, "tangent", "law", "order").generate_state(len(_STEEP_WIDTHS))
    narrow, wide = (
        tangent_gap(_STEEP.replace(width=n), between=True, size=_COMPUTED // 2, seed=int(seed))
        for n, seed in zip(_STEEP_WIDTHS, seeds, strict=True)
    )
    values, errors = (narrow.distance, wide.distance), (narrow.error / ERRORS, wide.error / ERRORS)
    note.order("order", values, errors, _STEEP_WIDTHS, allowance=_CURVATURE, df=REPLICATES - 1)
