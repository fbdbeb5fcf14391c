"""Torch modules whose mask, positions, heads or surroundings must be described rightly."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.wild_bugs.bug import SCALE, Bug, Right
from benchmarks.wild_bugs.torch_weights import HEADS, WIDTH, merged

HEAD_DIM = WIDTH // HEADS
Core = Callable[[Tensor, Tensor, Tensor], Tensor]


class Layer(nn.Module):
    """Four matrices without biases, around a function of queries, keys and values."""

    def __init__(
        self, core: Core, width: int = WIDTH, heads: int = HEADS, merge: Callable[[Tensor], Tensor] = merged
    ) -> None:
        super().__init__()
        self.core, self.merge, self.heads = core, merge, heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width, bias=False)
        self.wv = nn.Linear(width, width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(self.merge(self.core(q, k, v)))


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores_of(q, k).softmax(dim=-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def distances(length: int) -> Tensor:
    """Return query position minus key position."""
    positions = torch.arange(length)
    return positions.unsqueeze(1) - positions.unsqueeze(0)


def in_window(distance: Tensor) -> Tensor:
    return (distance >= 0) & (distance <= 3)


def hidden_unless(shown: Callable[[Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend by hand to the keys at some distances."""
    scores = scores_of(q, k)
    hidden = shown(distances(q.shape[2])).logical_not()
    return scores.masked_fill(hidden, -math.inf).softmax(dim=-1) @ v


def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=in_window(distances(q.shape[2])))


def biased(slope: float, scale: float | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with a bias by distance."""
    bias = distances(q.shape[2]).abs() * -slope
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def scaled_by(scale: float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=scale)


def unmoved(y: Tensor) -> Tensor:
    """Merge heads as if their axis came after the positions."""
    batch, heads, positions, neurons = y.shape
    return y.reshape(batch, positions, heads * neurons)


def rotated(x: Tensor, neurons: int) -> Tensor:
    """Rotate the first neurons of each head, in halves."""
    half = neurons // 2
    frequencies = 10_000.0 ** (-torch.arange(half) / half)
    turn = torch.polar(torch.ones(x.shape[2], half), torch.arange(x.shape[2]).outer(frequencies))
    moved = torch.complex(x[..., :half], x[..., half:neurons]) * turn
    return torch.cat([moved.real, moved.imag, x[..., neurons:]], dim=-1)


def rotary(neurons: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return causal(rotated(q, neurons), rotated(k, neurons), v)


class NormalisedRotary(Layer):
    """QK-norm, then rotary positions."""

    def __init__(self) -> None:
        super().__init__(self.attend)
        self.norm_q, self.norm_k = nn.RMSNorm(HEAD_DIM), nn.RMSNorm(HEAD_DIM)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return rotary(HEAD_DIM, self.norm_q(q), self.norm_k(k), v)


class Block(nn.Module):
    """Attention on normalised inputs with a residual, then a perceptron."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self.attention = Layer(core)
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.perceptron(self.between(x))


class Averaging(nn.Module):
    """Adds the mean over all positions to inputs of causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Layer(causal)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x + x.mean(dim=1, keepdim=True))


class OneLength(nn.Module):
    """Rotary attention on inputs with vectors of four positions; takes no other length."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Layer(partial(rotary, HEAD_DIM // 2))
        self.places = nn.Parameter(torch.zeros(4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x + self.places)


class Single(nn.Module):
    """One head without an output matrix."""

    def __init__(self, scale: float = HEAD_DIM**-0.5) -> None:
        super().__init__()
        self.scale = scale
        self.to_query = nn.Linear(WIDTH, HEAD_DIM, bias=False)
        self.to_key = nn.Linear(WIDTH, HEAD_DIM, bias=False)
        self.to_value = nn.Linear(WIDTH, HEAD_DIM, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.to_query(x) @ self.to_key(x).transpose(-2, -1) * self.scale
        return torch.softmax(scores, dim=-1) @ self.to_value(x)


class Several(nn.Module):
    """A list of heads, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([Single() for _ in range(HEADS)])
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.cat([head(x) for head in self.heads], dim=-1))


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


def bug(name: str, source: str, what: str, make: Any, *sentence: str, **options: Any) -> Bug:
    return Bug(name=name, source=source, what=what, make=make, width=WIDTH, sentence=sentence, **options)


def right(name: str, make: Any, **options: Any) -> Right:
    return Right(name=name, make=make, width=WIDTH, **options)


BUGS = (
    bug(
        "means of all positions, then a causal mask",
        "nanochat#844",
        "the inputs of causal attention hold later positions",
        Averaging,
        r"change with inputs at position \d+",
        r"despite the causal mask",
        declared={"mask": "causal", "blamed": False},
    ),
    bug(
        "inverted causal mask",
        "many",
        "each position attends to later ones only, and the last one to nothing",
        partial(Layer, partial(hidden_unless, lambda distance: distance < 0)),
        r"attends to nothing|anticausal",
    ),
    bug(
        "heads merged without a transpose",
        "many",
        "an output mixes positions",
        partial(Layer, by_hand, merge=unmoved),
        r"merged without a transpose",
    ),
    bug(
        "one head, √width in place of √head_dim",
        "many",
        "the width of the module is taken for that of the head",
        partial(Single, WIDTH**-0.5),
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
        partial(Block, by_hand),
        declared={"num_heads": HEADS, "head_dim": HEAD_DIM, "mask": "none"},
        unsaid=(r"queries and keys are normalised", r"heads of 64", r"not those of a known formula"),
    ),
    right("torch window by hand", partial(Layer, partial(hidden_unless, in_window)), said=(r"window of 4",)),
    right("torch window in a block", partial(Block, windowed), said=(r"window of 4",)),
    right(
        "torch bias by distance in a block",
        partial(Block, partial(biased, 0.5, None)),
        said=(r"bias by distance", r"slope 0\.5"),
    ),
    right(
        "torch bias by distance, scale in W_Q",
        scale_in_queries,
        said=(r"bias by distance", r"scores times 1\b(?!/)", r"1/sqrt\(head_dim\) is in W_Q"),
    ),
    right(
        "torch list of heads",
        Several,
        declared={"num_heads": HEADS, "head_dim": HEAD_DIM, "output_std": math.sqrt(1 / 3), "bias": False},
    ),
    right("torch 1/head_dim", partial(Layer, partial(scaled_by, 1 / HEAD_DIM)), declared={"scale": 1 / HEAD_DIM}),
    right("torch need_weights by position", Wrapped, declared={"mask": "none", "num_heads": HEADS}),
    right("torch partial rotary", partial(Layer, partial(rotary, HEAD_DIM // 2)), said=("rotary|rotat|turn",)),
    right("torch partial rotary, four positions only", OneLength, said=("rotary|rotat|turn",)),
    right(
        "torch rotary", partial(Layer, partial(rotary, HEAD_DIM)), declared={"mask": "causal", "positions": "rotary"}
    ),
    right("torch QK-norm, then rotary", NormalisedRotary, declared={"mask": "causal", "positions": "rotary"}),
    right("torch encoder layer", partial(nn.TransformerEncoderLayer, WIDTH, HEADS, batch_first=True)),
    right(
        "torch MultiheadAttention without biases",
        partial(nn.MultiheadAttention, WIDTH, HEADS, bias=False, batch_first=True),
        unsaid=(r"\b0 in the limit",),
    ),
)
