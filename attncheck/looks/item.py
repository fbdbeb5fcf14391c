"""Test items: one property on one case."""

from __future__ import annotations

import dataclasses

from attncheck.checks.check import AnyCheck
from attncheck.checks.registry import checks_of
from attncheck.layers.case import Case


@dataclasses.dataclass(frozen=True)
class Item:
    """One property to test on one layer or program; all items of a case use the same draws.

    `role` is part of the key of the random streams. `only` is the name of the only check to run, or empty for all
    checks.
    """

    property_name: str
    case: Case
    role: str = "draws"
    only: str = ""

    @property
    def checks(self) -> tuple[AnyCheck, ...]:
        """The checks to run."""
        return tuple(check for check in checks_of(self.property_name) if self.only in ("", check.name))

    @property
    def id(self) -> str:
        """The id of the item, ``property@case key``."""
        return f"{self.property_name}@{self.case.key}"
