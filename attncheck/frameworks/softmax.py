"""Hand-written softmax attention: matrix products from scores and from responses to weights."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from attncheck._lib.errors import InputError, refuse
from attncheck.frameworks.binding import FloatArray, Instrument, NoAttentionCall, untouched
from attncheck.frameworks.effective import LAYER, NONE, SHORT, norm_of, normed, unit_size
from attncheck.frameworks.forward import AXES, OTHER, Booleans, added_mask, masks, visible
from attncheck.frameworks.notes import Note
from attncheck.frameworks.probe import Forward, rounding

#: Scores below this value are masked; no real score is as low.
HIDDEN = -1e3
# Scores below this value get less weight than single-precision rounding.
_FAINT = -16.0
_LENGTH, _SIDE = 16.0, 64
#: Number of positions of test inputs.
POSITIONS = 7
# Factor of inputs to a norm, to make its epsilon negligible.
_BEYOND = 8.0
# Relative tolerance for changes that a norm's epsilon explains.
_STEADY = 0.02
_RANK, _ROUNDED = 1e-4, 16.0
_BY_POSITION = "scores depend on positions: rotary positions, relative positions or a bias; W_Q and W_K are unknown"
#: Result for a path that could not be examined.
UNSEEN = Forward(OTHER, OTHER, OTHER, math.nan, math.inf, math.inf)


@dataclasses.dataclass(frozen=True)
class Products:
    """Products of one draw: scores x M x'ᵀ + x rᵀ + k x'ᵀ + c; head a adds A (x VO + b) to the outputs.

    Attributes
    ----------
    scores : ndarray, (H, m, m)
    row, column : ndarray, (H, m)
    constant : ndarray, (H,)
    values : ndarray, (H, m, n)
    value_bias : ndarray, (H, n)
    silent : ndarray, (n,)
        Output on zeros when attention returns zeros.
    """

    scores: FloatArray
    row: FloatArray
    column: FloatArray
    constant: FloatArray
    values: FloatArray
    value_bias: FloatArray
    silent: FloatArray

    def __getitem__(self, product: str) -> tuple[FloatArray, FloatArray]:
        """Return a product and its bias."""
        return (self.scores, self.row) if product == "query_key" else (self.values, self.value_bias)


class Watcher:
    """A module with its first softmax over positions intercepted; without one, `NoAttentionCall`."""

    def __init__(self, instrument: Instrument, state: Any, width: int, path: str) -> None:
        self.instrument, self.width, self.path, self.axis = instrument, width, path, -1
        self.heads = 0
        self.watch(state, np.zeros((1, 2, width)))
        self.norm = norm_of(lambda x: self._values(state, x), width)
        self.side = width if self.norm == LAYER else self._longest(state)

    def _values(self, state: Any, x: FloatArray) -> FloatArray:
        """Return what attention adds when every position attends to itself."""
        pair = np.concatenate([x, x], axis=1)
        itself = np.broadcast_to(np.eye(2), (1, self.heads, 2, 2))
        return self.watch(state, pair, itself)[0] - self.watch(state, pair, 0 * itself)[0]

    def _longest(self, state: Any) -> int:
        """Return the number of unit vectors per sequence."""
        # Twice the head dimension, so that a head does not span the whole space.
        for side in (max(_SIDE, 2 * self.width // self.heads), _SIDE, _SIDE // 2 - 1, _SIDE // 4 - 1):
            try:
                self.watch(state, np.zeros((1, min(side, self.width) + 1, self.width)))
                return min(side, self.width)
            except InputError:
                continue
        return min(POSITIONS, self.width)

    def watch(self, state: Any, x: FloatArray, weights: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Run on x, (B, L, n); return the output and the scores, (B, H, L, L).

        If given, `weights`, (B, H, L, L), replace the result of the first softmax.
        """
        got: list[FloatArray] = []
        crossed: list[int] = []

        def core(scores: FloatArray, axis: int = -1) -> FloatArray | None:
            if scores.ndim > 3 and scores.shape[-2] == x.shape[1] != scores.shape[-1]:
                crossed.append(scores.shape[-1])
            if got or scores.ndim < 2 or scores.shape[-2:] != (x.shape[1], x.shape[1]):
                return None
            self.axis = axis
            got.append(scores.reshape(len(x), -1, x.shape[1], x.shape[1]))
            return None if weights is None else weights.reshape(scores.shape)

        y = self.instrument.softmax(state, x, core, self.path)
        if not got and crossed:
            what = f"is the number of keys for {x.shape[1]} positions: cross-attention, or keys beyond the positions"
            refuse("softmax", crossed[0], what, "inspect self-attention")
        if not got:
            raise NoAttentionCall
        self.heads = got[0].shape[1]
        return y, got[0]

    def inputs(self) -> FloatArray:
        """Return exactly representable inputs, (1, L, n), in the span of the unit vectors."""
        rng = np.random.default_rng(0)
        x = np.zeros((1, POSITIONS, self.width))
        x[:, :, : self.side] = np.clip(np.round(rng.standard_normal((1, POSITIONS, self.side)) * 8), -31, 31) / 8
        return x if self.norm == NONE else x * _BEYOND

    def read(self, state: Any) -> tuple[Products, Booleans]:
        """Return the products of a draw, and the visible pairs."""
        length = _LENGTH if self.norm == NONE else SHORT
        m, size = self.side, unit_size(self.norm, self.width, length)
        units = length * np.concatenate([np.eye(self.width)[:m], np.zeros((1, self.width))])
        seen = self.watch(state, units[None])[1][0]
        # Reversing the sequence shows the pairs that a causal mask hides.
        turned = self.watch(state, units[None, ::-1])[1][0][:, ::-1, ::-1]
        hidden = seen < HIDDEN
        if np.any(hidden & (turned < HIDDEN)):
            refuse(
                "mask",
                "of the scores",
                "hides some pairs of positions in both directions",
                "inspect the layer without its window",
            )
        seen = np.where(hidden, turned, seen)
        constant = seen[:, m, m]
        row = seen[:, :m, m] - constant[:, None]
        column = seen[:, m, :m] - constant[:, None]
        scores = seen[:, :m, :m] - row[:, :, None] - column[:, None] - constant[:, None, None]
        # Each head in turn attends to itself, finally none. Batch size 1 keeps the head axis unambiguous.
        only = np.zeros((self.heads + 1, 1, self.heads, m + 1, m + 1))
        only[np.arange(self.heads), 0, np.arange(self.heads)] = np.eye(m + 1)
        y = np.concatenate([self.watch(state, units[None], each)[0] for each in only])
        each = y[:-1] - y[-1]
        bias = each[:, m]
        products = (scores / size**2, row / size, column / size, constant, (each[:, :m] - bias[:, None]) / size, bias)
        return Products(*products, y[-1, m]), np.asarray(~hidden)


def rank_of(products: FloatArray, precision: float) -> int:
    """Return the head dimension from rounded products."""
    values = np.linalg.svd(products, compute_uv=False)
    return int(np.max(np.sum(values > max(_RANK, _ROUNDED * precision) * values[:, :1], axis=1)))


def forward_of(watcher: Watcher, state: Any, read: Products, shown: Booleans) -> tuple[Forward, list[Note], bool]:
    """Check, on inputs in the span of the unit vectors, that scores and outputs follow from the products.

    Returns the forward without its scale, notes, and whether scores are given by the products.
    """
    x = watcher.inputs()
    y = watcher.instrument.run(state, x, untouched, watcher.path)[0]
    scores = watcher.watch(state, x)[1][0]
    silent = watcher.watch(state, x, np.zeros((1, *scores.shape)))[0][0]
    names = {_named(each) for each in shown}
    mask = names.pop() if len(names) == 1 else OTHER
    added = float(np.abs(y - silent).max())
    if watcher.axis not in AXES.values():
        where = "softmax over an axis that is neither keys, queries nor heads, such as the batch"
        return dataclasses.replace(UNSEEN, mask=mask), [Note(where, blames=True)], True
    if added == 0.0:
        return dataclasses.replace(UNSEEN, mask=mask), [Note("attention adds nothing to the outputs")], True
    z = normed(x, watcher.norm)[0][:, : watcher.side]
    seen = scores > HIDDEN
    bound = 2 * rounding(watcher.instrument.precision, watcher.width)
    off = np.abs(np.where(seen, _made(read, z) - scores, 0.0)).max()
    bilinear = bool(off <= bound * max(1.0, float(np.abs(np.where(seen, scores, 0.0)).max())))
    hidden = np.where(seen, scores, -np.inf)
    weights = np.exp(hidden - hidden.max(watcher.axis, keepdims=True))
    weights /= weights.sum(watcher.axis, keepdims=True)
    out = silent + (weights @ (z @ read.values + read.value_bias[:, None])).sum(axis=0)
    error = float(np.abs(out - y).max()) / added
    name = next((name for name, axis in AXES.items() if axis == watcher.axis), OTHER)
    found = Forward(name, mask, OTHER, math.nan, error, bound * max(1.0, float(np.abs(y).max()) / added))
    what = "" if bilinear else _scores_are(watcher, state, x, scores, bound)
    notes = [Note(what)] if what else []
    if what == _BY_POSITION:
        filled = _filled(scores, watcher.watch(state, np.roll(x, 1, axis=1))[1][0])
        # With the same input everywhere, only the effect of positions remains.
        left = watcher.watch(state, np.repeat(x[:, :1], x.shape[1], axis=1))[1][0]
        masked = None if filled or mask != NONE else added_mask(left, -_FAINT)
        notes += [masked] if masked else filled
        found = dataclasses.replace(found, positions=OTHER)
    if not found.known:
        notes.append(Note(f"the outputs are {found}", blames=True))
    elif name != "softmax":
        notes.append(Note(name, blames=True))
    if (shown != shown[0]).any():
        notes.append(Note("heads have different masks", blames=True))
    elif mask not in ("none", "causal"):
        notes.append(Note(f"the mask is neither none nor causal: {mask}"))
    return found, notes, bilinear


def _filled(scores: FloatArray, other: FloatArray) -> list[Note]:
    """Report hidden scores, (H, L, L), that are a finite number."""
    filled = ((scores == other) & (scores > HIDDEN)).all(axis=0)
    numbers = np.unique(scores[:, filled])
    if filled.all() or numbers.size != 1:
        return []
    mask, number = _named(~filled), float(numbers[0])
    which = "a mask" if mask == OTHER else f"the {mask} mask"
    return [Note(f"scores hidden by {which} are {number:g}, not -inf", blames=number > _FAINT)]


def _named(shown: Booleans) -> str:
    """Return the name of a mask, (L, L')."""
    return next((each for each in masks(len(shown)) if np.array_equal(visible(each, *shown.shape), shown)), OTHER)


def _made(read: Products, z: FloatArray) -> FloatArray:
    """Return the scores, (H, L, L), that the products give for inputs."""
    made = np.einsum("im,hmn,jn->hij", z, read.scores, z) + read.constant[:, None, None]
    return np.asarray(made + (read.row @ z.T)[:, :, None] + (read.column @ z.T)[:, None])


def _scores_are(watcher: Watcher, state: Any, x: FloatArray, scores: FloatArray, bound: float) -> str:
    """Return why scores are not given by products of matrices."""
    equal = watcher.watch(state, np.repeat(x[:, :1], x.shape[1], axis=1))[1][0]
    equal = np.where(equal > HIDDEN, equal, equal[:, :1, :1])
    small = bound * max(1.0, float(np.abs(equal).max()))
    if np.abs(equal - equal[:, :1, :1]).max() > small:
        return _BY_POSITION
    # Long inputs make biases negligible.
    once, twice = (watcher.watch(state, length * x)[1][0] for length in (_LENGTH, 2 * _LENGTH))
    if np.abs(np.where(scores > HIDDEN, twice - once, 0.0)).max() <= _STEADY * np.abs(equal).max():
        return "queries and keys are normalised: W_Q and W_K are unknown"
    return "scores are not products of queries and keys x W + b: W_Q and W_K are unknown"
