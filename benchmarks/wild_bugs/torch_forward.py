"""Torch layers with a wrong forward pass."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.wild_bugs.bug import KEY, QUERY, SCALE, Bug
from benchmarks.wild_bugs.torch_weights import HEADS, WIDTH, heads_of, merged

HEAD_DIM = WIDTH // HEADS


class VisionAttention(nn.Module):
    """Packed, without biases, scaled by the model's width."""

    def __init__(self, dim: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.scale = dim**-0.5
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.to_qkv(x).chunk(3, dim=-1))
        weights = (q @ k.transpose(-1, -2) * self.scale).softmax(dim=-1)
        return self.to_out(merged(weights @ v))


class SetAttention(nn.Module):
    """Heads in the batch axis; divided by the root of all values' width."""

    def __init__(self) -> None:
        super().__init__()
        self.fc_q = nn.Linear(WIDTH, WIDTH)
        self.fc_k = nn.Linear(WIDTH, WIDTH)
        self.fc_v = nn.Linear(WIDTH, WIDTH)
        self.fc_o = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.cat(fc(x).split(HEAD_DIM, dim=2)) for fc in (self.fc_q, self.fc_k, self.fc_v))
        weights = torch.softmax(q.bmm(k.transpose(1, 2)) / math.sqrt(HEADS * HEAD_DIM), dim=2)
        return self.fc_o(torch.cat(weights.bmm(v).split(len(x)), dim=2))


class Heads(nn.Module):
    """Base of the modules below: four linear layers, with a method between them."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(linear(x), HEADS) for linear in (self.query, self.key, self.value))
        return self.dense(merged(self.attend(q, k, v)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError


class Multiplied(Heads):
    """Divides by d^(-1/2)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / HEAD_DIM**-0.5
        return scores.softmax(dim=-1) @ v


class TwoPaths(Heads):
    """A fast path with the framework's scale, and a plain one with its own."""

    def __init__(self, flash: bool) -> None:
        super().__init__()
        self.flash = flash
        self.scale = WIDTH**-0.5

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.flash:
            return F.scaled_dot_product_attention(q, k, v)
        return (q @ k.transpose(-1, -2) * self.scale).softmax(dim=-1) @ v


class OverQueries(Heads):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD_DIM)
        return F.softmax(scores, dim=-2) @ v


class AlwaysDropping(Heads):
    """Passes a dropout to the framework's function, which applies it in evaluation too."""

    dropout = 0.1

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)


class NormalisedHeads(Heads):
    """Normalised queries and keys, with a temperature of ten."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return (10.0 * q @ k.transpose(-1, -2)).softmax(dim=-1) @ v


class OverBatch(nn.Module):
    """Inputs are (batch, positions, width); by default PyTorch's layer expects positions first."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Tiled(nn.Module):
    """Two heads of keys and values for four of queries, tiled instead of repeated."""

    def __init__(self, groups: int = 2) -> None:
        super().__init__()
        self.groups = groups
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk = nn.Linear(WIDTH, groups * HEAD_DIM, bias=False)
        self.wv = nn.Linear(WIDTH, groups * HEAD_DIM, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = heads_of(self.wq(x), HEADS)
        k, v = (heads_of(linear(x), self.groups) for linear in (self.wk, self.wv))
        k, v = (each.repeat(1, HEADS // self.groups, 1, 1) for each in (k, v))
        return self.wo(merged(F.scaled_dot_product_attention(q, k, v)))


def bug(name: str, source: str, what: str, make: Any, *sentence: str, **options: Any) -> Bug:
    return Bug(name=name, source=source, what=what, make=make, width=WIDTH, sentence=sentence, **options)


OVER_MODEL = r"1/√\(?(n|width|64|d_model)\b|1/sqrt\((n|width|64|d_model)\)|\b0\.125\b|\b1/8\b"
OVER_HEAD = r"1/√\(?(head_dim|16|d)\b|1/sqrt\((head_dim|16|d)\)|\b0\.250?\b|\b1/4\b"
RIGHT_SCALE = {"scale": HEAD_DIM**-0.5}

BUGS = (
    bug(
        "√width in place of √head_dim",
        "vit-pytorch#65",
        "scores are divided by the root of the model's width",
        VisionAttention,
        SCALE,
        OVER_MODEL,
        declared=RIGHT_SCALE,
    ),
    bug(
        "√width in place of √head_dim, heads along the batch",
        "set_transformer#18",
        "scores are divided by the root of the width of all heads",
        SetAttention,
        SCALE,
        OVER_MODEL,
        declared=RIGHT_SCALE,
    ),
    bug(
        "multiplied by √head_dim",
        "perceiver-io#9",
        "scores are divided by head_dim^(-1/2)",
        Multiplied,
        SCALE,
        r"(?<![/\d])(√head_dim|sqrt\(head_dim\)|√d\b|√16)|\b4(\.0+)?\b(?! heads)",
        declared=RIGHT_SCALE,
    ),
    bug(
        "two paths, two scales",
        "x-transformers#190",
        "the fast path and the plain one scale differently",
        lambda: TwoPaths(flash=True),
        SCALE,
        OVER_HEAD,
        OVER_MODEL,
        other=lambda: TwoPaths(flash=False),
    ),
    bug(
        "tiled groups",
        "jax-js#180, mamba#462",
        "query head h uses head h mod G of the keys and values, not ⌊h·G/H⌋",
        Tiled,
        r"\btiled\b|0, ?1, ?0, ?1|\bmod\b",
    ),
    bug(
        "batch_first forgotten",
        "pytorch, MultiheadAttention",
        "the layer attends over the batch",
        OverBatch,
        r"first axis|over the batch|across the batch|batch_first|other (rows|members|elements) of the batch",
    ),
    bug(
        "softmax over queries",
        "many",
        "the softmax runs over the axis of the queries",
        OverQueries,
        r"over (the )?quer(y|ies)|query axis|axis of (the )?queries|columns? .*sums? to (1|one)",
    ),
    bug(
        "dropout left on",
        "many",
        "the framework's function drops in evaluation too",
        AlwaysDropping,
        r"calls.*differ|differ.*calls|not deterministic|random forward|forward is random|dropout.*(left|is) on\b",
    ),
    bug(
        "normalised queries and keys",
        "many: QK-norm",
        "scores are bounded, and not bilinear",
        NormalisedHeads,
        f"{QUERY}|{KEY}|scores",
        r"(?<!not )normali[sz]ed|not bilinear|\bbounded",
    ),
)
