"""Draws: independent of each other, with all their digits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attncheck.checks.check import Check, Departure, Setting
from attncheck.checks.reference import Reference
from attncheck.checks.sample import Sample
from attncheck.evidence.families import Count

FloatArray = NDArray[np.float64]

_OUTPUTS = frozenset({"outputs"})
# Draws in a run, and how many of them must not be 0, for a run to count as repeated: a draw may hold a single
# number, as where all positions are equal, and two such numbers coincide by chance in float32.
_RUN, _NONZERO = 6, 3
# The chance that a float32 number lies on the float16 grid; a float64 one has far less.
_HALF_GRID = 2.0**-13


def _signs(sample: Sample, reference: Reference) -> tuple[int, int]:
    """Return how many disjoint pairs of neighbouring draws agree in sign."""
    sums = np.sign(sample.outputs.sum(axis=(1, 2)))
    pairs = sums[: len(sums) // 2 * 2].reshape(-1, 2)
    pairs = pairs[(pairs != 0).all(axis=1)]
    return int((pairs[:, 0] == pairs[:, 1]).sum()), len(pairs)


def _sizes(sample: Sample, reference: Reference) -> tuple[int, int]:
    """Return how often two neighbouring draws, each against another draw far away, are large together.

    Four exchangeable draws a, b (neighbours) and c, d (neighbours half a sample later): a > c and b > d agree
    in half of the cases when draws are independent, whatever their law.
    """
    size = (sample.outputs**2).sum(axis=(1, 2))
    half = len(size) // 4 * 2
    first, second = size[:half].reshape(-1, 2), size[half : 2 * half].reshape(-1, 2)
    decided = (first != second).all(axis=1)
    larger = (first > second)[decided]
    return int((larger[:, 0] == larger[:, 1]).sum()), len(larger)


def _repeats(sample: Sample, reference: Reference) -> tuple[int, int]:
    """Return how many runs of draws occur before in the sample."""
    values = sample.outputs.reshape(len(sample), -1)
    if len(values) < _RUN:
        return 0, 1
    windows = np.lib.stride_tricks.sliding_window_view
    runs = windows(_hashes(values.view(np.uint64)), _RUN)
    nonzero = windows((values != 0.0).any(axis=1), _RUN).sum(axis=1)
    runs = runs[nonzero >= _NONZERO]
    return len(runs) - len(np.unique(_hashes(runs))), max(1, len(runs))


def _hashes(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a whole number for each row, the same for equal rows, and for others with a chance of about 2^-63."""
    # The lower bits of float32 digits are 0; a product would never carry anything down there.
    folded = rows ^ (rows >> np.uint64(32))
    odd = np.random.default_rng(0).integers(2**63, size=rows.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return np.asarray((folded * odd).sum(axis=1, dtype=np.uint64))


def _on_half_grid(field: str) -> Callable[[Sample, Reference], tuple[int, int]]:
    def count(sample: Sample, reference: Reference) -> tuple[int, int]:
        values = sample.need(field)
        # One number per draw: those of one draw may be functions of each other.
        values = values.reshape(len(values), -1)[:, 0]
        values = values[np.isfinite(values) & (values != 0.0)]
        with np.errstate(over="ignore"):
            rounded = values.astype(np.float16).astype(np.float64)
        return int((rounded == values).sum()), max(1, len(values))

    return count


def _fair(setting: Setting) -> Count:
    return Count(0.5, tail="two-sided")


def _precision(field: str) -> Check:
    return Check(
        name=f"draws.precision_{field}",
        claim="draws",
        kind="exact",
        any_weights=True,
        needs=frozenset({"outputs", field}),
        null=f"{field} carry at least single precision: 1 in 2^13 at most lies on the float16 grid",
        departure=Departure.of("every tenth number on the float16 grid", 0.1),
        reads=f"share of {field} on the float16 grid:",
        family=lambda setting: Count(_HALF_GRID),
        measure=_on_half_grid(field),
        hint=f"{field} were rounded to half precision",
    )


CHECKS = (
    Check(
        name="draws.signs",
        claim="draws",
        kind="exact",
        any_weights=True,
        needs=_OUTPUTS,
        null="neighbouring draws agree in sign half of the time",
        departure=Departure.of("agreement in 60% of the pairs", 0.6, coarsest=0.85),
        reads="share of neighbouring draws of equal sign:",
        family=_fair,
        draws_per_unit=2,
        measure=_signs,
        hint="draws depend on their neighbours: weights or random numbers are reused",
    ),
    Check(
        name="draws.sizes",
        claim="draws",
        kind="exact",
        any_weights=True,
        needs=_OUTPUTS,
        null="sizes of neighbouring draws are exchangeable with those of distant ones",
        departure=Departure.of("agreement in 60% of the pairs", 0.6, coarsest=0.85),
        reads="share of neighbouring draws that are large together:",
        family=_fair,
        draws_per_unit=4,
        measure=_sizes,
        hint="draws depend on their neighbours: inputs or weights are reused",
    ),
    Check(
        name="draws.repeats",
        claim="draws",
        kind="exact",
        any_weights=True,
        needs=_OUTPUTS,
        null="no run of draws occurs twice",
        departure=Departure.of("one repeated run in a hundred", 0.01),
        reads="share of runs of draws that occurred before:",
        family=lambda setting: Count(0.0),
        measure=_repeats,
        hint="random streams repeat, e.g. every chunk starts from the same seed",
    ),
    _precision("outputs"),
    _precision("scores"),
)
