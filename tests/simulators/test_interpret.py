"""Interpreted programs: every line is computed correctly, and literal and matrix-free draws have one law."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from attncheck import AttentionLayer, Program
from attncheck._lib.arrays import FloatArray
from attncheck.layers.expansion import expand
from attncheck.layers.program import LinearCombination, MatMul, Node, Nonlin, Output, Score, StackedFunction, Weight
from attncheck.simulators.interpret import interpret
from attncheck.simulators.multipliers import DirectMultiplier, MatrixFreeMultiplier, Multiplier
from attncheck.strategies import layers

from .conftest import COMPARISONS, LEVEL, attend_by_definition


class Recorder:
    """A literal multiplier that reveals its matrices by multiplying unit vectors too."""

    def __init__(self, width: int, rng: np.random.Generator) -> None:
        self.multiply = DirectMultiplier(width, rng)
        self.matrices: dict[str, FloatArray] = {}

    def __call__(self, weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        size, count, columns = vectors.shape
        units = np.broadcast_to(np.eye(columns), (size, columns, columns))
        images = self.multiply(weight, np.concatenate([vectors, units], axis=1), rows, last)
        matrix = images[:, count:].swapaxes(-1, -2)
        if weight.name in self.matrices:
            np.testing.assert_array_equal(matrix, self.matrices[weight.name])
        self.matrices[weight.name] = matrix
        return images[:, :count]


@settings(max_examples=30)
@given(layers(max_entries=5_000))
def test_a_layers_program_computes_the_definition(layer: AttentionLayer) -> None:
    """With the same matrices the digits equal those of plain loops, up to rounding."""
    expansion = expand(layer)
    rng = np.random.default_rng(0)
    record = Recorder(layer.width, rng)
    added = [node for node in expansion.program.nodes if node.name in {f"e{i + 1}" for i in range(layer.seq_len)}]
    assert len(added) == (layer.seq_len if layer.position_std else 0)
    everything = [*expansion.inputs, *expansion.outputs, expansion.program.nodes[0], *added]
    values = interpret(expansion.program.steps(), layer.width, 2, 1, everything, record, rng)
    hidden = values.get(expansion.program.nodes[0])
    positions = values.stack(added) if added else np.zeros((2, layer.seq_len, layer.width))
    inputs, outputs = values.stack(expansion.inputs), values.stack(expansion.outputs)
    scores = values.stack(expansion.scores).reshape(2, layer.num_heads, layer.seq_len, layer.seq_len)
    for k in range(2):
        x, p, y = attend_by_definition(
            layer, hidden[k], positions[k], {name: W[k] for name, W in record.matrices.items()}
        )
        np.testing.assert_allclose(inputs[k], x, rtol=1e-9, atol=1e-9 * layer.inputs.hidden_std)
        np.testing.assert_allclose(scores[k], p, rtol=1e-9, atol=1e-9 * (1 + np.abs(p).max()))
        np.testing.assert_allclose(outputs[k], y, rtol=1e-8, atol=1e-8 * (1 + np.abs(y).max()))


def test_literal_matrices_have_independent_normal_entries_of_the_declared_variance() -> None:
    """Kolmogorov–Smirnov tests of entries, and of products within a row, a column, and across draws and matrices."""
    program = Program()
    weights = [
        program.weight(name, std, rows, columns)
        for name, std, rows, columns in (
            ("A", 2.0, 5, None),
            ("B", 1.0, 5, None),
            ("C", 0.5, None, 5),
            ("D", 1.5, None, None),
            ("E", 1.0, None, None),
        )
    ]
    h = program.initial("h")
    images = [program.matmul(weight, h) for weight in weights if weight.columns is None]
    program.matmul(weights[2], images[0])
    program.matmul(weights[3], images[-1])
    rng = np.random.default_rng(5)
    record = Recorder(8, rng)
    interpret(program.steps(), 8, 600, 8, program.nodes, record, rng)
    entries = {w.name: record.matrices[w.name] / (w.std * w.shape(8)[1] ** -0.5) for w in weights}
    for weight in weights:
        z = entries[weight.name]
        assert z.shape == (600, *weight.shape(8))
        assert stats.kstest(z.ravel(), "norm", method="asymp").pvalue > LEVEL / COMPARISONS
        products = [z[:, 0, 0] * z[:, 0, -1], z[:, 0, 0] * z[:, -1, 0], (z[::2] * z[1::2]).ravel()]
        products += [(z * other).ravel() for other in entries.values() if other is not z and other.shape == z.shape]
        for product in products:
            assert stats.kstest(product, product_normal_cdf, method="asymp").pvalue > LEVEL / COMPARISONS, weight.name


def test_initial_vectors_have_the_declared_law() -> None:
    """Whitened groups are standard normal: entries, and products of entries, vectors and groups."""
    mean, cov = np.array([0.5, -2.0, 0.0]), np.array([[4.0, 1.0, 2.0], [1.0, 1.0, 0.5], [2.0, 0.5, 1.5]])
    program = Program()
    first = program.initials(["a", "b", "c"], mean.tolist(), cov)
    second = program.initial("d", 3.0, 0.1)
    rng = np.random.default_rng(6)
    values = interpret(program.steps(), 4, 2_000, 1, (), DirectMultiplier(4, rng), rng)
    whitening = np.linalg.inv(np.linalg.cholesky(cov))
    z = np.einsum("ij,djn->din", whitening, values.stack(first) - mean[:, None])
    other = (values.get(second) - 3.0) / 0.1
    for sample in (z, other):
        assert stats.kstest(sample.ravel(), "norm", method="asymp").pvalue > LEVEL / COMPARISONS
    products = [z[:, 0] * z[:, 1], z[:, 1] * z[:, 2], z[:, 0, ::2] * z[:, 0, 1::2], z[:, 2] * other, z[::2] * z[1::2]]
    for product in products:
        assert stats.kstest(product.ravel(), product_normal_cdf, method="asymp").pvalue > LEVEL / COMPARISONS


def product_normal_cdf(t: Any) -> Any:
    """Return the cdf of a product of two independent standard normals, of density K₀/π.

    ∫₀ᵗ K₀ = π t/2 (K₀ L₋₁ + K₁ L₀), with the modified Struve functions L, which are slow, so interpolated.
    """
    return 0.5 + np.sign(t) * np.interp(np.abs(t), *product_table())


@functools.cache
def product_table() -> tuple[FloatArray, FloatArray]:
    size = np.sinh(np.linspace(0.0, math.asinh(30.0e4), 4_000)) / 1e4
    size[0] = 1e-12
    half = size / 2 * (special.k0(size) * special.modstruve(-1, size) + special.k1(size) * special.modstruve(0, size))
    return size, half


# Programs beyond attention


class ScaledFirst(StackedFunction):
    def __call__(self, vectors: FloatArray, scores: FloatArray) -> FloatArray:
        return vectors[:, 0] * np.tanh(scores[:, :1]) + scores[:, -1:]


@pytest.mark.parametrize("multiplier", [DirectMultiplier, MatrixFreeMultiplier])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_reused_matrix_is_linear(multiplier: Callable[..., Multiplier], width: int) -> None:
    """W(a + b) = W a + W b, in one step and over several, also for vectors that span R^n."""
    program = Program()
    W = program.weight("W", 1.5)
    a, b = program.initial("a"), program.initial("b")
    images = [program.matmul(W, a), program.matmul(W, b)]
    third = program.matmul(W, images[0])
    plus = program.nonlin(LinearCombination((1.0, 2.0)), a, b)
    more = program.nonlin(LinearCombination((-1.0, 1.0)), plus, images[0])
    image_of_more = program.matmul(W, more)
    nothing = program.nonlin(LinearCombination((0.0,)), a)
    image_of_nothing = program.matmul(W, nothing)
    rng = np.random.default_rng(1)
    values = interpret(program.steps(), width, 50, width, program.nodes, multiplier(width, rng), rng)
    get = values.get
    expected = -(get(images[0]) + 2 * get(images[1])) + get(third)
    np.testing.assert_allclose(get(image_of_more), expected, atol=1e-10)
    assert not get(image_of_nothing).any()


@settings(max_examples=50)
@given(st.data())
def test_interpretation_computes_each_line(data: st.DataObject) -> None:
    """Programs with shared weights of several sizes: every line is correct given the literal matrices."""
    program = Program()
    square = [program.weight(f"W{k}", 0.5 + k) for k in range(2)]
    down, up = program.weight("D", rows=3), program.weight("U", columns=3)
    wide: list[Node] = [program.initial("a"), *program.initials(["b", "c"], [1.0, -1.0], [[1.0, 0.5], [0.5, 2.0]])]
    low: list[Node] = []
    images: list[Node] = []
    scores: list[Node] = []
    kinds = st.sampled_from(("square", "down", "up", "nonlin", "score", "output"))
    for kind in data.draw(st.lists(kinds, min_size=3, max_size=16)):
        pick = data.draw(st.sampled_from(wide))
        if kind == "square":
            wide.append(program.matmul(data.draw(st.sampled_from(square)), pick))
            images.append(wide[-1])
        elif kind == "down":
            low.append(program.matmul(down, pick))
        elif kind == "up" and low:
            wide.append(program.matmul(up, data.draw(st.sampled_from(low))))
            images.append(wide[-1])
        elif kind == "nonlin":
            wide.append(program.nonlin(np.tanh, pick))
        elif kind == "score" and images:
            pair = data.draw(st.sampled_from([group for group in (images, low) if group]))
            scores.append(program.score(data.draw(st.sampled_from(pair)), data.draw(st.sampled_from(pair)), 0.5))
        elif kind == "output" and scores:
            chosen = data.draw(st.lists(st.sampled_from(scores), min_size=1, max_size=3))
            wide.append(program.output(ScaledFirst(), [pick, wide[0]], chosen))
    rng = np.random.default_rng(3)
    record = Recorder(5, rng)
    values = interpret(program.steps(), 5, 4, 2, program.nodes, record, rng)
    for node in program.nodes:
        parents = [values.get(parent) for parent in node.parents]
        if isinstance(node, MatMul):
            expected = np.einsum("krc,kc->kr", record.matrices[node.weight.name], parents[0])
        elif isinstance(node, Nonlin):
            expected = np.tanh(parents[0])
        elif isinstance(node, Score):
            length = parents[0].shape[1]
            expected = np.array([0.5 * np.dot(u, v) / math.sqrt(length) for u, v in zip(*parents, strict=True)])
        elif isinstance(node, Output):
            expected = ScaledFirst()(np.stack(parents[:2], axis=1), np.stack(parents[2:], axis=1))
        else:
            expected = values.get(node)
        np.testing.assert_allclose(values.get(node), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("coordinates", [1, 3, 6])
def test_outputs_that_no_line_uses_are_cut_to_the_coordinates(coordinates: int) -> None:
    """Cutting changes no digit of the literal method, and kept lines are whole."""
    expansion = expand(AttentionLayer(width=6, seq_len=2, num_heads=2))
    steps, outputs = expansion.program.steps(), expansion.outputs
    drawn = []
    for keep in ((), outputs):
        rng = np.random.default_rng(4)
        drawn.append(interpret(steps, 6, 3, coordinates, keep, DirectMultiplier(6, rng), rng).stack(outputs))
    assert drawn[0].shape == (3, 2, coordinates)
    assert drawn[1].shape == (3, 2, 6)
    np.testing.assert_allclose(drawn[0], drawn[1][..., :coordinates], rtol=1e-13)
    rng = np.random.default_rng(4)
    free = MatrixFreeMultiplier(6, rng)
    assert interpret(steps, 6, 3, coordinates, outputs, free, rng).stack(outputs).shape == (3, 2, 6)
