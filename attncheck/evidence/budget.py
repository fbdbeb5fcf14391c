"""The false-alarm budget of a run, and the level of one look that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from attncheck._lib.errors import check_number, check_whole, refuse


@dataclass(frozen=True)
class Budget:
    """Chance that a run on a right simulator says "violated", and how that chance is spent.

    A share is kept for the ledger's uniformity test. The rest, B', is split evenly over the planned
    statistics. One of them is violated if three looks are suspicious, or the first two and the fourth:
    at level ℓ that has chance at most 2ℓ³, so that ℓ = (B'/2M)^(1/3) keeps M statistics within B'.

    Parameters
    ----------
    false_alarm : float
        The budget B of the whole run, in (0, 1).
    ledger_share : float
        Part of B kept for the ledger, in (0, 1).

    Raises
    ------
    InputError
        If a parameter lies outside its range.

    Examples
    --------
    >>> budget = Budget()
    >>> round(budget.level(statistics=1000), 6), budget.ledger_level
    (0.000766, 1e-07)
    """

    false_alarm: float = 1e-6
    ledger_share: float = 0.1

    def __post_init__(self) -> None:
        _inside_unit("false_alarm", self.false_alarm, "pass the budget of the run, e.g. 1e-6")
        _inside_unit("ledger_share", self.ledger_share, "pass the ledger's part of the budget, e.g. 0.1")

    @property
    def looks_share(self) -> float:
        """B': the part of the budget that the planned statistics share."""
        return self.false_alarm * (1.0 - self.ledger_share)

    @property
    def ledger_level(self) -> float:
        """Level of the ledger's uniformity test."""
        return self.false_alarm * self.ledger_share

    def level(self, statistics: int) -> float:
        """Return the level of one look.

        Parameters
        ----------
        statistics : int
            Number M of statistics that the run has planned: claims × layers × statistics of a claim.

        Returns
        -------
        float
            (B'/2M)^(1/3), in (0, 1).

        Raises
        ------
        InputError
            If `statistics` is not a positive whole number.
        """
        planned = check_whole("statistics", statistics, 1, "pass the number of planned statistics")
        return float((self.looks_share / (2.0 * planned)) ** (1.0 / 3.0))


def _inside_unit(field: str, value: float, remedy: str) -> None:
    if check_number(field, value, remedy, above=0.0) >= 1.0:
        refuse(field, value, "must be less than 1", remedy)
