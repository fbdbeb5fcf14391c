"""Models over widths in every framework: the same taps by one body, and steps of the optimiser."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.imports import find
from attncheck.frameworks.models import ModelsAtWidths

# The batch of the steps, for maps of width 8 to one neuron.
INPUTS, RATE = np.random.default_rng(0).standard_normal((4, 8)), 0.1


def of_keras(dropout: float = 0.0) -> Callable[[int], Any]:
    keras: Any = pytest.importorskip("keras")

    class Block(keras.layers.Layer):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.attention = keras.layers.MultiHeadAttention(4, width // 4, dropout=dropout)
            self.norm, self.head = keras.layers.LayerNormalization(), keras.layers.Dense(8)

        def call(self, x: Any) -> Any:
            return self.head(self.norm(x + self.attention(x, x, use_causal_mask=True)))

    return Block


def of_linen() -> Callable[[int], Any]:
    nn: Any = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            mask = nn.make_causal_mask(x[..., 0])
            y = nn.MultiHeadDotProductAttention(num_heads=4, name="attention")(x, mask=mask)
            return nn.Dense(8, name="head")(nn.LayerNorm(name="norm")(x + y))

    return Block


def of_nnx() -> Callable[..., Any]:
    nnx: Any = pytest.importorskip("flax.nnx")
    from flax.linen import make_causal_mask

    class Block(nnx.Module):
        def __init__(self, width: int, rngs: Any) -> None:
            self.attention = nnx.MultiHeadAttention(4, width, rngs=rngs, decode=False)
            self.norm, self.head = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, 8, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(self.norm(x + self.attention(x, mask=make_causal_mask(x[..., 0]))))

    return Block


def of_torch(by_hand: bool) -> Callable[[int], Any]:
    pytest.importorskip("torch")
    from torch import nn

    from benchmarks.width_models import Attention, Recipe

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.attention = Attention(Recipe(mup=False, by_hand=by_hand), width)
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 8)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(x + self.attention(x)))

    return Block


def models_of(adapter: str, build: Callable[..., Any], **options: Any) -> ModelsAtWidths:
    """Return models over widths by the class of an adapter."""
    return ModelsAtWidths(find(f"attncheck.frameworks.{adapter}"), build, **options)


SCORES = ("scores", "weights")
DENSE = ("query_dense", "key_dense", "value_dense", *SCORES, "output_dense")
PLAIN = ("query", "key", "value", *SCORES, "out")
#: Adapters, models, taps in the attention module, and functions that taps replace.
MODELS: dict[str, tuple[str, Callable[[], Callable[..., Any]], tuple[str, ...], tuple[str, ...]]] = {
    "torch": ("torch:Torch", lambda: of_torch(False), PLAIN, ("torch.nn:functional.softmax",)),
    "torch by hand": ("torch:Torch", lambda: of_torch(True), PLAIN, ("torch:softmax",)),
    "linen": ("flax:Linen", of_linen, PLAIN, ("jax.nn:softmax", "jax.nn:dot_product_attention", "flax.linen:softmax")),
    "nnx": ("flax:NNX", of_nnx, PLAIN, ("flax.nnx:Linear.__call__",)),
    "keras": ("keras:Keras", of_keras, DENSE, ("keras:src.backend.nn.softmax", "keras:layers.Layer.__call__")),
    "keras dropout": ("keras:Keras", lambda: of_keras(0.1), (), ("keras:src.backend.nn.dot_product_attention",)),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_module_and_attention_is_tapped(name: str) -> None:
    """Scores are those of queries and keys, and hidden ones are left out."""
    adapter, make, parts, functions = MODELS[name]
    models = models_of(adapter, make())
    before = [*map(find, functions)]
    model = models.make(32, seed=0)
    taps = {name: tap for name, tap in model.taps().items() if not tap.same_as}
    assert before == [*map(find, functions)]
    assert not parts or [*taps] == [*(f"attention.{part}" for part in parts), "norm", "head"]
    kinds = {tap.kind: name for name, tap in taps.items() if tap.kind != "module"}
    assert {*kinds} == {"scores", "weights", "norm", "output"}
    assert (kinds["norm"], kinds["output"]) == ("norm", "head")
    assert kinds["scores"].startswith("attention.")
    suffix = "_dense" if "keras" in name else ""
    q, k = (taps[f"attention.{part}{suffix}"].values.reshape(-1, 16, 4, 8) for part in ("query", "key"))
    expected = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8)
    visible = np.tril(np.ones((16, 16), dtype=bool))
    scores, weights = (taps[kinds[kind]].values for kind in SCORES)
    assert np.isnan(scores[..., ~visible]).all()
    np.testing.assert_allclose(scores[..., visible], expected[..., visible], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.nansum(weights, axis=-1), 1.0, rtol=1e-5)
    parameters = {name: array.shape for name, array in model.weights().items()}
    assert parameters["head.weight" if "torch" in name else "head.kernel"] in ((32, 8), (8, 32))
    assert {"head", "norm"} <= {name.rpartition(".")[0] for name in parameters} <= {*taps, "attention"}
    again, other = (models.make(32, seed).taps()["head"].values for seed in (0, 1))
    np.testing.assert_array_equal(again, taps["head"].values)
    assert not np.array_equal(other, again)


def half_square(y: Any, x: Any) -> Any:
    return 0.5 * (y**2).sum()


def torch_map() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    return lambda width: torch.nn.Linear(width, 1, bias=False), lambda m: torch.optim.SGD(m.parameters(), lr=RATE)


def linen_map() -> tuple[Any, Any]:
    """A linear map times a frozen number, drawn per model."""
    nn: Any
    nn, optax, jax = (pytest.importorskip(name) for name in ("flax.linen", "optax", "jax"))

    class Fixed(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            factor = self.variable("frozen", "factor", lambda: jax.random.normal(self.make_rng("params"), ()))
            return factor.value * nn.Dense(1, use_bias=False)(x)

    return Fixed, lambda parameters: optax.sgd(RATE)


def nnx_map() -> tuple[Any, Any]:
    nnx: Any
    nnx, optax, jax = (pytest.importorskip(name) for name in ("flax.nnx", "optax", "jax"))

    class Fixed(nnx.Module):
        def __init__(self, width: int, rngs: Any) -> None:
            self.factor = nnx.Variable(jax.random.normal(rngs.params(), ()))
            self.map = nnx.Linear(width, 1, use_bias=False, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.factor[...] * self.map(x)

    return Fixed, lambda parameters: optax.sgd(RATE)


MAPS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch:Torch": (torch_map, lambda module: 1.0),
    "flax:Linen": (linen_map, lambda module: module.variables["frozen"]["factor"]),
    "flax:NNX": (nnx_map, lambda module: module.factor[...]),
}


@pytest.mark.parametrize("adapter", MAPS)
def test_steps_are_those_of_gradient_descent(adapter: str) -> None:
    """Steps on half a square of a map times a factor f take its outputs y to (1 - 0.1 f² X Xᵀ)ᵏ y."""
    make, factor_of = MAPS[adapter]
    build, optimizer = make()
    models = models_of(adapter, build, inputs=lambda width, rng: INPUTS, optimizer=optimizer, loss=half_square)
    factors = []
    for seed in range(3):
        model: Any = models.make(8, seed)
        factors.append(float(factor_of(model.module)))
        before = model.taps()["output"].values
        for _ in range(2):
            model.step()
        step = np.eye(4) - RATE * factors[-1] ** 2 * INPUTS @ INPUTS.T
        np.testing.assert_allclose(model.taps()["output"].values, step @ step @ before, rtol=1e-4, atol=1e-5)
    assert len({*factors}) == (1 if adapter == "torch:Torch" else 3)


# keras --------------------------------------------------------------------------------------------


def test_names_of_keras() -> None:
    """Attributes, or the order of layers at every width: names by keras count all layers ever made."""
    keras = pytest.importorskip("keras")
    from attncheck.frameworks.keras import named_layers

    model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(4)])
    assert list(named_layers(model)) == ["", "0", "1"]
    assert {"attention", "norm", "head"} < named_layers(of_keras()(16)).keys()

    def functional(width: int) -> Any:
        inputs = keras.Input((None, width))
        return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Dense(width)(inputs)))

    names = [list(models_of("keras:Keras", functional).make(width, 0).taps()) for width in (16, 32)]
    assert names[0] == names[1]
    assert {"dense_0", "dense_1"} <= {*names[0]}


def test_keras_draws_tokens_for_an_embedding() -> None:
    keras = pytest.importorskip("keras")
    models = models_of(
        "keras:Keras", lambda width: keras.Sequential([keras.layers.Embedding(50, width), keras.layers.Dense(4)])
    )
    taps = models.make(16, seed=0).taps().values()
    assert [tap.kind for tap in taps if not tap.same_as] == ["embedding", "output"]


def test_flax_draws_tokens_for_an_embedding() -> None:
    nn, nnx = pytest.importorskip("flax.linen"), pytest.importorskip("flax.nnx")
    models: dict[str, Callable[..., Any]] = {
        "flax:Linen": lambda width: nn.Sequential([nn.Embed(50, width), nn.Dense(4)]),
        "flax:NNX": lambda width, rngs: nnx.Sequential(
            nnx.Embed(50, width, rngs=rngs), nnx.Linear(width, 4, rngs=rngs)
        ),
    }
    for kind, build in models.items():
        (tokens,) = models_of(kind, build).make(16, seed=0).tensors
        assert "int" in str(tokens.dtype)
        assert 32 < tokens.max() < 50
    dense = models_of("flax:Linen", lambda width: nn.Dense(width)).make(16, seed=0)
    assert "float" in str(dense.tensors[0].dtype)


def test_keras_takes_steps_on_torch_only() -> None:
    keras = pytest.importorskip("keras")

    def optimizer(layer: Any) -> Any:
        return importlib.import_module("torch").optim.SGD(layer.parameters(), lr=0.1)

    if keras.backend.backend() != "torch":
        with pytest.raises(ac.InputError, match="takes steps only on torch, but keras runs on jax; set KERAS_BACKEND"):
            ac.widths(of_keras(), (16, 32, 64), optimizer=optimizer)
        return
    model = models_of("keras:Keras", of_keras(), optimizer=optimizer).make(16, seed=0)
    before = model.taps()["head"].values
    model.step()
    assert not np.array_equal(model.taps()["head"].values, before)
