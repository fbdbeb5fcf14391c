"""Limits of programs: against closed forms and exact draws, and refused if there is none."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import attncheck as ac
from attncheck import AttentionLayer, Program
from attncheck._lib.arrays import FloatArray
from attncheck.layers.expansion import expand
from attncheck.layers.expectation import expectation
from attncheck.layers.nonlinearity import Nonlinearity, clip, tanh
from attncheck.theory.limits.programs import limit_of_program


def crossed() -> Program:
    """Two scores with W^{1,1} = W^{2,2} and W^{1,2} = W^{2,1}, of correlated inputs with a mean."""
    program = Program()
    h, k = program.initials(["h", "k"], [0.5, -0.2], [[1.0, 0.6], [0.6, 2.0]])
    x, y = program.nonlin(clip(1.0), h), program.nonlin(tanh(), k)
    A, B, V = (program.weight(name, std) for name, std in (("A", 1.0), ("B", 0.8), ("V", 1.0)))
    p = program.score(program.matmul(A, x), program.matmul(B, y))
    q = program.score(program.matmul(B, x), program.matmul(A, y), factor=2.0)
    v, w = program.matmul(V, x), program.matmul(V, y)
    program.output(mix, [v, w], [p, q])
    return program


def mix(v: FloatArray, w: FloatArray, p: FloatArray, q: FloatArray) -> FloatArray:
    return np.asarray(np.tanh(p) * v + q * w)


def product(f: int, g: int, z: FloatArray) -> FloatArray:
    functions: tuple[Nonlinearity, ...] = (clip(1.0), tanh())
    return np.asarray(functions[f](z[f]) * functions[g](z[g]))


def test_score_covariance_has_both_terms_of_isserlis() -> None:
    law = limit_of_program(crossed())
    mean, cov = np.array([0.5, -0.2]), np.array([[1.0, 0.6], [0.6, 2.0]])
    xx, yy, xy = (expectation(functools.partial(product, *pair), mean, cov)[0] for pair in ((0, 0), (1, 1), (0, 1)))
    same, cross = 0.8**2 * xx * yy, 2.0 * 0.8**2 * xy**2
    np.testing.assert_allclose(law.score_covariance, [[same, cross], [cross, 4.0 * same]], atol=2 * law.error)
    assert law.error < 1e-4
    assert cross > 0.1 * same


@pytest.mark.parametrize(
    "layer",
    [
        AttentionLayer(width=8, seq_len=3, num_heads=2, activation="relu", input_correlation=0.5, query_std=1.5),
        AttentionLayer(width=8, seq_len=3, num_heads=4, num_kv_heads=2, input_correlation=1.0),
    ],
    ids=AttentionLayer.describe,
)
def test_scores_of_a_layer_are_those_of_its_law(layer: AttentionLayer) -> None:
    """Example 1: Cov(p^a_ij, p^b_kl) = δ_ab σ_Q²σ_K² K_ik K_jl, grouped heads included, in closed form."""
    law = limit_of_program(expand(layer).program)
    kernel = ac.limit(layer).kernel.matrix
    block = (layer.query_std * layer.key_std) ** 2 * np.kron(kernel, kernel)
    np.testing.assert_allclose(law.score_covariance, np.kron(np.eye(layer.num_heads), block), atol=1e-9)
    assert law.error < 1e-12


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
    program = Program()
    h, k = program.initials(["h", "k"], [1.0, 1.0], [[0.0, 0.0], [0.0, 0.0]])
    W = program.weight("W")
    program.matmul(W, h)
    program.matmul(W, k)
    law = limit_of_program(program)
    np.testing.assert_array_equal(law.covariance, [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
    drawn = law.sample(100).outputs
    np.testing.assert_allclose(drawn[:, 0], drawn[:, 1], atol=1e-12)


def test_zero_weights() -> None:
    program = Program()
    g = program.matmul(program.weight("W", std=0.0), program.initial("h"))
    x = program.nonlin(tanh(), g)
    program.score(program.matmul(program.weight("Q"), x), program.matmul(program.weight("K"), x))
    law = limit_of_program(program)
    assert law.score_covariance.tolist() == [[0.0]]
    assert law.draw(5, 1, np.random.default_rng(0)).scores.tolist() == [[0.0]] * 5


def test_a_limit_is_printed_line_by_line() -> None:
    program = Program()
    W, Q, K = (program.weight(name) for name in "WQK")
    one, other = (program.matmul(W, program.initial(name)) for name in ("h", "k"))
    program.score(program.matmul(Q, one), program.matmul(K, one))
    limit = limit_of_program(program)
    told = str(limit).splitlines()
    assert len([line for line in told if line.startswith("Z(")]) == len(limit.lines)
    assert f"{limit.scores[0].name}: variance 1" in told
    assert not any(line.startswith("corr(") and other.name in line for line in told)
