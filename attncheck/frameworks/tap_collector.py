"""What is seen of one forward: taps by the names of modules, in the order in which they are made."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np

from attncheck._lib.errors import refuse
from attncheck.frameworks.binding import FloatArray
from attncheck.scaling.taps import EMBEDDING, MODULE, NORM, OUTPUT, SCORES, WEIGHTS, Tap, root_mean_square

_EMBEDDINGS = ("Embedding", "Embed")


class TapCollector:
    """Collects taps while modules begin and end.

    Parameters
    ----------
    precision : float
        One unit in the last place of a number of size 1.
    positions : int
        A softmax over so many is one of attention, as is one that goes over a square, or over heads.
    """

    def __init__(self, precision: float, positions: int) -> None:
        self.taps: dict[str, Tap] = {}
        self._precision, self._positions = precision, positions
        self._running: list[str] = []
        self._calls: Counter[str] = Counter()
        # By place in memory: what a container hands on is told once. All are kept, so that no place is used twice.
        self._kept: dict[Hashable, tuple[str, Any]] = {}

    def begins(self, name: str) -> None:
        """Take in that a module begins to run."""
        self._running.append(name)

    def ends(
        self, module: Any, values: FloatArray | None, where: Hashable, made: Any, entered: FloatArray | None
    ) -> None:
        """Take in what the module that began last has made.

        Parameters
        ----------
        module
            What ran.
        values : ndarray or None
            What it made; None where that holds no real numbers.
        where : hashable
            The place of that in memory.
        made
            What keeps this place.
        entered : ndarray or None
            What it was given.
        """
        name = self._running.pop()
        if values is None:
            return
        if np.isnan(values).any():
            refuse("call", name or "the model", "makes what is no number (NaN)", "mend the model")
        known, _ = self._kept.get(where, ("", None))
        if known and np.array_equal(self.taps[known].values, values, equal_nan=True):
            return
        what = type(module).__name__
        summed = 0.0 if entered is None else root_mean_square(entered)
        told = self._add(name or "output", values, _kind(what), what, summed)
        self._kept[where] = told, made

    def softmax(self, scores: FloatArray, axis: int) -> None:
        """Tap what a softmax runs on and what it makes, without what is masked."""
        scores = np.moveaxis(scores, axis, -1)
        with np.errstate(invalid="ignore"):  # of rows that are masked altogether
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
        # Logits of a model are softened too: those of (batch, positions, classes).
        attends = scores.ndim > 3 or (scores.ndim == 3 and scores.shape[-1] in (self._positions, scores.shape[-2]))
        where = self._running[-1] if self._running else ""
        for kind, values in ((SCORES, scores), (WEIGHTS, weights)):
            shown = np.where(weights > 0.0, values, np.nan)
            told = kind if attends else f"softmax {kind}"
            self._add(f"{where}.{told}".lstrip("."), shown, kind if attends else MODULE, "softmax")

    def ends_with(self, where: Hashable) -> None:
        """Say which tap is the output of the model, by its place in memory."""
        name, _ = self._kept.get(where, ("", None))
        if name:
            self.taps[name] = dataclasses.replace(self.taps[name], kind=OUTPUT)

    def _add(self, name: str, values: FloatArray, kind: str, what: str, summed: float = 0.0) -> str:
        self._calls[name] += 1
        again = self._calls[name] > 1
        told = f"{name} ({self._calls[name]})" if again else name
        self.taps[told] = Tap(values, kind, what, summed, self._precision, again)
        return told


def _kind(what: str) -> str:
    """Return what a tap is, by the class of the module that makes it."""
    if what in _EMBEDDINGS:
        return EMBEDDING
    return NORM if "norm" in what.lower() else MODULE
