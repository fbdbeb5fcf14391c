"""NumPy attention with one variation at a time, right or wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from attncheck.frameworks.adapter import Adapter
from attncheck.frameworks.trace import AttentionCore, Trace

Array = NDArray[Any]
Draw = Callable[[np.random.Generator, tuple[int, int]], Array]


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.standard_normal(shape)


def softmax(p: Array, axis: int = -1) -> Array:
    return np.asarray(special.softmax(p, axis))


def mask_of(visible: Callable[[Array, Array], Array]) -> Callable[[Array], Array]:
    """Return a mask of scores that shows position j to position i where ``visible(i, j)``."""
    return lambda p: np.where(visible(*np.ogrid[: p.shape[-2], : p.shape[-1]]), p, -np.inf)


CAUSAL = mask_of(lambda i, j: j <= i)


@dataclasses.dataclass
class Plain(Adapter):
    """A right layer by default; `before` changes q, k and v, `mapped` turns scores q·k into weights."""

    width: int = 64
    heads: int = 4
    kv: int = 4
    head_dim: int = 16
    dtype: Any = np.float32
    draw: Draw = normal
    stds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    bias: float = 0.0
    factor: float | None = None
    mapped: Callable[[Array], Array] = softmax
    masked: Callable[[Array], Array] = lambda p: p
    before: Callable[[Array, Array, Array], tuple[Array, Array, Array]] = lambda q, k, v: (q, k, v)
    spread: Callable[[Array, int], Array] = lambda a, times: np.repeat(a, times, 1)
    split: Callable[[Array, int], Array] = lambda a, heads: a.reshape(*a.shape[:2], heads, -1).swapaxes(1, 2)
    merge: Callable[[Array], Array] = lambda o: o.swapaxes(1, 2).reshape(o.shape[0], o.shape[2], -1)
    normed: Callable[[Array], Array] = lambda x: x
    after: Callable[[Array, Array], Array] = lambda y, x: y
    changed: Callable[[dict[str, Array]], None] = lambda state: None

    def __post_init__(self) -> None:
        self.precision = float(np.finfo(self.dtype).eps) / 2

    def make(self, seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        n, inner, groups = self.width, self.heads * self.head_dim, self.kv * self.head_dim
        shapes = {"query": (n, inner), "key": (n, groups), "value": (n, groups), "output": (inner, n)}
        state = {}
        for role, shape in shapes.items():
            std = self.stds.get(role, 1.0) / shape[0] ** 0.5
            state[role] = (std * self.draw(rng, shape)).astype(self.dtype)
            state[f"{role} bias"] = (self.bias * rng.standard_normal(shape[1]) / shape[0] ** 0.5).astype(self.dtype)
        self.changed(state)
        return state

    def run(self, state: dict[str, Array], x: Array, trace: Trace, path: str = "") -> Array:
        z = self.normed(x.astype(self.dtype))
        q, k, v = (
            self.split(z @ state[role] + state[f"{role} bias"], heads)
            for role, heads in (("query", self.heads), ("key", self.kv), ("value", self.kv))
        )
        q, k, v = (a.astype(self.dtype) for a in self.before(q, k, v))
        weights = self.weights(q, k)
        wide = [a.astype(np.float64) for a in (q, k, v, weights)]
        heads = trace.core(AttentionCore(wide[0], wide[1], wide[2], wide[3]))
        o = self.attend(weights, v) if heads is None else np.asarray(heads).astype(self.dtype)
        return self.after(self.merge(o) @ state["output"] + state["output bias"], x.astype(self.dtype))

    def weights(self, q: Array, k: Array) -> Array:
        factor = q.shape[-1] ** -0.5 if self.factor is None else self.factor
        k = self.spread(k, q.shape[1] // k.shape[1])
        return np.asarray(self.mapped(self.masked((q @ k.swapaxes(-1, -2)) * self.dtype(factor)))).astype(self.dtype)

    def attend(self, weights: Array, v: Array) -> Array:
        return np.asarray(weights @ self.spread(v, weights.shape[1] // v.shape[1]))
