"""flax models over widths: linen and nnx have the same taps, and changes come from the optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attncheck as ac

pytest.importorskip("flax")

import flax.linen as nn
import jax
import optax
from flax import nnx

from attncheck.frameworks.flax import NNX
from attncheck.frameworks.flax import Linen as LinenAdapter
from attncheck.frameworks.models import ModelsAtWidths

from .descent import INPUTS, RATE, assert_descends, half_square

WIDTHS = (16, 32, 64, 128)


class Linen(nn.Module):
    width: int
    causal: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = nn.make_causal_mask(x[..., 0]) if self.causal else None
        y = nn.MultiHeadDotProductAttention(num_heads=4, name="attention")(x, mask=mask)
        return nn.Dense(8, name="head")(nn.LayerNorm(name="norm")(x + y))


class Twin(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(4, width, rngs=rngs, decode=False)
        self.norm, self.head = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, 8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.norm(x + self.attention(x)))


LINEN, TWIN = ModelsAtWidths(LinenAdapter, Linen), ModelsAtWidths(NNX, Twin)


def test_every_module_and_attention_is_tapped() -> None:
    expected = [f"attention.{name}" for name in ("query", "key", "value", "scores", "weights", "out")]
    for models in (LINEN, TWIN):
        taps = models.make(32, seed=0).taps()
        assert list(taps) == [*expected, "norm", "head"]
        assert [taps[name].kind for name in ("attention.scores", "norm", "head")] == ["scores", "norm", "output"]
        q, k = (taps[f"attention.{name}"].values for name in ("query", "key"))
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8)
        np.testing.assert_allclose(taps["attention.scores"].values, scores, rtol=1e-4, atol=1e-5)


def test_parameters_have_the_names_of_their_taps() -> None:
    for models in (LINEN, TWIN):
        model = models.make(32, seed=0)
        shapes = {name: array.shape for name, array in model.weights().items()}
        assert shapes["head.kernel"] == (32, 8)
        assert {name.rpartition(".")[0] for name in shapes} <= set(model.taps())


def test_what_is_masked_is_left_out() -> None:
    models = ModelsAtWidths(LinenAdapter, lambda width: Linen(width, causal=True))
    scores = models.make(16, seed=0).taps()["attention.scores"].values
    assert np.array_equal(np.isnan(scores[0, 0]), ~np.tril(np.ones((16, 16), dtype=bool)))


def test_functions_of_jax_are_as_they_were() -> None:
    own = jax.nn.softmax, jax.nn.dot_product_attention, nn.softmax, nnx.Linear.__call__
    for models in (LINEN, TWIN):
        models.make(16, seed=0).taps()
    assert own == (jax.nn.softmax, jax.nn.dot_product_attention, nn.softmax, nnx.Linear.__call__)


def descending(kind: Any, build: Any) -> ModelsAtWidths:
    return ModelsAtWidths(
        kind,
        build,
        inputs=lambda width, rng: INPUTS,
        optimizer=lambda parameters: optax.sgd(RATE),
        loss=half_square,
    )


def linear(width: int, rngs: nnx.Rngs) -> Any:
    return nnx.Linear(width, 1, use_bias=False, rngs=rngs)


@pytest.mark.parametrize(
    ("kind", "build"),
    [(LinenAdapter, lambda width: nn.Dense(1, use_bias=False)), (NNX, linear)],
    ids=["linen", "nnx"],
)
def test_a_step_is_one_of_the_optimiser_on_the_same_batch(kind: Any, build: Any) -> None:
    assert_descends(descending(kind, build).make(8, seed=0), steps=2)


class Fixed(nn.Module):
    """A linear map times a frozen number, drawn per model."""

    width: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        factor = self.variable("frozen", "factor", lambda: jax.random.normal(self.make_rng("params"), ()))
        return factor.value * nn.Dense(1, use_bias=False)(x)


class FixedTwin(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.factor = nnx.Variable(jax.random.normal(rngs.params(), ()))
        self.map = nnx.Linear(width, 1, use_bias=False, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.factor[...] * self.map(x)


@pytest.mark.parametrize(("kind", "build"), [(LinenAdapter, Fixed), (NNX, FixedTwin)])
def test_models_of_one_width_train_with_their_own_frozen_variables(kind: Any, build: Any) -> None:
    models, factors = descending(kind, build), []
    for seed in range(3):
        model = models.make(8, seed)
        factors.append(
            float(model.module.variables["frozen"]["factor"] if kind is LinenAdapter else model.module.factor[...])
        )
        assert_descends(model, factor=factors[-1])
    assert len(set(factors)) == 3


def test_right_and_wrong_models_are_told() -> None:
    """Scores over √d: right in the standard parametrisation, wrong in μP."""
    found = ac.widths(Linen, WIDTHS)
    assert not found.violated
    assert found["attention.query"].verdict == "consistent"
    wrong = ac.widths(Twin, WIDTHS, {"scores": -0.5, "*": 0})
    assert [row.name for row in wrong.violated] == ["attention.scores"]


def test_changes_are_measured() -> None:
    found = ac.widths(Linen, WIDTHS, "mup", optimizer=lambda parameters: optax.adam(1e-2), steps=1, seeds=4)
    assert {row.steps for row in found.rows} == {0, 1}
    # A constant learning rate of hidden matrices: their outputs change as the width in the limit, and at these widths
    # with an exponent of 0.77, whose standard deviation over seeds is 0.03.
    moved = next(row for row in found.rows if row.name == "attention.query" and row.steps)
    assert moved.verdict == "violated"
    assert moved.exponent is not None
    assert 0.5 < moved.exponent < 1.1
