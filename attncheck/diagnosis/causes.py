"""What a failed run points at: likely causes in order, and what the failing layers have in common."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from attncheck.checks.claims import CLAIMS
from attncheck.evidence.verdicts import Verdict
from attncheck.records.schema import Result, of_pool
from attncheck.records.tallies import Space, Tally, tallied
from attncheck.records.words import in_alternatives

#: Claims in the order in which a simulator computes; a fault shows in everything that comes after it.
STAGES = tuple(CLAIMS)
#: Said where no cause that is known fits, and the causes that are told.
UNKNOWN, TOLD = "none that is known fits", 3
# A hint that so many checks share says little.
_GENERIC = 5


@dataclasses.dataclass(frozen=True)
class Cause:
    """A likely cause, and the checks that point at it.

    Attributes
    ----------
    hint : str
    tallies : tuple of Tally
        The violated checks with this hint, the most telling first.
    """

    hint: str
    tallies: tuple[Tally, ...]

    @property
    def leading(self) -> Tally:
        """The most telling check."""
        return self.tallies[0]


def stage(claim: str) -> tuple[int, str]:
    """Return the place of a claim along the computation; unknown ones come last."""
    return (STAGES.index(claim) if claim in STAGES else len(STAGES), claim)


def telling(results: Sequence[Result]) -> Mapping[str, Tally]:
    """Return the tallies that say what is wrong: of single results, of pools too where no single one is violated."""
    tallies = tallied([result for result in results if not of_pool(result)])
    return tallies if violated(tallies) else tallied(results)


def violated(tallies: Mapping[str, Tally]) -> list[Tally]:
    """Return the violated checks, the most telling first.

    Checks of a law as a whole or of the limit come last: they see everything and name nothing. Of the others
    those come first that fail wherever they are examined, then those that look at an earlier stage of the
    computation, then those with the larger effect.
    """
    sharing = Counter(tally.hint for tally in tallies.values() if tally.examined)

    def key(tally: Tally) -> tuple[bool, int, tuple[int, str], float, str]:
        broad = tally.kind == "limit" or sharing[tally.hint] >= _GENERIC
        share = tally.verdicts[Verdict.VIOLATED] / tally.examined
        return broad, -round(4 * share), stage(tally.claim), -_strength(tally), tally.name

    return sorted((tally for tally in tallies.values() if tally.verdicts[Verdict.VIOLATED]), key=key)


def causes(tallies: Mapping[str, Tally]) -> list[Cause]:
    """Return the likely causes, the first first."""
    groups: dict[str, list[Tally]] = {}
    for tally in violated(tallies):
        groups.setdefault(tally.hint, []).append(tally)
    return [Cause(hint, tuple(members)) for hint, members in groups.items()]


def hints(tallies: Mapping[str, Tally]) -> list[str]:
    """Return what the violated checks point at, the first first, where no cause was fitted."""
    return list(dict.fromkeys(cause.hint or UNKNOWN for cause in causes(tallies)))[:TOLD]


def sharpness(result: Result) -> float:
    """Return how far an effect lies from what is declared, in halves of its interval; ratios by their logarithms.

    Unlike a p-value it tells a violation that is plain from one that is plainer.
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
    """Return the violated result of a check that lies farthest from what is declared."""
    bad = [each for each in tally.worst if each.verdict == Verdict.VIOLATED]
    return max(bad or tally.worst, key=lambda each: (sharpness(each), each.id))


def sharpest_first(tallies: Mapping[str, Tally]) -> list[Tally]:
    """Return the violated checks, the sharpest first; those of the limit, which name nothing, come last."""

    def key(tally: Tally) -> tuple[bool, float, str]:
        return tally.kind == "limit", -sharpness(sharpest(tally)), tally.name

    return sorted(violated(tallies), key=key)


def diagnosed(tallies: Mapping[str, Tally]) -> Result | None:
    """Return the most telling violated result that carries a diagnosis, on its smallest layer."""
    smallest = (tally.smallest for tally in violated(tallies))
    return next((result for result in smallest if result is not None and result.diagnosis), None)


def common(space: Space) -> list[str]:
    """Return what all layers with a violation have in common and no other visited layer has.

    Examples
    --------
    >>> masks = ["causal", "causal", "none", "none"]
    >>> cases = {str(n): {"width": n, "seq_len": 1, "num_heads": 1, "mask": mask} for n, mask in enumerate(masks, 1)}
    >>> common(Space(cases, violated=frozenset({"1", "2"})))
    ['mask: causal']
    """
    bad = len(space.violated)
    if not bad or len(space.layers) - bad < 2:
        return []
    return [
        f"{name.replace('_', ' ')}: {value}"
        for name, counter in sorted(space.violated_values.items())
        for value, count in sorted(counter.items())
        if count == bad == space.values[name][value]
    ]


def _strength(tally: Tally) -> float:
    """Return the median deviation of the violated results, in units of what must be caught."""
    found = [in_alternatives(result, result.effect) for result in tally.worst if result.verdict == Verdict.VIOLATED]
    known = sorted(abs(value) for value in found if value is not None)
    return known[len(known) // 2] if known else 0.0
