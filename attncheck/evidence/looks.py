"""Protocol of looks, and their level: a suspicious result must recur on fresh draws before it is a violation.

A statistic is consistent if look 1 or 2 is unsuspicious, and violated if looks 1 to 3 are suspicious; otherwise a
fourth look of eight times the size decides. Looks are independent: a true null is called violated with chance at
most ℓ³ + ℓ³(1 − ℓ) ≤ 2ℓ³ at level ℓ, and p-values need be valid only down to ℓ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from attncheck._lib.errors import check_integer
from attncheck.evidence.family import Outcome, check_level, inside_unit, smallest_real
from attncheck.evidence.verdicts import Trail, Verdict

#: Number of statistics among which a run divides its budget. It is the same for all runs, so that no result depends on
#: how many statistics the run plans.
ROOM = 10_000
#: Size of the fourth look relative to the first.
FOURTH_FACTOR = 8


@dataclass(frozen=True)
class Budget:
    """Largest chance that a run on a correct simulator ends violated, and its division among tests.

    The uniformity test takes a share; the rest, B', is split evenly over M statistics, by default `ROOM`. A violation
    needs suspicious looks 1 to 3, or 1, 2 and 4: at level ℓ per look its chance is at most 2ℓ³, so that ℓ =
    (B'/2M)^(1/3) keeps the run within B'.

    Parameters
    ----------
    false_alarm : float
        Budget B of the whole run, in (0, 1).
    ledger_share : float
        Share of B for the uniformity test, in (0, 1).

    Examples
    --------
    >>> budget = Budget()
    >>> round(budget.level(), 6), round(budget.level(statistics=1000), 6), budget.ledger_level
    (0.000356, 0.000766, 1e-07)
    """

    false_alarm: float = 1e-6
    ledger_share: float = 0.1

    def __post_init__(self) -> None:
        inside_unit("false_alarm", self.false_alarm, "pass the budget of the run, e.g. 1e-6")
        inside_unit("ledger_share", self.ledger_share, "pass the share of the budget for the uniformity test, e.g. 0.1")

    @property
    def looks_share(self) -> float:
        """B', the part of the budget that single statistics share."""
        return self.false_alarm * (1.0 - self.ledger_share)

    @property
    def ledger_level(self) -> float:
        """Level of the ledger's uniformity test."""
        return self.false_alarm * self.ledger_share

    def level(self, statistics: int = ROOM) -> float:
        """Return the level (B'/2M)^(1/3) of one look, for at most M statistics."""
        most = check_integer("statistics", statistics, 1, "pass the largest number of statistics")
        return float((self.looks_share / (2.0 * most)) ** (1.0 / 3.0))


#: Callable (look, factor, names) that draws one sample for the look, of `factor` times the planned size and from the
#: random stream of the look. It returns the outcomes of the named statistics.
Evaluator = Callable[[int, int, tuple[str, ...]], Mapping[str, Outcome]]


def examine(evaluate: Evaluator, statistics: Iterable[str], level: float) -> dict[str, Trail]:
    """Take looks at the statistics of one test item until each has a verdict.

    Parameters
    ----------
    evaluate : callable (look, factor, names) -> mapping of name to Outcome
        Called once per look, with the names still undecided; `factor` is 8 at look 4, otherwise 1.
    statistics : iterable of str
        Names of the statistics.
    level : float
        Level of one look.

    Examples
    --------
    >>> def evaluate(look, factor, names):
    ...     return {name: Outcome(1e-5 if name == "bad" else 0.3, 0.0, -1.0, 1.0, 0.0, 10) for name in names}
    >>> {name: str(trail.verdict) for name, trail in examine(evaluate, ["good", "bad"], 5e-4).items()}
    {'good': 'consistent', 'bad': 'violated'}
    """
    history = _first_three(evaluate, statistics, level)
    disputed = tuple(name for name, looks in history.items() if len(looks) == 3 and not _suspicious(looks, level))
    _take(evaluate, 4, FOURTH_FACTOR, disputed, history)
    return {name: _trail(looks, level, Verdict.CONSISTENT) for name, looks in history.items()}


def examine_blocks(evaluate: Evaluator, statistics: Iterable[str], level: float) -> dict[str, Trail]:
    """Examine statistics on a fixed sample, whose three disjoint blocks serve as the first three looks of `examine`.

    There is no fourth look: a statistic that is suspicious in the first two blocks only is inconclusive. For a correct
    simulator, the probability of this is at most the square of ``level``.

    Examples
    --------
    >>> def evaluate(look, factor, names):
    ...     return {name: Outcome(0.3 if look == 3 else 1e-5, 0.0, -1.0, 1.0, 0.0, 10) for name in names}
    >>> str(examine_blocks(evaluate, ["mean"], 5e-4)["mean"].verdict)
    'inconclusive'
    """
    history = _first_three(evaluate, statistics, level)
    return {name: _trail(outcomes, level, Verdict.INCONCLUSIVE) for name, outcomes in history.items()}


def detection(power_per_look: float, power_fourth: float = 1.0) -> float:
    """Return the chance π³ + π²(1 − π)·power_fourth that `examine` finds a violation.

    Here π is `power_per_look`, the power of one look. The fourth look has `power_fourth`, which is practically 1 if π
    is at least 0.9. For a true null and uniform p-values, both powers are the level ℓ, and the chance of a false
    violation is 2ℓ³ − ℓ⁴.

    Examples
    --------
    >>> round(detection(0.995), 6), round(detection(0.1, 0.1), 6)
    (0.990025, 0.0019)
    """
    one = power_per_look
    return one * one * (one + (1.0 - one) * power_fourth)


def per_look_power(target: float) -> float:
    """Return the power of one look at which the chance of `detection` is `target`.

    Examples
    --------
    >>> round(per_look_power(0.99), 6)
    0.994987
    """
    remedy = "pass a chance of detection, e.g. 0.99"
    goal = inside_unit("target", target, remedy)
    return smallest_real(lambda power: detection(power) >= goal, 0.0, 1.0)


def _first_three(evaluate: Evaluator, statistics: Iterable[str], level: float) -> dict[str, list[Outcome]]:
    """Return the outcomes of up to three looks; a statistic takes another look while it is suspicious."""
    names = tuple(statistics)
    history: dict[str, list[Outcome]] = {name: [] for name in names}
    check_level(level)
    for look in (1, 2, 3):
        _take(evaluate, look, 1, names, history)
        names = tuple(name for name in names if _suspicious(history[name], level))
    return history


def _take(
    evaluate: Evaluator, look: int, factor: int, names: tuple[str, ...], history: Mapping[str, list[Outcome]]
) -> None:
    """Add the outcomes of a look at `names`, if any, to `history`."""
    outcomes = evaluate(look, factor, names) if names else {}
    for name in names:
        history[name].append(outcomes[name])


def _suspicious(outcomes: Sequence[Outcome], level: float) -> bool:
    return outcomes[-1].p_value < level


def _trail(outcomes: Sequence[Outcome], level: float, after_three: Verdict) -> Trail:
    """Return the trail of a statistic.

    `after_three` is the verdict if the third look is the last one and is not suspicious.
    """
    if _suspicious(outcomes, level):
        verdict = Verdict.VIOLATED  # a suspicious first or second look is never the last
    else:
        verdict = after_three if len(outcomes) == 3 else Verdict.CONSISTENT
    return Trail(tuple(outcomes), verdict, level)
