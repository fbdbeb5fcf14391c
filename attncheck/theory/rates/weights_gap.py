"""The law of an output with other weights, less its limit, by characteristic functions: distances and divergence."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attncheck.theory.limits.mixture import ScaleMixture
from attncheck.theory.rates.gap import standard_error
from attncheck.theory.rates.inversion import SPACING, CharacteristicGap, frequencies

FloatArray = NDArray[np.float64]

#: Moments that are kept: the second and the fourth.
MOMENTS = 2
# A density is known where its standard error is less than this share of the limit's.
_KNOWN = 0.5
# A density at finite width is never taken for less than this share of the limit's.
_LEAST_SHARE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class WeightsGap(CharacteristicGap):
    """The difference of the law of an output and of its limit.

    Attributes
    ----------
    limit : ScaleMixture
    moments : ndarray, shape (repetitions, 2)
        Differences of the second and the fourth moment; NaN where not known.
    draws : int
        Of all repetitions together.
    """

    limit: ScaleMixture
    moments: FloatArray
    draws: int

    @functools.cached_property
    def cut(self) -> float:
        """What is left of the difference at the highest frequency: beyond, it is taken for 0."""
        used = np.flatnonzero(np.any(self.difference != 0, axis=0))
        return float(np.abs(self.difference[:, used[-2:]].mean(axis=0)).max(initial=0.0))

    def square(self) -> tuple[float, float]:
        """Return the leading term of the divergence, ∫ Δf²/(2f), and its error."""
        density = self._inverted[1]
        base, mean = self.limit.density(np.abs(self.points)), density.mean(axis=0)
        inside = np.abs(self.points) < self.std * self._known(density, base)
        base, mean, density = base[inside], mean[inside], density[:, inside]
        noise = density.var(axis=0, ddof=1) / len(density)
        value = self.std * SPACING * float(((mean**2 - noise) / (2.0 * base)).sum())
        return value, standard_error(self.std * SPACING * (density - mean) @ (mean / base))

    def divergence(self, beyond: Callable[[float], float]) -> tuple[float, float]:
        """Return KL(finite ‖ limit) and its error.

        Parameters
        ----------
        beyond : callable
            The part of it beyond ± a number of standard deviations, out to which densities are known here. It is the
            most that the error has beside the noise: all of that part.
        """
        density = self._inverted[1]
        base, mean = self.limit.density(np.abs(self.points)), density.mean(axis=0)
        reach = self._known(density, base)
        if reach <= SPACING:
            return math.nan, math.inf
        noise = density.var(axis=0, ddof=1) / len(density)
        inside = np.abs(self.points) <= reach * self.std
        base, mean, noise = base[inside], mean[inside], noise[inside]
        share = np.maximum(mean / base, _LEAST_SHARE - 1.0)
        logs = np.log1p(share)
        # A square of noise adds to what is a square to leading order.
        each = base * ((1.0 + share) * logs - share) - 0.5 * noise / (base * (1.0 + share))
        rest = beyond(reach)
        value = max(self.std * SPACING * float(each.sum()), 0.0) + rest
        return value, standard_error(self.std * SPACING * ((density[:, inside] - mean) @ logs)) + rest

    def _known(self, density: FloatArray, base: FloatArray) -> float:
        """Return within how many standard deviations the density is known everywhere."""
        noise, out = density.std(axis=0, ddof=1) / np.sqrt(len(density)), np.abs(self.points) / self.std
        # What a sharp end T of the frequencies leaves: at most min(1/|t|, T)/π times what is cut off.
        highest = self.std * frequencies(self.std)[np.any(self.difference != 0, axis=0)].max(initial=0.0)
        ripple = self.cut / (np.pi * self.std) * np.minimum(1.0 / np.maximum(out, SPACING), highest)
        unknown = ~(noise + ripple < _KNOWN * base)
        return float(out[unknown].min()) - 0.5 * SPACING if unknown.any() else float(out.max())

    def excess_kurtosis(self) -> tuple[float, float]:
        """Return the excess kurtosis at the width, and its error."""
        second = self.limit.mean() + self.moments[:, 0]
        fourth = 3.0 * (self.limit.variance() + self.limit.mean() ** 2) + self.moments[:, 1]
        mean, high = second.mean(), fourth.mean()
        replicates = fourth / mean**2 - 2.0 * high * second / mean**3
        return float(high / mean**2 - 3.0), standard_error(replicates)
