"""Torch modules whose mask, positions, heads or surroundings must be described rightly."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.wild_bugs.bug import HEADS, SCALE, WIDTH, bug, right
from benchmarks.wild_bugs.torch_weights import Layer
from benchmarks.wild_bugs.variants import Config
from benchmarks.wild_bugs.variants_torch import Block, build

HEAD_DIM = WIDTH // HEADS


def plain(**fields: Any) -> Callable[[], nn.Module]:
    """Return what makes a hand-written module without biases."""
    return partial(build, Config(bias=False, **fields))


by_hand = partial(plain, core="matmul")
causal = partial(plain, mask="causal", hide="is_causal")
windowed = partial(plain, mask="causal window", span=4)


def biased(slope: float, scale: float | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with a bias by distance."""
    positions = torch.arange(q.shape[2])
    bias = (positions[:, None] - positions).abs() * -slope
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def scaled_by(scale: float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=scale)


def biased_block() -> Block:
    """Return a block around attention with a bias by distance."""
    block = Block(Config(around="pre mlp"))
    block.attention = Layer(partial(biased, 0.5, None))
    return block


class OneLength(nn.Module):
    """Rotary attention on inputs with vectors of four positions; takes no other length."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = causal(positions="partial")()
        self.places = nn.Parameter(torch.zeros(4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x + self.places)


class Single(nn.Module):
    """One head without an output matrix, scaled by the width of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.to_query = nn.Linear(WIDTH, HEAD_DIM, bias=False)
        self.to_key = nn.Linear(WIDTH, HEAD_DIM, bias=False)
        self.to_value = nn.Linear(WIDTH, HEAD_DIM, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.to_query(x) @ self.to_key(x).transpose(-2, -1) * WIDTH**-0.5
        return torch.softmax(scores, dim=-1) @ self.to_value(x)


class ByPosition(nn.MultiheadAttention):
    """Passes all arguments of the framework's function by position, need_weights among them."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        sizes = (self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias, None, None, False, 0.0)
        rest = (self.out_proj.weight, self.out_proj.bias, self.training, None, False)
        return F.multi_head_attention_forward(x, x, x, *sizes, *rest)[0].transpose(0, 1)


class Wrapped(nn.Module):
    """It, in a module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = ByPosition(WIDTH, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)


def scale_in_queries() -> Layer:
    """Return attention of unscaled scores with a bias by distance; W_Q is smaller by √head_dim."""
    layer = Layer(partial(biased, 0.1, 1.0))
    for part in (layer.wk, layer.wv, layer.wo):
        nn.init.normal_(part.weight, std=WIDTH**-0.5)
    nn.init.normal_(layer.wq.weight, std=(WIDTH * HEAD_DIM) ** -0.5)
    return layer


def by_heads(width: int = WIDTH) -> Layer:
    """Return attention scaled by 1/√heads, at width 64 the same as 1/√head_dim."""
    return Layer(partial(scaled_by, 8**-0.5), width, heads=8)


BUGS = (
    bug(
        "means of all positions, then a causal mask",
        "nanochat#844",
        "the inputs of causal attention hold later positions",
        causal(fault="mean of inputs"),
        r"change with inputs at position \d+",
        r"despite the causal mask",
        declared={"mask": "causal", "blamed": False},
    ),
    bug(
        "inverted causal mask",
        "many",
        "each position attends to later ones only, and the last one to nothing",
        by_hand(mask="causal", fault="inverted"),
        r"mask is inverted",
    ),
    bug(
        "heads merged without a transpose",
        "many",
        "an output mixes positions",
        by_hand(fault="no transpose"),
        r"merged without a transpose",
    ),
    bug(
        "one head, √width in place of √head_dim",
        "many",
        "the width of the module is taken for that of the head",
        Single,
        SCALE,
        r"1/(√|sqrt)\(?(width|n|64)\b",
    ),
    bug(
        "√heads in place of √head_dim",
        "tt-metal PR#56789",
        "the same number at width 64, not at a second width",
        by_heads,
        SCALE,
        r"1/(√|sqrt)\(?(num_|n_)?heads\b",
        r"\bnot 1/(√|sqrt)\(?head_dim|\bwidths?\b",
    ),
)

RIGHT = (
    right(
        "torch block by hand",
        by_hand(around="pre mlp"),
        declared={"num_heads": HEADS, "head_dim": HEAD_DIM, "mask": "none"},
        unsaid=(r"queries and keys are normalised", r"heads of 64", r"not those of a known formula"),
    ),
    right("torch window by hand", windowed(core="matmul"), said=(r"window of 4",)),
    right("torch window in a block", windowed(around="pre mlp"), said=(r"window of 4",)),
    right(
        "torch bias by distance in a block",
        biased_block,
        said=(r"slope 0\.5",),
    ),
    right(
        "torch bias by distance, scale in W_Q",
        scale_in_queries,
        said=(r"slope 0\.1", r"scores times 1\b(?!/)", r"1/sqrt\(head_dim\) is in W_Q"),
    ),
    right(
        "torch list of heads",
        plain(projection="list"),
        declared={"num_heads": HEADS, "head_dim": HEAD_DIM, "output_std": math.sqrt(1 / 3), "bias": False},
    ),
    right("torch 1/head_dim", partial(Layer, partial(scaled_by, 1 / HEAD_DIM)), declared={"scale": 1 / HEAD_DIM}),
    right("torch need_weights by position", Wrapped, declared={"mask": "none", "num_heads": HEADS}),
    right("torch partial rotary", causal(positions="partial"), said=("rotary|rotat|turn",)),
    right("torch partial rotary, four positions only", OneLength, said=("rotary|rotat|turn",)),
    right("torch rotary", causal(positions="halves"), declared={"mask": "causal", "positions": "rotary"}),
    right(
        "torch QK-norm, then rotary",
        causal(positions="halves", norm="rms"),
        declared={"mask": "causal", "positions": "rotary"},
    ),
    right("torch encoder layer", partial(nn.TransformerEncoderLayer, WIDTH, HEADS, batch_first=True)),
    right(
        "torch MultiheadAttention without biases",
        partial(nn.MultiheadAttention, WIDTH, HEADS, bias=False, batch_first=True),
        unsaid=(r"\b0 in the limit",),
    ),
)
