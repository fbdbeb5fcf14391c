"""Interpreted programs: every line is computed correctly."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck import AttentionLayer, Program
from attncheck._lib.arrays import FloatArray
from attncheck.layers.expansion import expand
from attncheck.layers.program import Weight
from attncheck.simulators.interpret import interpret
from attncheck.simulators.multipliers import DirectMultiplier
from attncheck.strategies import layers, programs

from . import literal
from .cases import reused


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
    """With the same matrices the digits equal those of the network written out, up to rounding."""
    expansion = expand(layer)
    assert Program.from_dict(expansion.program.to_dict()).to_dict() == expansion.program.to_dict()
    rng = np.random.default_rng(0)
    record = Recorder(layer.width, rng)
    added = [node for node in expansion.program.nodes if node.name in {f"e{i + 1}" for i in range(layer.seq_len)}]
    assert len(added) == (layer.seq_len if layer.position_std else 0)
    lines = [*expansion.inputs, *expansion.outputs, expansion.program.nodes[0], *added]
    values = interpret(expansion.program.steps(), layer.width, 2, 1, lines, record, rng)
    positions = values.stack(added) if added else np.zeros((2, layer.seq_len, layer.width))
    hidden = literal.hidden_vectors(layer, record.matrices, values.get(expansion.program.nodes[0]), positions)
    draws = literal.attend(layer, literal.inputs_of(layer, hidden), record.matrices)
    scores = values.stack(expansion.scores).reshape(draws.scores.shape)
    np.testing.assert_allclose(values.stack(expansion.inputs), draws.inputs, rtol=1e-9, atol=1e-9 * layer.hidden_std)
    np.testing.assert_allclose(scores, draws.scores, rtol=1e-9, atol=1e-9 * (1 + np.abs(scores).max()))
    outputs = draws.outputs
    np.testing.assert_allclose(
        values.stack(expansion.outputs), outputs, rtol=1e-8, atol=1e-8 * (1 + np.abs(outputs).max())
    )


# Programs beyond attention


@settings(max_examples=50)
@given(programs() | st.builds(reused), st.integers(1, 5))
def test_interpretation_computes_each_line(program: Program, width: int) -> None:
    """Programs with shared weights of several sizes: every line is correct given the literal matrices."""
    rng = np.random.default_rng(3)
    record = Recorder(width, rng)
    values = interpret(program.steps(), width, 4, 1, program.nodes, record, rng)
    expected = literal.evaluate(program, values.get, lambda weight: record.matrices[weight.name])
    for node, value in expected.items():
        np.testing.assert_allclose(values.get(node), value, rtol=1e-12, atol=1e-12)
