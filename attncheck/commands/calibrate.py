"""`attncheck calibrate`: arguments and output table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.arguments import Integer, Natural, ProfileName

if TYPE_CHECKING:
    from attncheck.calibration.error_rates import ErrorRates

# Probability that a table is reported as wrong if the false-alarm rates of all its checks are right, and the
# significance level at which false alarms are counted.
_LEVEL, _ALARM = 1e-6, 0.05
_COLUMNS = f"{'false alarms at 5%':>29} {'at 0.1%':>12} {'power':>7} {'verified':>9} {'draws':>8}  layer"


def calibrate(
    name: str,
    /,
    *,
    looks: Integer = 1000,
    verified: Natural = 50,
    profile: ProfileName = "smoke",
    subject: str | None = None,
    seed: Natural = 0,
    checks: list[str] | None = None,
) -> int:
    """Measure both error rates of a check: false alarms, and power against its paired fault.

    The exit code is 1 if the rate of false alarms is wrong, and 3 if the check detects its fault on no layer.

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
        Correct simulator, MODULE:CALLABLE; default: attncheck's own.
    seed
        Seed of the measurement.
    checks
        Module that registers further checks; can be repeated.
    """
    from attncheck.calibration.error_rates import checks_to_calibrate, error_rates
    from attncheck.checks.registered import load_checks
    from attncheck.faults.pairs import paired
    from attncheck.looks.profiles import profile_named
    from attncheck.subject import collapsed

    load_checks(checks or ())
    named_profile, rates, blind = profile_named(profile), list["ErrorRates"](), list[str]()
    for check in checks_to_calibrate(name):
        fault = paired(check)[0]
        print(f"{check.name} against {fault.name}: {fault.what}\n{_COLUMNS}", flush=True)
        before = len(rates)
        for rate in error_rates(check, named_profile, looks, verified, seed, subject or collapsed):
            rates.append(rate)
            print(_line(rate), flush=True)
        if not any(rate.power and rate.power.chance >= named_profile.power for rate in rates[before:]):
            blind.append(check.name)
    bad = [rate for rate in rates if len(rates) * rate.false_alarms.surprise(_ALARM) < _LEVEL]
    for rate in bad:
        print(f"VIOLATED: {rate.check.name} has false alarms at a wrong rate on {rate.layer.describe()}")
    for check_name in blind:
        print(f"INCONCLUSIVE: {check_name} detects its fault on no layer with a power of {named_profile.power:.0%}")
    return ExitCode.VIOLATED if bad else ExitCode.INCONCLUSIVE if blind else ExitCode.CONSISTENT


def _line(rate: ErrorRates) -> str:
    import scipy

    alarms, of, row = rate.false_alarms, len(rate.false_alarms.p_values), rate.power
    rates = scipy.stats.binomtest(alarms.alarms(_ALARM), of).proportion_ci(0.99, method="exact")
    often = f"{alarms.alarms(_ALARM)}/{of} [{rates.low:.1%}, {rates.high:.1%}]"
    chance, draws = ("-", "-") if row is None else (f"{row.chance:.1%}", f"{row.look_draws:,}")
    verified = f"{row.seen}/{row.looks}" if row and row.looks else "-"
    seldom = f"{alarms.alarms(0.001)}/{of}"
    return f"{often:>29} {seldom:>12} {chance:>7} {verified:>9} {draws:>8}  {rate.layer.describe()}"
