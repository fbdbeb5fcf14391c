"""Types and exclusions shared by checks of programs."""

from __future__ import annotations

from attncheck.checks.check import CheckOf
from attncheck.checks.declared import AlternativeOf
from attncheck.checks.programs.functionals import ProgramReference
from attncheck.checks.programs.sample import ProgramSample, ProgramSetting

ProgramCheck = CheckOf[ProgramSetting, ProgramSample, ProgramReference]
ProgramAlternative = AlternativeOf[ProgramSetting]

#: Fields needed for exact statements on vectors.
ONE_WIDTH = frozenset({"vectors", "gram"})


def several_widths(setting: ProgramSetting) -> str:
    """Return the reason to exclude a case without three suitable widths, or an empty string."""
    widths = setting.case.widths
    even = len(widths) == 3 and widths[1] ** 2 == widths[0] * widths[2] and widths[0] >= 32
    return "" if even else "an order in n needs three widths of at least 32, in a fixed ratio"


def no_limit(setting: ProgramSetting) -> str:
    """Return the reason to exclude a program without a limit by Definition 1, or an empty string."""
    covered = setting.case.program.coverage()
    worst = covered.worst
    return "" if covered.has_limit else f"no limit is stated: {worst.name} {worst.statement}, {worst.reason}"
