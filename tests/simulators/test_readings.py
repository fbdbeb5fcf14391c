"""The finite-width readings have one joint law, and the literal one does what the definition says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special, stats

from attncheck import AttentionLayer, Draws, Program, simulate
from attncheck.checks.functionals import FUNCTIONALS
from attncheck.expansion import expand
from attncheck.program import LinearCombination, MatMul, Node, Nonlin, Output, Score, Weight
from attncheck.simulators.direct import DirectMultiplier
from attncheck.simulators.interpret import Multiplier, interpret
from attncheck.simulators.linalg import gram_root
from attncheck.simulators.matrix_free import MatrixFreeMultiplier
from attncheck.strategies import layers

FloatArray = NDArray[np.float64]

# The chance that noise alone fails any of the comparisons of laws in this file, for any seeds: each of at most
# 2,000 tests, nearly all of Kolmogorov and Smirnov, gets its share. Atoms make them conservative.
LEVEL = 1e-6
COMPARISONS = 2_000

# One seed a reading: readings share their streams, and samples that are compared must be independent.
SEEDS = {"direct": 1, "matrix-free": 2, "collapsed": 3}

LAYERS = (
    AttentionLayer(width=1, seq_len=1, num_heads=1),
    AttentionLayer(width=1, seq_len=3, num_heads=2, activation="relu"),
    AttentionLayer(width=1, seq_len=2, num_heads=2, head_dim=3, attention_map="relu", clip=1.0, input_correlation=0.5),
    AttentionLayer(width=3, seq_len=5, num_heads=2, clip=1.0, input_correlation=0.5),
    AttentionLayer(width=3, seq_len=2, num_heads=2, activation="relu", mask="causal"),
    AttentionLayer(
        width=3, seq_len=4, num_heads=4, num_kv_heads=1, head_dim=8, attention_map="linear", mask="causal", key_std=0.7
    ),
    AttentionLayer(width=3, seq_len=4, num_heads=2, activation="relu", input_correlation=1.0, attention_map="linear"),
    AttentionLayer(width=8, seq_len=4, num_heads=2),
    AttentionLayer(
        width=8, seq_len=4, num_heads=4, num_kv_heads=2, mask="causal", query_std=1.5, input_correlation=0.8
    ),
    AttentionLayer(width=8, seq_len=5, num_heads=2, head_dim=3, value_std=0.7, output_std=1.5, attention_map="sigmoid"),
    AttentionLayer(width=8, seq_len=3, num_heads=3, attention_map="relu", head_scaling=False, activation="tanh"),
    AttentionLayer(width=8, seq_len=2, num_heads=2, head_dim=2, score_scaling="1/n", input_correlation=1.0),
    AttentionLayer(width=8, seq_len=12, num_heads=2, num_kv_heads=1, mask="causal", activation="erf", input_std=2.0),
    AttentionLayer(width=24, seq_len=2, num_heads=2, score_scaling="1/n", attention_map="sigmoid", activation="tanh"),
    AttentionLayer(width=24, seq_len=3, num_heads=2, activation="identity", input_correlation=0.2, query_std=2.0),
)


def assert_same_law(ours: FloatArray, theirs: FloatArray, what: str) -> None:
    """Compare two samples by Kolmogorov and Smirnov's test, at the level that the file states."""
    test = stats.ks_2samp(ours, theirs, method="asymp")
    assert test.pvalue > LEVEL / COMPARISONS, f"{what}: p = {test.pvalue:.1e}, distance {test.statistic:.4f}"


def assert_same_joint_law(layer: AttentionLayer, ours: Draws, theirs: Draws, what: str) -> int:
    """Compare all functionals that say something about the layer; return how many."""
    compared = 0
    for functional in FUNCTIONALS:
        if not functional.excluded(layer, ours.outputs.shape[-1]):
            values = [functional.compute(layer, draws) for draws in (ours, theirs)]
            assert_same_law(values[0], values[1], f"{layer.describe()}: {functional.name}, {what}")
            compared += 1
    return compared


def gram_functionals(draws: Draws) -> dict[str, FloatArray]:
    """Numbers that tie the Gram matrices to the rest of a draw."""
    grams = {"input": draws.input_gram, "key": draws.key_gram, "value": draws.value_gram}
    found = {}
    for name, gram in grams.items():
        assert gram is not None
        found[f"{name} trace"] = np.trace(gram, axis1=-2, axis2=-1).reshape(len(draws), -1).sum(axis=1)
        found[f"{name} gram and output"] = gram.reshape(len(draws), -1)[:, 0] * draws.outputs[:, 0, 0] ** 2
        found[f"{name} gram and score"] = gram.reshape(len(draws), -1)[:, -1] * draws.scores[:, -1, -1, -1]
    return found


@pytest.mark.parametrize("layer", LAYERS, ids=AttentionLayer.describe)
def test_finite_width_readings_agree_in_law(layer: AttentionLayer) -> None:
    size, coordinates = 12_000, min(layer.width, 2)
    draws = {
        "direct": simulate(layer, size, SEEDS["direct"], "direct", coordinates),
        "matrix-free": simulate(layer, size, SEEDS["matrix-free"], "matrix-free", coordinates),
        "collapsed": simulate(layer, size, SEEDS["collapsed"], "collapsed", coordinates),
    }
    grams = {name: gram_functionals(d) for name, d in draws.items()}
    for one, other in (("direct", "matrix-free"), ("direct", "collapsed"), ("matrix-free", "collapsed")):
        compared = assert_same_joint_law(layer, draws[one], draws[other], f"{one} and {other}")
        assert compared >= 6
        for name in grams[one]:
            assert_same_law(grams[one][name], grams[other][name], f"{layer.describe()}: {name}, {one} and {other}")


def test_the_comparisons_cover_all_functionals_and_are_no_more_than_their_level_says() -> None:
    assert len(FUNCTIONALS) >= 12
    shown = {f.name: sum(not f.excluded(layer, min(layer.width, 2)) for layer in LAYERS) for f in FUNCTIONALS}
    assert min(shown.values()) >= 2, shown
    of_readings = 3 * (sum(shown.values()) + len(LAYERS) * len(gram_functionals(simulate(LAYERS[0], 1))))
    of_definition = 4 * len(FUNCTIONALS)
    of_programs = 4 * 12 + 6 * 7 + 30
    assert of_readings + of_definition + of_programs <= COMPARISONS


def test_zero_inputs_give_scores_that_are_exactly_zero() -> None:
    """With ReLU at width 1 half of the inputs are 0: rounding noise in their place would be another law."""
    for seq_len, width in ((12, 1), (5, 2), (2, 3)):
        layer = AttentionLayer(width=width, seq_len=seq_len, num_heads=2, activation="relu")
        for name in ("direct", "matrix-free", "collapsed"):
            draws = simulate(layer, 500, reading=name, coordinates=width)
            zero = (draws.inputs == 0.0).all(axis=-1)
            assert zero.any()
            either = np.broadcast_to((zero[:, :, None] | zero[:, None, :])[:, None], draws.scores.shape)
            assert not draws.scores[either].any()
            assert draws.scores[~either].all()


def test_root_of_a_singular_gram_matrix_keeps_zero_rows() -> None:
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal((500, 6, 3)), 0.0)
    gram = x @ x.swapaxes(-1, -2)
    root = gram_root(gram)
    np.testing.assert_allclose(root @ root.swapaxes(-1, -2), gram, atol=1e-12)
    assert not root[(x == 0.0).all(axis=-1)].any()
    assert (np.linalg.matrix_rank(root) == np.linalg.matrix_rank(x)).all()


# The definition, written out


def phi(layer: AttentionLayer, value: float) -> float:
    functions: dict[str, Callable[[float], float]] = {
        "clip": lambda x: min(max(x, -layer.clip), layer.clip),
        "relu": lambda x: max(x, 0.0),
        "tanh": math.tanh,
        "erf": math.erf,
        "identity": lambda x: x,
    }
    return functions[layer.activation](value)


def weights_of_row(layer: AttentionLayer, row: Sequence[float], position: int) -> list[float]:
    """Return A_i· from P_i·, one number after the other."""
    s = len(row)
    seen = [j <= position or layer.mask == "none" for j in range(s)]
    if layer.attention_map == "softmax":
        total = sum(math.exp(row[j]) for j in range(s) if seen[j])
        return [math.exp(row[j]) / total if seen[j] else 0.0 for j in range(s)]
    maps: dict[str, Callable[[float], float]] = {
        "linear": lambda p: p,
        "relu": lambda p: max(p, 0.0) / s,
        "sigmoid": lambda p: 1.0 / (1.0 + math.exp(-p + math.log(s))),
    }
    return [maps[layer.attention_map](row[j]) if seen[j] else 0.0 for j in range(s)]


def attend_by_definition(
    layer: AttentionLayer, hidden: FloatArray, matrices: dict[str, FloatArray]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return x, P and y of one draw from h and the matrices W0, W1…, Q1…, K1…, V1…, O1…, in plain loops."""
    s, heads = layer.seq_len, layer.num_heads
    nu = layer.width if layer.head_dim is None else layer.head_dim
    x = []
    for i in range(s):
        h = np.zeros(layer.width)
        for name in ("W0", f"W{i + 1}"):
            if name in matrices:
                h += matrices[name] @ hidden
        x.append(np.array([phi(layer, value) for value in h.tolist()]))
    scores = np.zeros((heads, s, s))
    y = np.zeros((s, layer.width))
    for a in range(heads):
        group = a if layer.num_kv_heads is None else a * layer.num_kv_heads // heads
        W_Q, W_K, W_V, W_O = (
            matrices[f"{letter}{k + 1}"] for letter, k in (("Q", a), ("K", group), ("V", group), ("O", a))
        )
        for i in range(s):
            for j in range(s):
                product = float(np.dot(W_Q @ x[i], W_K @ x[j]))
                scores[a, i, j] = product / (nu if layer.score_scaling == "1/n" else math.sqrt(nu))
            for j, weight in enumerate(weights_of_row(layer, scores[a, i].tolist(), i)):
                y[i] += weight * (W_O @ (W_V @ x[j]))
    return np.array(x), scores, y / math.sqrt(heads) if layer.head_scaling else y


def draw_matrices(layer: AttentionLayer, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Draw the matrices of the definition: rows are outputs, so W_O is n × ν and the others ν × n."""
    n, nu = layer.width, layer.width if layer.head_dim is None else layer.head_dim
    rho = layer.input_correlation
    drawn = {
        f"W{i + 1}": rng.normal(0.0, layer.input_std * math.sqrt((1 - rho) / n), (n, n)) for i in range(layer.seq_len)
    }
    drawn["W0"] = rng.normal(0.0, layer.input_std * math.sqrt(rho / n), (n, n))
    for k in range(layer.num_heads):
        drawn[f"Q{k + 1}"] = rng.normal(0.0, layer.query_std / math.sqrt(n), (nu, n))
        drawn[f"K{k + 1}"] = rng.normal(0.0, layer.key_std / math.sqrt(n), (nu, n))
        drawn[f"V{k + 1}"] = rng.normal(0.0, layer.value_std / math.sqrt(n), (nu, n))
        drawn[f"O{k + 1}"] = rng.normal(0.0, layer.output_std / math.sqrt(nu), (n, nu))
    return drawn


def draw_by_definition(layer: AttentionLayer, size: int, coordinates: int, seed: int) -> Draws:
    rng = np.random.default_rng(seed)
    drawn = [
        attend_by_definition(layer, rng.standard_normal(layer.width), draw_matrices(layer, rng)) for _ in range(size)
    ]
    x, scores, y = (np.array(part) for part in zip(*drawn, strict=True))
    gram = np.einsum("dic,djc->dij", x, x) / layer.width
    return Draws(outputs=y[..., :coordinates], scores=scores, inputs=x[..., :coordinates], input_gram=gram)


@pytest.mark.parametrize(
    "layer",
    [
        AttentionLayer(width=4, seq_len=2, num_heads=3, mask="causal", output_std=1.5, input_correlation=0.8),
        AttentionLayer(width=4, seq_len=2, num_heads=2, num_kv_heads=1, head_dim=3, score_scaling="1/n", query_std=2.0),
        AttentionLayer(width=2, seq_len=3, num_heads=2, attention_map="linear", activation="relu", head_scaling=False),
        AttentionLayer(width=3, seq_len=2, num_heads=4, num_kv_heads=2, attention_map="sigmoid", input_correlation=1.0),
    ],
    ids=AttentionLayer.describe,
)
def test_direct_has_the_law_of_the_definition(layer: AttentionLayer) -> None:
    naive = draw_by_definition(layer, 5_000, 2, seed=11)
    assert_same_joint_law(layer, simulate(layer, 30_000, 12, "direct", 2), naive, "direct and the definition")


class Recorder:
    """A literal multiplier that shows its matrices: it multiplies the unit vectors along."""

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


@settings(deadline=None, database=None, max_examples=60)
@given(layers(max_entries=5_000))
def test_a_layers_program_computes_the_definition(layer: AttentionLayer) -> None:
    """With the same matrices the digits are those of the plain loops, rounding apart."""
    expansion = expand(layer)
    rng = np.random.default_rng(0)
    record = Recorder(layer.width, rng)
    everything = [*expansion.inputs, *expansion.outputs, expansion.program.nodes[0]]
    values = interpret(expansion.program.steps(), layer.width, 2, 1, everything, record, rng)
    hidden = values.get(expansion.program.nodes[0])
    inputs, outputs = values.stack(expansion.inputs), values.stack(expansion.outputs)
    scores = values.stack(expansion.scores).reshape(2, layer.num_heads, layer.seq_len, layer.seq_len)
    for k in range(2):
        x, p, y = attend_by_definition(layer, hidden[k], {name: W[k] for name, W in record.matrices.items()})
        np.testing.assert_allclose(inputs[k], x, rtol=1e-9, atol=1e-9 * layer.input_std)
        np.testing.assert_allclose(scores[k], p, rtol=1e-9, atol=1e-9 * (1 + np.abs(p).max()))
        np.testing.assert_allclose(outputs[k], y, rtol=1e-8, atol=1e-8 * (1 + np.abs(y).max()))


def test_literal_matrices_have_independent_normal_entries_of_the_declared_variance() -> None:
    """Kolmogorov's test of the entries, and of products within a row, a column, and across draws and matrices."""
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
        assert stats.kstest(z.ravel(), "norm").pvalue > LEVEL / COMPARISONS
        products = [z[:, 0, 0] * z[:, 0, -1], z[:, 0, 0] * z[:, -1, 0], (z[::2] * z[1::2]).ravel()]
        products += [(z * other).ravel() for other in entries.values() if other is not z and other.shape == z.shape]
        for product in products:
            assert stats.kstest(product, product_normal_cdf).pvalue > LEVEL / COMPARISONS, weight.name


def test_initial_vectors_have_the_declared_law() -> None:
    """Whitened groups are standard normal, entry by entry and in products of entries, vectors and groups."""
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
        assert stats.kstest(sample.ravel(), "norm").pvalue > LEVEL / COMPARISONS
    products = [z[:, 0] * z[:, 1], z[:, 1] * z[:, 2], z[:, 0, ::2] * z[:, 0, 1::2], z[:, 2] * other, z[::2] * z[1::2]]
    for product in products:
        assert stats.kstest(product.ravel(), product_normal_cdf).pvalue > LEVEL / COMPARISONS


def product_normal_cdf(t: Any) -> Any:
    """Return the distribution function of a product of two independent standard normals, of density K₀/π.

    ∫₀ᵗ K₀ = π t/2 (K₀ L₋₁ + K₁ L₀), L the modified Struve functions.
    """
    size = np.clip(np.abs(t), 1e-12, 30.0)
    half = size / 2 * (special.k0(size) * special.modstruve(-1, size) + special.k1(size) * special.modstruve(0, size))
    return 0.5 + np.sign(t) * half


# Programs beyond attention


def scaled_first(vectors: FloatArray, scores: FloatArray) -> FloatArray:
    return vectors[:, 0] * np.tanh(scores[:, :1]) + scores[:, -1:]


def recurrent() -> tuple[Program, list[Node]]:
    """An RNN that uses one matrix at every step, two of whose states meet in a score with tied queries."""
    program = Program()
    W, U, Q, K = program.weight("W", 1.3), program.weight("U"), program.weight("Q"), program.weight("K", 0.8)
    token, state = program.initials(["u", "h"], [0.5, 0.0], [[1.0, 0.3], [0.3, 1.0]])
    drive = program.matmul(U, token)
    states = [state]
    for _ in range(3):
        inner = program.nonlin(LinearCombination((1.0, 0.5)), program.matmul(W, states[-1]), drive)
        states.append(program.nonlin(np.tanh, inner))
    first = program.score(program.matmul(Q, states[1]), program.matmul(K, states[3]))
    second = program.score(program.matmul(Q, states[2]), program.matmul(K, states[3]), 0.5)
    y = program.output(scaled_first, [program.matmul(W, states[3])], [first, second])
    again = program.matmul(Q, y)
    return program, [states[1], states[3], first, second, y, again]


@pytest.mark.parametrize("width", [1, 3, 8, 24])
def test_a_program_that_reuses_a_matrix_has_one_law(width: int) -> None:
    program, nodes = recurrent()
    columns: dict[str, list[FloatArray]] = {}
    for multiplier, seed in ((DirectMultiplier, 21), (MatrixFreeMultiplier, 22)):
        rng = np.random.default_rng(seed)
        multiply: Multiplier = multiplier(width, rng)
        values = interpret(program.steps(), width, 16_000, 1, nodes, multiply, rng)
        early, late, first, second, y, again = (values.get(node) for node in nodes)
        found = {
            "late state": late[:, 0],
            "states": early[:, 0] * late[:, 0],
            "overlap": (early * late).mean(axis=1),
            "first score": first,
            "both scores": first * second,
            "score and state": first * late[:, 0],
            "output": y[:, 0],
            "output and state": y[:, -1] * late[:, -1],
            "output energy": np.log((y**2).sum(axis=1)),
            "output and its image": y[:, 0] * again[:, 0],
            "score and image": first + again[:, -1],
            "image": again[:, -1],
        }
        for name, value in found.items():
            columns.setdefault(name, []).append(value)
    for name, (ours, theirs) in columns.items():
        assert_same_law(ours, theirs, f"width {width}: {name}")


@pytest.mark.parametrize("multiplier", [DirectMultiplier, MatrixFreeMultiplier])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_reused_matrix_is_linear(multiplier: Callable[..., Multiplier], width: int) -> None:
    """W(a + b) = W a + W b, in one step and over several, also where the vectors span all of R^n."""
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


@settings(deadline=None, database=None, max_examples=80)
@given(st.data())
def test_interpretation_computes_each_line(data: st.DataObject) -> None:
    """Programs with shared weights of several sizes: every line is what it says, given the literal matrices."""
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
            wide.append(program.output(scaled_first, [pick, wide[0]], chosen))
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
            expected = scaled_first(np.stack(parents[:2], axis=1), np.stack(parents[2:], axis=1))
        else:
            expected = values.get(node)
        np.testing.assert_allclose(values.get(node), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("coordinates", [1, 3, 6])
def test_outputs_that_no_line_uses_are_cut_to_the_coordinates(coordinates: int) -> None:
    """Cutting changes no digit of the literal reading, and lines that are kept are whole."""
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


# Gram matrices


@pytest.mark.parametrize("reading", ["direct", "matrix-free", "collapsed"])
@pytest.mark.parametrize("layer", LAYERS, ids=AttentionLayer.describe)
def test_gram_matrices_fit_the_draw(layer: AttentionLayer, reading: str) -> None:
    """Exact relations: shapes, symmetry, groups, the inputs' own Gram matrix, and the range of the scores."""
    draws = simulate(layer, 40, 5, reading, coordinates=layer.width)  # type: ignore[call-overload]
    s, heads = layer.seq_len, layer.num_heads
    assert draws.outputs.shape == draws.inputs.shape == (40, s, layer.width)
    assert draws.scores.shape == (40, heads, s, s)
    assert draws.input_gram is not None
    assert draws.key_gram is not None
    assert draws.value_gram is not None
    own = draws.inputs @ draws.inputs.swapaxes(-1, -2) / layer.width
    np.testing.assert_allclose(draws.input_gram, own, rtol=1e-12, atol=1e-13)
    for gram in (draws.key_gram, draws.value_gram):
        assert gram.shape == (40, heads, s, s)
        np.testing.assert_allclose(gram, gram.swapaxes(-1, -2), rtol=1e-13, atol=1e-14)
        grouped = gram.reshape(40, layer.kv_heads, layer.group_size, s, s)
        np.testing.assert_array_equal(grouped, np.broadcast_to(grouped[:, :, :1], grouped.shape))
        firsts = np.diagonal(grouped[:, :, 0], axis1=-2, axis2=-1).sum(axis=-1)
        nonzero = firsts.min(axis=1) > 0.0
        assert all(len(set(row)) == layer.kv_heads for row in firsts[nonzero].tolist())
    assert not np.array_equal(draws.key_gram / layer.key_std**2, draws.value_gram / layer.value_std**2)
    # Rows of P are combinations of rows of Kᵀ, columns of P of columns of X: nothing outside their ranges.
    for scores, gram in (
        (draws.scores, draws.key_gram),
        (draws.scores.swapaxes(-1, -2), np.broadcast_to(draws.input_gram[:, None], draws.scores.shape)),
    ):
        values, vectors = np.linalg.eigh(gram)
        null = np.where(values <= 1e-10 * (values[..., -1:] + 1e-300), 1.0, 0.0)
        outside = (scores @ vectors) * null[..., None, :]
        assert np.abs(outside).max() <= 1e-5 * np.abs(scores).max()


@pytest.mark.parametrize("reading", ["direct", "matrix-free", "collapsed"])
@pytest.mark.parametrize("head_dim", [None, 2])
def test_scores_have_the_scale_of_their_gram_matrices(reading: str, head_dim: int | None) -> None:
    """With one position P/(σ_Q √(G K)) and y/(σ_O A √(V/H)) are exactly N(0, 1), whatever G, K and V are."""
    layer = AttentionLayer(
        width=4, seq_len=1, num_heads=1, head_dim=head_dim, query_std=1.5, key_std=0.7, value_std=2.0, output_std=0.5
    )
    draws = simulate(layer, 5_000, 6, reading)  # type: ignore[call-overload]
    assert draws.input_gram is not None
    assert draws.key_gram is not None
    assert draws.value_gram is not None
    scores = draws.scores[:, 0, 0, 0] / (1.5 * np.sqrt(draws.input_gram[:, 0, 0] * draws.key_gram[:, 0, 0, 0]))
    outputs = draws.outputs[:, 0, 0] / (0.5 * np.sqrt(draws.value_gram[:, 0, 0, 0]))
    nu = layer.head_width
    keys = nu * draws.key_gram[:, 0, 0, 0] / (0.7**2 * draws.input_gram[:, 0, 0])
    values = nu * draws.value_gram[:, 0, 0, 0] / (2.0**2 * draws.input_gram[:, 0, 0])
    pvalues = [float(stats.kstest(z, "norm").pvalue) for z in (scores, outputs)]
    pvalues += [float(stats.kstest(chi, stats.chi2(nu).cdf).pvalue) for chi in (keys, values)]
    pairs = ((np.abs(scores), keys), (np.abs(outputs), values), (keys, values))
    pvalues += [float(stats.spearmanr(a, b).pvalue) for a, b in pairs]
    assert min(pvalues) > LEVEL / COMPARISONS


def test_the_limit_has_no_gram_matrices() -> None:
    draws = simulate(LAYERS[0], 10, reading="limit", coordinates=3)
    assert draws.outputs.shape == draws.inputs.shape == (10, 1, 3)
    assert draws.input_gram is draws.key_gram is draws.value_gram is None
    assert set(draws.as_dict()) == {"outputs", "scores", "inputs"}
