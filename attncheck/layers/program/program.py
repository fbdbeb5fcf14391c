"""`Program`, a Netsor program with dot-product scores, and its cases at one or several widths."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attncheck._lib.errors import check_integer, refuse
from attncheck._lib.streams import digest
from attncheck.layers.draws import ProgramDraws
from attncheck.layers.names import layer_name
from attncheck.layers.program import text
from attncheck.layers.program.coverage import Coverage, coverage
from attncheck.layers.program.extent import entries_of
from attncheck.layers.program.lines import Lines
from attncheck.layers.program.nodes import Score


class Program(Lines):
    """A Netsor program with dot-product scores, written line by line.

    Each writing method returns a node for use in later lines. Lines never change once written.

    Examples
    --------
    >>> import numpy as np
    >>> program = Program()
    >>> h = program.initial("h")
    >>> W, Q, K = (program.weight(name) for name in "WQK")
    >>> x = program.nonlin(np.tanh, program.matmul(W, h))
    >>> p = program.score(program.matmul(Q, x), program.matmul(K, x))
    >>> print(program)
    h ~ N(0, 1)
    g1 = W h
    x1 = tanh(g1)
    g2 = Q x1
    g3 = K x1
    p1 = <g2, g3> / sqrt(n)
    """

    @property
    def key(self) -> str:
        """Digest of the program: its permanent identifier in random streams and records."""
        return digest(self.to_dict())

    def at(self, width: int) -> ProgramAt:
        """Return the program at a width, ready to draw.

        Examples
        --------
        >>> program = Program()
        >>> g = program.matmul(program.weight("W"), program.initial("h"))
        >>> program.at(16).describe()
        'n=16 program of 2 lines, 0 scores'
        """
        return ProgramAt(self, (width,))

    def to_dict(self) -> dict[str, Any]:
        """Return the program as built-in types; `from_dict` restores it if its functions are importable."""
        return text.to_dict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], trust: Sequence[str] = ()) -> Program:
        """Build a program from the result of `to_dict`.

        Parameters
        ----------
        fields : mapping
        trust : sequence of str
            Modules whose functions may be imported and called, besides attncheck, NumPy and scipy.special.

        Raises
        ------
        InputError
            For an invalid field, or code of an untrusted module.
        """
        return text.from_dict(cls(), fields, trust)

    def coverage(self) -> Coverage:
        """Return the paper's statement about each line, with reasons."""
        return coverage(self)


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramCase:
    """A program at one or several test widths; equality compares serialised forms.

    Attributes
    ----------
    program : Program
    widths : tuple of int
        In ascending order; several widths show how a difference decreases with the width.

    Raises
    ------
    InputError
        For a program without lines, or missing or invalid widths.
    """

    kind: ClassVar[str] = "program"

    program: Program
    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        self.program.lines()
        if not self.widths:
            refuse("widths", self.widths, "must not be empty", "pass widths, e.g. (32, 128, 512)")
        remedy = "pass the number of neurons, e.g. width=16"
        widths = tuple(sorted({check_integer("width", width, 1, remedy) for width in self.widths}))
        object.__setattr__(self, "widths", widths)

    @property
    def width(self) -> int:
        """The smallest width."""
        return self.widths[0]

    @functools.cached_property
    def scores(self) -> tuple[Score, ...]:
        """The program's scores, in program order."""
        return tuple(node for node in self.program.nodes if isinstance(node, Score))

    @property
    def weight_entries(self) -> int:
        """Approximate number of array entries to compute per draw at all widths, a measure of the cost."""
        bounds = [entries_of(self.program, n) for n in self.widths]
        return sum(entry.lines + min(entry.matrices, 2 * entry.bases) for entry in bounds)

    @property
    def stored_entries(self) -> int:
        """Bound on the number of array entries to store per draw: the vectors at all widths."""
        return sum(entries_of(self.program, n).lines for n in self.widths)

    def describe(self) -> str:
        """Return a short name."""
        return layer_name({"program": self.program.to_dict(), "widths": self.widths})

    def to_dict(self) -> dict[str, Any]:
        """Return the program and its widths as built-in types, which `from_dict` accepts."""
        return {"program": self.program.to_dict(), "widths": list(self.widths)}

    @staticmethod
    def of(program: Program, widths: Sequence[int]) -> ProgramCase:
        """Return a program at one or several widths."""
        return program.at(*widths) if len(widths) == 1 else ProgramCase(program, tuple(widths))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], trust: Sequence[str] = ()) -> ProgramCase:
        """Build a case from the result of `to_dict`; see `Program.from_dict` for `trust`."""
        if not isinstance(fields.get("widths"), list | tuple):
            refuse("widths", fields.get("widths"), "must be a list of widths", "pass e.g. [16]")
        return cls.of(Program.from_dict(fields["program"], trust), fields["widths"])

    @functools.cached_property
    def key(self) -> str:
        """Digest of the program and its widths: the case's permanent identifier in random streams and records."""
        return digest(self.to_dict())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProgramCase) or self.key != other.key:
            return False
        # Different local functions may share a name.
        return self.program is other.program or not self._has_local_functions

    @functools.cached_property
    def _has_local_functions(self) -> bool:
        lines = self.program.to_dict()["lines"]
        return any("local" in line.get("nonlin", line.get("output", {})) for line in lines)

    def __hash__(self) -> int:
        return hash(self.key)


class ProgramAt(ProgramCase):
    """A program at one width, ready to draw; see `Program.at`."""

    drawn: ClassVar[type[ProgramDraws]] = ProgramDraws
