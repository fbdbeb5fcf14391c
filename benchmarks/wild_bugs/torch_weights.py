"""Torch layers with wrong weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.wild_bugs.bug import OUTPUT, QUERY, SAME, UNDRAWN, Bug, Right

WIDTH, HEADS = 64, 4


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
    Bug(
        name="packed in_proj",
        source="pytorch#166378",
        what="Xavier over the packed (3E, E) matrix; separate matrices are Xavier over (E, E)",
        make=packed,
        other=SeparateMatrices,
        width=WIDTH,
        declared={"query_std": 1.0, "key_std": 1.0, "value_std": 1.0},
        sentence=(QUERY, r"\b0\.7[01]\d*"),
    ),
    Bug(
        name="out_proj of MultiheadAttention",
        source="pytorch#57117",
        what="out_proj.weight keeps the default of nn.Linear, another convention than the packed matrix",
        make=packed,
        width=WIDTH,
        declared={"output_std": 1.0},
        sentence=(OUTPUT, r"\b0\.5[78]\d*"),
    ),
    Bug(
        name="_reset_parameters",
        source="pytorch, MultiheadAttention._reset_parameters",
        what="initialising anew does not draw out_proj.weight",
        make=reset,
        width=WIDTH,
        sentence=(OUTPUT, UNDRAWN),
    ),
    Bug(
        name="cloned encoder layers",
        source="pytorch#72253, #86274, #120396",
        what="the layers of an encoder are deep copies of one, and start identical",
        make=encoder,
        width=WIDTH,
        sentence=(r"\blayers\b", SAME),
    ),
    Bug(
        name="trunc_normal_ in bfloat16",
        source="pytorch#145498, #155588",
        what="rounding sends draws to infinity and the clamp to ±2: std 0.127 where 0.01 is asked for",
        make=half_precision,
        width=128,
        declared={"query_std": 0.01 * math.sqrt(128)},
        sentence=(QUERY, r"\b12\.\d+|\b1\.4\d*"),
    ),
    Bug(
        name="truncation at ±2",
        source="torchtitan#3334",
        what="truncated at ±2, a hundred standard deviations, where ±2σ is meant: nothing is truncated",
        make=lambda: drawn(lambda weight: nn.init.trunc_normal_(weight, std=0.02)),
        width=WIDTH,
        declared={"query_std": 0.02 * math.sqrt(WIDTH), "query_law": "truncated normal"},
        sentence=(r"^(?!.*truncat).*\bnormal\b|truncat[^.;]*(refused|rejected|ruled out|not\b)",),
    ),
    Bug(
        name="fan of the wrong axis",
        source="einygpt#3",
        what="the last axis of (heads, width, head_dim) is taken for the fan-in",
        make=lambda: HeadMatrices(last_axis),
        width=WIDTH,
        declared={"query_std": 1.0},
        sentence=(QUERY, r"\b2\.0\d*\b|\b1\.99\d*\b", r"\baxis|fan[-_ ]?out|head_dim|1/√16"),
    ),
    Bug(
        name="never filled, zeros",
        source="TransformerLens#518",
        what="weights are left as torch.empty; here the memory holds zeros",
        make=lambda: HeadMatrices(fresh_page),
        width=WIDTH,
        declared={"query_std": 1.0},
        sentence=(QUERY, UNDRAWN),
    ),
    Bug(
        name="never filled, old numbers",
        source="TransformerLens#518",
        what="weights are left as torch.empty; here the memory holds numbers of somebody else",
        make=lambda: HeadMatrices(old_memory),
        width=WIDTH,
        declared={"query_std": 1.0},
        sentence=(QUERY, UNDRAWN),
    ),
)

_THIRD = math.sqrt(1.0 / 3.0)
_ALL = ("query_std", "key_std", "value_std", "output_std")

RIGHT = (
    Right(
        name="torch nn.Linear ×4",
        make=Attention,
        width=WIDTH,
        declared={**dict.fromkeys(_ALL, _THIRD), "mask": "none", "scale": 0.25},
    ),
    Right(
        name="torch nn.Linear ×4, normal, causal",
        make=lambda: drawn(lambda weight: nn.init.normal_(weight, std=1.0 / math.sqrt(WIDTH)), causal=True),
        width=WIDTH,
        declared={**dict.fromkeys(_ALL, 1.0), "mask": "causal"},
    ),
    Right(
        name="torch MultiheadAttention, kdim given",
        make=SeparateMatrices,
        width=WIDTH,
        declared={"query_std": 1.0, "key_std": math.sqrt(128 / 129), "value_std": 1.0, "output_std": _THIRD},
    ),
)


class ByHand(nn.Module):
    """A packed linear layer, explicit products, and an additive mask."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(part, HEADS) for part in self.c_attn(x).chunk(3, dim=-1))
        hidden = torch.full((x.shape[1], x.shape[1]), -math.inf).triu(1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + hidden
        return self.c_proj(merged(scores.softmax(-1) @ v))


ZOO = (
    Right(name="torch MultiheadAttention, packed", make=packed, width=WIDTH),
    *RIGHT,
    Right(name="torch by hand, packed, causal", make=ByHand, width=WIDTH),
    Right(
        name="torch TransformerEncoderLayer",
        make=lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, dim_feedforward=128, batch_first=True),
        width=WIDTH,
    ),
)
