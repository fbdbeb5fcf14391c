"""Both error rates of a check: false alarms on a correct simulator, and power against its paired fault.

False alarms are counted on many small samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import scipy

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_integer, refuse
from attncheck._lib.streams import seed_sequence, stream
from attncheck.calibration.power import PowerEntry, PowerRow, measure, rows_of, verified
from attncheck.checks.check import AnyCheck, Check, Setting
from attncheck.checks.reference import Reference
from attncheck.checks.registry import PROGRAM_PROPERTIES, all_checks, check_named, checks_of
from attncheck.checks.sample import Sample
from attncheck.evidence.distances import one_sample_distance, one_sample_tail
from attncheck.evidence.family import Outcome
from attncheck.faults.pairs import paired
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.look import join
from attncheck.looks.profiles import Profile
from attncheck.subject import Subject, collapsed

#: Number of draws in a small sample, unless the check's family needs more.
DRAWS = 40
# Number of looks' draws in a pilot: with those of one look, the effect that a check is planned to detect may be missed.
_PILOT = 8
# Number of array entries in a large sample (8 MiB), which is cut into small ones.
_ENTRIES = 2**20
#: Levels at which false alarms are counted; the last is close to the level of a look.
LEVELS = (0.05, 0.01, 0.001, 5e-4)


def draws_for(check: Check, setting: Setting) -> int:
    """Return the number of draws in a small sample for a check.

    The draws give at least `DRAWS` observations per call of the subject, and at least 1.2 times the number of
    observations that the check's family needs.
    """
    return max(DRAWS * check.calls, check.family_on(setting).minimum_count * 6 // 5) * check.draws_per_unit


def calibrate(
    layer: AttentionLayer,
    checks: Iterable[Check],
    replications: int,
    seed: int = 0,
    subject: Any = collapsed,
) -> dict[str, Calibration]:
    """Return, by check name, the p-values of applicable checks on `replications` small samples of a correct subject.

    The default subject is the collapsed method, attncheck's fast sampler of a correct layer.

    Examples
    --------
    >>> from attncheck.checks.registry import checks_of
    >>> rates = calibrate(AttentionLayer(width=4), checks_of("draws"), 50)
    >>> len(rates["draws.signs"].p_values), rates["draws.signs"].uniform
    (50, False)
    """
    calibrations: dict[str, Calibration] = {}
    for check, setting, outcomes in small_outcomes(layer, checks, replications, seed, subject):
        uniform = check.kind == "exact" and check.family_on(setting).continuous
        p_values = np.array([outcome.p_value for outcome in outcomes if outcome.count])
        calibrations[check.name] = Calibration(check.name, uniform, p_values)
    return calibrations


def small_outcomes(
    layer: AttentionLayer, checks: Iterable[Check], replications: int, seed: int = 0, subject: Any = collapsed
) -> Iterator[tuple[Check, Setting, list[Outcome]]]:
    """Yield each applicable check with its setting and a list of outcomes, one per small sample; see `calibrate`."""
    check_integer("replications", replications, 1, "pass a number of samples, e.g. replications=1000")
    simulator = Subject.of(subject)
    setting = simulator.probe(layer, stream(seed, "calibration", layer.key, role="probe"))
    setting = dataclasses.replace(setting, draw_on=None)  # exact comparisons have no error rates
    examined = [check for check in checks if not check.reason_not_examined(setting)]
    for size in sorted({draws_for(check, setting) for check in examined}):
        group = [check for check in examined if draws_for(check, setting) == size]
        outcomes: dict[Check, list[Outcome]] = {check: [] for check in group}
        for sample, reference in _small_samples(simulator, setting, size, replications, seed):
            for check in group:
                outcomes[check].append(check.test(setting, measured(check, setting, sample, reference)))
        for check in group:
            yield check, setting, outcomes[check]


def measured(check: AnyCheck, setting: Any, sample: Any, reference: Any) -> tuple[Any, ...]:
    """Return the data that a check measures on a sample.

    If the check compares several calls of the subject, the sample is cut into that many slices, and each slice stands
    for one call.
    """
    if check.calls == 1:
        return check.data(setting, sample, reference)
    size = len(sample) // check.calls
    parts = (sample[start : start + size] for start in range(0, size * check.calls, size))
    return join([check.data(setting, part, reference) for part in parts])


def _small_samples(
    subject: Subject, setting: Setting, size: int, replications: int, seed: int
) -> Iterator[tuple[Sample, Reference]]:
    """Draw large samples, and yield `replications` slices of `size` draws, each with a reference of as many draws."""
    layer = setting.layer
    key = ("calibration", layer.key, size)
    rng, root = stream(seed, *key), seed_sequence(seed, *key, role="reference")
    stored = layer.num_heads * layer.seq_len**2 + layer.seq_len * layer.width
    most = max(1, _ENTRIES // (stored * size))
    for start in range(0, replications, most):
        count = min(most, replications - start)
        sample = subject.draw_as(setting, count * size, rng)
        for first, child in zip(range(0, len(sample), size), root.spawn(count), strict=True):
            yield sample[first : first + size], Reference(layer, size, setting.coordinates, child)


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """P-values of one check on small samples of a correct subject, (replications,).

    The p-values should be uniform if ``uniform`` is True; otherwise they may be stochastically larger.
    """

    check: str
    uniform: bool
    p_values: FloatArray

    def joined(self, calibration: Calibration) -> Calibration:
        """Return a calibration with the p-values of this one and of `calibration`."""
        uniform = self.uniform and calibration.uniform
        return Calibration(self.check, uniform, np.concatenate([self.p_values, calibration.p_values]))

    def alarms(self, level: float) -> int:
        """Return the number of p-values below `level`."""
        return int((self.p_values < level).sum())

    def surprise(self, level: float) -> float:
        """Test whether the number of p-values below `level` is as expected, and return the p-value of this test.

        The test is two-sided if p-values must be uniform. Otherwise it is one-sided, because then they may be larger
        than uniform ones, so that only too many small ones are wrong.
        """
        count, alarms = len(self.p_values), self.alarms(level)
        many = float(scipy.stats.binom.sf(alarms - 1, count, level))
        few = float(scipy.stats.binom.cdf(alarms, count, level)) if self.uniform else 1.0
        return min(1.0, (2.0 if self.uniform else 1.0) * min(many, few))

    def distance_p(self) -> float:
        """Return the p-value of a Kolmogorov–Smirnov test that p-values are uniform, or 1 if they need not be."""
        count = len(self.p_values)
        if not self.uniform or count == 0:
            return 1.0
        return one_sample_tail(one_sample_distance(np.sort(self.p_values)), count)

    def least(self) -> float:
        """Return the smallest of the p-values from `distance_p` and from `surprise` at each of the `LEVELS`.

        The result is not corrected for the number of these p-values.
        """
        return min(self.distance_p(), *(self.surprise(level) for level in LEVELS))


def pooled(by_case: Iterable[dict[str, Calibration]]) -> dict[str, Calibration]:
    """Join the p-values of each check on all layers or programs.

    `by_case` has one mapping by check name for each layer or program; checks in the result are in the order of the
    registry.
    """
    joined: dict[str, Calibration] = {}
    for calibration in (entry for on_case in by_case for entry in on_case.values()):
        before = joined.get(calibration.check)
        joined[calibration.check] = calibration if before is None else before.joined(calibration)
    return {check.name: joined[check.name] for check in all_checks() if check.name in joined}


@dataclasses.dataclass(frozen=True)
class ErrorRates:
    """Error rates of one check on one layer.

    Attributes
    ----------
    check : AnyCheck
    layer : AttentionLayer
    false_alarms : Calibration
        p-values on a correct simulator.
    power : PowerRow or None
        Planned and verified detection of the fault; None if the fault does not show on this layer.
    """

    check: AnyCheck
    layer: AttentionLayer
    false_alarms: Calibration
    power: PowerRow | None


def checks_to_calibrate(name: str) -> tuple[AnyCheck, ...]:
    """Return the checks of a property of layers, or a single check, by name.

    Raises
    ------
    InputError
        If there is no such check or property, if it is one of programs, or if it compares calls exactly.

    Examples
    --------
    >>> [check.name for check in checks_to_calibrate("inputs.law")]
    ['inputs.law']
    """
    if name.partition(".")[0] in PROGRAM_PROPERTIES:
        refuse("name", name, "is a property of programs", "pass a property of layers, or see benchmarks/evidence.py")
    checks = (check_named(name),) if "." in name else checks_of(name)
    if not all(check.rejects.faults for check in checks):
        problem = "compares calls exactly, so that it has no error rates to measure"
        refuse("name", name, problem, "pass another property of layers")
    return checks


def error_rates(
    check: AnyCheck, profile: Profile, looks: int, seeds: int, seed: int = 0, subject: Any = collapsed
) -> Iterator[ErrorRates]:
    """Iterate over the error rates of a check on the fixed layers of a profile.

    If the check names a layer on which its fault is to be detected, that layer is examined, too. Layers to which the
    check does not apply are skipped.

    Parameters
    ----------
    check : AnyCheck
    profile : Profile
        Profile that determines the fixed layers and the sizes of looks.
    looks : int
        Number of small samples per layer on which false alarms are counted.
    seeds : int
        Maximum number of looks per layer that verify the power.
    seed : int
    subject : Any
        Correct simulator.
    """
    fault, fault_layer = paired(check)[0], check.rejects.layer
    layers = dict.fromkeys(profile.layers if fault_layer is None else (*profile.layers, fault_layer))
    for layer in (layer for layer in layers if not check.requires.reason(layer)):
        with own_arithmetic():
            calibrations = calibrate(layer, [check], looks, seed, subject)
            pilots = measure(fault, [layer], profile, seed, [check.property_name], _PILOT)
            mine = [pilot for pilot in pilots if pilot.check_name == check.name]
            entry = PowerEntry(fault.name, "grams", rows_of(mine, "grams", profile, [layer]))
            power = verified(entry, profile, seeds, seed).best
        for alarms in (calibration for calibration in calibrations.values() if len(calibration.p_values)):
            yield ErrorRates(check, layer, alarms, power)
