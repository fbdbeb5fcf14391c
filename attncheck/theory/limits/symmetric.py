"""Output laws of one neuron that are symmetric about 0."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_position
from attncheck.theory.limits.mixture import ScaleMixture, check_chances, check_points
from attncheck.theory.limits.rows import REPLICATES, error_of_mean

# Number of standard deviations that a summary uses as tail threshold, and the normal law's probability beyond it.
_FAR, _NORMAL = 3.0, 0.0027


class SymmetricLaw(abc.ABC):
    """Base class of laws of outputs y^1, …, y^s.

    The law of each output is symmetric about 0 and given by its upper tail.
    """

    def __str__(self) -> str:
        """Return a line with the standard deviation, excess kurtosis and tails of the first position, with errors."""
        std = float(np.sqrt(self.variance()))
        std_error = self.variance_error() / (2.0 * std) if std else 0.0
        far = 2.0 * float(self.sf(_FAR * std))
        return (
            f"{self._what}, one neuron of the first position: standard deviation {std:.4g} ± {std_error:.1g}, excess "
            f"kurtosis {self.excess_kurtosis():.3g} ± {self.excess_kurtosis_error():.1g}, P(|y| > {_FAR:g} standard "
            f"deviations) {far:.2g} (normal: {_NORMAL:g})"
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
    def variance_error(self, position: int = 0) -> float:
        """Return the error of `variance`."""

    @abc.abstractmethod
    def excess_kurtosis(self, position: int = 0) -> float:
        """Return the excess kurtosis of y^position, or 0 if y^position is always 0."""

    @abc.abstractmethod
    def excess_kurtosis_error(self, position: int = 0) -> float:
        """Return the error of `excess_kurtosis`."""

    @property
    @abc.abstractmethod
    def _what(self) -> str:
        """Description of the law, for messages."""

    @abc.abstractmethod
    def _upper_tail(self, sizes: FloatArray, position: int) -> FloatArray:
        """Return P(y^position > size) for each entry of `sizes`, all ≥ 0, in an array of the same shape."""


class MixtureLaw(SymmetricLaw):
    """Symmetric law under which the output of each position is a scale mixture of normals.

    Replicates of the mixture give error estimates.
    """

    #: Relative error that is due to representing the law of the variance by few weighted points.
    _condensing: ClassVar[float] = 0.0

    @property
    @abc.abstractmethod
    def _positions(self) -> int:
        """Number of positions."""

    @abc.abstractmethod
    def _law(self, position: int, part: int | None) -> ScaleMixture:
        """Return the law of the conditional variance from one of `REPLICATES` parts of the draws, or from all."""

    def mixture(self, position: int = 0) -> ScaleMixture:
        """Return the law of the conditional variance at `position` as weighted points."""
        return self._law(check_position("position", position, self._positions), None)

    def _replicated(self, position: int) -> tuple[ScaleMixture, ...]:
        """Return the law of the conditional variance at `position`, from each replicate."""
        position = check_position("position", position, self._positions)
        return tuple(self._law(position, part) for part in range(REPLICATES))

    def variance(self, position: int = 0) -> float:
        """Return the variance of y^position, E[v]."""
        return self.mixture(position).mean()

    def variance_error(self, position: int = 0) -> float:
        """Return an error estimate of `variance`."""
        return self._spread(ScaleMixture.mean, position)

    def excess_kurtosis(self, position: int = 0) -> float:
        """Return the excess kurtosis of y^position, 3 Var(v)/E[v]², or 0 if y^position is always 0."""
        return self.mixture(position).excess_kurtosis()

    def excess_kurtosis_error(self, position: int = 0) -> float:
        """Return an error estimate of `excess_kurtosis`."""
        return self._spread(ScaleMixture.excess_kurtosis, position)

    def _singular(self, position: int) -> bool:
        """Return whether the density at 0 is infinite."""
        return False

    def _upper_tail(self, sizes: FloatArray, position: int) -> FloatArray:
        return self.mixture(position).upper_tail(sizes)

    def pdf(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return the density of y^position at `t`; see `cdf` for parameters and errors.

        If y is 0 with positive probability, this is the density of the continuous part. It is infinite at t = 0 for
        ReLU attention and for linear attention with a single score (one head, kernel of rank one).
        """
        t = check_points(t)
        value = self.mixture(position).density(np.abs(t))
        return np.where((t == 0) & self._singular(position), np.inf, value)[()]

    def ppf(self, q: ArrayLike, position: int = 0) -> FloatArray:
        """Return the quantiles: the t at which `cdf` is `q`, or 0 where it jumps over `q`.

        For q from 1e-300 to 1 - 1e-16, tail probabilities are inverted to a relative accuracy of 1e-11; see
        `cdf_error` for the accuracy of `cdf`.

        Parameters
        ----------
        q : array_like
            Probabilities, of any shape; infinite quantiles at 0 and 1.
        position : int
            Position index, below seq_len.

        Returns
        -------
        ndarray, in the shape of `q`

        Raises
        ------
        InputError
            If `q` is not in [0, 1], or the position does not exist.

        Examples
        --------
        >>> from attncheck.layers.attention import AttentionLayer
        >>> from attncheck.theory.limit import limit
        >>> law = limit(AttentionLayer(width=64))
        >>> law.cdf(law.ppf([0.025, 0.5])).round(12).tolist(), law.ppf(1.0)
        ([0.025, 0.5], np.float64(inf))
        """
        return self.mixture(position).quantile(check_chances(q))[()]

    def cdf_error(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return error estimates of `cdf` and `sf`, in the shape of `t`."""
        size = np.abs(check_points(t))
        return self._error(np.stack([law.upper_tail(size) for law in self._replicated(position)]))[()]

    def pdf_error(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return error estimates of `pdf`, in the shape of `t`; 0 where it is infinite."""
        t = check_points(t)
        values = np.stack([law.density(np.abs(t)) for law in self._replicated(position)])
        return np.where((t == 0) & self._singular(position), 0.0, self._error(values))[()]

    def _spread(self, of: Callable[[ScaleMixture], float], position: int) -> float:
        """Return an error estimate for ``of(law)``, a number computed from the law of the conditional variance v."""
        return float(self._error(np.array([of(law) for law in self._replicated(position)])))

    def _error(self, replicates: FloatArray) -> FloatArray:
        """Return the error estimate of the mean over the first axis."""
        return np.asarray(error_of_mean(replicates) + self._condensing * np.abs(replicates.mean(axis=0)))
