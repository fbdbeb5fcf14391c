"""Corollary 2, Example 1: the joint law of results and scores of a program at a width."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attncheck.checks.alternatives import of_law
from attncheck.checks.check import FEWEST_NUMBERS
from attncheck.checks.claims import ONE_NEURON
from attncheck.checks.programs.functionals import PROGRAM_FUNCTIONALS, ProgramFunctional
from attncheck.checks.programs.kinds import ProgramCheck
from attncheck.checks.programs.reference import RATIO, ProgramReference
from attncheck.checks.programs.sample import ProgramSample
from attncheck.evidence.families import TwoSample

FloatArray = NDArray[np.float64]


def _check(functional: ProgramFunctional) -> ProgramCheck:
    def measure(sample: ProgramSample, reference: ProgramReference) -> tuple[FloatArray, FloatArray]:
        ours = functional.compute(sample.outputs, sample.need("scores"))
        return ours, reference.functionals[functional.name]

    return ProgramCheck(
        name=f"corollary2.{functional.name}",
        claim="corollary2",
        needs=frozenset({"outputs", "scores"}),
        null=f"{functional.text} has the law given by the matrix-free method at the same width",
        alternative=of_law(),
        reads=f"Kolmogorov distance of {functional.text} from the exact law:",
        family=lambda setting: TwoSample(RATIO, unit=functional.unit),
        measure=measure,
        hint="the simulated program differs from the declared one",
        requires=functional.requires,
        excluded=lambda setting: "" if functional.neurons <= setting.coordinates else ONE_NEURON,
        compares=functional.name,
        fewest_draws=FEWEST_NUMBERS,
    )


CHECKS = tuple(_check(functional) for functional in PROGRAM_FUNCTIONALS)
