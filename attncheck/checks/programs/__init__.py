"""Checks of programs: what Definition 1, Fact 1, Theorem 1 and Corollary 2 say of lines written one by one."""

from attncheck.checks.programs import averages, laws, netsor, scores

#: Every check of programs.
PROGRAM_CHECKS = (*netsor.CHECKS, *averages.CHECKS, *scores.CHECKS, *laws.CHECKS)

__all__ = ["PROGRAM_CHECKS"]
