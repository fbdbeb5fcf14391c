"""The Netsor program of a stack, in which scores feed later MatMuls."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import attncheck.layers.nonlinearity as nonlinearity
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.expansion import AttentionProgram, write_attention, write_hidden
from attncheck.layers.program import LinearCombination, Node, Program


@dataclasses.dataclass(frozen=True)
class Perceptron:
    """Perceptron u = W² φ(W¹ x), which acts on the vector x of each position.

    `neurons` is the number of hidden neurons. The entries of W¹ and W² have variance `std`²/fan-in.
    """

    phi: nonlinearity.Nonlinearity
    neurons: int
    std: float


@dataclasses.dataclass(frozen=True)
class StackProgram:
    """Netsor program of a stack, with the nodes whose values a draw returns.

    Attributes
    ----------
    program : Program
    streams : tuple of tuple of Node, (depth + 1, seq_len)
        The streams z^{(l),i}; the last one is the output.
    between : tuple of tuple of Node, (depth, seq_len)
        Stream after the attention of each layer, before its perceptron; empty without perceptrons.
    reads : tuple of tuple of Node, (depth, seq_len)
        Inputs of the perceptrons. They are copies of the vectors in `between`, and samplers normalise these copies.
    layers : tuple of AttentionProgram, length depth
    """

    program: Program
    streams: tuple[tuple[Node, ...], ...]
    layers: tuple[AttentionProgram, ...]
    between: tuple[tuple[Node, ...], ...] = ()
    reads: tuple[tuple[Node, ...], ...] = ()


def expand_layers(
    layers: Sequence[AttentionLayer], residual: bool, perceptron: Perceptron | None = None
) -> StackProgram:
    """Return the program of layers in sequence, each with separate matrices, and with a perceptron if one is given.

    Examples
    --------
    >>> layer = AttentionLayer(width=8, seq_len=1, num_heads=1)
    >>> print(expand_layers((layer, layer), residual=True).program.coverage().of("L2.q1,1"))
    L2.q1,1: conjecture: scores feed a later MatMul (L2.x1 depends on scores)
    """
    program = Program()
    stream = tuple(write_hidden(program, layers[0]))
    streams, written = [stream], []
    between: list[tuple[Node, ...]] = []
    copies: list[tuple[Node, ...]] = []
    for depth, layer in enumerate(layers, 1):
        phi, prefix = layer.phi, f"L{depth}."
        inputs = tuple(program.nonlin(phi, z, name=f"{prefix}x{i}") for i, z in enumerate(stream, 1))
        written.append(write_attention(program, layer, inputs, prefix))
        stream = _joined(program, stream, written[-1].outputs, residual, f"{prefix}z")
        if perceptron:
            between.append(stream)
            copies.append(tuple(_copied(program, z, f"{prefix}r{i}") for i, z in enumerate(stream, 1)))
            outputs = _write_perceptron(program, perceptron, copies[-1], prefix)
            stream = _joined(program, stream, outputs, residual, f"{prefix}m")
        streams.append(stream)
    return StackProgram(program, tuple(streams), tuple(written), tuple(between), tuple(copies))


def _joined(
    program: Program, stream: tuple[Node, ...], outputs: tuple[Node, ...], residual: bool, name: str
) -> tuple[Node, ...]:
    """Return the next stream: `outputs` or, if `residual`, ``stream + outputs``.

    `name` is the prefix of the names of the sums.
    """
    if not residual:
        return outputs
    return tuple(
        program.nonlin(LinearCombination((1.0, 1.0)), z, y, name=f"{name}{i}")
        for i, (z, y) in enumerate(zip(stream, outputs, strict=True), 1)
    )


def _copied(program: Program, vector: Node, name: str) -> Node:
    """Append a copy of a vector to the program; samplers normalise the copy and leave the vector unchanged."""
    return program.nonlin(nonlinearity.identity(), vector, name=name)


def _write_perceptron(
    program: Program, perceptron: Perceptron, inputs: tuple[Node, ...], prefix: str
) -> tuple[Node, ...]:
    """Write the lines W² φ(W¹ x)."""
    into = program.weight(f"{prefix}M1", perceptron.std, perceptron.neurons, None)
    out = program.weight(f"{prefix}M2", perceptron.std, None, perceptron.neurons)
    hidden = [program.matmul(into, x, f"{prefix}g{i}") for i, x in enumerate(inputs, 1)]
    images = [program.nonlin(perceptron.phi, g, name=f"{prefix}a{i}") for i, g in enumerate(hidden, 1)]
    return tuple(program.matmul(out, a, f"{prefix}u{i}") for i, a in enumerate(images, 1))
