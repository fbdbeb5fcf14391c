"""Attention that is written by hand: its softmax alone is watched, so that products of matrices show, not matrices."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from attncheck._lib.errors import refuse
from attncheck.frameworks import laws
from attncheck.frameworks.binding import FloatArray, Instrument, NotSeen, untouched
from attncheck.frameworks.effective import LAYER, LENGTH, NONE, norm_of, normed, unit_size
from attncheck.frameworks.forward import AXES, OTHER, Booleans, masks, visible
from attncheck.frameworks.initialiser import Matrix, same_layers
from attncheck.frameworks.laws import Scale
from attncheck.frameworks.notes import Note
from attncheck.frameworks.probe import Forward, rounding
from attncheck.frameworks.result import Inspection

#: The two products by their names.
PRODUCTS = {"query_key": "W_Q W_Kᵀ", "value_output": "W_V W_O"}
_HIDDEN = -1e3  # scores of unit vectors are nowhere near
_LENGTH, _SIDE, _POSITIONS = 16.0, 64, 7
_RANK = 1e-4
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
        self.norm = norm_of(lambda x: self.watch(state, np.concatenate([x, x], axis=1))[1], width)
        self.side = width if self.norm == LAYER else min(width, _SIDE)

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
    read = [first, *(watcher.read(instrument.init(seed + i))[0] for i in range(1, draws))]
    heads = watcher.heads
    rank = _rank(first.scores)
    notes = [Note(_UNSEPARATED), Note(_SCALE)]
    if watcher.norm != NONE:
        notes.append(Note(f"the inputs are normalised before attention: {watcher.norm}"))
    weights = {
        "query_key": _product("query_key", [p.scores for p in read], [p.row for p in read], width, width, rank),
        "value_output": _product(
            "value_output",
            [p.values for p in read],
            [p.value_bias for p in read],
            width,
            math.sqrt(width * heads),
            rank,
        ),
    }
    mask = next((each for each in masks(len(shown)) if np.array_equal(visible(each, *shown.shape), shown)), OTHER)
    forward = _forward(watcher, state, first, mask)
    if forward.map != "softmax":
        notes.append(Note(forward.map, blames=True))
    if not forward.known:
        notes.append(Note(f"the outputs are {forward}", blames=True))
    for role, parts in (("query_key", [p.scores for p in read]), ("value_output", [p.values for p in read])):
        if draws > 1 and np.ptp(parts[0]) and np.array_equal(parts[0], parts[1]):
            text = f"{PRODUCTS[role]} is the same in every draw: this initialiser does not draw it"
            notes.append(Note(text, blames=True))
    notes += same_layers(instrument.parameters(state))
    paths = {watcher.path: forward}
    return Inspection(width, heads, heads, rank, draws, weights, forward, paths, tuple(notes))


def _rank(products: FloatArray) -> int:
    """Return how many neurons the heads have."""
    values = np.linalg.svd(products, compute_uv=False)
    return int(np.max(np.sum(values > _RANK * values[:, :1], axis=1)))


def _product(
    role: str, parts: list[FloatArray], biases: list[FloatArray], width: int, factor: float, rank: int
) -> Matrix:
    """Return the product of the standard deviations, σ_Qσ_K or σ_Vσ_O.

    With A and B of m × d and d × n independent normal entries, the mean square of A B varies by
    2 (m + n + d + 1)/(m n d) of itself, and by less for bounded entries.
    """
    squares = np.mean(np.array(parts) ** 2, axis=(-1, -2))  # (draws, H)
    rows, columns = parts[0].shape[-2:]
    relative = laws.Z * math.sqrt(2 * (rows + columns + rank + 1) / (rows * columns * rank) / squares.size)
    std = factor * math.sqrt(float(squares.mean()))
    scale = Scale(std, std * math.sqrt(max(0.0, 1 - relative)), std * math.sqrt(1 + relative))
    held = (laws.CONSTANT,) if std == 0 else ("a product",)
    bias = float(np.sqrt(np.mean(np.array(biases) ** 2))) * factor
    small = rounding(2.0**-24, width) * std
    return Matrix(PRODUCTS[role], width, scale.std, scale.low, scale.high, held, bias if bias > small else 0.0, ())


def _forward(watcher: Watcher, state: Any, read: Products, mask: str) -> Forward:
    """Hold scores and outputs to the products, on inputs that the unit vectors span."""
    rng = np.random.default_rng(0)
    x = np.zeros((1, _POSITIONS, watcher.width))
    x[:, :, : watcher.side] = np.clip(np.round(rng.standard_normal((1, _POSITIONS, watcher.side)) * 8), -31, 31) / 8
    x *= 1.0 if watcher.norm == NONE else 8.0
    y = watcher.instrument.run(state, x, untouched, watcher.path)[0]
    scores = watcher.watch(state, x)[1][0]
    empty = np.zeros((1, watcher.heads, _POSITIONS, _POSITIONS))
    silent = watcher.watch(state, x, empty)[0][0]
    z = normed(x, watcher.norm)[0][:, : watcher.side]
    made = np.einsum("im,hmn,jn->hij", z, read.scores, z) + (read.row @ z.T)[:, :, None] + (read.column @ z.T)[:, None]
    made = made + read.constant[:, None, None]
    shown = scores > _HIDDEN
    axis = next((name for name, of in AXES.items() if of == watcher.axis), OTHER)
    hidden = np.where(shown, made, -np.inf)
    weights = np.exp(hidden - hidden.max(watcher.axis, keepdims=True))
    weights /= weights.sum(watcher.axis, keepdims=True)
    out = silent + (weights @ (z @ read.values + read.value_bias[:, None])).sum(axis=0)
    added = float(np.abs(y - silent).max())
    if added == 0.0:
        return Forward(OTHER, mask, OTHER, math.nan, math.inf, math.inf)
    bound = 2 * rounding(watcher.instrument.precision, watcher.width) * max(1.0, float(np.abs(y).max()) / added)
    off = np.abs(np.where(shown, made - scores, 0.0)).max() / max(1.0, float(np.abs(made).max()))
    error = max(float(off), float(np.abs(out - y).max()) / added)
    scale = "1/sqrt(head_dim)"
    return Forward(axis, mask, scale, _rank(read.scores) ** -0.5, error, bound)
