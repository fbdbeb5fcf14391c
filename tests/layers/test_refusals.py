"""What is no layer, stack or program is refused by a message that names field, value and remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck import AttentionLayer, AttentionStack, InputError, Program
from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.layers.attention import SCORE_SCALINGS
from attncheck.layers.inputs import ACTIVATIONS
from attncheck.layers.parts.attention_map import ATTENTION_MAPS
from attncheck.layers.parts.mask import MASKS

NAN, INF = float("nan"), float("inf")
# For functions whose values vary between calls.
SHARED = np.random.default_rng(0)
LAYER = AttentionLayer(width=8, seq_len=2, num_heads=2, clip=3.0)


def refused(call: Callable[[], object], pattern: str) -> str:
    """Assert that a call is refused on one line with a remedy, and return the message."""
    with pytest.raises(InputError, match=pattern) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message.partition("; ")[2]) >= 7
    return message


STDS = ("query_std", "key_std", "value_std", "output_std", "input_std")

IMPOSSIBLE: list[tuple[str, Any]] = [
    *((name, None) for name in ("width", "seq_len", "num_heads")),
    # Booleans of NumPy are no numbers.
    *(("width", np.bool_(True)), ("position_std", np.bool_(True)), ("clip", np.array(True))),
    *(
        (name, bad)
        for name in ("width", "seq_len", "num_heads", "head_dim", "num_kv_heads")
        for bad in (0, -1, True, False, 4.0, 2.5, NAN, INF, "4", b"4", [4], np.float64(4))
    ),
    *(
        (name, bad)
        for name in (*STDS, "clip")
        for bad in (0, 0.0, 1e-200, 1e200, -1.0, NAN, INF, -INF, True, "1", b"1", None, [1.0], 1j, 10**400)
    ),
    *(
        (name, bad)
        for name in ("score_scaling", "attention_map", "mask", "activation")
        for bad in ("", "no such", None, 1, True, b"none", ["none"], "Softmax", "CLIP")
    ),
    *((name, np.eye(3)) for name in ("score_scaling", "attention_map", "mask", "activation", "head_scaling")),
    *(("head_scaling", bad) for bad in (0, 1, None, "yes", 0.5)),
    *(("input_correlation", bad) for bad in (-0.1, -1e-300, 1.0000001, NAN, INF, -INF, True, "0.5", None)),
]


@pytest.mark.parametrize(("field", "value"), IMPOSSIBLE, ids=lambda x: str(x)[:20].split("\n")[0])
def test_impossible_values(field: str, value: Any) -> None:
    text = " ".join(repr(value).split())
    start = f"^{field}={re.escape(text if len(text) <= 80 else text[:77])}"
    refused(lambda: AttentionLayer(**{"width": 8, "num_heads": 4, field: value}), start)
    refused(lambda: AttentionLayer(width=8, num_heads=4).replace(**{field: value}), start)


@pytest.mark.parametrize(
    ("choices", "field"),
    [
        (SCORE_SCALINGS, "score_scaling"),
        (ATTENTION_MAPS, "attention_map"),
        (MASKS, "mask"),
        (ACTIVATIONS, "activation"),
    ],
)
def test_all_choices_are_listed(choices: tuple[str, ...], field: str) -> None:
    message = refused(lambda: AttentionLayer.from_dict({"width": 8, field: "other"}), f"^{field}='other'")
    assert all(repr(choice) in message for choice in choices)
    for choice in choices:
        assert getattr(AttentionLayer.from_dict({"width": 8, field: choice}), field) == choice


def nan_beyond_4(scores: FloatArray, visible: BoolArray) -> FloatArray:
    """Return scores, and NaN for large ones."""
    return np.where(np.abs(scores) > 4.0, np.nan, scores)


LAYERS: list[tuple[dict[str, Any], str]] = [
    ({"num_heads": 4, "num_kv_heads": 3}, "^num_kv_heads=3: .*num_heads=4"),
    ({"num_heads": 4, "num_kv_heads": 8}, "^num_kv_heads=8: .*num_heads=4"),
    ({"num_heads": 1, "num_kv_heads": 2}, "^num_kv_heads=2: .*divisor of num_heads"),
    ({"activation": "relu", "clip": 1.0}, r"^clip=1\.0: .*activation='relu'"),
    # Values that Python does not print.
    ({"position_std": 10**5_000}, "^position_std=<int>: is larger than any float; pass"),
    ({"width": 10**5_000}, "^width=<int>: is too large; pass"),
    ({"mask": [0] * 500}, r"^mask=\[0, 0, .*\.\.\.: is not known"),
    ({"mask": [10**5_000]}, "^mask=<list>: is not known"),
    ({"window": 0}, r"window=0: must be at least 1"),
    ({"window": 1.5}, r"window=1\.5"),
    ({"softcap": -1.0}, r"softcap=-1\.0"),
    ({"sink": 1e9}, r"sink=1000000000\.0"),
    ({"sink": 0.0, "attention_map": "relu"}, r"sink=0\.0: belongs to softmax"),
    ({"mask": lambda i, j: (SHARED.random(i.shape) < 0.5) | (i == j)}, "varies between calls"),
    ({"mask": ".module:f"}, "cannot be imported"),
    ({"attention_map": f"{__name__}:nan_beyond_4"}, "not finite"),
    ({"attention_map": lambda p, visible: p * 1j}, "returned complex128"),
    ({"bias_slopes": np.ones((2, 2))}, "is not known"),
    ({"bias_slopes": "steep"}, r"bias_slopes='steep': is not known"),
    ({"bias_slopes": (1.0,)}, "are 1 slopes for num_heads=2"),
    ({"bias_slopes": (1.0, np.nan)}, "bias_slopes=nan"),
    ({"bias_std": -1.0}, r"bias_std=-1\.0"),
    ({"bias_std": 1.0, "softcap": 1.0}, "not supported with a position bias"),
    ({"qk_norm": True, "head_dim": 1}, "two score values if heads have one neuron"),
    ({"qk_norm": 2}, "qk_norm=2: must be a boolean"),
    ({"qk_norm": True, "tied_query_key": True, "score_scaling": "1/n"}, "not supported with tied_query_key"),
    ({"mask": "window"}, r"mask='window': is not known; use one of 'none', 'causal', or pass"),
    ({"mask": lambda i, j: i > j}, "hides position 0 from itself"),
    ({"mask": lambda i, j: 1.0 * (i >= j)}, "returned float64"),
    ({"mask": lambda i, j: np.True_}, "returned bool of shape"),
    ({"mask": lambda i, j: 1 / 0}, "raised ZeroDivisionError"),
    ({"attention_map": lambda p, visible: p.sum()}, "returned shape"),
    ({"attention_map": lambda p, visible: p / 0.0 * np.inf}, "not finite"),
    ({"attention_map": lambda p, visible: p - p.mean()}, "depend on other rows"),
    ({"attention_map": lambda p, visible: p - p.mean(axis=-1, keepdims=True)}, "not visible"),
    ({"attention_map": "no.such.module:f"}, "cannot be imported"),
    ({"norm": "batch"}, "norm="),
    ({"norm": True}, "norm="),
    ({"norm": "layer", "width": 1}, "norm="),
    ({"rotary_base": 1.0, "head_dim": 4}, "rotary_base="),
    ({"rotary_base": np.nan, "head_dim": 4}, "rotary_base="),
    ({"rotary_base": 10.0, "head_dim": 3}, "rotary_base="),
    ({"rotary_base": 10.0}, "rotary_base="),
    ({"rotary_base": 10.0, "head_dim": 4, "tied_query_key": True, "score_scaling": "1/n"}, "rotary_base="),
    ({"position_std": -1.0}, "position_std="),
    ({"position_std": 1e-9}, "position_std="),
    ({"position_std": np.nan}, "position_std="),
    ({"position_reach": 2.0}, "position_reach="),
    ({"position_std": 1.0, "position_reach": 0.0}, "position_reach="),
    ({"position_std": 1.0, "position_reach": 3.0, "input_correlation": 1.0}, "position_reach="),
    ({"tied_query_key": 1}, "tied_query_key="),
    ({"tied_query_key": True}, "tied_query_key="),
    ({"tied_query_key": True, "score_scaling": "1/n", "key_std": 2.0}, "key_std="),
    ({"tied_query_key": True, "score_scaling": "1/n", "num_kv_heads": 1}, "num_kv_heads="),
]


@pytest.mark.parametrize(("fields", "pattern"), LAYERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_impossible_layers(fields: dict[str, Any], pattern: str) -> None:
    refused(lambda: ac.simulate(AttentionLayer(**{"width": 8, **fields}), 1), pattern)


TEXTS = [
    ("", r"layer: has no \[layer\] table; write \[layer\]"),
    ("width = 8", r"layer: has no \[layer\] table"),
    ("[[layer]]\nwidth = 8", r"layer: has no \[layer\] table"),
    ("[layer]\nwidth =", "layer: not TOML .*; write a"),
    ("[layer\nwidth = 8", "layer: not TOML .*line 1.*write a"),
    ("layer.toml", "layer: not TOML"),
    ("[layer]", "width=None: is missing; add width"),
    ("[layer]\nwidth = 8\nheads = 2", r"layer\.heads=2: is not a field .*; did you mean 'num_heads'"),
    ("[layer]\nwidth = 8\nzzz = 1", r"layer\.zzz=1: is not a field .*; use one of width, seq_len"),
    ("[layer]\nwidth = 8\nkey_std = inf", "key_std=inf: must be finite; pass"),
    ("[layer]\nwidth = 8\nmask = 1979-05-27", "mask=.*: is not known; use one of"),
    ("[layer]\nwidth = 8\nclip = 1979-05-27", "clip=.*: must be a number; pass"),
    ("[layer]\nwidth = 8\n[layer.mask]\na = 1", "mask={'a': 1}: is not known; use one of"),
]


@pytest.mark.parametrize(("text", "pattern"), TEXTS)
def test_broken_toml(text: str, pattern: str, tmp_path: Path) -> None:
    message = refused(lambda: AttentionLayer.from_toml(text), "^" + pattern)
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    from_file = refused(lambda: AttentionLayer.from_toml(path), f"^{path}: ")
    assert from_file == f"{path}: " + message.removeprefix("layer: ")


def test_unreadable_toml_files(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"[layer]\nwidth = 8 # \xe9\n")
    for path in (tmp_path / "none.toml", tmp_path, tmp_path / "latin.toml"):
        refused(partial(AttentionLayer.from_toml, path), f"^{path}: .*cannot be read .*; pass a TOML file")


STACKS: list[tuple[dict[str, Any], str]] = [
    ({"layer": "n=8"}, r"layer='n=8': is not an AttentionLayer; pass"),
    ({"depth": 0}, r"depth=0: must be at least 1; pass the number of layers"),
    ({"depth": 1_001}, r"depth=1001: must be at most 1000; pass the number of layers"),
    ({"depth": 10**12}, r"depth=10+: must be at most 1000; pass the number of layers"),
    ({"depth": 2.5}, r"depth=2\.5: must be a whole number; pass"),
    ({"depth": float("nan")}, r"depth=nan: must be a whole number; pass"),
    ({"activations": "gelu"}, r"activations='gelu': is not known; use one of"),
    ({"activations": ("relu",)}, r"activations=\('relu',\): must be one name, or 3, one for each layer; pass"),
    ({"activations": 7}, r"activations=7: is neither a name nor a list of names; pass"),
    ({"residual": 1}, r"residual=1: must be a boolean; pass"),
    ({"post_norm": "batch"}, r"post_norm='batch'"),
    ({"layer": LAYER.replace(width=1), "post_norm": "layer"}, r"post_norm='layer': makes a single neuron 0"),
    ({"mlp": "tanh"}, "mlp="),
    ({"mlp_ratio": 2}, "mlp"),
    ({"mlp_std": 2.0}, "mlp"),
    ({"mlp": "relu", "mlp_ratio": 0}, "mlp_ratio="),
    ({"mlp": "relu", "mlp_std": 0}, "mlp_std="),
    ({"layer": LAYER.replace(head_dim=4, rotary_base=10.0)}, ".*rotary_base"),
]


@pytest.mark.parametrize(("fields", "pattern"), STACKS)
def test_impossible_stacks(fields: dict[str, Any], pattern: str) -> None:
    refused(lambda: AttentionStack(**{"layer": LAYER, "depth": 3, **fields}), "^" + pattern)


def first_row(vector: FloatArray, score: FloatArray, *others: FloatArray) -> FloatArray:
    return vector * score


class Written:
    """A small program, and lines and a weight of another."""

    def __init__(self) -> None:
        self.program = Program()
        self.W = self.program.weight("W")
        self.low = self.program.weight("L", rows=3)
        self.h = self.program.initial("h")
        self.g = self.program.matmul(self.W, self.h)
        self.short = self.program.matmul(self.low, self.h, "short")
        self.p = self.program.score(self.g, self.g)
        other = Program()
        self.foreign_weight = other.weight("W")
        self.foreign = other.matmul(self.foreign_weight, other.initial("z"), "foreign")
        self.foreign_score = other.score(self.foreign, self.foreign, name="fp")


def in_place(vector: FloatArray) -> FloatArray:
    """Return the ReLU, written into its input."""
    return np.maximum(vector, 0.0, out=vector)


def two(written: Written, cov: Any) -> object:
    """Add two initial vectors of this covariance."""
    return written.program.initials(["y", "z"], [0, 0], cov)


PROGRAMS: list[tuple[Callable[[Written], object], str]] = [
    (lambda w: w.program.matmul(w.W, w.foreign), "node='foreign': is not a line of this"),
    (lambda w: w.program.matmul(w.foreign_weight, w.h), "weight=.*not a weight of this"),
    (lambda w: w.program.matmul(w.W, w.p), "vector='p1': is a score"),
    (lambda w: w.program.matmul(w.W, w.short), "weight='W': has n columns, but short has 3"),
    (lambda w: w.program.matmul(w.W, "h"), "node='h': is not a line of a program"),  # type: ignore[arg-type]  # wrong on purpose
    (lambda w: w.program.nonlin(np.tanh, w.g, w.foreign), "node='foreign': is not a line"),
    (lambda w: w.program.nonlin(np.tanh, w.p), "vectors='p1': is a score, not a vector"),
    (lambda w: w.program.nonlin(np.add, w.g, w.short), "vectors='short': differs in size"),
    (lambda w: w.program.nonlin(np.tanh), r"vectors=\(\): .*at least one vector"),
    (lambda w: w.program.nonlin(np.tanh, 3), "node=3: is not a line of a program"),  # type: ignore[arg-type]  # wrong on purpose
    (lambda w: w.program.nonlin(in_place, w.g), "function=in_place: .*read-only.*not change them"),
    (lambda w: w.program.output(in_place, [w.g], []), "function=in_place: .*read-only.*not change"),
    (lambda w: w.program.score(w.g, w.h), "score='h': is not the output of a MatMul"),
    (lambda w: w.program.score(w.p, w.g), "score='p1': is not the output of a MatMul"),
    (lambda w: w.program.score(w.g, w.short), "vectors='short': differs in size"),
    (lambda w: w.program.score(w.g, w.foreign), "node='foreign': is not a line of this"),
    (lambda w: w.program.score(w.g, None), "node=None: is not a line of a program"),  # type: ignore[arg-type]  # wrong on purpose
    (lambda w: w.program.score(w.g, w.g, math.nan), "factor=nan: must be finite"),
    (lambda w: w.program.output(first_row, [w.p], [w.p]), "vectors='p1': is a score"),
    (lambda w: w.program.output(first_row, [w.g], [w.h]), "scores='h': is a vec"),
    (lambda w: w.program.output(first_row, [w.g], [w.foreign_score]), "node='fp': is not"),
    (lambda w: w.program.output(first_row, [], [w.p]), r"vectors=\(\): "),
    (lambda w: w.program.matmul(w.W, w.g, "h"), "name='h': is the name of another line"),
    (lambda w: w.program.weight("W"), "name='W': is the name of another weight"),
    (lambda w: w.program.weight("N", rows=0), "rows=0: must be at least 1"),
    (lambda w: w.program.weight("N", columns=0.5), "columns=0.5: must be a whole"),  # type: ignore[arg-type]  # wrong on purpose
    (lambda w: w.program.weight("N", -1.0), "std=-1.0: must be at least 0"),
    (lambda w: w.program.initial("z", std=-1.0), "std=-1.0: must be at least 0"),
    (lambda w: w.program.initial("z", mean=math.nan), "mean=nan: must be finite"),
    (lambda w: w.program.initials(["z"], [], [[1.0]]), r"cov=\(1, 1\): must be \(1, 1\), with a mean"),
    (lambda w: w.program.initials(["y", "z"], [0, math.nan], np.eye(2)), "mean=nan"),
    (lambda w: two(w, [1.0, 1.0]), r"cov=\(2,\): must be \(2, 2\)"),
    (lambda w: two(w, [[1, 0.5], [0, 1]]), "cov=.*symmetric"),
    (lambda w: two(w, [[1, 2], [2, 1]]), "cov=.*negative"),
    (lambda w: w.program.initials(["z"], [0], [[math.inf]]), "cov=.*must be finite"),
    (lambda w: two(w, [[1], [2, 1]]), "cov=.*matrix of numbers"),
    (lambda w: w.program.initials(["z"], [0], [["one"]]), "cov=.*matrix of numbers"),
]


@pytest.mark.parametrize(("write", "pattern"), PROGRAMS)
def test_impossible_lines_leave_the_program_as_it_was(write: Callable[[Written], object], pattern: str) -> None:
    written = Written()
    before = repr(written.program)
    refused(lambda: write(written), pattern)
    assert repr(written.program) == before


def centred(x: FloatArray) -> FloatArray:
    return np.asarray(x - x.mean(axis=-1, keepdims=True))


def lines(*rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"weights": [{"name": "W"}], "lines": [{"initial": ["h"]}, *rows], **fields}


TABLES: list[tuple[dict[str, Any], str]] = [
    ({}, "program.lines=None: is missing"),
    (lines(wights=[]), "program.wights=[]: is not known; use lines, weights"),
    ({"lines": "h"}, "program.lines='h': must be a list"),
    (lines({"matmull": "W"}), "program.lines[2]={'matmull': 'W'}: must be a table with one of initial"),
    (lines({"matmul": "V", "of": "h"}), "program.lines[2].matmul='V': is not known; use one of 'W'"),
    (lines({"matmul": "W", "of": "g"}), "program.lines[2].matmul='g': is not the name of an earlier"),
    (lines({"matmul": "W", "of": "h", "std": 1}), "program.lines[2].std=1: is not known"),
    (lines({"matmul": "W"}), "program.lines[2].of=None: is missing"),
    (lines({"score": ["h", "h", "h"]}), "program.lines[2].score=['h', 'h', 'h']: must name two"),
    (lines({"nonlin": "reluu", "of": ["h"]}), "program.lines[2].nonlin.name='reluu': is not known"),
    (
        lines({"nonlin": {"name": "clip", "parameters": []}, "of": ["h"]}),
        "program.lines[2].nonlin.parameters=[]: does not fit clip",
    ),
    (lines({"nonlin": "nomodule:f", "of": ["h"]}), "program.lines[2].nonlin='nomodule:f': cannot be"),
    (
        {"lines": [{"initial": ["h"], "cov": [[-1.0]]}]},
        "program.lines[1]: cov=[[-1.0]]: has a negative eigenvalue",
    ),
    (
        lines({"nonlin": "numpy:sum", "of": ["h"]}),
        "program.lines[2]: function=sum: returned shape (), not (2, 3)",
    ),
    (
        lines({"nonlin": f"{__name__}:centred", "of": ["h"]}),
        "program.lines[2]: function=centred: gives values that depend on the other coordinates",
    ),
    (
        lines({"nonlin": "numpy:matmul", "of": ["h"]}),
        "program.lines[2]: function=matmul: cannot be called with 1 arrays",
    ),
]


@pytest.mark.parametrize(("fields", "start"), TABLES)
def test_impossible_tables_of_programs(fields: dict[str, Any], start: str) -> None:
    refused(lambda: Program.from_dict(fields, trust=["nomodule", "numpy", __name__]), "^" + re.escape(start))


def added() -> Program:
    program = Program()
    program.nonlin(lambda x: x + 1.0, program.initial("h"))
    return program


#: Wrong types among them, on purpose.
CALLS: list[tuple[Callable[[], object], str]] = [
    *((lambda value=value: AttentionLayer.from_toml(value), "^text=") for value in (None, 8, ["[layer]"])),
    *((lambda value=value: AttentionLayer.from_dict(value), "^layer=") for value in (None, 8, ["[layer]"])),
    (lambda: AttentionLayer.from_dict({"width": 8, 1: 2}), r"^layer\.1=2: is not a field"),  # type: ignore[dict-item]  # wrong on purpose
    (lambda: LAYER.replace(mak="causal"), r"^changes\.mak='causal'.*did you mean 'mask'"),
    (lambda: AttentionStack(layer=LAYER, depth=2).replace(width=3), r"^changes\.width=3: is not a field"),
    (
        lambda: AttentionStack(layer=LAYER, depth=2, activations=("relu", "tanh")).replace(depth=3),
        r"^activations=\('relu', 'tanh'\): must be one name, or 3",
    ),
    (lambda: Program.from_dict(added().to_dict()), "was a local function, which cannot be imported"),
    (lambda: AttentionLayer.from_dict(LAYER.replace(mask=lambda i, j: i >= j).to_dict()), "local function"),
]


@pytest.mark.parametrize(("call", "pattern"), CALLS)
def test_impossible_calls(call: Callable[[], object], pattern: str) -> None:
    refused(call, pattern)
