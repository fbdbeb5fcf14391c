"""Binding to flax (linen and nnx)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from flax import nnx

from attncheck.frameworks._jax import JaxBinding, on_cpu
from attncheck.frameworks.binding import parameters_of

Call = Callable[[Any, Any], Any]


def bind(make: Callable[..., Any], width: int, call: Call | None = None) -> Linen | NNX:
    """Return the binding to linen or nnx modules."""
    linen = "rngs" not in parameters_of(make) and isinstance(make(), nn.Module)
    return (Linen if linen else NNX)(make, width, call)


class Linen(JaxBinding):
    """Binding to a flax.linen layer that ``make()`` returns."""

    def __init__(self, make: Callable[[], Any], width: int, call: Call | None = None) -> None:
        super().__init__(make, width, call)
        self._module = make()

    def init(self, seed: int) -> Any:
        """Return freshly initialised variables."""
        with on_cpu():
            return nn.init(self._call, self._module)(jax.random.PRNGKey(seed), jax.numpy.zeros((1, 2, self._width)))

    def _split(self, state: Any) -> tuple[Any, Any]:
        return None, state

    def _joined(self, structure: Any, arrays: Any) -> Any:
        return arrays

    def _forward(self, structure: Any, arrays: Any, x: Any) -> Any:
        return nn.apply(self._call, self._module)(arrays, x)


class NNX(JaxBinding):
    """Binding to a flax.nnx layer that ``make(rngs)`` returns."""

    def init(self, seed: int) -> Any:
        """Return a freshly initialised module."""
        with on_cpu():
            rngs = {"rngs": nnx.Rngs(jax.random.key(seed))} if "rngs" in parameters_of(self._make) else {}
            return self._make(**rngs)

    def _split(self, state: Any) -> tuple[Any, Any]:
        structure, arrays = nnx.split(state)
        return structure, nnx.to_pure_dict(arrays)

    def _joined(self, structure: Any, arrays: Any) -> Any:
        return nnx.merge(structure, arrays)

    def _called(self, module: Any, x: Any) -> Any:
        return whole(module, x)


def whole(module: Any, *given: Any) -> Any:
    """Call an nnx module on whole sequences, without step-by-step decoding."""
    undecided = isinstance(module, nnx.MultiHeadAttention) and module.decode is None
    return module(*given, decode=False) if undecided else module(*given)
