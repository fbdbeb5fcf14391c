"""Ledger of a run: whether its results are complete, and the conclusion from them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from attncheck._lib.errors import check_choice, check_number, refuse
from attncheck._lib.streams import digest
from attncheck.evidence.distances import Uniform
from attncheck.evidence.family import Outcome
from attncheck.evidence.looks import Budget
from attncheck.evidence.verdicts import Verdict

_REMEDY = "make one entry per planned statistic"
# Maximum number of names in a message.
_NAMED = 5
# Key of a case at the end of a result's id. Messages leave it out; names of pools stay.
_CASE = re.compile("@[0-9a-f]{12}$")
#: Verdicts that are not passes, the most serious first.
BY_WEIGHT = ("violated", "incomplete", "inconclusive")


@dataclass(frozen=True)
class Entry:
    """Result of one statistic of one test item.

    Parameters
    ----------
    id : str
        Name of the planned statistic; unique in a run.
    case : str
        Case whose draws the statistic used.
    verdict : str
        A value of `Verdict`.
    p_values : tuple of float
        One per look; empty if not examined.
    combined : float
        Combined p-value of the looks; see ``Trail.combined``.
    continuous : bool
        Whether the first p-value enters the uniformity test.

    Examples
    --------
    >>> Entry("scores/3/scale", "scores/3", "consistent", (0.4,)).combined
    1.0
    """

    id: str
    case: str
    verdict: str
    p_values: tuple[float, ...]
    combined: float = 1.0
    continuous: bool = True

    def __post_init__(self) -> None:
        for field in ("id", "case"):
            if not isinstance(getattr(self, field), str) or not getattr(self, field):
                refuse(field, getattr(self, field), "must be a non-empty string", _REMEDY)
        check_choice("verdict", self.verdict, tuple(str(verdict) for verdict in Verdict))
        for p_value in (*self.p_values, self.combined):
            check_number("p_values", p_value, _REMEDY, minimum=0.0, maximum=1.0)
        if not self.p_values and self.verdict != Verdict.NOT_EXAMINED:
            refuse("p_values", self.p_values, f"is empty although {self.id} is {self.verdict}", _REMEDY)


@dataclass(frozen=True)
class Finding:
    """One reason why a run does not pass."""

    part: str
    verdict: str
    text: str


_KILLED = "the record has no closing line: the run was killed before it ended, or is still running"
_NOTHING = [Finding("verdicts", "inconclusive", "nothing was examined")]


@dataclass(frozen=True)
class Conclusion:
    """Conclusion of a whole run.

    Parameters
    ----------
    findings : tuple of Finding
        Most serious first; empty for a pass.
    missing : int
        Number of planned results without a report.
    uniformity : Outcome or None
        Test of one first-look p-value per case, if any.
    """

    findings: tuple[Finding, ...] = ()
    missing: int = 0
    uniformity: Outcome | None = None

    @property
    def verdict(self) -> str:
        """The most serious verdict; only "consistent" is a pass."""
        return weightiest(self.findings)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Messages of the findings."""
        return tuple(finding.text for finding in self.findings)

    @property
    def complete(self) -> bool:
        """Whether the run has all results that it planned."""
        return all(finding.verdict != "incomplete" for finding in self.findings)

    def unless(self, reason: str) -> Conclusion:
        """Return a copy that is inconclusive for the given reason instead of a pass; an empty reason changes nothing.

        Examples
        --------
        >>> Conclusion().unless("one result is little").verdict
        'inconclusive'
        """
        if not reason or self.findings:
            return self
        return replace(self, findings=(Finding("verdicts", "inconclusive", reason),))

    def no_better_than(self, verdict: str, reasons: Sequence[str]) -> Conclusion:
        """Return a copy with a further finding: the verdict with which the run ended.

        It is not added if that verdict is a pass or that of another finding.

        Examples
        --------
        >>> Conclusion().no_better_than("inconclusive", ["little was asked for"]).reasons
        ('the run ended inconclusive: little was asked for',)
        """
        if verdict in ("consistent", *(finding.verdict for finding in self.findings)):
            return self
        known = verdict if verdict in BY_WEIGHT else "incomplete"
        text = f"the run ended {verdict}: {'; '.join(reasons) or 'no reason'}"
        return replace(self, findings=(*self.findings, Finding("verdicts", known, text)))


def weightiest(findings: Iterable[Finding]) -> str:
    """Return the most serious verdict of findings, or "consistent" if there are none.

    Examples
    --------
    >>> weightiest([Finding("verdicts", "inconclusive", ""), Finding("drift", "violated", "")]), weightiest([])
    ('violated', 'consistent')
    """
    verdicts = {finding.verdict for finding in findings}
    return next((verdict for verdict in BY_WEIGHT if verdict in verdicts), "consistent")


class Ledger:
    """Collector of the results of a run, in any order.

    `run_seed` determines which p-values are tested for uniformity.

    Examples
    --------
    >>> ledger = Ledger(["a/scale", "a/shift"], run_seed=0)
    >>> ledger.take(Entry("a/scale", "a", "consistent", (0.3,)))
    >>> ledger.conclude(Budget()).reasons
    ('1 planned result is missing: a/shift',)
    >>> ledger.take(Entry("a/shift", "a", "not examined", ()))
    >>> ledger.conclude(Budget()).verdict
    'consistent'
    """

    def __init__(self, planned: Iterable[str], run_seed: int) -> None:
        self._planned = set(planned)
        self._seed = run_seed
        self._reported: Counter[str] = Counter()
        self._best: dict[str, tuple[str, float]] = {}
        self._by_verdict: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        self._examined = False

    def take(self, entry: Entry) -> None:
        """Add one result."""
        self._reported[entry.id] += 1
        self._examined |= bool(entry.p_values)
        self._by_verdict[entry.verdict].append((entry.combined, entry.id))
        if entry.continuous and entry.p_values:
            candidate = digest([self._seed, entry.id], 64), float(entry.p_values[0])
            self._best[entry.case] = min(self._best.get(entry.case, candidate), candidate)

    @property
    def keyed_p_values(self) -> dict[str, float]:
        """One first-look p-value per case, selected by a hash of the result's id and never by its value.

        Statistics of one case share draws, and dependent p-values would make the uniformity test fail for correct
        subjects.
        """
        return {case: self._best[case][1] for case in sorted(self._best)}

    def conclude(self, budget: Budget, ended: bool = True) -> Conclusion:
        """Return the conclusion of a run; `ended` is False if the run was killed."""
        missing = len(self._planned - self._reported.keys())
        killed = [] if ended else [Finding("completeness", "incomplete", _KILLED)]
        if not self._reported and self._planned:
            return Conclusion((*killed, Finding("completeness", "incomplete", "nothing was examined")), missing)
        p_values = tuple(self.keyed_p_values.values())
        uniformity = Uniform().test(p_values) if p_values else None
        findings = [
            *self._having(Verdict.VIOLATED),
            *_uneven(uniformity, budget.ledger_level),
            *killed,
            *self._gaps(),
            *(self._having(Verdict.INCONCLUSIVE) if self._examined else _NOTHING),
        ]
        return Conclusion(tuple(findings), missing, uniformity)

    def _gaps(self) -> list[Finding]:
        """Return findings on missing, repeated and unplanned results."""
        reported = self._reported.keys()
        repeated = {name for name, count in self._reported.items() if count > 1}
        findings = []
        for ids, problem, noun in (
            (self._planned - reported, "missing", "planned result"),
            (repeated, "reported more than once", "result"),
            (reported - self._planned, "reported but not planned", "result"),
        ):
            findings += _listed("completeness", "incomplete", len(ids), _names(sorted(ids)), problem, noun)
        return findings

    def _having(self, verdict: Verdict) -> list[Finding]:
        """Return one finding that lists the results with this verdict, most suspicious first, or an empty list."""
        ids = [name for _, name in sorted(self._by_verdict[verdict])]
        return _listed("verdicts", verdict, len(ids), ids if len(ids) == 1 else _names(ids), verdict)


def _uneven(uniformity: Outcome | None, level: float) -> list[Finding]:
    if uniformity is None or uniformity.p_value >= level:
        return []
    text = (
        f"the first-look p-values of {uniformity.count} test items are not uniform: distance "
        f"{uniformity.effect:.3g}, p = {uniformity.p_value:.2g} below {level:.2g}"
    )
    return [Finding("uniformity", "violated", text)]


def _names(ids: Iterable[str]) -> list[str]:
    """Return the distinct names in the ids of results, without the keys of cases."""
    return list(dict.fromkeys(_CASE.sub("", id) for id in ids))


def _first(names: Sequence[str]) -> str:
    """Return the names as text; long lists are cut."""
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")


def _listed(
    part: str, verdict: str, count: int, names: Sequence[str], problem: str, noun: str = "result"
) -> list[Finding]:
    """Return a list with one finding that names results with a problem, or an empty list if `count` is 0.

    The text of the finding gives only the first of many names.
    """
    are = f"1 {noun} is" if count == 1 else f"{count:,} {noun}s are"
    return [Finding(part, str(verdict), f"{are} {problem}: {_first(names)}")] if count else []
