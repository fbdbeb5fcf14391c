"""Models of flax, linen and nnx: calls of their modules, and their parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import nnx

from attncheck.frameworks._jax import on_cpu
from attncheck.frameworks.binding import Binding, in_words, parameters_of
from attncheck.frameworks.flax import NNX, Linen
from attncheck.frameworks.flax_modules import linen_heard, nnx_heard
from attncheck.models.binding import ModelBinding
from attncheck.models.calls import CallRecorder, ModuleCall, paired
from attncheck.models.parameters import Parameter, places_of
from attncheck.models.replay import sequences_of

Inputs = Mapping[str, Any] | Sequence[Any]
Call = Callable[..., Any]


def flax_model(make: Call, inputs: Inputs, call: Call | None = None) -> ModelBinding:
    """Return the binding to linen or nnx models."""
    if "rngs" not in parameters_of(make) and isinstance(module := in_words("make", make), nn.Module):
        return LinenModel(module, inputs, call)
    return NNXModel(make, inputs, call)


class LinenModel(ModelBinding):
    """Binding to a linen model; a draw is its variables."""

    def __init__(self, module: Any, inputs: Mapping[str, Any] | Sequence[Any], call: Call | None) -> None:
        self._module, self._inputs = module, inputs
        self._call = call or (lambda module, *args, **kwargs: module(*args, **kwargs))
        self._modules: dict[str, Any] = {}

    def fresh(self, seed: int) -> Any:
        """Return newly drawn variables."""
        args, kwargs = sequences_of(self._inputs, 1)
        with on_cpu():
            return in_words("model", nn.init(self._call, self._module), jax.random.PRNGKey(seed), *args, **kwargs)

    def kind(self, model: Any) -> str:
        """Return the class of the model."""
        return type(self._module).__name__

    def calls(self, model: Any) -> Sequence[ModuleCall]:
        """Return the calls of modules on the first sequence."""
        recorders = [_LinenRecorder(), _LinenRecorder()]
        for i, recorder in enumerate(recorders):
            args, kwargs = sequences_of(self._inputs, i + 1)
            with on_cpu(), linen_heard(recorder):
                nn.apply(self._call, self._module)(model, *args, **kwargs)
        self._modules = recorders[0].modules
        return paired(*recorders)

    def module(self, model: Any, name: str) -> Any:
        """Return the variables of the module of that name."""
        found = {}
        for collection, held in model.items():
            for part in name.split(".") if name else ():
                held = held.get(part, {})
            found[collection] = held
        return found

    def replayed(self, call: ModuleCall, modules: Sequence[Any]) -> Binding:
        """Return the binding to a module that is called as recorded."""
        return _ReplayedLinen(self._modules[call.name], call, modules)

    def parameters(self, model: Any, most: int) -> Sequence[Parameter]:
        """Return all parameters, with at most so many entries of this draw."""
        if not self._modules:
            self.calls(model)
        found = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(model["params"]):
            *place, name = (str(each.key) for each in path)
            found.append(_described(self._modules.get(".".join(place)), ".".join((*place, name)), leaf, most))
        return found


class NNXModel(ModelBinding):
    """Binding to the nnx models that ``make(rngs)`` or ``make()`` returns."""

    def __init__(self, make: Call, inputs: Mapping[str, Any] | Sequence[Any], call: Call | None) -> None:
        self._make, self._inputs, self._call = make, inputs, call
        self._drawn = "rngs" in parameters_of(make)

    def fresh(self, seed: int) -> Any:
        """Return a newly initialised model."""
        with on_cpu():
            rngs = {"rngs": nnx.Rngs(jax.random.key(seed))} if self._drawn else {}
            model = in_words("make", self._make, **rngs)
        model.eval()
        return model

    def calls(self, model: Any) -> Sequence[ModuleCall]:
        """Return the calls of modules on the first sequence."""
        recorders = [CallRecorder(), CallRecorder()]
        called = model if self._call is None else functools.partial(self._call, model)
        for i, recorder in enumerate(recorders):
            args, kwargs = sequences_of(self._inputs, i + 1)
            with on_cpu(), nnx_heard(model, recorder):
                in_words("model", called, *args, **kwargs)
        return paired(*recorders)

    def module(self, model: Any, name: str) -> Any:
        """Return the module of that name."""
        return next(each for path, each in nnx.iter_graph(model) if ".".join(map(str, path)) == name)

    def replayed(self, call: ModuleCall, modules: Sequence[Any]) -> Binding:
        """Return the binding to a module that is called as recorded."""
        return _ReplayedNNX(call, modules)

    def parameters(self, model: Any, most: int) -> Sequence[Parameter]:
        """Return all parameters, with at most so many entries of this draw."""
        owners = {
            ".".join(map(str, path)): each for path, each in nnx.iter_graph(model) if isinstance(each, nnx.Module)
        }
        found = []
        for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param)):
            place, name = ".".join(map(str, path[:-1])), ".".join(map(str, path))
            found.append(_described(owners.get(place), name, leaf.get_value(), most))
        return found


class _LinenRecorder(CallRecorder):
    """Recorder that also keeps an unbound copy of every module."""

    def __init__(self) -> None:
        super().__init__()
        self.modules: dict[str, Any] = {}

    def begins(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record that a module is called."""
        self.modules.setdefault(name, module.clone(parent=None))
        super().begins(name, module, args, kwargs)


class _ReplayedLinen(Linen):
    """Binding to the draws of a linen module of a model, called as the model does."""

    def __init__(self, module: Any, call: ModuleCall, modules: Sequence[Any]) -> None:
        assert call.given is not None
        super().__init__(lambda: module, call.given.width, call.given.replay)
        self._draws, self.lengths = modules, call.given.lengths

    def init(self, seed: int) -> Any:
        """Return the draw of that number, the last one for larger numbers."""
        return self._draws[min(seed, len(self._draws) - 1)]


class _ReplayedNNX(NNX):
    """Binding to the draws of an nnx module of a model, called as the model does."""

    def __init__(self, call: ModuleCall, modules: Sequence[Any]) -> None:
        assert call.given is not None
        super().__init__(lambda: modules[0], call.given.width, call.given.replay)
        self._draws, self.lengths = modules, call.given.lengths

    def init(self, seed: int) -> Any:
        """Return the draw of that number, the last one for larger numbers."""
        return self._draws[min(seed, len(self._draws) - 1)]


def _described(owner: Any, name: str, entries: Any, most: int) -> Parameter:
    """Return a parameter of a module."""
    array = np.asarray(entries, dtype=np.float64)
    flat = array.reshape(-1)
    fans = _fans(owner, name.rpartition(".")[2], array.shape)
    default = ("truncated normal", fans[0] ** -0.5) if fans else None
    kind = type(owner).__name__ if owner is not None else "Module"
    return Parameter(name, array.shape, kind, fans, (flat[places_of(flat.size, most)],), default=default)


def _fans(owner: Any, name: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the fans of a kernel."""
    dense = (nn.Dense, nn.DenseGeneral, nnx.Linear, nnx.LinearGeneral)
    if name != "kernel" or not isinstance(owner, dense):
        return None
    axis = getattr(owner, "axis", -1)
    inputs = len(axis) if isinstance(axis, tuple | list) else 1
    return math.prod(shape[:inputs]), math.prod(shape[inputs:])
