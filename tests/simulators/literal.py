"""Layers, stacks, programs and limits, written out from their docstrings with every matrix, for many draws at once.

Nothing here uses a simulator of attncheck or a function of its theory: descriptions are read, and results are returned
as `Draws`. Matrices have shape (draws, rows, columns), vectors (draws, positions, neurons).
"""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from scipy import special, stats

from attncheck import AttentionLayer, AttentionStack, Draws, Program, ProgramDraws, StackDraws
from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.layers.program import Initial, MatMul, Node, Nonlin, Output, ProgramAt, Score, Weight

Matrices = Mapping[str, FloatArray]

FUNCTIONS: Mapping[str, Callable[[FloatArray], FloatArray]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": lambda x: np.asarray(x * special.ndtr(x)),
    "tanh": np.tanh,
    "erf": special.erf,
    "identity": np.positive,
}

#: Symmetric laws of variance 1.
LAWS: Mapping[str, Any] = {
    "uniform": stats.uniform(-(3**0.5), 2 * 3**0.5),
    "student5": stats.t(5, scale=0.6**0.5),
    "rademacher": stats.rv_discrete(values=((-1, 1), (0.5, 0.5))),
    "truncated normal": stats.truncnorm(-2.0, 2.0, scale=1.0 / stats.truncnorm(-2.0, 2.0).std()),
}

#: Matrices of a head by their names in weight laws.
MATRICES = {"query": "Q", "key": "K", "value": "V", "output": "O"}
GAUSSIAN: Mapping[str, Any] = {}

# Neurons that stand for infinitely many.
_MANY = 200_000


def entries(rng: np.random.Generator, law: str, shape: tuple[int, ...]) -> FloatArray:
    """Return independent numbers of variance 1."""
    return rng.standard_normal(shape) if law == "gaussian" else LAWS[law].rvs(size=shape, random_state=rng)


# Inputs


def phi(name: str, clip: float, x: FloatArray) -> FloatArray:
    return np.clip(x, -clip, clip) if name == "clip" else FUNCTIONS[name](x)


def normalised(norm: str | None, x: FloatArray) -> FloatArray:
    if norm is None:
        return x
    if norm == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    lengths = np.sqrt((x**2).mean(axis=-1, keepdims=True))
    return np.where(lengths > 1e-12, x / np.maximum(lengths, 1e-12), 0.0)


def input_matrices(layer: AttentionLayer, size: int, rng: np.random.Generator, law: str = "gaussian") -> Matrices:
    """Draw W0, the part that the W^i share, and the rest of each."""
    n, rho = layer.width, layer.input_correlation
    stds = {"W0": rho**0.5} | {f"W{i + 1}": (1.0 - rho) ** 0.5 for i in range(layer.seq_len)}
    return {name: layer.input_std * std * n**-0.5 * entries(rng, law, (size, n, n)) for name, std in stds.items()}


def position_vectors(layer: AttentionLayer, width: int, size: int, rng: np.random.Generator) -> FloatArray:
    i, j = np.indices((layer.seq_len, layer.seq_len))
    covariance = layer.position_std**2 * np.exp(-((i - j) ** 2) / (2 * layer.position_reach**2))
    return normals(rng, covariance, (size, width)).swapaxes(1, 2)


def hidden_vectors(layer: AttentionLayer, matrices: Matrices, h: FloatArray, e: FloatArray) -> FloatArray:
    """Return h^i + e^i, h^i = W^i h."""

    def image_of(name: str) -> FloatArray:
        return np.einsum("krc,kc->kr", matrices[name], h) if name in matrices else np.zeros_like(h)

    return e + np.stack([image_of("W0") + image_of(f"W{i + 1}") for i in range(layer.seq_len)], axis=1)


def inputs_of(layer: AttentionLayer, hidden: FloatArray) -> FloatArray:
    return normalised(layer.norm, phi(layer.activation, layer.clip, hidden))


# Attention


def head_matrices(
    layer: AttentionLayer, size: int, rng: np.random.Generator, weights: Mapping[str, Any] = GAUSSIAN
) -> dict[str, FloatArray]:
    """Draw Q1, K1, … and, where weights have biases, "bias Q1", …; all heads share one output bias, "bias O"."""
    n, heads, groups = layer.width, layer.num_heads, layer.num_kv_heads or layer.num_heads
    nu = layer.head_dim or n
    matrices = {}
    for name, letter in MATRICES.items():
        rows, columns = (n, nu) if name == "output" else (nu, n)
        law, bias = weights.get(name, "gaussian"), weights.get(f"{name}_bias")
        for k in range(groups if letter in "KV" else heads):
            matrix = entries(rng, law, (size, rows, columns))
            matrices[f"{letter}{k + 1}"] = getattr(layer, f"{name}_std") * columns**-0.5 * matrix
            if bias and letter != "O":
                matrices[f"bias {letter}{k + 1}"] = bias[1] * n**-0.5 * entries(rng, bias[0], (size, 1, rows))
        if bias and letter == "O":
            matrices["bias O"] = bias[1] * (heads * nu) ** -0.5 * entries(rng, bias[0], (size, 1, n))
    return matrices


def bias_table(layer: AttentionLayer, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw b_{j-i} of each head, (draws, heads, positions, positions)."""
    i, j = np.indices((layer.seq_len, layer.seq_len))
    table = layer.bias_std * rng.standard_normal((size, layer.num_heads, 2 * layer.seq_len - 1))
    return table[..., j - i + layer.seq_len - 1]


def image(matrices: Matrices, name: str, x: FloatArray) -> FloatArray:
    """Return W x^i, plus the bias if there is one."""
    return x @ matrices[name].swapaxes(1, 2) + matrices.get(f"bias {name}", 0.0)


def rotated(layer: AttentionLayer, vectors: FloatArray) -> FloatArray:
    """Rotate neurons f and f + ν/2 at position j by the angle j b^{-2f/ν}."""
    if layer.rotary_base is None:
        return vectors
    half = vectors.shape[-1] // 2
    angles = np.arange(layer.seq_len)[:, None] * layer.rotary_base ** (-np.arange(half) / half)
    planes = (vectors[..., :half] + 1j * vectors[..., half:]) * np.exp(1j * angles)
    return np.concatenate([planes.real, planes.imag], axis=-1)


def slope(layer: AttentionLayer, head: int) -> float:
    if layer.bias_slopes == "alibi":
        # 2^{-8h/2} for the first two heads of three, and the first of 2^{-8h/4}.
        return (2.0**-4, 2.0**-8, 2.0**-2)[head]
    return 0.0 if layer.bias_slopes is None else float(layer.bias_slopes[head])


def scores_of(layer: AttentionLayer, queries: FloatArray, keys: FloatArray, head: int) -> FloatArray:
    """Return the scores of a head without random biases."""
    if layer.qk_norm:
        queries, keys = layer.query_std * normalised("rms", queries), layer.key_std * normalised("rms", keys)
    products = rotated(layer, queries) @ rotated(layer, keys).swapaxes(1, 2)
    i, j = np.indices((layer.seq_len, layer.seq_len))
    nu = queries.shape[-1]
    power = {"1/n": 1.0, "1/sqrt(n)": 0.5, "n^-0.75": 0.75, "n^-0.25": 0.25}[layer.score_scaling]
    return np.asarray(products / nu**power - slope(layer, head) * abs(i - j))


def visible(layer: AttentionLayer) -> BoolArray:
    i, j = np.indices((layer.seq_len, layer.seq_len))
    near = abs(i - j) < (layer.window or np.inf)
    if layer.mask == "none":
        return np.asarray(near)
    return near & (j <= i if layer.mask == "causal" else pkgutil.resolve_name(str(layer.mask))(i, j))


def weights_of(layer: AttentionLayer, scores: FloatArray, head: int = 0) -> FloatArray:
    """Return attention weights of a head, or of heads that are alike; a sink is one more key."""
    shown = np.broadcast_to(visible(layer), scores.shape)
    if layer.softcap:
        scores = layer.softcap * np.tanh(scores / layer.softcap)
    if layer.attention_map == "softmax":
        sink = layer.sink[head] if isinstance(layer.sink, tuple) else layer.sink
        column = np.full((*scores.shape[:-1], 1), -np.inf if sink is None else sink)
        extended = np.concatenate([np.where(shown, scores, -np.inf), column], axis=-1)
        return np.asarray(special.softmax(extended, axis=-1)[..., :-1])
    maps: dict[str, Callable[[FloatArray], FloatArray]] = {
        "linear": lambda p: p,
        "relu": lambda p: np.maximum(p, 0.0) / layer.seq_len,
        "sigmoid": lambda p: 1.0 / (1.0 + np.exp(-p + np.log(layer.seq_len))),
    }
    name = str(layer.attention_map)
    return np.where(shown, maps[name](scores) if name in maps else pkgutil.resolve_name(name)(scores, shown), 0.0)


def attend(layer: AttentionLayer, x: FloatArray, matrices: Matrices, biases: FloatArray | None = None) -> Draws:
    """Return the draws of a layer from its inputs and matrices, and from the random biases of its scores."""
    heads, groups = layer.num_heads, layer.num_kv_heads or layer.num_heads
    scores, keys, values = [], [], []
    outputs = np.zeros_like(x) + matrices.get("bias O", 0.0)
    for head in range(heads):
        group = head // (heads // groups) + 1
        keys.append(image(matrices, f"K{group}", x))
        values.append(image(matrices, f"V{group}", x))
        queries = keys[-1] if layer.tied_query_key else image(matrices, f"Q{head + 1}", x)
        scores.append(scores_of(layer, queries, keys[-1], head))
        if biases is not None:
            scores[-1] += biases[:, head]
        mixed = weights_of(layer, scores[-1], head) @ image(matrices, f"O{head + 1}", values[-1])
        outputs += mixed / heads**0.5 if layer.head_scaling else mixed
    return Draws(
        outputs=outputs,
        scores=np.stack(scores, axis=1),
        inputs=x,
        input_gram=gram(x),
        key_gram=gram(np.stack(keys, axis=1)),
        value_gram=gram(np.stack(values, axis=1)),
        keys=np.stack(keys, axis=1) if layer.rotary_base else None,
    )


def gram(x: FloatArray) -> FloatArray:
    return np.asarray(x @ x.swapaxes(-1, -2) / x.shape[-1])


def draw_hidden(layer: AttentionLayer, size: int, rng: np.random.Generator, law: str = "gaussian") -> FloatArray:
    h, positions = rng.standard_normal((size, layer.width)), position_vectors(layer, layer.width, size, rng)
    return hidden_vectors(layer, input_matrices(layer, size, rng, law), h, positions)


def draw_layer(
    layer: AttentionLayer,
    size: int,
    coordinates: int,
    rng: np.random.Generator,
    weights: Mapping[str, Any] = GAUSSIAN,
) -> Draws:
    x = inputs_of(layer, draw_hidden(layer, size, rng, weights.get("inputs", "gaussian")))
    draws = attend(layer, x, head_matrices(layer, size, rng, weights), bias_table(layer, size, rng))
    vectors = {"outputs": draws.outputs[..., :coordinates], "inputs": x[..., :coordinates]}
    return dataclasses.replace(draws, **vectors)


# Stacks


def draw_stack(stack: AttentionStack, size: int, rng: np.random.Generator) -> StackDraws:
    layer, z = stack.layer, draw_hidden(stack.layer, size, rng)
    streams, drawn = [], []
    for name in stack.activations or ():
        x = normalised(layer.norm, phi(name, layer.clip, z))
        streams.append(z)
        drawn.append(attend(layer, x, head_matrices(layer, size, rng)))
        z = joined(stack, z, drawn[-1].outputs)
        if stack.mlp:
            z = joined(stack, z, perceptron(stack, normalised(layer.norm, z), rng))
    return StackDraws(
        outputs=z,
        scores=np.stack([draws.scores for draws in drawn], axis=1),
        streams=np.stack(streams, axis=1),
        grams=np.stack([gram(draws.inputs) for draws in drawn], axis=1),
    )


def joined(stack: AttentionStack, stream: FloatArray, added: FloatArray) -> FloatArray:
    return normalised(stack.post_norm, stream + added if stack.residual else added)


def perceptron(stack: AttentionStack, x: FloatArray, rng: np.random.Generator) -> FloatArray:
    n, m = stack.width, stack.mlp_ratio * stack.width
    first = stack.mlp_std * n**-0.5 * rng.standard_normal((len(x), n, m))
    second = stack.mlp_std * m**-0.5 * rng.standard_normal((len(x), m, n))
    return np.asarray(FUNCTIONS[str(stack.mlp)](x @ first) @ second)


# Programs


def evaluate(
    program: Program, initial: Callable[[Initial], FloatArray], matrix: Callable[[Weight], FloatArray]
) -> dict[Node, FloatArray]:
    """Return the value of every line: vectors (draws, neurons) and scores (draws,)."""
    values: dict[Node, FloatArray] = {}
    for node in program.nodes:
        arguments = [values[parent] for parent in node.parents]
        if isinstance(node, Initial):
            values[node] = initial(node)
        elif isinstance(node, MatMul):
            values[node] = np.einsum("krc,kc->kr", matrix(node.weight), arguments[0])
        elif isinstance(node, Score):
            values[node] = node.factor * (arguments[0] * arguments[1]).sum(axis=1) / arguments[0].shape[1] ** 0.5
        elif isinstance(node, Nonlin):
            values[node] = node.function(*arguments)
        elif isinstance(node, Output):
            vectors, scores = arguments[: node.num_vectors], arguments[node.num_vectors :]
            values[node] = node.function(np.stack(vectors, axis=1), np.stack(scores, axis=1))
    return values


def draw_program(case: ProgramAt, size: int, rng: np.random.Generator) -> ProgramDraws:
    program = case.program
    groups: dict[int, Iterator[FloatArray]] = {}
    matrices: dict[str, FloatArray] = {}

    def initial(node: Initial) -> FloatArray:
        if node.group not in groups:
            vectors = normals(rng, np.array(node.covariance), (size, case.width))
            groups[node.group] = iter(np.moveaxis(vectors, -1, 0))
        return node.mean + next(groups[node.group])

    def matrix(weight: Weight) -> FloatArray:
        if weight.name not in matrices:
            rows, columns = weight.shape(case.width)
            matrices[weight.name] = weight.std * columns**-0.5 * rng.standard_normal((size, rows, columns))
        return matrices[weight.name]

    values = evaluate(program, initial, matrix)
    vectors = [node for node in program.nodes if not isinstance(node, Score)]
    used = {parent for node in vectors for parent in node.parents}
    outputs: list[Node] = [node for node in vectors if isinstance(node, Output)]
    results = outputs or [node for node in vectors if node not in used]
    scores = [values[node] for node in program.nodes if isinstance(node, Score)]
    return ProgramDraws(
        outputs=np.stack([values[node] for node in results], axis=1),
        scores=np.stack(scores, axis=1) if scores else np.empty((size, 0)),
    )


# The limit


def draw_limit(layer: AttentionLayer, size: int, coordinates: int, rng: np.random.Generator) -> Draws:
    """Draw the limit of a layer: given the kernel K, independent Gaussian scores, values and inputs."""
    many = limit_inputs(layer, _MANY, rng)
    kernel = gram(many)
    heads, s = layer.num_heads, layer.seq_len
    scores = normals(rng, score_covariance(layer, kernel), (size, heads)).reshape(size, heads, s, s)
    i, j = np.indices((s, s))
    scores -= np.array([slope(layer, head) * abs(i - j) for head in range(heads)])
    values = normals(rng, (layer.value_std * layer.output_std) ** 2 * kernel, (size, heads, coordinates))
    weights = np.stack([weights_of(layer, scores[:, head], head) for head in range(layer.num_heads)], axis=1)
    outputs = (weights @ values.swapaxes(-1, -2)).sum(axis=1)
    columns = rng.integers(_MANY, size=(size, coordinates))
    return Draws(
        outputs=outputs / heads**0.5 if layer.head_scaling else outputs,
        scores=scores,
        inputs=np.moveaxis(many[:, columns], 0, 1),
    )


def limit_inputs(layer: AttentionLayer, count: int, rng: np.random.Generator) -> FloatArray:
    """Draw inputs of many neurons, (positions, neurons), for h of length √n."""
    hidden = layer.input_std**2 * (layer.input_correlation + (1.0 - layer.input_correlation) * np.eye(layer.seq_len))
    return inputs_of(layer, normals(rng, hidden, (count,)).T + position_vectors(layer, count, 1, rng)[0])


def score_covariance(layer: AttentionLayer, kernel: FloatArray) -> FloatArray:
    """Return Cov(P_ij, P_kl), (s², s²), in the order of (i, j)."""
    i, j = np.indices((layer.seq_len, layer.seq_len)).reshape(2, -1)
    if layer.qk_norm:
        kernel = kernel / np.sqrt(np.outer(kernel.diagonal(), kernel.diagonal()))
    products = (layer.query_std * layer.key_std) ** 2 * kernel[np.ix_(i, i)] * kernel[np.ix_(j, j)]
    if layer.score_scaling != "1/sqrt(n)":
        products = np.zeros_like(products)
    distances = np.abs(np.subtract.outer(j - i, j - i))
    if layer.rotary_base:
        angles = layer.rotary_base ** -((np.arange(10_000) + 0.5) / 10_000)
        products *= np.cos(np.multiply.outer(np.arange(2 * layer.seq_len), angles)).mean(axis=1)[distances]
    return np.asarray(products + layer.bias_std**2 * (distances == 0))


def normals(rng: np.random.Generator, covariance: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """Draw centred normal vectors, also of a singular covariance."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(rng.standard_normal((*shape, len(root))) @ root.T)
