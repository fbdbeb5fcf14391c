"""`attncheck calibrate`: arguments, and the table that it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.arguments import Natural, ProfileName, Whole

if TYPE_CHECKING:
    from attncheck.calibration.error_rates import ErrorRates

# Chance that the table of a valid check is called violated.
_LEVEL = 1e-6
_COLUMNS = f"{'false alarms at 5%':>29} {'at 0.1%':>12} {'power':>7} {'verified':>9} {'draws':>8}  layer"


def calibrate(
    name: str,
    /,
    *,
    looks: Whole = 1000,
    verified: Natural = 50,
    profile: ProfileName = "smoke",
    subject: str | None = None,
    seed: Natural = 0,
    checks: list[str] | None = None,
) -> int:
    """Measure both error rates of a check: false alarms, and power against its paired fault.

    The exit code is 1 if a check has too many false alarms, and 3 if it detects its fault on no layer.

    Parameters
    ----------
    name
        Property, such as scores, or check, such as scores.scale.
    looks
        Number of small independent looks at a correct simulator, per layer.
    verified
        Number of looks at the fault that verify the power, per layer; 0 prints planned power only.
    profile
        Layers, and sizes of the looks at the fault.
    subject
        Correct simulator, MODULE:CALLABLE; default: that of the check's author, or attncheck's own.
    seed
        Seed of the measurement.
    checks
        Module that registers further checks; can be repeated.
    """
    from attncheck.calibration.error_rates import checks_to_calibrate, error_rates
    from attncheck.checks.registered import load_checks
    from attncheck.faults.pairs import paired
    from attncheck.looks.profiles import profile_named

    load_checks(checks or ())
    settled, rates, blind = profile_named(profile), list["ErrorRates"](), list[str]()
    for check in checks_to_calibrate(name):
        print(f"{check.name} against {paired(check.name).name}: {paired(check.name).what}\n{_COLUMNS}", flush=True)
        before = len(rates)
        for rate in error_rates(check, settled, looks, verified, seed, subject):
            rates.append(rate)
            print(_line(rate), flush=True)
        if not any(rate.detects(settled.power) for rate in rates[before:]):
            blind.append(check.name)
    bad = [rate for rate in rates if len(rates) * rate.excess(0.05) < _LEVEL]
    for rate in bad:
        print(f"VIOLATED: {rate.check.name} has too many false alarms on {rate.layer.describe()}")
    for each in blind:
        print(f"INCONCLUSIVE: {each} detects its fault on no layer with a power of {settled.power:.0%}")
    return ExitCode.VIOLATED if bad else ExitCode.INCONCLUSIVE if blind else ExitCode.CONSISTENT


def _line(rate: ErrorRates) -> str:
    often, seldom, chance, verified, draws = "not applicable", *["-"] * 4
    if rate.looks:
        low, high = rate.interval(0.05)
        often = f"{rate.alarms(0.05)}/{rate.looks} [{low:.1%}, {high:.1%}]"
        seldom = f"{rate.alarms(0.001)}/{rate.looks}"
    if rate.power is not None:
        chance, draws = f"{rate.power.chance:.1%}", f"{rate.power.look_draws:,}"
    if rate.power is not None and rate.power.looks:
        verified = f"{rate.power.seen}/{rate.power.looks}"
    return f"{often:>29} {seldom:>12} {chance:>7} {verified:>9} {draws:>8}  {rate.layer.describe()}"
