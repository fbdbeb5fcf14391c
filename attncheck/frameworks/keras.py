"""Binding to keras: intercepts `_compute_attention` and functions of `keras.ops`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck.frameworks.binding import SINGLE, Core, FloatArray, SoftmaxCore, untouched

Call = Callable[[Any, Any], Any]
# Attribute in which keras counts the layers it has named, by kind.
_NUMBERS = "object_name_uids"
_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


class Keras:
    """Binding to a keras layer or model that ``make()`` returns, on the backends JAX and torch.

    The default call is ``layer(x, x)`` or ``layer(x)``.
    """

    def __init__(self, make: Callable[[], Any], width: int, call: Call | None = None) -> None:
        self._make = make
        self._width = width
        self._call = call or self_attention
        self.precision = SINGLE

    def init(self, seed: int) -> Any:
        """Return a freshly built layer."""
        import keras
        from keras.src.backend.common import global_state

        with generators_kept():
            keras.utils.set_random_seed(seed)
            # Restart the numbering of unnamed layers, so that every layer made has the same names.
            global_state.set_global_attribute(_NUMBERS, None)
            layer = self._make()
            self._call(layer, keras.ops.zeros((1, 2, self._width)))
        dtypes = {each.compute_dtype for each in layer._flatten_layers()}
        self.precision = max(SINGLE, *(_ROUNDOFF.get(dtype, 0.0) for dtype in dtypes))
        return layer

    def run(self, state: Any, x: FloatArray, core: Core) -> Any:
        """Return the outputs for x, with `core` in place of attention."""
        with contextlib.nullcontext() if core is untouched else _watching(state, core):
            return self._outputs(state, x)

    def softmax(self, state: Any, x: FloatArray, core: SoftmaxCore) -> Any:
        """Return the outputs for x, with `core` in place of every softmax."""
        from keras.src import backend

        own = backend.nn.softmax
        backend.nn.softmax = _watched(own, core, [], arguments=1)
        try:
            return self._outputs(state, x)
        finally:
            backend.nn.softmax = own

    def parameters(self, state: Any) -> Mapping[str, FloatArray]:
        """Return the layer's arrays by name."""
        return {each.path: numbers_of(each) for each in state.trainable_weights}

    def fill(self, state: Any, arrays: Mapping[str, FloatArray]) -> Any:
        """Return the layer itself, with the given arrays assigned."""
        for each in state.trainable_weights:
            each.assign(arrays[each.path])
        return state

    def attended(self, state: Any, arrays: Mapping[str, FloatArray], x: FloatArray) -> tuple[FloatArray, ...]:
        """Return outputs, q, k and v of N layers; `arrays` (N, ...), `x` (N, B, L, n)."""
        import keras

        weights = state.trainable_weights

        def one(own: Sequence[Any], given: Any) -> tuple[Any, ...]:
            got: list[tuple[Any, ...]] = []
            mapping = list(zip(weights, own, strict=True))
            with keras.StatelessScope(state_mapping=mapping), _watching(state, lambda *a: got.append(a), tensors=True):
                y = self._call(state, given)
            return (y[0] if isinstance(y, tuple | list) else y, *got[0])

        with generators_kept():
            own = [keras.ops.convert_to_tensor(arrays[each.path], each.dtype) for each in weights]
            given = keras.ops.convert_to_tensor(x, keras.config.floatx())
            return tuple(map(numbers_of, _vectorised(one)(own, given)))

    def _outputs(self, layer: Any, x: FloatArray) -> Any:
        import keras

        with generators_kept():
            y = self._call(layer, keras.ops.convert_to_tensor(x, keras.config.floatx()))
        return numbers_of(y[0] if isinstance(y, tuple | list) else y)


def numbers_of(tensor: Any) -> FloatArray:
    """Return a backend array as a NumPy array."""
    import keras

    return np.asarray(keras.ops.convert_to_numpy(tensor), float)


def self_attention(layer: Any, *given: Any) -> Any:
    """Return outputs; attention layers get the inputs as queries and values."""
    import keras

    two = isinstance(layer, keras.layers.MultiHeadAttention | keras.layers.GroupQueryAttention) and len(given) == 1
    return layer(*given, *given) if two else layer(*given)


def _vectorised(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function mapped over the first axis of its arguments."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        vectorised: Callable[..., Any] = jax.vmap(function)
        return vectorised
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def without_gradients(*given: Any) -> Any:
        # Other kernels do not batch over layers.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            return torch.vmap(function)(*given)

    return without_gradients


def _watched(
    function: Callable[..., Any],
    core: Callable[..., FloatArray | None],
    within: list[Any],
    arguments: int = 3,
    tensors: bool = False,
) -> Callable[..., Any]:
    """Return attention, or a softmax of one argument, with `core` in its place.

    `within` marks nested calls. The core takes numbers, or with `tensors` backend arrays.
    """
    import keras

    signature = inspect.signature(function)

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if within:  # `_compute_attention` calls `keras.ops`
            return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = list(bound.arguments.values())
        if arguments == 1:
            found = core(numbers_of(given[0]), given[1])
        else:
            seen = (each if tensors else numbers_of(each) for each in given[:3])
            found = core(*(each.swapaxes(1, 2) for each in seen))
        if found is None:
            within.append(function)
            try:
                return function(*args, **kwargs)
            finally:
                within.pop()
        found = np.asarray(found)
        return keras.ops.convert_to_tensor(found.swapaxes(1, 2) if arguments == 3 else found, given[0].dtype)

    return watched


@contextlib.contextmanager
def _watching(layer: Any, core: Callable[..., FloatArray | None], tensors: bool = False) -> Iterator[None]:
    """Replace attention in a layer, its sublayers, and where hand-written layers look it up."""
    import keras

    watched = functools.partial(_watched, core=core, within=[], tensors=tensors)
    inner = [each for each in layer._flatten_layers() if hasattr(each, "_compute_attention")]
    own = keras.ops.dot_product_attention
    for each in inner:  # bypasses `__setattr__`, which tracks weights
        vars(each)["_compute_attention"] = _with_weights(watched(each._compute_attention))
    keras.ops.dot_product_attention = watched(own)
    try:
        yield
    finally:
        keras.ops.dot_product_attention = own
        for each in inner:
            del vars(each)["_compute_attention"]


def _with_weights(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Return (outputs, weights) as `_compute_attention` does."""

    def both(*args: Any, **kwargs: Any) -> Any:
        found = attention(*args, **kwargs)
        return found if isinstance(found, tuple) else (found, None)

    return both


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Restore name counters and all generators that keras seeds."""
    import keras
    from keras.src.backend.common import global_state

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
