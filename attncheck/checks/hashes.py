"""Hashes of rows of numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arrays import FloatArray


def hashes(rows: FloatArray) -> NDArray[np.uint64]:
    """Return an integer hash of each row, (..., m) -> (...).

    Different rows collide with probability about 2^-63. The sign of 0 is ignored.

    Examples
    --------
    >>> one, other, again = hashes(np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0]]))
    >>> one == again, one == other
    (np.True_, np.False_)
    """
    digits = np.ascontiguousarray(rows + 0.0).view(np.uint64)
    # Low bits of float32 values are 0, and a product never carries down into them.
    folded = digits ^ (digits >> np.uint64(32))
    odd = np.random.default_rng(0).integers(2**63, size=rows.shape[-1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return np.asarray((folded * odd).sum(axis=-1, dtype=np.uint64))
