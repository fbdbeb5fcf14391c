"""The ledger of a run: is everything accounted for, and what does it come to?

It reads records of built-in types, as they come back from pytest's workers, in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attncheck._lib.errors import check_choice, check_number, refuse
from attncheck._lib.streams import digest
from attncheck.evidence.budget import Budget
from attncheck.evidence.distances import Uniform
from attncheck.evidence.family import Outcome
from attncheck.evidence.verdicts import Verdict

_REMEDY = "write one record for each planned statistic, as `Entry` describes"


@dataclass(frozen=True)
class Entry:
    """One statistic of one unit of work, as the ledger needs it.

    Parameters
    ----------
    id : str
        Names the planned statistic; unique in a run.
    unit : str
        The unit of work (one property on one layer) whose draws it was computed from.
    verdict : str
        One of the values of `Verdict`.
    p_values : tuple of float
        One for each look taken; empty if the statistic was not examined.
    combined : float
        The trail's q.
    continuous : bool
        Whether the first p-value is uniform on a right subject. Discrete or conservative ones are not, and
        are kept out of the uniformity test.
    key : str
        What the statistic is known by, whatever it is called; by default its id.
    looks : bool
        Whether looks decided. Without them a statistic has no p-values whatever its verdict.

    Raises
    ------
    InputError
        If a value is missing or out of range, or a verdict other than "not examined" has no p-value.

    Examples
    --------
    >>> Entry("scores/3/scale", "scores/3", "consistent", (0.4,)).combined
    1.0
    """

    id: str
    unit: str
    verdict: str
    p_values: tuple[float, ...]
    combined: float = 1.0
    continuous: bool = True
    key: str = ""
    looks: bool = True

    def __post_init__(self) -> None:
        for field in ("id", "unit"):
            if not isinstance(getattr(self, field), str) or not getattr(self, field):
                refuse(field, getattr(self, field), "must be a non-empty string", _REMEDY)
        check_choice("verdict", self.verdict, tuple(str(each) for each in Verdict))
        for p_value in (*self.p_values, self.combined):
            check_number("p_values", p_value, _REMEDY, minimum=0.0, maximum=1.0)
        object.__setattr__(self, "key", self.key or self.id)
        if self.looks and not self.p_values and self.verdict != Verdict.NOT_EXAMINED:
            refuse("p_values", self.p_values, f"is empty although {self.id} is {self.verdict}", _REMEDY)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Entry:
        """Return the entry of a record; keys that the ledger does not need are ignored.

        Raises
        ------
        InputError
            If a key is missing or its value is out of range.
        """
        missing = [key for key in ("id", "unit", "verdict", "p_values") if key not in record]
        if missing:
            refuse("record", dict(record), f"has no {', '.join(missing)}", _REMEDY)
        if not isinstance(record["p_values"], list | tuple):
            refuse("p_values", record["p_values"], "must be a list", _REMEDY)
        return cls(
            id=record["id"],
            unit=record["unit"],
            verdict=record["verdict"],
            p_values=tuple(record["p_values"]),
            combined=record.get("combined", 1.0),
            continuous=bool(record.get("continuous", True)),
            key=record.get("key", ""),
            looks=record.get("looks", True),
        )


@dataclass(frozen=True)
class Completeness:
    """Ids that were planned and not reported, reported more than once, and reported without a plan.

    Examples
    --------
    >>> Completeness(missing=("a",)).complete
    False
    """

    missing: tuple[str, ...] = ()
    duplicated: tuple[str, ...] = ()
    unplanned: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every planned id was reported exactly once, and no other."""
        return not (self.missing or self.duplicated or self.unplanned)


@dataclass(frozen=True)
class Conclusion:
    """What a whole run comes to.

    Parameters
    ----------
    verdict : {"consistent", "violated", "incomplete", "inconclusive"}
        Only "consistent" is a pass.
    reasons : tuple of str
        Why it is not "consistent", each a sentence; empty if it is.
    completeness : Completeness
        Planned against reported.
    uniformity : Outcome or None
        Test of the keyed first-look p-values; None if no unit has an eligible one.
    """

    verdict: str
    reasons: tuple[str, ...]
    completeness: Completeness
    uniformity: Outcome | None

    def unless(self, doubt: str) -> Conclusion:
        """Return the same, inconclusive where it would be consistent and there is a doubt.

        Examples
        --------
        >>> Conclusion("consistent", (), Completeness(), None).unless("one result is little").verdict
        'inconclusive'
        """
        if not doubt or self.verdict != "consistent":
            return self
        return replace(self, verdict="inconclusive", reasons=(doubt,))


def conclude(planned: Iterable[str], records: Sequence[Mapping[str, Any]], budget: Budget, run_seed: int) -> Conclusion:
    """Return the conclusion of a run.

    Parameters
    ----------
    planned : iterable of str
        Ids of all planned statistics, those ruled out by exposure or support included.
    records : sequence of mapping
        What was reported, in any order; see `Entry.from_record`.
    budget : Budget
        Gives the level of the uniformity test.
    run_seed : int
        Seed of the run; keys which p-value of a unit is entered in the uniformity test.

    Returns
    -------
    Conclusion
        A violation stands whatever else happened; then comes incomplete, then inconclusive. A run in which
        nothing was examined is inconclusive.

    Raises
    ------
    InputError
        If a record cannot be read.

    Examples
    --------
    >>> record = {"id": "a/scale", "unit": "a", "verdict": "consistent", "p_values": [0.3]}
    >>> conclude(["a/scale"], [record], Budget(), run_seed=0).verdict
    'consistent'
    >>> conclude(["a/scale", "a/shift"], [record], Budget(), run_seed=0).reasons
    ('1 planned result is missing: a/shift',)
    """
    # Results come in any order; what is said of them has one.
    entries = sorted(map(Entry.from_record, records), key=lambda entry: (entry.combined, entry.id))
    completeness = compare(planned, (entry.id for entry in entries))
    p_values = keyed_p_values(entries, run_seed)
    uniformity = Uniform().test(list(p_values.values())) if p_values else None
    found = {
        "violated": _violations(entries, uniformity, budget.ledger_level),
        "incomplete": _gaps(completeness),
        "inconclusive": _doubts(entries),
    }
    verdict = next((name for name, reasons in found.items() if reasons), "consistent")
    reasons = tuple(reason for group in found.values() for reason in group)
    return Conclusion(verdict, reasons, completeness, uniformity)


def compare(planned: Iterable[str], reported: Iterable[str]) -> Completeness:
    """Return what differs between the planned and the reported ids, each in sorted order.

    Parameters
    ----------
    planned, reported : iterable of str
        Ids; a planned one that comes twice is one event.

    Returns
    -------
    Completeness

    Examples
    --------
    >>> compare(["a", "b"], ["b", "b", "c"])
    Completeness(missing=('a',), duplicated=('b',), unplanned=('c',))
    """
    wanted, counts = set(planned), Counter(reported)
    return Completeness(
        missing=tuple(sorted(wanted - set(counts))),
        duplicated=tuple(sorted(each for each, count in counts.items() if count > 1)),
        unplanned=tuple(sorted(set(counts) - wanted)),
    )


def keyed_p_values(entries: Iterable[Entry], run_seed: int) -> dict[str, float]:
    """Return one first-look p-value of each unit of work, chosen by key and never by value.

    Statistics of one unit share its draws, so that more than one p-value of a unit would be dependent and
    the test of uniformity would fail right subjects.

    Parameters
    ----------
    entries : iterable of Entry
        In any order.
    run_seed : int
        Seed of the run.

    Returns
    -------
    dict of str to float
        Keyed by unit, in sorted order; units without an eligible entry are left out.

    Examples
    --------
    >>> keyed_p_values([Entry("a/1", "a", "consistent", (0.3,))], run_seed=0)
    {'a': 0.3}
    """
    best: dict[str, tuple[str, float]] = {}
    for entry in entries:
        if entry.continuous and entry.p_values:
            candidate = digest([run_seed, entry.key], 64), float(entry.p_values[0])
            best[entry.unit] = min(best.get(entry.unit, candidate), candidate)
    return {unit: best[unit][1] for unit in sorted(best)}


def _violations(entries: Sequence[Entry], uniformity: Outcome | None, level: float) -> list[str]:
    reasons = _listed([each.id for each in entries if each.verdict == Verdict.VIOLATED], "violated")
    if uniformity is not None and uniformity.p_value < level:
        reasons.append(
            f"the first-look p-values of {uniformity.count} units are not uniform: distance "
            f"{uniformity.effect:.3g}, p = {uniformity.p_value:.2g} below {level:.2g}"
        )
    return reasons


def _gaps(completeness: Completeness) -> list[str]:
    return [
        *_listed(completeness.missing, "missing", "planned result"),
        *_listed(completeness.duplicated, "reported more than once"),
        *_listed(completeness.unplanned, "reported without a plan"),
    ]


def _doubts(entries: Sequence[Entry]) -> list[str]:
    by_looks = [entry for entry in entries if entry.looks]
    if not any(entry.p_values for entry in by_looks) and (by_looks or not entries):
        return ["nothing was examined"]
    return _listed([each.id for each in entries if each.verdict == Verdict.INCONCLUSIVE], "inconclusive")


def _listed(ids: Sequence[str], what: str, noun: str = "result") -> list[str]:
    """Return one sentence on `ids`, or none; long lists are cut."""
    if not ids:
        return []
    shown = ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")
    return [f"{len(ids)} {noun} is {what}: {shown}" if len(ids) == 1 else f"{len(ids)} {noun}s are {what}: {shown}"]
