"""Binding to keras, on the backends JAX and torch."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import global_seed_generator

from attncheck._lib.arrays import FloatArray
from attncheck.frameworks.binding import SINGLE, Arrays, Binding
from attncheck.frameworks.keras_layers import traced
from attncheck.frameworks.trace import Trace

Call = Callable[..., Any]
# Options of a call, by code path.
_OPTIONS = {"train": "training", "scores": "return_attention_scores"}
# Attribute in which keras counts the layers it has named, by kind.
_NUMBERS = "object_name_uids"
_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


class Keras(Binding):
    """Binding to a keras layer or model that ``make()`` returns, on the backends JAX and torch.

    By default, attention layers of keras are called as ``layer(x, x)``, and others as ``layer(x)``. Two further code
    paths pass ``training=True`` or ``return_attention_scores=True``, if the layer takes that argument.
    """

    fills = True

    def __init__(self, make: Callable[[], Any], width: int, call: Call | None = None) -> None:
        self._make = make
        self._width = width
        self._call = call or self_attention
        self._runs = 0
        if call is None:
            with generators_kept():
                taken = inspect.signature(make().call).parameters
            self.paths = ("", *(path for path, option in _OPTIONS.items() if option in taken))

    def init(self, seed: int) -> Any:
        """Return a freshly built layer."""
        with seeded(seed):
            layer = self._make()
            self._call(layer, keras.ops.zeros((1, 2, self._width)))
        dtypes = {each.compute_dtype for each in layer._flatten_layers()}
        self.precision = max(SINGLE, *(_ROUNDOFF.get(dtype, 0.0) for dtype in dtypes))
        return layer

    def run(self, state: Any, x: FloatArray, trace: Trace, path: str = "") -> Any:
        """Return the outputs for x, and report the forward pass to a trace."""
        with generators_kept():
            # All generators are restored after a call, but random numbers must differ between calls.
            self._runs += 1
            keras.utils.set_random_seed(self._runs)
            given = tensor_of(x)
            if trace.uses("core") and keras.backend.backend() == "jax":
                return numbers_of(self._traced_by_jax(state, given, trace, path))
            with traced(trace, state, given):
                return numbers_of(self._outputs(state, given, path))

    def random(self, state: Any, x: FloatArray, path: str = "") -> bool:
        """Return whether a call draws from the layer's generators or from global ones."""
        with generators_kept():
            before = _generator_states(state)
            self._outputs(state, tensor_of(x), path)
            return not all(map(np.array_equal, before, _generator_states(state)))

    def parameters(self, state: Any) -> Mapping[str, FloatArray]:
        """Return the layer's arrays by name."""
        return {each.path: numbers_of(each) for each in state.trainable_weights}

    def fill(self, state: Any, arrays: Arrays) -> Any:
        """Return the layer itself, with the given arrays assigned."""
        for each in state.trainable_weights:
            each.assign(arrays[each.path])
        return state

    def attended(self, state: Any, arrays: Arrays, x: FloatArray, path: str = "") -> tuple[FloatArray, ...]:
        """Return outputs, queries, keys and values of N layers; see `Binding.attended`."""
        if keras.backend.backend() == "jax":
            from attncheck.frameworks._jax import recorded
        else:
            from attncheck.frameworks.torch_trace import recorded
        weights = state.trainable_weights
        many = recorded(self._of_values(state, weights, path))
        with generators_kept():
            own = [keras.ops.convert_to_tensor(arrays[each.path], each.dtype) for each in weights]
            given = tensor_of(x)
            return tuple(map(numbers_of, many(own, given)))

    def _outputs(self, layer: Any, x: Any, path: str) -> Any:
        """Return the outputs on a code path; the first element if the layer returns several."""
        y = self._call(layer, x, **({_OPTIONS[path]: True} if path else {}))
        return y[0] if isinstance(y, tuple | list) else y

    def _of_values(self, layer: Any, variables: Sequence[Any], path: str) -> Callable[[Any, Any], Any]:
        """Return a function that maps values of the variables and x to the outputs."""

        def outputs(values: Sequence[Any], x: Any) -> Any:
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                return self._outputs(layer, x, path)

        return outputs

    def _traced_by_jax(self, layer: Any, x: Any, trace: Trace, path: str) -> Any:
        from attncheck.frameworks._jax import Watch

        watch, variables = Watch(), layer.variables
        with watch.reporting(trace):
            y = watch.over(self._of_values(layer, variables, path))([each.value for each in variables], x)
        self.precision = max(self.precision, watch.precision)
        return y


def numbers_of(tensor: Any) -> FloatArray:
    """Return a backend array as a NumPy array."""
    return np.asarray(keras.ops.convert_to_numpy(tensor), float)


def _generator_states(layer: Any) -> list[FloatArray]:
    """Return the states of all generators that a call of the layer may draw from."""
    variables = [each for each in layer.variables if each.name == "seed_generator_state"]
    states = [numbers_of(each) for each in (*variables, global_seed_generator().state)]
    if keras.backend.backend() == "torch":
        import torch

        states.append(torch.get_rng_state().numpy())
    return states


def self_attention(layer: Any, *given: Any, **options: Any) -> Any:
    """Call a layer; attention layers of keras get a single input as both queries and values."""
    two = isinstance(layer, keras.layers.MultiHeadAttention | keras.layers.GroupQueryAttention) and len(given) == 1
    return layer(*given, *given, **options) if two else layer(*given, **options)


def tensor_of(array: np.ndarray[Any, Any]) -> Any:
    """Convert an array to a tensor of the backend, with real numbers in the default precision of keras."""
    return keras.ops.convert_to_tensor(array, keras.config.floatx() if array.dtype.kind == "f" else None)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all generators and restart the numbering of unnamed layers; restore both on exit."""
    with generators_kept():
        keras.utils.set_random_seed(seed)
        global_state.set_global_attribute(_NUMBERS, None)
        yield


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """On exit, restore name counters and all generators that keras seeds."""
    names = ("global_random_seed", "global_seed_generator", _NUMBERS)
    own = [global_state.get_global_attribute(name) for name in names]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - keras seeds it
    with contextlib.ExitStack() as stack:
        if keras.backend.backend() == "torch":
            import torch

            stack.enter_context(torch.random.fork_rng(devices=[]))
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002 - keras seeds it
            for name, value in zip(names, own, strict=True):
                global_state.set_global_attribute(name, value)
