"""Distances of two laws from the difference of their characteristic functions."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arrays import FloatArray
from attncheck.theory.rates.gap import standard_error

ComplexArray = NDArray[np.complex128]

#: Computable distances.
METRICS: tuple[str, ...] = ("ks", "w1", "tv")
# Step of the frequencies in units of 1/std, which gives a period of 80 std, and their number.
_STEP, _COUNT = np.pi / 40.0, 1024
# Range and spacing of points, in standard deviations.
REACH, SPACING = 12.0, 0.02


def frequencies(std: float) -> FloatArray:
    """Return frequencies for laws with this standard deviation."""
    return np.asarray((np.arange(_COUNT) + 0.5) * (_STEP / std))


def _offsets() -> FloatArray:
    """Return the points of comparison, in standard deviations."""
    steps = round(REACH / SPACING)
    return np.asarray(SPACING * np.arange(-steps, steps + 1), dtype=np.float64)


# The array takes 20 MB and is slow to compute, so it is cached.
@functools.lru_cache(maxsize=1)
def _waves() -> ComplexArray:
    """Return e^{-iτt}, (frequencies, points), at unit standard deviation."""
    waves = np.asarray(np.exp(-1j * np.outer(frequencies(1.0), _offsets())))
    waves.setflags(write=False)
    return waves


@dataclasses.dataclass(frozen=True, eq=False)
class CharacteristicGap:
    """Difference of the characteristic functions of two laws of mean 0.

    `std` is their approximate standard deviation, `difference`, (repetitions, frequencies), complex at
    ``frequencies(std)``.
    """

    std: float
    difference: ComplexArray

    @functools.cached_property
    def points(self) -> FloatArray:
        """Points of comparison."""
        return np.asarray(self.std * _offsets(), dtype=np.float64)

    @functools.cached_property
    def _inverted(self) -> tuple[FloatArray, FloatArray]:
        """Differences of distribution functions and densities at `points`, (repetitions, points)."""
        tau, waves = frequencies(self.std), _waves()
        step = _STEP / self.std
        below = -(step / np.pi) * np.imag((self.difference / tau) @ waves)
        return below, (step / np.pi) * np.real(self.difference @ waves)

    def at(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return differences of distribution functions and of densities, (repetitions, points).

        The inversion is periodic, so points must lie within `REACH` standard deviations.
        """
        tau, step = frequencies(self.std), _STEP / self.std
        used = np.flatnonzero(np.any(self.difference != 0, axis=0))
        waves = np.exp(-1j * np.outer(tau[used], points))
        below = -(step / np.pi) * np.imag((self.difference[:, used] / tau[used]) @ waves)
        return below, (step / np.pi) * np.real(self.difference[:, used] @ waves)

    @property
    def cdf(self) -> FloatArray:
        """Difference of distribution functions at `points`, (repetitions, points)."""
        return self._inverted[0]

    def distance(self, metric: str) -> tuple[float, float]:
        """Return a distance and its error, four standard errors."""
        below, density = self._inverted
        spacing = self.std * SPACING
        if metric == "ks":
            mean = below.mean(axis=0)
            worst = int(np.argmax(np.abs(mean)))
            return float(abs(mean[worst])), standard_error(np.sign(mean[worst]) * below[:, worst])
        values = below if metric == "w1" else 0.5 * density
        replicates = spacing * (values @ np.sign(values.mean(axis=0)))
        return float(replicates.mean()), standard_error(replicates)
