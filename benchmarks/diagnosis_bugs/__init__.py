"""Twenty public attention bugs, with expected messages, written before any diagnosis."""

from benchmarks.diagnosis_bugs import heads, scores, weights
from benchmarks.diagnosis_bugs.parts import Reported

__all__ = ["BUGS", "Reported"]

BUGS: tuple[Reported, ...] = tuple(
    bug for module in (weights, heads, scores) for bug in vars(module).values() if isinstance(bug, Reported)
)
