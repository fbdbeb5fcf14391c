"""PyTorch modules made from configurations, and layers of PyTorch itself."""

from __future__ import annotations

import dataclasses
import math
import random
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.wild_bugs.variants import ADDED, ROTARY, Config, Variant, configs, kinds_of

#: Rows of position vectors: any length up to there, or one length only.
ROWS = {"learned": 128, "fixed": 16}
# Distances of a learned bias, each side.
_FAR = 7


def visible(config: Config, length: int) -> Tensor:
    """Return which key (second axis) each query sees."""
    i = torch.arange(length)
    distance = i[:, None] - i
    past = distance >= (-1 if config.fault == "sees next" else 0)
    shown = {
        "none": torch.ones(length, length, dtype=torch.bool),
        "causal": past,
        "window": distance.abs() < config.span,
        "causal window": past & (distance < config.span),
        "prefix": past | (i < config.span),
    }[config.mask]
    return ~shown if config.fault == "inverted" else shown


def additive(config: Config, shown: Tensor) -> Tensor:
    """Return 0 where a key is seen, and -inf elsewhere."""
    if config.hide == "triu":
        full = torch.full(shown.shape, -math.inf)
        return full.tril() if config.fault == "inverted" else full.triu(2 if config.fault == "sees next" else 1)
    return torch.zeros(shown.shape).masked_fill(~shown, -math.inf)


def hidden(config: Config, scores: Tensor, layout: str) -> Tensor:
    """Hide scores."""
    if config.mask == "none":
        return scores
    shown = visible(config, scores.shape[layout.index("i")])
    if config.hide in ("additive", "triu"):
        return scores + placed(additive(config, shown)[None], layout).to(scores.dtype)
    return scores.masked_fill(~placed(shown[None], layout), -1e9 if config.hide == "-1e9" else -math.inf)


def placed(values: Tensor, layout: str) -> Tensor:
    """Return values of axes (h, i, j) with the axes of a layout."""
    axes = ["hij".index(letter) for letter in layout if letter != "b"]
    return values.permute(axes).unsqueeze(layout.index("b"))


def turned(config: Config, x: Tensor) -> Tensor:
    """Rotate queries or keys of axes (batch, heads, positions, head_dim)."""
    if config.positions not in ROTARY:
        return x
    number = x.shape[-1] // 2 if config.positions == "partial" else x.shape[-1]
    angles = torch.arange(x.shape[2])[:, None] * 1e4 ** (-torch.arange(0, number, 2) / number)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    part, rest = x[..., :number], x[..., number:]
    if config.positions == "interleaved":
        a, b = part[..., 0::2], part[..., 1::2]
        part = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    else:
        a, b = part.chunk(2, dim=-1)
        part = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    return torch.cat([part, rest], dim=-1)


def alibi(config: Config, length: int) -> Tensor:
    i = torch.arange(length)
    slopes = 2.0 ** (-8.0 * torch.arange(1, config.heads + 1) / config.heads)
    return -slopes[:, None, None] * (i[:, None] - i).abs()


def by_sdpa(config: Config, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Attend by the framework's function."""
    scale = config.scale if config.scaled == "scores" else 1.0
    dropout = 0.1 if config.fault == "dropout" else 0.0
    causal = config.hide == "is_causal"
    mask = bias
    if config.mask != "none" and not causal:
        length = q.shape[2]
        plain = bias is None and config.hide == "fill"
        scores = torch.zeros(1, length, length, dtype=q.dtype) if bias is None else bias
        mask = visible(config, length) if plain else hidden(config, scores[None], "bhij")
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale)


def scores_of(config: Config, q: Tensor, k: Tensor, bias: Tensor | None, layout: str) -> Tensor:
    """Return scores with their factor and bias."""
    factor = config.scale if config.scaled == "scores" else 1.0
    if config.core == "baddbmm":
        b, h, i, _ = q.shape
        start = torch.zeros(b, h, i, i, dtype=q.dtype) if bias is None else bias.expand(b, h, i, i)
        made = torch.baddbmm(start.flatten(0, 1), q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), alpha=factor)
        return made.view(b, h, i, i)
    if config.core == "matmul":
        scores = q @ k.transpose(-1, -2) * factor
    else:
        scores = torch.einsum(f"bihd,bjhd->{layout}", q.transpose(1, 2), k.transpose(1, 2)) * factor
    return scores if bias is None else scores + placed(bias, layout)


def by_hand(config: Config, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Attend by products and a softmax."""
    layout = config.core.removeprefix("einsum ") if config.core.startswith("einsum") else "bhij"
    scores = hidden(config, scores_of(config, q, k, bias, layout), layout)
    axis = {"over queries": "i", "over heads": "h"}.get(config.fault, "j")
    weights = scores.softmax(dim=layout.index(axis))
    if config.fault == "dropout":
        weights = F.dropout(weights, 0.1, training=True)
    if layout == "bhij" and config.core in ("matmul", "baddbmm"):
        return weights @ v
    return torch.einsum(f"{layout},bjhd->bihd", weights, v.transpose(1, 2)).transpose(1, 2)


class Heads(nn.Module):
    """Projections and attention, up to the merged heads."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        inner, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        if config.projection == "packed":
            self.qkv = nn.Linear(config.width, inner + 2 * kv, bias=config.bias)
        else:
            self.q, self.k, self.v = (nn.Linear(config.width, n, bias=config.bias) for n in (inner, kv, kv))
        norm = {"none": lambda _: nn.Identity(), "rms": nn.RMSNorm, "layer": nn.LayerNorm}[config.norm]
        self.q_norm, self.k_norm = norm(config.head_dim), norm(config.head_dim)
        if config.positions == "table":
            self.table = nn.Parameter(0.1 * torch.randn(config.heads, 2 * _FAR + 1))

    def forward(self, x: Tensor) -> Tensor:
        config = self.config
        q, k, v = (part.unflatten(-1, (-1, config.head_dim)).transpose(1, 2) for part in self.projected(x))
        q, k = turned(config, self.q_norm(q)), turned(config, self.k_norm(k))
        times = config.heads // config.kv_heads
        tiled = config.fault == "tiled"
        k, v = (each.repeat(1, times, 1, 1) if tiled else each.repeat_interleave(times, dim=1) for each in (k, v))
        if config.scaled == "queries":
            q = q * config.scale
        elif config.scaled == "both":
            q, k = q * math.sqrt(config.scale), k * math.sqrt(config.scale)
        attend = by_sdpa if config.core == "sdpa" else by_hand
        y = attend(config, q, k, v, self.bias(x))
        return y.reshape(*x.shape[:2], -1) if config.fault == "no transpose" else y.transpose(1, 2).flatten(2)

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.config.projection != "packed":
            return self.q(x), self.k(x), self.v(x)
        kv = self.config.kv_heads * self.config.head_dim
        return self.qkv(x).split([self.config.heads * self.config.head_dim, kv, kv], dim=-1)

    def bias(self, x: Tensor) -> Tensor | None:
        """Return what is added to scores, of axes (heads, queries, keys)."""
        if self.config.positions == "alibi":
            return alibi(self.config, x.shape[1]).to(x.dtype)
        if self.config.positions == "table":
            i = torch.arange(x.shape[1])
            return self.table[:, (i[:, None] - i).clamp(-_FAR, _FAR) + _FAR]
        return None


class Attention(nn.Module):
    """Attention with its outputs' projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        if config.of_framework:
            self.mha = nn.MultiheadAttention(config.width, config.heads, bias=config.bias, batch_first=True)
        else:
            one = dataclasses.replace(config, projection="separate", heads=1, kv_heads=1)
            parts = [one] * config.heads if config.projection == "list" else [config]
            self.parts = nn.ModuleList(Heads(part) for part in parts)
            self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=config.bias)
        if config.positions in ADDED:
            self.positions = nn.Parameter(0.1 * torch.randn(ROWS[config.positions], config.width))
        if config.fault == "unused":
            self.unused = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        if self.config.positions == "fixed":
            x = x + self.positions
        elif self.config.positions == "learned":
            x = x + self.positions[: x.shape[1]]
        if self.config.fault == "mean of inputs":
            x = x + x.mean(dim=1, keepdim=True)
        elif self.config.fault == "next input":
            x = x + F.pad(x[:, 1:], (0, 0, 0, 1))
        if self.config.of_framework:
            return self.mha(x, x, x, attn_mask=self.hiding(x), need_weights=self.config.core == "mha weights")[0]
        return self.out(torch.cat([part(x) for part in self.parts], dim=-1))

    def hiding(self, x: Tensor) -> Tensor | None:
        """Return the framework's mask: True, or -inf, where a key is hidden."""
        if self.config.mask == "none":
            return None
        shown = visible(self.config, x.shape[1])
        return additive(self.config, shown).to(x.dtype) if self.config.hide in ("additive", "triu") else ~shown


class Block(nn.Module):
    """Attention with a residual, norms, and perhaps a perceptron."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.around = config.around
        norm = nn.RMSNorm if config.around == "rms" else nn.LayerNorm
        self.attention = Attention(config)
        self.norm = norm(config.width)
        if config.around != "pre":
            self.second = norm(config.width)
            hidden = 2 * config.width
            self.mlp = nn.Sequential(nn.Linear(config.width, hidden), nn.GELU(), nn.Linear(hidden, config.width))

    def forward(self, x: Tensor) -> Tensor:
        if self.around == "post":
            x = self.norm(x + self.attention(x))
            return self.second(x + self.mlp(x))
        x = x + self.attention(self.norm(x))
        return x if self.around == "pre" else x + self.mlp(self.second(x))


def build(config: Config) -> nn.Module:
    """Return the module of a configuration, freshly initialised."""
    module = Attention(config) if config.around == "bare" else Block(config)
    fill = {"normal": lambda w: nn.init.normal_(w, std=w.shape[1] ** -0.5), "xavier": nn.init.xavier_uniform_}
    attention = module if config.around == "bare" else module.attention
    for part in attention.modules():
        if config.init in fill and isinstance(part, nn.Linear):
            fill[config.init](part.weight)
    if config.fault in ("tied at first", "one parameter"):
        share(attention, config)
    return module.to(getattr(torch, config.dtype))


def share(attention: Attention, config: Config) -> None:
    """Make W_K equal to W_Q, as a copy or as the same parameter."""
    inner = config.heads * config.head_dim
    for part in [attention.mha] if config.of_framework else attention.parts:
        if config.fault == "one parameter":
            part.k.weight = part.q.weight
            continue
        packed = part.in_proj_weight if config.of_framework else getattr(getattr(part, "qkv", None), "weight", None)
        q, k = (part.q.weight, part.k.weight) if packed is None else (packed[:inner], packed[inner : 2 * inner])
        with torch.no_grad():
            k.copy_(q)


def variants(seed: int) -> tuple[Variant, ...]:
    """Return the hand-written modules and some layers of PyTorch."""
    written = tuple(
        Variant(name=f"torch {i}: {config}", make=partial(build, config), width=config.width, kinds=kinds_of(config))
        for i, config in enumerate(configs(seed))
    )
    return (*written, *of_pytorch(random.Random(f"layers of PyTorch, {seed}")))


def of_pytorch(rng: random.Random) -> tuple[Variant, ...]:
    """Return nn.MultiheadAttention and nn.TransformerEncoderLayer of random sizes."""
    made = []
    for bias in (True, False):
        width, heads = rng.choice((32, 64, 128)), rng.choice((2, 4))
        layer = partial(nn.MultiheadAttention, width, heads, bias=bias, batch_first=True)
        made.append(Variant(name=f"nn.MultiheadAttention, width {width}, bias {bias}", make=layer, width=width))
        separate = partial(layer, kdim=width, vdim=width, dropout=0.1)
        made.append(Variant(name=f"{made[-1].name}, dropout in training", make=separate, width=width))
    for first in (True, False):
        for act in ("relu", "gelu"):
            width, heads = rng.choice((32, 64, 128)), rng.choice((2, 4))
            wide = {"dim_feedforward": 2 * width, "activation": act, "norm_first": first, "batch_first": True}
            name = f"nn.TransformerEncoderLayer, width {width}, {'pre' if first else 'post'}-norm, {act}"
            made.append(Variant(name=name, make=partial(nn.TransformerEncoderLayer, width, heads, **wide), width=width))
    return tuple(made)
