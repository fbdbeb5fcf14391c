"""Which neuron, or which pair of heads, a draw is examined on: another one from draw to draw.

What is exchangeable under the null can be taken in turn, so that every neuron and every pair gets its share of
the draws. The turn depends on a draw's number alone, never on what was drawn.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from attncheck.checks.whitening import Residual

FloatArray = NDArray[np.float64]


def neighbours(values: FloatArray, most: int) -> FloatArray:
    """Return `most` neighbouring neurons of each draw, (draws, s, most), all of them in turn; fewer where there are.

    Examples
    --------
    >>> neighbours(np.arange(8.0).reshape(2, 1, 4), 2)[:, 0].tolist()
    [[0.0, 1.0], [5.0, 6.0]]
    """
    count = values.shape[2]
    if count <= most:
        return values
    neurons = (np.arange(len(values))[:, None] + np.arange(most)) % count
    return np.take_along_axis(values, neurons[:, None, :], axis=2)


@functools.lru_cache(maxsize=64)
def pairings(count: int) -> NDArray[np.int64]:
    """Return rounds of disjoint pairs, (rounds, count // 2, 2): neighbours, halves, and every pair once.

    Neighbours (0, 1), (2, 3), …, the neighbours between these, and (i, i + count // 2) come every fourth round,
    the rounds of a tournament of all against all in between.

    Examples
    --------
    >>> pairings(2).tolist()
    [[[0, 1]], [[1, 0]], [[0, 1]], [[0, 1]]]
    >>> len({tuple(sorted(pair)) for pair in pairings(6).reshape(-1, 2).tolist()})
    15
    """
    half = count // 2
    place = np.arange(2 * half)
    neighbours = place.reshape(-1, 2)
    between = ((place + 1) % count).reshape(-1, 2)
    opposite = np.stack([np.arange(half), np.arange(half) + half], axis=-1)
    rounds = []
    for tournament in _tournament(count):
        rounds += [neighbours, between, opposite, tournament]
    return np.stack(rounds)


def _tournament(count: int) -> list[NDArray[np.int64]]:
    """Return rounds in which all meet each other once; with an odd number, one rests in each."""
    even = count + count % 2
    circle = np.arange(1, even)
    rounds = []
    for shift in range(even - 1):
        order = np.concatenate([[0], np.roll(circle, shift)])
        pairs = np.stack([order[: even // 2], order[even // 2 :][::-1]], axis=-1)
        rounds.append(pairs[(pairs < count).all(axis=1)])
    return rounds


@functools.lru_cache(maxsize=64)
def _partners(count: int) -> NDArray[np.int64]:
    """Return whose noise goes with whose weight in each round, (rounds, count); one's own where there is none."""
    rounds = pairings(count)
    partner = np.tile(np.arange(count), (len(rounds), 1))
    np.put_along_axis(partner, rounds[:, :, 0], rounds[:, :, 1], axis=1)
    return partner


def centred(weight: FloatArray, seen: NDArray[np.bool_]) -> FloatArray:
    """Return a weight less its mean over the draws in which it is seen, place by place, and 0 elsewhere.

    A wrong scale gives noise and weight of a place means of their own. Against a centred weight these cancel, and
    what is left is dependence.

    Examples
    --------
    >>> centred(np.array([[1.0, 9.0], [3.0, 5.0]]), np.array([[True, False], [True, True]])).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    values = np.where(seen, weight, 0.0)
    return np.where(seen, values - values.sum(axis=0) / np.maximum(seen.sum(axis=0), 1), 0.0)


def rotating_pairs(residual: Residual, axis: int) -> tuple[FloatArray, FloatArray]:
    """Return noise and weight from disjoint pairs along an axis, where both are kept; other pairs for each draw.

    No value is noise in one pair and weight in another, so that the noise is independent N(0, 1) given the
    weight. The weight is centred over the draws in which it goes with the same noise: a mean that a wrong scale
    leaves in both, each head's its own, is no dependence.
    """
    values, kept = np.moveaxis(residual.values, axis, 1), np.moveaxis(residual.kept, axis, 1)
    rounds = _partners(values.shape[1])
    partner = rounds[np.arange(len(values)) % len(rounds)]
    paired = partner != np.arange(values.shape[1])

    other, paired = (part.reshape(*part.shape, *[1] * (values.ndim - 2)) for part in (partner, paired))
    both = paired & kept & np.take_along_axis(kept, other, axis=1)
    return values[both], centred(np.take_along_axis(values, other, axis=1), both)[both]
