"""Violated checks of a failed run in order of usefulness, and the likely causes that they suggest."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from attncheck._lib.text import listed
from attncheck.checks.claims import CLAIMS
from attncheck.checks.declared import DRAWS, INPUTS, OUTPUTS, SCORES, STAGES, WEIGHTS_OR_VALUES
from attncheck.checks.registry import find_check
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.names import layer_name
from attncheck.records.explanation import Certainty, Explanation
from attncheck.records.schema import Result, of_pool
from attncheck.records.tallies import Tally, tallied
from attncheck.records.text import in_alternatives

#: Maximum number of causes shown.
MOST_CAUSES = 3
_UNKNOWN = "no known cause fits"
# Texts for the stages of the computation whose names do not fit into a sentence.
_TEXTS = {DRAWS: "dependence between draws", INPUTS: "the law of inputs"}
# Stages before the attention weights.
_EARLY = STAGES[: STAGES.index(WEIGHTS_OR_VALUES)]
# A hint is not specific if at least this many checks have it.
_GENERIC = 5


@dataclasses.dataclass(frozen=True)
class Cause:
    """A likely cause of violations.

    `hint` is the text of the cause. `tallies` are the violated checks that have this hint, the most specific first.
    """

    hint: str
    tallies: tuple[Tally, ...]

    @property
    def leading(self) -> Tally:
        """The most specific of the violated checks."""
        return self.tallies[0]


def stage(claim: str) -> tuple[int, str]:
    """Return a sort key that orders the claims of checks by their place in the computation, unknown ones last."""
    return ([*CLAIMS, claim].index(claim), claim)


def most_informative(results: Sequence[Result]) -> Mapping[str, Tally]:
    """Return the results from which causes are derived, grouped by check.

    They include pools only if no single case is violated.
    """
    tallies = tallied([result for result in results if not of_pool(result)])
    return tallies if violated(tallies) else tallied(results)


def violated(tallies: Mapping[str, Tally]) -> list[Tally]:
    """Return the violated checks, the most specific first.

    Limit checks, and checks whose hint many other checks have too, come last. Among the others, a larger share of
    violated cases, then an earlier stage of the computation, then a larger effect comes first.
    """
    sharing = Counter(tally.hint for tally in tallies.values() if tally.examined)

    def key(tally: Tally) -> tuple[bool, int, tuple[int, str], float, str]:
        broad = tally.kind == "limit" or sharing[tally.hint] >= _GENERIC
        share = tally.verdicts[Verdict.VIOLATED] / tally.examined
        return broad, -round(4 * share), stage(tally.claim), -_strength(tally), tally.name

    return sorted((tally for tally in tallies.values() if tally.verdicts[Verdict.VIOLATED]), key=key)


def by_cause(tallies: Iterable[Tally]) -> list[Cause]:
    """Group violated checks by hint, in the order in which hints first occur."""
    groups: dict[str, list[Tally]] = {}
    for tally in tallies:
        groups.setdefault(tally.hint, []).append(tally)
    return [Cause(cause, tuple(members)) for cause, members in groups.items()]


def hints(tallies: Mapping[str, Tally]) -> list[Explanation]:
    """Return the hints of the violated checks in order, for runs in which no cause could be fitted."""
    texts = dict.fromkeys(cause.hint or _UNKNOWN for cause in by_cause(violated(tallies)))
    return [Explanation(text, Certainty.HINTED) for text in texts][:MOST_CAUSES]


def first_stages(tallies: Mapping[str, Tally]) -> list[str]:
    """Return a list with a sentence on the first stage with violated checks; empty for programs."""
    counts = {stage: [0, 0] for stage in STAGES}
    for tally in tallies.values():
        if (stage := stage_of(tally.name)) and tally.examined:
            counts[stage][0] += tally.examined
            counts[stage][1] += tally.verdicts[Verdict.VIOLATED]
    violations = {stage: count for stage, (examined, count) in counts.items() if examined}
    wrong = next((stage for stage, count in violations.items() if count), "")
    if not wrong:
        return []
    passed = list(itertools.takewhile(lambda stage: stage != wrong, violations))
    texts = [_TEXTS.get(stage, stage) for stage in passed]
    before = f"{listed(texts)} {'passes' if passed in ([DRAWS], [INPUTS]) else 'pass'}; " if passed else ""
    where, ask = f"the fault begins with {_TEXTS.get(wrong, wrong)}", ""
    if wrong == OUTPUTS and SCORES not in violations:
        where = "outputs do not" if passed else "outputs are violated"
        ask = "; return scores to see where the fault begins"
    worst = sharpest(next(tally for tally in sharpest_first(tallies) if stage_of(tally.name) == wrong))
    on = "" if of_pool(worst) else f" on {layer_name(worst.case)}"
    return [f"{before}{where}: {worst.text}{on}{ask}"]


def precedes(tallies: Mapping[str, Tally], explanation: Explanation) -> bool:
    """Return whether a violated check concerns an earlier stage of the computation than an explanation."""
    stages = {stage_of(tally.name) for tally in violated(tallies)}.intersection(_EARLY)
    return any(STAGES.index(stage) < STAGES.index(explanation.stage) for stage in stages)


def stage_of(name: str) -> str:
    """Return the stage of the computation that a check tests; empty if it tests none, or is not known."""
    check = find_check(name)
    return check.stage if check else ""


def sharpness(result: Result) -> float:
    """Return the distance of an effect from its declared value, in units of half the width of its interval.

    For ratios, the distance and the interval are those of their logarithms.
    """
    values = result.effect, result.low, result.high, result.null_effect
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < len(values):
        return 0.0
    if result.null_effect == 1.0 and min(known) > 0.0:
        known = [math.log(value) for value in known]
    effect, low, high, null = known
    return abs(effect - null) / max(0.5 * (high - low), 1e-12)


def sharpest(tally: Tally) -> Result:
    """Return the violated result of a check that has the largest `sharpness`."""
    bad = [result for result in tally.worst if result.verdict == Verdict.VIOLATED]
    return max(bad or tally.worst, key=lambda result: (sharpness(result), result.id))


def sharpest_first(tallies: Mapping[str, Tally]) -> list[Tally]:
    """Return the violated checks of the first violated stage, then the others, each by decreasing sharpness.

    Limit checks come last.
    """
    bad = violated(tallies)
    stages = [name for tally in bad if (name := stage_of(tally.name))]
    first = min(stages, key=STAGES.index, default="")

    def key(tally: Tally) -> tuple[bool, bool, float, str]:
        return tally.kind == "limit", stage_of(tally.name) != first, -sharpness(sharpest(tally)), tally.name

    return sorted(bad, key=key)


def diagnosed(tallies: Mapping[str, Tally]) -> Result | None:
    """Return the first violated result that has a diagnosis, or None.

    Violated checks are searched, the most specific first; of each check, only the violated result on the smallest layer
    counts.
    """
    smallest = (tally.smallest for tally in violated(tallies))
    return next((result for result in smallest if result is not None and result.diagnosis), None)


def _strength(tally: Tally) -> float:
    """Return the median absolute effect of the violated results, in units of the effect that the check must detect."""
    effects = [in_alternatives(result, result.effect) for result in tally.worst if result.verdict == Verdict.VIOLATED]
    known = sorted(abs(value) for value in effects if value is not None)
    return known[len(known) // 2] if known else 0.0
