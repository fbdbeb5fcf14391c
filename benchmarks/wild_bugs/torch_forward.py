"""Torch layers with a wrong forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.wild_bugs.bug import HEADS, KEY, QUERY, SCALE, WIDTH, bug
from benchmarks.wild_bugs.torch_weights import Layer
from benchmarks.wild_bugs.variants import Config
from benchmarks.wild_bugs.variants_torch import build

HEAD_DIM = WIDTH // HEADS


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


def normalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with normalised queries and keys, and a temperature of ten."""
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return (10.0 * q @ k.transpose(-1, -2)).softmax(dim=-1) @ v


class OverBatch(nn.Module):
    """Inputs are (batch, positions, width); by default PyTorch's layer expects positions first."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def changed(**fields: Any) -> Callable[[], nn.Module]:
    """Return what makes a hand-written module with explicit products."""
    return partial(build, Config(**{"core": "matmul", **fields}))


OVER_MODEL = r"1/√\(?(n|width|64|d_model)\b|1/sqrt\((n|width|64|d_model)\)|\b0\.125\b|\b1/8\b"
OVER_HEAD = r"1/√\(?(head_dim|16|d)\b|1/sqrt\((head_dim|16|d)\)|\b0\.250?\b|\b1/4\b"
RIGHT_SCALE = {"scale": HEAD_DIM**-0.5}

BUGS = (
    bug(
        "√width in place of √head_dim",
        "vit-pytorch#65",
        "scores are divided by the root of the model's width",
        changed(projection="packed", bias=False, factor="1/sqrt(width)"),
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
        changed(factor="sqrt(head_dim)"),
        SCALE,
        r"(?<![/\d])(√head_dim|sqrt\(head_dim\)|√d\b|√16)|\b4(\.0+)?\b(?! heads)",
        declared=RIGHT_SCALE,
    ),
    bug(
        "two paths, two scales",
        "x-transformers#190",
        "the fast path and the plain one scale differently",
        changed(core="sdpa"),
        SCALE,
        OVER_HEAD,
        OVER_MODEL,
        other=changed(factor="1/sqrt(width)"),
    ),
    bug(
        "tiled groups",
        "jax-js#180, mamba#462",
        "query head h uses head h mod G of the keys and values, not ⌊h·G/H⌋",
        changed(core="sdpa", kv_heads=2, bias=False, fault="tiled"),
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
        changed(fault="over queries"),
        r"over (the )?quer(y|ies)|query axis|axis of (the )?queries|columns? .*sums? to (1|one)",
    ),
    bug(
        "dropout left on",
        "many",
        "the framework's function drops in evaluation too",
        changed(core="sdpa", fault="dropout"),
        r"calls.*differ|differ.*calls|not deterministic|random forward|forward is random|dropout.*(left|is) on\b",
    ),
    bug(
        "normalised queries and keys",
        "many: QK-norm",
        "scores are bounded, and not bilinear",
        partial(Layer, normalised),
        f"{QUERY}|{KEY}|scores",
        r"(?<!not )normali[sz]ed|not bilinear|\bbounded",
    ),
)
