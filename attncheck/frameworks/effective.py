"""Recovery of a module's query, key, value and output matrices from forward passes on unit vectors."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError, refuse
from attncheck.frameworks.adapter import PASS_CALL, SINGLE, Adapter
from attncheck.frameworks.layout import CoreLayout, layout_of
from attncheck.frameworks.trace import AttentionCore, CoreTrace, Trace, zeros

#: Roles of the inputs to attention; its output has the role "output".
ROLES = ("query", "key", "value")
#: Factor by which unit vectors are multiplied: much larger than biases, to limit rounding.
LENGTH = 2.0**10
#: Factor of unit vectors before a norm: much larger than the norm's epsilon.
SHORT = 2.0**7
#: Kinds of normalisation of the inputs before attention.
NONE, RMS, LAYER = "none", "RMS norm", "layer norm"
# Changes of at most this many unit roundoffs count as zero.
_ROUNDED = 16.0
# Largest rounding errors, in unit roundoffs: _STORED for a stored value, and _SUMMED times √N for a sum of N terms,
# whose errors add up as in a random walk.
_STORED, _SUMMED = 5.0, 4.0
#: How heads are merged: correctly, or with the axes of heads and positions confused.
PROPERLY, WITHOUT_TRANSPOSE = "transposed", "not transposed"
# Relative tolerance of the test for a norm, which allows for rounding and for the norm's epsilon.
_TOLERANCE = 0.02
# Numbers of positions that suffice to identify the axes, and to detect how heads are merged.
_POSITIONS, _SEVERAL = 3, 7
# Maximum number of input entries per call when matrices are read.
_CALL = 2**19


def agree(first: FloatArray, second: FloatArray, precision: float) -> bool:
    """Return whether two arrays have the same shape and agree up to rounding, relative to the largest entry.

    `precision` is the unit roundoff of the entries.
    """
    if first.shape != second.shape:
        return False
    return bool(np.all(np.abs(first - second) <= _ROUNDED * precision * np.abs(first).max(initial=0.0)))


def groups_of(arrays: Iterable[FloatArray], precision: float) -> list[list[int]]:
    """Group arrays that agree up to rounding; return the indices of each group, in order of first appearance.

    `precision` is the unit roundoff of the entries.

    Examples
    --------
    >>> groups_of([np.eye(2), np.ones((2, 2)), np.eye(2)], 1e-9)
    [[0, 2], [1]]
    """
    groups: list[tuple[FloatArray, list[int]]] = []
    for i, array in enumerate(arrays):
        members = next((members for first, members in groups if agree(first, array, precision)), None)
        if members is None:
            groups.append((array, [i]))
        else:
            members.append(i)
    return [members for _, members in groups]


def labels_of(matrix: FloatArray, precision: float) -> tuple[int, ...]:
    """Return one label per head of a matrix (rows, heads, d), numbered by first appearance; equal heads share one."""
    groups = groups_of(matrix.swapaxes(0, 1), precision)
    labels = {head: label for label, heads in enumerate(groups) for head in heads}
    return tuple(labels[head] for head in range(len(labels)))


def rounding(precision: float, terms: int) -> float:
    """Return the largest relative error of a sum of `terms` terms that rounding explains.

    Terms and sums are stored with unit roundoff `precision`, but sums are computed in float32 or better.
    """
    return _STORED * precision + _SUMMED * min(precision, SINGLE) * math.sqrt(terms)


def normed(x: FloatArray, norm: str) -> FloatArray:
    """Apply a norm, one of `NONE`, `RMS` and `LAYER`, to the last axis of the inputs."""
    if norm == NONE:
        return x
    x = x - x.mean(axis=-1, keepdims=True) if norm == LAYER else x
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True)))


def unit_size(norm: str, width: int) -> float:
    """Return the factor by which unit vectors are multiplied when they reach attention.

    Without a norm, the factor is `LENGTH`. With a norm it does not depend on the length of the inputs. A layer norm
    also subtracts the mean of each unit vector.
    """
    return float({NONE: LENGTH, RMS: width**0.5, LAYER: width / max(width - 1, 1) ** 0.5}[norm])


def norm_of(probe: Callable[[FloatArray], FloatArray], width: int) -> str:
    """Return the kind of norm before attention; `probe` maps inputs to queries or values.

    With a norm, the result of `probe` does not change if inputs are doubled.
    """
    # These inputs are large compared with a norm's epsilon, but their squares do not overflow in float16.
    x = np.random.default_rng(0).integers(-64, 65, (1, 1, width)).astype(np.float64)
    once, twice, shifted = (probe(inputs) for inputs in (x, 2 * x, x + 32.0))
    small = _TOLERANCE * np.abs(once).max()
    if np.abs(once).max() == 0.0 or np.abs(twice - once).max() > small:
        return NONE
    return LAYER if np.abs(shifted - once).max() <= small else RMS


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """Output of a module, with the queries, keys, values and weights of its attention.

    The output y has shape (batch, positions, m), queries (batch, heads, positions, d), keys and values (batch, key
    heads, keys, ·), weights (batch, heads, positions, keys). `calls` counts how often attention runs in the forward
    pass; parallel cores count as one.
    """

    y: FloatArray
    query: FloatArray
    key: FloatArray
    value: FloatArray
    weights: FloatArray
    calls: int = 1

    def __getitem__(self, role: str) -> FloatArray:
        return np.asarray(getattr(self, role))

    def normalised(self) -> AttentionCall:
        """Return the call with weights that are divided by the sums of their rows."""
        sums = self.weights.sum(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            return dataclasses.replace(self, weights=self.weights / np.where(sums > 0.0, sums, np.nan))


@dataclasses.dataclass(frozen=True)
class Effective:
    """Query, key, value and output matrices recovered from forward passes, or selected rows of these matrices.

    Attributes
    ----------
    query : ndarray, (rows, heads, d)
    key : ndarray, (rows, key heads, d)
    value : ndarray, (rows, key heads, e)
    output : ndarray, (output rows, m)
        Without a selection it has one row per head and neuron of the values.
    biases : mapping of ndarray
        Biases by role, including "output".
    past : ndarray, (rows, m)
        Matrix of the map from inputs to outputs that bypasses attention.
    """

    query: FloatArray
    key: FloatArray
    value: FloatArray
    output: FloatArray
    biases: Mapping[str, FloatArray]
    past: FloatArray

    def __getitem__(self, role: str) -> FloatArray:
        return np.asarray(getattr(self, role))

    def shared_by(self, maps: int, precision: float) -> list[str]:
        """Return the roles whose matrices are the same in all of `maps` attention maps.

        The matrices W_O may differ by a factor.
        """
        if maps == 1:
            return []
        parts = {role: np.split(self[role], maps, axis=1) for role in ROLES}
        blocks = np.split(self.output, maps)
        parts["output"] = [block / (np.sum(block * blocks[0]) or 1.0) for block in blocks]
        return [role for role, part in parts.items() if len(groups_of(part, precision)) == 1]

    def of_first(self, maps: int) -> Effective:
        """Return the matrices of the first of `maps` attention maps, each with the same number of heads."""
        queries, keys = self.query.shape[1] // maps, self.key.shape[1] // maps
        output = self.output[: queries * self.value.shape[2]]
        parts = self.query[:, :queries], self.key[:, :keys], self.value[:, :keys], output
        return Effective(*parts, biases=self.biases, past=self.past)


class ModuleReader:
    """Reader of a module's matrices on one code path; it determines the layout of attention once, for all draws.

    Raises `NoAttentionCall` if the forward pass contains no attention, and `InputError` for an unknown layout.
    """

    def __init__(self, adapter: Adapter, state: Any, width: int, path: str) -> None:
        self.adapter, self.width, self.path = adapter, width, path
        #: Whether weights are divided by the sums of their rows only after the product with the values.
        self.divides_later = False
        #: Shortest accepted sequence length, and whether the module accepts every length.
        self.length, self.any_length = self._lengths(state)
        self.layout = self._layout(state)
        #: Roles whose heads are split with the axes of heads and positions confused.
        self.confused = self._confused(state)
        self.merged = self._merged(state)
        self.norm = self._norm(state)

    def _norm(self, state: Any) -> str:
        """Return the kind of norm before attention, found from the values.

        The result is `NONE` if the queries change when inputs are doubled.
        """

        def first(role: str, x: FloatArray) -> FloatArray:
            return self.see(state, self.placed(x[0]), silent=True)[role][:, :, :1]

        values, queries = (norm_of(functools.partial(first, role), self.width) for role in ("value", "query"))
        return values if queries != NONE else NONE

    def placed(self, x: FloatArray) -> FloatArray:
        """Return one sequence per vector of `x`, (N, n): the vector at position 0, and zeros at all later positions."""
        sequences = np.zeros((len(x), self.length, self.width))
        sequences[:, 0] = x
        return sequences

    def see(self, state: Any, x: FloatArray, returns: FloatArray | None = None, silent: bool = False) -> AttentionCall:
        """Run the module on x, (batch, positions, n), and return its output with a record of the first attention.

        The record has queries, keys, values and weights. The result of that attention is replaced by `returns`,
        (batch, heads, positions, e), if given, or by zeros if `silent` is True.
        """
        layout = self.layout

        def answer(core: AttentionCore) -> FloatArray | None:
            if core.index >= layout.parallel or (returns is None and not silent):
                return None
            if returns is not None:
                return layout.own(returns, core.index, core.weights)
            return zeros(core)

        trace = CoreTrace(answer)
        y = self.outputs(state, x, trace, self.path)
        first = sorted((core for core in trace.cores if core.index < layout.parallel), key=lambda core: core.index)
        if len(first) < layout.parallel:
            raise InputError("call: attention did not run; " + PASS_CALL)
        calls = 1 + max(0, len(trace.cores) - layout.parallel)
        try:
            fields = layout.standard(first, *x.shape[:2])
        except ValueError:
            if first[0].key.shape[-2] == x.shape[1] + layout.extra:
                problem = "go through attention one after another, not in one batch"
                refuse("sequences", len(x), problem, "test it by sampling: attncheck.check")
            keys, positions = first[0].key.shape[-2], x.shape[1]
            counts = f"{keys} for {positions} positions"
            if keys < positions:
                refuse("keys", counts, "are in blocks", "inspect attention that takes all keys at once")
            refuse("keys", counts, "exceed the positions by a length-dependent number", "inspect self-attention")
        call = AttentionCall(y, **fields, calls=calls)
        return call.normalised() if self.divides_later else call

    def outputs(self, state: Any, x: FloatArray, trace: Trace, path: str) -> FloatArray:
        """Return the output, (batch, positions, m), on a code path; swap axes if the module has positions first."""
        swapped = self.layout.first_axis
        y = self.adapter.outputs(state, x.swapaxes(0, 1) if swapped else x, trace, path)
        return y.swapaxes(0, 1) if swapped else y

    def biases(self, state: Any) -> dict[str, FloatArray]:
        """Return the biases by role."""
        none = self.see(state, np.zeros((1, self.length, self.width)), silent=True)
        return {r: self._first(none, r)[0] for r in ROLES} | {"output": none.y[0, 0]}

    def read(self, state: Any, rows: Any = slice(None), output_rows: Any = slice(None)) -> Effective:
        """Return the module's matrices; `rows` selects rows of W_Q, W_K and W_V, and `output_rows` rows of W_O."""
        biases = self.biases(state)
        length = LENGTH if self.norm == NONE else SHORT
        units = self._firsts(length * np.eye(self.width)[rows], lambda x: self.see(state, self.placed(x), silent=True))
        number, size = len(biases["query"]), biases["value"].shape[-1]
        chosen = LENGTH * np.eye(number * size)[output_rows]
        after = self._firsts(
            chosen.reshape(-1, number, size),
            lambda heads: self.see(state, np.zeros((len(heads), self.length, self.width)), self._heads(heads)),
        )
        unit = unit_size(self.norm, self.width)
        read = {r: self._change(units[r], biases[r]) / unit for r in ROLES}
        output = self._change(after["output"], biases["output"]) / LENGTH
        for name, matrix in (read | {"output": output}).items():
            if not np.all(np.isfinite(matrix)):
                finite = all(np.isfinite(array).all() for array in self.adapter.parameters(state).values())
                problem = "is an entry of this matrix, which must be finite"
                remedy = "mend the forward pass: all parameters are finite" if finite else "mend the initialiser"
                refuse(name, float(matrix[~np.isfinite(matrix)][0]), problem, remedy)
        past = self._change(units["output"], biases["output"]) / length
        return Effective(**read, output=output, biases=biases, past=past)

    def _firsts(self, vectors: FloatArray, see: Callable[[FloatArray], AttentionCall]) -> dict[str, FloatArray]:
        """Return the output, queries, keys and values at the first position, for each of the `vectors`.

        To save memory, `see`, which runs the module, gets only a few vectors at a time.
        """
        size = max(1, _CALL // (self.length * self.width))
        parts = []
        for start in range(0, max(1, len(vectors)), size):
            call = see(vectors[start : start + size])
            views = {"output": call.y[:, 0]} | {role: self._first(call, role) for role in ROLES}
            parts.append({name: view.copy() for name, view in views.items()})  # views keep whole arrays
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _first(self, call: AttentionCall, role: str) -> FloatArray:
        """Return the queries, keys or values of the first position, (N, heads, d)."""
        if role in self.confused:
            return np.asarray(call[role][:, *np.divmod(np.arange(call[role].shape[1]), self.length)])
        return call[role][:, :, 0]

    def _confused(self, state: Any) -> set[str]:
        """Return the roles whose vectors are split into heads without a transpose, which mixes heads and positions.

        For such a role, a change of the input at position 0 shows at other positions of some heads.
        """
        length = _SEVERAL if self.any_length else self.length
        x = np.zeros((2, length, self.width))
        x[0] = x[1] = np.round(np.random.default_rng(0).standard_normal((length, self.width)) * 8) / 8
        x[1, 0] *= -1.0
        call = self.see(state, x, silent=True)
        roles = set()
        for role in ROLES:
            number = call[role].shape[1]
            changed = np.abs(call[role][1] - call[role][0]).max(axis=-1)[:, :length] > 0
            wrong = np.zeros_like(changed)
            wrong[np.divmod(np.arange(number), length)] = True
            if number > 1 and np.array_equal(changed, wrong):
                roles.add(role)
        return roles

    def _heads(self, chosen: FloatArray) -> FloatArray:
        """Return results of attention, (N, heads, positions, e), that the module merges to `chosen` at position 0.

        `chosen` has shape (N, heads, e).
        """
        batch, number, size = chosen.shape
        heads = np.zeros((batch, number, self.length, size))
        at = np.arange(number)
        if self.merged == WITHOUT_TRANSPOSE:
            heads[:, at // self.length, at % self.length] = chosen
        else:
            heads[:, at, 0] = chosen
        return heads

    def _merged(self, state: Any) -> str | None:
        """Return how heads are merged, `PROPERLY` or `WITHOUT_TRANSPOSE`, or None if neither fits.

        The result of the last head is changed at one position at a time; the outputs that change reveal the merge.
        """
        length = _SEVERAL if self.any_length else self.length
        at, number = np.arange(length), self.layout.num_heads
        rng = np.random.default_rng(0)
        x = np.round(rng.standard_normal((1, length, self.width)) * 8) / 8
        x = np.repeat(x, length, axis=0)
        none = self.see(state, x, silent=True)
        heads = np.zeros((length, number, length, none.value.shape[-1]))
        heads[at, number - 1, at] = np.round(rng.standard_normal(heads.shape[-1]) * 8) + 0.5
        changes = np.abs(self.see(state, x, heads).y - none.y).max(axis=-1)  # (changed position, output position)
        max_error = rounding(self.adapter.precision, max(self.width, number * heads.shape[-1]))
        reached = changes > 4 * max_error * max(float(np.abs(none.y).max()), float(changes.max()))
        for way, positions in ((PROPERLY, at), (WITHOUT_TRANSPOSE, ((number - 1) * length + at) // number)):
            expected = np.zeros_like(reached)
            expected[at, positions] = True
            if not (reached & ~expected).any():
                return way
        return None

    def _change(self, result: FloatArray, before: FloatArray) -> FloatArray:
        """Return `result` minus `before`, or zeros if rounding explains the difference."""
        change = result - before
        size = float(np.abs(before).max(initial=0.0))
        rounded = np.all(np.abs(change) <= _ROUNDED * self.adapter.precision * size)
        return np.zeros_like(change) if rounded else change

    # The layout -----------------------------------------------------------------------------------

    def _lengths(self, state: Any) -> tuple[int, bool]:
        """Return the shortest accepted sequence length, and whether all lengths are accepted."""
        first, *rest = self.adapter.lengths
        failure = self._failure(state, first)
        if failure is None:
            return first, bool(rest) and self._failure(state, _POSITIONS) is None
        for length in rest:
            if self._failure(state, length) is None:
                return length, False
        raise failure

    def _failure(self, state: Any, length: int) -> InputError | None:
        """Return the error of a call on sequences of this length, or None."""
        try:
            self.adapter.outputs(state, np.zeros((2, length, self.width)), Trace(), self.path)
        except InputError as error:
            return error
        return None

    def _layout(self, state: Any) -> CoreLayout:
        """Return the layout of the attention cores; raise `NoAttentionCall` if there are none."""

        def cores(x: FloatArray, silenced: int) -> list[AttentionCore]:
            trace = CoreTrace(lambda core: zeros(core) if core.index < silenced else None)
            self.adapter.outputs(state, x, trace, self.path)
            return sorted(trace.cores, key=lambda core: core.index)

        return layout_of(cores, self.width, _POSITIONS if self.any_length else self.length)
