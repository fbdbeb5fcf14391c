"""Limits of programs: averages, vectors that are constant or repeated, and texts."""

from __future__ import annotations

import numpy as np

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.theory.limits.programs import limit_of_program


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
