"""Families of parameters with the same initialiser, whose names differ only in numbers, and their table."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from attncheck._lib.errors import refuse
from attncheck._lib.names import grouped, indices, name_of, pattern_of, similar_names
from attncheck._lib.text import aligned
from attncheck.frameworks.laws import LAWS, UNKNOWN
from attncheck.models.parameters import FIXED, NEVER_DRAWN, NOT_FINITE, NOT_INITIALISED, ParameterStatistics

#: Reasons not to compare a parameter with others.
STATES = (NOT_INITIALISED, NOT_FINITE, NEVER_DRAWN, FIXED)
_HEADING = ("", "shape", "law", "std", "from", "to", "std·√fan-in", "matches initialiser", "")


@dataclasses.dataclass(frozen=True)
class Family:
    """Parameters with the same initialiser and a common name, such as "h.*.mlp.c_fc.weight".

    `depth` counts the layers with parameters of this name pattern, whatever their initialiser.
    """

    name: str
    members: tuple[ParameterStatistics, ...]
    depth: int = 1

    def __str__(self) -> str:
        return self.name if len(self.members) == 1 else f"{self.name} ×{len(self.members)}"

    @property
    def first(self) -> ParameterStatistics:
        """The first member."""
        return self.members[0]

    @property
    def drawn(self) -> bool:
        """Whether the members are drawn at random."""
        return not self.first.constant and state_of(self.first) == "" and math.isfinite(self.std)

    @property
    def laws(self) -> tuple[str, ...]:
        """Laws that are not rejected for any member; if there is no such law, those of the first member."""
        return tuple(law for law in self.first.laws if all(law in m.laws for m in self.members)) or self.first.laws

    @property
    def bounds(self) -> tuple[float, float]:
        """Intersection of the intervals of the members' standard deviations."""
        return max(m.scale.low for m in self.members), min(m.scale.high for m in self.members)

    @property
    def std(self) -> float:
        """Root mean square of the members' standard deviations."""
        return math.sqrt(sum(m.scale.std**2 for m in self.members) / len(self.members))

    @property
    def keeps_default(self) -> bool:
        """Whether each parameter has the default initialiser of the module that holds it."""
        return all(member.keeps_default for member in self.members)

    @property
    def matches(self) -> set[str]:
        """Known initialisers that fit all members."""
        return set.intersection(*(set(member.matches) for member in self.members))

    @property
    def text(self) -> str:
        """Law, standard deviation and mean, as text."""
        first = self.first
        if first.constant or not math.isfinite(self.std):
            return first.law
        mean = f", mean {first.mean:.2g}" if abs(first.mean) > first.mean_error else ""
        return f"{' or '.join(self.laws)}, std {self.std:.2g}{mean}"

    @property
    def text_with_default(self) -> str:
        """Law, standard deviation and mean as text, marked if they are the owner's default."""
        return f"{self.text} (default of {self.first.owner})" if self.keeps_default else self.text


def state_of(row: ParameterStatistics) -> str:
    """Return why a parameter is not compared with others, or an empty string."""
    return next((state for state in STATES if state in row.notes), "")


def families(table: Sequence[ParameterStatistics]) -> list[Family]:
    """Return the parameters grouped by name, shape and initialiser, in order of appearance.

    Examples
    --------
    >>> import numpy as np
    >>> from attncheck.frameworks.framework import Parameter
    >>> from attncheck.models.parameters import statistics_of
    >>> rng = np.random.default_rng(0)
    >>> names = [f"h.{i}.fc.weight" for i in range(12)]
    >>> table = [Parameter(name, (64, 64), "Linear", (64, 64), (rng.normal(0, 0.02, 4096),)) for name in names]
    >>> for family in families(statistics_of(table)):
    ...     print(f"{family}: {family.text}")
    h.*.fc.weight ×12: normal, std 0.02
    """
    order = {row.name: i for i, row in enumerate(table)}
    return sorted(itertools.chain(*parts_of(table)), key=lambda family: order[family.first.name])


def parts_of(table: Sequence[ParameterStatistics]) -> list[list[Family]]:
    """Group comparable parameters, and split each group by initialiser into families, largest first."""

    def key(row: ParameterStatistics) -> tuple[object, ...]:
        return pattern_of(row.name), row.shape, row.owner, row.fans, row.default, state_of(row)

    split = []
    for rows in grouped(table, key).values():
        names, parts = [row.name for row in rows], []
        every = (name for row in rows for name in similar_names(row.name, row.tied))
        depth = len({number for name in every for number in indices(name)[:1]})
        while rows:
            group = _largest_group(rows)
            parts.append(Family(name_of([row.name for row in group], names), tuple(group), depth))
            rows = [row for row in rows if row not in group]
        split.append(parts)
    return split


def kinds(row: ParameterStatistics) -> set[str]:
    """Return the possible laws of a parameter, with normal and truncated normal as one kind.

    If the true law lies between these two, chance decides which one is rejected.
    """
    if row.constant:
        return {row.law}
    every = {law.name for law in LAWS} | {UNKNOWN}
    return {law.removeprefix("truncated ") for law in (every if row.laws == (UNKNOWN,) else row.laws)}


def _largest_group(rows: Sequence[ParameterStatistics]) -> list[ParameterStatistics]:
    """Return the largest group of parameters with a common kind of law, standard deviation and mean."""
    best = [rows[0]]
    for kind in sorted({kind for row in rows for kind in kinds(row)}):
        same = [row for row in rows if kind in kinds(row)]
        near = _with_common_point({row: (row.scale.low, row.scale.high) for row in same})
        near = _with_common_point({row: row.mean_bounds for row in near})
        best = max(best, near, key=len)
    return best


def _with_common_point(bounds: Mapping[ParameterStatistics, tuple[float, float]]) -> list[ParameterStatistics]:
    """Return the largest group of parameters whose intervals share a point."""
    points = sorted({low for low, _ in bounds.values()})
    groups = [[row for row, (low, high) in bounds.items() if low <= point <= high] for point in points]
    return max(groups, key=len)


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
        On indexing by a name that no parameter has.

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
