"""The Netsor program of an attention layer (Example 1 of the paper)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import position_covariance
from attncheck.layers.program import LinearCombination, Node, Program, Weight
from attncheck.layers.program.mixes import AttentionRow

#: Prefix of the names of the input matrices W^i.
INPUT_WEIGHTS = "W"


@dataclasses.dataclass(frozen=True)
class AttentionProgram:
    """Netsor program of a layer, with the nodes whose values a draw returns.

    Attributes
    ----------
    inputs : tuple of Node, length seq_len
    keys, values : tuple of tuple of Node, (kv_heads, seq_len)
    scores : tuple of Node, length num_heads * seq_len * seq_len
        In C order of (head, row, column).
    outputs : tuple of Node, length seq_len
    """

    program: Program
    inputs: tuple[Node, ...]
    keys: tuple[tuple[Node, ...], ...]
    values: tuple[tuple[Node, ...], ...]
    scores: tuple[Node, ...]
    outputs: tuple[Node, ...]


def expand(layer: AttentionLayer) -> AttentionProgram:
    """Return the Netsor program of Example 1 for `layer`.

    The program has no lines for rotary positions and norms; samplers apply them separately.

    Examples
    --------
    >>> print(expand(AttentionLayer(width=8, seq_len=1, num_heads=1)).program)
    h ~ N(0, 1)
    h1 = W1 h
    x1 = clip(100)(h1)
    k1,1 = K1 x1
    v1,1 = V1 x1
    q1,1 = Q1 x1
    p1,1,1 = <q1,1, k1,1> / sqrt(n)
    o1,1 = O1 v1,1
    y1 = attention[0](o1,1, p1,1,1)
    """
    program = Program()
    return write_attention(program, layer, write_inputs(program, layer))


def write_attention(
    program: Program, layer: AttentionLayer, inputs: tuple[Node, ...], prefix: str = ""
) -> AttentionProgram:
    """Append the lines of an attention layer, from keys to outputs, to a program that contains its `inputs`."""
    positions = range(1, layer.seq_len + 1)
    inner = layer.head_dim

    def project(weight: Weight, name: str, vectors: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(program.matmul(weight, x, f"{prefix}{name},{j}") for j, x in zip(positions, vectors, strict=True))

    def declare(name: str, std: float, rows: int | None, columns: int | None) -> Weight:
        return program.weight(f"{prefix}{name}", std, rows, columns)

    keys, values = [], []
    scores: list[Node] = []
    projected: list[Node] = []
    for group in range(1, layer.kv_heads + 1):
        keys.append(project(declare(f"K{group}", layer.key_std, inner, None), f"k{group}", inputs))
        values.append(project(declare(f"V{group}", layer.value_std, inner, None), f"v{group}", inputs))
    for head in range(1, layer.num_heads + 1):
        group = (head - 1) // layer.group_size
        queries = keys[group]
        if not layer.tied_query_key:
            queries = project(declare(f"Q{head}", layer.query_std, inner, None), f"q{head}", inputs)
        for i, query in zip(positions, queries, strict=True):
            for j, key in zip(positions, keys[group], strict=True):
                scores.append(program.score(query, key, layer.score_factor, f"{prefix}p{head},{i},{j}"))
        projected.extend(project(declare(f"O{head}", layer.output_std, None, inner), f"o{head}", values[group]))
    by_row = np.arange(len(scores)).reshape(layer.num_heads, layer.seq_len, layer.seq_len)
    outputs = tuple(
        program.output(
            AttentionRow(layer, i), projected, [scores[k] for k in by_row[:, i].ravel()], f"{prefix}y{i + 1}"
        )
        for i in range(layer.seq_len)
    )
    return AttentionProgram(program, inputs, tuple(keys), tuple(values), tuple(scores), outputs)


def write_inputs(program: Program, layer: AttentionLayer) -> tuple[Node, ...]:
    """Write the lines x^i = φ(h^i + e^i)."""
    phi = layer.phi
    hidden = write_hidden(program, layer)
    return tuple(program.nonlin(phi, vector, name=f"x{i}") for i, vector in enumerate(hidden, 1))


def write_hidden(program: Program, layer: AttentionLayer) -> Iterator[Node]:
    """Write the lines h^i + e^i; if the W^i are correlated, h^i is the sum of a shared and a separate vector."""
    h = program.initial("h")
    positions = _write_positions(program, layer)
    local_std = layer.input_std * (1.0 - layer.input_correlation) ** 0.5
    shared_std = layer.input_std * layer.input_correlation**0.5
    shared = program.matmul(program.weight(f"{INPUT_WEIGHTS}0", shared_std), h, "h0") if shared_std else None
    for i in range(1, layer.seq_len + 1):
        if local_std:
            vector = program.matmul(program.weight(f"{INPUT_WEIGHTS}{i}", local_std), h, f"g{i}" if shared else f"h{i}")
            if shared:
                vector = program.nonlin(LinearCombination((1.0, 1.0)), shared, vector, name=f"h{i}")
        else:
            assert shared is not None
            vector = shared
        if positions:
            vector = program.nonlin(LinearCombination((1.0, 1.0)), vector, positions[i - 1], name=f"z{i}")
        yield vector


def _write_positions(program: Program, layer: AttentionLayer) -> tuple[Node, ...]:
    """Write the position vectors e^i, if any."""
    if not layer.position_std:
        return ()
    names = [f"e{i}" for i in range(1, layer.seq_len + 1)]
    return program.initials(names, [0.0] * layer.seq_len, position_covariance(layer))
