"""Reference draws of a program."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attncheck.checks.programs.functionals import PROGRAM_FUNCTIONALS
from attncheck.layers.program import ProgramCase
from attncheck.methods import simulate_chunks

FloatArray = NDArray[np.float64]

#: Reference draws per draw of the subject.
RATIO = 4


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramReference:
    """Functionals of matrix-free draws at the first width, `RATIO` per draw of the subject.

    Only functionals in `wanted` are computed (all if None); the draws do not depend on it.
    """

    case: ProgramCase
    size: int
    coordinates: int
    seed: np.random.SeedSequence
    wanted: frozenset[str] | None = None

    @cached_property
    def functionals(self) -> dict[str, FloatArray]:
        """The values of every wanted functional, (RATIO · size,)."""
        wanted = [
            f
            for f in PROGRAM_FUNCTIONALS
            if (self.wanted is None or f.name in self.wanted) and f.applies(self.case.program, self.coordinates)
        ]
        chunks = simulate_chunks(
            self.case.program.at(self.case.width),
            RATIO * self.size,
            self.size,
            self.seed,
            method="matrix-free",
            coordinates=self.coordinates,
        )
        parts = [[f.compute(chunk.outputs, chunk.scores) for f in wanted] for chunk in chunks]
        return {f.name: np.concatenate(column) for f, column in zip(wanted, zip(*parts, strict=True), strict=True)}
