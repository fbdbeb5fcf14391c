"""Traces, which receive the events of a forward pass: calls of modules, softmaxes, and attention cores."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray


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
        Attention weights, which multiply the values.
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


class Trace:
    """Receiver of the events of one forward pass, in order: calls of modules, softmaxes and attention cores.

    A framework's adapter calls one of these methods at each event. Subclasses override the methods for the events that
    they use; the adapter need not watch for other events.

    Examples
    --------
    >>> class Names(Trace):
    ...     def begins(self, name, module, args, kwargs):
    ...         print(name)
    >>> Names().uses("begins"), Names().uses("core")
    (True, False)
    """

    def begins(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Receive the start of a call of the module `name`."""

    def ends(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        """Receive the result of the call that started last."""

    def attends(self) -> None:
        """Receive a call of a function of the framework that computes attention; only PyTorch reports these."""

    def softmax(self, scores: FloatArray, axis: int) -> None:
        """Receive the scores of a softmax over `axis`, a negative index."""

    def core(self, core: AttentionCore) -> FloatArray | None:
        """Receive an attention core; return another result for it, (..., L, e), or None to keep its own."""
        return None

    def uses(self, event: str) -> bool:
        """Return whether this class overrides the method named `event`, so that it needs to receive these events."""
        return getattr(type(self), event) is not getattr(Trace, event)


class CoreTrace(Trace):
    """Trace that keeps all attention cores.

    Parameters
    ----------
    answer : callable, optional
        Returns the result to use in place of a core's own, or None to keep its own.
    """

    def __init__(self, answer: Callable[[AttentionCore], FloatArray | None] = lambda core: None) -> None:
        self.cores: list[AttentionCore] = []
        self._answer = answer

    def core(self, core: AttentionCore) -> FloatArray | None:
        """Keep a core, and return the result of `answer` for it."""
        self.cores.append(core)
        return self._answer(core)


class ScoresTrace(Trace):
    """Trace that keeps the scores of all softmaxes, with their axes."""

    def __init__(self) -> None:
        self.scores: list[tuple[FloatArray, int]] = []

    def softmax(self, scores: FloatArray, axis: int) -> None:
        """Keep the scores of a softmax."""
        self.scores.append((scores, axis))


def traced_calls(method: Callable[..., Any], names: Mapping[int, str], trace: Trace) -> Callable[..., Any]:
    """Wrap a call method of a class so that a trace receives the calls of modules whose ids are in `names`."""

    @functools.wraps(method)
    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        if id(module) not in names:
            return method(module, *args, **kwargs)
        trace.begins(names[id(module)], module, args, kwargs)
        output = method(module, *args, **kwargs)
        trace.ends(module, args, output)
        return output

    return called


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested containers."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for element in value:
            yield from leaves_of(element)
    else:
        yield value


def first_array(value: Any, default: Any = None) -> Any:
    """Return the first array of real numbers in nested containers, of NumPy or any framework.

    Examples
    --------
    >>> first_array((3, {"ids": np.arange(2), "states": np.ones(2)}))
    array([1., 1.])
    """
    arrays = (
        leaf for leaf in leaves_of(value) if hasattr(leaf, "shape") and "float" in str(getattr(leaf, "dtype", ""))
    )
    return next(arrays, default)


def zeros(core: AttentionCore) -> FloatArray:
    """Return zeros in the shape of a core's result, (..., L, e)."""
    return np.zeros((*core.weights.shape[:-1], core.value.shape[-1]))
