"""Difference between the law of a sum of independent terms and its limit.

Given coefficients c, the sum Σ c_k w_k of independent w_k with characteristic function cf has variance v = Σ c_k² and
characteristic function Π cf(τ c_k). Its law is stored as that of √v N, a measure of v, plus a correction Π cf(τ c_k) -
e^{-τ²v/2}. The correction is averaged in bins of v, at frequencies in units of 1/√v: it then decays equally fast for
every v, and far tails keep their relative accuracy.
"""

from __future__ import annotations

import dataclasses
from typing import Self

import numpy as np

from attncheck._lib.arrays import FloatArray, IndexArray
from attncheck.theory.rates.deviation import Deviation

# Lowest and highest bin: bin k spans a factor of 4 in v from 2^k units.
_LOWEST, _HIGHEST = -24, 16
BINS = _HIGHEST - _LOWEST + 1
# Bins have random edges and overlap, since sharp edges would make characteristic functions decay slowly.
_OVERLAP = 3.0
# Step and range of frequencies τ, in units of 1/√(least v of the bin). Corrections decay about as τ^{-terms}.
_STEP, _FARTHEST, _BEND, _FEWEST_TERMS = np.pi / 24.0, 6.5, 128.0, 2
# The highest 1/_ENDS of the frequencies measure the truncation error.
_ENDS = 4
# Range of corrections, in units of √(least v of the bin).
_REACH = 20.0
# Order of the taper at the highest frequencies.
_TAPER = 8
# Array entries per block.
_BLOCK = 2**21


def frequencies(terms: int) -> FloatArray:
    """Return the frequencies at which sums of this many terms differ from normal variables."""
    highest = _FARTHEST * (1.0 + _BEND / max(_FEWEST_TERMS, terms) ** 2)
    return np.asarray((np.arange(round(highest / _STEP)) + 0.5) * _STEP)


def bins_of(variances: FloatArray, unit: float, rng: np.random.Generator) -> tuple[IndexArray, FloatArray]:
    """Return the bin of each variance and the least variance of that bin; outliers go to the end bins."""
    with np.errstate(divide="ignore"):
        powers = np.log2(variances / unit) + rng.beta(_OVERLAP, _OVERLAP, len(variances))
    lowest = np.clip(np.floor(powers) - 1.0, _LOWEST, _HIGHEST)
    return (lowest - _LOWEST).astype(np.intp), unit * 2.0**lowest


@dataclasses.dataclass(frozen=True, eq=False)
class SumDeviation(Deviation):
    """Law of a sum of independent terms minus its limit.

    Attributes
    ----------
    unit : float
        Unit of the bins of v.
    corrections : ndarray, shape (REPLICATES, `BINS`, frequencies)
    fourths : ndarray, shape (REPLICATES,)
        Mean fourth cumulants given c.
    tau : ndarray, shape (frequencies,)
    """

    unit: float
    corrections: FloatArray
    fourths: FloatArray
    tau: FloatArray

    def upper_tail(self, size: FloatArray) -> FloatArray:
        """Return P(y > size) minus its limit, (REPLICATES, sizes)."""
        return super().upper_tail(size) - self._corrected(size, density=False)

    def density(self, size: FloatArray) -> FloatArray:
        """Return the density of y minus its limit, (REPLICATES, sizes)."""
        return super().density(size) + self._corrected(size, density=True)

    def moment(self, power: float) -> FloatArray:
        """Return E v^power minus its limit, with E y⁴/3 in place of E v² if `power` is 2."""
        return super().moment(power) + (self.fourths / 3.0 if power == 2 else 0.0)

    def scaled(self, factor: float) -> Self:
        """Return the deviation with variances multiplied by `factor`."""
        scaled = super().scaled(factor)
        return dataclasses.replace(scaled, unit=factor * self.unit, fourths=factor**2 * self.fourths)

    @property
    def cut(self) -> float:
        """Size of the corrections at the highest frequencies, which is about the probability of atoms."""
        ends = self.corrections[:, :, -(len(self.tau) // _ENDS) :]
        # At these frequencies the mean square is p²/2 for an atom of probability p, plus the variance of the noise.
        squares = ends.mean(axis=0) ** 2 - ends.var(axis=0, ddof=1) / len(ends)
        return float(np.sqrt(2.0 * np.maximum(squares.mean(axis=1), 0.0)).sum()) if len(self.tau) else 0.0

    def _corrected(self, size: FloatArray, *, density: bool) -> FloatArray:
        """Return the corrections to densities, or to P(y ≤ size)."""
        result = np.zeros((len(self.corrections), len(size)))
        if not len(self.tau):
            return result
        step = max(1, _BLOCK // len(self.tau))
        amplitudes = self.corrections * (_STEP / np.pi) * np.exp(-36.0 * (self.tau / self.tau[-1]) ** (2 * _TAPER))
        for k in np.flatnonzero(np.any(self.corrections != 0, axis=(0, 2))):
            root = np.sqrt(self.unit * 2.0 ** (k + _LOWEST))
            for near in np.array_split(np.flatnonzero(size < _REACH * root), 1 + len(size) // step):
                angles = np.outer(self.tau, size[near] / root)
                if density:
                    result[:, near] += amplitudes[:, k] / root @ np.cos(angles)
                else:
                    result[:, near] += amplitudes[:, k] / self.tau @ np.sin(angles)
        return result
