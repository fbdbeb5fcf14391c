"""Recovery of a module's matrices from its outputs on unit vectors, with attention replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attncheck._lib.errors import InputError, refuse
from attncheck.frameworks.binding import FloatArray, Instrument, NoAttentionCall

#: Roles of the inputs to attention; its output has the role "output".
ROLES = ("query", "key", "value")
#: Length of unit vectors, large against biases to limit rounding.
LENGTH = 2.0**10
#: Length of unit vectors fed to a norm: large against the norm's epsilon.
SHORT = 2.0**7
#: Kinds of normalisation of the inputs before attention.
NONE, RMS, LAYER = "none", "RMS norm", "layer norm"
# Changes of at most this many unit roundoffs count as zero.
_ROUNDED = 16.0
# Relative tolerance for rounding and a norm's epsilon.
_ALIKE = 0.02
# Two (batch, positions) pairs that identify the axes.
_SHAPES = ((2, 3), (3, 5))
_REMEDY = "pass call=lambda module, x: ..., from (batch, positions, width) to (batch, positions, width)"


def alike(one: FloatArray, other: FloatArray, precision: float) -> bool:
    """Return whether matrices agree up to rounding, including that of added biases."""
    if one.shape != other.shape:
        return False
    return bool(np.all(np.abs(one - other) <= _ROUNDED * precision * np.abs(one).max(initial=0.0)))


def normed(x: FloatArray, norm: str) -> FloatArray:
    """Return the inputs after the module's own normalisation, if any."""
    if norm == NONE:
        return x
    x = x - x.mean(axis=-1, keepdims=True) if norm == LAYER else x
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True)))


def unit_size(norm: str, width: int, length: float = LENGTH) -> float:
    """Return the length after normalisation of unit vectors times ``length``."""
    return float({NONE: length, RMS: width**0.5, LAYER: width / max(width - 1, 1) ** 0.5}[norm])


def norm_of(probe: Callable[[FloatArray], FloatArray], width: int) -> str:
    """Return the normalisation before attention, detected by results that do not grow with the inputs."""
    # Large against a norm's epsilon, and small enough for squares in float16.
    x = np.random.default_rng(0).integers(-64, 65, (1, 1, width)).astype(np.float64)
    once, twice, shifted = (probe(each) for each in (x, 2 * x, x + 32.0))
    small = _ALIKE * np.abs(once).max()
    if np.abs(once).max() == 0.0 or np.abs(twice - once).max() > small:
        return NONE
    return LAYER if np.abs(shifted - once).max() <= small else RMS


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """Output, (B, L, m), and inputs to attention: q (B, H, L, d), k and v (B, G, L', d)."""

    y: FloatArray
    query: FloatArray
    key: FloatArray
    value: FloatArray
    calls: int

    def __getitem__(self, role: str) -> FloatArray:
        found: FloatArray = getattr(self, role)
        return found


@dataclasses.dataclass(frozen=True)
class HeadLayout:
    """Axes of the inputs to attention.

    Forms: (B, H, L, d); (H, B, L, d); (B·H, L, d); (H·B, L, d); or (B, L, H, d), with attention over heads.
    `first_axis`: positions come first. `extra`: keys beyond the positions.
    """

    form: str
    heads: int
    first_axis: bool = False
    extra: int = 0

    def standard(self, a: FloatArray, batch: int) -> FloatArray:
        """Return an input to attention as (B, H, L, d)."""
        if self.form == "positions":
            return a.swapaxes(1, 2)
        if self.form == "flat":
            return a.reshape(batch, -1, *a.shape[-2:])
        if self.form == "flat, heads first":
            a = a.reshape(-1, batch, *a.shape[-2:])
        return a if self.form == "heads" else a.swapaxes(0, 1)

    def own(self, a: FloatArray) -> FloatArray:
        """Return (B, H, L, d) in the module's own layout."""
        if self.form == "positions":
            return a.swapaxes(1, 2)
        if "first" in self.form:
            a = a.swapaxes(0, 1)
        return a.reshape(-1, *a.shape[-2:]) if "flat" in self.form else a


@dataclasses.dataclass(frozen=True)
class Effective:
    """Matrices recovered from forward passes, or selected rows of them.

    Attributes
    ----------
    query, key, value : ndarray, (r, H, d), with G heads for key and value
    output : ndarray, (H·d, m)
    biases : mapping of ndarray
        By role, including "output".
    past : ndarray, (r, m)
        Response of the output that bypasses attention.
    """

    query: FloatArray
    key: FloatArray
    value: FloatArray
    output: FloatArray
    biases: Mapping[str, FloatArray]
    past: FloatArray

    def __getitem__(self, role: str) -> FloatArray:
        found: FloatArray = getattr(self, role)
        return found


class ModuleReader:
    """Reader of matrices from one code path; it determines the layout once for all draws.

    Raises `NoAttentionCall` without a call of attention, and `InputError` for an unknown layout.
    """

    def __init__(self, instrument: Instrument, state: Any, width: int, path: str) -> None:
        self.instrument, self.width, self.path = instrument, width, path
        self.layout, self.norm = HeadLayout("heads", 0), NONE
        self.layout = self._layout(state)
        self.norm = norm_of(lambda x: self.see(state, x, silent=True).value, width)

    def see(self, state: Any, x: FloatArray, returns: FloatArray | None = None, silent: bool = False) -> AttentionCall:
        """Run on x, (B, L, n); return the inputs of the first attention call.

        That call returns `returns`, (B, H, L, d), or zeros if `silent`.
        """
        got: list[tuple[FloatArray, ...]] = []

        def core(q: FloatArray, k: FloatArray, v: FloatArray) -> FloatArray | None:
            got.append((q, k, v) if not got else ())
            if len(got) > 1 or (returns is None and not silent):
                return None
            if returns is not None:
                return self.layout.own(returns)
            return np.zeros((*q.shape[:-1], v.shape[-1]))

        fed = x.swapaxes(0, 1) if self.layout.first_axis else x
        y = self.instrument.run(state, fed, core, self.path)
        if not got:
            raise InputError("call: attention did not run; " + _REMEDY)
        y = y.swapaxes(0, 1) if self.layout.first_axis else y
        q, k, v = (self.layout.standard(np.asarray(a, dtype=np.float64), len(x)) for a in got[0])
        return AttentionCall(y, q, k, v, len(got))

    def see_each(self, state: Any, arrays: Mapping[str, FloatArray], x: FloatArray) -> AttentionCall:
        """Like `see`, for N modules with arrays (N, ...) and inputs (N, L, n); may raise any exception."""
        if self.instrument.attended is None:
            raise NotImplementedError
        alone = 2 if self.layout.first_axis else 1
        path = {"path": self.path} if self.path else {}
        y, *got = self.instrument.attended(state, arrays, np.expand_dims(x, alone), **path)
        q, k, v = (np.concatenate([self.layout.standard(each, 1) for each in a]) for a in got)
        return AttentionCall(y.squeeze(alone), q, k, v, 1)

    def biases(self, state: Any) -> dict[str, FloatArray]:
        """Return the biases by role."""
        return self._added(self._none(state))

    def _none(self, state: Any) -> AttentionCall:
        return self.see(state, np.zeros((1, 1, self.width)), silent=True)

    def _added(self, none: AttentionCall) -> dict[str, FloatArray]:
        return {r: none[r][0, :, 0] for r in ROLES} | {"output": none.y[0, 0]}

    def read(self, state: Any, rows: Any = slice(None), output_rows: Any = slice(None)) -> Effective:
        """Return the matrices, or the selected `rows` and `output_rows`."""
        none = self._none(state)
        length = LENGTH if self.norm == NONE else SHORT
        units = self.see(state, length * np.eye(self.width)[rows][:, None, :], silent=True)
        inner = none.query.shape[1] * none.value.shape[-1]
        heads = LENGTH * np.eye(inner)[output_rows]
        heads = heads.reshape(len(heads), none.query.shape[1], 1, none.value.shape[-1])
        after = self.see(state, np.zeros((len(heads), 1, self.width)), heads)
        size = unit_size(self.norm, self.width)
        read = {r: self._change(units[r][:, :, 0], none[r][:, :, 0]) / size for r in ROLES}
        output = self._change(after.y[:, 0], none.y[0]) / LENGTH
        for name, matrix in (read | {"output": output}).items():
            if not np.all(np.isfinite(matrix)):
                what = "is an entry of this matrix, which must be finite"
                refuse(name, float(matrix[~np.isfinite(matrix)][0]), what, "mend the initialiser")
        return Effective(
            **read, output=output, biases=self._added(none), past=self._change(units.y[:, 0], none.y[0]) / length
        )

    def _change(self, made: FloatArray, before: FloatArray) -> FloatArray:
        """Return the response to unit vectors, or 0 if it is only rounding."""
        change = made - before
        size = float(np.abs(before).max(initial=0.0))
        rounded = np.all(np.abs(change) <= _ROUNDED * self.instrument.precision * size)
        return np.zeros_like(change) if rounded else change

    def _layout(self, state: Any) -> HeadLayout:
        """Return the layout, from runs with different batch sizes and lengths."""
        shapes = [self._shapes(state, *given) for given in _SHAPES]
        queries, keys = ([s[i] for s in shapes] for i in (0, 1))
        batch, length = np.transpose(_SHAPES)
        axes = np.transpose(queries)

        def moves(axis: int, with_: FloatArray) -> bool:
            return bool(np.array_equal(axes[axis], with_))

        if moves(-2, length) and len({k[-2] for k in keys}) == 1:
            refuse("keys", keys[0], "do not depend on the inputs: cross-attention", "inspect self-attention")
        extra = [k[-2] - q[-2] for q, k in zip(queries, keys, strict=True)]
        more = extra[0] if extra[0] == extra[1] and extra[0] > 0 else 0
        if len(queries[0]) == 4:
            for swapped, (b, t) in enumerate(((batch, length), (length, batch))):
                if moves(0, b) and moves(2, t):
                    return HeadLayout("heads", queries[0][1], bool(swapped), more)
                if moves(1, b) and moves(2, t):
                    return HeadLayout("heads first", queries[0][0], bool(swapped), more)
            if moves(0, batch) and moves(1, length):
                return HeadLayout("positions", queries[0][2])
        if len(queries[0]) == 3:
            for swapped, (b, t) in enumerate(((batch, length), (length, batch))):
                heads = queries[0][0] // b[0]
                if moves(0, heads * b) and moves(1, t):
                    first = heads > 1 and self._heads_first(state, bool(swapped))
                    return HeadLayout("flat, heads first" if first else "flat", heads, bool(swapped), more)
        shown = f"{queries[0]} for inputs of shape {(*_SHAPES[0], self.width)}"
        refuse("queries", shown, "is the shape of attention's inputs, in which no axis holds the positions", _REMEDY)

    def _heads_first(self, state: Any, swapped: bool) -> bool:
        """Return whether the second entry of (·, L, d) is another sequence, not another head."""
        rows: list[FloatArray] = []

        def core(q: FloatArray, k: FloatArray, v: FloatArray) -> None:
            rows.append(q[1])

        x = np.zeros((2, 2, self.width))
        for second in (0.0, 1.0):
            x[1] = second
            before = len(rows)
            self.instrument.run(state, x.swapaxes(0, 1) if swapped else x, core, self.path)
            del rows[before + 1 :]  # entered by later attention calls
        without, with_ = rows
        return not np.array_equal(without, with_)

    def _shapes(self, state: Any, batch: int, length: int) -> tuple[tuple[int, ...], ...]:
        shapes: list[tuple[int, ...]] = []

        def core(q: FloatArray, k: FloatArray, v: FloatArray) -> None:
            shapes.extend((q.shape, k.shape))

        self.instrument.run(state, np.zeros((batch, length, self.width)), core, self.path)
        if not shapes:
            raise NoAttentionCall
        return tuple(shapes[:2])
