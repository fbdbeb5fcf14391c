"""Attention that is written by hand: its softmax alone is watched, so that products of matrices show, not matrices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attncheck._lib.errors import InputError, refuse
from attncheck.frameworks import laws
from attncheck.frameworks.binding import FloatArray, Instrument, NotSeen, untouched
from attncheck.frameworks.effective import LAYER, LENGTH, NONE, norm_of, normed, unit_size
from attncheck.frameworks.forward import AXES, OTHER, Booleans, masks, visible
from attncheck.frameworks.initialiser import Matrix, same_layers
from attncheck.frameworks.notes import Note
from attncheck.frameworks.paths import over_paths
from attncheck.frameworks.probe import Forward, rounding
from attncheck.frameworks.result import Inspection

#: The two products by their names.
PRODUCTS = {"query_key": "W_Q W_Kᵀ", "value_output": "W_V W_O"}
_HIDDEN = -1e3  # scores of unit vectors are nowhere near
_LENGTH, _SIDE, _POSITIONS = 16.0, 64, 7
# Inputs to a norm are so much larger, so that what it adds to their variance is rounding.
_BEYOND = 8.0
_RANK = 1e-4
_SINGLE = 2.0**-24
_UNSEEN = Forward(OTHER, OTHER, OTHER, math.nan, math.inf, math.inf)
_UNSEPARATED = "attention is written by hand and its softmax alone is watched: products of matrices show, not matrices"
_SCALE = "std of W_Q W_Kᵀ is that of scores times 1/sqrt(head_dim): another scale of scores would show in it"


@dataclasses.dataclass(frozen=True)
class Products:
    """What one draw shows: scores are x M x'ᵀ + x rᵀ + k x'ᵀ + c, and head a adds A (x VO + b).

    Attributes
    ----------
    scores : ndarray, (H, m, m)
    row, column : ndarray, (H, m)
    constant : ndarray, (H,)
    values : ndarray, (H, m, n)
    value_bias : ndarray, (H, n)
    """

    scores: FloatArray
    row: FloatArray
    column: FloatArray
    constant: FloatArray
    values: FloatArray
    value_bias: FloatArray

    def __getitem__(self, product: str) -> tuple[FloatArray, FloatArray]:
        """Return a product and the bias that comes with it."""
        return (self.scores, self.row) if product == "query_key" else (self.values, self.value_bias)


class Watcher:
    """A module whose first softmax over positions is watched.

    Raises
    ------
    attncheck.frameworks.binding.NotSeen
        If there is none.
    """

    def __init__(self, instrument: Instrument, state: Any, width: int, path: str) -> None:
        self.instrument, self.width, self.path, self.axis = instrument, width, path, -1
        self.heads = 0
        self.norm = norm_of(lambda x: self.watch(state, np.concatenate([x, x], axis=1))[1][..., :1, :1], width)
        self.side = width if self.norm == LAYER else self._longest(state)

    def _longest(self, state: Any) -> int:
        """Return how many unit vectors fit into a sequence: modules may have a longest one."""
        for side in (_SIDE, _SIDE // 2 - 1, _SIDE // 4 - 1):
            try:
                self.watch(state, np.zeros((1, min(side, self.width) + 1, self.width)))
                return min(side, self.width)
            except InputError:
                continue
        return min(_POSITIONS, self.width)

    def watch(self, state: Any, x: FloatArray, weights: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Run on x, (B, L, n); return the output and the scores, (B, H, L, L).

        The first softmax gives `weights`, (B, H, L, L), where there are any.
        """
        got: list[FloatArray] = []

        def core(scores: FloatArray, axis: int) -> FloatArray | None:
            if got or scores.ndim < 2 or scores.shape[-2:] != (x.shape[1], x.shape[1]):
                return None
            self.axis = axis
            got.append(scores.reshape(len(x), -1, x.shape[1], x.shape[1]))
            return None if weights is None else weights.reshape(scores.shape)

        y = self.instrument.softmax(state, x, core, self.path)
        if not got:
            raise NotSeen
        self.heads = got[0].shape[1]
        return y, got[0]

    def inputs(self) -> FloatArray:
        """Return inputs, (1, L, n), that the unit vectors span and that every float type holds without rounding."""
        rng = np.random.default_rng(0)
        x = np.zeros((1, _POSITIONS, self.width))
        x[:, :, : self.side] = np.clip(np.round(rng.standard_normal((1, _POSITIONS, self.side)) * 8), -31, 31) / 8
        return x if self.norm == NONE else x * _BEYOND

    def read(self, state: Any) -> tuple[Products, Booleans]:
        """Return the products of a draw, and which positions see which."""
        length = _LENGTH if self.norm == NONE else LENGTH
        m, size = self.side, unit_size(self.norm, self.width, length)
        units = length * np.concatenate([np.eye(self.width)[:m], np.zeros((1, self.width))])
        seen = self.watch(state, units[None])[1][0]
        # What a mask hides is seen from the other end.
        turned = self.watch(state, units[None, ::-1])[1][0][:, ::-1, ::-1]
        hidden = seen < _HIDDEN
        if np.any(hidden & (turned < _HIDDEN)):
            refuse("mask", "of the scores", "hides some pairs in both orders", "inspect the layer without its window")
        seen = np.where(hidden, turned, seen)
        constant = seen[:, m, m]
        row = seen[:, :m, m] - constant[:, None]
        column = seen[:, m, :m] - constant[:, None]
        scores = seen[:, :m, :m] - row[:, :, None] - column[:, None] - constant[:, None, None]
        # Batch a has head a alone look at itself; the last batch has none.
        only = np.zeros((self.heads + 1, self.heads, m + 1, m + 1))
        only[np.arange(self.heads), np.arange(self.heads)] = np.eye(m + 1)
        y = self.watch(state, np.broadcast_to(units, (self.heads + 1, *units.shape)), only)[0]
        each = y[:-1] - y[-1]
        bias = each[:, m]
        products = (scores / size**2, row / size, column / size, constant, (each[:, :m] - bias[:, None]) / size, bias)
        return Products(*products), np.asarray(~hidden.any(axis=0))


def watched(instrument: Instrument, state: Any, width: int, draws: int, seed: int) -> Inspection | None:
    """Return what the softmax shows of a layer, None where there is no softmax over positions."""
    for path in instrument.paths or ("",):
        try:
            watcher = Watcher(instrument, state, width, path)
        except NotSeen:
            continue
        return _inspected(watcher, state, draws, seed)
    return None


def _inspected(watcher: Watcher, state: Any, draws: int, seed: int) -> Inspection:
    instrument, width = watcher.instrument, watcher.width
    first, shown = watcher.read(state)
    forward, notes = _forward(watcher, state, first, shown)
    paths, differing = _over_paths(watcher, state, forward)
    copies = same_layers(instrument.parameters(state))
    read = [first, *(watcher.read(instrument.init(seed + i))[0] for i in range(1, draws))]
    rank = _rank(first.scores)
    factors = {"query_key": float(width), "value_output": math.sqrt(width * watcher.heads)}
    weights = {product: _matrix(product, read, width, factor, rank) for product, factor in factors.items()}
    norms = [Note(f"the inputs are normalised before attention: {watcher.norm}")] if watcher.norm != NONE else []
    same = [
        Note(f"{PRODUCTS[product]} is the same in every draw: this initialiser does not draw it", blames=True)
        for product in PRODUCTS
        if draws > 1 and np.ptp(first[product][0]) and np.array_equal(first[product][0], read[1][product][0])
    ]
    said = (Note(_UNSEPARATED), Note(_SCALE), *norms, *notes, *same, *copies, *differing)
    return Inspection(width, watcher.heads, watcher.heads, rank, draws, weights, forward, paths, said)


def _over_paths(watcher: Watcher, state: Any, forward: Forward) -> tuple[dict[str, Forward], list[Note]]:
    """Return what all code paths of a module compute, and where they differ."""
    instrument = watcher.instrument
    x = watcher.inputs()

    def output(path: str) -> FloatArray:
        return instrument.run(state, x, untouched, path)

    def differs(one: FloatArray, other: FloatArray) -> bool:
        bound = 2 * rounding(instrument.precision, watcher.width) * float(np.abs(one).max())
        return not bool(np.abs(one - other).max() <= bound)

    def look(path: str, y: FloatArray) -> tuple[Forward, list[Note]]:
        try:
            there = Watcher(instrument, state, watcher.width, path)
        except NotSeen:
            return _UNSEEN, []
        return _forward(there, state, *there.read(state))

    return over_paths(instrument.paths, watcher.path, forward, output, differs, look)


def _rank(products: FloatArray) -> int:
    """Return how many neurons the heads have."""
    values = np.linalg.svd(products, compute_uv=False)
    return int(np.max(np.sum(values > _RANK * values[:, :1], axis=1)))


def _matrix(product: str, read: Sequence[Products], width: int, factor: float, rank: int) -> Matrix:
    """Return the product of the standard deviations, σ_Qσ_K or σ_Vσ_O.

    With A and B of m × d and d × n independent normal entries, the mean square of A B varies by
    2 (m + n + d + 1)/(m n d) of itself, and by less for bounded entries.
    """
    parts, biases = (np.array([each[product][i] for each in read]) for i in (0, 1))
    squares = np.mean(parts**2, axis=(-1, -2))  # (draws, H)
    rows, columns = parts.shape[-2:]
    relative = laws.Z * math.sqrt(2 * (rows + columns + rank + 1) / (rows * columns * max(rank, 1)) / squares.size)
    std = factor * math.sqrt(float(squares.mean()))
    low, high = std * math.sqrt(max(0.0, 1 - relative)), std * math.sqrt(1 + relative)
    bias = factor * math.sqrt(float(np.mean(biases**2)))
    rounded = bias <= rounding(_SINGLE, width) * std
    held = ((laws.CONSTANT if std == 0 else "a product"),)
    return Matrix(PRODUCTS[product], width, std, low, high, held, 0.0 if rounded else bias, ())


def _forward(watcher: Watcher, state: Any, read: Products, shown: Booleans) -> tuple[Forward, list[Note]]:
    """Hold scores and outputs to the products, on inputs that the unit vectors span."""
    x = watcher.inputs()
    y = watcher.instrument.run(state, x, untouched, watcher.path)[0]
    scores = watcher.watch(state, x)[1][0]
    silent = watcher.watch(state, x, np.zeros((1, *scores.shape)))[0][0]
    mask = next((each for each in masks(len(shown)) if np.array_equal(visible(each, *shown.shape), shown)), OTHER)
    added = float(np.abs(y - silent).max())
    if added == 0.0:
        return dataclasses.replace(_UNSEEN, mask=mask), [Note("attention adds nothing to the outputs")]
    z = normed(x, watcher.norm)[0][:, : watcher.side]
    made = np.einsum("im,hmn,jn->hij", z, read.scores, z) + read.constant[:, None, None]
    made = made + (read.row @ z.T)[:, :, None] + (read.column @ z.T)[:, None]
    seen = scores > _HIDDEN
    hidden = np.where(seen, made, -np.inf)
    weights = np.exp(hidden - hidden.max(watcher.axis, keepdims=True))
    weights /= weights.sum(watcher.axis, keepdims=True)
    out = silent + (weights @ (z @ read.values + read.value_bias[:, None])).sum(axis=0)
    off = np.abs(np.where(seen, made - scores, 0.0)).max() / max(1.0, float(np.abs(made).max()))
    error = max(float(off), float(np.abs(out - y).max()) / added)
    bound = 2 * rounding(watcher.instrument.precision, watcher.width) * max(1.0, float(np.abs(y).max()) / added)
    name = next((name for name, axis in AXES.items() if axis == watcher.axis), OTHER)
    found = Forward(name, mask, "1/sqrt(head_dim)", max(_rank(read.scores), 1) ** -0.5, error, bound)
    if not found.known:
        return found, [Note(f"the outputs are {found}", blames=True)]
    return found, [Note(name, blames=True)] if name != "softmax" else []
