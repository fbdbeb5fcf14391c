"""False-alarm budget of a run, and the level of one look."""

from __future__ import annotations

from dataclasses import dataclass

from attncheck._lib.errors import check_integer
from attncheck.evidence.family import inside_unit

#: Number of statistics that a run has room for, planned or not, so that no result depends on the plan.
ROOM = 10_000


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
        inside_unit("ledger_share", self.ledger_share, "pass the ledger's part of the budget, e.g. 0.1")

    @property
    def looks_share(self) -> float:
        """B': the part of the budget for single statistics."""
        return self.false_alarm * (1.0 - self.ledger_share)

    @property
    def ledger_level(self) -> float:
        """Level of the ledger's uniformity test."""
        return self.false_alarm * self.ledger_share

    def level(self, statistics: int = ROOM) -> float:
        """Return the level (B'/2M)^(1/3) of one look, for at most M statistics."""
        most = check_integer("statistics", statistics, 1, "pass the largest number of statistics")
        return float((self.looks_share / (2.0 * most)) ** (1.0 / 3.0))
