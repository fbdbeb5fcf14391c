"""Base of the JAX bindings: attention intercepted in compiled forward passes."""

from __future__ import annotations

import abc
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from attncheck.frameworks.binding import SINGLE, Core, FloatArray, SoftmaxCore, untouched

# Relative tolerance for compiled against uncompiled results.
_SAME = 1e-5
#: Functions that a forward pass intercepts.
NOTHING, ATTENTION, SOFTMAX = "nothing", "attention", "softmax"


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Run JAX on the CPU."""
    import jax

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


class JaxBinding(abc.ABC):
    """Base of bindings to JAX modules."""

    def __init__(self) -> None:
        import jax

        self._watch = WatchedCore()
        # The compiled function runs a few times on small inputs, so optimising it does not pay.
        plainly = {"xla_backend_optimization_level": 0}
        self._compiled = jax.jit(self._traced, static_argnums=(0, 1), compiler_options=plainly)
        self._compiled_init: Callable[[int], Any] | None = jax.jit(self._initial)
        self._compiled_many = jax.jit(self._many, static_argnums=0)
        self._tried = False

    @property
    def precision(self) -> float:
        """Unit roundoff of attention's inputs; at least that of float32."""
        return self._watch.precision

    def run(self, state: Any, x: FloatArray, core: Core) -> Any:
        """Return the outputs for x, with `core` in place of attention."""
        return self._run(NOTHING if core is untouched else ATTENTION, state, x, core)

    def softmax(self, state: Any, x: FloatArray, core: SoftmaxCore) -> Any:
        """Return the outputs for x, with `core` in place of every softmax."""
        return self._run(SOFTMAX, state, x, core)

    def parameters(self, state: Any) -> Mapping[str, FloatArray]:
        """Return the module's arrays by name."""
        return _named(self._split(state)[1])

    def initialised(self, seed: int) -> Mapping[str, FloatArray]:
        """Return a fresh module's arrays, from a compiled initialiser if it draws the same arrays."""
        if not self._tried:
            self._tried = True
            self._compiled_init = self._compiled_init if self._draws_alike(seed) else None
        if self._compiled_init is None:
            return self.parameters(self.init(seed))
        with on_cpu():
            return _named(self._compiled_init(seed))

    def _draws_alike(self, seed: int) -> bool:
        """Return whether the compiled initialiser draws the same arrays."""
        assert self._compiled_init is not None
        own = self.parameters(self.init(seed))
        try:
            with on_cpu():
                fast = [_named(self._compiled_init(each)) for each in (seed, seed + 1)]
        except Exception:  # tracing can raise any exception
            return False
        same = fast[0].keys() == own.keys() and all(_close(fast[0][name], own[name]) for name in own)
        other = self.parameters(self.init(seed + 1))
        return same and all(_close(fast[1][name], other[name]) for name in other)

    def _initial(self, seed: Any) -> Any:
        return self._split(self.init(seed))[1]

    def fill(self, state: Any, arrays: Mapping[str, FloatArray]) -> Any:
        """Return a copy of the module with the given arrays."""
        import jax

        def leaf(path: Any, own: Any) -> Any:
            return jax.numpy.asarray(arrays[jax.tree_util.keystr(path)], own.dtype) if _is_real(own) else own

        structure, held = self._split(state)
        with on_cpu():
            return self._joined(structure, jax.tree_util.tree_map_with_path(leaf, held))

    def attended(self, state: Any, arrays: Mapping[str, FloatArray], x: FloatArray) -> tuple[FloatArray, ...]:
        """Return outputs, q, k and v of N modules; `arrays` (N, ...), `x` (N, B, L, n)."""
        with on_cpu():
            found = self._compiled_many(*self._split(state), dict(arrays), x)
        return tuple(np.asarray(each, float) for each in found)

    def _many(self, structure: Any, held: Any, arrays: Mapping[str, Any], x: Any) -> tuple[Any, ...]:
        import jax

        def one(own: Mapping[str, Any], given: Any) -> tuple[Any, ...]:
            def leaf(path: Any, kept: Any) -> Any:
                return own[jax.tree_util.keystr(path)].astype(kept.dtype) if _is_real(kept) else kept

            with self._watch.recording() as seen:
                y = self._traced(ATTENTION, structure, jax.tree_util.tree_map_with_path(leaf, held), given)
            return (y, *seen[0])

        return tuple(jax.vmap(one)(arrays, jax.numpy.asarray(x)))

    @abc.abstractmethod
    def init(self, seed: int) -> Any:
        """Return a freshly initialised module."""

    @abc.abstractmethod
    def _split(self, state: Any) -> tuple[Any, Any]:
        """Return the module's structure and its arrays."""

    @abc.abstractmethod
    def _joined(self, structure: Any, arrays: Any) -> Any:
        """Return the module with this structure and these arrays."""

    @abc.abstractmethod
    def _forward(self, watched: str, structure: Any, arrays: Any, x: Any) -> Any:
        """Return the outputs, with `watched` functions intercepted."""

    def _run(self, watched: str, state: Any, x: FloatArray, core: Callable[..., Any]) -> Any:
        import jax

        with on_cpu(), self._watch.calling(core):
            return np.asarray(self._compiled(watched, *self._split(state), jax.numpy.asarray(x)))

    def _traced(self, watched: str, structure: Any, arrays: Any, x: Any) -> Any:
        """Return the outputs, or their first element if a tuple."""
        import jax

        # Parts compiled earlier would bypass the core.
        with jax.disable_jit():
            y = self._forward(watched, structure, arrays, x)
        return y[0] if isinstance(y, tuple) else y


class WatchedCore:
    """Callback that replaces attention or softmax functions of JAX."""

    def __init__(self) -> None:
        self.precision = SINGLE
        self._core: Callable[..., FloatArray | None] = untouched
        self._failure: Exception | None = None
        self._within = False
        self._recorded: list[tuple[Any, ...]] | None = None

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[tuple[Any, ...]]]:
        """Leave the functions unchanged and record their arguments."""
        self._recorded = []
        try:
            yield self._recorded
        finally:
            self._recorded = None

    @contextlib.contextmanager
    def calling(self, core: Callable[..., FloatArray | None]) -> Iterator[None]:
        """Call `core` within this context; raise its error at the end."""
        self._core, self._failure = core, None
        yield
        if self._failure is not None:
            raise self._failure

    def over(self, function: Callable[..., Any], axes: str) -> Callable[..., Any]:
        """Return a replacement for `function` that calls the core.

        Attention takes arrays (..., L, H, d) for `axes` ``LHd``, (..., H, L, d) for ``HLd``; ``LL`` is a softmax.
        """
        import jax

        signature = inspect.signature(function)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._within:  # flax calls JAX's attention, which is intercepted too
                return function(*args, **kwargs)
            self._within = True
            try:
                own = function(*args, **kwargs)
            finally:
                self._within = False
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = list(bound.arguments.values())
            if self._recorded is not None:
                self._recorded.append(tuple(_heads_first(each, axes) for each in given[:3]))
                return own
            answer = functools.partial(self._answer, axes)
            if axes == "LL":
                answer, given = functools.partial(self._answer, axes, axis=given[1]), given[:1]
            # The core needs concrete numbers; they arrive with all `jax.vmap` axes in front.
            shape = jax.ShapeDtypeStruct(own.shape, own.dtype)
            return jax.pure_callback(answer, shape, own, *given[:3], vmap_method="broadcast_all")

        return watched

    def _answer(self, axes: str, own: Any, *given: Any, **options: Any) -> Any:
        """Return the core's result in the shape and dtype of `own`, or `own` without a result."""
        import jax

        self.precision = max(self.precision, *(float(jax.numpy.finfo(each.dtype).eps) / 2 for each in given))
        shape, dtype, own = own.shape, own.dtype, np.asarray(own)
        try:
            found = self._core(*(_seen(np.asarray(each), axes) for each in given), **options)
            if found is None:
                return own
            found = np.asarray(found)
            return (found.swapaxes(1, 2) if axes == "LHd" else found).reshape(shape).astype(dtype)
        except Exception as failure:  # JAX would wrap the error in one of its own
            self._failure = self._failure or failure
            return own

    @contextlib.contextmanager
    def replacing(self, name: str, axes: str, *places: Any) -> Iterator[None]:
        """Replace a function of some modules during tracing."""
        kept = [(place, getattr(place, name)) for place in places]
        for place, function in kept:
            setattr(place, name, self.over(function, axes))
        try:
            yield
        finally:
            for place, function in kept:
                setattr(place, name, function)


def _seen(array: Any, axes: str) -> FloatArray:
    """Return an argument in the core's layout."""
    wide: FloatArray = array.astype(np.float64)
    return wide if axes == "LL" else np.asarray(_heads_first(wide, axes))


def _heads_first(array: Any, axes: str) -> Any:
    """Return an array as (B, H, L, d)."""
    array = array.swapaxes(-2, -3) if axes == "LHd" else array
    return array.reshape(-1, *array.shape[-3:])


def _named(held: Any) -> dict[str, FloatArray]:
    """Return the real arrays of a tree by path."""
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(held)
    return {jax.tree_util.keystr(path): np.asarray(leaf, float) for path, leaf in leaves if _is_real(leaf)}


def _close(one: FloatArray, other: FloatArray) -> bool:
    """Return whether arrays agree up to rounding."""
    return one.shape == other.shape and bool(
        np.abs(one - other).max(initial=0.0) <= _SAME * np.abs(other).max(initial=0.0)
    )


def _is_real(leaf: Any) -> bool:
    import jax

    return hasattr(leaf, "dtype") and bool(jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating))
