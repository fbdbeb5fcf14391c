"""Layers of equinox: attention is watched at the function that `equinox.nn.MultiheadAttention` calls for every head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attncheck.frameworks._jax import Watch, filled, first, named, on_cpu
from attncheck.frameworks.binding import SINGLE, Core, FloatArray, SoftmaxCore, parameters_of, untouched


class Equinox:
    """A layer of equinox.

    Parameters
    ----------
    make : callable
        ``make(key)`` returns a module, drawn from a key of JAX.
    width : int
    call : callable, optional
        ``call(module, x)`` runs it on one sequence (L, width), as modules of equinox expect.
    """

    def __init__(self, make: Callable[..., Any], width: int, call: Callable[[Any, Any], Any] | None = None) -> None:
        self._make = make
        self._keyed = "key" in parameters_of(make)
        self._call = call or _self_attention
        self.precision = SINGLE

    def init(self, seed: int) -> Any:
        """Return a new module."""
        import jax

        with on_cpu():
            return self._make(key=jax.random.PRNGKey(seed)) if self._keyed else self._make()

    def run(self, state: Any, x: FloatArray, core: Core) -> Any:
        """Return the module's outputs for x, with `core` in the place of attention."""
        import equinox.nn._attention as attention
        import jax

        if core is untouched:
            return self._outputs(state, x, eager=False)
        watch, name = Watch(core), "dot_product_attention"
        with watch.replacing(attention, name=name, axes="HLd"), watch.replacing(jax.nn, name=name):
            y = self._outputs(state, x)
        self.precision = watch.precision
        return y

    def softmax(self, state: Any, x: FloatArray, core: SoftmaxCore) -> Any:
        """Return the module's outputs for x, with `core` in the place of every softmax."""
        import jax

        with Watch(core).replacing(jax.nn, name="softmax", arguments=1, axes="LL"):
            return self._outputs(state, x)

    def parameters(self, state: Any) -> Mapping[str, FloatArray]:
        """Return the module's arrays, by name."""
        return named(state)

    def fill(self, state: Any, arrays: Mapping[str, FloatArray]) -> Any:
        """Return a module with arrays in place of its own."""
        return filled(state, arrays)

    def _outputs(self, module: Any, x: FloatArray, eager: bool = True) -> Any:
        import jax

        with on_cpu(eager):
            return first(jax.vmap(lambda each: self._call(module, each))(jax.numpy.asarray(x)))


def _self_attention(module: Any, x: Any) -> Any:
    import equinox

    return module(x, x, x) if isinstance(module, equinox.nn.MultiheadAttention) else module(x)
