"""Taps of flax modules (linen and nnx): outputs, attention scores and weights."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from flax import nnx
from flax.traverse_util import flatten_dict

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.frameworks._jax import on_cpu
from attncheck.frameworks.binding import in_words, parameters_of
from attncheck.frameworks.flax import whole
from attncheck.frameworks.flax_modules import linen_traced, nnx_traced
from attncheck.frameworks.models import FrameworkModel, FrameworkModels
from attncheck.frameworks.tap_collector import ArrayReader, TapCollector


@dataclasses.dataclass(frozen=True, eq=False)
class FlaxModels(FrameworkModels):
    """flax modules: linen from ``build(width)``, nnx from ``build(width, rngs)``.

    Inputs are standard normal vectors by default.
    """

    _steps: dict[int, list[Callable[..., Any]]] = dataclasses.field(default_factory=dict, repr=False)

    def make(self, width: int, seed: int) -> FlaxModel:
        """Return a module of this width with inputs."""
        rng = stream(seed, "inputs", width)
        given = tuple(_given(each) for each in self.given(width, rng))
        call = self.call or whole
        with on_cpu():
            if "rngs" in parameters_of(self.build):
                form: _Form = _NNX(in_words("build", self.build, width, rngs=nnx.Rngs(jax.random.key(seed))))
            else:
                form = _Linen(call, in_words("build", self.build, width), seed, given)
            module = form.joined(form.parameters, form.others)
        precision = float(np.finfo(np.float32).eps)
        reader, steps = ArrayReader(_first, _numbers), self._steps.setdefault(width, [])
        return FlaxModel(module, given, call, self.optimizer, self.distance, reader, precision, form, steps, rng)

    def distance(self, outputs: Any, targets: Any, *given: Any) -> Any:
        """Return the user's loss of the outputs, else their mean square distance from the targets."""
        return ((outputs - targets) ** 2).mean() if self.loss is None else self.loss(outputs, *given)


@dataclasses.dataclass(eq=False)
class FlaxModel(FrameworkModel):
    """A module with its inputs, and an optax optimiser if it takes steps.

    `form` makes `module` from parameters and other variables. All models of one width share the list `compiled`, which
    holds the compiled step once one has been taken.
    """

    form: _Form
    compiled: list[Callable[..., Any]]
    rng: np.random.Generator
    _state: Any = None
    _targets: Any = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run eagerly on the CPU."""
        with on_cpu(), jax.disable_jit():
            yield

    def watched(self, seen: TapCollector) -> contextlib.AbstractContextManager[None]:
        """Tap all modules and every softmax."""
        return linen_traced(seen) if isinstance(self.form, _Linen) else nnx_traced(seen, self.module)

    def weights(self) -> dict[str, FloatArray]:
        """Return the module's parameters by name."""
        return {".".join(map(str, path)): _numbers(each) for path, each in self.form.named()}

    def step(self) -> None:
        """Take an optimiser step, compiled once per width."""
        form = self.form
        with on_cpu():
            if self._state is None:
                transformation = in_words("optimizer", self.optimizer, form.parameters)
                self._state = transformation.init(form.parameters)
                outputs = _first(self.call(self.module, *self.given))
                self._targets = jax.numpy.asarray(self.rng.standard_normal(outputs.shape), outputs.dtype)
                if not self.compiled:
                    self.compiled.append(jax.jit(functools.partial(self._stepped, transformation)))
            (step,) = self.compiled
            made = in_words("loss", step, form.parameters, form.others, self._state, self._targets, *self.given)
            form.parameters, self._state = made
            self.module = form.joined(form.parameters, form.others)

    def _stepped(
        self, transformation: Any, parameters: Any, others: Any, state: Any, targets: Any, *given: Any
    ) -> tuple[Any, Any]:
        """Return the parameters and the optimiser's state after one step.

        Everything that differs between models of one width is an argument, so that they can share one compiled step.
        """

        def loss(each: Any) -> Any:
            return self.loss(_first(self.call(self.form.joined(each, others), *given)), targets, *given)

        changes, state = transformation.update(jax.grad(loss)(parameters), state, parameters)
        return optax.apply_updates(parameters, changes), state


class _Linen:
    """A linen module with its variables."""

    def __init__(self, call: Callable[..., Any], module: Any, seed: int, given: tuple[Any, ...]) -> None:
        self._module = module
        variables = in_words("call", nn.init(call, module), jax.random.PRNGKey(seed), *given)
        self.parameters = variables["params"]
        self.others = {name: each for name, each in variables.items() if name != "params"}

    def joined(self, parameters: Any, others: Any) -> Any:
        """Return the module with these variables."""
        return self._module.bind({"params": parameters, **others})

    def named(self) -> Iterator[tuple[tuple[str | int, ...], Any]]:
        """Yield paths and arrays of the parameters."""
        yield from flatten_dict(self.parameters).items()


class _NNX:
    """An nnx module whose parameters are replaced."""

    def __init__(self, module: Any) -> None:
        module.eval()
        self._structure, self.parameters, self.others = nnx.split(module, nnx.Param, ...)

    def joined(self, parameters: Any, others: Any) -> Any:
        """Return the module with these variables."""
        return nnx.merge(self._structure, parameters, others)

    def named(self) -> Iterator[tuple[tuple[str | int, ...], Any]]:
        """Yield paths and arrays of the parameters."""
        yield from ((path, each.get_value()) for path, each in nnx.to_flat_state(self.parameters))


_Form = _Linen | _NNX


def _given(array: np.ndarray[Any, Any]) -> Any:
    return jax.numpy.asarray(array, np.float32 if array.dtype.kind == "f" else None)


def _first(made: Any) -> Any:
    """Return the first array of real numbers in an output, or None."""
    arrays = (each for each in jax.tree_util.tree_leaves(made) if isinstance(each, jax.Array))
    return next((each for each in arrays if jax.numpy.issubdtype(each.dtype, jax.numpy.floating)), None)


def _numbers(array: Any) -> FloatArray:
    return np.asarray(array, dtype=np.float64)
