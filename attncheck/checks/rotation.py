"""Rotate the tested neuron or pair of heads from draw to draw.

Neurons and heads are exchangeable under the null. The choice depends on the draw's index alone.
"""

from __future__ import annotations

import functools

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray, IntArray
from attncheck.checks.whitening import Residual


def neighbours(values: FloatArray, most: int) -> FloatArray:
    """Return up to `most` neighbouring neurons of each draw, (draws, positions, most).

    The indices of the neurons shift by one from draw to draw.

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
def pairings(count: int) -> IntArray:
    """Return rounds of disjoint pairs of `count` elements, (rounds, count // 2, 2).

    Pairs of neighbours (0, 1), (2, 3), …, shifted neighbours (1, 2), …, and halves (i, i + count // 2) alternate with
    the rounds of a tournament, which contain every pair once.

    Examples
    --------
    >>> pairings(2).tolist()
    [[[0, 1]], [[1, 0]], [[0, 1]], [[0, 1]]]
    >>> len({tuple(sorted(pair)) for pair in pairings(6).reshape(-1, 2).tolist()})
    15
    """
    half = count // 2
    indices = np.arange(2 * half)
    neighbours = indices.reshape(-1, 2)
    shifted = ((indices + 1) % count).reshape(-1, 2)
    opposite = np.stack([np.arange(half), np.arange(half) + half], axis=-1)
    rounds = []
    for tournament in _tournament(count):
        rounds += [neighbours, shifted, opposite, tournament]
    return np.stack(rounds)


def _tournament(count: int) -> list[IntArray]:
    """Return rounds of disjoint pairs that together contain every pair once."""
    even = count + count % 2
    circle = np.arange(1, even)
    rounds = []
    for shift in range(even - 1):
        order = np.concatenate([[0], np.roll(circle, shift)])
        pairs = np.stack([order[: even // 2], order[even // 2 :][::-1]], axis=-1)
        rounds.append(pairs[(pairs < count).all(axis=1)])
    return rounds


@functools.lru_cache(maxsize=64)
def _partners(count: int) -> IntArray:
    """Return the partner of each element in each round, (rounds, count); an unpaired element is its own partner."""
    rounds = pairings(count)
    partner = np.tile(np.arange(count), (len(rounds), 1))
    np.put_along_axis(partner, rounds[:, :, 0], rounds[:, :, 1], axis=1)
    return partner


def centred(weight: FloatArray, valid: BoolArray) -> FloatArray:
    """Subtract from each entry of `weight` its mean over the draws where it is valid; invalid entries become 0.

    A wrong scale shifts the mean of the noise that `weight` multiplies. A centred weight is then still uncorrelated
    with the noise, unless the two are dependent.

    Examples
    --------
    >>> centred(np.array([[1.0, 9.0], [3.0, 5.0]]), np.array([[True, False], [True, True]])).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    values = np.where(valid, weight, 0.0)
    return np.where(valid, values - values.sum(axis=0) / np.maximum(valid.sum(axis=0), 1), 0.0)


def rotating_pairs(residual: Residual, axis: int) -> tuple[FloatArray, FloatArray]:
    """Pair values along an axis; return the first value of each pair (noise), and the second one, centred (weight).

    Pairs are disjoint in each draw, and change from draw to draw. No value is noise in one pair and weight in another
    of the same draw, so the noise is i.i.d. N(0, 1) given the weight.
    """
    values, retained = np.moveaxis(residual.values, axis, 1), np.moveaxis(residual.kept, axis, 1)
    rounds = _partners(values.shape[1])
    partner = rounds[np.arange(len(values)) % len(rounds)]
    paired = partner != np.arange(values.shape[1])

    partner_index, paired = (part.reshape(*part.shape, *[1] * (values.ndim - 2)) for part in (partner, paired))
    both = paired & retained & np.take_along_axis(retained, partner_index, axis=1)
    return values[both], centred(np.take_along_axis(values, partner_index, axis=1), both)[both]
