"""AttentionLayer: errors, lossless dicts and TOML files; attention weights, against the definition."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck import AttentionLayer
from attncheck.layers.parts.attention_map import ATTENTION_MAPS
from attncheck.layers.parts.mask import MASKS
from attncheck.strategies import layers
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


def test_layer_is_frozen_and_hashable() -> None:
    layer = AttentionLayer(width=8)
    for field in dataclasses.fields(layer):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(layer, field.name, getattr(layer, field.name))
    assert {layer: 1}[AttentionLayer(width=8)] == 1
    assert len({layer, layer.replace(), layer.replace(width=9)}) == 2
    assert layer.width == 8
    assert hash(AttentionLayer(width=8, key_std=1)) == hash(layer)


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
