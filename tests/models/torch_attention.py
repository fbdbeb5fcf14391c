"""Causal attention in PyTorch whose steps are methods, a cache, and models of such attention."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # only where torch is

WIDTH, HEADS, TOKENS = 32, 2, 40


def split(x: Any, number: int = HEADS) -> Any:
    return x.unflatten(-1, (number, -1)).transpose(1, 2)


class Steps(nn.Module):
    """Steps of causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def weights(self, scores: Any) -> Any:
        return self.masked(scores).softmax(-1)

    def masked(self, scores: Any) -> Any:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + scores.shape[-1] - scores.shape[-2])
        return scores.masked_fill(later, -torch.inf)

    def projected(self, x: Any) -> list[Any]:
        return [split(part(x)) for part in (self.q, self.k, self.v)]

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        return self.merged(self.weights(q @ k.mT / q.shape[-1] ** 0.5) @ v)

    def merged(self, heads: Any) -> Any:
        return self.o(heads.transpose(1, 2).flatten(2))


class Attention(Steps):
    """Causal attention of one input."""

    def forward(self, x: Any, cache: Any = None) -> Any:
        q, k, v = self.projected(x)
        return self.attend(q, *((k, v) if cache is None else cache.update(k, v)))


class Differential(Steps):
    """The difference of the weights of two heads, which then multiply the values."""

    def forward(self, x: Any, cache: Any = None) -> Any:
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x), HEADS // 2)
        weights = self.weights(q @ k.mT).unflatten(1, (-1, 2))
        return self.merged((weights[:, :, 0] - 0.5 * weights[:, :, 1]) @ v)


class Cache:
    """Keys and values of earlier calls, with a lock, which cannot be copied."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.lock = threading.Lock()

    def update(self, k: Any, v: Any) -> tuple[Any, ...]:
        self.stored.append((k, v))
        return tuple(torch.cat(parts, 2) for parts in zip(*self.stored, strict=True))


class Block(nn.Module):
    """A block that normalises first."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.fc = attention, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, cache: Any = None) -> Any:
        x = x + self.attn(self.ln_1(x), cache)
        return x + self.fc(self.ln_2(x))


class Model(nn.Module):
    """Blocks between an embedding and a projection."""

    def __init__(
        self,
        attention: Callable[[], nn.Module] = Attention,
        block: Callable[..., nn.Module] = Block,
        depth: int = 2,
    ) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.h = nn.ModuleList(block(attention()) for _ in range(depth))

    def embedded(self, ids: Any) -> Any:
        return self.embed(ids)

    def forward(self, ids: Any) -> Any:
        x = self.embedded(ids)
        for block in self.h:
            x = block(x)
        return self.head(x)
