"""Weights of another i.i.d. law: the limit is the same, what is exact at finite width is lost."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.errors import check_choice
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.expansion import INPUT_WEIGHTS
from attncheck.layers.program import Weight
from attncheck.simulators.direct import DirectMultiplier
from attncheck.simulators.draws import Draws
from attncheck.simulators.layers import draw_program

FloatArray = NDArray[np.float64]
Entries = Callable[[np.random.Generator, tuple[int, ...]], FloatArray]

GAUSSIAN = "gaussian"
# The variance of a standard normal cut at ±2.
_CUT, _CUT_VARIANCE = 2.0, 0.7737413035760877


def _uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return rng.uniform(-(3.0**0.5), 3.0**0.5, shape)


def _rademacher(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return np.asarray(2.0 * rng.integers(2, size=shape) - 1.0)


def _truncated(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Cut at two standard deviations and rescaled, as in common initialisers."""
    entries = rng.standard_normal(shape)
    while (outside := np.abs(entries) > _CUT).any():
        entries[outside] = rng.standard_normal(int(outside.sum()))
    cut: FloatArray = entries / _CUT_VARIANCE**0.5
    return cut


def _student(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return np.asarray(rng.standard_t(5, shape) * 0.6**0.5)


#: Laws of mean 0, variance 1 and symmetric, by name; a subject declares one as its attribute ``weights``.
WEIGHT_LAWS: dict[str, Entries] = {
    GAUSSIAN: lambda rng, shape: rng.standard_normal(shape),
    "uniform": _uniform,
    "rademacher": _rademacher,
    "truncated normal": _truncated,
    "student5": _student,
}


class _OtherWeights(DirectMultiplier):
    """Literal matrices with entries of a given law, those of the W^i of another."""

    def __init__(self, width: int, rng: np.random.Generator, entries: Entries, inputs: Entries) -> None:
        super().__init__(width, rng)
        self._entries, self._inputs = entries, inputs

    def _draw(self, weight: Weight, size: int, last: bool) -> FloatArray:
        rows, columns = weight.shape(self._width)
        entries = self._inputs if weight.name.startswith(INPUT_WEIGHTS) else self._entries
        return entries(self._rng, (size, columns, rows))


def draw_with_weights(
    layer: AttentionLayer,
    size: int,
    coordinates: int,
    rng: np.random.Generator,
    weights: str,
    inputs: str | None = None,
) -> Draws:
    """Draw `layer` with literal matrices whose entries follow one of `WEIGHT_LAWS`, scaled as declared.

    Parameters
    ----------
    layer : AttentionLayer
    size, coordinates : int
        Draws, and neurons of each.
    rng : numpy.random.Generator
    weights : str
        The law of the entries.
    inputs : str, optional
        The law of the entries of the W^i, which make the inputs; that of the others by default.

    Raises
    ------
    InputError
        If the law is not known.

    Examples
    --------
    >>> draws = draw_with_weights(AttentionLayer(width=4), 10, 1, np.random.default_rng(0), "rademacher")
    >>> draws.outputs.shape
    (10, 4, 1)
    """
    laws = {"weights": weights, "inputs": weights if inputs is None else inputs}
    entries, of_inputs = (WEIGHT_LAWS[check_choice(name, law, tuple(WEIGHT_LAWS))] for name, law in laws.items())
    multiplier = functools.partial(_OtherWeights, entries=entries, inputs=of_inputs)
    return draw_program(layer, size, coordinates, rng, multiplier)
