"""Attention cores of a forward pass: queries, keys and values, and the weights between them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionCore:
    """One attention core of a forward pass, in the layout of the module.

    A core consists of a product of queries and keys, operations on it by entry or by row (a scale, a bias, a mask, a
    softmax), and a product of the resulting weights with values, in one function of a framework or written by hand.

    Attributes
    ----------
    query : ndarray, (..., L, d)
    key : ndarray, (..., L', d)
    value : ndarray, (..., L', e)
        L queries attend to L' keys. The leading axes are batch and heads, or both in one, in any order. Keys and
        values may have fewer heads than queries.
    weights : ndarray, (..., L, L')
        The factor of the values.
    index : int
        Number of earlier cores in the forward pass.

    Examples
    --------
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 4, 5, 8))
    >>> core = AttentionCore(q, k, v, np.full((2, 4, 5, 5), 0.2))
    >>> np.allclose(core.heads, v.mean(axis=-2, keepdims=True))
    True
    """

    query: FloatArray
    key: FloatArray
    value: FloatArray
    weights: FloatArray
    index: int = 0

    @property
    def heads(self) -> FloatArray:
        """Result of the core, (..., L, e), if keys and values have as many heads as queries."""
        return np.asarray(self.weights @ self.value)


class ModuleListener(Protocol):
    """Listener to the calls of modules in a forward pass, in order of execution."""

    def begins(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Receive the start of a call of the module `name`."""

    def ends(self, module: Any, args: tuple[Any, ...], made: Any) -> None:
        """Receive the result of the call that started last."""


def heard(own: Callable[..., Any], names: Mapping[int, str], listener: ModuleListener) -> Callable[..., Any]:
    """Wrap the call of a class of modules so that it notifies a listener; `names` maps the ids of modules to names."""

    @functools.wraps(own)
    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        if id(module) not in names:
            return own(module, *args, **kwargs)
        listener.begins(names[id(module)], module, args, kwargs)
        made = own(module, *args, **kwargs)
        listener.ends(module, args, made)
        return made

    return called


@contextlib.contextmanager
def replaced(place: Any, name: str, function: Any) -> Iterator[None]:
    """Replace an attribute within this context."""
    own = getattr(place, name)
    had = name in vars(place)
    setattr(place, name, function)
    try:
        yield
    finally:
        if had:
            setattr(place, name, own)
        else:
            delattr(place, name)


def zeros(core: AttentionCore) -> FloatArray:
    """Return a result of zeros."""
    return np.zeros((*core.weights.shape[:-1], core.value.shape[-1]))


#: Called with every core. Returns a new result, (..., L, e), or None to keep the module's own result.
Core = Callable[[AttentionCore], FloatArray | None]


def untouched(core: AttentionCore) -> None:
    """Keep every result; bindings then do not trace attention."""
