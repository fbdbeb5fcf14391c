"""Taps of flax modules (linen and nnx): outputs, attention scores and weights."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from flax import nnx
from flax.traverse_util import flatten_dict

from attncheck._lib.errors import refuse
from attncheck._lib.streams import stream
from attncheck.frameworks._jax import on_cpu
from attncheck.frameworks.binding import in_words, parameters_of
from attncheck.frameworks.flax_modules import linen_traced, nnx_traced
from attncheck.frameworks.models import FrameworkModels
from attncheck.frameworks.tap_collector import ArrayReader, TapCollector
from attncheck.frameworks.trace import FloatArray
from attncheck.scaling.taps import Tap


@dataclasses.dataclass(frozen=True, eq=False)
class FlaxModels(FrameworkModels):
    """flax modules: linen from ``build(width)``, nnx from ``build(width, rngs)``.

    Inputs are standard normal vectors by default.
    """

    _steps: dict[int, Callable[..., Any]] = dataclasses.field(default_factory=dict, repr=False)

    def make(self, width: int, seed: int) -> FlaxModel:
        """Return a module of this width with inputs."""
        rng = stream(seed, "inputs", width)
        given = tuple(_given(each) for each in self.given(width, rng))
        call = self.call or _called
        with on_cpu():
            if "rngs" in parameters_of(self.build):
                form: _Form = _NNX(call, in_words("build", self.build, width, rngs=nnx.Rngs(jax.random.key(seed))))
            else:
                form = _Linen(call, in_words("build", self.build, width), seed, given)
        return FlaxModel(self, width, form, given, rng)


@dataclasses.dataclass(eq=False)
class FlaxModel:
    """A module with its inputs."""

    models: FlaxModels
    width: int
    form: _Form
    given: tuple[Any, ...]
    rng: np.random.Generator
    _state: Any = None
    _targets: Any = None

    def taps(self) -> Mapping[str, Tap]:
        """Run the module eagerly; return the taps by name."""
        precision = float(np.finfo(np.float32).eps)
        seen = TapCollector(ArrayReader(_first, _numbers), precision, self.given[0].shape[:2][-1])
        with on_cpu(), jax.disable_jit():
            made = in_words("call", self.form.watched, seen, *self.given)
        if _first(made) is None:
            refuse("call", made, "returned no array of real numbers", "pass call=lambda module, *inputs: ...")
        seen.ends_with(_first(made))
        return seen.taps

    def weights(self) -> dict[str, FloatArray]:
        """Return the module's parameters by name."""
        return {".".join(map(str, path)): _numbers(each) for path, each in self.form.named()}

    def step(self) -> None:
        """Take an optimiser step, compiled once per width."""
        assert self.models.optimizer is not None
        with on_cpu():
            if self._state is None:
                transformation = in_words("optimizer", self.models.optimizer, self.form.parameters)
                self._state = transformation.init(self.form.parameters)
                outputs = _first(self.form.outputs(self.form.parameters, self.form.others, *self.given))
                self._targets = jax.numpy.asarray(self.rng.standard_normal(outputs.shape), outputs.dtype)
                compiled = functools.partial(jax.jit, functools.partial(self._stepped, transformation))
                self.models._steps.setdefault(self.width, compiled())
            step = self.models._steps[self.width]
            form = self.form
            made = in_words("loss", step, form.parameters, form.others, self._state, self._targets, *self.given)
            form.parameters, self._state = made

    def _stepped(
        self, transformation: Any, parameters: Any, others: Any, state: Any, targets: Any, *given: Any
    ) -> tuple[Any, Any]:
        """Return parameters and state after a step; arguments are all that differs between models of one width."""

        def loss(each: Any) -> Any:
            outputs = _first(self.form.outputs(each, others, *given))
            own = self.models.loss
            return ((outputs - targets) ** 2).mean() if own is None else own(outputs, *given)

        changes, state = transformation.update(jax.grad(loss)(parameters), state, parameters)
        return optax.apply_updates(parameters, changes), state


class _Linen:
    """A linen module with its variables."""

    def __init__(self, call: Callable[..., Any], module: Any, seed: int, given: tuple[Any, ...]) -> None:
        self._call, self._module = call, module
        variables = in_words("call", nn.init(call, module), jax.random.PRNGKey(seed), *given)
        self.parameters = variables["params"]
        self.others = {name: each for name, each in variables.items() if name != "params"}

    def named(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield paths and arrays of the parameters."""
        yield from flatten_dict(self.parameters).items()

    def outputs(self, parameters: Any, others: Any, *given: Any) -> Any:
        """Return the outputs."""
        return nn.apply(self._call, self._module)({"params": parameters, **others}, *given)

    def watched(self, seen: TapCollector, *given: Any) -> Any:
        """Return the outputs and collect taps."""
        with linen_traced(seen):
            return self.outputs(self.parameters, self.others, *given)


class _NNX:
    """An nnx module whose parameters are replaced."""

    def __init__(self, call: Callable[..., Any], module: Any) -> None:
        module.eval()
        self._call = call
        self._structure, self.parameters, self.others = nnx.split(module, nnx.Param, ...)

    def named(self) -> Iterator[tuple[tuple[str | int, ...], Any]]:
        """Yield paths and arrays of the parameters."""
        yield from ((path, each.get_value()) for path, each in nnx.to_flat_state(self.parameters))

    def outputs(self, parameters: Any, others: Any, *given: Any) -> Any:
        """Return the outputs."""
        return self._call(nnx.merge(self._structure, parameters, others), *given)

    def watched(self, seen: TapCollector, *given: Any) -> Any:
        """Return the outputs and collect taps."""
        module = nnx.merge(self._structure, self.parameters, self.others)
        with nnx_traced(seen, module):
            return self._call(module, *given)


_Form = _Linen | _NNX


def _called(module: Any, *given: Any) -> Any:
    if isinstance(module, nnx.MultiHeadAttention) and module.decode is None:
        return module(*given, decode=False)
    return module(*given)


def _given(array: np.ndarray[Any, Any]) -> Any:
    return jax.numpy.asarray(array, np.float32 if array.dtype.kind == "f" else None)


def _first(made: Any) -> Any:
    """Return the first real array, or None."""
    arrays = (each for each in jax.tree_util.tree_leaves(made) if isinstance(each, jax.Array))
    return next((each for each in arrays if jax.numpy.issubdtype(each.dtype, jax.numpy.floating)), None)


def _numbers(array: Any) -> FloatArray:
    return np.asarray(array, dtype=np.float64)
