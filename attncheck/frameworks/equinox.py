"""Binding to equinox."""

from __future__ import annotations

from typing import Any

import equinox
import jax

from attncheck.frameworks._jax import JaxBinding, on_cpu
from attncheck.frameworks.binding import parameters_of


class Equinox(JaxBinding):
    """Binding to an equinox layer that ``make(key)`` or ``make()`` returns.

    By default the module is called on one sequence, (positions, width), at a time; `call` takes all inputs, (batch,
    positions, width).
    """

    def init(self, seed: int) -> Any:
        """Return a new module."""
        with on_cpu():
            return self._make(key=jax.random.PRNGKey(seed)) if "key" in parameters_of(self._make) else self._make()

    def _split(self, state: Any) -> tuple[Any, Any]:
        return tuple(reversed(equinox.partition(state, equinox.is_array)))

    def _joined(self, structure: Any, arrays: Any) -> Any:
        return equinox.combine(arrays, structure)

    def _called(self, module: Any, x: Any) -> Any:
        several = 3 if isinstance(module, equinox.nn.MultiheadAttention) else 1
        return jax.vmap(lambda each: module(*[each] * several))(x)
