"""AttentionLayer: lossless dicts and TOML files, and weights, against the definition; refusals.

What is no layer, stack or program is refused by a message that names field, value and remedy.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attncheck as ac
from attncheck import AttentionLayer
from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.layers.attention import SCORE_SCALINGS
from attncheck.layers.inputs import ACTIVATIONS
from attncheck.layers.parts.attention_map import ATTENTION_MAPS
from attncheck.layers.parts.mask import MASKS
from attncheck.strategies import layers
from tests.refusals import refused
from tests.simulators import literal

STDS = ("query_std", "key_std", "value_std", "output_std", "input_std")


def test_powers_of_the_score_scaling_have_one_text_each() -> None:
    """What layers derive from their fields, tests/simulators tests against networks written out."""
    layer = AttentionLayer(width=64)
    for text, other in (("n^-2.0", "n^-2"), ("n^-1.0", "1/n"), ("n^-0.5", "1/sqrt(n)"), ("n^-0.0", "n^-0")):
        assert layer.replace(score_scaling=text).score_scaling == other
    assert layer.replace(score_scaling="n^-0.7512345678").score_exponent == 0.7512345678


#: Numbers and texts of any type, and what a layer keeps of them.
CONVERTED: dict[str, tuple[Any, int | float | str]] = {
    "width": (np.int64(8), 8),
    "seq_len": (np.uint8(3), 3),
    "num_heads": (np.int32(4), 4),
    "head_dim": (np.int16(2), 2),
    "query_std": (np.float32(0.5), 0.5),
    "key_std": (2, 2.0),
    "value_std": (Fraction(1, 2), 0.5),
    "clip": (np.int64(3), 3.0),
    "mask": (np.str_("causal"), "causal"),
    "rotary_base": (np.int64(10_000), 10_000.0),
    "norm": (np.str_("rms"), "rms"),
}


def test_numpy_numbers_become_built_in() -> None:
    fields = AttentionLayer(**{name: given for name, (given, _) in CONVERTED.items()}).to_dict()
    for name, (_, kept) in CONVERTED.items():
        assert (type(fields[name]), fields[name]) == (type(kept), kept)


@st.composite
def layers_of_any_size(draw: st.DrawFn) -> AttentionLayer:
    """Layers with extreme numbers, whose digits must survive."""
    layer = draw(layers())
    changes: dict[str, Any] = {name: draw(st.floats(1e-6, 1e6)) for name in STDS}
    if layer.activation == "clip":
        changes["clip"] = draw(st.floats(1e-12, 1e30))
    if layer.tied_query_key:  # one matrix has one standard deviation
        changes["key_std"] = changes["query_std"]
    correlation = draw(st.floats(0.0, 1.0, allow_nan=False))
    return layer.replace(width=draw(st.integers(1, 2**70)), input_correlation=correlation, **changes)


@settings(max_examples=80)
@given(layers() | layers_of_any_size(), layers())
def test_dict_toml_and_description_lose_nothing(layer: AttentionLayer, other: AttentionLayer) -> None:
    assert (layer.describe() == other.describe()) == (layer == other)
    fields = layer.to_dict()
    assert list(fields) == [field.name for field in dataclasses.fields(AttentionLayer)]
    assert {type(value) for value in fields.values()} <= {int, float, str, bool, type(None)}
    assert AttentionLayer.from_dict(fields) == layer
    assert repr(AttentionLayer.from_toml(layer.to_toml())) == repr(layer)
    assert layer.to_toml().startswith("[layer]\n")


def test_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "layer.toml"
    path.write_text('# σ\ntitle = "else"\n[layer]\nwidth = 16\nquery_std = 2\n[other]\nwidth = 3\n', encoding="utf-8")
    assert AttentionLayer.from_toml(path) == AttentionLayer(width=16, query_std=2.0)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ATTENTION_MAPS)
@pytest.mark.parametrize("seq_len", [1, 2, 5, 8, 9, 40])
def test_weights_are_the_definition(name: Any, mask: Any, seq_len: int) -> None:
    """Whatever scores are masked, which are not changed."""
    layer = AttentionLayer(width=8, seq_len=seq_len, attention_map=name, mask=mask)
    scores = np.random.default_rng(0).standard_normal((3, 2, seq_len, seq_len))
    expected = literal.weights_of(layer, scores)
    for hidden in (0.0, np.nan, np.inf, -np.inf, 1e308):
        masked = np.where(layer.visible, scores, hidden)
        before = masked.copy()
        weights = layer.attention_weights(masked)
        np.testing.assert_allclose(weights, expected, rtol=1e-13)
        np.testing.assert_array_equal(layer.map.weights(masked[..., 0, :], layer.visible[0]), weights[..., 0, :])
        weights[...] = 7.0
        np.testing.assert_array_equal(masked, before)


@pytest.mark.parametrize(("name", "weights"), [("softmax", [1.0, 0.0, 0.5, 0.5]), ("sigmoid", [1.0, 0.0, 1.0, 1.0])])
def test_large_scores_do_not_overflow(name: Any, weights: list[float]) -> None:
    scores = 1e300 * np.array([[1.0, -1.0], [0.5, 0.5]])
    layer = AttentionLayer(width=8, seq_len=2, attention_map=name)
    assert layer.attention_weights(scores).ravel().tolist() == weights


# Refusals: what is no layer, stack or program -----------------------------------------------------


NAN, INF = math.nan, math.inf
# For functions whose values vary between calls.
SHARED = np.random.default_rng(0)
LAYER = ac.AttentionLayer(width=8, seq_len=2, num_heads=2, clip=3.0)


WHOLE = (0, -1, True, False, 4.0, 2.5, NAN, INF, "4", b"4", [4], np.float64(4))
POSITIVE = (0, 0.0, 1e-200, 1e200, -1.0, NAN, INF, -INF, True, "1", b"1", None, [1.0], 1j, 10**400)
CHOICES = ("", "no such", None, 1, True, b"none", ["none"], "Softmax", "CLIP", np.eye(3))

#: Values that a field refuses whatever the others are.
IMPOSSIBLE: Mapping[str, tuple[Any, ...]] = {
    # Booleans of NumPy are no numbers.
    "width": (*WHOLE, None, np.bool_(True)),
    **dict.fromkeys(("seq_len", "num_heads"), (*WHOLE, None)),
    **dict.fromkeys(("head_dim", "num_kv_heads"), WHOLE),
    **dict.fromkeys(("query_std", "key_std", "value_std", "output_std", "input_std"), POSITIVE),
    "clip": (*POSITIVE, np.array(True)),
    "score_scaling": (*CHOICES, "n^0.5", "n^-x", "n^-9"),
    **dict.fromkeys(("attention_map", "mask", "activation"), CHOICES),
    "head_scaling": (0, 1, None, "yes", 0.5, np.eye(3)),
    "input_correlation": (-0.1, -1e-300, 1.0000001, NAN, INF, -INF, True, "0.5", None),
    "position_std": (-1.0, 1e-9, NAN, np.bool_(True)),
    "position_reach": (2.0,),
    "tied_query_key": (1, True),
    "norm": ("batch", True),
    "window": (0, 1.5),
    "softcap": (-1.0,),
    "sink": (1e9,),
    "bias_slopes": ("steep", np.ones((2, 2))),
    "bias_std": (-1.0,),
    "qk_norm": (2,),
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in IMPOSSIBLE.items() for value in values],
    ids=lambda x: str(x)[:20].split("\n")[0],
)
def test_impossible_values(field: str, value: Any) -> None:
    text = " ".join(repr(value).split())
    start = f"^{field}={re.escape(text if len(text) <= 80 else text[:77])}"
    refused(lambda: ac.AttentionLayer(**{"width": 8, "num_heads": 4, field: value}), start)
    refused(lambda: ac.AttentionLayer(width=8, num_heads=4).replace(**{field: value}), start)


LISTED = {"score_scaling": SCORE_SCALINGS, "attention_map": ATTENTION_MAPS, "mask": MASKS, "activation": ACTIVATIONS}


@pytest.mark.parametrize("field", LISTED)
def test_all_choices_are_listed(field: str) -> None:
    message = refused(lambda: ac.AttentionLayer.from_dict({"width": 8, field: "other"}), f"^{field}='other'")
    for choice in LISTED[field]:
        assert repr(choice) in message
        assert getattr(ac.AttentionLayer.from_dict({"width": 8, field: choice}), field) == choice


def nan_beyond_4(scores: FloatArray, visible: BoolArray) -> FloatArray:
    """Return scores, and NaN for large ones."""
    return np.where(np.abs(scores) > 4.0, np.nan, scores)


TIED = {"tied_query_key": True, "score_scaling": "1/n"}

#: Fields of layers that do not fit each other, and values that say more than that they are impossible.
LAYERS: list[tuple[dict[str, Any], str]] = [
    ({"num_heads": 4, "num_kv_heads": 3}, "^num_kv_heads=3: .*num_heads=4; pass a divisor"),
    ({"activation": math.tanh}, "^activation=<built-in function tanh>: is a function, .*; write an attncheck.Program"),
    ({"activation": "relu", "clip": 1.0}, r"^clip=1\.0: .*activation='relu'"),
    # Values that Python does not print.
    ({"position_std": 10**5_000}, "^position_std=<int>: is larger than any float; pass"),
    ({"width": 10**5_000}, "^width=<int>: is too large; pass"),
    ({"mask": [0] * 500}, r"^mask=\[0, 0, .*\.\.\.: is not known"),
    ({"sink": 0.0, "attention_map": "relu"}, r"sink=0\.0: belongs to softmax"),
    ({"bias_slopes": (1.0,)}, "are 1 slopes for num_heads=2"),
    ({"bias_std": 1.0, "softcap": 1.0}, "not supported with a position bias"),
    ({"qk_norm": True, "head_dim": 1}, "two score values if heads have one neuron"),
    ({"qk_norm": True, **TIED}, "not supported with tied_query_key"),
    ({"mask": ".module:f"}, "cannot be imported"),
    ({"mask": lambda i, j: (SHARED.random(i.shape) < 0.5) | (i == j)}, "varies between calls"),
    ({"mask": lambda i, j: i > j}, "hides position 0 from itself"),
    ({"mask": lambda i, j: 1.0 * (i >= j)}, "returned float64"),
    ({"mask": lambda i, j: 1 / 0}, "raised ZeroDivisionError"),
    ({"attention_map": f"{__name__}:nan_beyond_4"}, "not finite"),
    ({"attention_map": lambda p, visible: p * 1j}, "returned complex128"),
    ({"attention_map": lambda p, visible: p.sum()}, "returned shape"),
    ({"attention_map": lambda p, visible: p - p.mean()}, "depend on other rows"),
    ({"attention_map": lambda p, visible: p - p.mean(axis=-1, keepdims=True)}, "not visible"),
    # Large scores come with draws.
    (
        {"attention_map": lambda p, seen: np.where(np.abs(p) > 1e3, np.nan, p), "query_std": 1e4},
        "gave weights that are not finite",
    ),
    ({"norm": "layer", "width": 1}, "norm="),
    *(({"rotary_base": base, "head_dim": 4}, "rotary_base=") for base in (1.0, np.nan)),
    ({"rotary_base": 10.0, "head_dim": 3}, "rotary_base="),
    ({"rotary_base": 10.0}, "rotary_base="),
    ({"rotary_base": 10.0, "head_dim": 4, **TIED}, "rotary_base="),
    ({"position_std": 1.0, "position_reach": 0.0}, "position_reach="),
    ({"position_std": 1.0, "position_reach": 3.0, "input_correlation": 1.0}, "position_reach="),
    ({**TIED, "key_std": 2.0}, "key_std="),
    ({**TIED, "num_kv_heads": 1}, "num_kv_heads="),
]

#: Fields of a stack of three layers.
STACKS: list[tuple[dict[str, Any], str]] = [
    ({"layer": "n=8"}, r"layer='n=8': is not an AttentionLayer; pass"),
    ({"depth": 0}, r"depth=0: must be at least 1; pass the number of layers"),
    ({"activations": "gelu"}, r"activations='gelu': is not known; use one of"),
    ({"activations": ("relu",)}, r"activations=\('relu',\): must be one name, or 3 names, one for each layer; pass"),
    ({"activations": 7}, r"activations=7: is neither a name nor a list of names; pass"),
    ({"residual": 1}, r"residual=1: must be a boolean; pass"),
    ({"post_norm": "batch"}, r"post_norm='batch'"),
    ({"layer": LAYER.replace(width=1), "post_norm": "layer"}, r"post_norm='layer': makes a single neuron 0"),
    ({"mlp": "tanh"}, "mlp="),
    ({"mlp_ratio": 2}, "mlp"),
    ({"mlp": "relu", "mlp_ratio": 0}, "mlp_ratio="),
    ({"layer": LAYER.replace(head_dim=4, rotary_base=10.0)}, ".*rotary_base"),
]


def added() -> ac.Program:
    program = ac.Program()
    program.nonlin(lambda x: x + 1.0, program.initial("h"))
    return program


MAKE: Any = ac.AttentionLayer
CALLS: list[tuple[Callable[[], object], str]] = [
    *((partial(MAKE.from_toml, value), "^text=") for value in (None, 8, ["[layer]"])),
    *((partial(MAKE.from_dict, value), "^layer=") for value in (None, 8, ["[layer]"])),
    (lambda: MAKE.from_dict({"width": 8, 1: 2}), r"^layer\.1=2: is not a field"),
    (lambda: LAYER.replace(mak="causal"), r"^changes\.mak='causal'.*did you mean 'mask'"),
    (lambda: ac.Program.from_dict(added().to_dict()), "was a local function, which cannot be imported"),
    (lambda: MAKE.from_dict(LAYER.replace(mask=lambda i, j: i >= j).to_dict()), "local function"),
    *((lambda fields=fields: ac.simulate(MAKE(**{"width": 8, **fields}), 1), pattern) for fields, pattern in LAYERS),
    *(
        (lambda fields=fields: ac.AttentionStack(**{"layer": LAYER, "depth": 3, **fields}), f"^{pattern}")
        for fields, pattern in STACKS
    ),
]


@pytest.mark.parametrize(("call", "pattern"), CALLS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_impossible_descriptions(call: Callable[[], object], pattern: str) -> None:
    refused(call, pattern)


TEXTS = [
    ("", r"layer: has no \[layer\] table; write \[layer\]"),
    ("[layer\nwidth = 8", "layer: not TOML .*line 1.*write a"),
    ("[layer]", "width=None: is missing; add width"),
    ("[layer]\nwidth = 8\nheads = 2", r"layer\.heads=2: is not a field .*; did you mean 'num_heads'"),
    ("[layer]\nwidth = 8\nkey_std = inf", "key_std=inf: must be finite; pass"),
    ("[layer]\nwidth = 8\n[layer.mask]\na = 1", "mask={'a': 1}: is not known; use one of"),
]


@pytest.mark.parametrize(("text", "pattern"), TEXTS)
def test_broken_toml(text: str, pattern: str, tmp_path: Path) -> None:
    message = refused(lambda: ac.AttentionLayer.from_toml(text), "^" + pattern)
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    from_file = refused(lambda: ac.AttentionLayer.from_toml(path), f"^{path}: ")
    assert from_file == f"{path}: " + message.removeprefix("layer: ")


def test_unreadable_toml_files(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"[layer]\nwidth = 8 # \xe9\n")
    for path in (tmp_path / "none.toml", tmp_path, tmp_path / "latin.toml"):
        refused(partial(ac.AttentionLayer.from_toml, path), f"^{path}: .*cannot be read .*; pass a TOML file")


class Written:
    """A small program, and lines and a weight of another."""

    def __init__(self) -> None:
        self.program: Any = ac.Program()
        self.W = self.program.weight("W")
        self.h = self.program.initial("h")
        self.g = self.program.matmul(self.W, self.h)
        self.short = self.program.matmul(self.program.weight("L", rows=3), self.h, "short")
        self.p = self.program.score(self.g, self.g)
        other = ac.Program()
        self.foreign_weight = other.weight("W")
        self.foreign = other.matmul(self.foreign_weight, other.initial("z"), "foreign")


def in_place(vector: FloatArray) -> FloatArray:
    """Return the ReLU, written into its input."""
    return np.maximum(vector, 0.0, out=vector)


PROGRAMS: list[tuple[Callable[[Written], object], str]] = [
    (lambda w: w.program.matmul(w.W, w.foreign), "node='foreign': is not a line of this"),
    (lambda w: w.program.matmul(w.foreign_weight, w.h), "weight=.*not a weight of this"),
    (lambda w: w.program.matmul(w.W, w.p), "vector='p1': is a score"),
    (lambda w: w.program.matmul(w.W, w.short), "weight='W': has n columns, but short has 3"),
    (lambda w: w.program.nonlin(np.tanh, w.p), "vectors='p1': is a score, not a vector"),
    (lambda w: w.program.nonlin(np.add, w.g, w.short), "vectors='short': differs in size"),
    (lambda w: w.program.nonlin(np.tanh), r"vectors=\(\): .*at least one vector"),
    (lambda w: w.program.nonlin(in_place, w.g), "function=in_place: .*read-only.*not change them"),
    (lambda w: w.program.score(w.g, w.h), "score='h': is not the output of a MatMul"),
    (lambda w: w.program.score(w.g, w.g, math.nan), "factor=nan: must be finite"),
    (lambda w: w.program.output(np.multiply, [w.p], [w.p]), "vectors='p1': is a score"),
    (lambda w: w.program.output(np.multiply, [w.g], [w.h]), "scores='h': is a vec"),
    (lambda w: w.program.weight("W"), "name='W': is the name of another weight"),
    (lambda w: w.program.weight("N", rows=0), "rows=0: must be at least 1"),
    (lambda w: w.program.weight("N", -1.0), "std=-1.0: must be at least 0"),
    (lambda w: w.program.initials(["z"], [], [[1.0]]), r"cov=\(1, 1\): must be \(1, 1\), with a mean"),
    *(
        (lambda w, cov=cov: w.program.initials(["y", "z"], [0, 0], cov), pattern)
        for cov, pattern in (
            ([1.0, 1.0], r"cov=\(2,\): must be \(2, 2\)"),
            ([[1, 0.5], [0, 1]], "cov=.*symmetric"),
            ([[1, 2], [2, 1]], "cov=.*negative"),
            ([[1, 0], [0, math.inf]], "cov=.*must be finite"),
            ([["one", 0], [0, 1]], "cov=.*matrix of numbers"),
        )
    ),
]


@pytest.mark.parametrize(("write", "pattern"), PROGRAMS)
def test_impossible_lines_leave_the_program_as_it_was(write: Callable[[Written], object], pattern: str) -> None:
    written = Written()
    before = repr(written.program)
    refused(lambda: write(written), pattern)
    assert repr(written.program) == before


def centred(x: FloatArray) -> FloatArray:
    return np.asarray(x - x.mean(axis=-1, keepdims=True))


INITIAL = {"initial": ["h"]}
#: A line after the first, and how its refusal goes on.
LINES: list[tuple[dict[str, Any], str]] = [
    ({"matmull": "W"}, "={'matmull': 'W'}: must be a table with one of initial"),
    ({"matmul": "V", "of": "h"}, ".matmul='V': is not known; use one of 'W'"),
    ({"matmul": "W", "of": "g"}, ".matmul='g': is not the name of an earlier"),
    ({"matmul": "W", "of": "h", "std": 1}, ".std=1: is not known"),
    ({"score": ["h", "h", "h"]}, ".score=['h', 'h', 'h']: must name two"),
    ({"nonlin": "reluu", "of": ["h"]}, ".nonlin.name='reluu': is not known"),
    ({"nonlin": {"name": "clip", "parameters": []}, "of": ["h"]}, ": nonlinearity.parameters=(): has length 0"),
    ({"nonlin": "nomodule:f", "of": ["h"]}, ".nonlin='nomodule:f': cannot be"),
    ({"nonlin": "numpy:sum", "of": ["h"]}, ": function=sum: returned shape (), not (2, 3)"),
    ({"nonlin": f"{__name__}:centred", "of": ["h"]}, ": function=centred: gives values that depend on the other coord"),
]
TABLES: list[tuple[dict[str, Any], str]] = [
    ({}, "program.lines=None: is missing"),
    ({"wights": [], "lines": [INITIAL]}, "program.wights=[]: is not known; use lines, weights"),
    ({"lines": "h"}, "program.lines='h': must be a list"),
    *(({"weights": [{"name": "W"}], "lines": [INITIAL, line]}, f"program.lines[2]{rest}") for line, rest in LINES),
]


@pytest.mark.parametrize(("fields", "start"), TABLES)
def test_impossible_tables_of_programs(fields: dict[str, Any], start: str) -> None:
    refused(lambda: ac.Program.from_dict(fields, trust=["nomodule", "numpy", __name__]), "^" + re.escape(start))
