"""The protocol of looks: a suspicious result must come back on fresh draws before it is a violation.

Look 1 unsuspicious: consistent. Else look 2 on fresh draws; unsuspicious: consistent. Else look 3:
suspicious, violated; unsuspicious, a fourth look of eight times the size decides. Looks are independent, so
a statistic whose null is true is called violated with chance at most ℓ³ + ℓ³(1 − ℓ) ≤ 2ℓ³ at level ℓ, and no
test has to be valid further out than ℓ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from attncheck._lib.errors import check_number, refuse
from attncheck.evidence.family import Outcome, check_level, smallest_real
from attncheck.evidence.verdicts import Trail, Verdict

#: Size of the fourth look in units of the first.
FOURTH_FACTOR = 8


class Evaluator(Protocol):
    """Draws one sample and evaluates statistics on it; all of one look share the sample."""

    def __call__(self, look: int, factor: int, names: tuple[str, ...]) -> Mapping[str, Outcome]:
        """Return the outcomes of `names` on the stream of `look`, with `factor` times the planned size."""
        ...


def examine(evaluate: Evaluator, statistics: Iterable[str], level: float) -> dict[str, Trail]:
    """Take as many looks as the statistics of one unit of work need.

    Parameters
    ----------
    evaluate : callable (look, factor, names) -> mapping of name to Outcome
        Called once for each look that any statistic needs: look 1 with all names, later ones with those
        still undecided. `look` keys the stream; `factor` is 1, and 8 at look 4.
    statistics : iterable of str
        Names of the planned statistics.
    level : float
        Level ℓ of one look, in (0, 1); a p-value below it is suspicious.

    Returns
    -------
    dict of str to Trail
        In the order of `statistics`; each verdict is consistent or violated.

    Raises
    ------
    InputError
        If a name is repeated, `level` is out of range, or `evaluate` does not return what it was asked for.

    Examples
    --------
    >>> def evaluate(look, factor, names):
    ...     return {name: Outcome(1e-5 if name == "bad" else 0.3, 0.0, -1.0, 1.0, 0.0, 10) for name in names}
    >>> {name: str(trail.verdict) for name, trail in examine(evaluate, ["good", "bad"], 5e-4).items()}
    {'good': 'consistent', 'bad': 'violated'}
    """
    seen = _first_three(evaluate, _names(statistics), check_level(level))
    disputed = tuple(name for name, outcomes in seen.items() if _disputed(outcomes, level))
    if disputed:
        _append(seen, _ask(evaluate, 4, FOURTH_FACTOR, disputed))
    return {name: _trail(outcomes, level, Verdict.CONSISTENT) for name, outcomes in seen.items()}


def examine_blocks(evaluate: Evaluator, statistics: Iterable[str], level: float) -> dict[str, Trail]:
    """Take three disjoint blocks of a fixed sample as looks, where no fresh draws can be had.

    The protocol is that of `examine` without the fourth look: a statistic that is suspicious in the first
    two blocks and not in the third is inconclusive (on a right simulator with chance at most ℓ²).

    Parameters
    ----------
    evaluate : callable (look, factor, names) -> mapping of name to Outcome
        As for `examine`; `look` is the number of the block, 1 to 3, and `factor` is 1.
    statistics : iterable of str
        Names of the planned statistics.
    level : float
        Level ℓ of one block, in (0, 1).

    Returns
    -------
    dict of str to Trail
        In the order of `statistics`; each verdict is consistent, violated or inconclusive.

    Raises
    ------
    InputError
        As for `examine`.

    Examples
    --------
    >>> def evaluate(look, factor, names):
    ...     return {name: Outcome(0.3 if look == 3 else 1e-5, 0.0, -1.0, 1.0, 0.0, 10) for name in names}
    >>> str(examine_blocks(evaluate, ["mean"], 5e-4)["mean"].verdict)
    'inconclusive'
    """
    seen = _first_three(evaluate, _names(statistics), check_level(level))
    return {name: _trail(outcomes, level, Verdict.INCONCLUSIVE) for name, outcomes in seen.items()}


def false_violation(level: float) -> float:
    """Return the chance that `examine` calls a true null violated, for exactly uniform p-values.

    Parameters
    ----------
    level : float
        Level ℓ of one look, in (0, 1).

    Returns
    -------
    float
        2ℓ³ − ℓ⁴, below the 2ℓ³ that `attncheck.evidence.budget.Budget.level` allows for.

    Raises
    ------
    InputError
        If `level` lies outside (0, 1).

    Examples
    --------
    >>> round(false_violation(0.1), 6)
    0.0019
    """
    return detection(check_level(level), level)


def detection(power_per_look: float, power_fourth: float = 1.0) -> float:
    """Return the chance that `examine` calls a departure violated.

    Parameters
    ----------
    power_per_look : float
        Chance π that one look of the planned size is suspicious, in [0, 1].
    power_fourth : float
        The same for the fourth look, of eight times the size. It is 1 for all practical purposes wherever
        π is at least 0.9.

    Returns
    -------
    float
        π³ + π²(1 − π)·power_fourth.

    Raises
    ------
    InputError
        If a chance lies outside [0, 1].

    Examples
    --------
    >>> round(detection(0.995), 6)
    0.990025
    """
    remedy = "pass a chance of detection in [0, 1]"
    one = check_number("power_per_look", power_per_look, remedy, minimum=0.0, maximum=1.0)
    fourth = check_number("power_fourth", power_fourth, remedy, minimum=0.0, maximum=1.0)
    return one * one * (one + (1.0 - one) * fourth)


def per_look_power(target: float, power_fourth: float = 1.0) -> float:
    """Return the power that one look must have for `examine` to detect with chance `target`.

    Parameters
    ----------
    target : float
        Chance of a violated verdict, in (0, 1).
    power_fourth : float
        Power of the fourth look, in [0, 1].

    Returns
    -------
    float
        The inverse of `detection` in its first argument.

    Raises
    ------
    InputError
        If an argument lies outside its range.

    Examples
    --------
    >>> round(per_look_power(0.99), 6)
    0.994987
    """
    remedy = "pass a chance of detection, e.g. 0.99"
    wanted = check_number("target", target, remedy, above=0.0)
    if wanted >= 1.0:
        refuse("target", target, "must be less than 1", remedy)
    return smallest_real(lambda power: detection(power, power_fourth) >= wanted, 0.0, 1.0)


def _names(statistics: Iterable[str]) -> tuple[str, ...]:
    names = tuple(statistics)
    if len(set(names)) < len(names):
        refuse("statistics", names, "names must differ", "name each statistic of the unit once")
    return names


def _first_three(evaluate: Evaluator, names: tuple[str, ...], level: float) -> dict[str, list[Outcome]]:
    seen: dict[str, list[Outcome]] = {name: [] for name in names}
    for look in (1, 2, 3):
        if names:
            _append(seen, _ask(evaluate, look, 1, names))
        names = tuple(name for name in names if seen[name][-1].p_value < level)
    return seen


def _ask(evaluate: Evaluator, look: int, factor: int, names: tuple[str, ...]) -> Mapping[str, Outcome]:
    answers = evaluate(look, factor, names)
    if set(answers) != set(names):
        problem = f"was asked for {sorted(names)}"
        refuse("evaluate", sorted(answers), problem, "return one outcome for each name asked for")
    return answers


def _append(seen: dict[str, list[Outcome]], answers: Mapping[str, Outcome]) -> None:
    for name, outcome in answers.items():
        seen[name].append(outcome)


def _disputed(outcomes: Sequence[Outcome], level: float) -> bool:
    """Return whether three looks were taken and the third did not confirm the first two."""
    return len(outcomes) == 3 and outcomes[-1].p_value >= level


def _trail(outcomes: Sequence[Outcome], level: float, after_three: Verdict) -> Trail:
    """Return the trail; `after_three` is the verdict where the third and last look is unsuspicious."""
    if outcomes[-1].p_value < level:
        verdict = Verdict.VIOLATED  # no look before the third ends suspicious: it is followed by another
    else:
        verdict = after_three if len(outcomes) == 3 else Verdict.CONSISTENT
    return Trail(tuple(outcomes), verdict, level)
