"""What examined results speak of: the one place that says that a green is about the limit, or outputs, only."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attncheck.checks.check import AnyCheck
from attncheck.checks.registry import EVERY_CHECK
from attncheck.records.schema import Result, of_pool

#: Results on a law below which a run settles nothing; fewer where it planned fewer.
FEWEST_LAWS = 3
# The share of what was planned below which the first line says that little was examined.
_SMALL = 0.25
# What a subject exposes, or attncheck hands to it, without showing what it computes on the way.
_OUTSIDE = frozenset({"outputs", "inputs", "input_gram"})


@dataclass(frozen=True)
class Scope:
    """How far a run reaches.

    Attributes
    ----------
    planned, examined : int
        Results on single cases.
    laws : int
        Those of the examined ones that hold a law: not digits, repeats and the like, nor a symmetry alone.
    planned_laws : int
    words : str
        What the first line says beside a verdict: "limit only", "outputs only", "little examined", or nothing.

    Examples
    --------
    >>> reach = Scope.of({"outputs.limit": 4, "draws.signs": 10}, {"outputs.limit": 4, "draws.signs": 10})
    >>> reach.words, reach.laws, reach.doubt()
    ('limit only', 4, '')
    """

    planned: int
    examined: int
    planned_laws: int
    laws: int
    words: str

    @classmethod
    def of(cls, examined: Mapping[str, int], planned: Mapping[str, int]) -> Scope:
        """Return the scope of so many examined and planned results of each check, by name."""
        laws = {name: count for name, count in examined.items() if count and _holds_a_law(name)}
        wanted = sum(count for name, count in planned.items() if _holds_a_law(name))
        counts = sum(planned.values()), sum(examined.values())
        return cls(*counts, wanted, sum(laws.values()), _words(laws, *counts))

    @classmethod
    def of_results(cls, results: Iterable[Result]) -> Scope:
        """Return the scope of results that are at hand; pools are made of them and add nothing."""
        single = [result for result in results if not of_pool(result)]
        return cls.of(Counter(each.check for each in single if each.p_values), Counter(each.check for each in single))

    def doubt(self, fewest: int | None = None) -> str:
        """Return why so little settles nothing; empty where it is enough.

        Parameters
        ----------
        fewest : int, optional
            Examined results that are asked for; by default a few on a law, or all that there are to examine.
        """
        if fewest is not None and self.examined < fewest:
            return f"{self.examined:,} results were examined, {fewest:,} are asked for"
        least = min(FEWEST_LAWS, self.planned_laws)
        if self.laws >= least:
            return ""
        held = "none holds a law" if not self.laws else f"{self.laws} of them on a law"
        return f"too little was examined: {self.examined:,} of {self.planned:,} results, {held}, and it takes {least}"

    def beside(self, verdict: str) -> str:
        """Return a verdict as a first line has it.

        Examples
        --------
        >>> Scope(10, 10, 10, 10, "outputs only").beside("consistent")
        'CONSISTENT, OUTPUTS ONLY'
        """
        first = "ATTNCHECK'S OWN STATEMENT FAILED" if verdict == "refuted" else verdict.upper()
        return ", ".join(filter(None, (first, self.words.upper() if verdict == "consistent" else "")))


def _words(laws: Mapping[str, int], planned: int, examined: int) -> str:
    known = [check for name in laws if (check := _checks().get(name))]
    if not laws or len(known) < len(laws):  # a check of another version, or of a file, may see anything
        return ""
    if all(check.kind == "limit" for check in known):
        return "limit only"
    if all(check.needs <= _OUTSIDE for check in known):
        return "outputs only"
    return "little examined" if examined < _SMALL * planned else ""


def _holds_a_law(name: str) -> bool:
    check = _checks().get(name)
    return check is None or not (check.any_weights or check.claim == "draws")


@functools.cache
def _checks() -> dict[str, AnyCheck]:
    return {check.name: check for check in EVERY_CHECK}
