"""Calls of a subject on programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attncheck.checks.programs.sample import ProgramSample, ProgramSetting, sample_of
from attncheck.layers.program import Program, ProgramCase
from attncheck.subject.caller import Caller


@dataclasses.dataclass(frozen=True)
class ProgramCaller(Caller[ProgramCase, ProgramSample, ProgramSetting]):
    """Calls a subject on programs; attributes as in `Subject`."""

    programs: Callable[..., Mapping[str, Any]] | None

    def reason_unsupported(self, case: ProgramCase) -> str:
        """Return why the subject does not simulate programs, or an empty string."""
        return "" if self.programs else "the subject simulates layers only"

    def draw(self, case: ProgramCase, size: int, rng: np.random.Generator) -> ProgramSample:
        """Draw a validated sample of a program at each width of a case."""
        if self.programs is None:
            remedy = "define its attribute `programs`, see attncheck.subject.Subject"
            self.refuse(case, f"was asked for a program; {remedy}")
        arrays = [self.run(self.programs, case, n, size, rng) for n in case.widths]
        with self.reading(case):
            return sample_of(case, arrays, size)

    def setting(self, case: ProgramCase, sample: ProgramSample, repeatable: bool) -> ProgramSetting:
        """Return the setting of a program: the arrays and neurons in a sample, and whether draws are repeatable."""
        return ProgramSetting(case, sample.exposed, sample.coordinates, self.weights, repeatable)

    def called_with(self, case: ProgramCase) -> Program:
        """Return the program; widths are separate arguments."""
        return case.program
