"""Calibration results: p-values of a check under the null."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import scipy

from attncheck._lib.arrays import FloatArray
from attncheck.checks.registry import all_checks
from attncheck.evidence.distances import one_sample_distance, one_sample_tail

#: Levels at which false alarms are counted; the last is close to the level of a look.
LEVELS = (0.05, 0.01, 0.001, 5e-4)


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """First-look p-values of one check on correct samples, (replications,).

    They should be uniform if ``uniform``; otherwise they may be larger.
    """

    check: str
    uniform: bool
    p_values: FloatArray

    def joined(self, other: Calibration) -> Calibration:
        """Return the calibration over both sets of replications."""
        uniform = self.uniform and other.uniform
        return Calibration(self.check, uniform, np.concatenate([self.p_values, other.p_values]))

    def alarms(self, level: float) -> int:
        """Return the number of p-values below `level`."""
        return int((self.p_values < level).sum())

    def surprise(self, level: float) -> float:
        """Return the p-value of the number of alarms: one-sided, or two-sided if p-values must be uniform."""
        count, alarms = len(self.p_values), self.alarms(level)
        many = float(scipy.stats.binom.sf(alarms - 1, count, level))
        few = float(scipy.stats.binom.cdf(alarms, count, level)) if self.uniform else 1.0
        return min(1.0, (2.0 if self.uniform else 1.0) * min(many, few))

    def distance_p(self) -> float:
        """Return the Kolmogorov–Smirnov p-value, or 1 if p-values need not be uniform."""
        count = len(self.p_values)
        if not self.uniform or count == 0:
            return 1.0
        return one_sample_tail(one_sample_distance(np.sort(self.p_values)), count)

    @property
    def comparisons(self) -> int:
        """The number of p-values among which `least` takes the smallest."""
        return len(LEVELS) + self.uniform

    def least(self) -> float:
        """Return the smallest p-value of all comparisons, before correction for their number."""
        return min(self.distance_p(), *(self.surprise(level) for level in LEVELS))


def pooled(found: Iterable[dict[str, Calibration]]) -> dict[str, Calibration]:
    """Join each check's p-values over layers or programs, in registry order."""
    joined: dict[str, Calibration] = {}
    for calibration in (each for on_case in found for each in on_case.values()):
        before = joined.get(calibration.check)
        joined[calibration.check] = calibration if before is None else before.joined(calibration)
    return {check.name: joined[check.name] for check in all_checks() if check.name in joined}
