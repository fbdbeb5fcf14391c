"""Distance of a stack of finite width from its conjectured limit, by common random numbers.

Stack and limit share normals, and the last outputs are integrated out. To order n^{-1/2}, their difference is linear in
deviations with mean 0, and the effect of the deviations on the recursion is the control variate. The remainder is of
order 1/n, like the distance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_draws, check_position, check_whole, refuse
from attncheck._lib.memory import DEFAULT_MEMORY, check_memory
from attncheck._lib.streams import stream
from attncheck.layers.stack import AttentionStack
from attncheck.paper.stacks.walk import NEURONS, WalkResult, ratio_of
from attncheck.theory.stacks.recursion import draw_normals, limit_entries, recur

#: Number of parts of the draws, whose spread gives the error.
PARTS = 32
# Points of comparison, in standard deviations of the limit, on both sides as residual streams may be asymmetric.
POINTS: FloatArray = np.concatenate(
    [np.linspace(-9.0, -4.5, 10), np.linspace(-4.0, 4.0, 81), np.linspace(4.5, 9.0, 10)]
)
POINTS.setflags(write=False)
_PILOT = 1024
# Array entries per block.
_BLOCK = 2**21


@dataclasses.dataclass(frozen=True)
class StackDistance:
    """Distance of the stream after a layer from its conjectured limit.

    Attributes
    ----------
    depth : int
        Layer, from 1.
    width : int
    ks, ks_error : float
        Kolmogorov distance, on a grid of 0.1 standard deviations, and its standard error.
    w1, w1_error : float
        Wasserstein distance, in standard deviations of the limit, and its standard error.
    """

    depth: int
    width: int
    ks: float
    ks_error: float
    w1: float
    w1_error: float


def distances(stack: AttentionStack, size: int, seed: int = 0, position: int = 0) -> tuple[StackDistance, ...]:
    """Return the distance from the conjectured limit after every layer, from draws of the whole stack.

    Parameters
    ----------
    stack : AttentionStack
        With a fixed `head_dim`, a distance remains at large width.
    size : int
        Draws, at least 64; each takes O(depth · (s n + H s³)) operations.
    seed : int
        The same seed gives the same digits.
    position : int

    Returns
    -------
    tuple of StackDistance, length depth
        Their errors are dependent.

    Raises
    ------
    InputError
        If an argument is invalid, or one draw takes too much memory.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> stack = AttentionStack(layer=AttentionLayer(width=64), depth=2)
    >>> first, second = distances(stack, 2000)
    >>> abs(64 * first.ks - 0.35) < 64 * 5 * first.ks_error + 0.05, second.ks > first.ks
    (True, True)
    """
    differences = difference_parts(stack, size, seed, position)
    return tuple(measured(each, k, stack.width) for k, each in enumerate(differences.swapaxes(0, 1), 1))


def difference_parts(
    stack: AttentionStack, size: int, seed: int = 0, position: int = 0, last: bool = False
) -> FloatArray:
    """Return F_n - F_∞ at `POINTS` after every layer (or only the `last`), (PARTS, depth, points).

    F_n is the distribution function of the stream at the stack's width, and F_∞ that of its conjectured limit.
    """
    place, size = _check(stack, size, seed, position)
    check_drawn("width", stack)
    points = limit_scales(stack, seed, place)[:, None] * POINTS
    depths = range(stack.depth)[-1:] if last else range(stack.depth)

    def draw(count: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        return _coupled(stack, count, place, points, depths, rng)

    return controlled_parts(stack, size, (len(depths), len(POINTS)), "stack distance", seed, draw)


def controlled_parts(
    stack: AttentionStack,
    size: int,
    shape: tuple[int, ...],
    name: str,
    seed: int,
    draw: Callable[[int, np.random.Generator], tuple[FloatArray, FloatArray]],
) -> FloatArray:
    """Return the mean over each part of the draws, corrected by a control variate, with the shape (PARTS,) + shape.

    `draw(count, rng)` returns differences from the limit and their control variate, of shape (count,) + shape each;
    `name` is the key of the random streams.
    """
    step = max(1, _BLOCK // walk_entries(stack))
    means = np.zeros((4, PARTS, *shape))
    for part in range(PARTS):
        rng = stream(seed, name, stack.key, part)
        count = size // PARTS + (part < size % PARTS)
        for start in range(0, count, step):
            f, c = draw(min(step, count - start), rng)
            for total, value in zip(means, (f, c, f * c, c * c), strict=True):
                total[part] += value.sum(axis=0) / count
    return controlled(*means)


def averaged_parts(stack: AttentionStack, size: int, seed: int = 0, position: int = 0) -> FloatArray:
    """Return F_∞ - F in the form of `difference_parts`; F is the law of the recursion with averaged kernels."""
    place, size = _check(stack, size, seed, position)
    check_memory("size", size, "the draws, all at once,", size * limit_entries(stack, 0), "pass fewer draws")
    normals = draw_normals(stack, size, stream(seed, "stack distance", "averaged"))
    points = limit_scales(stack, seed, place)[:, None] * POINTS
    right, wrong = (recur(stack, normals, averaged=averaged).streams for averaged in (False, True))
    parts = []
    for some in np.array_split(np.arange(size), PARTS):
        laws = [special.ndtr(ratio_of(points, each[some, 1:, place, place])).mean(axis=0) for each in (right, wrong)]
        parts.append(laws[0] - laws[1])
    return np.stack(parts)


def limit_scales(stack: AttentionStack, seed: int, position: int) -> FloatArray:
    """Return the limit's standard deviation after every layer, (depth,)."""
    rng = stream(seed, "stack distance", "scales")
    step = max(1, DEFAULT_MEMORY // (8 * limit_entries(stack, 0)))
    sizes = [min(step, _PILOT - start) for start in range(0, _PILOT, step)]
    parts = [recur(stack, draw_normals(stack, some, rng)).streams[:, 1:, position, position] for some in sizes]
    return np.asarray(np.sqrt(np.concatenate(parts).mean(axis=0)))


def check_drawn(field: str, stack: AttentionStack) -> None:
    """Raise `InputError` if one draw from the stack's limit or at its width exceeds `DEFAULT_MEMORY`."""
    remedy = "pass a shorter sequence, or fewer layers or heads"
    check_memory("seq_len", stack.seq_len, "a draw of the recursion", limit_entries(stack, 0), remedy)
    remedy = "pass a smaller width, a shorter sequence, or fewer layers or heads"
    check_memory(field, stack.width, "a draw of the stack", walk_entries(stack), remedy)


def walk_entries(stack: AttentionStack) -> int:
    """Return a bound on the entries of one joint draw of a stack and its limit."""
    recursions = stack.depth * (60 * stack.seq_len**2 * stack.num_heads + len(POINTS))
    neurons = 3 * len(POINTS) * min(NEURONS, stack.width) if stack.residual else 0
    vectors = 12 + 4 * stack.mlp_ratio * bool(stack.mlp)
    return recursions + neurons + vectors * stack.seq_len * stack.width


def check_stack(stack: Any) -> AttentionStack:
    """Return the argument if it is a stack, or raise `InputError`."""
    if not isinstance(stack, AttentionStack):
        refuse("stack", stack, "is not an AttentionStack", "pass attncheck.AttentionStack(layer=..., depth=2)")
    return stack


def _check(stack: AttentionStack, size: int, seed: int, position: int) -> tuple[int, int]:
    """Return position and size, or raise `InputError`."""
    check_stack(stack)
    if stack.post_norm:
        problem = "makes a single position standard normal in the limit, whatever the stack"
        refuse("post_norm", stack.post_norm, problem, "compare Gram matrices of attncheck.simulate, or leave it out")
    check_whole("seed", seed, 0, "pass a whole number, e.g. seed=0")
    size = check_draws("size", size, 2 * PARTS, "pass the number of draws, e.g. size=2000")
    return check_position("position", position, stack.seq_len), size


def controlled(f: FloatArray, c: FloatArray, fc: FloatArray, cc: FloatArray) -> FloatArray:
    """Return f minus a multiple of the control c of mean 0, with coefficients from the other parts of the draws.

    The arguments are means, over each part of the draws, of the variables f and c and of their products f c and c².
    """
    others = [each.sum(axis=0) - each for each in (fc, cc)]
    slope = np.divide(others[0], others[1], out=np.zeros_like(fc), where=others[1] > 0)
    return np.asarray(f - slope * c)


def measured(differences: FloatArray, depth: int, width: int) -> StackDistance:
    """Return the Kolmogorov and Wasserstein distances from differences (PARTS, points)."""
    steps = np.diff(POINTS)
    weights = 0.5 * (np.concatenate([[0.0], steps]) + np.concatenate([steps, [0.0]]))
    halves = differences[: PARTS // 2], differences[PARTS // 2 :]
    largest, areas = [], []
    # The point of largest difference and the signs come from the other half of the draws, to avoid bias.
    for ours, theirs in (halves, halves[::-1]):
        elsewhere = theirs.mean(axis=0)
        farthest = int(np.argmax(np.abs(elsewhere)))
        largest.append(np.sign(elsewhere[farthest]) * ours[:, farthest])
        areas.append(ours @ (np.sign(elsewhere) * weights))
    ks, w1 = np.concatenate(largest), np.concatenate(areas)
    ks_error, w1_error = (float(each.std(ddof=1)) / PARTS**0.5 for each in (ks, w1))
    return StackDistance(depth, width, float(ks.mean()), ks_error, float(w1.mean()), w1_error)


def _coupled(
    stack: AttentionStack, size: int, position: int, points: FloatArray, depths: range, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return draws of F_n - F_∞ and its control variate, (size, depths, points) each."""
    walked = WalkResult.draw(stack, size, position, rng)
    more, less, total = (
        streams[:, 1:, position, position] for streams in (walked.more, walked.less, walked.limit.streams)
    )
    slope = walked.slope(more, less)
    f, c = np.empty((2, size, len(depths), len(POINTS)))
    for place, k in enumerate(depths):
        t = points[k]
        ratio = ratio_of(t, total[:, k])
        f[:, place] = walked.layers[k].probabilities(t) - special.ndtr(ratio)
        bell = np.where(np.isfinite(ratio), ratio, 0.0) * np.exp(-0.5 * np.clip(ratio, -100.0, 100.0) ** 2)
        relative = np.divide(slope[:, k], total[:, k], out=np.zeros(size), where=total[:, k] > 0)
        c[:, place] = -0.5 / np.sqrt(2.0 * np.pi) * bell * relative[:, None]
    return f, c
