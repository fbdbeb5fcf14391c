"""Requirements: conditions on a case under which a check applies or a fault shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Generic, TypeVar

_Case = TypeVar("_Case", contravariant=True)


@dataclasses.dataclass(frozen=True)
class Requirement(Generic[_Case]):
    """A condition on layers or programs, with its name and a message if it fails; ``&`` combines two conditions.

    Attributes
    ----------
    name : str
    holds : callable case -> bool
    otherwise : str
        Message if the condition fails.
    others : tuple of Requirement
        Further conditions, which must hold too.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> from attncheck.layers.requirements import SEVERAL_HEADS, SEVERAL_POSITIONS
    >>> (SEVERAL_POSITIONS & SEVERAL_HEADS).reason(AttentionLayer(width=8, num_heads=1))
    'there is one head only'
    >>> str(SEVERAL_POSITIONS & SEVERAL_HEADS)
    'several positions, several heads'
    """

    name: str
    holds: Callable[[_Case], bool]
    otherwise: str
    others: tuple[Requirement[_Case], ...] = ()

    def __and__(self, requirement: Requirement[_Case]) -> Requirement[_Case]:
        return dataclasses.replace(self, others=(*self.others, requirement))

    def __str__(self) -> str:
        return ", ".join(name for text in (self.name, *map(str, self.others)) if (name := text))

    def reason(self, case: _Case) -> str:
        """Return why a case fails, or an empty string."""
        if not self.holds(case):
            return self.otherwise
        return next((reason for requirement in self.others if (reason := requirement.reason(case))), "")


def _always(case: object) -> bool:
    return True


#: The requirement that every case meets.
ANY: Requirement[object] = Requirement("", _always, "")
