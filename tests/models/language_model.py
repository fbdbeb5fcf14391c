"""A small language model in PyTorch, which tests change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import attncheck as ac
from attncheck.models.result import ModelInspection

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # only where torch is

WIDTH, HEADS, LAYERS, TOKENS = 32, 2, 4, 50
IDS = torch.arange(24).reshape(2, 12) % TOKENS
STD = 0.05


class Attention(nn.Module):
    """Causal attention with packed projections."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, mask: Any = None) -> Any:
        q, k, v = (a.unflatten(-1, (HEADS, -1)).transpose(1, 2) for a in self.c_attn(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + mask
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.attn = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.fc, self.c_proj = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Any, mask: Any) -> Any:
        x = x + self.attn(self.ln_1(x), mask=mask)
        return x + self.c_proj(nn.functional.gelu(self.fc(self.ln_2(x))))


class Model(nn.Module):
    """A small language model, initialised as GPT-2 is."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(TOKENS, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        for name, each in self.named_parameters():
            if each.ndim > 1:
                nn.init.normal_(each, std=STD / (2 * LAYERS) ** 0.5 if "c_proj" in name else STD)
            elif name.endswith("bias"):
                nn.init.zeros_(each)

    def forward(self, ids: Any) -> Any:
        length = ids.shape[1]
        mask = torch.full((length, length), -torch.inf).triu(1)
        x = self.wte(ids)
        for block in self.h:
            x = block(x, mask)
        return self.head(self.ln_f(x))


SIZE = sum(each.numel() for each in Model().parameters())


def inspected(change: Callable[[Any], None] | None = None, **options: Any) -> ModelInspection:
    def make() -> Any:
        model = Model()
        if change is not None:
            with torch.no_grad():
                change(model)
        return model

    return ac.inspect(make, inputs=(IDS,), **options)
