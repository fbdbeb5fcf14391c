"""Both error rates of a check: false alarms on a correct simulator, and power against its paired fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import scipy

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import refuse
from attncheck.calibration.found import Calibration
from attncheck.calibration.layers import calibrate
from attncheck.calibration.power.rows import PowerRow, rows_of
from attncheck.calibration.power.table import measure, verify
from attncheck.checks.check import AnyCheck
from attncheck.checks.registered import registrations
from attncheck.checks.registry import PROGRAM_PROPERTIES, check_named, checks_of
from attncheck.faults.pairs import PAIRS, paired
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.profiles import Profile
from attncheck.subject import collapsed

#: Confidence of the intervals of rates.
CONFIDENCE = 0.99


@dataclasses.dataclass(frozen=True)
class ErrorRates:
    """Error rates of one check on one layer.

    Attributes
    ----------
    check : AnyCheck
    layer : AttentionLayer
    false_alarms : Calibration or None
        First-look p-values on a correct simulator; None if the check does not apply.
    power : PowerRow or None
        Planned and verified detection of the fault; None if the fault does not show or the check does not apply.
    """

    check: AnyCheck
    layer: AttentionLayer
    false_alarms: Calibration | None
    power: PowerRow | None

    @property
    def looks(self) -> int:
        """Number of looks for false alarms."""
        return 0 if self.false_alarms is None else len(self.false_alarms.p_values)

    def alarms(self, level: float) -> int:
        """Return the number of false alarms at a level."""
        return 0 if self.false_alarms is None else self.false_alarms.alarms(level)

    def interval(self, level: float) -> tuple[float, float]:
        """Return the exact binomial confidence interval of the rate of false alarms at a level."""
        found = scipy.stats.binomtest(self.alarms(level), self.looks).proportion_ci(CONFIDENCE, method="exact")
        return float(found.low), float(found.high)

    def excess(self, level: float) -> float:
        """Return the probability of at least as many false alarms at a level if the check is valid."""
        return float(scipy.stats.binom.sf(self.alarms(level) - 1, self.looks, level))

    def detects(self, power: float) -> bool:
        """Return whether a look of the profile detects the fault with a probability of `power`."""
        return self.power is not None and self.power.chance >= power


def checks_to_calibrate(name: str) -> tuple[AnyCheck, ...]:
    """Return the checks of a property of layers, or one check.

    Raises
    ------
    InputError
        If there is none, or it is of programs.

    Examples
    --------
    >>> [check.name for check in checks_to_calibrate("inputs.law")]
    ['inputs.law']
    """
    if name.partition(".")[0] in PROGRAM_PROPERTIES:
        refuse("name", name, "is a property of programs", "pass one of layers; see benchmarks/programs.py for programs")
    return (check_named(name),) if "." in name else checks_of(name)


def error_rates(
    check: AnyCheck, profile: Profile, looks: int, verified: int, seed: int = 0, subject: Any = None
) -> Iterator[ErrorRates]:
    """Iterate over the error rates of a check, on the profile's fixed layers and its fault's.

    Parameters
    ----------
    check : AnyCheck
    profile : Profile
        Its layers and sizes of looks.
    looks, verified : int
        Small independent looks for false alarms, and looks that verify the power, per layer.
    seed : int
    subject : Any, optional
        Correct simulator; default: the registered one, or attncheck's own.
    """
    registered = [each.correct for each in registrations() if each.check.name == check.name]
    correct = subject or next(filter(None, registered), collapsed)
    fault, own = paired(check.name), [PAIRS[check.name][1]] if check.name in PAIRS else []
    for layer in dict.fromkeys([*profile.layers, *own]):
        with own_arithmetic():
            found = calibrate(layer, [check], looks, seed, correct)
            sights = measure(fault, [layer], profile, seed, [check.property_name])
            mine = [sight for sight in sights if sight.check_name == check.name]
            rows = [verify(row, profile, verified, seed) for row in rows_of(mine, "grams", profile, [layer])]
        yield ErrorRates(check, layer, found.get(check.name), rows[0] if rows else None)
