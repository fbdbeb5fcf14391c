"""Longer sequences: does the formula found on a few positions hold on many?"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from attncheck._lib.errors import InputError
from attncheck.frameworks.binding import FloatArray
from attncheck.frameworks.forward import AMONG_HEADS, Booleans, Formula, masks, visible
from attncheck.frameworks.notes import Note
from attncheck.frameworks.probe import Forward, Probe

# Lengths to try in turn, and a limit on positions² × width.
_LENGTHS = (65, 33)
_NEURONS = 2**23
_COARSEST = 1e-3


def beyond(
    probe: Probe, found: Forward, paths: Mapping[str, Forward]
) -> tuple[Forward, dict[str, Forward], list[Note]]:
    """Return the results for all paths, with the mask seen on a longer sequence.

    Results are unchanged if the module accepts no longer sequence, or rounding hides single positions.
    """
    formula, same = probe.formula, (found, dict(paths), list[Note]())
    plain = (
        found.known
        and formula is not None
        and formula.bias is None
        and formula.shown is None
        and formula.map != AMONG_HEADS
    )
    if formula is None or not plain or found.bound > _COARSEST or probe.reader.layout.extra or not probe.apart:
        return same
    x = _inputs(probe)
    if x is None:
        return same
    y = probe.output(probe.reader.path, x)
    if _follows(probe, formula, x, y, found.bound):
        return same
    mask = _mask(probe, x, y)
    here = f"{x.shape[1]} positions"
    if mask is None or not _follows(probe, dataclasses.replace(formula, mask=mask), x, y, found.bound):
        return (
            found,
            dict(paths),
            [Note(f"with {here} the outputs do not follow the formula found with fewer positions")],
        )
    longer = {path: dataclasses.replace(each, mask=mask) for path, each in paths.items() if each.mask == found.mask}
    apart = [path for path in longer if path != probe.reader.path and probe.differs(y, probe.output(path, x))]
    kept = {path: each for path, each in longer.items() if path not in apart}
    notes = [Note(f"the mask is neither none nor causal: {mask}")]
    if apart:
        notes.append(Note(f"paths of this module differ in the mask of {here}: {', '.join(apart)}"))
    return dataclasses.replace(found, mask=mask), {**paths, **kept}, notes


def _inputs(probe: Probe) -> FloatArray | None:
    """Return one long sequence, or None if the module rejects it."""
    quantum = float(np.abs(probe.x[probe.x != 0.0]).min())
    for length in _LENGTHS:
        shape = (1, length, probe.reader.width)
        if length * length * probe.reader.width > _NEURONS:
            continue
        x = np.clip(np.round(np.random.default_rng(0).standard_normal(shape) * 8), -31, 31) * quantum
        try:
            probe.output(probe.reader.path, x)
        except InputError:
            continue
        return np.asarray(x)
    return None


def _follows(probe: Probe, formula: Formula, x: FloatArray, y: FloatArray, bound: float) -> bool:
    """Return whether outputs follow a formula."""
    seen = probe.reader.see(probe.state, x)
    heads = formula.heads(seen.query, seen.key, seen.value)
    made = probe.reader.see(probe.state, x, heads).y
    # Attention adds less with many positions than with few.
    return bool(np.abs(made - y).max() <= 10 * bound * np.abs(y).max())


def _mask(probe: Probe, x: FloatArray, y: FloatArray) -> str | None:
    """Return the mask that matches how outputs respond to single positions."""
    length = x.shape[1]
    changed = np.repeat(x, length, axis=0)
    changed[np.arange(length), np.arange(length)] *= -1.0
    moved = np.abs(probe.output(probe.reader.path, changed) - y).max(axis=-1)  # (changed, position)
    shown: Booleans = (moved > 4 * probe.bound * np.abs(y).max()).T
    # The diagonal is ignored: it also shows the residual path.
    names = (mask for mask in masks(length) if _alike(visible(mask, length, length), shown))
    return next(names, None)


def _alike(one: Booleans, other: Booleans) -> bool:
    apart = ~np.eye(len(one), dtype=bool)
    return bool(np.array_equal(one[apart], other[apart]))
