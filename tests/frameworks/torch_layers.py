"""Attention in PyTorch as people write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn

Make = Callable[[], Any]
Attend = Callable[[Any, Any, Any], Any]


class Own(nn.Module):
    """Four heads; `attend` takes queries, keys and values, (batch, heads, positions, head_dim).

    Functions `before`, `of_keys` and `after` change the inputs, those of the keys alone, and the outputs.
    """

    def __init__(self, attend: Attend | None = None, kv: int = 4, width: int = 64, **functions: Any) -> None:
        super().__init__()
        self.attend, self.kv = attend or F.scaled_dot_product_attention, kv
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv * width // 4, bias=False) for _ in range(2))
        for name in ("before", "of_keys", "after"):
            setattr(self, name, functions.get(name) or nn.Identity())

    def forward(self, x: Any) -> Any:
        return self.after(self.o(self.attend(*self.projected(self.before(x))).transpose(1, 2).flatten(2)))

    def projected(self, x: Any) -> tuple[Any, ...]:
        return self.split(self.q(x), 4), self.split(self.k(self.of_keys(x)), self.kv), self.split(self.v(x), self.kv)

    def split(self, a: Any, heads: int) -> Any:
        return a.unflatten(-1, (heads, -1)).transpose(1, 2)


def by_hand(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def multi_head(width: int = 64, heads: int = 4, **fields: Any) -> Make:
    return lambda: nn.MultiheadAttention(width, heads, **({"batch_first": True} | fields))
