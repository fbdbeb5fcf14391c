"""Long sequences: distance of attention from uniform, and condensation on few positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from attncheck.paper.charts import Arrays, Chart, ChartPlan, FurtherFigure, Measure, along, at_end
from attncheck.paper.statement import PaperStatement
from attncheck.theory.limits.long import condensed, inverse_participation

_LENGTHS = tuple(4**k for k in range(1, 11))
_STRENGTHS = tuple(np.linspace(0.5, 3.0, 11).tolist())


def from_uniform(seed: int, scale: float, *, std: float) -> Arrays:
    """Return E‖A − 11ᵀ/s‖²_F for scores of standard deviation `std` at several sequence lengths, to ten digits."""
    del seed, scale
    return along(_LENGTHS, [s * inverse_participation(s, std) - 1.0 for s in _LENGTHS])


def uniform_limit(seed: int, scale: float, *, std: float) -> Arrays:
    """Return e^{σ²} − 1 at both ends of the axis."""
    del seed, scale
    value = math.expm1(std**2)
    return along((_LENGTHS[0], _LENGTHS[-1]), (value, value))


def share(seed: int, scale: float, *, exponent: int) -> Arrays:
    """Return E Σ_j A_ij² for scores of variance b² ln s, s = 10^exponent, at several numbers b, to ten digits."""
    del seed, scale
    s = 10**exponent
    return along(_STRENGTHS, [inverse_participation(s, b * math.log(s) ** 0.5) for b in _STRENGTHS])


def share_limit(seed: int, scale: float) -> Arrays:
    """Return the limit of `share` as s → ∞, for scores of variance b² ln s: 0 for b ≤ √2, 1 − √2/b for larger b."""
    del seed, scale
    return along(_STRENGTHS, [condensed(b) for b in _STRENGTHS])


def _read(charts: Sequence[Chart]) -> list[PaperStatement]:
    uniform, shares = (chart.series for chart in charts)
    finite, limits = uniform[:3], uniform[3:]
    strongest = min(range(len(_STRENGTHS)), key=lambda place: abs(_STRENGTHS[place] - 2.0))
    b = _STRENGTHS[strongest]
    return [
        PaperStatement(
            "‖A − 11ᵀ/s‖²_F → e^{σ²} − 1 (arXiv:2410.07799)",
            "; ".join(f"{each.label}: {each.value[0]:.4g}" for each in limits),
            "; ".join(f"{each.label}: {at_end(each)}" for each in finite),
        ),
        PaperStatement(
            "scores of variance b² ln s condense for b > √2 (arXiv:2505.24333)",
            f"1 − √2/b = {condensed(b):.4f} at b = {b:g}, 0 below √2",
            "; ".join(f"{each.label}: {each.value[strongest]:.4f}" for each in shares[:-1]),
        ),
    ]


_STDS = (0.5, 1.0, 1.5)
_POWERS = ((3, "³"), (6, "⁶"), (12, "¹²"), (24, "²⁴"))
LONG = FurtherFigure(
    name="long",
    title="Long sequences",
    setting="Softmax of independent normal scores, those of a row at infinite width.",
    plans=(
        ChartPlan(
            "distance of attention from uniform",
            "Infinite width, scores of standard deviation σ, independent positions",
            "length s",
            "E‖A − 11ᵀ/s‖²",
            (
                *(Measure(f"σ = {std:g}", from_uniform, (("std", std),)) for std in _STDS),
                *(Measure(f"limit, σ = {std:g}", uniform_limit, (("std", std),), law=True) for std in _STDS),
            ),
        ),
        ChartPlan(
            "condensation",
            "Infinite width, scores of variance b² ln s",
            "b",
            "E Σ A²",
            (
                *(Measure(f"s = 10{power}", share, (("exponent", exponent),)) for exponent, power in _POWERS),
                Measure("limit", share_limit, law=True),
            ),
            xscale="linear",
            yscale="linear",
        ),
    ),
    read=_read,
)
