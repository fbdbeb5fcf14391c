"""Table of a model's parameters, with one line per family."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from attncheck._lib.errors import refuse
from attncheck._lib.text import aligned
from attncheck.models.families import Family, families
from attncheck.models.parameters import ParameterStatistics

_HEADING = ("", "shape", "law", "std", "from", "to", "std·√fan-in", "matches initialiser", "")


@dataclasses.dataclass(frozen=True)
class ParameterTable:
    """Statistics of the parameters of a model, by name.

    Printing shows one line per family of similar parameters.

    Attributes
    ----------
    rows : tuple of ParameterStatistics

    Raises
    ------
    InputError
        For the name of no parameter.

    Examples
    --------
    >>> import numpy as np
    >>> from attncheck.frameworks.framework import Parameter
    >>> from attncheck.models.parameters import statistics_of
    >>> table = ParameterTable(tuple(statistics_of([Parameter("fc.bias", (4,), "Linear", None, (np.zeros(4),))])))
    >>> table["fc.bias"].law, len(table)
    ('zeros', 1)
    """

    rows: tuple[ParameterStatistics, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ParameterStatistics]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> ParameterStatistics:
        """Return the row of a parameter, by any of its names."""
        for row in self.rows:
            if name in (row.name, *row.tied):
                return row
        refuse("parameters", name, "is not the name of a parameter", "print the table to see the names")

    def __str__(self) -> str:
        return "\n".join(aligned(self.lines))

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """The table as text, heading first."""
        return [_HEADING, *map(_row, families(self.rows))]


def _row(family: Family) -> tuple[str, ...]:
    """Return the table row of a family."""
    first = family.first
    shape = " × ".join(map(str, first.shape))
    known = math.isfinite(family.std) and not first.constant
    stds = [f"{number:.3g}" for number in (family.std, *family.bounds)] if known else [""] * 3
    relative = f"{family.std * math.sqrt(first.fans[0]):.3f}" if first.fans and known else ""
    matches = [text for text in first.matches if all(text in member.matches for member in family.members)]
    notes = [note for note in first.notes if len(family.members) == 1 or not note.startswith("tied")]
    return (
        str(family),
        shape,
        " or ".join(family.laws) if known else first.law,
        *stds,
        relative,
        ", ".join(matches),
        ", ".join(notes),
    )
