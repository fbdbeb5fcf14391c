"""Assumption 1: permitted sharing of matrices, and the order of the error if sharing breaks it.

Programs with shared matrices are drawn literally and tested against moments and laws that are exact at every width
given the inputs x, G_ij = x^i·x^j/n. p-values are exact, except in the last test; each test lists what it rejects.

Without clause (b) there is no limit: with W_Q = W_K scores grow as √n. Breaking (a) shifts the mean of an average by
order n^{-1/2}, and a score whose input its own matrix has made has a variance changed by the fraction 2/n². In these
two cases the moments tested still approach those of Definition 1.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from attncheck import AttentionLayer, InputError
from attncheck._lib.streams import stream
from attncheck.layers.kernel import input_covariance, input_kernel
from attncheck.layers.program import LinearCombination, Node, Program
from attncheck.layers.program.coverage import CoverageKind
from attncheck.simulators.interpret import interpret
from attncheck.simulators.multipliers import DirectMultiplier
from attncheck.strategies import layers
from attncheck.theory.limits.programs import limit_of_program

from .p_values import normal_p_value, sign_p_value
from .statement import Look, statement

FloatArray = NDArray[np.float64]

# A factor of 4: what grows as √n doubles, and what falls as n^{-1/2} halves.
_WIDTHS = (8, 32)
_DRAWS = 2_000
# With independent positions x^i·x^j is largest, relative to the lengths, at few neurons.
_NARROW, _NARROW_DRAWS = 4, 4_000
# Squared lengths of differences below this fraction of the squared lengths of their vectors are rounding errors.
_LOST = 1e-9


@statement(layers(max_entries=5_000))
def test_permitted_sharing_has_the_covariance_of_the_limit(layer: AttentionLayer, run_seed: int, look: Look) -> None:
    """(b) permits W^{i,j} = W^{i',j'} for i ≠ i': formula (*), with G in place of K at finite width.

    p = Q x¹·K x² shares K with p' = Q' x¹·K x², Q with p'' = Q x¹·K' x², and both with p''' = Q x¹·K x¹. A sign
    change of Q' (K') changes that of p' (p''): signs of products with p are fair coins, and covariances 0. Given the
    keys, p and p''' are Gaussian with covariance σ_Q² G_11 k¹·k²/n, and sums and differences of keys have lengths of
    law χ²_n, so E[k¹·k²/n] = σ_K² G_12 and Cov(p, p''' | x) = σ_Q²σ_K² G_11 G_12. Rejected: that p and p''' are as
    little correlated as p and p'.
    """
    layer, program, (x1, x2) = _inputs(layer)
    queries = [program.matmul(program.weight(name, layer.query_std), x1) for name in ("A", "B")]
    shared, own = (program.weight(name, layer.key_std) for name in ("C", "D"))
    keys = [program.matmul(shared, x1), program.matmul(shared, x2)]
    sides = [(queries[0], keys[1]), (queries[1], keys[1]), (queries[0], program.matmul(own, x2)), (queries[0], keys[0])]
    scores = [program.score(left, right) for left, right in sides]
    assert all(program.coverage().of(score.name).statement.has_limit for score in scores)

    kernel = input_kernel(layer).matrix
    limit = limit_of_program(program)
    places = [limit.scores.index(score) for score in scores]
    expected = kernel[0, 0] * np.array([kernel[1, 1], 0.0, 0.0, kernel[0, 1]])
    found = limit.score_covariance[places[0], places] / (layer.query_std * layer.key_std) ** 2
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)

    rng = stream(run_seed, "assumption 1 permitted", layer.key)
    a1, a2, k1, k2, *drawn_scores = _draw(program, [x1, x2, *keys, *scores], _NARROW, _NARROW_DRAWS, rng)
    one, by_key, by_query, by_both = drawn_scores
    look.p_value("a shared key", sign_p_value(one * by_key))
    look.p_value("a shared query", sign_p_value(one * by_query))
    variance = layer.query_std**2 * _mean(a1 * a1)
    look.p_value("a score", normal_p_value(one, variance * _mean(k2 * k2)))
    look.p_value("another score", normal_p_value(by_key, variance * _mean(k2 * k2)))
    slope = _mean(k1 * k2) / np.where(_mean(k2 * k2) > 0, _mean(k2 * k2), 1.0)
    rest = k1 - slope[:, None] * k2
    new = _mean(rest * rest) > _LOST * _mean(k1 * k1)
    look.p_value("what is new", normal_p_value((by_both - slope * one)[new], (variance * _mean(rest * rest))[new]))
    for sign in (1.0, -1.0):
        key, vector = k1 + sign * k2, a1 + sign * a2
        new = _mean(vector * vector) > _LOST * _mean(a1 * a1 + a2 * a2)
        expected = layer.key_std**2 * _mean(vector * vector)[new]
        look.p_value(f"keys {sign:+g}", _lengths_fit((key * key).sum(axis=1)[new], expected, _NARROW))

    look.rejects("no correlation", sign_p_value(one * by_both * _mean(a1 * a2)))


@statement(layers(max_entries=5_000))
def test_one_matrix_on_both_sides_grows_as_the_root_of_the_width(
    layer: AttentionLayer, run_seed: int, look: Look
) -> None:
    """(b) forbids W_Q = W_K = W: E[p_ij | x] = σ²√n G_ij, which has no limit.

    √n p_ij = W x^i·W x^j, and √n (p_ii ± 2p_ij + p_jj) = ‖W(x^i ± x^j)‖² is σ²‖x^i ± x^j‖²/n times χ²_n: a quarter of
    their difference has mean σ² n G_ij. Rejected: fair signs of p_ii, as with two matrices, and the same mean at
    widths 8 and 32.
    """
    layer, program, (x1, x2) = _inputs(layer)
    tied, other = (program.weight(name, layer.query_std) for name in ("A", "B"))
    left, right = (program.matmul(tied, x) for x in (x1, x2))
    scores = [program.score(left, left), program.score(left, right), program.score(right, right)]
    apart = program.score(left, program.matmul(other, x1))

    for score in scores:
        line = program.coverage().of(score.name)
        assert line.statement == CoverageKind.TIED
        assert line.reason == "A is on both sides; give the score two matrices"
    assert program.coverage().of(apart.name).statement.has_limit
    with pytest.raises(InputError, match=r"violates Assumption 1 \(b\), A is on both sides"):
        limit_of_program(program)

    for width in _WIDTHS:
        rng = stream(run_seed, "assumption 1 tied", layer.key, width)
        a1, a2, p11, p12, p22, free = _draw(program, [x1, x2, *scores, apart], width, _DRAWS, rng)
        for sign in (1.0, -1.0):
            vector = a1 + sign * a2
            new = _mean(vector * vector) > _LOST * _mean(a1 * a1 + a2 * a2)
            squares = width**0.5 * (p11 + 2.0 * sign * p12 + p22)[new]
            variance = (layer.query_std**2 * _mean(vector * vector))[new]
            look.p_value(f"{sign:+g} at n={width}", _lengths_fit(squares, variance, width))
            if new.any():
                # The mean at the other width, as if it did not grow.
                still = _lengths_fit(squares, variance * _other(width), width)
                look.rejects(f"{sign:+g} at n={width}", still)
        look.p_value(f"two matrices at n={width}", sign_p_value(free))
        look.rejects(f"one matrix as two at n={width}", sign_p_value(p11))


@statement(layers(max_entries=5_000))
def test_values_by_the_matrix_of_the_keys_depart_as_the_inverse_root(
    layer: AttentionLayer, run_seed: int, look: Look
) -> None:
    """(a) forbids W_V = W_K: averages of outputs get a mean of order n^{-1/2} beside their limit.

    With q = W_Q xⁱ, p = q·W_K x^j n^{-1/2}, v = W_K x^l and y = p v, the average n^{-1} Σ_α q_α y_α equals p p_l
    n^{-1/2} in every draw, where p_l is the score with v as the key. By formula (*) its mean given x is σ_Q²σ_K² G_ii
    G_jl n^{-1/2}, while the limit is E[Z^q p° Z^v | p°] = 0, and so is the mean with another W_V. Here j = l, where
    p² over its variance given the key is χ²_1 and the squared length of the key χ²_n; E[p²v_α² | x] is off by the
    fraction 2/n. Rejected: fair signs of the average, and the same mean at widths 8 and 32.
    """
    layer, program, (x1, x2) = _inputs(layer)
    query, key, value = (
        program.weight(name, std)
        for name, std in (("A", layer.query_std), ("B", layer.key_std), ("C", layer.value_std))
    )
    q, k, apart = program.matmul(query, x2), program.matmul(key, x1), program.matmul(value, x1)
    p = program.score(q, k)
    allowed = program.output(np.multiply, [apart], [p])
    assert program.coverage().of(allowed.name).statement.has_limit
    v = program.matmul(key, x1)
    y = program.output(np.multiply, [v], [p])

    for node in (p, y):
        line = program.coverage().of(node.name)
        assert line.statement == CoverageKind.EXTRA_USE
        remedy = "give that one a separate matrix"
        assert line.reason == f"B also makes {v.name}, which is in no score; {remedy}"
    with pytest.raises(InputError, match=r"violates Assumption 1 \(a\), B also makes"):
        limit_of_program(program)

    for width in _WIDTHS:
        rng = stream(run_seed, "assumption 1 values", layer.key, width)
        a1, a2, queries, keys, scores, out, good = _draw(program, [x1, x2, q, k, p, y, allowed], width, _DRAWS, rng)
        average = _mean(queries * out)
        np.testing.assert_allclose(average, scores**2 / width**0.5, rtol=1e-9, atol=1e-12 * np.abs(average).max())
        lengths = (keys * keys).sum(axis=1)
        there = _mean(a1 * a1) * _mean(a2 * a2) > 0
        given = layer.query_std**2 * _mean(a2 * a2) * lengths / width**1.5
        look.p_value(f"average at n={width}", _lengths_fit(average[there], given[there], 1))
        key_variance = layer.key_std**2 * _mean(a1 * a1)[there]
        look.p_value(f"keys at n={width}", _lengths_fit(lengths[there], key_variance, width))
        look.p_value(f"another matrix at n={width}", sign_p_value(_mean(queries * good)))

        look.rejects(
            f"mean of the other width at n={width}", _lengths_fit(average[there], given[there] * _other(width), 1)
        )
        look.rejects(f"fair signs at n={width}", sign_p_value(average))


@statement(layers(max_entries=5_000))
def test_scores_of_what_their_matrix_made_depart_as_the_inverse_square(
    layer: AttentionLayer, run_seed: int, look: Look
) -> None:
    """A score whose input is made by its own matrix, p = (Q Q x¹)·(K x²) n^{-1/2}, has another variance.

    Given x and u = Q x¹, Q u = c u + fresh, c = x¹·u/‖x¹‖², so E‖Q u‖² = E[c²‖u‖² + σ_Q²(‖u‖² - c²‖x¹‖²)] = σ_Q⁴
    ‖x¹‖² (1 + 2/n²), and E[p² | x] = σ_Q⁴σ_K² G_11 G_22 (1 + 2/n²): half more at width 2. Rejected: formula (*),
    without the last factor.
    """
    layer, program, (x1, x2) = _inputs(layer)
    query, key = program.weight("A", layer.query_std), program.weight("B", layer.key_std)
    image = program.matmul(query, x1)
    first = program.score(image, program.matmul(key, x2))
    assert program.coverage().of(first.name).statement.has_limit
    source = program.nonlin(LinearCombination((1.0,)), image)
    again = program.matmul(query, source)
    score = program.score(again, program.matmul(key, x2))
    line = program.coverage().of(score.name)
    assert line.statement == CoverageKind.CIRCULAR
    remedy = f"give {again.name} other inputs"
    made = f"{source.name} depends on {image.name}, a product with {query.name}, a matrix of scores"
    assert line.reason == f"{made}; {remedy}"
    with pytest.raises(InputError, match="violates Assumption 1: circular"):
        limit_of_program(program)

    width = 2
    rng = stream(run_seed, "assumption 1 circular", layer.key)
    a1, a2, images, scores = _draw(program, [x1, x2, again, score], width, 20_000, rng)
    there = _mean(a1 * a1) * _mean(a2 * a2) > 0
    squares = _mean(images * images)
    look.p_value("score", normal_p_value(scores, layer.key_std**2 * _mean(a2 * a2) * squares))
    ratios = squares[there] / (layer.query_std**4 * _mean(a1 * a1)[there])
    error = ratios.std() / len(ratios) ** 0.5
    look.equals("ratio", ratios.mean(), error, 1.0 + 2.0 / width**2, neighbours=[1.0])


def _inputs(layer: AttentionLayer) -> tuple[AttentionLayer, Program, tuple[Node, ...]]:
    """Return a layer with two positions, and a program of inputs x¹, x² with its law in the limit."""
    layer = layer.replace(seq_len=2)
    program = Program()
    phi = layer.phi
    initials = program.initials(["h1", "h2"], [0.0, 0.0], input_covariance(layer))
    return layer, program, tuple(program.nonlin(phi, h) for h in initials)


def _draw(program: Program, nodes: list[Node], width: int, size: int, rng: np.random.Generator) -> list[FloatArray]:
    """Draw lines with literal matrices: vectors (size, width) and scores (size,)."""
    values = interpret(program.steps(), width, size, width, nodes, DirectMultiplier(width, rng), rng)
    return [values.get(node) for node in nodes]


def _other(width: int) -> float:
    """Return √n at the other of the two widths, divided by √n at this one."""
    narrow, wide = _WIDTHS
    return float((narrow / wide if width == wide else wide / narrow) ** 0.5)


def _mean(products: FloatArray) -> FloatArray:
    return np.asarray(products.mean(axis=-1))


def _lengths_fit(squares: FloatArray, variance: FloatArray, degrees: int) -> float:
    """Return the exact p-value of squares over variances under χ² laws with `degrees` degrees of freedom."""
    if not len(squares):
        return 1.0
    law, total = stats.chi2(degrees * len(squares)), float((squares / variance).sum())
    return min(1.0, 2.0 * float(min(law.cdf(total), law.sf(total))))
