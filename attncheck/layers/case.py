"""What is examined: an attention layer, or a program at one or several widths."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from attncheck._lib.errors import InputError, check_whole, refuse
from attncheck._lib.streams import digest
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.names import layer_name
from attncheck.layers.program import Initial, Program, Score
from attncheck.layers.program.extent import entries_of

#: The width at which exact statements on programs are examined, with literal matrices.
EXACT_WIDTHS = (16,)
#: Widths at which orders in n are examined: the next order, 1/n, is taken off by extrapolation.
RATE_WIDTHS = (32, 128, 512)


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramCase:
    """A program at the widths that it is examined at. Equal where it reads the same.

    Attributes
    ----------
    program : Program
    widths : tuple of int
        In ascending order; what is exact at a width is examined at the first.

    Raises
    ------
    InputError
        If the program has no lines, or a width is not a whole number of at least 1.

    Examples
    --------
    >>> program = Program()
    >>> g = program.matmul(program.weight("W"), program.initial("h"))
    >>> ProgramCase(program, (16,)).describe()
    'n=16 program of 2 lines, 0 scores'
    """

    program: Program
    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        self.program.lines()
        if not self.widths:
            refuse("widths", self.widths, "must not be empty", "pass at least one width, e.g. (16,)")
        widths = tuple(check_whole("width", n, 1, "pass the number of neurons, e.g. width=16") for n in self.widths)
        object.__setattr__(self, "widths", tuple(sorted(set(widths))))

    @property
    def width(self) -> int:
        """The smallest width."""
        return self.widths[0]

    @functools.cached_property
    def scores(self) -> tuple[Score, ...]:
        """The program's scores, in the order they were written."""
        return tuple(node for node in self.program.nodes if isinstance(node, Score))

    @property
    def weight_entries(self) -> int:
        """What a draw costs, about in entries of literal matrices: vectors, and matrices where they are small."""
        bounds = [entries_of(self.program, n) for n in self.widths]
        return sum(each.lines + min(each.matrices, 2 * each.bases) for each in bounds)

    @property
    def stored_entries(self) -> int:
        """Entries of a draw that are held together: the vectors of all widths."""
        return sum(entries_of(self.program, n).lines for n in self.widths)

    def describe(self) -> str:
        """Return a short name."""
        return layer_name({"program": self.program.to_dict(), "widths": self.widths})

    def to_dict(self) -> dict[str, Any]:
        """Return built-in types; `from_dict` gives the case back where functions can be found by name."""
        return {"program": self.program.to_dict(), "widths": list(self.widths)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], trust: Sequence[str] = ()) -> Self:
        """Build a case from what `to_dict` returned; `trust` as for `Program.from_dict`."""
        if not isinstance(fields.get("widths"), list | tuple):
            refuse("widths", fields.get("widths"), "must be a list of widths", "pass e.g. [16]")
        return cls(Program.from_dict(fields["program"], trust), tuple(fields["widths"]))

    def simpler(self) -> Iterator[Self]:
        """Yield cases with less in them: without one of the lines that nothing is made from, then narrower."""
        used = {parent for node in self.program.nodes for parent in node.parents}
        for node in reversed(self.program.nodes):
            if node not in used and not isinstance(node, Initial):
                yield type(self)(self.program.without(node), self.widths)
        if len(self.widths) == 1:
            for width in (3, 8, self.width // 2):
                if 1 <= width < self.width:
                    yield type(self)(self.program, (width,))

    @functools.cached_property
    def key(self) -> str:
        """What the case is known by in streams, records and digests; it never changes."""
        return digest(self.to_dict())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProgramCase) or self.key != other.key:
            return False
        # Functions without a name that they are imported by may be two and be called the same.
        return self.program is other.program or not self._has_local_functions

    @functools.cached_property
    def _has_local_functions(self) -> bool:
        lines = self.program.to_dict()["lines"]
        return any("local" in line.get("nonlin", line.get("output", {})) for line in lines)

    def __hash__(self) -> int:
        return hash(self.key)


#: What a property is examined on.
Case = AttentionLayer | ProgramCase


def read_case(fields: Mapping[str, Any], trust: Sequence[str] = ()) -> Case:
    """Return the layer or program of a record.

    Raises
    ------
    InputError
        If it is neither, or names code of a module that is not trusted.
    """
    if not isinstance(fields, Mapping):
        raise InputError("layer: is not a table; make the record again")
    return ProgramCase.from_dict(fields, trust) if "program" in fields else AttentionLayer.from_dict(fields)


def modules_of(fields: Any) -> tuple[str, ...]:
    """Return the modules of the functions that a written case names, for whoever knows that it is their own.

    Examples
    --------
    >>> modules_of({"program": {"lines": [{"nonlin": {"path": "mine.layers:phi"}}]}, "widths": [16]})
    ('mine.layers',)
    """
    if isinstance(fields, Mapping):
        found = [fields["path"].partition(":")[0]] if isinstance(fields.get("path"), str) else []
        return tuple(dict.fromkeys([*found, *(name for each in fields.values() for name in modules_of(each))]))
    if isinstance(fields, list | tuple):
        return tuple(dict.fromkeys(name for each in fields for name in modules_of(each)))
    return ()
