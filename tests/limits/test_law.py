"""Laws that have closed forms, and limits of programs; tests/theory compares every law with draws."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import attncheck as ac
from attncheck import AttentionLayer, limit
from attncheck._lib.arrays import FloatArray
from attncheck.checks.laws import last_position, marginal_law
from attncheck.theory.limits.programs import limit_of_program

#: Variances and their probabilities; a variance of 0 is an atom.
Mixture = tuple[FloatArray, FloatArray]


def layer(**fields: Any) -> AttentionLayer:
    return AttentionLayer.from_dict({"width": 16, **fields})


def chi_squared(degrees: int, count: int = 4_000) -> Mixture:
    """Return a χ² law, by the trapezoidal rule on the logarithm."""
    logs = np.linspace(-60.0, 7.0, count)
    weights = np.exp(0.5 * degrees * logs - 0.5 * np.exp(logs))
    return np.exp(logs), weights / weights.sum()


def relu(s: int, heads: int) -> Mixture:
    """Return the law of a sum of the squares of those of s H scores that are positive."""
    counts = [(k, stats.binom.pmf(k, s * heads, 0.5)) for k in range(1, s * heads + 1)]
    positive = [
        (values / (s**2 * heads), chance * weights) for k, chance in counts for values, weights in [chi_squared(k)]
    ]
    values, weights = (np.concatenate(each) for each in zip(*positive, strict=True))
    return np.append(values, 0.0), np.append(weights, 2.0 ** -(s * heads))


def softmax(s: int, heads: int) -> Mixture:
    """Return the law of v for K = I, by a product rule on score differences.

    Softmax depends on s - 1 orthonormal contrasts per head, each standard normal.
    """
    dimension = heads * (s - 1)
    nodes, weights = np.polynomial.legendre.leggauss(240)
    nodes, weights = 9 * nodes, 9 * weights * stats.norm.pdf(9 * nodes)
    grid = np.meshgrid(*[nodes] * dimension, indexing="ij")
    z = np.stack([g.ravel() for g in grid], axis=-1).reshape(-1, heads, s - 1)
    contrasts = np.linalg.qr(np.eye(s) - 1 / s)[0][:, : s - 1]
    alpha = special.softmax(z @ contrasts.T, axis=-1)
    probability = np.prod(np.meshgrid(*[weights] * dimension, indexing="ij"), axis=0).ravel()
    return (alpha**2).sum(axis=(1, 2)) / heads, probability / probability.sum()


@pytest.mark.parametrize(("s", "heads"), [(2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("mixture", [softmax, relu])
def test_limits_have_their_closed_forms_to_twelve_standard_deviations(
    mixture: Callable[[int, int], Mixture], s: int, heads: int
) -> None:
    """`properties/theory/test_regimes.py` has those of linear attention, and of limits that are Gaussian."""
    variances, weights = mixture(s, heads)
    law, mean = limit(layer(seq_len=s, num_heads=heads, attention_map=mixture.__name__)), float(weights @ variances)
    t = np.array([0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0]) * np.sqrt(mean)
    positive = np.maximum(variances, 1e-300)
    tails = special.ndtr(-t[:, None] / np.sqrt(positive)) @ weights
    density = (np.exp(-(t[:, None] ** 2) / (2 * positive)) / np.sqrt(2 * np.pi * positive)) @ weights
    np.testing.assert_allclose(law.sf(t), tails, rtol=0.01)
    np.testing.assert_allclose(law.pdf(t), density, rtol=0.01)
    largest = law.cdf_error(t).max()
    assert np.abs(law.sf(t) - tails).max() <= largest + 1e-9
    assert largest <= 1e-3
    assert law.variance() == pytest.approx(mean, rel=2e-3)
    kurtosis = 3 * (weights @ (variances - mean) ** 2) / mean**2
    assert law.excess_kurtosis() == pytest.approx(kurtosis, rel=5e-3, abs=1e-11)
    assert law.atom() == pytest.approx(float(weights[variances == 0.0].sum()), abs=1e-3)
    assert abs(law.covariance()[0, 0] - mean) <= 1.5 * law.covariance_error()[0, 0] + 1e-8 * mean


def test_long_sequences() -> None:
    law = limit(layer(seq_len=512, num_heads=1))
    # s E[v] → e; the next term, by those of the means of e^z and e^2z, is -(2e² - 3e + 1)/s of that.
    first = 2 * np.e**2 - 3 * np.e + 1
    assert abs(512 * law.variance() - np.e * (1 - first / 512)) <= 512 * law.covariance_error()[0, 0] < 0.02


def test_densities_are_infinite_at_an_atom_and_the_law_has_a_short_name() -> None:
    law = limit(layer(seq_len=3, num_heads=1, attention_map="relu"))
    assert float(law.pdf(0.0)) == math.inf
    assert float(law.pdf_error(0.0)) == 0.0
    assert repr(law) == f"LimitLaw(layer={law.layer!r}, scramble=0)"
    importlib.import_module("attncheck.layers.kernel")
    assert limit(law.layer) == law


def test_the_law_of_a_layer_whose_variances_underflow_is_one() -> None:
    """Sigmoid weights of large negative scores: output variances span hundreds of orders of magnitude."""
    fields: dict[str, Any] = {"attention_map": "sigmoid", "mask": "causal", "activation": "identity"}
    layer = AttentionLayer(width=1, seq_len=6, num_heads=3, key_std=4.0, input_std=2.0, input_correlation=1.0, **fields)
    law = marginal_law(layer, last_position(layer))
    assert np.isfinite(law.mixture.variances).all()
    assert (law.mixture.variances > 0.0).all()
    assert 0.0 < law.error < 0.05


# Limits of programs -------------------------------------------------------------------------------


def crossed() -> ac.Program:
    """Two scores with W^{1,1} = W^{2,2} and W^{1,2} = W^{2,1}, of correlated inputs with a mean."""
    program = ac.Program()
    h, k = program.initials(["h", "k"], [0.5, -0.2], [[1.0, 0.6], [0.6, 2.0]])
    x, y = program.nonlin(ac.clip(1.0), h), program.nonlin(ac.tanh(), k)
    A, B, V = (program.weight(name, std) for name, std in (("A", 1.0), ("B", 0.8), ("V", 1.0)))
    p = program.score(program.matmul(A, x), program.matmul(B, y))
    q = program.score(program.matmul(B, x), program.matmul(A, y), factor=2.0)
    v, w = program.matmul(V, x), program.matmul(V, y)
    program.output(mix, [v, w], [p, q])
    return program


def mix(v: FloatArray, w: FloatArray, p: FloatArray, q: FloatArray) -> FloatArray:
    return np.asarray(np.tanh(p) * v + q * w)


def test_averages_are_random_in_the_limit() -> None:
    """Theorem 1: (1/n) Σ ψ(y_α) tends to E[ψ(Z^y) | p°], a function of the scores."""
    program = crossed()
    law = ac.limit(program)
    width = 4_000
    draws = ac.simulate(program.at(width), 60, seed=5, coordinates=width)
    output = program.nodes[-1]
    values, error = law.average(np.square, [output], draws.scores)
    averages = (draws.outputs[:, 0] ** 2).mean(axis=1)
    assert error < 1e-6
    # Coordinates and their moments fluctuate by √(2/n).
    np.testing.assert_allclose(averages, values, rtol=8 * (2 / width) ** 0.5)
    assert values.std() > 0.3 * values.mean()


def test_constant_and_repeated_inputs() -> None:
    program = ac.Program()
    h, k = program.initials(["h", "k"], [1.0, 1.0], [[0.0, 0.0], [0.0, 0.0]])
    W = program.weight("W")
    program.matmul(W, h)
    program.matmul(W, k)
    law = limit_of_program(program)
    np.testing.assert_array_equal(law.covariance, [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
    drawn = law.sample(100).outputs
    np.testing.assert_allclose(drawn[:, 0], drawn[:, 1], atol=1e-12)


def test_a_limit_is_printed_line_by_line() -> None:
    program = ac.Program()
    W, Q, K = (program.weight(name) for name in "WQK")
    one, other = (program.matmul(W, program.initial(name)) for name in ("h", "k"))
    program.score(program.matmul(Q, one), program.matmul(K, one))
    limit = limit_of_program(program)
    told = str(limit).splitlines()
    assert len([line for line in told if line.startswith("Z(")]) == len(limit.lines)
    assert f"{limit.scores[0].name}: variance 1" in told
    assert not any(line.startswith("corr(") and other.name in line for line in told)
