"""What draws, laws, kernels and rates refuse, by a message that names field, value and remedy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck.layers import nonlinearity as nl
from attncheck.paper.exact import score_mixture
from attncheck.programs import recurrent_attention
from attncheck.theory.rates.law import check_inputs
from tests.refusals import refused
from tests.simulators.cases import BARE, PARTS

LAYER = ac.AttentionLayer(width=16, seq_len=2, num_heads=1)
WIDE = ac.AttentionLayer(width=8)
HEADS = ac.AttentionLayer(width=8, head_dim=2)
ROTARY = ac.AttentionLayer(width=16, seq_len=5, head_dim=4, rotary_base=10.0)
TIED = ac.AttentionLayer(width=64, seq_len=3, tied_query_key=True, score_scaling="1/n", activation="relu")
OF_LIMITS = (ac.limit, ac.infinite_heads_kernel, ac.infinite_heads_tangent)
GROWING = LAYER.replace(score_scaling="n^-0.25")
ZERO = LAYER.replace(attention_map="linear", score_scaling="1/n")
STACK = ac.AttentionStack(layer=LAYER, depth=2)
LONG_STACK = STACK.replace(layer=LAYER.replace(seq_len=10_000))
RECURRENT = recurrent_attention()
BIASED = ("slopes", "bias table", "qk norm")
# Wrong types are passed on purpose.
API: Any = ac


@functools.cache
def limit_law() -> Any:
    return ac.limit(ac.AttentionLayer(width=16))


LAWS: Mapping[str, Callable[[], Any]] = {
    "limit": limit_law,
    "width": functools.cache(lambda: ac.finite_width_law(LAYER, size=16)),
    "stack": functools.cache(lambda: ac.StackLaw(STACK, draws=16)),
}
NUMBERS = [math.nan, [0.0, math.nan], "one", None, [[1.0], [1.0, 2.0]], [1.0, -(10**400)], 10**400, 1j]


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("method", ["cdf", "sf", "pdf", "cdf_error", "pdf_error", "ppf"])
def test_numbers_and_positions(name: str, method: str) -> None:
    call = getattr(LAWS[name](), method)
    for value in [*NUMBERS, *((-0.1, 1.1, 2) if method == "ppf" else ())]:
        refused(functools.partial(call, value), "^q=" if method == "ppf" else "^t=")
    for position in (7, -1, 1.0, True, "first"):
        refused(functools.partial(call, 0.5, position), "^position=")


def tied() -> ac.Program:
    program = ac.Program()
    x = program.nonlin(nl.tanh(), program.matmul(program.weight("W"), program.initial("h")))
    Q = program.weight("Q")
    program.score(program.matmul(Q, x), program.matmul(Q, x))
    return program


@functools.cache
def program_law() -> ac.ProgramLimit:
    return ac.limit(RECURRENT)


def row() -> Any:
    return np.zeros((1, len(program_law().scores)))


def refusals(
    call: Any, usual: dict[str, Any], *rows: tuple[dict[str, Any], str]
) -> Iterator[tuple[Callable[[], object], str]]:
    """Yield calls that change the usual arguments, and how their messages start."""
    for changes, start in rows:
        yield functools.partial(call, **{**usual, **changes}), f"^{start}"


CALLS: list[tuple[Callable[[], object], str]] = [
    *refusals(
        API.simulate,
        {"layer": ac.AttentionLayer(width=6, seq_len=3, num_heads=2), "size": 5},
        ({"layer": ac.AttentionLayer}, "layer=<class .*: is not an AttentionLayer; pass"),
        ({"layer": RECURRENT}, r"layer='a program': has no width; .* e\.g\. program\.at\(64\)"),
        ({"layer": tied().at(8), "method": "limit"}, ".*has no limit"),
        ({"layer": RECURRENT.at(4), "method": "collapsed"}, "method='collapsed': supports layers only"),
        ({"layer": RECURRENT.at(4), "memory": 10}, "memory=10: is too little for one matrix-free draw"),
        ({"layer": BARE[0], "memory": 1000}, "memory=1000: is too little for one matrix-free draw of this stack"),
        ({"size": 0}, "size=0: must be at least 1; pass"),
        ({"size": 10**15}, "size=10+: is more draws than memory holds at once; .*simulate_chunks"),
        ({"seed": -1}, "seed=-1: must be at least 0; pass"),
        ({"method": "exact"}, "method='exact': is not known; use one of 'direct', 'matrix-free', 'collapsed', 'l"),
        ({"layer": GROWING, "method": "limit"}, ".*no limit is computed"),
        ({"coordinates": 7}, "coordinates=7: exceeds width=6; ask for"),
        ({"method": "direct", "memory": 100}, "memory=100: is too little for one direct draw .*; raise memory"),
    ),
    *refusals(
        API.simulate_chunks,
        {"layer": WIDE, "size": 5},
        *(({"chunk_size": size}, f"chunk_size={size}: .*; pass") for size in (0, None)),
    ),
    *refusals(
        API.tangent_kernel,
        {"layer": ac.AttentionLayer(width=5), "size": 1},
        ({"layer": ROTARY}, "layer.rotary_base=10.0: is not supported"),
        ({"layer": PARTS["own map"]}, ".*has no declared derivative"),
        *(({"layer": PARTS[name]}, ".*by the tangent kernel") for name in BIASED),
        ({"layer": ac.AttentionLayer(width=4096), "memory": 2**30}, ".*a smaller width, or fewer heads or positions"),
        ({"coordinates": 6}, "coordinates=6: exceeds width=5"),
        ({"memory": 10}, ".*is too little for one tangent kernel"),
    ),
    *refusals(
        API.infinite_heads_tangent,
        {},
        ({"layer": ROTARY}, "layer.rotary_base"),
        *(({"layer": PARTS[name]}, ".*the mean is not known") for name in ("window", "softcap", "sink")),
    ),
    *refusals(
        API.infinite_heads_kernel,
        {},
        ({"layer": WIDE.replace(head_scaling=False)}, "layer.head_scaling="),
        ({"layer": WIDE, "scramble": -1}, "scramble="),
    ),
    *refusals(
        API.distance,
        {"layer": WIDE},
        ({"metric": "chi2"}, "metric"),
        ({"of": "inputs"}, "of"),
        ({"position": 4}, "position"),
        ({"of": "scores", "key": 9}, "key"),
        ({"key": 1}, "key"),
        *(({"size": size}, "size") for size in (0, math.nan)),
        ({"size": 10**10}, r"size=10000000000: makes .* of the draws take .*; pass fewer"),
        *(({"width": width}, "width") for width in (math.inf, -3)),
        ({"width": 10**9, "size": 16}, r"width=10+: makes .* take \d+ bytes, .*; pass a smaller"),
        ({"reference": "width"}, "reference"),
        ({"layer": HEADS, "reference": "infinite width", "width": math.inf}, "width"),
    ),
    *refusals(
        API.rate,
        {"layer": WIDE, "widths": (64, 128, 256, 512)},
        ({"widths": (8, 8, 16, 32)}, ".*four different"),
        ({"widths": (0, 8, 16, 32)}, "widths=0"),
        ({"layer": HEADS.replace(num_kv_heads=1)}, ".*num_kv_heads"),
        ({"layer": ZERO}, r"metric='ks': does not decrease .*1/sqrt"),
        ({"widths": (64, 128, 256, 10**9), "size": 16}, r"widths=10+: makes .* take \d+ bytes, .*; pass a smaller"),
    ),
    *(
        refusal
        for call in (API.distance, API.finite_width_law, API.rate)
        for refusal in refusals(
            call,
            {},
            ({"layer": "layer"}, "layer"),
            ({"layer": STACK}, r".*is a stack.*compare attncheck\.simulate with attncheck\.limit"),
            ({"layer": ac.Program()}, "layer=.*is not an AttentionLayer"),
            ({"layer": ROTARY}, "layer.rotary_base"),
            ({"layer": TIED}, ".*tied_query_key=True"),
            ({"layer": GROWING}, "score_scaling='n.-0.25': makes scores grow with the width: no limit is computed"),
            *(({"layer": PARTS[name]}, ".*(finite width|not normal given)") for name in BIASED),
            ({"layer": WIDE, "size": 10**13}, "size=10+: must be at most 1000000000000; pass"),
        )
    ),
    *refusals(
        API.StackLaw,
        {"stack": STACK},
        ({"draws": 3}, "draws=3: must be at least 16"),
        ({"stack": LAYER}, ".*is not an AttentionStack"),
        ({"stack": ac.AttentionStack(layer=GROWING, depth=2)}, ".*no limit is computed"),
    ),
    *refusals(
        nl.declared,
        {"function": np.tanh, "order": 1, "bounded": False},
        *(({"order": order}, "order=") for order in (0, -1, 1.5, np.nan, True, "one", 65)),
        ({"bounded": 1}, "bounded="),
        ({"name": ""}, "name="),
        ({"function": math.tanh}, "function=.*raised TypeError"),
        ({"function": np.sum}, "function=.*returned shape"),
        ({"function": lambda x: np.cumsum(x).reshape(x.shape)}, "function=.*depend on the other coordinates"),
        ({"function": np.log}, "function=.*is not finite at x = -256.0"),
        ({"function": lambda x: x + 1j}, "function=.*returned complex128"),
        ({"function": lambda x: np.full(x.shape, "one")}, "function=.*returned <U3"),
        ({"function": None}, "function=.*cannot be called"),
    ),
    *refusals(nl.clip, {}, *(({"bound": bound}, "bound=") for bound in (0.0, -1.0, np.nan, np.inf, "wide", True))),
    *(
        (lambda call=call: call(limit_law()), f"^{pattern}")
        for call, pattern in (
            *((lambda law, call=call: call(GROWING), "score_scaling=.*no limit is computed") for call in OF_LIMITS),
            (lambda law: law.sample(0), "size="),
            (lambda law: law.sample(10**12), "size=10+: is more draws than memory holds"),
            (lambda law: law.sample(3, coordinates=0), "coordinates="),
            (lambda law: law.conditional_covariance(np.zeros((4, 4))), "scores.shape="),
            (lambda law: law.conditional_covariance("scores"), "scores="),
            (lambda law: law.atom(4), "position="),
        )
    ),
    *(
        (lambda fields=fields: nl.Nonlinearity(*fields), "nonlinearity")
        for fields in (("sine", (), 1, True), ("clip", (), 1, True), ("relu", (), 1, True), ("tanh", (), 2, True))
    ),
    (lambda: nl.DeclaredFunction("tanh", (1.0,), 1, True, np.tanh), "^parameters="),
    (lambda: score_mixture(LAYER.replace(norm="layer", activation="identity"), 8), "norm='layer'"),
    (lambda: score_mixture(LAYER.replace(clip=1.0), 8), "is a nonlinear activation"),
    (lambda: ac.finite_width_law(LAYER, size=10**10).variance(), "^size=10000000000: makes .* of the draws take"),
    (lambda: ac.finite_width_law(LAYER.replace(width=10**9)).cdf(1.0), "^width=10+: makes .* take"),
    (lambda: ac.StackLaw(LONG_STACK, draws=64).variance(), "^seq_len=10000: makes a draw of the recursion take"),
    (lambda: ac.limit(tied()), r"'p1': has no limit: violates Assumption 1 \(b\), Q is on both sides"),
    (lambda: ac.limit(ac.Program()), "has no lines; write some first"),
    (lambda: RECURRENT.at(0), "width=0: must be at least 1"),
    (
        lambda: program_law().average(np.square, [RECURRENT.nodes[-1]], np.zeros((3, 99))),
        r"scores=\(3, 99\): must have shape \(size, \d+\)",
    ),
    *(
        (lambda call=call: call(program_law(), program_law().scores[0]), "is a score; pass lines that are vectors")
        for call in (
            lambda law, score: law.second(score, score),
            lambda law, score: law.conditional_square(score, row()),
            lambda law, score: law.average(np.abs, [score], row()),
        )
    ),
    (lambda: program_law().second("nope", "nope"), "vector='nope': is not a vector of this limit's program"),
    # What takes more memory than there is for a sequence of this length.
    *(
        (
            lambda call=call, std=std: call(ac.AttentionLayer(width=8, seq_len=10**6, position_std=std)),
            r"^seq_len=\d+: makes .* take \d+ bytes, more than",
        )
        for std in (0.0, 1.0)
        for call in (
            lambda layer: ac.limit(layer).variance(),
            lambda layer: ac.limit(layer).covariance(),
            lambda layer: ac.limit(layer).sample(1),
            ac.infinite_heads_kernel,
            lambda layer: ac.distance(layer, of="scores"),
            lambda layer: ac.limit(layer.replace(seq_len=200)).score_covariance(),
            lambda layer: ac.limit(ac.AttentionStack(layer=layer, depth=2)).variance(),
        )
    ),
]


@pytest.mark.parametrize(("call", "pattern"), CALLS)
def test_calls(call: Callable[[], object], pattern: str) -> None:
    refused(call, pattern)


def test_widths_of_a_million_are_allowed() -> None:
    check_inputs("width", LAYER.replace(width=10**6))
