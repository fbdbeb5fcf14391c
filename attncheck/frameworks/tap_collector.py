"""Collector of the taps of one forward pass, in order of execution."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.frameworks.framework import FrameworkAdapter
from attncheck.frameworks.trace import Trace
from attncheck.scaling.taps import EMBEDDING, MODULE, NORM, OUTPUT, SCORES, WEIGHTS, Tap, root_mean_square

_EMBEDDINGS = ("Embedding", "Embed")
# Scores up to this value count as masked.
_HIDDEN = -1e29


class TapCollector(Trace):
    """Collector of taps while modules run; `precision` is the unit in the last place of 1.0.

    A softmax over `positions` entries counts as attention, as does one over square scores or with a head axis.
    """

    def __init__(self, adapter: FrameworkAdapter, precision: float, positions: int) -> None:
        self._adapter = adapter
        self.taps: dict[str, Tap] = {}
        self._precision, self._positions = precision, positions
        self._running: list[str] = []
        self._calls: Counter[str] = Counter()
        # Indexed by memory address, so that each output is tapped once; keeping outputs prevents reuse of addresses.
        self._kept: dict[Hashable, tuple[str, Any]] = {}

    def begins(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record the start of a module."""
        self._running.append(name)

    def ends(self, module: Any, args: tuple[Any, ...], made: Any) -> None:
        """Record the output of the module that started last."""
        name = self._running.pop()
        array, entered = self._adapter.first(made), self._adapter.first(args)
        if array is None:
            return
        values, where = self._adapter.numbers(array), self._adapter.address(array)
        if np.isnan(values).any():
            refuse("call", name or "the model", "returns NaN", "mend the model")
        known, _ = self._kept.get(where, ("", None))
        if known and np.array_equal(self.taps[known].values, values, equal_nan=True):
            return
        what = type(module).__name__
        summed = 0.0 if entered is None else root_mean_square(self._adapter.numbers(entered))
        told = self._add(name or "output", values, _kind(what), what, summed)
        self._kept[where] = told, array

    def softmax(self, scores: FloatArray, axis: int) -> None:
        """Tap the unmasked scores and weights of a softmax."""
        scores = np.moveaxis(np.where(scores <= _HIDDEN, -np.inf, scores), axis, -1)
        with np.errstate(invalid="ignore"):  # fully masked rows
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
        # A model may also apply a softmax to its logits, (batch, positions, classes).
        attends = scores.ndim > 3 or (scores.ndim == 3 and scores.shape[-1] in (self._positions, scores.shape[-2]))
        where = self._running[-1] if self._running else ""
        for kind, values in ((SCORES, scores), (WEIGHTS, weights)):
            shown = np.where(weights > 0.0, values, np.nan)
            told = kind if attends else f"softmax {kind}"
            self._add(f"{where}.{told}".lstrip("."), shown, kind if attends else MODULE, "softmax")

    def ends_with(self, array: Any) -> None:
        """Mark the tap of this array as the model's output."""
        name, _ = self._kept.get(self._adapter.address(array), ("", None))
        if name:
            self.taps[name] = dataclasses.replace(self.taps[name], kind=OUTPUT)

    def _add(self, name: str, values: FloatArray, kind: str, what: str, summed: float = 0.0) -> str:
        self._calls[name] += 1
        again = self._calls[name] > 1
        told = f"{name} ({self._calls[name]})" if again else name
        self.taps[told] = Tap(values, kind, what, summed, self._precision, again)
        return told


def _kind(what: str) -> str:
    """Return the kind of tap for a module class."""
    if what in _EMBEDDINGS:
        return EMBEDDING
    return NORM if "norm" in what.lower() else MODULE
