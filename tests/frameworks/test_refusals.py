"""What cannot be inspected is refused on one line, with a remedy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck.frameworks.trace import Trace
from tests.refusals import refused

from .numpy_layers import Array, Plain

pytest.importorskip("torch")
pytest.importorskip("jax")

import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from .torch_layers import Own, by_hand, multi_head

keras: Any = pytest.importorskip("keras")
eqx: Any = pytest.importorskip("equinox")
linen: Any = pytest.importorskip("flax.linen")


class Unwatched(Plain):
    def run(self, state: Any, x: Array, trace: Trace, path: str = "") -> Array:
        return super().run(state, x, Trace())


class InTurn(Own):
    def forward(self, x: Any) -> Any:
        return torch.cat([super(InTurn, self).forward(sequence[None]) for sequence in x])


class Crossed(Own):
    """Keys and values of other vectors than the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.randn(1, 5, 64))

    def projected(self, x: Any) -> tuple[Any, ...]:
        return (super().projected(x)[0], *super().projected(self.memory)[1:])


class Mean(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(64)(x + x.mean(axis=1, keepdims=True))


def failing(x: Array) -> Array:
    raise RuntimeError("no kernel\nfor this")


def five_keys(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    ones = np.ones((len(q), 4, 5, 16))
    return q, ones, ones


def one_position_at_a_time(q: Any, k: Any, v: Any) -> Any:
    return torch.cat([by_hand(q[:, :, [i]], k, v) for i in range(q.shape[2])], 2)


def unset() -> Any:
    module = Own()
    nn.init.constant_(module.o.weight, torch.nan)
    return module


class Windows(nn.Module):
    """Attention within halves of the sequence, which are folded into the batch."""

    def forward(self, x: Any) -> Any:
        halves = x.reshape(2 * len(x), -1, x.shape[-1])
        return nn.functional.scaled_dot_product_attention(halves, halves, halves).reshape(x.shape)


def token(x: Any) -> Any:
    return torch.cat([torch.ones_like(x[:, :1]), x], 1)


def fewer_keys(q: Any, k: Any, v: Any) -> Any:
    return nn.functional.scaled_dot_product_attention(q, k[:, :, ::2], v[:, :, ::2])


def attention_of_equinox(key: Any) -> Any:
    return eqx.nn.MultiheadAttention(4, 64, key=key)


SAMPLING = "test it by sampling"
SEPARATE = "attentions=2: have separate outputs; inspect each one in a sep"
NO_OUTPUT = "call=None: is not an output array; return the outputs"
META = "make=.*meta.*: is a device that holds no numbers; make the mod"
NO_FUNCTION = "make: failed with TypeError: .*; pass a function that returns a new mod"
NAN = "output=nan: .* finite; mend the forward pass: all param"
INPUTS = "inputs=None: are unknown for a model of class Dense"
TOKENS = "has 4 rows for 3 positions, as if tokens or padding were added inside"
NO_PRODUCT = "its forward pass has no attention that is recognised: no product of weights and values"
FLEX = f"call='flex_attention': is a single PyTorch operation, which cannot be inspected; .*{SAMPLING}"
ONE_LINE = r"call: failed on inputs of shape \(2, 2, 64\) with RuntimeError: no kernel for this"
EQUINOX = "make='equinox': is not a module of torch, flax, keras; return one, or pass w"
#: Functions that make layers, messages, and options of the inspection.
REFUSED: dict[str, tuple[Any, str, dict[str, Any]]] = {
    # NumPy
    "attention unseen": (Unwatched(), SAMPLING, {}),
    "two lines of a failure": (Plain(normed=failing), ONE_LINE, {}),
    "NaN in a matrix": (Plain(changed=lambda m: m["key"].fill(np.nan)), "^key=nan: ", {}),
    "fewer axes": (Plain(after=lambda y, x: y[0]), "is the output shape", {}),
    "cross-attention": (Plain(before=five_keys), "cross-attention", {}),
    "width 0": (Plain(), "width", {"width": 0}),
    "no draws": (Plain(), "draws", {"draws": 0}),
    "negative seed": (Plain(), "seed", {"seed": -1}),
    # PyTorch
    "buffer of keys": (Crossed, "do not depend on the inputs: cross-attention", {}),
    "Linear": (lambda: nn.Linear(64, 64), SAMPLING, {}),
    "LSTM": (lambda: nn.LSTM(64, 64), SAMPLING, {}),
    "linear attention": (lambda: Own(lambda q, k, v: q @ (k.mT @ v) / q.shape[2]), NO_PRODUCT, {}),
    "in turn": (lambda: InTurn(by_hand), "go through attention one after another", {}),
    "some positions": (lambda: Own(one_position_at_a_time), "attention is called on some positions at a time", {}),
    "windows of one position": (Windows, "lets each position attend to itself alone: were windows folded", {}),
    "separate outputs": (lambda: Own(lambda q, k, v: (by_hand(q, k, v), by_hand(k, q, v))[0]), SEPARATE, {}),
    "no output": (lambda: Own(after=lambda y: None), NO_OUTPUT, {}),
    "meta": (lambda: nn.Linear(64, 64, device="meta"), META, {}),
    "a module": (nn.Linear(64, 64), "is a module, already initialised", {}),
    "a class": (nn.MultiheadAttention, NO_FUNCTION, {}),
    "another width": (multi_head(63, 3), r"call: failed on inputs of shape \(2, 2, 64\) with ", {}),
    "exit": (lambda: Own(lambda *_: sys.exit(3)), r"call: failed .* SystemExit: 3 \(test_refusals\.py, line \d+\)", {}),
    "NaN": (lambda: Own(after=lambda y: y * torch.nan), NAN, {}),
    "NaN of the initialiser": (unset, "output=nan: .* finite; mend the initialiser", {}),
    "token": (lambda: Own(before=token, after=lambda y: y[:, 1:]), TOKENS, {}),
    "script": (lambda: torch.jit.script(nn.Linear(64, 64)), "is compiled, which hides", {}),
    "flex": (lambda: Own(lambda q, k, v: flex_attention(q, k, v)), FLEX, {}),
    "fewer keys": (lambda: Own(fewer_keys), "are fewer than the positions", {}),
    # Others
    "no attention": (Mean, "has no attention", {}),
    "model of Equinox": (attention_of_equinox, EQUINOX, {"inputs": (np.ones((1, 2, 64)),), "width": None}),
    "linen without inputs": (lambda: linen.Dense(3), INPUTS, {"width": None}),
    "Keras without inputs": (lambda: keras.layers.Dense(3), INPUTS, {"width": None}),
    "a number": (3, "is not a function", {}),
    "a failing function": (lambda: int("no"), "make: failed with ValueError: invalid literal", {}),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_are_refused(name: str) -> None:
    make, message, options = REFUSED[name]
    refused(lambda: ac.inspect(make, **({"width": 64, "draws": 2} | options)), message)
