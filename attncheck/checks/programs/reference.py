"""Reference draws of a program."""

from __future__ import annotations

from functools import cached_property

from attncheck._lib.arrays import FloatArray
from attncheck.checks.programs.functionals import PROGRAM_FUNCTIONALS
from attncheck.checks.reference import RATIO, ReferenceOf
from attncheck.layers.program import ProgramCase
from attncheck.methods import simulate_chunks


class ProgramReference(ReferenceOf[ProgramCase]):
    """Reference draws of a program by the matrix-free method, at the smallest width of its case."""

    @cached_property
    def functionals(self) -> dict[str, FloatArray]:
        """The values of every wanted functional, (RATIO · size,)."""
        program, size, coordinates = self.case.program, RATIO * self.size, self.coordinates
        at = program.at(self.case.width)
        drawn = simulate_chunks(at, size, self.size, self.seed, method="matrix-free", coordinates=coordinates)
        return self.values_of(PROGRAM_FUNCTIONALS, program, coordinates, drawn)
