"""Adapter to equinox."""

from __future__ import annotations

from typing import Any

import equinox
import jax

from attncheck.frameworks._jax import JaxAdapter, on_cpu


class Equinox(JaxAdapter):
    """Adapter to an equinox layer that ``make(key)`` or ``make()`` returns.

    By default the module is called on one sequence, (positions, width), at a time; `call` takes all inputs, (batch,
    positions, width).
    """

    def make(self, seed: int) -> Any:
        """Return a new module."""
        with on_cpu():
            return self.new_module(key=jax.random.PRNGKey(seed))

    def plain(self, module: Any, x: Any) -> Any:
        """Call a module on each sequence; `equinox.nn.MultiheadAttention` gets the sequence as query, key and value."""
        several = 3 if isinstance(module, equinox.nn.MultiheadAttention) else 1
        return jax.vmap(lambda sequence: module(*[sequence] * several))(x)

    def _split(self, module: Any) -> tuple[Any, Any]:
        return tuple(reversed(equinox.partition(module, equinox.is_array)))

    def _joined(self, structure: Any, arrays: Any) -> Any:
        return equinox.combine(arrays, structure)
