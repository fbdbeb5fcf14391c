"""What laws, kernels, rates and draws refuse, by a message that names field, value and remedy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import attncheck as ac
from attncheck import AttentionLayer, AttentionStack, InputError, Program, StackLaw
from attncheck._lib.arrays import FloatArray
from attncheck.layers import nonlinearity as nl
from attncheck.layers.kernel import psd_root
from attncheck.paper.exact import score_mixture
from attncheck.programs import recurrent_attention
from attncheck.theory.limits.law import LimitLaw
from attncheck.theory.limits.programs import ProgramLimit
from attncheck.theory.rates.law import FiniteWidthLaw, check_inputs
from tests.simulators.cases import BARE, PARTS

LAYER = AttentionLayer(width=16, seq_len=2, num_heads=1)
HEADS = AttentionLayer(width=8, head_dim=2)
ROTARY = AttentionLayer(width=16, seq_len=5, head_dim=4, rotary_base=10.0)
TIED = AttentionLayer(width=64, seq_len=3, tied_query_key=True, score_scaling="1/n", activation="relu")
ZERO = LAYER.replace(attention_map="linear", score_scaling="1/n")
STACK = AttentionStack(layer=LAYER, depth=2)
RECURRENT = recurrent_attention()
RATES: tuple[Callable[..., Any], ...] = (ac.distance, ac.finite_width_law, ac.rate)


def refused(call: Callable[[], object], pattern: str) -> None:
    with pytest.raises(InputError, match=pattern) as caught:
        call()
    assert "; " in str(caught.value)


@functools.cache
def limit_law() -> LimitLaw:
    return ac.limit(AttentionLayer(width=16))


@functools.cache
def finite_law() -> FiniteWidthLaw:
    return ac.finite_width_law(LAYER, size=16)


@functools.cache
def stack_law() -> StackLaw:
    return StackLaw(STACK, draws=16)


NUMBERS = [math.nan, [0.0, math.nan], "one", None, [[1.0], [1.0, 2.0]], [1.0, -(10**400)], 10**400, 1j]


@pytest.mark.parametrize("law", [limit_law, finite_law, stack_law])
@pytest.mark.parametrize("method", ["cdf", "sf", "pdf", "cdf_error", "pdf_error", "ppf"])
def test_numbers_and_positions(law: Callable[[], Any], method: str) -> None:
    call = getattr(law(), method)
    for value in [*NUMBERS, *((-0.1, 1.1, 2) if method == "ppf" else ())]:
        refused(functools.partial(call, value), "^q=" if method == "ppf" else "^t=")
    for position in (7, -1, 1.0, True, "first"):
        refused(functools.partial(call, 0.5, position), "^position=")


LAWS: list[tuple[Callable[[LimitLaw], object], str]] = [
    (lambda law: ac.limit(law), "layer="),  # type: ignore[call-overload]  # wrong on purpose
    (lambda law: LimitLaw(law.layer, scramble=-1), "scramble="),
    (lambda law: law.sample(0), "size="),
    (lambda law: law.sample(1.5), "size="),  # type: ignore[arg-type]  # wrong on purpose
    (lambda law: law.sample(10**400), "size=1000.*: must be at most"),
    (lambda law: law.sample(10**12), "size=10+: is more draws than memory holds"),
    (lambda law: law.sample(3, seed=-1), "seed="),
    (lambda law: law.sample(3, coordinates=0), "coordinates="),
    (lambda law: law.conditional_covariance(np.zeros((4, 4))), "scores.shape="),
    (lambda law: law.conditional_covariance(np.full((2, 4, 4), np.nan)), "scores="),
    (lambda law: law.conditional_covariance("scores"), "scores="),
    (lambda law: law.atom(4), "position="),
    (lambda law: law.excess_kurtosis("first"), "position="),  # type: ignore[arg-type]  # wrong on purpose
]


@pytest.mark.parametrize(("call", "pattern"), LAWS)
def test_limit_laws(call: Callable[[LimitLaw], object], pattern: str) -> None:
    refused(lambda: call(limit_law()), f"^{pattern}")


KERNELS: list[tuple[dict[str, Any], str]] = [
    ({"layer": ac.AttentionLayer(width=2, head_scaling=False)}, "layer.head_scaling="),
    ({"layer": ac.AttentionLayer(width=2), "scramble": -1}, "scramble="),
    ({"layer": np.eye(4)}, "is not an AttentionLayer; pass"),
]


@pytest.mark.parametrize(("arguments", "pattern"), KERNELS)
def test_kernels_of_infinitely_many_heads(arguments: dict[str, Any], pattern: str) -> None:
    refused(lambda: ac.infinite_heads_kernel(**arguments), pattern)


MATRICES: list[tuple[FloatArray, str]] = [
    (np.ones((2, 3)), "matrix.shape"),
    (np.ones(3), "matrix.shape"),
    (np.array([[1.0, np.nan], [np.nan, 1.0]]), "matrix="),
    (np.array([[1.0, 2.0], [2.0, 1.0]]), "smallest eigenvalue"),
]


@pytest.mark.parametrize(("matrix", "pattern"), MATRICES)
def test_roots(matrix: FloatArray, pattern: str) -> None:
    refused(lambda: psd_root(matrix), pattern)


FUNCTIONS: list[tuple[object, str]] = [
    (math.tanh, "raised TypeError"),
    (np.sum, "returned shape"),
    (lambda x: special.softmax(x), "depend on the other coordinates"),
    (lambda x: x - x.mean(), "depend on the other coordinates"),
    (lambda x: np.cumsum(x).reshape(x.shape), "depend on the other coordinates"),
    (np.log, "is not finite at x = -256.0"),
    (lambda x: 1 / x, "is not finite at x = 0.0"),
    (lambda x: np.exp(x * x), "is not finite"),
    (lambda x: x + 1j, "returned complex128"),
    (lambda x: np.full(x.shape, "one"), "returned <U3"),
    (None, "cannot be called"),
]


@pytest.mark.parametrize(("function", "pattern"), FUNCTIONS)
def test_declared_functions(function: Any, pattern: str) -> None:
    refused(lambda: nl.declared(function, order=1, bounded=False), f"^function=.*{pattern}")


FIELDS: list[tuple[str, Any]] = [
    *(("order", order) for order in (0, -1, 1.5, np.nan, True, "one", 65)),
    ("bounded", 1),
    ("name", ""),
]


@pytest.mark.parametrize(("field", "value"), FIELDS)
def test_declarations(field: str, value: Any) -> None:
    refused(lambda: nl.declared(np.tanh, **{"order": 1, "bounded": True, field: value}), f"^{field}=")


COVARIANCES: list[tuple[tuple[Any, Any, Any], str]] = [
    ((-1.0, 1.0, 0.0), "var1"),
    ((1.0, np.nan, 0.0), "var2"),
    ((1.0, 1.0, 1.1), "cov"),
    ((0.0, 1.0, 0.1), "cov"),
    ((1.0, 1.0, np.inf), "cov"),
    ((np.ones(2), np.ones(3), 0.0), "cov"),
    (("one", 1.0, 0.0), "var1"),
]


@pytest.mark.parametrize(("arguments", "field"), COVARIANCES)
def test_covariances(arguments: tuple[Any, Any, Any], field: str) -> None:
    refused(lambda: nl.relu().dual(*arguments), f"{field}=")


RATE_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"metric": "chi2"}, "metric"),
    ({"of": "inputs"}, "of"),
    ({"position": 4}, "position"),
    ({"of": "scores", "key": 9}, "key"),
    ({"key": 1}, "key"),
    ({"size": 0}, "size"),
    ({"size": math.nan}, "size"),
    ({"seed": -1}, "seed"),
    ({"width": math.inf}, "width"),
    ({"width": -3}, "width"),
    ({"reference": "width"}, "reference"),
    ({"layer": HEADS, "reference": "infinite width", "width": math.inf}, "width"),
    ({"widths": (8, 8, 16, 32)}, "four different"),
    ({"widths": (0, 8, 16, 32)}, "widths=0"),
    ({"layer": HEADS.replace(num_kv_heads=1), "widths": (8, 16, 32, 64)}, "num_kv_heads"),
    ({"layer": ZERO, "widths": (64, 128, 256, 512)}, r"^metric='ks': does not decrease .*1/sqrt"),
    *(({"size": size}, r"^size=1000.*: must be at most 1000000000000; pass") for size in (10**13, 10**400)),
    ({"size": 10**13, "widths": (64, 128, 256, 512)}, r"^size=1000.*: must be at most 1000000000000; pass"),
    ({"size": 10**10}, r"^size=10000000000: makes .* of the draws take .*; pass fewer"),
    ({"width": 10**9, "size": 16}, r"^width=10+: makes .* take \d+ bytes, .*; pass a smaller"),
    ({"widths": (64, 128, 256, 10**9), "size": 16}, r"^widths=10+: makes .* take \d+ bytes, .*; pass a smaller"),
]


@pytest.mark.parametrize(("arguments", "pattern"), RATE_ARGUMENTS)
def test_distances_and_rates(arguments: dict[str, Any], pattern: str) -> None:
    call: Any = ac.rate if "widths" in arguments else ac.distance
    refused(lambda: call(**{"layer": AttentionLayer(width=8), **arguments}), pattern)


def test_widths_of_a_million_are_allowed() -> None:
    check_inputs("width", LAYER.replace(width=10**6))


#: Descriptions without a law at finite width.
NO_RATE: list[tuple[Any, str]] = [
    ("layer", "layer"),
    (STACK, r"is a stack.*compare attncheck\.simulate with attncheck\.limit"),
    (Program(), r"^layer=.*is not an AttentionLayer"),
    (ROTARY, "rotary_base"),
    (TIED, "tied_query_key=True"),
    *((PARTS[name], "finite width|not normal given the keys") for name in ("slopes", "bias table", "qk norm")),
]


@pytest.mark.parametrize("function", RATES)
@pytest.mark.parametrize(("described", "pattern"), NO_RATE)
def test_laws_at_finite_width(function: Callable[..., Any], described: Any, pattern: str) -> None:
    refused(lambda: function(described), pattern)


#: What takes more memory than there is for a sequence of this length.
LONG: list[Callable[[AttentionLayer], object]] = [
    lambda layer: ac.limit(layer).variance(),
    lambda layer: ac.limit(layer).covariance(),
    lambda layer: ac.limit(layer).sample(1),
    ac.infinite_heads_kernel,
    lambda layer: ac.distance(layer, of="scores"),
    lambda layer: ac.limit(layer.replace(seq_len=200)).score_covariance(),
    lambda layer: ac.limit(AttentionStack(layer=layer, depth=2)).variance(),
]


@pytest.mark.parametrize("call", LONG)
@pytest.mark.parametrize("position_std", [0.0, 1.0])
def test_long_sequences(call: Callable[[AttentionLayer], object], position_std: float) -> None:
    layer = AttentionLayer(width=8, seq_len=10**6, position_std=position_std)
    refused(lambda: call(layer), r"^seq_len=\d+: makes .* take \d+ bytes, more than")


def tied() -> Program:
    program = Program()
    x = program.nonlin(nl.tanh(), program.matmul(program.weight("W"), program.initial("h")))
    Q = program.weight("Q")
    program.score(program.matmul(Q, x), program.matmul(Q, x))
    return program


@functools.cache
def program_law() -> ProgramLimit:
    return ac.limit(RECURRENT)


def row_of(law: ProgramLimit) -> FloatArray:
    return np.zeros((1, len(law.scores)))


#: Wrong types among them, on purpose.
CALLS: list[tuple[Callable[[], object], str]] = [
    *((lambda bound=bound: nl.clip(bound), "bound=") for bound in (0.0, -1.0, np.nan, np.inf, "wide", True)),
    *(
        (lambda fields=fields: nl.Nonlinearity(*fields), "nonlinearity")
        for fields in (("sine", (), 1, True), ("clip", (), 1, True), ("relu", (), 1, True), ("tanh", (), 2, True))
    ),
    (lambda: nl.DeclaredFunction("tanh", (1.0,), 1, True, np.tanh), "^parameters="),
    (lambda: score_mixture(LAYER.replace(norm="layer", activation="identity"), 8), "norm='layer'"),
    (lambda: ac.infinite_heads_tangent(ROTARY), "rotary_base"),
    (lambda: ac.infinite_heads_tangent("layer"), "is not an AttentionLayer"),  # type: ignore[arg-type]  # wrong on purpose
    (lambda: ac.infinite_heads_tangent(AttentionLayer(width=8, head_scaling=False)), "head_scaling"),
    *(
        (lambda name=name: ac.infinite_heads_tangent(PARTS[name]), "for which the mean is not known")
        for name in ("window", "softcap", "sink")
    ),
    (lambda: ac.tangent_kernel(PARTS["own map"], 2), "has no declared derivative"),
    *(
        (lambda name=name: ac.tangent_kernel(PARTS[name], 2), "not supported by the tangent kernel")
        for name in ("slopes", "bias table", "qk norm")
    ),
    (lambda: ac.finite_width_law(LAYER, size=10**13), "^size=1000.*: must be at most"),
    (lambda: ac.finite_width_law(LAYER, size=10**10).variance(), "^size=10000000000: makes .* of the draws take"),
    (lambda: ac.finite_width_law(LAYER.replace(width=10**9)).cdf(1.0), "^width=10+: makes .* take"),
    (lambda: StackLaw(STACK, draws=3), "^draws=3: must be at least 16"),
    (lambda: StackLaw(STACK, draws=10**13), "^draws=10+: must be at most"),
    (lambda: StackLaw(LAYER), "is not an AttentionStack"),  # type: ignore[arg-type]  # wrong on purpose
    (
        lambda: StackLaw(STACK.replace(layer=LAYER.replace(seq_len=10_000)), draws=64).variance(),
        "^seq_len=10000: makes a draw of the recursion take",
    ),
    (lambda: ac.simulate(BARE[1], 10, coordinates=9), "^coordinates=9: exceeds width=4; ask for"),
    (lambda: ac.simulate(BARE[1], 10, memory=1000), "^memory=1000: is too little for one collapsed draw of this stack"),
    (lambda: ac.limit(tied()), r"'p1': has no limit: violates Assumption 1 \(b\), Q is on both sides"),
    (lambda: ac.simulate(tied().at(8), 10, method="limit"), "has no limit"),
    (lambda: ac.simulate(RECURRENT.at(0), 10), "width=0: must be at least 1"),
    (lambda: ac.simulate(RECURRENT.at(4), 10, coordinates=5), "coordinates=5: exceeds width=4"),
    (
        lambda: ac.simulate(RECURRENT.at(4), 10, method="collapsed"),
        "method='collapsed': supports layers and stacks",
    ),
    (lambda: ac.simulate(RECURRENT.at(4), 10, memory=10), "memory=10: is too little for one matrix-free draw"),
    (lambda: ac.simulate(RECURRENT, 10), r"layer='a program': has no width; .* e\.g\. program\.at\(64\)"),  # type: ignore[arg-type]  # wrong on purpose
    (lambda: ac.limit(Program()), "has no lines; write some first"),
    (lambda: Program().coverage(), "has no lines; write some first"),
    (lambda: ac.simulate(Program().at(4), 10), "has no lines; write some first"),
    (
        lambda: program_law().average(np.square, [RECURRENT.nodes[-1]], np.zeros((3, 99))),
        r"scores=\(3, 99\): must have shape \(size, \d+\)",
    ),
    *(
        (lambda call=call: call(program_law()), "is a score; pass lines that are vectors")
        for call in (
            lambda law: law.second(law.scores[0], law.scores[0]),
            lambda law: law.conditional_square(law.scores[0], row_of(law)),
            lambda law: law.average(np.abs, [law.scores[0]], row_of(law)),
        )
    ),
]


@pytest.mark.parametrize(("call", "pattern"), CALLS)
def test_calls(call: Callable[[], object], pattern: str) -> None:
    refused(call, pattern)
