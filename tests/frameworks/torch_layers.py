"""Attention in PyTorch as people write it, and what an inspection says about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import attncheck as ac
from attncheck.frameworks.result import Inspection

pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn

Make = Callable[[], Any]
Attend = Callable[[Any, Any, Any], Any]


class Own(nn.Module):
    """Four heads; `attend` takes queries, keys and values, (batch, heads, positions, head_dim)."""

    def __init__(self, attend: Attend | None = None, kv: int = 4, width: int = 64) -> None:
        super().__init__()
        self.attend, self.kv = attend or F.scaled_dot_product_attention, kv
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv * width // 4, bias=False) for _ in range(2))

    def forward(self, x: Any) -> Any:
        shape = *x.shape[:2], -1, x.shape[2] // 4
        q, k, v = (m(x).view(shape).transpose(1, 2) for m in (self.q, self.k, self.v))
        return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))


def by_hand(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def multi_head(width: int = 64, heads: int = 4, **given: Any) -> Make:
    return lambda: nn.MultiheadAttention(width, heads, **({"batch_first": True} | given))


def inspected(make: Any, call: Any = None, **options: Any) -> Inspection:
    """Inspect a layer of width 64 in two draws."""
    return ac.inspect(make, 64, call, **({"draws": 2} | options))


def told(found: Inspection) -> list[str]:
    return [str(note) for note in found.notes]
