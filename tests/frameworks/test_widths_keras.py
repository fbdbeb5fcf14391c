"""keras models over widths, on the current backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.errors import InputError

pytest.importorskip("keras")

import keras

from attncheck.frameworks.keras import Keras, named_layers
from attncheck.frameworks.models import ModelsAtWidths

WIDTHS = (16, 32, 64, 128)
ON_TORCH = keras.backend.backend() == "torch"


class Block(keras.layers.Layer):
    def __init__(self, width: int, causal: bool = False, heads: Any = keras.layers.MultiHeadAttention) -> None:
        super().__init__()
        self.attention = heads(num_heads=4, key_dim=width // 4)
        self.norm, self.head = keras.layers.LayerNormalization(), keras.layers.Dense(8)
        self.causal = causal

    def call(self, x: Any) -> Any:
        return self.head(self.norm(x + self.attention(x, x, use_causal_mask=self.causal)))


def taps_of(**options: Any) -> Any:
    return ModelsAtWidths(Keras, lambda width: Block(width, **options)).make(32, seed=0).taps()


def test_parameters_have_the_names_of_their_taps() -> None:
    model = ModelsAtWidths(Keras, Block).make(32, seed=0)
    shapes = {name: array.shape for name, array in model.weights().items()}
    assert shapes["head.kernel"] == (32, 8)
    assert {name.rpartition(".")[0] for name in shapes} & set(model.taps()) >= {"head", "norm"}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_every_layer_and_attention_is_tapped(dropout: float) -> None:
    """With dropout, keras takes another path through attention."""

    def heads(**sizes: int) -> Any:
        return keras.layers.MultiHeadAttention(**sizes, dropout=dropout)

    taps = taps_of(heads=heads)
    if not dropout:
        parts = ("query_dense", "key_dense", "value_dense", "scores", "weights", "output_dense")
        assert list(taps) == [*(f"attention.{part}" for part in parts), "norm", "head"]
    named = {name: tap.kind for name, tap in taps.items() if tap.kind != "module"}
    scores, weights = (name for name, kind in named.items() if kind in ("scores", "weights"))
    assert scores.startswith("attention.")
    assert weights.startswith("attention.")
    assert (named["norm"], named["head"]) == ("norm", "output")
    q, k = (taps[f"attention.{name}_dense"].values for name in ("query", "key"))
    expected = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8)
    np.testing.assert_allclose(taps[scores].values, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(taps[weights].values.sum(axis=-1), 1.0, rtol=1e-5)


def test_what_is_masked_is_left_out() -> None:
    taps = taps_of(causal=True)
    (scores,) = (tap.values for tap in taps.values() if tap.kind == "scores")
    assert np.array_equal(np.isnan(scores[0, 0]), ~np.tril(np.ones((16, 16), dtype=bool)))


def test_models_draw_anew_and_come_again() -> None:
    models = ModelsAtWidths(Keras, Block)
    one, again, other = (models.make(16, seed).taps() for seed in (0, 0, 1))
    for name, tap in one.items():
        np.testing.assert_array_equal(tap.values, again[name].values)
    assert not np.array_equal(one["head"].values, other["head"].values)


def test_names_are_attributes() -> None:
    """Names by keras count all layers ever made."""
    model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(4)])
    assert list(named_layers(model)) == ["", "0", "1"]
    assert {"attention", "norm", "head"} < named_layers(Block(16)).keys()


def test_a_functional_model_has_the_same_names_at_every_width() -> None:
    def build(width: int) -> Any:
        given = keras.Input((None, width))
        return keras.Model(given, keras.layers.Dense(4)(keras.layers.Dense(width)(given)))

    models = ModelsAtWidths(Keras, build)
    names = [list(models.make(width, 0).taps()) for width in (16, 32)]
    assert names[0] == names[1]
    assert {"dense_0", "dense_1"} <= set(names[0])


def test_keras_is_as_it_was() -> None:
    from keras.src import backend

    before = backend.nn.softmax, backend.nn.dot_product_attention, keras.layers.Layer.__call__
    taps_of()
    assert (backend.nn.softmax, backend.nn.dot_product_attention, keras.layers.Layer.__call__) == before


def test_a_fixed_scale_is_violated_where_it_is() -> None:
    def fixed(width: int) -> Any:
        block = Block(width)
        block.head = keras.layers.Dense(8, kernel_initializer=keras.initializers.RandomNormal(stddev=0.02))
        return block

    right = {"head": (-0.1, 0.1), "*": "standard"}
    assert not ac.widths(lambda width: Block(width), WIDTHS, {**right, "head": "at most 0"}).violated
    assert [row.name for row in ac.widths(fixed, WIDTHS, right).violated] == ["head"]


def test_tokens_are_drawn_for_an_embedding() -> None:
    def model(width: int) -> Any:
        return keras.Sequential([keras.layers.Embedding(50, width), keras.layers.Dense(4)])

    taps = ModelsAtWidths(Keras, model).make(16, seed=0).taps()
    assert [tap.kind for tap in taps.values()] == ["embedding", "output"]


def test_steps_are_taken_on_torch() -> None:
    def optimizer(layer: Any) -> Any:
        import torch

        return torch.optim.SGD(layer.parameters(), lr=0.1)

    if not ON_TORCH:
        with pytest.raises(InputError, match="takes steps only on torch, but keras runs on jax; set KERAS_BACKEND"):
            ac.widths(Block, WIDTHS, optimizer=optimizer)
        return
    model = ModelsAtWidths(Keras, Block, optimizer=optimizer).make(16, seed=0)
    before = model.taps()["head"].values
    model.step()
    assert not np.array_equal(model.taps()["head"].values, before)
    found = ac.widths(Block, WIDTHS, {"*": {"init": None, "change": "at most 5"}}, optimizer=optimizer, seeds=4)
    assert {row.steps for row in found.rows} >= {1, 2}
