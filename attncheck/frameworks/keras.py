"""Adapter to keras, on the backends JAX and torch."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import global_seed_generator

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.frameworks.adapter import SINGLE, Arrays, roundoff
from attncheck.frameworks.framework import FrameworkAdapter, Parameter
from attncheck.frameworks.trace import Trace, traced_calls

# Options of a call, by code path.
_OPTIONS = {"train": "training", "scores": "return_attention_scores"}
# Attribute in which keras counts the layers it has named, by kind.
_NUMBERS = "object_name_uids"
# Attributes that list sublayers known under other names.
_LISTS = ("_layers", "_functional", "_modules")


class Keras(FrameworkAdapter):
    """Adapter to keras layers and models that ``make()`` returns, on the backends JAX and torch.

    By default, attention layers of keras are called as ``layer(x, x)``, and others as ``layer(x)``. Two further code
    paths pass ``training=True`` or ``return_attention_scores=True``, if the layer takes that argument.
    """

    method = "call"

    def __init__(self, *options: Any, example: Any = None, **keywords: Any) -> None:
        super().__init__(*options, **keywords)
        self._runs = 0
        if self.call is None and example is not None:
            arguments = inspect.signature(example.call).parameters
            self.paths = ("", *(path for path, option in _OPTIONS.items() if option in arguments))

    def make(self, seed: int) -> Any:
        """Return a freshly built layer; restart the numbering of unnamed layers."""
        with generators_restored():
            keras.utils.set_random_seed(seed)
            global_state.set_global_attribute(_NUMBERS, None)
            layer = self.new_module()
            self.called(layer, self.inputs(layer))
        self.precision = max(SINGLE, *(roundoff(sublayer.compute_dtype) for sublayer in layer._flatten_layers()))
        return layer

    def run(self, module: Any, x: FloatArray, trace: Trace, path: str = "") -> Any:
        """Return the outputs for x, and report the forward pass to a trace."""
        with generators_restored():
            # All generators are restored after a call, so each call needs another seed to draw other random numbers.
            self._runs += 1
            keras.utils.set_random_seed(self._runs)
            tensor = self.tensor(module, x)
            if trace.uses("core") and keras.backend.backend() == "jax":
                return numbers_of(self._traced_by_jax(module, tensor, trace, path))
            with _backend_traced(trace, tensor):
                return numbers_of(self._outputs(module, tensor, path))

    def random(self, module: Any, x: FloatArray, path: str = "") -> bool:
        """Return whether a call draws from the layer's generators or from global ones."""
        with generators_restored():
            before = _generator_states(module)
            self._outputs(module, self.tensor(module, x), path)
            return not all(map(np.array_equal, before, _generator_states(module)))

    def parameters(self, module: Any) -> Mapping[str, FloatArray]:
        """Return the layer's arrays by name."""
        return {variable.path: numbers_of(variable) for variable in module.trainable_weights}

    def fill(self, module: Any, arrays: Arrays) -> Any:
        """Return the layer itself, with the given arrays assigned."""
        for variable in module.trainable_weights:
            variable.assign(arrays[variable.path])
        return module

    def plain(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a layer; attention layers of keras get a single input as both queries and values."""
        attention = isinstance(module, keras.layers.MultiHeadAttention | keras.layers.GroupQueryAttention)
        two = attention and len(args) == 1 and "value" not in kwargs
        return module(*args * (1 + two), **kwargs)

    def tensor(self, module: Any, value: Any) -> Any:
        """Convert an array to a tensor of the backend, with real numbers in the default precision of keras."""
        real = isinstance(value, np.ndarray) and value.dtype.kind == "f"
        return keras.ops.convert_to_tensor(value, keras.config.floatx() if real else None)

    def numbers(self, tensor: Any) -> FloatArray:
        """Return a tensor as a NumPy array."""
        return numbers_of(tensor)

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Restore all random generators on exit."""
        return generators_restored()

    @contextlib.contextmanager
    def traced(self, trace: Trace, model: Any) -> Iterator[None]:
        """Report calls of layers and softmaxes to a trace."""
        names, kind = {id(layer): name for name, layer in self.modules(model).items()}, keras.layers.Layer
        with mock.patch.object(kind, "__call__", traced_calls(kind.__call__, names, trace)), _backend_traced(trace):
            yield

    def modules(self, model: Any) -> Mapping[str, Any]:
        """Return a layer and its sublayers by name."""
        return named_layers(model)

    def stored(self, model: Any) -> Iterator[Parameter]:
        """Yield the parameters of a model."""
        known = set[int]()
        for name, layer in named_layers(model).items():
            for variable in layer._trainable_variables:
                if id(variable) not in known:
                    known.add(id(variable))
                    yield _stored(layer, f"{name}.{variable.name}".lstrip("."), variable)

    def tokens(self, module: Any) -> int | None:
        """Return the vocabulary size of the first embedding, or None without one."""
        layers = named_layers(module).values()
        return next((layer.input_dim for layer in layers if isinstance(layer, keras.layers.Embedding)), None)

    def trainer(
        self, module: Any, optimizer: Callable[..., Any], loss: Callable[..., Any], data: Sequence[Any]
    ) -> Callable[[], Any]:
        """Return a function that takes a step of a PyTorch optimiser, and returns the module."""
        if keras.backend.backend() != "torch":
            problem = f"takes steps only on torch, but keras runs on {keras.backend.backend()}"
            refuse("optimizer", optimizer, problem, "set KERAS_BACKEND=torch")
        return super().trainer(module, optimizer, loss, data)

    def _outputs(self, layer: Any, x: Any, path: str) -> Any:
        """Return the outputs on a code path; the first element if the layer returns several."""
        y = self.apply(layer, x, **({_OPTIONS[path]: True} if path else {}))
        return y[0] if isinstance(y, tuple | list) else y

    def _traced_by_jax(self, layer: Any, x: Any, trace: Trace, path: str) -> Any:
        from attncheck.frameworks._jax import Watch

        watch, variables = Watch(self), layer.variables

        def outputs(values: Sequence[Any], x: Any) -> Any:
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                return self._outputs(layer, x, path)

        with watch.reporting(trace):
            return watch.over(outputs)([variable.value for variable in variables], x)


def numbers_of(tensor: Any) -> FloatArray:
    """Return a backend array as a NumPy array."""
    return np.asarray(keras.ops.convert_to_numpy(tensor), float)


def _generator_states(layer: Any) -> list[FloatArray]:
    """Return the states of all generators that a call of the layer may draw from."""
    variables = [variable for variable in layer.variables if variable.name == "seed_generator_state"]
    states = [numbers_of(variable) for variable in (*variables, global_seed_generator().state)]
    if keras.backend.backend() == "torch":
        import torch

        states.append(torch.get_rng_state().numpy())
    return states


@contextlib.contextmanager
def generators_restored() -> Iterator[None]:
    """On exit, restore name counters and all generators that keras seeds."""
    with contextlib.ExitStack() as stack:
        if keras.backend.backend() == "torch":
            import torch

            stack.enter_context(torch.random.fork_rng(devices=[]))
        for name in ("global_random_seed", "global_seed_generator", _NUMBERS):
            stack.callback(global_state.set_global_attribute, name, global_state.get_global_attribute(name))
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 - keras seeds it
        yield


def named_layers(layer: Any) -> dict[str, Any]:
    """Return a layer and its sublayers by attribute path; layers of a functional model appear under their own names."""
    layers: dict[int, tuple[str, Any]] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, keras.layers.Layer):
            if id(node) not in layers:
                layers[id(node)] = (name, node)
                # On torch, attributes that are layers are stored as submodules.
                attributes = {**vars(node), **vars(node).get("_modules", {})}
                for key, child in ((key, child) for key, child in attributes.items() if key not in _LISTS):
                    if key == "_operations":
                        visit(name, _by_name(child))
                    else:
                        visit(f"{name}.{key.lstrip('_')}".lstrip("."), child)
                for index, child in enumerate(node._layers):
                    visit(f"{name}.{index}".lstrip("."), child)
        elif isinstance(node, list | tuple):
            for index, child in enumerate(node):
                visit(f"{name}.{index}", child)
        elif isinstance(node, dict):
            for key, child in node.items():
                visit(f"{name}.{key}".lstrip("."), child)

    visit("", layer)
    return dict(layers.values())


def _by_name(layers: Sequence[Any]) -> dict[str, Any]:
    """Return the layers of a functional model by name.

    Keras names layers of a kind "dense", "dense_1" and so on; the first of several gets the number 0: "dense_0".
    """
    names = {layer.name for layer in layers}
    numbered = {name.rpartition("_")[0] for name in names if name.rpartition("_")[2].isdigit()}
    first = {name for name in names & numbered if f"{name}_0" not in names}
    return {f"{layer.name}_0" if layer.name in first else layer.name: layer for layer in layers}


def _backend_traced(trace: Trace, inputs: Any = None) -> contextlib.AbstractContextManager[None]:
    """Report softmaxes to a trace and, on torch, attention cores of a call on `inputs`."""
    if keras.backend.backend() == "jax":
        from attncheck.frameworks._jax import softmax_traced

        return softmax_traced(trace)
    from attncheck.frameworks import torch_trace

    return torch_trace.traced(trace, inputs=inputs)


def _stored(layer: Any, name: str, variable: Any) -> Parameter:
    """Describe the parameter called `name`, stored in `variable`, of a layer."""
    shape = tuple(variable.shape)
    fans = (shape[0], shape[1]) if isinstance(layer, keras.layers.Dense) and len(shape) == 2 else None
    default = ("uniform", (2 / sum(fans)) ** 0.5) if fans else None
    entries = keras.ops.convert_to_numpy(variable)
    return Parameter(name, shape, type(layer).__name__, fans, (entries,), default=default)
