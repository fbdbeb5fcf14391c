"""Results of one property on one case."""

from __future__ import annotations

from typing import Any

from attncheck.layers.case import Case
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.looks.profiles import PROFILES
from attncheck.records.schema import Result
from attncheck.subject import Subject


def results_of(
    subject: Any, case: Case, name: str, *, seed: int = 0, cost: Cost | None = None, only: str = ""
) -> list[Result]:
    """Return the results of a property, or of one of its checks; by default at the cost of the profile smoke."""
    return run_item(Item(name, case, only=only), Subject.of(subject), seed, cost or PROFILES["smoke"].cost(case))
