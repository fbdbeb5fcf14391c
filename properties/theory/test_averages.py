"""Theorem 1: averages over neurons of ψ(y) stay random, with the law of E[ψ(y) given the scores].

The ψ are bounded and pseudo-Lipschitz, as the theorem requires. Given the conditional variance v of an output, E ψ is
a function of v alone. With infinitely many heads, or scores divided by n, v and the average are constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from attncheck._lib.streams import seed_sequence
from attncheck.layers.attention import AttentionLayer
from attncheck.methods import simulate_chunks
from attncheck.theory.limits.law import LimitLaw

from .statement import Look, statement

FloatArray = NDArray[np.float64]

_LAYER = AttentionLayer(width=128, seq_len=3, num_heads=1, query_std=3.0)
_WIDTHS = (128, 256)
_DRAWS, _CHUNK = 10_000, 2_000
# Bound on the order 1/n² of the variance at these widths, relative to the limit with 1/√n scores.
_NEXT = 0.1
# Trapezoidal rule: kinks of ψ cost the square of the step.
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


def _averages(layer: AttentionLayer, seed: np.random.SeedSequence) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return, per ψ, mean and variance of averages, without the noise of n neurons, and their standard errors, (2,)."""
    found: dict[str, list[FloatArray]] = {name: [] for name in PSI}
    for chunk in simulate_chunks(layer, _DRAWS, _CHUNK, seed=seed, coordinates=layer.width):
        for name, psi in PSI.items():
            values = psi(chunk.outputs[:, 0])
            # Two halves of the neurons have the same expectation given the scores, and independent noise.
            found[name].append(values.reshape(len(values), 2, -1).mean(axis=2))
    return {name: _moments(np.concatenate(parts)) for name, parts in found.items()}


def _moments(halves: FloatArray) -> tuple[FloatArray, FloatArray]:
    centred = halves - halves.mean()
    each = np.stack([halves.mean(axis=1), centred[:, 0] * centred[:, 1]])
    return each.mean(axis=1), each.std(axis=1) / math.sqrt(len(halves))


def _extrapolated(layer: AttentionLayer, run_seed: int, name: str) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return the moments of `_averages`, extrapolated from two widths to remove the order 1/n."""
    narrow, wide = (_averages(layer.replace(width=n), seed_sequence(run_seed, name, n)) for n in _WIDTHS)
    return {psi: (2.0 * wide[psi][0] - narrow[psi][0], np.hypot(2.0 * wide[psi][1], narrow[psi][1])) for psi in PSI}


@statement()
def test_averages_over_neurons_have_the_law_of_the_limit(run_seed: int, look: Look) -> None:
    """Tests mean and variance of the averages; the neighbour is an average that is constant."""
    for psi, (found, error) in _extrapolated(_LAYER, run_seed, "averages").items():
        mean, variance = _predicted(LimitLaw(_LAYER), PSI[psi])
        look.equals(f"mean of {psi}", found[0], error[0], mean)
        allowance = _NEXT * variance
        look.equals(f"variance of {psi}", found[1], error[1], variance, neighbours=[0.0], allowance=allowance)


@statement()
def test_averages_become_constant_with_scores_divided_by_n(run_seed: int, look: Look) -> None:
    """The limit variance with 1/√n scores is the neighbour."""
    layer = _LAYER.replace(score_scaling="1/n")
    for psi, (found, error) in _extrapolated(layer, run_seed, "constant averages").items():
        assert _predicted(LimitLaw(layer), PSI[psi])[1] == pytest.approx(0.0, abs=1e-15)
        random = _predicted(LimitLaw(_LAYER), PSI[psi])[1]
        look.equals(f"variance of {psi}", found[1], error[1], 0.0, neighbours=[random], allowance=_NEXT * random)
