"""Every method draws the law of a network written out, with each field and part.

The fixture `evidence` splits one budget of false alarms over all two-sample tests here. They compare functionals that
combine inputs, scores, Gram matrices and outputs; networks that differ in one respect must be rejected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck import AttentionLayer, AttentionStack, Draws, Program, StackDraws, simulate
from attncheck._lib.arrays import FloatArray
from attncheck.checks.functionals import FUNCTIONALS
from attncheck.checks.sample import Sample
from attncheck.evidence import Evidence
from attncheck.layers.draws import Batch, ProgramDraws
from attncheck.layers.expansion import expand
from attncheck.layers.kernel import input_kernel
from attncheck.layers.program import Weight
from attncheck.layers.requirements import A_LIMIT
from attncheck.looks.examples import draw_examples
from attncheck.methods import Method
from attncheck.programs import EXAMPLES
from attncheck.simulators.interpret import interpret
from attncheck.simulators.multipliers import DirectMultiplier
from attncheck.simulators.weights import draw_with_weights
from attncheck.strategies import layers, programs

from . import literal
from .cases import BARE, BLOCKS, NORMED, PARTS, PLAIN, PLAIN_BLOCK, POST_GELU, ROTARY, reused, stacks

SIZE = 4_500
# Literal methods first.
FINITE = get_args(Method)[:3]

Functionals = dict[str, FloatArray]
Draw = Callable[[np.random.Generator], Batch]


class Case(NamedTuple):
    """A network, methods that draw its law, and networks of other laws."""

    functionals: Callable[[Any], Functionals]
    network: Draw
    methods: Mapping[str, Draw]
    wrong: Mapping[str, Draw] = {}


def distances(ours: Functionals, theirs: Functionals) -> dict[str, float]:
    """Return 2 exp(-n D²) ≥ P(Kolmogorov–Smirnov distance ≥ D) for two samples of n, by Wei and Dudley (2012)."""
    exponents = {name: len(values) * distance(values, theirs[name]) ** 2 for name, values in ours.items()}
    return {name: min(1.0, 2.0 * float(np.exp(-exponent))) for name, exponent in exponents.items()}


def distance(ours: FloatArray, theirs: FloatArray) -> float:
    """Return the largest difference between distribution functions; a norm leaves rounding errors."""
    values = np.round(np.concatenate([ours, theirs]), 9)
    order = np.argsort(values)
    differences = np.cumsum(np.where(order < len(ours), 1.0, -1.0))
    last = np.diff(values[order], append=np.inf) > 0.0
    return float(np.abs(differences[last]).max()) / len(ours)


# Functionals


def of_layer(layer: AttentionLayer, draws: Draws) -> Functionals:
    """Return all functionals that apply to a layer, and those that tie keys and values to the rest."""
    arrays: dict[str, Any] = draws.as_dict()
    exposed = arrays.keys() | {"masked scores", "attention"}
    values = {
        functional.name: functional.compute(Sample(layer, **arrays))
        for functional in FUNCTIONALS
        if functional.needs <= exposed and functional.applies(layer, draws.outputs.shape[-1])
    }
    if draws.keys is not None:
        values["key and score"] = draws.keys[:, -1, -1, 0] * draws.keys[:, -1, 0, -1] * draws.scores[:, -1, -1, 0]
    for name in exposed & {"key_gram", "value_gram"}:
        gram = getattr(draws, name)
        values[f"trace of {name}"] = np.trace(gram, axis1=-2, axis2=-1).sum(axis=1)
        values[f"{name} and output"] = gram[:, 0, 0, 0] * draws.outputs[:, 0, 0] ** 2
        values[f"{name} and score"] = gram[:, -1, -1, -1] * draws.scores[:, -1, -1, -1]
    return values


def of_stack(draws: StackDraws) -> Functionals:
    """Return functionals of streams, scores, Gram matrices and outputs of the first and last layer."""
    y, p, grams = draws.outputs, draws.scores, draws.grams
    last = y[:, -1, 0]
    return {
        "last position": last,
        "outputs of two positions": y[:, 0, 0] * last,
        "length of the outputs": (y[..., :2] ** 2).sum(axis=(1, 2)),
        "squared output and first score": p[:, 0, 0, -1, 0] ** 2 * last**2,
        "squared output and last score": p[:, -1, -1, -1, 0] ** 2 * last**2,
        "squared scores of two layers": p[:, 0, 0, -1, 0] ** 2 * p[:, -1, 0, -1, 0] ** 2,
        "sum of all squared scores": (p**2).sum(axis=(1, 2, 3, 4)),
        "last gram": grams[:, -1, 0, -1],
        "grams of two layers": grams[:, 0, 0, 0] * grams[:, -1, 0, 0],
        "input and output": draws.streams[:, 0, 0, 0] * y[:, 0, 0],
    }


def of_program(draws: ProgramDraws) -> Functionals:
    """Return functionals of the joint law of results, neurons and scores."""
    y, p = draws.outputs, draws.scores
    values = {
        "first": y[:, 0, 0],
        "last": y[:, -1, 1],
        "two neurons": y[:, 0, 0] * y[:, 0, 1],
        "two results": y[:, 0, 0] * y[:, -1, 0],
        "length": (y[..., :2] ** 2).sum(axis=(1, 2)),
    }
    if p.size:
        values |= {
            "score": p[:, 0],
            "two scores": p[:, 0] * p[:, -1],
            "all scores": (p**2).sum(axis=1),
            "score and result": y[:, 0, 0] * p[:, 0],
            "score and square": y[:, -1, 1] ** 2 * p[:, -1],
        }
    return values


# Cases

LAYERS: dict[str, AttentionLayer] = {layer.describe(): layer for layer in PLAIN} | PARTS | ROTARY
PARTS_OF_LAYERS = (
    *("window", "softcap", "sink", "bias_slopes", "bias_std", "qk_norm", "rotary_base", "norm", "mask"),
    *("position_std", "position_reach", "tied_query_key"),
)
WEIGHTS: dict[str, tuple[AttentionLayer, dict[str, Any]]] = {
    "uniform": (
        AttentionLayer(width=2, activation="identity"),
        dict.fromkeys((*literal.MATRICES, "inputs"), "uniform"),
    ),
    "biases": (
        AttentionLayer(width=3, seq_len=3, num_heads=4, num_kv_heads=2, head_dim=2),
        {f"{name}_bias": ("uniform", 1.5) for name in ("query", "key", "value", "output")},
    ),
    "tied": (
        AttentionLayer(width=3, seq_len=2, tied_query_key=True, score_scaling="1/n"),
        {"key": "rademacher", "value": "student5", "output": "truncated normal", "key_bias": ("rademacher", 1.0)},
    ),
}


def by_method(described: Any, methods: tuple[Any, ...], coordinates: int) -> dict[str, Draw]:
    """Return the draws of each method, with different seeds: methods share streams."""

    def drawn(method: Method, rng: np.random.Generator) -> Batch:
        draws: Batch = simulate(described, SIZE, int(rng.integers(2**62)), method, coordinates)
        return draws

    return {method: functools.partial(drawn, method) for method in methods}


def without_parts(layer: AttentionLayer) -> AttentionLayer:
    if layer == PARTS["own map"]:
        return layer.replace(attention_map="relu")
    return layer.replace(**{name: getattr(AttentionLayer, name) for name in PARTS_OF_LAYERS})


def other_stacks(stack: AttentionStack) -> dict[str, AttentionStack]:
    """Return stacks that differ in one respect."""
    layer = stack.layer
    others = {
        "the other residual": stack.replace(residual=not stack.residual),
        "norms exchanged": stack.replace(layer=layer.replace(norm=stack.post_norm), post_norm=layer.norm),
        "no perceptron": stack.replace(mlp=None, mlp_ratio=4, mlp_std=1.0),
        "another perceptron": stack.replace(mlp="gelu") if stack == PLAIN_BLOCK else stack,
    }
    return {name: other for name, other in others.items() if other != stack}


def all_cases() -> Iterator[tuple[str, Case]]:
    network: Draw
    wrong: dict[str, Draw]
    for name, layer in LAYERS.items():
        neurons, functionals = min(layer.width, 2), functools.partial(of_layer, layer)
        network = functools.partial(literal.draw_layer, layer, SIZE, neurons)
        plain = without_parts(layer)
        wrong = {"without parts": functools.partial(literal.draw_layer, plain, SIZE, neurons)}
        methods = by_method(layer, FINITE, neurons)
        yield name, Case(functionals, network, methods, wrong if plain != layer else {})
        # Limits of tied scores and of saturated inputs after a norm are constants, which sampling does not hit.
        has_limit = not A_LIMIT.reason(layer)
        if has_limit and not (layer.tied_query_key or (layer.norm and layer.clip < 9.0)):
            of_limit = functools.partial(literal.draw_limit, layer, SIZE, 2)
            yield f"limit, {name}", Case(functionals, of_limit, by_method(layer, ("limit",), 2))
    for name, (layer, weights) in WEIGHTS.items():
        gaussian = functools.partial(literal.draw_layer, layer, SIZE, 2)
        methods = {"weights": functools.partial(draw_with_weights, layer, SIZE, 2, weights=weights)}
        expected = functools.partial(gaussian, weights=weights)
        yield f"weights, {name}", Case(functools.partial(of_layer, layer), expected, methods, {"Gaussian": gaussian})
    for stack in (*BARE, *NORMED, *BLOCKS, POST_GELU):
        others = other_stacks(stack).items()
        wrong = {name: functools.partial(literal.draw_stack, other, SIZE) for name, other in others}
        yield stack.describe(), stack_case(stack, wrong)
    for name, write in {**EXAMPLES, "reused": reused}.items():
        # At width 3, where wrong use of a matrix shows most.
        case = write().at(3)
        network = functools.partial(literal.draw_program, case, SIZE)
        yield name, Case(of_program, network, by_method(case, FINITE[:2], 2))


def stack_case(stack: AttentionStack, wrong: Mapping[str, Draw]) -> Case:
    methods = by_method(stack, FINITE[:2], min(stack.width, 2))
    return Case(of_stack, functools.partial(literal.draw_stack, stack, SIZE), methods, wrong)


CASES = dict(all_cases())


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_methods_draw_the_law_of_the_network(name: str, evidence: Evidence) -> None:
    assert_one_law(evidence, CASES[name])


@pytest.mark.sampled
@pytest.mark.parametrize("index", range(4))
def test_random_stacks(index: int, evidence: Evidence) -> None:
    examples = draw_examples(stacks(max_depth=2, max_entries=100, blocks=True), 4, 0, "random blocks")
    assert_one_law(evidence, stack_case(examples[index], {}))


def assert_one_law(evidence: Evidence, case: Case) -> None:
    """Assert that all methods draw the law of the network, and that others do not."""

    def statistics(draws: Batch) -> Functionals:
        values = draws.outputs[:, 0, 0]
        return case.functionals(draws) | {"consecutive draws": values[::2] * values[1::2]}

    def p_values(seed: int) -> tuple[dict[str, float], dict[str, float]]:
        rng = np.random.default_rng(seed)
        expected = statistics(case.network(rng))
        one_law = {
            f"{method}, {name}": p_value
            for method, draw in case.methods.items()
            for name, p_value in distances(statistics(draw(rng)), expected).items()
        }
        others = {name: min(distances(statistics(draw(rng)), expected).values()) for name, draw in case.wrong.items()}
        return one_law, {name: min(1.0, p_value * len(expected)) for name, p_value in others.items()}

    evidence.assert_p_values(p_values)


# Exact relations


@pytest.mark.parametrize("method", FINITE)
@pytest.mark.parametrize(("seq_len", "width"), [(12, 1), (5, 2), (2, 3)])
def test_zero_inputs_give_scores_that_are_exactly_zero(seq_len: int, width: int, method: Method) -> None:
    """With ReLU at width 1 half of the inputs are 0: rounding noise would be another law."""
    layer = AttentionLayer(width=width, seq_len=seq_len, num_heads=2, activation="relu")
    draws = simulate(layer, 500, method=method, coordinates=width)
    zero = (draws.inputs == 0.0).all(axis=-1)
    assert zero.any()
    either = np.broadcast_to((zero[:, :, None] | zero[:, None, :])[:, None], draws.scores.shape)
    assert not draws.scores[either].any()
    assert draws.scores[~either].all()


def test_limits_that_are_constants() -> None:
    """Scores of tied queries and keys, and the kernel that wide layers approach."""
    layer = AttentionLayer(width=4096, seq_len=3, tied_query_key=True, score_scaling="1/n", activation="relu")
    scores, kernel = simulate(layer, 3, method="limit").scores, input_kernel(layer).matrix
    np.testing.assert_allclose(scores, np.broadcast_to(kernel, scores.shape), rtol=1e-12)
    assert np.abs(simulate(layer, 200, seed=1).scores - kernel).max() < 8 / 64


# Interpreted programs: every line is computed as the network written out computes it ---------------


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
