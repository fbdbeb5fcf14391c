"""Laws of sums of independent terms less their limit: as mixtures of normals, and what the terms' law adds to these.

Given its terms' sizes c a sum Σ c_k w_k has a variance v = Σ c_k² and a characteristic function Π cf(τ c_k). The law is
that of √v N, kept as a measure of v, and a correction Π cf(τ c_k) - e^{-τ²v/2}, kept in bins of v on frequencies in
units of 1/√v. On the scale of its bin the correction falls off as fast for a v near 0 as for a large one, so that laws
with a peak, or an atom, at 0 are no harder than others, and tails far out keep their relative accuracy.
"""

from __future__ import annotations

import dataclasses
from typing import Self

import numpy as np
from numpy.typing import NDArray

from attncheck.theory.rates.deviation import Deviation

FloatArray = NDArray[np.float64]

# Bins of v, each from a power of 2 times a unit to four times that, and the lowest and the highest power.
_LOWEST, _HIGHEST = -24, 16
BINS = _HIGHEST - _LOWEST + 1
# Bins overlap: which of two has a v is drawn. Sharp ends would have characteristic functions that fall off slowly.
_OVERLAP = 3.0
# Frequencies in units of 1/√(least v of the bin): their step, which makes corrections repeat after 48, and how far a
# correction from so many terms reaches. It falls about as τ^{-terms}.
_STEP, _FARTHEST, _BEND, _FEWEST_TERMS = np.pi / 24.0, 6.5, 128.0, 2
# Which part of them, the highest, says what is cut off.
_ENDS = 4
# Corrections are 0 further out, in units of √(least v of the bin).
_REACH = 20.0
# How smoothly the frequencies end.
_TAPER = 8
# Entries of a block of points and frequencies.
_BLOCK = 2**21


def frequencies(terms: int) -> FloatArray:
    """Return the frequencies at which sums of so many terms differ from normal numbers."""
    highest = _FARTHEST * (1.0 + _BEND / max(_FEWEST_TERMS, terms) ** 2)
    return np.asarray((np.arange(round(highest / _STEP)) + 0.5) * _STEP)


def bins_of(variances: FloatArray, unit: float, rng: np.random.Generator) -> tuple[NDArray[np.intp], FloatArray]:
    """Return a bin of each variance, and the least variance of that; beyond the ends they are in the last ones."""
    with np.errstate(divide="ignore"):
        powers = np.log2(variances / unit) + rng.beta(_OVERLAP, _OVERLAP, len(variances))
    lowest = np.clip(np.floor(powers) - 1.0, _LOWEST, _HIGHEST)
    return (lowest - _LOWEST).astype(np.intp), unit * 2.0**lowest


@dataclasses.dataclass(frozen=True, eq=False)
class SumDeviation(Deviation):
    """The law of a sum of independent terms less its limit, in independent repetitions.

    Attributes
    ----------
    item : float
        What variances are binned in units of.
    corrections : ndarray, shape (REPLICATES, `BINS`, frequencies)
        Means of what the law of the terms adds to the characteristic function, over all draws.
    fourths : ndarray, shape (REPLICATES,)
        Means of the sums' fourth cumulants, given their terms' sizes.
    tau : ndarray, shape (frequencies,)
    """

    unit: float
    corrections: FloatArray
    fourths: FloatArray
    tau: FloatArray

    def upper_tail(self, size: FloatArray) -> FloatArray:
        """Return the difference of P(y > size) for sizes ≥ 0, (REPLICATES, sizes)."""
        return super().upper_tail(size) - self._corrected(size, density=False)

    def density(self, size: FloatArray) -> FloatArray:
        """Return the difference of densities, (REPLICATES, sizes)."""
        return super().density(size) + self._corrected(size, density=True)

    def moment(self, power: float) -> FloatArray:
        """Return the difference of E v^power, (REPLICATES,); with the power 2 that of E y⁴/3."""
        return super().moment(power) + (self.fourths / 3.0 if power == 2 else 0.0)

    def scaled(self, factor: float) -> Self:
        """Return that of laws with variances multiplied by `factor` > 0."""
        scaled = super().scaled(factor)
        return dataclasses.replace(scaled, unit=factor * self.unit, fourths=factor**2 * self.fourths)

    @property
    def cut(self) -> float:
        """What is left of corrections at the highest frequencies: about the chance of atoms."""
        ends = self.corrections[:, :, -(len(self.tau) // _ENDS) :]
        # An atom of chance p leaves the square p²/2, and noise its variance.
        squares = ends.mean(axis=0) ** 2 - ends.var(axis=0, ddof=1) / len(ends)
        return float(np.sqrt(2.0 * np.maximum(squares.mean(axis=1), 0.0)).sum()) if len(self.tau) else 0.0

    def _corrected(self, size: FloatArray, *, density: bool) -> FloatArray:
        """Return what corrections add to densities, or to P(y ≤ size)."""
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
