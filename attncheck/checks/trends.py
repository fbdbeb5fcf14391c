"""Trends within a call: draws are exchangeable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck.checks.alternatives import of_correlation, of_direction
from attncheck.checks.check import Alternative, Check
from attncheck.checks.reference import Reference
from attncheck.checks.sample import Sample
from attncheck.checks.whitening import Residual
from attncheck.evidence.trend import Trend


def _mean_square(residual: Residual) -> FloatArray:
    """Return the mean square of each draw's whitened numbers."""
    squares, dof = residual.squares()
    return squares / np.maximum(dof, 1.0)


def _trend(
    name: str, what: str, needs: frozenset[str], alternative: Alternative, sizes: Callable[[Sample], FloatArray]
) -> Check:
    """Return the check that one size per draw has no trend."""

    def measure(sample: Sample, reference: Reference) -> tuple[FloatArray, IntArray]:
        return sizes(sample), np.array([len(sample)])

    return Check(
        name=name,
        claim="draws",
        any_weights=True,
        needs=frozenset({"outputs"}) | needs,
        null=f"sizes of {what} have no trend within a call",
        alternative=alternative,
        reads=f"correlation of the ranks of the sizes of {what} with the place in the call:",
        family=lambda setting: Trend(),
        measure=measure,
        hint=f"{what} grow or shrink within a call: state carries over between draws",
    )


_WHITENED = of_correlation()

CHECKS = (
    _trend(
        "exactness.trend",
        "outputs",
        frozenset(),
        of_direction(),
        lambda sample: np.asarray((sample.outputs**2).sum(axis=(1, 2))),
    ),
    _trend(
        "conditional.trend",
        "whitened outputs",
        frozenset({"scores", "value_gram"}),
        _WHITENED,
        lambda sample: _mean_square(sample.output_residual),
    ),
    _trend(
        "scores.trend",
        "whitened scores",
        frozenset({"scores", "input_gram", "key_gram"}),
        _WHITENED,
        lambda sample: _mean_square(sample.whitened_scores),
    ),
)
