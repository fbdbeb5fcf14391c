"""Theorem 1 by itself: averages over neurons of ψ(y) stay random, and have the law of E[ψ(y) given the scores].

A property of the theory rather than of a subject: draws are attncheck's own. ψ are bounded and pseudo-Lipschitz, as the
theorem demands. Given the conditional variance v of an output E ψ is a function of v alone; its law in the limit is
computed from that of v. With infinitely many heads, or scores divided by n, v is constant, and so is the average.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from attncheck._lib.streams import seed_sequence
from attncheck.layers.attention import AttentionLayer
from attncheck.pytest_plugin import theory
from attncheck.readings import simulate_chunks
from attncheck.runs.statements import Statement
from attncheck.theory.limits.law import LimitLaw

FloatArray = NDArray[np.float64]

_LAYER = AttentionLayer(width=128, seq_len=3, num_heads=1, query_std=3.0)
_WIDTHS = (128, 256)
_DRAWS, _CHUNK = 10_000, 2_000
# Each statement is called wrong with about this chance where it holds.
_QUANTILE = float(stats.norm.isf(5e-10))
# The trapezoidal rule: kinks of ψ cost the square of the step.
_NODES = np.arange(-9.0, 9.0, 0.004)
_WEIGHTS = np.exp(-0.5 * _NODES**2)

#: Bounded functions of one output.
PSI: dict[str, Callable[[FloatArray], FloatArray]] = {
    "cos": np.cos,
    "tanh squared": lambda y: np.tanh(y) ** 2,
    "clipped size": lambda y: np.minimum(np.abs(y), 1.0),
    "squared over one more": lambda y: y**2 / (1.0 + y**2),
}


def _predicted(law: LimitLaw, psi: Callable[[FloatArray], FloatArray]) -> tuple[float, float]:
    """Return mean and variance of E[ψ(y) given v] in the limit."""
    mixture = law.mixture()
    given = psi(np.sqrt(mixture.variances)[:, None] * _NODES) @ _WEIGHTS / _WEIGHTS.sum()
    mean = float(mixture.weights @ given)
    return mean, float(mixture.weights @ (given - mean) ** 2)


def _averages(
    layer: AttentionLayer, psi: Callable[[FloatArray], FloatArray], seed: np.random.SeedSequence
) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the variance of averages, less what n neurons leave, and their standard errors, (2,) each."""
    found = []
    for chunk in simulate_chunks(layer, _DRAWS, _CHUNK, seed=seed, coordinates=layer.width):
        values = psi(chunk.outputs[:, 0])
        # Two halves of the neurons have the same expectation given the scores, and noise of their own.
        found.append(values.reshape(len(values), 2, -1).mean(axis=2))
    halves = np.concatenate(found)
    centred = halves - halves.mean()
    each = np.stack([halves.mean(axis=1), centred[:, 0] * centred[:, 1]])
    return each.mean(axis=1), each.std(axis=1) / math.sqrt(_DRAWS)


@theory("theorem1.averages", psi=tuple(PSI))
def test_averages_over_neurons_have_the_law_of_the_limit(psi: str, run_seed: int, note: Statement) -> None:
    """Mean and variance, with the order 1/n taken off by two widths."""
    predicted = np.array(_predicted(LimitLaw(_LAYER), PSI[psi]))
    narrow, wide = (
        _averages(_LAYER.replace(width=n), PSI[psi], seed_sequence(run_seed, "averages", psi, n)) for n in _WIDTHS
    )
    found = 2.0 * wide[0] - narrow[0]
    error = np.sqrt(4.0 * wide[1] ** 2 + narrow[1] ** 2)
    note(mean=found[0], variance=found[1], predicted_variance=predicted[1])
    off = np.abs(found - predicted) / error
    assert (off < _QUANTILE).all(), f"{off.round(1)} standard errors from the limit"
    # A constant would have been told apart, but for a chance of 0.1%.
    assert predicted[1] > (_QUANTILE + 3.1) * error[1]


@theory("theorem1.constant", psi=tuple(PSI))
def test_averages_become_constant_with_scores_divided_by_n(psi: str, run_seed: int, note: Statement) -> None:
    layer = _LAYER.replace(score_scaling="1/n")
    _, variance = _predicted(LimitLaw(layer), PSI[psi])
    assert variance == pytest.approx(0.0, abs=1e-15)
    narrow, wide = (
        _averages(layer.replace(width=n), PSI[psi], seed_sequence(run_seed, "constant averages", psi, n))
        for n in _WIDTHS
    )
    random = _predicted(LimitLaw(_LAYER), PSI[psi])[1]
    # What the width leaves falls as 1/n: two widths take it off.
    found, error = 2.0 * wide[0][1] - narrow[0][1], math.hypot(2.0 * wide[1][1], narrow[1][1])
    note(variance=found, random=random)
    assert abs(found) < _QUANTILE * error
    # The variance that stays with 1/√n would have been told apart, but for a chance of 0.1%.
    assert random > (_QUANTILE + 3.1) * error
