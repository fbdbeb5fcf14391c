"""Checks of programs: Definition 1, Fact 1, Theorem 1 and Corollary 2."""

from attncheck.checks.programs import averages, functionals, netsor, scores

#: Checks of programs.
PROGRAM_CHECKS = (*netsor.CHECKS, *averages.CHECKS, *scores.CHECKS, *functionals.CHECKS)
#: Properties that test with which power of n a deviation decreases, at several widths.
RATE_PROPERTIES = tuple(dict.fromkeys(check.property_name for check in averages.CHECKS))

__all__ = ["PROGRAM_CHECKS", "RATE_PROPERTIES"]
