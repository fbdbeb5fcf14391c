"""Normalised inputs, stacks and blocks: one law in two methods, their limits, and wrong norms that are rejected.

The paper's theorem has no norm. For one layer the limit follows from it, as a norm divides by averages over neurons
(Fact 1); for stacks it is a conjecture.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.laws import conditional_covariance
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Draws
from attncheck.layers.inputs import Norm
from attncheck.layers.kernel import input_covariance, input_kernel
from attncheck.layers.norm import normalised_gram
from attncheck.layers.stack import AttentionStack
from attncheck.methods import simulate
from attncheck.strategies import layers
from attncheck.theory.limit import limit
from attncheck.theory.rates.deviation import REPLICATES
from attncheck.theory.rates.distance import distance
from attncheck.theory.rates.gap import ERRORS
from attncheck.theory.stacks.recursion import draw_normals, recur

from .statement import Look, statement

FloatArray = NDArray[np.float64]

_FEW, _MANY = 4_000, 60_000
_RELU = AttentionLayer(width=16, seq_len=3, num_heads=2, activation="relu", query_std=1.5)
_NORMED = st.builds(
    lambda layer, norm: layer.replace(norm=norm),
    layers(max_entries=400, min_width=2, max_width=8),
    st.sampled_from(("rms", "layer")),
)
_BLOCK = AttentionStack(
    layer=AttentionLayer(width=16, seq_len=3, num_heads=2, activation="identity"),
    depth=6,
    residual=True,
    mlp="gelu",
    mlp_ratio=1,
)

# Widths of an order, and a bound on the effect of terms of order 1/n² on it.
_WIDTHS, _CURVATURE = (32, 512), 0.1


def _numbers(draws: Draws) -> FloatArray:
    """Return functionals of inputs, scores, outputs and their dependence, (7, size)."""
    assert draws.inputs is not None
    assert draws.input_gram is not None
    y, p, x = draws.outputs, draws.scores, draws.inputs
    return np.stack(
        [
            y[:, -1, 0],
            (y**2).sum(axis=(1, 2)),
            p[:, 0, -1, 0],
            (p**2).sum(axis=(1, 2, 3)),
            x[:, 0, 0] + y[:, 0, 0],
            draws.input_gram[:, 0, -1],
            (x[:, -1, 0] * p[:, 0, -1, -1]) ** 2,
        ]
    )


@statement(_NORMED)
def test_the_collapsed_reading_has_the_law_of_literal_matrices(
    layer: AttentionLayer, run_seed: int, look: Look
) -> None:
    literal, ours = (
        simulate(layer, _FEW, seed_sequence(run_seed, "norms", layer.key, method), method, min(2, layer.width))
        for method in ("direct", "collapsed")
    )
    for number, (one, other) in enumerate(zip(_numbers(literal), _numbers(ours), strict=True)):
        look.p_value(f"number {number}", float(stats.ks_2samp(one, other, method="asymp").pvalue))
    assert ours.input_gram is not None
    diagonal = np.diagonal(ours.input_gram, axis1=1, axis2=2)
    # A zero or constant vector has no direction: it stays 0.
    assert (np.isclose(diagonal, 1.0, atol=1e-9) | (diagonal == 0.0)).all()


@statement()
def test_under_odd_activations_they_differ_by_one_neuron(run_seed: int, look: Look) -> None:
    """Norms leave directions in n (RMS) or n - 1 dimensions: E Ĝ_12² is exactly 1/n or 1/(n - 1), with limit 0."""
    for n in (4, 16):
        norms: tuple[tuple[Norm, int], ...] = (("rms", n), ("layer", n - 1))
        for norm, free in norms:
            layer = AttentionLayer(width=n, seq_len=2, num_heads=1, norm=norm)
            seed = seed_sequence(run_seed, "norms", "odd", layer.key)
            gram = simulate(layer, _MANY, seed).input_gram
            assert gram is not None
            squares = gram[:, 0, 1] ** 2
            error, other = squares.std() / math.sqrt(_MANY), 2 * n - 1 - free
            look.equals(f"{norm}_{n}", squares.mean(), error, 1.0 / free, neighbours=[1.0 / other])
            assert not input_kernel(layer).matrix[0, 1]


@statement()
def test_each_norm_approaches_its_own_limit_as_one_over_n(run_seed: int, look: Look) -> None:
    """With relu the two limits differ, and the distance of a layer from the other norm's limit does not vanish."""
    for norm, other in (("rms", "layer"), ("layer", "rms")):
        layer = _RELU.replace(norm=norm)
        found = [distance(layer.replace(width=n), size=256, seed=run_seed + n) for n in _WIDTHS]
        values, errors = [each.value for each in found], [each.error / ERRORS for each in found]
        look.order(f"order of {norm}", values, errors, _WIDTHS, allowance=_CURVATURE, df=REPLICATES - 1)
        wide = layer.replace(width=256)
        draws = simulate(wide, _FEW, seed_sequence(run_seed, "norms", "limits", norm))
        variances = conditional_covariance(wide, draws)[:, 0, 0]
        own, neighbour = (limit(each).variance() for each in (layer, layer.replace(norm=other)))
        error = variances.std() / math.sqrt(_FEW)
        # At this width the variance is off by 2/n at most.
        name, allowance = f"variance with {norm}", 2.0 / wide.width
        look.equals(name, variances.mean(), error, own, neighbours=[neighbour], allowance=allowance)


def _positions_by_depth(stack: AttentionStack, run_seed: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return variance and correlation of positions by depth in the conjectured limit, and the error of the latter."""
    rng = stream(run_seed, "norms", stack.key)
    normals = draw_normals(stack, 500, rng)
    inputs = np.broadcast_to(input_covariance(stack.layer), (len(normals), stack.seq_len, stack.seq_len))
    streams = np.stack([inputs, *(step.stream for step in recur(stack, normals))], axis=1)
    white = normalised_gram("rms", streams, np.zeros(streams.shape[:-1]))
    correlations = white[..., ~np.eye(stack.seq_len, dtype=bool)].mean(axis=-1)
    variances = np.diagonal(streams, axis1=-2, axis2=-1).mean(axis=(0, -1))
    return variances, correlations.mean(axis=0), correlations.std(axis=0) / math.sqrt(len(correlations))


@statement()
def test_a_norm_before_and_one_after_are_told_apart(run_seed: int, look: Look) -> None:
    """A norm after the sum keeps the variance and makes positions equal; with one before, the variance grows slowly."""
    before = _BLOCK.replace(layer=_BLOCK.layer.replace(norm="rms"))
    after, without = _BLOCK.replace(post_norm="rms"), _BLOCK
    (one, near, near_error), (other, far, far_error), (none, *_) = (
        _positions_by_depth(stack.replace(depth=12), run_seed) for stack in (before, after, without)
    )
    assert np.allclose(other[1:], 1.0)
    # Normalised inputs have variance 1: attention adds at most 1 per block, and the perceptron less than 1.
    growth = np.diff(one)
    assert (growth > 0.4).all()
    assert (growth < 2.0).all()
    # Without a norm a block doubles the stream, by at least fifty standard errors.
    assert (none[1:] / none[:-1] > 2.0).all()
    look.exceeds("correlation", far[-1] - near[-1], math.hypot(near_error[-1], far_error[-1]), 0.0)
