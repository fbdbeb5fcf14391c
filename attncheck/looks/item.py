"""A unit of what is planned: one property on one layer or program."""

from __future__ import annotations

import dataclasses

from attncheck.checks.check import AnyCheck
from attncheck.checks.registry import checks_of
from attncheck.layers.case import Case


@dataclasses.dataclass(frozen=True)
class Item:
    """One property on one layer or program. All units of a case look at the same draws.

    Attributes
    ----------
    property_name : str
        Name in `attncheck.checks.registry.PROPERTIES`.
    case : AttentionLayer or ProgramCase
    role : str
        Part of the key of its streams; shrinking uses streams of its own.
    only : str
        Name of the one check that is examined; all of the property if empty.
    """

    property_name: str
    case: Case
    role: str = "draws"
    only: str = ""

    @property
    def checks(self) -> tuple[AnyCheck, ...]:
        """Return what is examined."""
        return tuple(check for check in checks_of(self.property_name) if self.only in ("", check.name))

    @property
    def id(self) -> str:
        """Return ``property@case key``."""
        return f"{self.property_name}@{self.case.key}"

    def result_id(self, check: AnyCheck) -> str:
        """Return ``check name@case key``."""
        return f"{check.name}@{self.case.key}"

    def result_key(self, check: AnyCheck) -> str:
        """Return ``check key@case key``: what a result is known by in digests and comparisons."""
        return f"{check.key}@{self.case.key}"
