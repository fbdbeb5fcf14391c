"""Search of a module's parameters for a given matrix, up to a factor."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from attncheck._lib.arrays import FloatArray

# Blocks are equal up to the larger of a relative tolerance and a number of unit roundoffs.
_TOLERANCE, _ROUNDED = 1e-3, 16.0
# Minimum number of values to compare; fewer may agree by chance.
_FEWEST = 16
# How rows of a parameter belong to heads. The rows of a head are consecutive, or strided over all rows, or strided over
# each third of the rows; or each head has consecutive rows in which queries, keys and values alternate.
_WAYS = ("consecutive", "strided", "strided thirds", "thirds")


def _flat(parameters: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return all parameters as matrices; those with three axes in every common layout of heads."""
    matrices = {name: array for name, array in parameters.items() if array.ndim == 2}
    for name, array in parameters.items():
        if array.ndim == 3:
            matrices[f"{name}, heads between"] = array.reshape(len(array), -1)
            matrices[f"{name}, heads before rows"] = array.reshape(-1, array.shape[-1])
            matrices[f"{name}, heads before"] = array.swapaxes(0, 1).reshape(array.shape[1], -1)
    return matrices


def _cut(parameter: FloatArray, transposed: bool, way: str, d: int) -> FloatArray:
    """Cut a parameter, or its transpose, into blocks of d rows.

    `way`, one of `_WAYS`, says which rows belong to the same head. The result has shape (number of blocks, d, n). It
    has no blocks if the number of rows does not fit.
    """
    matrix = parameter.T if transposed else parameter
    rows, n = matrix.shape
    if rows % d or (way != "consecutive" and (d == 1 or rows == d)) or ("thirds" in way and rows % (3 * d)):
        return np.zeros((0, d, n))
    if "strided" in way:
        parts = 3 if "thirds" in way else 1
        return matrix.reshape(parts, d, -1, n).swapaxes(1, 2).reshape(-1, d, n)
    if way == "thirds":
        return matrix.reshape(-1, d, 3, n).swapaxes(1, 2).reshape(-1, d, n)
    return matrix.reshape(-1, d, n)


@dataclasses.dataclass(frozen=True)
class ParameterBlocks:
    """All blocks of a module's parameters that may be the matrix of one head.

    Attributes
    ----------
    parameters : mapping of ndarray
    precision : float
        Unit roundoff of the module.
    centred : bool
        Whether a layer norm removed the mean of each column of the matrices.
    """

    parameters: Mapping[str, FloatArray]
    precision: float
    centred: bool = False

    def rotates(self, matrix: FloatArray) -> bool:
        """Return whether a matrix, (n, d), may be the transpose of a block whose columns were rotated.

        This is so if each row of the matrix has the same length as the corresponding column of a block.

        Examples
        --------
        >>> weight = np.random.default_rng(0).standard_normal((8, 16))
        >>> ParameterBlocks({"q": weight}, 2**-24).rotates(weight[4:, :].T[:, [1, 0, 3, 2]])
        True
        """
        squares = np.sum(matrix**2, axis=1)
        tolerance = self._small * squares.max()
        close = (np.abs(np.sum(blocks**2, axis=1) - squares) <= tolerance for blocks in self._like(matrix))
        return len(matrix) >= _FEWEST and any(matches.all(axis=1).any() for matches in close)

    def gain(self, matrix: FloatArray) -> float | None:
        """Return the factor c if a matrix, (n, d), is c times a transposed block; None if no block matches."""
        found = self.match(matrix)
        return None if found is None else found[0]

    def match(self, matrix: FloatArray) -> tuple[float, int] | None:
        """Return the factor c and the block's index if a matrix, (n, d), is c times a transposed block, else None.

        Examples
        --------
        >>> weight = np.random.default_rng(0).standard_normal((8, 8))
        >>> ParameterBlocks({"q": weight}, 2**-24).match(0.25 * weight[4:].T)
        (0.25, 1)
        """
        size = float(np.sum(matrix**2))
        for blocks in self._like(matrix) if matrix.size >= _FEWEST else ():
            products, squares = np.tensordot(blocks, matrix.T, 2), np.sum(blocks**2, axis=(1, 2))
            # Squared sine of the angle between matrix and block.
            squared_sines = 1 - products**2 / np.maximum(squares * size, 1e-300)
            best = int(np.argmin(squared_sines))
            if squared_sines[best] <= self._small**2:
                return float(products[best] / squares[best]), best
        return None

    @property
    def _small(self) -> float:
        return max(_TOLERANCE, _ROUNDED * self.precision)

    def _like(self, matrix: FloatArray) -> Iterator[FloatArray]:
        """Yield all blocks that have the shape of the transpose of a matrix, (n, d).

        Each array, (number of blocks, d, n), has the blocks of one parameter or its transpose, for one layout of heads.
        """
        n, d = matrix.shape
        for parameter in _flat(self.parameters).values():
            if not np.ptp(parameter):
                continue
            for transposed, way in itertools.product((False, True), _WAYS):
                if parameter.shape[0 if transposed else 1] == n and len(blocks := _cut(parameter, transposed, way, d)):
                    yield blocks - blocks.mean(axis=-1, keepdims=True) if self.centred else blocks
