"""Hand-written attention, inspected at its softmax; matrices are looked up among the parameters.

If they are not found, only products of matrices are reported.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.errors import InputError
from attncheck.frameworks import laws
from attncheck.frameworks.binding import FloatArray, Instrument, NoAttentionCall, untouched
from attncheck.frameworks.effective import LAYER, NONE, ROLES, Effective
from attncheck.frameworks.factors import Factors, factors_of
from attncheck.frameworks.forward import names_of, scales
from attncheck.frameworks.heads import about_heads, uneven
from attncheck.frameworks.initialiser import MatrixStatistics, biased, kv_labels, matrix_of, repeated, same_layers
from attncheck.frameworks.inputs import MIXED_BATCH, multiplied_inputs
from attncheck.frameworks.notes import Note
from attncheck.frameworks.paths import over_paths
from attncheck.frameworks.probe import RIGHT, UNTOLD, Forward, rounding
from attncheck.frameworks.result import Inspection
from attncheck.frameworks.softmax import POSITIONS, UNSEEN, Products, Watcher, forward_of, rank_of
from attncheck.frameworks.views import SoftmaxView, biases_of

#: Symbols of the two products.
PRODUCTS = {"query_key": "W_Q W_Kᵀ", "value_output": "W_V W_O"}
_BY_HAND = "attention is hand-written: inspected at its softmax"
_UNSEPARATED = "only products of matrices are known: the matrices are not among the parameters"
_SCALE = "std of W_Q W_Kᵀ assumes scores times 1/sqrt(head_dim), and includes any other factor of the scores"
# Entries of each matrix used from later draws.
_ENTRIES = 2**16
# A factor this close to a named one gets its name.
_NAMED = 1e-2
_SINGLE = 2.0**-24


@dataclasses.dataclass(frozen=True)
class _FirstDraw:
    """Results of the first draw; `bilinear`: whether scores are given by the products."""

    watcher: Watcher
    products: Products
    bilinear: bool
    forward: Forward
    paths: Mapping[str, Forward]
    notes: Sequence[Note]

    @property
    def head_dim(self) -> int:
        """Head dimension: the rank of the products, if below the number of probed rows."""
        rank = rank_of(
            self.products.scores if self.bilinear else self.products.values, self.watcher.instrument.precision
        )
        full = rank >= self.watcher.side
        return max(rank, self.watcher.width // self.watcher.heads) if full else rank


def watched(instrument: Instrument, state: Any, width: int, draws: int, seed: int) -> Inspection | None:
    """Return the inspection, or None without softmax over positions."""
    for path in instrument.paths or ("",):
        try:
            watcher = Watcher(instrument, state, width, path)
        except NoAttentionCall:
            continue
        except InputError:
            if path not in instrument.spare:
                raise
            continue
        return _inspected(watcher, state, draws, seed)
    return None


def _inspected(watcher: Watcher, state: Any, draws: int, seed: int) -> Inspection:
    instrument = watcher.instrument
    products, shown = watcher.read(state)
    forward, notes, bilinear = forward_of(watcher, state, products, shown)
    paths, differing = _over_paths(watcher, state, forward)
    parameters = instrument.parameters(state)
    apart = [] if _apart(watcher, state) else [Note(MIXED_BATCH, blames=True)]
    norms = [Note(f"the inputs are normalised before attention: {watcher.norm}")] if watcher.norm != NONE else []
    said = [Note(_BY_HAND), *norms, *notes, *apart, *same_layers(parameters), *differing]
    seen = _FirstDraw(watcher, products, bilinear, forward, paths, said)
    precision, centred = instrument.precision, watcher.norm == LAYER
    scores = products.scores if bilinear else None
    found = factors_of(scores, products.values, parameters, seen.head_dim, watcher.width, precision, centred)
    if found is not None and bilinear:
        found = found.of_inputs(seen.head_dim**-0.5, _NAMED)
    if found is None:
        others = (watcher.read(instrument.init(seed + i))[0] for i in range(1, draws))
        return _together([products, *others], seen)
    read = [_effective(products, found, found.matrices(parameters))]
    for i in range(1, draws):
        matrices = found.matrices(instrument.parameters(instrument.init(seed + i)))
        rows = {role: matrix[: -(-_ENTRIES // math.prod(matrix.shape[1:]))] for role, matrix in matrices.items()}
        read.append(dataclasses.replace(read[0], **_fields(rows)))
    return _separate(read, found, seen)


def _apart(watcher: Watcher, state: Any) -> bool:
    """Return whether outputs are the same for any batching; True if outputs are random."""
    x = watcher.inputs()
    among = np.concatenate([x, x[:, ::-1] / 2])

    def output(given: FloatArray) -> FloatArray:
        return np.asarray(watcher.instrument.run(state, given, untouched, watcher.path)[0])

    alone, again, other = output(x), output(x), output(among)
    bound = 2 * rounding(watcher.instrument.precision, watcher.width) * float(np.abs(alone).max())
    return bool(np.abs(alone - other).max() <= bound or np.abs(alone - again).max() > bound)


def _fields(matrices: Mapping[str, FloatArray]) -> dict[str, Any]:
    """Return matrices by role, without W_Q and W_K if these are unknown."""
    nothing = np.zeros_like(matrices["value"])
    return {"query": nothing, "key": nothing, **matrices}


def _effective(products: Products, found: Factors, matrices: Mapping[str, FloatArray]) -> Effective:
    """Return matrices with their biases."""
    biases = biases_of(products, found, matrices)
    shape = products.values.shape[1:]
    return Effective(**_fields(matrices), biases=biases, past=np.zeros(shape))


def _separate(read: Sequence[Effective], found: Factors, seen: _FirstDraw) -> Inspection:
    """Return the results for separate matrices."""
    watcher, notes, factor = seen.watcher, [*seen.notes], found.factor
    precision = watcher.instrument.precision
    paths = dict(seen.paths)
    if seen.bilinear:
        known = scales(seen.head_dim, watcher.width, watcher.heads, POSITIONS)
        name, *ties = names_of(factor, known, _NAMED) or (f"{factor:.3g}",)
        told: dict[str, Any] = {"scale": name, "factor": factor, "ties": () if name == RIGHT else tuple(ties)}
        paths = {path: dataclasses.replace(each, **told) for path, each in paths.items()}
        if name != RIGHT:
            notes.append(Note(f"scores times {paths[watcher.path].scales}, not {RIGHT}", blames=True))
        if found.inputs != 1.0:
            notes.append(multiplied_inputs(found.inputs))
    roles = [*(ROLES if seen.bilinear else ("value",)), "output"]
    labels = kv_labels(read[0], precision)
    distinct = [labels.index(label) for label in sorted(set(labels))]
    weights = {role: matrix_of(role, read, distinct, precision, centred=False) for role in roles}
    notes += [*repeated(read, roles, labels, precision), *about_heads(read, roles, labels, precision), *biased(weights)]
    made = _result(seen, len(read), weights, paths, notes, len(set(labels)))
    return dataclasses.replace(made, view=SoftmaxView(watcher, found))


def _together(read: Sequence[Products], seen: _FirstDraw) -> Inspection:
    """Return the results for products of matrices that were not found."""
    width, heads = seen.watcher.width, seen.watcher.heads
    factors = {"query_key": float(width), "value_output": math.sqrt(width * heads)}
    shown = [name for name in PRODUCTS if seen.bilinear or name != "query_key"]
    weights = {name: _matrix(name, read, width, factors[name], seen.head_dim) for name in shown}
    same = [
        Note(f"{PRODUCTS[name]} is the same in every draw: this initialiser does not draw it", blames=True)
        for name in shown
        if len(read) > 1 and np.array_equal(read[0][name][0], read[1][name][0])
    ]
    same += [note for name in shown for note in uneven(PRODUCTS[name], [each[name][0] for each in read])]
    unsure = [Note(_UNSEPARATED), *([Note(_SCALE)] if seen.bilinear else [])]
    paths = seen.paths
    if seen.bilinear:
        factor = max(1, seen.head_dim) ** -0.5
        paths = {p: dataclasses.replace(each, scale=UNTOLD, factor=factor) for p, each in paths.items()}
    return _result(seen, len(read), weights, paths, [*seen.notes, *unsure, *same], heads)


def _result(
    seen: _FirstDraw,
    draws: int,
    weights: Mapping[str, MatrixStatistics],
    paths: Mapping[str, Forward],
    notes: Sequence[Note],
    kv_heads: int,
) -> Inspection:
    watcher = seen.watcher
    forward = paths[watcher.path]
    return Inspection(
        watcher.width, watcher.heads, kv_heads, seen.head_dim, draws, weights, forward, paths, tuple(notes)
    )


def _over_paths(watcher: Watcher, state: Any, forward: Forward) -> tuple[dict[str, Forward], list[Note]]:
    """Return forwards and notes of all code paths."""
    instrument = watcher.instrument
    x = watcher.inputs()

    def output(path: str) -> FloatArray:
        return instrument.run(state, x, untouched, path)

    def draws(path: str) -> bool | None:
        return instrument.draws(state, x, path)

    def differs(one: FloatArray, other: FloatArray) -> bool:
        bound = 2 * rounding(instrument.precision, watcher.width) * float(np.abs(one).max())
        return not bool(np.abs(one - other).max() <= bound)

    def look(path: str, y: FloatArray) -> tuple[Forward, list[Note]]:
        try:
            there = Watcher(instrument, state, watcher.width, path)
        except NoAttentionCall:
            return UNSEEN, []
        found, notes, _ = forward_of(there, state, *there.read(state))
        return found, notes

    return over_paths(instrument.paths, instrument.spare, watcher.path, forward, output, differs, look, draws)


def _matrix(product: str, read: Sequence[Products], width: int, factor: float, rank: int) -> MatrixStatistics:
    """Return the statistics of a product: its scale is σ_Qσ_K or σ_Vσ_O.

    For A (m × d) and B (d × n) with independent normal entries, the mean square of A B has relative variance 2
    (m+n+d+1)/(mnd), and less for bounded entries.
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
    return MatrixStatistics(PRODUCTS[product], width, std, low, high, held, 0.0 if rounded else bias, ())
