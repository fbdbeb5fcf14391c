"""Statistics, families and expectations of all parameters of a model, drawn by numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from attncheck._lib.arrays import FloatArray
from attncheck.frameworks.framework import Parameter
from attncheck.models.initialisers import unmet
from attncheck.models.parameter_notes import notes_of
from attncheck.models.parameters import ParameterStatistics, statistics_of
from tests.refusals import refused

Draw = Callable[[np.random.Generator, int], FloatArray]
DRAWS, MOST, DEPTH, WIDTH = 4, 4096, 12, 64


def constant(value: float) -> Draw:
    return lambda _, size: np.full(size, value)


def normal(std: float) -> Draw:
    return lambda rng, size: rng.normal(0, std, size)


def uniform(std: float) -> Draw:
    return lambda rng, size: rng.uniform(-math.sqrt(3) * std, math.sqrt(3) * std, size)


def fixed(draw: Draw) -> Draw:
    return lambda _, size: draw(np.random.default_rng(1), size)


ZEROS, ONES, USUAL = constant(0.0), constant(1.0), normal(0.02)
SCALED = 0.02 / math.sqrt(2 * DEPTH)


def linear(name: str, fans: tuple[int, int], weight: Draw, bias: Draw) -> dict[str, tuple[Draw, Parameter]]:
    std = 1 / math.sqrt(3 * fans[0])
    default = ("uniform", std)
    return {
        f"{name}.weight": (weight, Parameter(f"{name}.weight", fans[::-1], "Linear", fans, (), default=default)),
        f"{name}.bias": (bias, Parameter(f"{name}.bias", fans[1:], "Linear", None, (), default=default)),
    }


def gpt(default: bool = False) -> dict[str, tuple[Draw, Parameter]]:
    """Return the law and description of each parameter of a small GPT-2, or of one that keeps all defaults."""
    model = {"wte.weight": (USUAL, Parameter("wte.weight", (500, WIDTH), "Embedding", None, ()))}
    for i in range(DEPTH):
        for name, fans, std in (
            ("attn.c_attn", (WIDTH, 3 * WIDTH), 0.02),
            ("attn.c_proj", (WIDTH, WIDTH), SCALED),
            ("mlp.c_fc", (WIDTH, 4 * WIDTH), 0.02),
            ("mlp.c_proj", (4 * WIDTH, WIDTH), SCALED),
        ):
            own = uniform(1 / math.sqrt(3 * fans[0]))
            weight, bias = (own, own) if default else (normal(std), ZEROS)
            model |= linear(f"h.{i}.{name}", fans, weight, bias)
        for what, draw in (("weight", ONES), ("bias", ZEROS)):
            name = f"h.{i}.ln_1.{what}"
            model[name] = (draw, Parameter(name, (WIDTH,), "LayerNorm", None, ()))
    head = uniform(1 / math.sqrt(3 * WIDTH)) if default else USUAL
    return model | linear("lm_head", (WIDTH, 500), head, head if default else ZEROS)


def drawn(model: Mapping[str, tuple[Draw, Parameter]], seed: int, **changes: Draw) -> list[ParameterStatistics]:
    """Return the table of a model in which the parameters of the given names have other laws."""
    rng, parameters = np.random.default_rng(seed), []
    for name, (draw, p) in model.items():
        law, size = changes.get(name, draw), min(math.prod(p.shape), MOST)
        entries = tuple(law(rng, size).astype(np.float32).astype(np.float64) for _ in range(DRAWS))
        parameters.append(Parameter(name, p.shape, p.owner, p.fans, entries, default=p.default))
    return statistics_of(parameters)


@pytest.mark.parametrize("default", [False, True])
def test_right_tables_are_not_blamed(default: bool) -> None:
    for seed in range(20):
        notes = notes_of(drawn(gpt(default), seed))
        assert not [note for note in notes if note.level == "wrong"]
        assert [str(note) for note in notes] == ([] if default else DEPTH_SCALED)


DEPTH_SCALED = [f"depth scaling: 0.02/sqrt(2·12) in h.*.{part}.c_proj.weight" for part in ("attn", "mlp")]


def test_projections_that_depth_scaling_leaves_out_are_named() -> None:
    """Of those with as many outputs, but for queries, keys and values."""
    model, unscaled = gpt(), {f"h.{i}.attn.c_proj.weight": USUAL for i in range(DEPTH)}
    for i in range(DEPTH):
        model |= linear(f"h.{i}.attn.q_proj", (WIDTH, WIDTH), USUAL, ZEROS)
    notes = {str(note): note.level == "asks" for note in notes_of(drawn(model, 0, **unscaled), causal=True)}
    assert notes == {"depth scaling: 0.02/sqrt(2·12) in h.*.mlp.c_proj.weight, not in h.*.attn.c_proj.weight": True}


FC, HEAD = "h.2.mlp.c_fc.weight", "lm_head.weight"
OWN = uniform(1 / math.sqrt(3 * WIDTH))
ALL_FC = [f"h.{i}.mlp.c_fc.weight" for i in range(DEPTH)]
NORM_BIASES = [f"h.{i}.ln_1.bias" for i in range(DEPTH)]
FALLING = {name: normal(0.02 / math.sqrt(i + 1)) for i, name in enumerate(ALL_FC)}
FALLING_FAST = {name: normal(0.02 * 1.4**-i) for i, name in enumerate(ALL_FC)}
CASES: dict[str, tuple[dict[str, Draw], bool, str]] = {
    "member": ({FC: OWN}, True, f"{FC}: uniform, std 0.072 (default of Linear); h.*.mlp.c_fc.weight elsewhere: normal"),
    "member zero": ({FC: ZEROS}, True, f"{FC}: zeros; h.*.mlp.c_fc.weight elsewhere"),
    "two members": ({FC: OWN, ALL_FC[5]: OWN}, True, "h.{2,5}.mlp.c_fc.weight ×2: uniform"),
    "last zero": ({ALL_FC[11]: ZEROS}, False, f"{ALL_FC[11]}: zeros; h.*.mlp.c_fc.weight elsewhere"),
    "norm member": ({"h.2.ln_1.weight": constant(0.5)}, True, "h.2.ln_1.weight: constant 0.5; h.*.ln_1.weight else"),
    "head": ({HEAD: OWN}, True, "lm_head.weight keeps the default of Linear: uniform, std 0.072; most projections"),
    "head, 0.1": ({HEAD: normal(0.1)}, False, "lm_head.weight: normal, std 0.1; most projections: normal, std 0.02"),
    "zero head": ({HEAD: ZEROS}, False, "lm_head.weight: zeros: this initialiser does not draw the projection"),
    "constant head": ({HEAD: constant(0.1)}, True, "lm_head.weight: constant 0.1"),
    "fixed": ({FC: fixed(USUAL)}, True, f"{FC}: random entries, the same in every draw"),
    "NaN": ({FC: constant(math.nan)}, True, f"{FC}: NaN or infinite"),
    "bias": ({"lm_head.bias": OWN}, False, "random biases, while others are zeros: lm_head.bias: uniform, std 0.07"),
    "norms": (dict.fromkeys(NORM_BIASES, constant(0.1)), False, "h.*.ln_1.bias ×12 of LayerNorm: constant 0.1, not ze"),
    "depth": (FALLING, False, "h.*.mlp.c_fc.weight differ: "),
    "trend": (FALLING_FAST, False, "h.*.mlp.c_fc.weight differ: "),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_table_is_named(case: str) -> None:
    changes, blames, text = CASES[case]
    notes = notes_of(drawn(gpt(), 0, **changes))
    (found,) = [note for note in notes if str(note).startswith(text)]
    assert (found.level == "wrong") == blames
    assert [note for note in notes if note.level == "wrong"] == [found] * blames


def test_states() -> None:
    x = np.random.default_rng(0).standard_normal((4, 64))
    same = (x[0],) * 4
    rows = statistics_of(
        [
            Parameter("a.weight", (64,), "Embedding", None, tuple(x), used=False, tied=("b.weight",)),
            Parameter("c.weight", (64,), "Linear", (8, 8), same, initialised=False),
            Parameter("d.weight", (64,), "Linear", (8, 8), same),
            Parameter("table", (64,), "Positions", None, (np.sin(np.arange(64.0)),) * 4),
            Parameter("one", (1,), "Scale", None, (x[0, :1],)),
        ]
    )
    assert rows[0].notes == ("tied to b.weight", "not used")
    assert [row.notes for row in rows[1:]] == [("not initialised",), ("never drawn",), ("the same in every draw",), ()]
    texts = [str(note) for note in notes_of(rows)]
    assert texts[0] == "c.weight not initialised: nothing, or NaN, was written to this memory"
    assert texts[-1] == "no gradient of the outputs reaches a.weight"
    (only,) = notes_of(statistics_of([Parameter("d.weight", (64,), "Linear", (8, 8), same)]))
    assert str(only).startswith("all parameters are the same in every draw")


def test_orthogonal_matrices() -> None:
    rng = np.random.default_rng(0)
    entries = tuple(np.linalg.qr(rng.standard_normal((64, 64)))[0].ravel() for _ in range(4))
    (row,) = table = statistics_of([Parameter("w", (64, 64), "Linear", (64, 64), entries)])
    assert row.law == "orthogonal"
    assert unmet({"w": "orthogonal(1/sqrt(fan_in))"}, table, {}) == []
    assert unmet({"w": "normal(0.125)"}, table, {}) == ["w: orthogonal, not normal"]


def test_expectations() -> None:
    table, names = drawn(gpt(), 0), {"n_layer": 12.0}
    right = {"*.c_proj.weight": "normal(0.02/sqrt(2*n_layer))", "*.c_*.bias": "zeros", "*ln_1.weight": "constant(1)"}
    assert unmet(right | {"wte.weight": "normal(2e-2)", "lm_head.weight": "normal"}, table, names) == []
    fc = "h.*.mlp.c_fc.weight (12): "
    for text, sentence in {
        "normal(0.02/sqrt(2*n_layer))": f"{fc}std 0.0198 to 0.0202, not 0.00408 = 0.02/sqrt(2*12)",
        "uniform(0.02)": f"{fc}normal, not uniform",
        "ones": f"{fc}normal, std 0.0198 to 0.0202, not ones",
        "uniform(1/sqrt(3*fan_in))": f"{fc}normal, not uniform; std 0.0198 to 0.0202, not 0.0722 = 1/sqrt(3*64)",
    }.items():
        assert unmet({"*.c_fc.weight": text}, table, names) == [sentence]
    (one,) = unmet({FC: "normal(0.03)"}, table, names)
    assert one.startswith(f"{FC}: std 0.02, from 0.01")
    assert one.endswith(", not 0.03")


UNUSABLE = "gauss(1);normal(;normal(x);normal(1/0);normal(sqrt(-1));normal(-1);zeros(1);constant;;normal(9**9**9)"
NOT_ARITHMETIC = "normal(f(1));normal('a');normal((-1)**0.5);normal(True);normal(sqrt);normal(1, 2);normal(1e999)"


@pytest.mark.parametrize("text", [*UNUSABLE.split(";"), *NOT_ARITHMETIC.split(";")])
def test_unusable_expectations_are_refused(text: str) -> None:
    refused(lambda: unmet({FC: text}, drawn({FC: gpt()[FC]}, 0), {}), "parameters=")
