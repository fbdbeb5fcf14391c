"""Binding to equinox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox
import jax

from attncheck.frameworks._jax import JaxBinding, on_cpu
from attncheck.frameworks.binding import parameters_of


class Equinox(JaxBinding):
    """Binding to an equinox layer that ``make(key)`` or ``make()`` returns.

    By default the module runs on each sequence (L, width); `call` takes inputs (B, L, width).
    """

    def __init__(self, make: Callable[..., Any], width: int, call: Callable[[Any, Any], Any] | None = None) -> None:
        super().__init__()
        self._make = make
        self._keyed = "key" in parameters_of(make)
        self._call = call or _self_attention

    def init(self, seed: int) -> Any:
        """Return a new module."""
        with on_cpu():
            return self._make(key=jax.random.PRNGKey(seed)) if self._keyed else self._make()

    def _split(self, state: Any) -> tuple[Any, Any]:

        return tuple(reversed(equinox.partition(state, equinox.is_array)))

    def _joined(self, structure: Any, arrays: Any) -> Any:

        return equinox.combine(arrays, structure)

    def _forward(self, structure: Any, arrays: Any, x: Any) -> Any:
        return self._call(self._joined(structure, arrays), x)


def _self_attention(module: Any, x: Any) -> Any:
    """Run a module on every sequence (L, width), as equinox expects."""
    several = 3 if isinstance(module, equinox.nn.MultiheadAttention) else 1
    return jax.vmap(lambda each: module(*[each] * several))(x)
