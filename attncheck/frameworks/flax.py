"""Adapters to flax: linen and nnx."""

from __future__ import annotations

import abc
import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
import numpy as np
from flax import nnx

from attncheck.frameworks._jax import JaxAdapter, on_cpu, softmax_traced
from attncheck.frameworks.adapter import in_words
from attncheck.frameworks.framework import Parameter
from attncheck.frameworks.trace import Trace, traced_calls


class Flax(JaxAdapter):
    """Base of the flax adapters; models are trained by optax optimisers."""

    _compiled_step: Callable[..., Any] | None = None

    @abc.abstractmethod
    def _trainable(self, module: Any) -> tuple[Any, Any, Any]:
        """Return the module's structure, parameters and other variables."""

    @abc.abstractmethod
    def _trained(self, structure: Any, parameters: Any, frozen: Any) -> Any:
        """Return the module with these variables."""

    def trainer(
        self, module: Any, optimizer: Callable[..., Any], loss: Callable[..., Any], data: Sequence[Any]
    ) -> Callable[[], Any]:
        """Return a function that takes one step of an optax optimiser, compiled once, and returns the module."""
        structure, parameters, frozen = self._trainable(module)
        transformation = in_words("optimizer", optimizer, parameters)
        state = parameters, transformation.init(parameters)
        compiled = self._compiled_step or jax.jit(functools.partial(self._stepped, transformation, loss, structure))
        self._compiled_step = compiled

        def step() -> Any:
            nonlocal state
            with jax.disable_jit(False):
                state = in_words("loss", compiled, *state, frozen, *data)
            return self._trained(structure, state[0], frozen)

        return step

    def _stepped(
        self, transformation: Any, loss: Any, structure: Any, parameters: Any, state: Any, frozen: Any, *data: Any
    ) -> tuple[Any, Any]:
        """Return the parameters and the optimiser's state after one step.

        Everything that differs between models of one width is an argument, so that they can share one compiled step.
        """
        import optax

        gradient = jax.grad(lambda values: loss(self._trained(structure, values, frozen), *data))(parameters)
        changes, state = transformation.update(gradient, state, parameters)
        return optax.apply_updates(parameters, changes), state


class Linen(Flax):
    """Adapter to flax.linen modules; it initialises the module that ``make()`` returns, and binds its variables."""

    def __init__(self, *options: Any, **keywords: Any) -> None:
        super().__init__(*options, **keywords)
        self._modules: dict[str, Any] = {}

    @functools.cached_property
    def _module(self) -> Any:
        """The module without its variables."""
        return self.new_module().clone(parent=None)

    def make(self, seed: int) -> Any:
        """Return the module with freshly initialised variables."""
        args, kwargs = self.inputs(self._module)
        with on_cpu():
            init = nn.init(self.apply, self._module)
            return self._module.bind(in_words(self.fields[1], init, jax.random.PRNGKey(seed), *args, **kwargs))

    def tokens(self, module: Any) -> int | None:
        """Return the vocabulary size of the first embedding that a call on token ids reaches, or None without one."""
        return self._vocabulary

    @functools.cached_property
    def _vocabulary(self) -> int | None:
        sizes: list[int] = []

        def intercept(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
            sizes.extend([context.module.num_embeddings] if isinstance(context.module, nn.Embed) else [])
            return method(*args, **kwargs)

        # Other models fail on token ids; some fail on two of them, but after the embedding.
        with nn.intercept_methods(intercept), contextlib.suppress(Exception):
            ids = jax.ShapeDtypeStruct((1, 2), "int32")
            jax.eval_shape(nn.init(self.apply, self._module), jax.random.PRNGKey(0), ids)
        return sizes[0] if sizes else None

    @contextlib.contextmanager
    def traced(self, trace: Trace, model: Any) -> Iterator[None]:
        """Report the calls of all modules, and all softmaxes, to the trace."""

        def intercept(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
            if context.method_name != "__call__":
                return method(*args, **kwargs)
            name = ".".join(context.module.path)
            self._modules.setdefault(name, context.module.clone(parent=None))
            trace.begins(name, context.module, args, kwargs)
            outputs = method(*args, **kwargs)
            trace.ends(context.module, args, outputs)
            return outputs

        with softmax_traced(trace, nn, nnx), nn.intercept_methods(intercept):
            yield

    def modules(self, model: Any) -> Mapping[str, Any]:
        """Return the modules that ran, by name."""
        if not self._modules:
            with self.running(), self.traced(Trace(), model):
                self.called(model, self.inputs(model))
        return {name: module.bind(_variables_at(model, name)) for name, module in self._modules.items()}

    def stored(self, model: Any) -> Iterator[Parameter]:
        """Yield the parameters of a model."""
        modules = self.modules(model)
        for path, leaf in jax.tree_util.tree_leaves_with_path(model.variables["params"]):
            keys = [str(entry.key) for entry in path]
            yield _stored(modules.get(".".join(keys[:-1])), ".".join(keys), leaf)

    def _split(self, module: Any) -> tuple[Any, Any]:
        return None, module.variables

    def _joined(self, structure: Any, arrays: Any) -> Any:
        return self._module.bind(arrays)

    def _trainable(self, module: Any) -> tuple[Any, Any, Any]:
        variables = dict(module.variables)
        return None, variables.pop("params"), variables

    def _trained(self, structure: Any, parameters: Any, frozen: Any) -> Any:
        return self._module.bind({"params": parameters, **frozen})


class NNX(Flax):
    """Adapter to flax.nnx modules that ``make(rngs)`` or ``make()`` returns."""

    def make(self, seed: int) -> Any:
        """Return a freshly initialised module."""
        with on_cpu():
            return self.new_module(rngs=nnx.Rngs(jax.random.key(seed)))

    def plain(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a module on whole sequences, without step-by-step decoding."""
        if isinstance(module, nnx.MultiHeadAttention) and module.decode is None:
            kwargs.setdefault("decode", False)
        return module(*args, **kwargs)

    @contextlib.contextmanager
    def traced(self, trace: Trace, model: Any) -> Iterator[None]:
        """Report the calls of a model and of its modules, and all softmaxes, to the trace."""
        modules = self.modules(model)
        names = {id(module): name for name, module in modules.items()}
        with softmax_traced(trace, nn, nnx), contextlib.ExitStack() as stack:
            for kind in {type(module) for module in modules.values()}:
                if "__call__" in dir(kind):
                    stack.enter_context(mock.patch.object(kind, "__call__", traced_calls(kind.__call__, names, trace)))
            yield

    def modules(self, model: Any) -> Mapping[str, Any]:
        """Return a model's modules by name."""
        nodes = ((_dotted(path), node) for path, node in nnx.iter_graph(model))
        return {name: node for name, node in nodes if isinstance(node, nnx.Module)}

    def tokens(self, module: Any) -> int | None:
        """Return the vocabulary size of the first embedding, or None without one."""
        embeddings = (part for part in self.modules(module).values() if isinstance(part, nnx.Embed))
        return next((embedding.num_embeddings for embedding in embeddings), None)

    def stored(self, model: Any) -> Iterator[Parameter]:
        """Yield the parameters of a model."""
        modules = self.modules(model)
        for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param)):
            yield _stored(modules.get(_dotted(path[:-1])), _dotted(path), leaf.get_value())

    def evaluated(self, module: Any, single: bool = False) -> Any:
        """Return a module in evaluation mode."""
        module.eval()
        return module

    def _split(self, module: Any) -> tuple[Any, Any]:
        structure, arrays = nnx.split(module)
        return structure, nnx.to_pure_dict(arrays)

    def _joined(self, structure: Any, arrays: Any) -> Any:
        return nnx.merge(structure, arrays)

    def _trainable(self, module: Any) -> tuple[Any, Any, Any]:
        structure, parameters, frozen = nnx.split(module, nnx.Param, ...)
        return structure, parameters, frozen

    def _trained(self, structure: Any, parameters: Any, frozen: Any) -> Any:
        return nnx.merge(structure, parameters, frozen)


def _dotted(path: Sequence[Any]) -> str:
    return ".".join(map(str, path))


def _variables_at(model: Any, name: str) -> dict[str, Any]:
    """Return the variables of the module called `name` in a linen model."""
    variables = {}
    for collection, subtree in model.variables.items():
        for key in name.split(".") if name else ():
            subtree = subtree.get(key, {})
        variables[collection] = subtree
    return variables


def _stored(owner: Any, name: str, value: Any) -> Parameter:
    """Describe the parameter called `name`, with the array `value`, of the module `owner`."""
    fans = _fans(owner, name.rpartition(".")[2], value.shape)
    default = ("truncated normal", fans[0] ** -0.5) if fans else None
    kind = type(owner).__name__ if owner is not None else "Module"
    return Parameter(name, tuple(value.shape), kind, fans, (np.asarray(value),), default=default)


def _fans(owner: Any, name: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return (fan_in, fan_out) of a dense layer's kernel, or None for other parameters."""
    dense = (nn.Dense, nn.DenseGeneral, nnx.Linear, nnx.LinearGeneral)
    if name != "kernel" or not isinstance(owner, dense):
        return None
    axis = getattr(owner, "axis", -1)
    inputs = len(axis) if isinstance(axis, tuple | list) else 1
    return math.prod(shape[:inputs]), math.prod(shape[inputs:])
