"""Variance and correlation of positions by depth, and the rate at which finite width approaches them.

Growing variance signals explosion; correlations near 1 signal rank collapse.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_draws, check_whole, refuse
from attncheck._lib.streams import stream
from attncheck.layers.norm import normalised_change, normalised_gram
from attncheck.layers.stack import AttentionStack
from attncheck.paper.stacks.distance import PARTS, check_drawn, check_stack, controlled_parts
from attncheck.paper.stacks.rate import StackRate, check_widths, fit
from attncheck.paper.stacks.walk import WalkResult
from attncheck.theory.stacks.recursion import draw_normals, limit_entries, recur

# Array entries per block.
_BLOCK = 2**21


@dataclasses.dataclass(frozen=True, eq=False)
class PositionsByDepth:
    """Means over draws of the conjectured limit, for each stream from the first to the output.

    Attributes
    ----------
    variance, variance_error : ndarray, shape (depth + 1,)
        Mean variance over positions, and its standard error.
    correlation, correlation_error : ndarray, shape (depth + 1,)
        Mean correlation over pairs, and its standard error.
    """

    variance: FloatArray
    variance_error: FloatArray
    correlation: FloatArray
    correlation_error: FloatArray


def positions_by_depth(stack: AttentionStack, size: int = 1000, seed: int = 0) -> PositionsByDepth:
    """Return variance and correlation of positions by depth in the conjectured limit.

    Parameters
    ----------
    stack : AttentionStack
        Of at least two positions and any width.
    size : int
        Draws of the recursion, at least 2.
    seed : int
        The same seed gives the same digits.

    Returns
    -------
    PositionsByDepth

    Raises
    ------
    InputError
        If an argument is invalid, or one draw takes too much memory.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> layer = AttentionLayer(width=64, activation="identity")
    >>> plain = positions_by_depth(AttentionStack(layer=layer, depth=6), 200)
    >>> before = positions_by_depth(AttentionStack(layer=layer.replace(norm="rms"), depth=6, residual=True), 200)
    >>> bool(plain.correlation[-1] > 0.99), bool(before.correlation[-1] < 0.9)
    (True, True)
    """
    _check(stack, seed)
    size = check_draws("size", size, 2, "pass the number of draws, e.g. size=1000")
    check_drawn("width", stack.at_width(2))
    rng = stream(seed, "stack positions", stack.key)
    step = max(1, _BLOCK // limit_entries(stack, 0))
    parts: list[FloatArray] = []
    for start in range(0, size, step):
        streams = recur(stack, draw_normals(stack, min(step, size - start), rng)).streams
        own = np.diagonal(streams, axis1=-2, axis2=-1).mean(axis=-1)
        parts.append(np.stack([own, _correlations(streams)]))
    found = np.concatenate(parts, axis=1)
    mean, error = found.mean(axis=1), found.std(axis=1, ddof=1) / size**0.5
    return PositionsByDepth(mean[0], error[0], mean[1], error[1])


def _correlations(gram: FloatArray) -> FloatArray:
    """Return the mean correlation of different positions, for covariances (..., s, s)."""
    s = gram.shape[-1]
    white = normalised_gram("rms", gram, np.zeros(gram.shape[:-1]))
    return np.asarray((white.sum(axis=(-2, -1)) - np.trace(white, axis1=-2, axis2=-1)) / (s * (s - 1)))


@dataclasses.dataclass(frozen=True, eq=False)
class CorrelationGap:
    """Mean correlation of positions minus its limit, after every layer, with standard errors."""

    width: int
    values: FloatArray
    errors: FloatArray


def correlation_gap(stack: AttentionStack, size: int, seed: int = 0) -> CorrelationGap:
    """Return E c_n - E c_∞ after every layer, where c is the mean correlation of two positions of the stream.

    Uses the coupling and controls of `attncheck.paper.stacks.distance`, and at least 64 draws (`size`).

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> layer = AttentionLayer(width=64, activation="identity")
    >>> gap = correlation_gap(AttentionStack(layer=layer, depth=2, residual=True, post_norm="layer", mlp="gelu"), 500)
    >>> bool((gap.values < 0).all()), bool((64 * gap.errors).max() < 0.2)
    (True, True)
    """
    _check(stack, seed)
    size = check_draws("size", size, 2 * PARTS, "pass the number of draws, e.g. size=2000")
    check_drawn("width", stack)
    parts = controlled_parts(
        stack, size, (stack.depth,), "correlation gap", seed, lambda count, rng: _coupled(stack, count, rng)
    )
    return CorrelationGap(stack.width, parts.mean(axis=0), parts.std(axis=0, ddof=1) / PARTS**0.5)


def _coupled(stack: AttentionStack, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return draws of c_n - c_∞ after each layer, and of its control variate, (size, depth) each."""
    walked = WalkResult.draw(stack, size, 0, rng, with_grams=True)
    ours, twins = (np.stack(each, axis=1) for each in zip(*walked.grams, strict=True))
    limit, more, less = (each[:, 1:] for each in (walked.limit.streams, walked.more, walked.less))
    at_limit = _correlations(limit)
    moved = np.zeros((*limit.shape[:-2], limit.shape[-1] + 1, limit.shape[-1] + 1))
    moved[..., :-1, :-1] = twins
    white = normalised_change("rms", limit, np.zeros(limit.shape[:-1]), moved)
    s = limit.shape[-1]
    own = (white.sum(axis=(-2, -1)) - np.trace(white, axis1=-2, axis2=-1)) / (s * (s - 1)) - at_limit
    return _correlations(ours) - at_limit, own + walked.slope(_correlations(more), _correlations(less))


def correlation_rates(stack: AttentionStack, widths: Sequence[int], size: int, seed: int = 0) -> tuple[StackRate, ...]:
    """Return the rate of `correlation_gap` after every layer, from `size` draws at each of four or more widths.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> layer = AttentionLayer(width=16, seq_len=2, activation="identity", norm="rms")
    >>> stack = AttentionStack(layer=layer, depth=2, residual=True, mlp="relu")
    >>> for rate in correlation_rates(stack, (16, 32, 64, 128), 1000):
    ...     print(rate.depth, abs(rate.order + 1.0) < 5 * rate.order_error)
    1 True
    2 True
    """
    _check(stack, seed)
    distinct = check_widths(widths)
    found = [correlation_gap(stack.at_width(n), size, seed) for n in distinct]
    values, errors = (np.stack([getattr(each, name) for each in found]) for name in ("values", "errors"))
    return tuple(fit(k + 1, distinct, values[:, k], errors[:, k]) for k in range(stack.depth))


def _check(stack: AttentionStack, seed: int) -> None:
    check_stack(stack)
    if stack.seq_len < 2:
        refuse("layer.seq_len", stack.seq_len, "must be at least 2", "use seq_len=2 or more")
    check_whole("seed", seed, 0, "pass a whole number, e.g. seed=0")
