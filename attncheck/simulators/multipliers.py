"""Products W h of a program's random matrices, by two methods.

The direct method multiplies explicit matrices, fresh for every draw: the ground truth. The matrix-free method is exact
in law at finite width without any n × n array, since programs apply W but never Wᵀ. Given the products of W with
earlier vectors, W h has the law of W p + ‖h - p‖ (σ/√n) N(0, I), where p is the projection of h on their span.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.program import Weight
from attncheck.simulators.linalg import gram_root

# A residual below this fraction of the vector's length is a rounding error, and the vector lies in the span.
_IN_SPAN = 1e-10


class Multiplier(Protocol):
    """Function that draws the products W h of each weight, step by step."""

    def __call__(self, weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        """Map vectors (draws, m, columns) to `rows` coordinates of W h, (draws, m, rows).

        ``last`` is True if no later step uses W.
        """
        ...


#: Function that returns a multiplier for a width and a generator.
Matrices = Callable[[int, np.random.Generator], Multiplier]


class DirectMultiplier:
    """Draw every entry of W, and multiply vectors by W.

    A matrix that only one step uses is stored in a buffer that all such matrices of its shape share.
    """

    def __init__(self, width: int, rng: np.random.Generator) -> None:
        self._width = width
        self._rng = rng
        self._kept: dict[Weight, FloatArray] = {}
        self._buffers: dict[tuple[int, ...], FloatArray] = {}

    def __call__(self, weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        """Return all coordinates of W h."""
        matrix = self._kept.pop(weight, None)
        if matrix is None:
            matrix = self._draw(weight, len(vectors), last)
        if not last:
            self._kept[weight] = matrix
        columns = vectors.shape[-1]
        image: FloatArray = (vectors * (weight.std * columns**-0.5)) @ matrix
        return image

    def _draw(self, weight: Weight, size: int, last: bool) -> FloatArray:
        """Draw Wᵀ without its scale, as standard normals (size, columns, rows)."""
        rows, columns = weight.shape(self._width)
        shape = (size, columns, rows)
        if not last:
            return self._rng.standard_normal(shape)
        buffer = self._buffers.get(shape)
        if buffer is None:
            buffer = self._buffers[shape] = np.empty(shape)
        self._rng.standard_normal(out=buffer)
        return buffer


class MatrixFreeMultiplier:
    """Draw products W h without drawing W.

    For each matrix W that a later step uses, the multiplier stores an orthonormal basis of the vectors h so far, and
    the products of W with the vectors of the basis.
    """

    def __init__(self, width: int, rng: np.random.Generator) -> None:
        self._width = width
        self._rng = rng
        # For each weight, an orthonormal basis of the vectors multiplied so far, and the products of the unscaled
        # weight with the basis, which are standard normal.
        self._bases: dict[Weight, tuple[FloatArray, FloatArray]] = {}

    def __call__(self, weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        """Return `rows` coordinates of W h."""
        size, count, columns = vectors.shape
        scale = weight.std * columns**-0.5
        known = self._bases.pop(weight, None)
        if known is None and last:
            # For a matrix used once, the Gram matrix of the vectors suffices.
            root = vectors if columns <= count else gram_root(vectors @ vectors.swapaxes(-1, -2))
            image: FloatArray = (scale * root) @ self._rng.standard_normal((size, root.shape[-1], rows))
            return image
        if not last:
            rows = weight.shape(self._width)[0]
        basis, images = known if known is not None else (np.zeros((size, 0, columns)), np.zeros((size, 0, rows)))
        basis, coefficients = extend_basis(basis, vectors)
        images = np.concatenate([images[..., :rows], self._rng.standard_normal((size, count, rows))], axis=1)
        if not last:
            self._bases[weight] = (basis, images)
        return np.asarray((scale * coefficients) @ images)


def extend_basis(basis: FloatArray, vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Extend orthonormal rows to span further vectors, by two passes of Gram–Schmidt.

    Maps `basis` (draws, d, n) and `vectors` (draws, m, n) to a basis (draws, d + m, n), and to coefficients
    (draws, m, d + m) with ``coefficients @ basis`` equal to `vectors`. The new row for a vector that lies in the span
    of earlier rows is zero.
    """
    known, count = basis.shape[1], vectors.shape[1]
    basis = np.concatenate([basis, np.zeros_like(vectors)], axis=1)
    coefficients = np.zeros((len(vectors), count, known + count))
    for k in range(count):
        span = basis[:, : known + k]
        residual = vectors[:, k, :, None]
        for _ in range(2 if known + k else 0):
            part = span @ residual
            residual = residual - span.swapaxes(-1, -2) @ part
            coefficients[:, k, : known + k] += part[..., 0]
        length = np.linalg.norm(residual, axis=1)
        length[length <= _IN_SPAN * np.linalg.norm(vectors[:, k], axis=-1, keepdims=True)] = 0.0
        coefficients[:, k, known + k] = length[:, 0]
        basis[:, known + k] = np.divide(residual[..., 0], length, out=np.zeros_like(vectors[:, k]), where=length > 0)
    return basis, coefficients
