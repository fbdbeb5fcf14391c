"""Twenty more public attention bugs, written without knowledge of the diagnoses."""

from benchmarks.diagnosis_bugs.parts import Reported
from benchmarks.diagnosis_bugs_2 import heads, scores, weights

__all__ = ["BUGS", "Reported"]

BUGS: tuple[Reported, ...] = tuple(
    bug for module in (weights, heads, scores) for bug in vars(module).values() if isinstance(bug, Reported)
)
