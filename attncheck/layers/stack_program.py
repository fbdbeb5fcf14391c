"""The Netsor program that a stack stands for: scores feed later MatMuls, which is where the paper's proof ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import attncheck.layers.nonlinearity as nonlinearity
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.expansion import AttentionProgram, write_attention, write_hidden
from attncheck.layers.program import LinearCombination, Node, Program


@dataclasses.dataclass(frozen=True)
class StackProgram:
    """A stack's program with the nodes that draws are read off from.

    Attributes
    ----------
    program : Program
    streams : tuple of tuple of Node, (depth + 1, seq_len)
        The z^{(l),i}, the output last.
    layers : tuple of AttentionProgram, length depth
        Inputs, scores and outputs of each layer.
    """

    program: Program
    streams: tuple[tuple[Node, ...], ...]
    layers: tuple[AttentionProgram, ...]


def expand_layers(layers: Sequence[AttentionLayer], residual: bool) -> StackProgram:
    """Return the program of layers on top of each other, every layer with matrices of its own.

    Parameters
    ----------
    layers : sequence of AttentionLayer
        From the first to the last.
    residual : bool
        Whether a layer adds to the stream or replaces it.

    Examples
    --------
    >>> layer = AttentionLayer(width=8, seq_len=1, num_heads=1)
    >>> print(expand_layers((layer, layer), residual=True).program.coverage().of("L2.q1,1"))
    L2.q1,1: conjecture: scores feed a later MatMul (L2.x1 depends on scores)
    """
    program = Program()
    stream = tuple(write_hidden(program, layers[0]))
    streams, written = [stream], []
    for depth, layer in enumerate(layers, 1):
        phi, prefix = nonlinearity.from_layer(layer), f"L{depth}."
        inputs = tuple(program.nonlin(phi, z, name=f"{prefix}x{i}") for i, z in enumerate(stream, 1))
        written.append(write_attention(program, layer, inputs, prefix))
        outputs = written[-1].outputs
        if residual:
            outputs = tuple(
                program.nonlin(LinearCombination((1.0, 1.0)), z, y, name=f"{prefix}z{i}")
                for i, (z, y) in enumerate(zip(stream, outputs, strict=True), 1)
            )
        stream = outputs
        streams.append(stream)
    return StackProgram(program, tuple(streams), tuple(written))
