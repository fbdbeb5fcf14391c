"""Output laws of one neuron that are symmetric about 0."""

from __future__ import annotations

import abc

import numpy as np
from numpy.typing import ArrayLike

from attncheck._lib.arrays import FloatArray
from attncheck.theory.limits.mixture import check_points

# Tail threshold in standard deviations, and its normal probability.
_FAR, _NORMAL = 3.0, 0.0027


class SymmetricLaw(abc.ABC):
    """Law of outputs y^1, …, y^s, each symmetric about 0, from its upper tails."""

    def __str__(self) -> str:
        """Return a line with the standard deviation, excess kurtosis and tails of the first position."""
        std = float(np.sqrt(self.variance()))
        far = 2.0 * float(self.sf(_FAR * std))
        return (
            f"{self._what}, one neuron of the first position: standard deviation {std:.4g}, excess kurtosis "
            f"{self.excess_kurtosis():.3g}, P(|y| > {_FAR:g} standard deviations) {far:.2g} (normal: {_NORMAL:g})"
        )

    def cdf(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return P(y^position ≤ t).

        Parameters
        ----------
        t : array_like
            Any shape; infinite entries are allowed.
        position : int
            Position index, below seq_len.

        Returns
        -------
        ndarray, in the shape of `t`

        Raises
        ------
        InputError
            If `t` is NaN or not numeric, or the position does not exist.
        """
        t = check_points(t)
        tail = self._upper_tail(np.abs(t), position)
        return np.where(t < 0, tail, 1 - tail)[()]

    def sf(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return P(y^position > t), without the cancellation of 1 - cdf; see `cdf`."""
        t = check_points(t)
        tail = self._upper_tail(np.abs(t), position)
        return np.where(t < 0, 1 - tail, tail)[()]

    @abc.abstractmethod
    def variance(self, position: int = 0) -> float:
        """Return the variance of y^position."""

    @abc.abstractmethod
    def excess_kurtosis(self, position: int = 0) -> float:
        """Return the excess kurtosis of y^position, or 0 if y^position is always 0."""

    @property
    @abc.abstractmethod
    def _what(self) -> str:
        """Description of the law, for messages."""

    @abc.abstractmethod
    def _upper_tail(self, sizes: FloatArray, position: int) -> FloatArray:
        """Return P(y^position > size) for sizes ≥ 0, in their shape."""
