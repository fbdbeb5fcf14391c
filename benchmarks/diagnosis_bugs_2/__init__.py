"""Twenty more wrong attentions from public reports, written without knowledge of what diagnoses say."""

from benchmarks.diagnosis_bugs.parts import Reported
from benchmarks.diagnosis_bugs_2 import heads, scores, weights

__all__ = ["BUGS", "Reported"]

BUGS: tuple[Reported, ...] = tuple(
    bug for module in (weights, heads, scores) for bug in vars(module).values() if isinstance(bug, Reported)
)
