"""What bindings of frameworks on JAX share: functions of attention watched, on the CPU, with nothing compiled."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from attncheck.frameworks.binding import SINGLE, FloatArray


@contextlib.contextmanager
def on_cpu(eager: bool = False) -> Iterator[None]:
    """Work on the CPU; with `eager` nothing is compiled, for what was compiled before would not meet a core."""
    import jax

    with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.disable_jit(eager):
        yield


def first(outputs: Any) -> Any:
    """Return NumPy's array of outputs; of several, such as (outputs, weights), of the first."""
    return np.asarray(outputs[0] if isinstance(outputs, tuple) else outputs)


def named(tree: Any) -> Mapping[str, FloatArray]:
    """Return the arrays of a tree of JAX, by their paths."""
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf, float) for path, leaf in leaves if hasattr(leaf, "dtype")}


def filled(tree: Any, arrays: Mapping[str, FloatArray]) -> Any:
    """Return a tree with arrays, by the names that `named` gives them, in place of its own."""
    import jax

    def leaf(path: Any, own: Any) -> Any:
        name = jax.tree_util.keystr(path)
        return jax.numpy.asarray(arrays[name], own.dtype) if hasattr(own, "dtype") else own

    with on_cpu():
        return jax.tree_util.tree_map_with_path(leaf, tree)


class Watch:
    """A core that is called in the place of functions of JAX.

    Parameters
    ----------
    core : callable
        Called with q, k, v (B, H, L, d), or with scores (..., L, L); returns what the function returns, or None to let
        it go on.

    Attributes
    ----------
    precision : float
        The unit roundoff of what the functions were given; at least that of float32.
    """

    def __init__(self, core: Callable[..., FloatArray | None]) -> None:
        self._core = core
        self.precision = SINGLE
        self._within = False
        self._failure: Exception | None = None

    def over(self, function: Callable[..., Any], arguments: int = 3, axes: str = "LHd") -> Callable[..., Any]:
        """Return `function` with the core in its place.

        Parameters
        ----------
        function : callable
            Attention, or a softmax.
        arguments : int
            How many the core takes: 3 of attention, 1 of a softmax.
        axes : str
            ``LHd`` of arrays (..., L, H, d) of attention; ``HLd`` or ``LL`` of arrays that are as the core takes them.
        """
        import jax

        signature = inspect.signature(function)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._within:  # flax calls attention of JAX, which is watched too
                return function(*args, **kwargs)
            self._within = True
            try:
                own = function(*args, **kwargs)
            finally:
                self._within = False
            given = itertools.islice(signature.bind(*args, **kwargs).arguments.values(), arguments)
            # A callback gets numbers under `jax.vmap` too, with the axes that it adds in front of the others.
            return jax.pure_callback(
                functools.partial(self._answer, axes),
                jax.ShapeDtypeStruct(own.shape, own.dtype),
                own,
                *given,
                vmap_method="broadcast_all",
            )

        return watched

    def _answer(self, axes: str, own: Any, *given: Any) -> Any:
        """Return what the core returns in the shape and type of `own`, which stands where it returns None."""
        import jax

        self.precision = max(self.precision, *(float(jax.numpy.finfo(each.dtype).eps) / 2 for each in given))
        shape, dtype, own = own.shape, own.dtype, np.asarray(own)
        try:
            found = self._core(*(_seen(np.asarray(each), axes) for each in given))
            if found is None:
                return own
            found = np.asarray(found)
            return (found.swapaxes(1, 2) if axes == "LHd" else found).reshape(shape).astype(dtype)
        except Exception as failure:  # JAX would make another error of it
            self._failure = self._failure or failure
            return own

    @contextlib.contextmanager
    def replacing(self, *places: Any, name: str, **options: Any) -> Iterator[None]:
        """Watch the function `name` of some modules until the end, where an error of the core is raised."""
        kept = [(place, getattr(place, name)) for place in places]
        for place, function in kept:
            setattr(place, name, self.over(function, **options))
        try:
            yield
        finally:
            for place, function in kept:
                setattr(place, name, function)
            if self._failure is not None:
                raise self._failure


def _seen(array: Any, axes: str) -> FloatArray:
    """Return an argument as the core takes it."""
    wide: FloatArray = array.astype(np.float64)
    if axes == "LL":
        return wide
    wide = wide.swapaxes(-2, -3) if axes == "LHd" else wide
    return wide.reshape(-1, *wide.shape[-3:])
