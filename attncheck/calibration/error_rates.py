"""Both error rates of a check: false alarms on a correct simulator, and power against its paired fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import refuse
from attncheck.calibration.layers import Calibration, calibrate
from attncheck.calibration.power.rows import PowerEntry, PowerRow, rows_of
from attncheck.calibration.power.table import measure, verified
from attncheck.checks.check import AnyCheck
from attncheck.checks.registry import PROGRAM_PROPERTIES, check_named, checks_of
from attncheck.faults.pairs import paired
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.profiles import Profile
from attncheck.subject import collapsed


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
        If there is no such check or property, or it concerns programs or compares calls exactly.

    Examples
    --------
    >>> [check.name for check in checks_to_calibrate("inputs.law")]
    ['inputs.law']
    """
    if name.partition(".")[0] in PROGRAM_PROPERTIES:
        refuse("name", name, "is a property of programs", "pass one of layers, or see benchmarks/evidence.py")
    checks = (check_named(name),) if "." in name else checks_of(name)
    if not all(check.rejects.faults for check in checks):
        problem = "compares calls exactly, so that its false alarms do not depend on draws"
        refuse("name", name, problem, "pass another property of layers")
    return checks


def error_rates(
    check: AnyCheck, profile: Profile, looks: int, seeds: int, seed: int = 0, subject: Any = collapsed
) -> Iterator[ErrorRates]:
    """Iterate over the error rates of a check on the profile's fixed layers, and on the layer paired with its fault.

    Layers to which the check does not apply are skipped.

    Parameters
    ----------
    check : AnyCheck
    profile : Profile
        Profile that gives layers and sizes of looks.
    looks, seeds : int
        Numbers per layer of small independent looks for false alarms, and of looks that verify the power.
    seed : int
    subject : Any
        Correct simulator.
    """
    fault, fault_layer = paired(check)[0], check.rejects.layer
    layers = dict.fromkeys(profile.layers if fault_layer is None else (*profile.layers, fault_layer))
    for layer in (layer for layer in layers if not check.requires.reason(layer)):
        with own_arithmetic():
            calibrations = calibrate(layer, [check], looks, seed, subject)
            pilots = measure(fault, [layer], profile, seed, [check.property_name])
            mine = [pilot for pilot in pilots if pilot.check_name == check.name]
            entry = PowerEntry(fault.name, "grams", rows_of(mine, "grams", profile, [layer]))
            power = verified(entry, profile, seeds, seed).best
        for alarms in (calibration for calibration in calibrations.values() if len(calibration.p_values)):
            yield ErrorRates(check, layer, alarms, power)
