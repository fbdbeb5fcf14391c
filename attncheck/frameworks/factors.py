"""Search for matrices among a module's parameters, up to a factor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from attncheck.frameworks.trace import FloatArray

# Tolerances for equal blocks and products: relative, and in unit roundoffs.
_ALIKE, _ROUNDED = 1e-3, 16.0
# Minimum number of entries: fewer may agree by chance.
_FEWEST = 16
# Packing of heads in rows: consecutive; strided over all rows or each third; or with queries, keys and values
# alternating.
_WAYS = ("consecutive", "strided", "strided thirds", "thirds")


def _flat(parameters: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return all parameters as matrices, in every common layout of heads."""
    found = {name: array for name, array in parameters.items() if array.ndim == 2}
    for name, array in parameters.items():
        if array.ndim == 3:
            found[f"{name}, heads between"] = array.reshape(len(array), -1)
            found[f"{name}, heads before rows"] = array.reshape(-1, array.shape[-1])
            found[f"{name}, heads before"] = array.swapaxes(0, 1).reshape(array.shape[1], -1)
    return found


def _cut(parameter: FloatArray, turned: bool, way: str, d: int) -> FloatArray:
    """Cut a parameter into blocks of d rows, (number of blocks, d, n)."""
    matrix = parameter.T if turned else parameter
    rows, n = matrix.shape
    if rows % d or (way != "consecutive" and (d == 1 or rows == d)) or ("thirds" in way and rows % (3 * d)):
        return np.zeros((0, d, n))
    if "strided" in way:
        parts = 3 if "thirds" in way else 1
        return matrix.reshape(parts, d, -1, n).swapaxes(1, 2).reshape(-1, d, n)
    if way == "thirds":
        return matrix.reshape(-1, d, 3, n).swapaxes(1, 2).reshape(-1, d, n)
    return matrix.reshape(-1, d, n)


def _blocks(parameters: Mapping[str, FloatArray], d: int, n: int) -> Iterator[FloatArray]:
    """Yield all blocks of d rows and n columns, (number of blocks, d, n), one parameter and packing at a time."""
    for parameter in _flat(parameters).values():
        if not np.ptp(parameter):
            continue
        for turned, way in itertools.product((False, True), _WAYS):
            if parameter.shape[0 if turned else 1] == n and len(found := _cut(parameter, turned, way, d)):
                yield found


def _less_mean(blocks: FloatArray, centred: bool) -> FloatArray:
    return blocks - blocks.mean(axis=-1, keepdims=True) if centred else blocks


def rotated_block(matrix: FloatArray, parameters: Mapping[str, FloatArray], precision: float, centred: bool) -> bool:
    """Return whether the rows of a matrix, (n, d), have the lengths of those of a block of a parameter.

    Examples
    --------
    >>> weight = np.random.default_rng(0).standard_normal((8, 16))
    >>> rotated_block(weight[4:, :].T[:, [1, 0, 3, 2]], {"q": weight}, 2**-24, centred=False)
    True
    """
    squares = np.sum(matrix**2, axis=1)
    small = max(_ALIKE, _ROUNDED * precision) * squares.max()
    every = (_less_mean(blocks, centred) for blocks in _blocks(parameters, matrix.shape[1], matrix.shape[0]))
    close = (np.abs(np.sum(blocks**2, axis=1) - squares) <= small for blocks in every)
    return len(matrix) >= _FEWEST and any(each.all(axis=1).any() for each in close)


def gain_of(matrix: FloatArray, parameters: Mapping[str, FloatArray], precision: float, centred: bool) -> float | None:
    """Return the factor by which a matrix, (n, d), is a multiple of a block of a parameter, or None.

    Examples
    --------
    >>> weight = np.random.default_rng(0).standard_normal((8, 8))
    >>> gain_of(0.25 * weight[4:].T, {"q": weight}, 2**-24, centred=False)
    0.25
    """
    size = float(np.sum(matrix**2))
    if matrix.size < _FEWEST:
        return None
    for blocks in _blocks(parameters, matrix.shape[1], matrix.shape[0]):
        some = _less_mean(blocks, centred)
        products, squares = np.tensordot(some, matrix.T, 2), np.sum(some**2, axis=(1, 2))
        # Squared sine of the angle between the two.
        apart = 1 - products**2 / np.maximum(squares * size, 1e-300)
        best = int(np.argmin(apart))
        if apart[best] <= max(_ALIKE, _ROUNDED * precision) ** 2:
            return float(products[best] / squares[best])
    return None
