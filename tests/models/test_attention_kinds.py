"""Attention as it is called and computed in models: read, or named, and not blamed where it is right."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import attncheck as ac

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # only where torch is

from tests.frameworks.torch_layers import multi_head  # noqa: E402  # only where torch is

from .torch_attention import HEADS, WIDTH, Attention, Differential, Steps, split  # noqa: E402  # only where torch is

ROTATED = 8
X = torch.randn(2, 8, WIDTH, generator=torch.Generator().manual_seed(0))


class Apart(Steps):
    """Queries, keys and values of three inputs."""

    def forward(self, x: Any, keys: Any, values: Any) -> Any:
        return self.attend(split(self.q(x)), split(self.k(keys)), split(self.v(values)))


class SecondSoftmax(Attention):
    def weights(self, scores: Any) -> Any:
        return super().weights(scores).softmax(-1)


class TwoMasks(Steps):
    """The mean of two attentions with the same queries, keys and values: causal, and in a window."""

    def forward(self, x: Any) -> Any:
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        masks = causal, causal.triu(-2)
        kernel = nn.functional.scaled_dot_product_attention
        return self.merged(sum(0.5 * kernel(q, k, v, attn_mask=mask) for mask in masks))


class Linear(Steps):
    def forward(self, x: Any) -> Any:
        q, k = (nn.functional.elu(split(a)) + 1 for a in (self.q(x), self.k(x)))
        sums = torch.einsum("bhtd,bhte->bhtde", k, split(self.v(x))).cumsum(2)
        return self.merged(torch.einsum("bhtd,bhtde->bhte", q, sums))


class Latent(Steps):
    """Keys of a part without positions, normalised as those of DeepSeek, and of a rotated part that heads share."""

    def __init__(self, scale: float = (WIDTH // HEADS + ROTATED) ** -0.5) -> None:
        super().__init__()
        self.scale, self.norm = scale, nn.RMSNorm(WIDTH)
        self.rotated_q, self.rotated_k = nn.Linear(WIDTH, HEADS * ROTATED, bias=False), nn.Linear(WIDTH, ROTATED)

    def rotated(self, x: Any) -> Any:
        angles = torch.arange(x.shape[-2])[:, None] * 1e4 ** (-torch.arange(0, ROTATED, 2) / ROTATED)
        turn = torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)

    def forward(self, x: Any) -> Any:
        c, shared = self.norm(x), self.rotated(self.rotated_k(x)[:, None]).expand(-1, HEADS, -1, -1)
        q = torch.cat([split(self.q(x)), self.rotated(split(self.rotated_q(x)))], -1)
        k = torch.cat([split(self.k(c)), shared], -1)
        return self.merged(self.weights(q @ k.mT * self.scale) @ split(self.v(c)))


class OtherNeurons(Latent):
    """The last neurons of queries are rotated, and the first ones of keys."""

    def forward(self, x: Any) -> Any:
        q = torch.cat([split(self.q(x)), self.rotated(split(self.rotated_q(x)))], -1)
        k = torch.cat([self.rotated(self.rotated_k(x)[:, None]).expand(-1, HEADS, -1, -1), split(self.k(x))], -1)
        return self.attend(q, k, split(self.v(x)))


class RotatedValues(Latent):
    def forward(self, x: Any) -> Any:
        q, k, v = (split(part(x)) for part in (self.q, self.k, self.v))
        return self.attend(q, k, torch.cat([self.rotated(v[..., :ROTATED]), v[..., ROTATED:]], -1))


class Masked(Steps):
    """A kernel that gets two masks, which PyTorch accepts in some of its implementations only."""

    def forward(self, x: Any) -> Any:
        q, k, v = self.projected(x)
        visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        return self.merged(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=True))


class Joined(Steps):
    """Four keys beside those of the positions, whose scores are computed apart."""

    def forward(self, x: Any) -> Any:
        q, k, v = self.projected(x)
        scores = torch.cat([q @ k.mT, q @ k.new_ones(k.shape[-1], 4)], -1)
        return self.merged(scores.softmax(-1) @ torch.cat([v, v[:, :, :4]], 2))


class Filling(Attention):
    """Attention that fills a dictionary."""

    def forward(self, x: Any, cache: Any = None) -> Any:
        cache["keys"] = self.k(x)
        return super().forward(x)


class Negative(Steps):
    """The difference of two maps, as one matrix of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.q2, self.k2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        pairs = (self.q, self.k), (self.q2, self.k2)
        one, two = (self.weights(split(q(x)) @ split(k(x)).mT / 4) for q, k in pairs)
        return self.merged((one - 0.5 * two) @ split(self.v(x)))


class Calling(nn.Module):
    """A block that calls its attention as `call` does."""

    def __init__(self, attention: Callable[[], Any], call: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.attn, self.call = attention(), call

    def forward(self, x: Any) -> Any:
        return x + self.call(self.attn, x)


def directly(attention: Any, x: Any) -> Any:
    return attention(x)


def with_positions(attention: Any, x: Any) -> Any:
    """Add positions to queries and keys, but not to values."""
    positions = torch.linspace(-1, 1, 8)[:, None]
    return attention(x + positions, x + positions, x)


def with_zero_values(attention: Any, x: Any) -> Any:
    """Call as the first layer of DETR's decoder does, whose targets are 0."""
    return attention(x, x, torch.zeros_like(x))


def one_position(attention: Any, x: Any) -> Any:
    return attention(x[:, :1], x[:, :1], x[:, :1], attn_mask=torch.zeros(1, 1))[0]


CAUSAL = "softmax, causal mask, scores times 1/sqrt(head_dim)"
SCALE = "if this is meant: attn: scores times 1/sqrt(16), where head_dim is 24, in addition to any factor in queries"
TWICE = (
    "attn: softmax is applied twice; the first time, the weights are "
    "softmax, causal mask, scores times 1/sqrt(head_dim); equal to the formula to "
)
RIGHT = "nothing wrong was found"
NOT_READ = "NOT EXAMINED: Calling: 1 attention module (0 read, 1 not: "
#: Module, its call, a part of the first line, and notes.
KINDS: dict[str, tuple[Any, ...]] = {
    "equal tensors": (Apart, lambda attention, x: attention(x, x.clone(), x.clone()), RIGHT),
    "positions": (Apart, with_positions, RIGHT, "attn: values are x W + b plus a vector that depends on the position"),
    "zero values": (Apart, with_zero_values, RIGHT),
    "one map with negative weights": (Negative, directly, "if this is meant: attn: the attention weights are not"),
    "other neurons": (OtherNeurons, directly, "WRONG: attn: queries and keys are rotated in different neurons"),
    "two masks": (
        TwoMasks,
        directly,
        f"{RIGHT}, if this is meant: attn: attention maps have different masks",
        "attn: 2 attention maps have the same queries, keys and values",
    ),
    "second softmax": (SecondSoftmax, directly, f"WRONG: {TWICE}", "attention is causal, but outputs"),
    "filled dictionary": (Filling, lambda attention, x: attention(x, {}), RIGHT),
    "one position": (multi_head(WIDTH, HEADS), one_position, f"{NOT_READ}positions=1: must be at least 2"),
    "two masks of one call": (
        Masked,
        directly,
        f"{NOT_READ}call: failed on inputs of shape (2, 2, {WIDTH}) with RuntimeError: ",
    ),
    "rotated values": (RotatedValues, directly, f"{RIGHT}, if this is meant: ", "attn: values are rotated by position"),
    "latent": (
        Latent,
        directly,
        RIGHT,
        "attn: heads of values have 16 neurons, those of keys 24",
        "attn: queries and keys are rotated by position",
        "attn: rotary positions (base 10000) turn 8 of 24 neurons of a head",
    ),
    "latent, other scale": (lambda: Latent(0.25), directly, SCALE),
    "differential": (Differential, directly, f"{NOT_READ}a softmax is found, but not products of queries and keys"),
    "joined": (Joined, directly, f"{NOT_READ}a softmax has 12 keys for 8 positions, whose scores are not one product"),
    "linear": (
        Linear,
        directly,
        "NOT EXAMINED: Calling: 1 module (0 read, 1 not: positions are mixed without a softmax, as in linear attention",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_attention(name: str) -> None:
    attention, call, first_line, *notes = KINDS[name]
    inspection = ac.inspect(lambda: Calling(attention, call), inputs=(X,), draws=4)
    assert first_line in inspection.verdict
    texts = [str(note) for note in inspection.all_notes]
    assert [note for note in notes if not any(text.startswith(note) for text in texts)] == []
    assert not any("cross-attention" in text or "W_V is the same" in text for text in texts)
    forward = {str(group.inspection.forward).partition("; ")[0] for group in inspection.attention}
    if first_line == RIGHT:
        assert {re.split(", rotary|, several", text)[0] for text in forward} == {CAUSAL}
    if first_line.startswith("NOT EXAMINED"):
        assert not inspection.modules
    if name == "rotated values":
        assert set(notes) <= set(inspection.expecting("rotary").asked)
