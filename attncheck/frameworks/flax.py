"""Layers of flax, linen and nnx: attention is watched at `attention_fn`, and at the functions of flax and of JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attncheck.frameworks._jax import Watch, filled, first, named, on_cpu
from attncheck.frameworks.binding import SINGLE, Core, FloatArray, SoftmaxCore, parameters_of, untouched

Call = Callable[[Any, Any], Any]
_NAME = "dot_product_attention"


def bind(make: Callable[..., Any], width: int, call: Call | None = None) -> Linen | NNX:
    """Return the binding to the modules that `make` makes, of linen or of nnx."""
    import flax.linen as nn

    linen = "rngs" not in parameters_of(make) and isinstance(make(), nn.Module)
    return (Linen if linen else NNX)(make, width, call)


class Linen:
    """A layer of flax.linen.

    Parameters
    ----------
    make : callable
        ``make()`` returns a module.
    width : int
        Number of input neurons.
    call : callable, optional
        ``call(module, x)`` runs it; ``module(x)`` if None.
    """

    def __init__(self, make: Callable[[], Any], width: int, call: Call | None = None) -> None:
        self._make = make
        self._width = width
        self._call = call or _self_attention
        self.precision = SINGLE

    def init(self, seed: int) -> Any:
        """Return a new module and its variables."""
        import flax.linen as nn
        import jax

        with on_cpu():
            module, x = self._make(), jax.numpy.zeros((1, 2, self._width))
            return module, nn.init(self._call, module)(jax.random.PRNGKey(seed), x)

    def run(self, state: Any, x: FloatArray, core: Core) -> Any:
        """Return the module's outputs for x, with `core` in the place of attention."""
        import flax.linen as nn
        import jax

        if core is untouched:
            return self._outputs(state, x, eager=False)
        watch = Watch(core)

        def intercept(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
            own = vars(context.module).get("attention_fn")
            if own is None:
                return method(*args, **kwargs)
            # A module that runs is frozen, and a clone of it would look for parameters of its own.
            object.__setattr__(context.module, "attention_fn", watch.over(own))
            try:
                return method(*args, **kwargs)
            finally:
                object.__setattr__(context.module, "attention_fn", own)

        with watch.replacing(nn, nn.attention, jax.nn, name=_NAME), nn.intercept_methods(intercept):
            y = self._outputs(state, x)
        self.precision = watch.precision
        return y

    def softmax(self, state: Any, x: FloatArray, core: SoftmaxCore) -> Any:
        """Return the module's outputs for x, with `core` in the place of every softmax."""
        import flax.linen as nn
        import jax

        with Watch(core).replacing(nn, jax.nn, name="softmax", arguments=1, axes="LL"):
            return self._outputs(state, x)

    def parameters(self, state: Any) -> Mapping[str, FloatArray]:
        """Return the module's arrays, by name."""
        return named(state[1]["params"])

    def fill(self, state: Any, arrays: Mapping[str, FloatArray]) -> Any:
        """Return the module and its variables, with arrays in place of its parameters."""
        module, variables = state
        return module, {**variables, "params": filled(variables["params"], arrays)}

    def _outputs(self, state: Any, x: FloatArray, eager: bool = True) -> Any:
        import flax.linen as nn
        import jax

        module, variables = state
        with on_cpu(eager):
            return first(nn.apply(self._call, module)(variables, jax.numpy.asarray(x)))


class NNX:
    """A layer of flax.nnx.

    Parameters
    ----------
    make : callable
        ``make(rngs)`` returns a module, drawn from `nnx.Rngs`.
    width : int
    call : callable, optional
        ``call(module, x)`` runs it; ``module(x)`` if None.
    """

    def __init__(self, make: Callable[..., Any], width: int, call: Call | None = None) -> None:
        self._make = make
        self._drawn = "rngs" in parameters_of(make)
        self._call = call or _self_attention
        self.precision = SINGLE

    def init(self, seed: int) -> Any:
        """Return a new module."""
        from flax import nnx

        with on_cpu():
            return self._make(rngs=nnx.Rngs(seed)) if self._drawn else self._make()

    def run(self, state: Any, x: FloatArray, core: Core) -> Any:
        """Return the outputs of a copy of the module for x, with `core` in the place of attention."""
        import jax
        from flax import nnx

        watch, module = Watch(core), nnx.clone(state)
        if core is untouched:
            return self._outputs(module, x, eager=False)
        for _, each in nnx.iter_graph(module):
            if isinstance(each, nnx.Module) and hasattr(each, "attention_fn"):
                each.attention_fn = watch.over(each.attention_fn)
        with watch.replacing(nnx, nnx.nn.attention, jax.nn, name=_NAME):
            y = self._outputs(module, x)
        self.precision = watch.precision
        return y

    def softmax(self, state: Any, x: FloatArray, core: SoftmaxCore) -> Any:
        """Return the outputs of a copy of the module for x, with `core` in the place of every softmax."""
        import jax
        from flax import nnx

        with Watch(core).replacing(nnx, jax.nn, name="softmax", arguments=1, axes="LL"):
            return self._outputs(nnx.clone(state), x)

    def parameters(self, state: Any) -> Mapping[str, FloatArray]:
        """Return the module's arrays, by name."""
        from flax import nnx

        return named(nnx.to_pure_dict(nnx.state(state, nnx.Param)))

    def fill(self, state: Any, arrays: Mapping[str, FloatArray]) -> Any:
        """Return the module itself, with arrays in place of its parameters."""
        from flax import nnx

        held = nnx.state(state, nnx.Param)
        nnx.replace_by_pure_dict(held, filled(nnx.to_pure_dict(held), arrays))
        nnx.update(state, held)
        return state

    def _outputs(self, module: Any, x: FloatArray, eager: bool = True) -> Any:
        import jax

        with on_cpu(eager):
            return first(self._call(module, jax.numpy.asarray(x)))


def _self_attention(module: Any, x: Any) -> Any:
    from flax import nnx

    if isinstance(module, nnx.MultiHeadAttention) and module.decode is None:
        return module(x, decode=False)
    return module(x)
