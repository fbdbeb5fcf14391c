"""Example programs for Definition 1 and Theorem 1, by name in `EXAMPLES`.

All satisfy Assumption 1: score inputs are bounded, and no score has the same matrix on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_integer
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.expansion import expand
from attncheck.layers.inputs import DEFAULT_CLIP
from attncheck.layers.nonlinearity import clip, erf, relu
from attncheck.layers.program import Coordinatewise, LinearCombination, Node, Program
from attncheck.layers.program.mixes import residual_softmax_mix, sigmoid_mix, softmax_mix

__all__ = [
    "EXAMPLES",
    "cross_attention",
    "gated_attention",
    "grouped_query_attention",
    "perceptron",
    "positional_attention",
    "recurrent",
    "recurrent_attention",
    "residual_attention",
    "residual_softmax_mix",
    "sigmoid_mix",
    "softmax_mix",
]


# Correlation between neighbouring tokens, pixels or positions; it decays geometrically.
_CORRELATION = 0.5


def perceptron(depth: int = 3) -> Program:
    """Return a multilayer perceptron, h ↦ relu(W_d … relu(W_1 h)), to which Fact 1 applies; no matrix is used twice.

    He scaling keeps E (W x)² at 2 E (h)² at every depth. Since the program has no scores, relu need not be bounded.

    Parameters
    ----------
    depth : int
        Number of matrices.

    Returns
    -------
    Program

    Examples
    --------
    >>> print(perceptron(2))
    h ~ N(0, 1)
    g1 = W1 h
    x1 = relu(g1)
    g2 = W2 x1
    x2 = relu(g2)
    """
    program = Program()
    x = program.initial("h")
    for layer in _numbers("depth", depth):
        x = program.nonlin(relu(), program.matmul(program.weight(f"W{layer}", 2**0.5), x))
    return program


def recurrent(steps: int = 3) -> Program:
    """Return a recurrent network, s_t = erf(W s_{t-1} + U x_t), an example of Definition 1 (ii) with reused matrices.

    The same W and U are used at all times, so W s_t and W s_u have the covariance E[s_t s_u]. The tokens x_t are
    correlated too.

    Parameters
    ----------
    steps : int
        Number of tokens.

    Returns
    -------
    Program

    Examples
    --------
    >>> print(recurrent(2))
    s0 ~ N(0, 1)
    x1 ~ N(0, 1)
    x2 ~ N(0, 1)
    g1 = W s0
    g2 = U x1
    h1 = linear(1, 1)(g1, g2)
    s1 = erf(h1)
    g3 = W s1
    g4 = U x2
    h2 = linear(1, 1)(g3, g4)
    s2 = erf(h2)
    """
    program = Program()
    _states(program, steps)
    return program


def residual_attention(seq_len: int = 3) -> Program:
    """Return attention with a skip connection, y^i = x^i + Σ_j A_ij W^O W^V x^j.

    Theorem 1 applies with x^i as one of the vectors g of an output φ(g¹, …, gᵐ, p_1, …, p_r), because x^i depends on no
    matrix of a score.

    Parameters
    ----------
    seq_len : int
        Number of positions.

    Returns
    -------
    Program

    Examples
    --------
    >>> program = residual_attention(2)
    >>> print(program.nodes[-1].name, program.coverage().of("y2").statement)
    y2 Theorem 1, Corollary 2
    """
    program = Program()
    inputs = _tokens(program, seq_len)
    values, rows = _head(program, inputs, inputs)
    for i, (x, row) in enumerate(zip(inputs, rows, strict=True), 1):
        program.output(residual_softmax_mix, [x, *values], row, f"y{i}")
    return program


def cross_attention(queries: int = 2, keys: int = 3) -> Program:
    """Return cross-attention, an example of Proposition 8: queries and keys are computed from different sequences.

    In the notation of the proposition, x^{i,1} belongs to one sequence and x^{i,2} to the other. Each sequence has its
    own initial vectors and matrices.

    Parameters
    ----------
    queries, keys : int
        Lengths of the query and key sequences.

    Returns
    -------
    Program

    Examples
    --------
    >>> program = cross_attention(queries=1, keys=2)
    >>> [str(line) for line in program.coverage().lines if line.name.startswith("p")]
    ['p1,1: Proposition 8', 'p1,2: Proposition 8']
    """
    program = Program()
    asking = _tokens(program, queries, "a", "queries")
    values, rows = _head(program, asking, _tokens(program, keys, "b", "keys"))
    return _mixed(program, softmax_mix, values, rows)


def grouped_query_attention(heads: int = 4, groups: int = 2, seq_len: int = 2) -> Program:
    """Return Example 1 with W^K and W^V shared within groups of heads, as Assumption 1 (b) allows.

    Two heads of a group have different W^Q, so their scores have covariance 0; but at finite width the squares of
    their scores are correlated. The sum over heads is multiplied by H^{-1/2}.

    Parameters
    ----------
    heads : int
        Number of heads, H.
    groups : int
        Number of distinct W^K; divides `heads`.
    seq_len : int
        Number of positions.

    Returns
    -------
    Program

    Examples
    --------
    >>> program = grouped_query_attention(heads=2, groups=1, seq_len=1)
    >>> [weight.name for weight in program.weights]
    ['W1', 'K1', 'V1', 'Q1', 'O1', 'Q2', 'O2']
    """
    # A program does not depend on the layer's width, so any width will do.
    return expand(AttentionLayer(width=1, seq_len=seq_len, num_heads=heads, num_kv_heads=groups)).program


def positional_attention(seq_len: int = 3) -> Program:
    """Return attention over x^i = erf(W h^i + e^i) with position encodings e^i.

    This is an example of Fact 1 with correlated inputs. The tokens h^i are independent and share W. The encodings e^i
    are initial vectors whose correlation decays with distance.

    Parameters
    ----------
    seq_len : int
        Number of positions.

    Returns
    -------
    Program

    Examples
    --------
    >>> print(*str(positional_attention(2)).splitlines()[:10], sep=" | ")
    e1 ~ N(0, 1) | e2 ~ N(0, 1) | t1 ~ N(0, 1) | g1 = W t1 | h1 = linear(1, 1)(g1, e1) | x1 = erf(h1) | ...
    """
    program = Program()
    encodings = program.initials(*_fading("e", len(_numbers("seq_len", seq_len))))
    embed = program.weight("W")
    inputs = []
    for i, encoding in enumerate(encodings, 1):
        image = program.matmul(embed, program.initial(f"t{i}"))
        total = program.nonlin(LinearCombination((1.0, 1.0)), image, encoding, name=f"h{i}")
        inputs.append(program.nonlin(erf(), total, name=f"x{i}"))
    return _mixed(program, softmax_mix, *_head(program, inputs, inputs))


def gated_attention(seq_len: int = 3) -> Program:
    """Return sigmoid attention, y^i = Σ_j W^O W^V x^j / (1 + exp(-p_ij)), an example of Theorem 1 without softmax.

    Weights are not normalised, so the output variance grows with `seq_len`.

    Parameters
    ----------
    seq_len : int
        Number of positions.

    Returns
    -------
    Program

    Examples
    --------
    >>> str(gated_attention(1).nodes[-1].function)
    'sigmoid_mix'
    """
    program = Program()
    inputs = _tokens(program, seq_len)
    return _mixed(program, sigmoid_mix, *_head(program, inputs, inputs))


def recurrent_attention(steps: int = 3) -> Program:
    """Return a recurrent network whose last state attends to all states: matrices are reused before the scores.

    Reused matrices correlate the states s_t, and therefore the scores (Proposition 8). The covariances E[s_t s_u] of
    the states differ from each other and from 0.

    Parameters
    ----------
    steps : int
        Number of tokens.

    Returns
    -------
    Program

    Examples
    --------
    >>> program = recurrent_attention(2)
    >>> print(*str(program).splitlines()[-3:], sep=" | ")
    p1,1 = <q1, k1> / sqrt(n) | p1,2 = <q1, k2> / sqrt(n) | y1 = softmax_mix(o1, o2, p1,1, p1,2)
    >>> program.coverage().proved
    True
    """
    program = Program()
    states = _states(program, steps)
    return _mixed(program, softmax_mix, *_head(program, states[-1:], states))


EXAMPLES: Final[Mapping[str, Callable[[], Program]]] = {
    make.__name__: make
    for make in (
        perceptron,
        recurrent,
        residual_attention,
        cross_attention,
        grouped_query_attention,
        positional_attention,
        gated_attention,
        recurrent_attention,
    )
}
"""Example programs with default sizes, by name."""


def _numbers(field: str, count: int) -> range:
    """Return 1, …, count after validating the count."""
    return range(1, check_integer(field, count, 1, f"pass a size, e.g. {field}=3") + 1)


def _fading(letter: str, count: int) -> tuple[list[str], list[float], FloatArray]:
    """Return names, means and covariance of a sequence of initial vectors whose correlation falls with distance.

    A name is `letter` and the number of the vector.
    """
    positions = np.arange(count)
    cov = _CORRELATION ** np.abs(np.subtract.outer(positions, positions))
    return [f"{letter}{position + 1}" for position in positions], [0.0] * count, cov


def _tokens(program: Program, count: int, letter: str = "", field: str = "seq_len") -> list[Node]:
    """Append the paper's inputs, x^i = clip(W^i h, -100, 100), to a program, and return them.

    They are computed from a separate initial vector h. `letter` is the prefix of all names, and `field` is the name of
    the argument `count` in error messages.
    """
    h = program.initial(f"{letter}h")
    inputs = []
    for i in _numbers(field, count):
        image = program.matmul(program.weight(f"{letter}W{i}"), h)
        inputs.append(program.nonlin(clip(DEFAULT_CLIP), image, name=f"{letter}x{i}"))
    return inputs


def _states(program: Program, steps: int) -> list[Node]:
    """Append the states of a recurrent network to a program, and return them."""
    state = program.initial("s0")
    tokens = program.initials(*_fading("x", len(_numbers("steps", steps))))
    recur, read = program.weight("W"), program.weight("U")
    states = []
    for t, token in enumerate(tokens, 1):
        parts = program.matmul(recur, state), program.matmul(read, token)
        total = program.nonlin(LinearCombination((1.0, 1.0)), *parts, name=f"h{t}")
        state = program.nonlin(erf(), total, name=f"s{t}")
        states.append(state)
    return states


def _head(program: Program, asking: Sequence[Node], sources: Sequence[Node]) -> tuple[list[Node], list[list[Node]]]:
    """Append an attention head to a program; return its values W^O W^V x, and a row of scores for each query.

    Queries are computed from the vectors `asking`, and keys and values from the vectors `sources`.
    """
    weights = {name: program.weight(name) for name in "QKVO"}

    def images(name: str, vectors: Sequence[Node]) -> list[Node]:
        return [program.matmul(weights[name], x, f"{name.lower()}{i}") for i, x in enumerate(vectors, 1)]

    queries, keys = images("Q", asking), images("K", sources)
    values = images("O", images("V", sources))
    rows = [
        [program.score(query, key, name=f"p{i},{j}") for j, key in enumerate(keys, 1)]
        for i, query in enumerate(queries, 1)
    ]
    return values, rows


def _mixed(program: Program, mix: Coordinatewise, values: Sequence[Node], rows: Sequence[Sequence[Node]]) -> Program:
    """Append one output per row of scores to a program, computed from row and `values` by `mix`; return the program."""
    for i, row in enumerate(rows, 1):
        program.output(mix, values, row, f"y{i}")
    return program
