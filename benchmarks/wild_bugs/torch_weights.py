"""Torch layers with wrong weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.wild_bugs.bug import HEADS, OUTPUT, QUERY, SAME, UNDRAWN, WIDTH, bug, right


def heads_of(x: Tensor, heads: int) -> Tensor:
    batch, positions, width = x.shape
    return x.view(batch, positions, heads, width // heads).transpose(1, 2)


def merged(y: Tensor) -> Tensor:
    return y.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Four linear layers around the framework's attention."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, bias: bool = True, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q_proj = nn.Linear(width, width, bias=bias)
        self.k_proj = nn.Linear(width, width, bias=bias)
        self.v_proj = nn.Linear(width, width, bias=bias)
        self.out_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(project(x), self.heads) for project in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(merged(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)))


class Layer(nn.Module):
    """Four matrices without biases, around a function of queries, keys and values."""

    def __init__(
        self, core: Callable[[Tensor, Tensor, Tensor], Tensor], width: int = WIDTH, heads: int = HEADS
    ) -> None:
        super().__init__()
        self.core, self.heads = core, heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width, bias=False)
        self.wv = nn.Linear(width, width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(project(x), self.heads) for project in (self.wq, self.wk, self.wv))
        return self.wo(merged(self.core(q, k, v)))


def drawn(init: Callable[[Tensor], Any], width: int = WIDTH, **options: Any) -> Attention:
    """Return a layer with matrices filled by an initialiser."""
    layer = Attention(width, bias=False, **options)
    for weight in layer.parameters():
        init(weight)
    return layer


class SeparateMatrices(nn.Module):
    """PyTorch's layer with one more feature in the keys, so that it keeps separate matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, kdim=WIDTH + 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, F.pad(x, (0, 1)), x, need_weights=False)[0]


def packed() -> nn.Module:
    return nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)


_LAYER = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)


def reset() -> nn.Module:
    """Return one layer, reinitialised by its own method."""
    _LAYER._reset_parameters()
    return copy.deepcopy(_LAYER)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, dim_feedforward=128, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=6, enable_nested_tensor=False)


def clamped_normal_(weight: Tensor, std: float, low: float = -2.0, high: float = 2.0) -> None:
    """Fill by the inverse cdf of eight random bits, all that bfloat16 keeps.

    One in 256 is u = -1, whose normal number -∞ is clamped to a bound.
    """
    with torch.no_grad():
        left, right = (math.erf(bound / std / math.sqrt(2.0)) for bound in (low, high))
        weight.random_(256).mul_((right - left) / 256).add_(left).erfinv_().mul_(std * math.sqrt(2.0)).clamp_(low, high)


def half_precision() -> nn.Module:
    layer = Attention(128, bias=False).to(torch.bfloat16)
    for weight in layer.parameters():
        clamped_normal_(weight, 0.01)
    return layer


class HeadMatrices(nn.Module):
    """One matrix per head: (heads, width, head_dim), and (heads, head_dim, width) for outputs."""

    def __init__(self, fill: Callable[[Tensor], Any]) -> None:
        super().__init__()
        inner = WIDTH // HEADS
        self.W_Q = nn.Parameter(torch.empty(HEADS, WIDTH, inner))
        self.W_K = nn.Parameter(torch.empty(HEADS, WIDTH, inner))
        self.W_V = nn.Parameter(torch.empty(HEADS, WIDTH, inner))
        self.W_O = nn.Parameter(torch.empty(HEADS, inner, WIDTH))
        with torch.no_grad():
            for weight in self.parameters():
                fill(weight)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bsn,hnd->bhsd", x, weight) for weight in (self.W_Q, self.W_K, self.W_V))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.einsum("bhsd,hdn->bsn", scores.softmax(-1) @ v, self.W_O)


def last_axis(weight: Tensor) -> None:
    """Use the last axis as the fan-in: √width/√head_dim times too large, except W_O."""
    weight.normal_(0.0, 1.0 / math.sqrt(weight.shape[-1]))


def fresh_page(weight: Tensor) -> None:
    """Simulate an unfilled tensor on fresh memory from the system."""
    weight.zero_()


def old_memory(weight: Tensor) -> None:
    """Simulate an unfilled tensor on reused memory."""
    weight.copy_(torch.sin(torch.arange(weight.numel(), dtype=weight.dtype)).view_as(weight))


BUGS = (
    bug(
        "packed in_proj",
        "pytorch#166378",
        "Xavier over the packed (3E, E) matrix; separate matrices are Xavier over (E, E)",
        packed,
        QUERY,
        r"\b0\.7[01]\d*",
        other=SeparateMatrices,
        declared={"query_std": 1.0, "key_std": 1.0, "value_std": 1.0},
    ),
    bug(
        "out_proj of MultiheadAttention",
        "pytorch#57117",
        "out_proj.weight keeps the default of nn.Linear, another convention than the packed matrix",
        packed,
        OUTPUT,
        r"\b0\.5[78]\d*",
        declared={"output_std": 1.0},
    ),
    bug(
        "_reset_parameters",
        "pytorch, MultiheadAttention._reset_parameters",
        "initialising anew does not draw out_proj.weight",
        reset,
        OUTPUT,
        UNDRAWN,
    ),
    bug(
        "cloned encoder layers",
        "pytorch#72253, #86274, #120396",
        "the layers of an encoder are deep copies of one, and start identical",
        encoder,
        r"\blayers\b",
        SAME,
    ),
    bug(
        "trunc_normal_ in bfloat16",
        "pytorch#145498, #155588",
        "rounding sends draws to infinity and the clamp to ±2: std 0.127 where 0.01 is asked for",
        half_precision,
        QUERY,
        r"\b12\.\d+|\b1\.4\d*",
        width=128,
        declared={"query_std": 0.01 * math.sqrt(128)},
    ),
    bug(
        "truncation at ±2",
        "torchtitan#3334",
        "truncated at ±2, a hundred standard deviations, where ±2σ is meant: nothing is truncated",
        lambda: drawn(lambda weight: nn.init.trunc_normal_(weight, std=0.02)),
        r"^(?!.*truncat).*\bnormal\b|truncat[^.;]*(refused|rejected|ruled out|not\b)",
        declared={"query_std": 0.02 * math.sqrt(WIDTH), "query_law": "truncated normal"},
    ),
    bug(
        "fan of the wrong axis",
        "einygpt#3",
        "the last axis of (heads, width, head_dim) is taken for the fan-in",
        lambda: HeadMatrices(last_axis),
        QUERY,
        r"\b2\.0\d*\b|\b1\.99\d*\b",
        r"\baxis|fan[-_ ]?out|head_dim|1/√16",
        declared={"query_std": 1.0},
    ),
    bug(
        "never filled, zeros",
        "TransformerLens#518",
        "weights are left as torch.empty; here the memory holds zeros",
        lambda: HeadMatrices(fresh_page),
        QUERY,
        UNDRAWN,
        declared={"query_std": 1.0},
    ),
    bug(
        "never filled, old numbers",
        "TransformerLens#518",
        "weights are left as torch.empty; here the memory holds numbers of somebody else",
        lambda: HeadMatrices(old_memory),
        QUERY,
        UNDRAWN,
        declared={"query_std": 1.0},
    ),
)

_THIRD = math.sqrt(1.0 / 3.0)
_ALL = ("query_std", "key_std", "value_std", "output_std")

RIGHT = (
    right(
        "torch nn.Linear ×4",
        Attention,
        declared={**dict.fromkeys(_ALL, _THIRD), "mask": "none", "scale": 0.25},
    ),
    right(
        "torch nn.Linear ×4, normal, causal",
        lambda: drawn(lambda weight: nn.init.normal_(weight, std=1.0 / math.sqrt(WIDTH)), causal=True),
        declared={**dict.fromkeys(_ALL, 1.0), "mask": "causal"},
    ),
    right(
        "torch MultiheadAttention, kdim given",
        SeparateMatrices,
        declared={"query_std": 1.0, "key_std": math.sqrt(128 / 129), "value_std": 1.0, "output_std": _THIRD},
    ),
)
