"""Bindings to flax models (linen and nnx)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import nnx

from attncheck.frameworks._jax import on_cpu
from attncheck.frameworks.binding import in_words, parameters_of
from attncheck.frameworks.flax import NNX, Linen
from attncheck.frameworks.flax_modules import linen_traced, nnx_traced
from attncheck.models.binding import ModelBinding
from attncheck.models.calls import CallRecorder, ModuleCall
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
    """Binding to a linen model; each draw is a set of variables."""

    layers = Linen

    def __init__(self, module: Any, inputs: Inputs, call: Call | None) -> None:
        super().__init__(lambda: module, inputs, call)
        self._module = module
        self._call = call or (lambda module, *args, **kwargs: module(*args, **kwargs))
        self._modules: dict[str, Any] = {}

    def fresh(self, seed: int) -> Any:
        """Return newly drawn variables."""
        args, kwargs = sequences_of(self.inputs or (), 1)
        with on_cpu():
            return in_words("model", nn.init(self._call, self._module), jax.random.PRNGKey(seed), *args, **kwargs)

    def kind(self, model: Any) -> str:
        """Return the class of the model."""
        return type(self._module).__name__

    def recorded(self, model: Any, sequences: int | None) -> CallRecorder:
        """Return the calls of modules in a forward pass."""
        recorder = _LinenRecorder()
        args, kwargs = sequences_of(self.inputs or (), sequences)
        with on_cpu(), linen_traced(recorder):
            nn.apply(self._call, self._module)(model, *args, **kwargs)
        self._modules = recorder.modules
        return recorder

    def module(self, model: Any, name: str) -> Any:
        """Return the variables of the module of that name."""
        found = {}
        for collection, held in model.items():
            for part in name.split(".") if name else ():
                held = held.get(part, {})
            found[collection] = held
        return found

    def made(self, call: ModuleCall, modules: Sequence[Any]) -> Any:
        """Return the module of a call, whose draws are variables."""
        return self._modules[call.name]

    def parameters(self, model: Any, most: int) -> Sequence[Parameter]:
        """Return all parameters, each with a sample of at most `most` entries."""
        if not self._modules:
            self.recorded(model, 1)
        found = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(model["params"]):
            *place, name = (str(each.key) for each in path)
            found.append(_described(self._modules.get(".".join(place)), ".".join((*place, name)), leaf, most))
        return found


class NNXModel(ModelBinding):
    """Binding to the nnx models that ``make(rngs)`` or ``make()`` returns."""

    layers = NNX

    def fresh(self, seed: int) -> Any:
        """Return a newly initialised model."""
        with on_cpu():
            rngs = {"rngs": nnx.Rngs(jax.random.key(seed))} if "rngs" in parameters_of(self.make) else {}
            model = in_words("make", self.make, **rngs)
        model.eval()
        return model

    def recorded(self, model: Any, sequences: int | None) -> CallRecorder:
        """Return the calls of modules in a forward pass."""
        recorder = CallRecorder()
        with on_cpu(), nnx_traced(recorder, model):
            self.called(model, sequences)
        return recorder

    def module(self, model: Any, name: str) -> Any:
        """Return the module of that name."""
        return next(each for path, each in nnx.iter_graph(model) if ".".join(map(str, path)) == name)

    def parameters(self, model: Any, most: int) -> Sequence[Parameter]:
        """Return all parameters, each with a sample of at most `most` entries."""
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
        """Record the start of a call."""
        self.modules.setdefault(name, module.clone(parent=None))
        super().begins(name, module, args, kwargs)


def _described(owner: Any, name: str, entries: Any, most: int) -> Parameter:
    """Return a parameter of a module."""
    array = np.asarray(entries, dtype=np.float64)
    flat = array.reshape(-1)
    fans = _fans(owner, name.rpartition(".")[2], array.shape)
    default = ("truncated normal", fans[0] ** -0.5) if fans else None
    kind = type(owner).__name__ if owner is not None else "Module"
    return Parameter(name, array.shape, kind, fans, (flat[places_of(flat.size, most)],), default=default)


def _fans(owner: Any, name: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the fans of the kernel of a dense layer, None for other parameters."""
    dense = (nn.Dense, nn.DenseGeneral, nnx.Linear, nnx.LinearGeneral)
    if name != "kernel" or not isinstance(owner, dense):
        return None
    axis = getattr(owner, "axis", -1)
    inputs = len(axis) if isinstance(axis, tuple | list) else 1
    return math.prod(shape[:inputs]), math.prod(shape[inputs:])
