"""Base of the JAX adapters, which trace attention in compiled forward passes and softmaxes in eager ones."""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from attncheck._lib.arrays import FloatArray
from attncheck.frameworks.adapter import roundoff
from attncheck.frameworks.effective import agree
from attncheck.frameworks.framework import FrameworkAdapter
from attncheck.frameworks.jax_trace import watching
from attncheck.frameworks.trace import AttentionCore, Trace, first_array

_OWN_ATTENTION, _OWN_SOFTMAX = jax.nn.dot_product_attention, jax.nn.softmax
# Unit roundoff for `agree`, chosen so that arrays of compiled and uncompiled initialisers may differ by 1e-5 of the
# largest entry.
_SAME = 1e-5 / 16


def on_cpu() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which JAX runs on the CPU."""
    context: contextlib.AbstractContextManager[Any] = jax.default_device(jax.local_devices(backend="cpu")[0])
    return context


class JaxAdapter(FrameworkAdapter):
    """Base of adapters to JAX modules.

    Layers run compiled, and models eagerly.
    """

    def __init__(self, *options: Any, **keywords: Any) -> None:
        super().__init__(*options, **keywords)
        self._watch = Watch(self)
        # The compiled function runs only a few times, on small inputs, so optimisation would take longer than it saves.
        plainly = {"xla_backend_optimization_level": 0}
        self._compiled = jax.jit(self._traced, static_argnums=(0, 1), compiler_options=plainly)

    def run(self, module: Any, x: FloatArray, trace: Trace, path: str = "") -> Any:
        """Return the outputs for x, and report attention cores to a trace."""
        with on_cpu(), self._watch.reporting(trace):
            return np.asarray(self._compiled(trace.uses("core"), *self._split(module), jax.numpy.asarray(x)))

    def parameters(self, module: Any) -> Mapping[str, FloatArray]:
        """Return the module's arrays by name."""
        return _named(self._split(module)[1])

    def initialised(self, seed: int) -> Mapping[str, FloatArray]:
        """Return a fresh module's arrays; the initialiser is compiled unless compilation changes the arrays."""
        if self.draws or self._compiled_make is None:
            return super().initialised(seed)
        with on_cpu():
            return _named(self._compiled_make(seed))

    @functools.cached_property
    def _compiled_make(self) -> Callable[[int], Any] | None:
        """Compiled initialiser, or None if compilation fails or changes the arrays."""
        compiled: Callable[[int], Any] = jax.jit(lambda seed: self._split(self.make(seed))[1])
        for seed in (0, 1):
            arrays = self.parameters(self.make(seed))
            try:
                with on_cpu():
                    fast = _named(compiled(seed))
            except Exception:  # tracing may raise any exception
                return None
            if fast.keys() != arrays.keys() or not all(agree(arrays[name], fast[name], _SAME) for name in arrays):
                return None
        return compiled

    def fill(self, module: Any, arrays: Mapping[str, FloatArray]) -> Any:
        """Return a copy of the module with the given arrays."""

        def filled(path: Any, array: Any) -> Any:
            return jax.numpy.asarray(arrays[jax.tree_util.keystr(path)], array.dtype) if _is_real(array) else array

        structure, parameters = self._split(module)
        with on_cpu():
            return self._joined(structure, jax.tree_util.tree_map_with_path(filled, parameters))

    def unused(self, module: Any, x: FloatArray, path: str = "") -> tuple[str, ...]:
        """Return the names of arrays that the outputs do not depend on."""
        structure, parameters = self._split(module)
        leaves = jax.tree_util.tree_leaves_with_path(parameters)
        with on_cpu(), jax.disable_jit():
            function = functools.partial(self._outputs, structure)
            jaxpr = jax.make_jaxpr(function)(parameters, jax.numpy.asarray(x)).jaxpr
        _, used = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
        pairs = zip(leaves, used, strict=False)  # the last one is x
        return tuple(jax.tree_util.keystr(where) for (where, leaf), needed in pairs if _is_real(leaf) and not needed)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run JAX eagerly, on the CPU, within this context."""
        with on_cpu(), jax.disable_jit():
            yield

    def tensor(self, module: Any, value: Any) -> Any:
        """Convert a NumPy array to a JAX array; return other values unchanged."""
        return jax.numpy.asarray(value) if isinstance(value, np.ndarray) else value

    def first(self, outputs: Any) -> Any:
        """Return the first array of real numbers in the outputs, or None."""
        return first_array(jax.tree_util.tree_leaves(outputs))

    @abc.abstractmethod
    def _split(self, module: Any) -> tuple[Any, Any]:
        """Return the module's structure and its arrays."""

    @abc.abstractmethod
    def _joined(self, structure: Any, arrays: Any) -> Any:
        """Return the module with this structure and these arrays."""

    def _traced(self, watched: bool, structure: Any, arrays: Any, x: Any) -> Any:
        forward = functools.partial(self._outputs, structure)
        return (self._watch.over(forward) if watched else forward)(arrays, x)

    def _outputs(self, structure: Any, arrays: Any, x: Any) -> Any:
        """Return the module's output for x, or the first element if the output is a tuple."""
        y = self.apply(self._joined(structure, arrays), x)
        return y[0] if isinstance(y, tuple) else y


class Watch:
    """Link through which compiled functions report attention cores to a trace.

    A report also raises the adapter's unit roundoff to that of the least precise type of queries, keys and values.
    """

    def __init__(self, adapter: FrameworkAdapter) -> None:
        self._adapter, self._trace = adapter, Trace()
        self._failure: Exception | None = None

    @contextlib.contextmanager
    def reporting(self, trace: Trace) -> Iterator[None]:
        """Report to a trace within this context; on exit, raise the first error that the trace raised, if any."""
        self._trace, self._failure = trace, None
        yield
        if self._failure is not None:
            raise self._failure

    def over(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Wrap a function of parameters and x, so that it reports its attention cores in the order of computation.

        If the trace gives another result for a core, the function uses that result.
        """

        def watched(parameters: Any, x: Any) -> Any:
            results: list[Any] = []

            def core(*operands: Any) -> Any:
                shape = jax.ShapeDtypeStruct(operands[-1].shape, operands[-1].dtype)
                answer = functools.partial(self._answer, len(results))
                # The previous result is passed too, so that JAX cannot change the order of the callbacks.
                results.append(jax.pure_callback(answer, shape, *operands, *results[-1:], vmap_method="broadcast_all"))
                return results[-1]

            return watching(function, core)(parameters, x)

        return watched

    def _answer(self, index: int, *operands: Any) -> Any:
        """Report attention core number `index`, and return the result that the trace gives in its place.

        `operands` are q, k, v, the weights, and the core's own result, which is returned if the trace gives none.
        """
        q, k, v, weights, result, *_ = (np.asarray(array) for array in operands)
        adapter = self._adapter
        adapter.precision = max(adapter.precision, *(roundoff(array.dtype) for array in (q, k, v)))
        wide = [array.astype(np.float64).reshape(-1, *array.shape[-2:]) for array in (q, k, v, weights)]
        try:
            replacement = self._trace.core(AttentionCore(wide[0], wide[1], wide[2], wide[3], index))
            return result if replacement is None else np.asarray(replacement).reshape(result.shape).astype(result.dtype)
        except Exception as failure:  # kept, because JAX would wrap it in its own error
            self._failure = self._failure or failure
            return result


def _named(tree: Any) -> dict[str, FloatArray]:
    """Return the arrays of real numbers in a tree, by path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf, float) for path, leaf in leaves if _is_real(leaf)}


def _is_real(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating))


@contextlib.contextmanager
def softmax_traced(trace: Trace, *modules: Any) -> Iterator[None]:
    """Report every softmax, including the one inside JAX's attention function, if the trace records softmaxes.

    `modules` are Python modules other than `jax.nn` that have their own softmax.
    """
    if not trace.uses("softmax"):
        yield
        return

    def softmax(x: Any, axis: Any = -1, *args: Any, **kwargs: Any) -> Any:
        if isinstance(axis, int):
            trace.softmax(np.asarray(x, float), axis % x.ndim - x.ndim)
        return _OWN_SOFTMAX(x, axis, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for module in (jax.nn, *modules):
            if hasattr(module, "softmax"):
                stack.enter_context(mock.patch.object(module, "softmax", softmax))
        stack.enter_context(mock.patch.object(jax.nn, "dot_product_attention", _attention))
        yield


def _attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any) -> Any:
    """Compute `jax.nn.dot_product_attention`, (batch, positions, heads, head_dim), with a softmax that is traced."""
    known = {"scale", "is_causal", "implementation"}
    if query.ndim != 4 or any(argument is not None for name, argument in options.items() if name not in known):
        return _OWN_ATTENTION(query, key, value, bias, mask, **options)
    repeats = query.shape[2] // key.shape[2]
    key, value = (jax.numpy.repeat(argument, repeats, axis=2) for argument in (key, value))
    scale = options.get("scale") or query.shape[-1] ** -0.5
    scores = jax.numpy.einsum("bqhd,bkhd->bhqk", query, key) * scale
    scores = scores if bias is None else scores + bias
    visible = jax.numpy.ones(scores.shape[-2:], dtype=bool)
    visible = jax.numpy.tril(visible) if options.get("is_causal") else visible
    visible = visible if mask is None else visible & mask
    weights = jax.nn.softmax(jax.numpy.where(visible, scores, -jax.numpy.inf), axis=-1)
    return jax.numpy.einsum("bhqk,bkhd->bqhd", weights, value)
