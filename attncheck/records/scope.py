"""Scope of results, which qualifies a pass, for example as "limit only" or "outputs only"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attncheck.checks.registry import PROGRAM_PROPERTIES, find_check
from attncheck.records.schema import Result, of_pool

#: A conclusive run needs this many examined results of checks that test a law, or all planned ones if these are fewer.
FEWEST_LAWS = 3
# A run is "little examined" if it has examined less than this share of the planned results.
_SMALL, _LITTLE = 0.25, "little examined"
# Returned fields that are not intermediate results of the layer.
_OUTSIDE = frozenset({"outputs", "inputs", "input_gram"})
# Returned fields of programs other than their vectors.
_WITHOUT_LINES = frozenset({"outputs", "scores"})


@dataclass(frozen=True)
class Scope:
    """The coverage of a run: numbers of planned and of examined results.

    `planned` and `examined` count all results, `planned_laws` and `laws` those of checks that test a law. ``words``
    qualifies the verdict: "limit only", "outputs only", "outputs and scores only", "little examined", or is empty.

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
        """Return the scope, given the numbers of examined and of planned results of each check."""
        laws = {name: count for name, count in examined.items() if count and _holds_a_law(name)}
        planned_laws = sum(count for name, count in planned.items() if _holds_a_law(name))
        counts = sum(planned.values()), sum(examined.values())
        return cls(*counts, planned_laws, sum(laws.values()), _description(laws, *counts))

    @classmethod
    def of_results(cls, results: Iterable[Result]) -> Scope:
        """Return the scope of results, ignoring pools."""
        single = [result for result in results if not of_pool(result)]
        return cls.of(Counter(r.check for r in single if r.p_values), Counter(r.check for r in single))

    def doubt(self, fewest: int | None = None) -> str:
        """Return a message if too few results were examined, or an empty string.

        At least `fewest` results must be examined or, if this is None, a share `_SMALL` of the planned ones. Of the
        results of checks that test a law, at least `FEWEST_LAWS` must be examined, or all if fewer are planned.
        """
        if fewest is not None and self.examined < fewest:
            return f"{self.examined:,} results were examined, {fewest:,} are required"
        if fewest is None and self.words == _LITTLE:
            return f"too little was examined: {self.examined:,} of {self.planned:,} results"
        least = min(FEWEST_LAWS, self.planned_laws)
        if self.laws >= least:
            return ""
        law_text = "none on a law" if not self.laws else f"{self.laws} of them on a law"
        return f"too little was examined: {self.examined:,} of {self.planned:,} results, {law_text}; {least} are needed"

    def beside(self, verdict: str) -> str:
        """Return a verdict in capitals, for the first line of a report; a pass is qualified, e.g. by "limit only".

        Examples
        --------
        >>> Scope(10, 10, 10, 10, "outputs only").beside("consistent")
        'CONSISTENT, OUTPUTS ONLY'
        """
        return ", ".join(filter(None, (verdict.upper(), self.words.upper() if verdict == "consistent" else "")))


def _description(laws: Mapping[str, int], planned: int, examined: int) -> str:
    known = [check for name in laws if (check := find_check(name))]
    if not laws or len(known) < len(laws):  # checks that this version does not know may use any field
        return ""
    if all(check.kind == "limit" for check in known):
        return "limit only"
    if all(check.needs <= _OUTSIDE for check in known):
        return "outputs only"
    if all(check.property_name in PROGRAM_PROPERTIES and check.needs <= _WITHOUT_LINES for check in known):
        return "outputs and scores only"
    return _LITTLE if examined < _SMALL * planned else ""


def _holds_a_law(name: str) -> bool:
    check = find_check(name)
    return check is None or not (check.any_weights or check.claim == "draws")
