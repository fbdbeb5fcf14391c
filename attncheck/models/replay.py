"""Recorded calls of modules in a model, repeated on other hidden states, for any framework."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck.frameworks.framework import parameters_of
from attncheck.frameworks.trace import Trace, leaves_of

# An argument whose name contains one of these is no source of keys and values: it is added to keys, or hides them.
_NOT_SOURCES = ("pos", "mask", "bias")
# An argument whose name contains this is added to the outputs; it is set to 0.
_ADDED = "residual"
# Relative tolerance within which an argument equals another one plus a vector that depends only on the position.
_ROUNDED = 1e-5
# Limit on width times positions².
_MOST = 2**24
# Result of `_offset` for an argument that does not equal the hidden states up to an offset.
_UNRELATED = object()
# Used in place of a batch axis for an argument that is a whole number proportional to the number of sequences.
_COUNT = -1


@dataclasses.dataclass(frozen=True, eq=False)
class CallArguments:
    """Arguments of one call of a module.

    Attributes
    ----------
    given : tuple
        Positional and keyword arguments.
    leaves : tuple
        Copies of the arrays and other objects in these arguments, without containers.
    names : tuple of str
        Argument name of each leaf; empty for a leaf inside a container.
    places : tuple of int
        Identity of each leaf; equal for leaves that are the same object.
    """

    given: tuple[Any, Any]
    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallArguments:
        """Return the arguments of a call."""
        named = [*zip(_positional(function, len(args)), args, strict=True), *kwargs.items()]
        leaves = [(name if value is leaf else "", leaf) for name, value in named for leaf in leaves_of(value)]
        # Copies of containers, because a call may fill a cache that it gets as an empty dict.
        given = _with_leaves((tuple(args), dict(kwargs)), iter([leaf for _, leaf in leaves]))
        copies = tuple(_snapshot(leaf) for _, leaf in leaves)
        addresses = tuple(id(leaf) for _, leaf in leaves)
        return cls(given, copies, tuple(name for name, _ in leaves), addresses)


@dataclasses.dataclass(frozen=True, eq=False)
class HiddenStates:
    """Arguments of a recorded call on one sequence; calling this object repeats that call with other hidden states.

    Attributes
    ----------
    arguments : CallArguments
    batch : tuple of int or None
        For each leaf, the axis that grows with the number of sequences, -1 for a number that grows with it, or None.
    hidden : frozenset of int
        Indices of the leaves that new hidden states replace. In `arguments`, each of these leaves is an offset that is
        added to the new hidden states, or None.
    axis : int
        Axis of sequences in the hidden states.
    width : int
    lengths : tuple of int
        Numbers of positions to try, in order.
    source : str
        Name of the argument from which keys and values are computed, if it is replaced too; else empty.
    crossed : HiddenStates or None
        Variant for cross-attention, in which the source of keys and values is replaced too; None if no argument may be
        such a source.
    """

    arguments: CallArguments
    batch: tuple[int | None, ...]
    hidden: frozenset[int]
    axis: int
    width: int
    lengths: tuple[int, ...]
    source: str = ""
    crossed: HiddenStates | None = None

    def __call__(self, module: Any, x: Any) -> Any:
        """Return the output of a module, (batch, positions, m), for hidden states x, (batch, positions, n)."""
        states = x.swapaxes(0, 1) if self.axis else x
        leaves = (
            (states if leaf is None else states + leaf) if i in self.hidden else _copied(_repeated(leaf, axis, len(x)))
            for i, (leaf, axis) in enumerate(zip(self.arguments.leaves, self.batch, strict=True))
        )
        args, kwargs = _with_leaves(self.arguments.given, leaves)
        output = module(*args, **kwargs)
        for array in leaves_of(output):
            if _is_array(array) and array.ndim == x.ndim and array.shape[:2] == states.shape[:2]:
                return array.swapaxes(0, 1) if self.axis else array
        return output

    @property
    def long(self) -> bool:
        """Whether an inspection, which needs as many sequences as neurons, would take too much memory."""
        return self.width * self.lengths[0] ** 2 > _MOST


def hidden_states(one: CallArguments, two: CallArguments) -> HiddenStates | None:
    """Find the hidden states among the arguments of a call; None if there are none.

    `one` and `two` are the arguments in calls on one and on two sequences. Arguments that equal the hidden states, up
    to an offset that is the same in both sequences, are replaced together with them.

    Examples
    --------
    >>> def attention(x, mask): ...
    >>> one, two = (CallArguments.of(attention, (np.zeros((b, 5, 8)),), {"mask": np.eye(5)}) for b in (1, 2))
    >>> states = hidden_states(one, two)
    >>> states.width, states.lengths
    (8, (5,))
    >>> def cross(x, memory, mask): ...
    >>> calls = ((np.zeros((b, 5, 8)), np.ones((b, 7, 8)), np.ones((b, 7))) for b in (1, 2))
    >>> one, two = (CallArguments.of(cross, call, {}) for call in calls)
    >>> hidden_states(one, two).crossed.lengths  # of queries and of keys
    (7,)
    >>> one, two = (CallArguments.of(attention, (np.zeros((b, 0, 8)), None), {}) for b in (1, 2))
    >>> hidden_states(one, two).width  # of an empty cache
    8
    """
    if len(one.leaves) != len(two.leaves):
        return None
    batch = tuple(map(_batch_axis, one.leaves, two.leaves))
    candidates = [i for i, name in enumerate(one.names) if name and _is_hidden(one.leaves[i], batch[i])]
    if not candidates:
        return None
    first = candidates[0]
    width = int(one.leaves[first].shape[-1])
    offsets = {i: _offset(one, two, i, first, batch[first]) for i in candidates if batch[i] == batch[first]}
    same = {i: offset for i, offset in offsets.items() if offset is not _UNRELATED}
    added = {i for i in candidates if i not in same and _ADDED in one.names[i]}
    if added:
        leaves = tuple(leaf * 0 if i in added else leaf for i, leaf in enumerate(one.leaves))
        one = dataclasses.replace(one, leaves=leaves)
    sources = [i for i in candidates if i not in same and _is_source(one.names[i]) and batch[i] == batch[first]]
    sources = [i for i in sources if one.leaves[i].shape[-1] == width]
    # An argument that all sequences share, such as object queries, is an offset rather than a source.
    sources = [i for i in sources if _differs(two.leaves[i], batch[i])] or sources
    states = _replacing(one, batch, same, width)
    if sources:
        crossed = _replacing(one, batch, same | dict.fromkeys(sources), width)
        crossed = dataclasses.replace(crossed, source=one.names[sources[0]])
        return dataclasses.replace(states, crossed=crossed)
    return states


def _offset(one: CallArguments, two: CallArguments, i: int, first: int, axis: int | None) -> Any:
    """Return leaf `i` minus leaf `first`, which has the hidden states; None if they are equal.

    The difference must be the same in both sequences of `two`; otherwise, return `_UNRELATED`. `axis` is the axis of
    sequences. An argument for values that is all zeros, such as the targets of DETR's decoder, would not reveal the
    matrix of values, so None is returned to replace it as well.
    """
    if one.places[i] == one.places[first] or ("value" in one.names[i] and not abs(one.leaves[i]).max() > 0.0):
        return None
    if one.leaves[i].shape != one.leaves[first].shape or one.leaves[i].dtype != one.leaves[first].dtype:
        return _UNRELATED
    hidden, offsets = (
        (a.swapaxes(0, 1) if axis else a) for a in (two.leaves[first], two.leaves[i] - two.leaves[first])
    )
    if not abs(offsets).max() > 0.0:
        return None
    change, size = float(abs(hidden[0] - hidden[1]).max()), float(abs(hidden).max())
    equal = float(abs(offsets[0] - offsets[1]).max()) <= _ROUNDED * size < change
    return one.leaves[i] - one.leaves[first] if equal else _UNRELATED


def _replacing(
    arguments: CallArguments, batch: tuple[int | None, ...], hidden: Mapping[int, Any], width: int
) -> HiddenStates:
    """Return `HiddenStates` that replace the leaves in `hidden`, which maps indices of leaves to offsets.

    `batch` has the batch axis of each leaf. If the replaced leaves have different lengths, all get the length of the
    longest, so that no key is lost. If further leaves have the shortest length, all are cut to that length instead.
    """
    axis = batch[next(iter(hidden))]
    assert axis is not None
    sizes = [int(arguments.leaves[i].shape[1 - axis]) for i in hidden]
    length, longer = min(sizes), max(sizes)
    leaves = tuple(hidden.get(i, leaf) for i, leaf in enumerate(arguments.leaves))
    arguments = dataclasses.replace(arguments, leaves=leaves)
    if length < longer and not any(_has(leaf, length, b) for leaf, b in zip(leaves, batch, strict=True)):
        length = longer
    if length < longer:
        cut = map(functools.partial(_cut, longer, length), arguments.leaves, batch)
        arguments = dataclasses.replace(arguments, leaves=tuple(cut))
    fixed = any(_has(leaf, length, b) for leaf, b in zip(arguments.leaves, batch, strict=True))
    lengths = (length,) if fixed else tuple(range(2, max(length, 2) + 1))
    return HiddenStates(arguments, batch, frozenset(hidden), axis, width, lengths)


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module in the forward pass of a model.

    Attributes
    ----------
    name : str
        Path of the module in the model, such as "h.0.attn".
    kind : str
        Class of the module.
    parent : int or None
        Index of the enclosing call.
    given : HiddenStates or None
        Arguments of the call; None if none of them is an array of hidden states, (batch, positions, width).
    attends : bool
        Whether the module itself, and no module in it, calls a function of the framework that computes attention.
    """

    name: str
    kind: str
    parent: int | None
    given: HiddenStates | None = None
    attends: bool = False

    @property
    def source(self) -> str:
        """In cross-attention, the name of the argument from which keys and values are computed."""
        return self.given.source if self.given else ""


class CallRecorder(Trace):
    """Trace that keeps the module calls of one forward pass, in the order in which they start.

    `method` is the name of the method that computes a module, such as "forward". The signature of the method gives
    positional arguments their names.
    """

    def __init__(self, method: str = "__call__") -> None:
        self._method = method
        self.calls: list[ModuleCall] = []
        self.arguments: list[CallArguments] = []
        self._running: list[int] = []

    def begins(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record the start of a call."""
        self.calls.append(ModuleCall(name, type(module).__name__, self._running[-1] if self._running else None))
        self.arguments.append(CallArguments.of(getattr(module, self._method), args, kwargs))
        self._running.append(len(self.calls) - 1)

    def ends(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        """Record the end of the call that started last."""
        self._running.pop()

    def attends(self) -> None:
        """Mark the running call as one that computes attention."""
        if self._running:
            index = self._running[-1]
            self.calls[index] = dataclasses.replace(self.calls[index], attends=True)

    def numbered(self) -> Iterator[tuple[str, int]]:
        """Yield, for each call, the name of the module and the number of its earlier calls."""
        times = Counter[str]()
        for call in self.calls:
            yield call.name, times[call.name]
            times[call.name] += 1


def paired(one: CallRecorder, two: CallRecorder) -> list[ModuleCall]:
    """Return the calls recorded in `one`, a forward pass on one sequence, with their hidden states.

    They are found by comparing the arguments of each call with those of the same call in `two`, a forward pass on two
    sequences.
    """
    by_key = dict(zip(two.numbered(), two.arguments, strict=True))
    calls = []
    for call, key, arguments in zip(one.calls, one.numbered(), one.arguments, strict=True):
        hidden = hidden_states(arguments, by_key[key]) if key in by_key else None
        calls.append(dataclasses.replace(call, given=hidden))
    return calls


def sequences_of(
    inputs: Mapping[str, Any] | Sequence[Any], number: int | None
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return args and kwargs for a call on the first `number` sequences, or on all sequences if it is None.

    If there are fewer than `number` sequences, they are repeated cyclically. Objects that a call may change, such as a
    cache, are copied.

    Examples
    --------
    >>> args, kwargs = sequences_of({"x": np.ones((4, 7, 8)), "cache": (cache := [])}, 2)
    >>> args, kwargs["x"].shape, kwargs["cache"] is cache
    ((), (2, 7, 8), False)
    """
    values = [_copied(value) for value in (inputs.values() if isinstance(inputs, Mapping) else inputs)]
    batch = next((len(array) for array in values if _is_array(array) and array.ndim), 1)
    if number is not None:
        rows = np.arange(number) % batch
        values = [array[rows] if _is_array(array) and array.ndim and len(array) == batch else array for array in values]
    return ((), dict(zip(inputs, values, strict=True))) if isinstance(inputs, Mapping) else (tuple(values), {})


def _positional(function: Callable[..., Any], number: int) -> list[str]:
    """Return the names of the first `number` positional arguments of a function; unknown names become indices."""
    known = list(parameters_of(function))
    return [known[i] if i < len(known) else str(i) for i in range(number)]


def _with_leaves(value: Any, leaves: Iterator[Any]) -> Any:
    """Return a copy of nested containers with their leaves replaced in order."""
    if isinstance(value, Mapping):
        return {name: _with_leaves(child, leaves) for name, child in value.items()}
    if isinstance(value, tuple | list):
        children = [_with_leaves(child, leaves) for child in value]
        return type(value)(*children) if hasattr(value, "_fields") else type(value)(children)
    return next(leaves)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and hasattr(leaf, "ndim")


def _is_hidden(leaf: Any, axis: int | None) -> bool:
    """Return whether a leaf may be hidden states."""
    return _is_array(leaf) and leaf.ndim == 3 and axis in (0, 1) and "float" in str(leaf.dtype)


def _is_source(name: str) -> bool:
    """Return whether an argument of this name may be the source of keys and values."""
    return not any(part in name for part in _NOT_SOURCES)


def _differs(leaf: Any, axis: int | None) -> bool:
    """Return whether the first two sequences of a leaf differ; `axis` is the axis of sequences."""
    one, two = leaf.swapaxes(0, axis)[:2]
    return bool((one != two).any())


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, int) and not isinstance(leaf, bool)


def _batch_axis(one: Any, two: Any) -> int | None:
    """Return the axis along which a leaf grows with the number of sequences.

    `one` and `two` are the leaf in calls on one and on two sequences. The result is -1 for a number that grows with the
    number of sequences, and None for a leaf that does not.
    """
    if _is_array(one) and _is_array(two) and one.ndim == two.ndim:
        return next((i for i, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if b == 2 * a != 0), None)
    return _COUNT if _is_number(one) and _is_number(two) and two == 2 * one != 0 else None


def _repeated(leaf: Any, axis: int | None, number: int) -> Any:
    """Repeat a leaf of one sequence for `number` sequences; `axis` is the result of `_batch_axis` for the leaf."""
    if axis is None:
        return leaf
    if axis == _COUNT:
        return leaf * number
    return leaf[(*[slice(None)] * axis, np.tile(np.arange(leaf.shape[axis]), number))]


def _cut(size: int, length: int, leaf: Any, batch: int | None) -> Any:
    """Cut all axes of a leaf that have length `size`, except its axis `batch`, to `length`.

    A number that equals `size` is replaced by `length`.
    """
    if not _is_array(leaf):
        return length if _is_number(leaf) and leaf == size else leaf
    return leaf[tuple(slice(length if n == size and i != batch else None) for i, n in enumerate(leaf.shape))]


def _has(leaf: Any, length: int, batch: int | None) -> bool:
    """Return whether a leaf is the number `length`, or an array with an axis of this length other than `batch`."""
    if _is_array(leaf):
        return any(size == length for i, size in enumerate(leaf.shape) if i != batch)
    return _is_number(leaf) and leaf == length


def _snapshot(leaf: Any) -> Any:
    """Return a copy of a leaf, which later in-place changes do not affect."""
    return leaf.detach().clone() if _is_array(leaf) and hasattr(leaf, "detach") else _copied(leaf)


def _copied(leaf: Any) -> Any:
    """Return a copy of an object that a call may change, such as a cache; arrays and functions are not copied."""
    if _is_array(leaf) or callable(leaf):
        return leaf
    try:
        return copy.deepcopy(leaf)
    except (TypeError, ValueError, RuntimeError):  # some objects cannot be copied, such as locks, or computed tensors
        return _copied_in_part(leaf)


def _copied_in_part(leaf: Any) -> Any:
    """Return a copy of an object or container that shares the parts that cannot be copied.

    If no such copy is possible, the object itself is returned.
    """
    try:
        twin = copy.copy(leaf)
        if isinstance(leaf, list):
            twin[:] = map(_copied, leaf)
        else:
            fields = twin if isinstance(leaf, dict) else vars(twin)
            fields.update({name: _copied(value) for name, value in fields.items()})
    except (TypeError, ValueError, RuntimeError):
        return leaf
    return twin
