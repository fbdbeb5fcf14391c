"""Extremes: outputs of a continuous law do not coincide at a bound."""

from __future__ import annotations

import numpy as np

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck.checks.check import Alternative, Check
from attncheck.checks.claims import TWO_VALUES
from attncheck.checks.draws import half_precision
from attncheck.checks.reference import Reference
from attncheck.checks.sample import Sample
from attncheck.evidence.extremes import Extremes

# Smallest normal float32; numbers below have fewer digits.
_TINY = float(np.finfo(np.float32).tiny)


def _sides(sample: Sample, reference: Reference) -> tuple[FloatArray, IntArray]:
    """Return each draw's largest and negated smallest output, (draws, 2); 0 if tiny or half-precision."""
    flat = sample.outputs.reshape(len(sample), -1)
    sides = np.stack([flat.max(axis=1), -flat.min(axis=1)], axis=1)
    sides[np.abs(sides) < _TINY] = 0.0
    told = sides[sides != 0.0]
    if 2 * int(half_precision(told).sum()) > told.size:
        # Half-precision numbers coincide by chance.
        sides[:] = 0.0
    return sides, np.array([len(sample)])


CHECKS = (
    Check(
        name="exactness.extremes",
        claim="draws",
        any_weights=True,
        needs=frozenset({"outputs"}),
        null="the largest and the smallest output of a call occur in one draw only, as their law is continuous",
        alternative=Alternative.of("one draw in 500 at a bound", 0.002, coarsest=0.02),
        reads="share of draws that coincide with another at the largest or the smallest output:",
        family=lambda setting: Extremes(),
        measure=_sides,
        hint="the outputs are clipped, or saturate in a number format",
        excluded=lambda setting: "" if setting.weights.continuous else TWO_VALUES,
    ),
)
