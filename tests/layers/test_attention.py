"""AttentionLayer: errors, and lossless dicts and TOML files."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck import AttentionLayer, InputError
from attncheck.layers.attention import SCORE_SCALINGS
from attncheck.layers.inputs import ACTIVATIONS
from attncheck.layers.parts.attention_map import ATTENTION_MAPS
from attncheck.layers.parts.mask import MASKS
from attncheck.strategies import layers

NAN, INF = float("nan"), float("inf")
STDS = ("query_std", "key_std", "value_std", "output_std", "input_std")

IMPOSSIBLE: list[tuple[str, Any]] = [
    *((name, None) for name in ("width", "seq_len", "num_heads")),
    # BoolArray of NumPy are no numbers.
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
    *(("head_scaling", bad) for bad in (0, 1, None, "yes", 0.5)),
    *(("input_correlation", bad) for bad in (-0.1, -1e-300, 1.0000001, NAN, INF, -INF, True, "0.5", None)),
]


def assert_names(message: str, field: str, value: object) -> None:
    """Assert that a message is ``field=value: problem; remedy`` on one line."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    assert message.startswith(f"{field}={shown}: "), message
    problem, separator, remedy = message.removeprefix(f"{field}={shown}: ").partition("; ")
    assert problem, message
    assert separator, message
    assert len(remedy) > 10, message
    assert "\n" not in message


@pytest.mark.parametrize(("field", "value"), IMPOSSIBLE, ids=lambda x: str(x)[:20])
def test_impossible_values_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        AttentionLayer(**{"width": 8, "num_heads": 4, field: value})
    assert_names(str(caught.value), field, value)
    with pytest.raises(InputError) as caught:
        AttentionLayer(width=8, num_heads=4).replace(**{field: value})
    assert_names(str(caught.value), field, value)


def test_values_that_python_does_not_print_are_named() -> None:
    with pytest.raises(InputError, match=r"^position_std=<int>: is larger than any float; pass"):
        AttentionLayer(width=8, position_std=10**5_000)
    with pytest.raises(InputError, match=r"^width=<int>: is too large; pass"):
        AttentionLayer(width=10**5_000)
    with pytest.raises(InputError, match=r"^mask=\[0, 0, .*\.\.\.: is not known"):
        # Wrong type on purpose.
        AttentionLayer(width=8, mask=[0] * 500)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^mask=<list>: is not known"):
        # Wrong type on purpose.
        AttentionLayer(width=8, mask=[10**5_000])  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["score_scaling", "attention_map", "mask", "activation", "head_scaling"])
def test_arrays_are_no_choices(field: str) -> None:
    value: Any = np.eye(3)
    with pytest.raises(InputError, match=f"^{field}=array") as caught:
        AttentionLayer(**{"width": 8, field: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "field", "value", "said"),
    [
        ({"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads", 3, "num_heads=4"),
        ({"num_heads": 4, "num_kv_heads": 8}, "num_kv_heads", 8, "num_heads=4"),
        ({"num_heads": 1, "num_kv_heads": 2}, "num_kv_heads", 2, "divisor of num_heads"),
        ({"activation": "relu", "clip": 1.0}, "clip", 1.0, "activation='relu'"),
    ],
)
def test_impossible_combinations_are_refused(fields: dict[str, Any], field: str, value: object, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        AttentionLayer(width=8, **fields)
    assert_names(str(caught.value), field, value)


@pytest.mark.parametrize(
    ("choices", "field"),
    [
        (SCORE_SCALINGS, "score_scaling"),
        (ATTENTION_MAPS, "attention_map"),
        (MASKS, "mask"),
        (ACTIVATIONS, "activation"),
    ],
)
def test_refusal_of_a_choice_lists_all_choices(choices: tuple[str, ...], field: str) -> None:
    with pytest.raises(InputError) as caught:
        AttentionLayer.from_dict({"width": 8, field: "other"})
    assert all(repr(choice) in str(caught.value) for choice in choices)
    for choice in choices:
        assert getattr(AttentionLayer.from_dict({"width": 8, field: choice}), field) == choice


def test_defaults_are_appendix_a() -> None:
    layer = AttentionLayer(width=64)
    assert (layer.seq_len, layer.activation, layer.clip, layer.input_correlation) == (4, "clip", 100.0, 0.0)
    assert all(getattr(layer, name) == 1.0 for name in STDS)
    assert layer.head_scaling
    assert (layer.head_dim, layer.score_scaling, layer.mask) == (None, "1/sqrt(n)", "none")


def test_derived_quantities() -> None:
    full = AttentionLayer(width=64, num_heads=8, num_kv_heads=2)
    assert (full.head_width, full.kv_heads, full.group_size) == (64, 2, 4)
    assert full.head_factor == pytest.approx(8**-0.5)
    assert full.score_factor == 1.0
    low = full.replace(head_dim=16, score_scaling="1/n", head_scaling=False)
    assert (low.head_width, low.score_factor, low.head_factor) == (16, 0.25, 1.0)
    assert full.replace(score_scaling="1/n").score_factor == 0.125


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


def test_layer_is_frozen_and_hashable() -> None:
    layer = AttentionLayer(width=8)
    for field in dataclasses.fields(layer):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(layer, field.name, getattr(layer, field.name))
    assert {layer: 1}[AttentionLayer(width=8)] == 1
    assert len({layer, layer.replace(), layer.replace(width=9)}) == 2
    assert hash(AttentionLayer(width=8, key_std=1)) == hash(layer)


def test_replace_changes_a_copy() -> None:
    layer = AttentionLayer(width=8)
    assert layer.replace(mask="causal").mask == "causal"
    assert layer.mask == "none"
    with pytest.raises(InputError, match=r"changes\.mak='causal'.*did you mean 'mask'"):
        layer.replace(mak="causal")


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
@given(layers() | layers_of_any_size())
def test_dict_and_toml_lose_nothing(layer: AttentionLayer) -> None:
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
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
    ],
)
def test_broken_toml_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^" + said) as caught:
        AttentionLayer.from_toml(text)
    assert "\n" not in str(caught.value)
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as from_file:
        AttentionLayer.from_toml(path)
    assert str(from_file.value) == f"{path}: " + str(caught.value).removeprefix("layer: ")


def test_unreadable_toml_file_is_refused(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"[layer]\nwidth = 8 # \xe9\n")
    for path in (tmp_path / "none.toml", tmp_path, latin):
        with pytest.raises(InputError, match=r"cannot be read .*; pass a TOML file") as caught:
            AttentionLayer.from_toml(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 8, ["[layer]"]])
def test_what_is_no_text_or_table_is_refused(value: Any) -> None:
    for read, name in ((AttentionLayer.from_toml, "text"), (AttentionLayer.from_dict, "layer")):
        with pytest.raises(InputError) as caught:
            read(value)
        assert_names(str(caught.value), name, value)


def test_unknown_names_of_any_type_are_refused() -> None:
    with pytest.raises(InputError, match=r"layer\.1=2: is not a field"):
        # A non-text name must be refused.
        AttentionLayer.from_dict({"width": 8, 1: 2})  # type: ignore[dict-item]


@settings(max_examples=50)
@given(layers(), layers())
def test_descriptions_tell_layers_apart(one: AttentionLayer, other: AttentionLayer) -> None:
    assert (one.describe() == other.describe()) == (one == other)


def test_description() -> None:
    assert AttentionLayer(width=8).describe() == "n=8 s=4 H=2"
    layer = AttentionLayer(width=8, mask="causal", attention_map="relu", head_dim=2, activation="tanh", key_std=0.5)
    assert layer.describe() == "n=8 s=4 H=2 head_dim=2 attention_map=relu causal key_std=0.5 tanh"
