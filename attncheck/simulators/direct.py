"""The direct method: literal weight matrices, fresh for every draw. The ground truth."""

from __future__ import annotations

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.program import Weight


class DirectMultiplier:
    """Draw every entry of W and multiply; matrices used once share a buffer."""

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
        """Draw (size, columns, rows) normals, Wᵀ up to scale."""
        rows, columns = weight.shape(self._width)
        shape = (size, columns, rows)
        if not last:
            return self._rng.standard_normal(shape)
        buffer = self._buffers.get(shape)
        if buffer is None:
            buffer = self._buffers[shape] = np.empty(shape)
        self._rng.standard_normal(out=buffer)
        return buffer
