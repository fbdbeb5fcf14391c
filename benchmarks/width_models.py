"""A small PyTorch transformer of any width, in two right parametrisations and with bugs from public code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

POSITIONS, VOCABULARY = 16, 64
#: Base width, at which both parametrisations agree.
BASE = 64
_LEARNING_RATE = 5e-3


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Recipe to build, initialise and train a transformer.

    Attributes
    ----------
    mup : bool
        Maximal update, else the standard parametrisation.
    depth, heads : int
    head_dim : int or None
        Fixed head size, in place of `heads`.
    norm : str
        "layer", "rms" or "none".
    after : bool
        Norms follow the residual sum.
    by_hand : bool
        Attention is written out.
    zero_readout : bool
        The readout starts at zero.
    score_power : float or None
        Scores are divided by head_dim to this power.
    hidden_power : float
        Standard deviations of hidden matrices fall as the width to this power.
    fixed_std : float or None
        Width-independent standard deviation of hidden matrices.
    readout_power : float or None
        `hidden_power` of the readout.
    embedding_power : float
        The embeddings' learning rate falls as the width to this power.
    """

    mup: bool = True
    depth: int = 2
    heads: int = 4
    head_dim: int | None = None
    norm: str = "layer"
    after: bool = False
    by_hand: bool = False
    zero_readout: bool = False
    score_power: float | None = None
    hidden_power: float = 0.5
    fixed_std: float | None = None
    readout_power: float | None = None
    embedding_power: float = 0.0

    def build(self, width: int) -> Transformer:
        return Transformer(self, width)

    def optimizer(self, model: Transformer) -> torch.optim.Optimizer:
        """Return Adam, with the learning rates of the parametrisation."""
        multiplier = model.embedding.embedding_dim / BASE
        rates: dict[float, list[Any]] = {}
        for name, parameter in model.named_parameters():
            power = self.embedding_power if "embedding" in name else float(parameter.ndim == 2)
            rates.setdefault(power if self.mup else 0.0, []).append(parameter)
        return torch.optim.Adam(
            [{"params": each, "lr": _LEARNING_RATE * multiplier**-power} for power, each in rates.items()]
        )

    def scale(self, head_dim: int) -> float:
        power = self.score_power or (1.0 if self.mup else 0.5)
        base = self.head_dim or BASE / self.heads
        return float(base**-0.5 * (head_dim / base) ** -power)

    def std(self, name: str, fan_in: int, width: int) -> float:
        if "embedding" in name:
            return 1.0
        if "readout" in name:
            power = self.readout_power or (1.0 if self.mup else 0.5)
            return 0.0 if self.zero_readout else float(BASE**-0.5 * (width / BASE) ** -power)
        base = fan_in * BASE / width
        return self.fixed_std or float(base**-0.5 * (width / BASE) ** -self.hidden_power)


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self, recipe: Recipe, width: int) -> None:
        super().__init__()
        self.recipe = recipe
        self.heads = width // recipe.head_dim if recipe.head_dim else recipe.heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Any) -> Any:
        projections = (self.query, self.key, self.value)
        q, k, v = (each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in projections)
        scale = self.recipe.scale(q.shape[-1])
        if self.recipe.by_hand:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(-1, -2) * scale).masked_fill(later, float("-inf"))
            heads = scores.softmax(-1) @ v
        else:
            heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return self.out(heads.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a perceptron, each with a residual."""

    def __init__(self, recipe: Recipe, width: int) -> None:
        super().__init__()
        self.after = recipe.after
        self.norm1, self.norm2 = _norm(recipe, width), _norm(recipe, width)
        self.attention = Attention(recipe, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        if self.after:
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.down(functional.gelu(self.up(x))))
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A decoder."""

    def __init__(self, recipe: Recipe, width: int) -> None:
        super().__init__()
        self.embedding, self.position_embedding = nn.Embedding(VOCABULARY, width), nn.Embedding(POSITIONS, width)
        self.blocks = nn.ModuleList(Block(recipe, width) for _ in range(recipe.depth))
        self.norm, self.readout = _norm(recipe, width), nn.Linear(width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=recipe.std(name, parameter.shape[1], width))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens) + self.position_embedding(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.readout(self.norm(x))


def _norm(recipe: Recipe, width: int) -> Any:
    makes: dict[str, Callable[[int], Any]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "none": lambda _: nn.Identity()}
    return makes[recipe.norm](width)


#: Bugs from public code: recipe, first wrong tap, and the training steps after which it is wrong.
WRONG: dict[str, tuple[Recipe, str, int]] = {
    "scores over √d in a model of μP": (Recipe(score_power=0.5), "blocks.0.attention.scores", 0),
    "matrices over the multiplier, not its root": (Recipe(hidden_power=1.0), "blocks.0.attention.query", 0),
    "a fixed 0.02": (Recipe(mup=False, fixed_std=0.02), "blocks.0.attention.query", 0),
    "a readout that is not scaled": (Recipe(readout_power=0.5), "readout", 0),
    "embeddings that learn as hidden matrices do": (Recipe(embedding_power=1.0), "embedding", 1),
}
