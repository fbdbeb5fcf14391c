"""Joint functionals of one draw: what two readings of the same layer are compared on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from attncheck.attention import AttentionLayer
from attncheck.attention_map import attention_weights, visible

FloatArray = NDArray[np.float64]


class Arrays(Protocol):
    """What `Draws` and `Sample` have in common."""

    @property
    def outputs(self) -> FloatArray:
        """y, (draws, s, coordinates)."""
        ...

    @property
    def scores(self) -> FloatArray | None:
        """P, (draws, heads, s, s)."""
        ...

    @property
    def inputs(self) -> FloatArray | None:
        """x, (draws, s, coordinates)."""
        ...


@dataclasses.dataclass(frozen=True)
class Functional:
    """A number per draw: its name, the arrays it takes, where it says something, and how it is computed."""

    name: str
    needs: frozenset[str]
    compute: Callable[[AttentionLayer, Arrays], FloatArray]
    excluded: Callable[[AttentionLayer, int], str] = lambda layer, coordinates: ""


def _scores(arrays: Arrays) -> FloatArray:
    assert arrays.scores is not None
    return arrays.scores


def _inputs(arrays: Arrays) -> FloatArray:
    assert arrays.inputs is not None
    return arrays.inputs


def _log_energy(values: FloatArray) -> FloatArray:
    """Return log Σ values² per draw, with zeros kept finite."""
    return np.asarray(np.log(np.maximum((values**2).sum(axis=tuple(range(1, values.ndim))), 1e-300)))


def _score_energy(layer: AttentionLayer, arrays: Arrays) -> FloatArray:
    return _log_energy(np.where(visible(layer), _scores(arrays), 0.0))


def _row_entropy(layer: AttentionLayer, arrays: Arrays) -> FloatArray:
    """Return the entropy of the last row of the first head's weights."""
    weights = attention_weights(layer, _scores(arrays)[:, 0])[:, -1]
    return np.asarray(special.entr(weights).sum(axis=-1))


def _heads(layer: AttentionLayer, coordinates: int) -> str:
    return "" if layer.num_heads > 1 else "there is one head only"


def _positions(layer: AttentionLayer, coordinates: int) -> str:
    return "" if layer.seq_len > 1 else "there is one position only"


def _softmax(layer: AttentionLayer, coordinates: int) -> str:
    if layer.attention_map != "softmax":
        return "rows of weights are no probabilities"
    if layer.input_correlation == 1.0:
        return "all positions are equal, so that rows of weights are constant"
    return _positions(layer, coordinates)


def _coordinates(layer: AttentionLayer, coordinates: int) -> str:
    return "" if coordinates > 1 else "the subject returns one neuron only"


_OUTPUTS, _SCORES, _INPUTS = frozenset({"outputs"}), frozenset({"scores"}), frozenset({"inputs"})

FUNCTIONALS: tuple[Functional, ...] = (
    Functional("score", _SCORES, lambda layer, a: _scores(a)[:, 0, 0, 0]),
    Functional("score_off", _SCORES, lambda layer, a: _scores(a)[:, -1, -1, 0], _positions),
    Functional("score_heads", _SCORES, lambda layer, a: _scores(a)[:, 0, -1, 0] * _scores(a)[:, -1, -1, 0], _heads),
    Functional("score_energy", _SCORES, _score_energy),
    Functional("row_entropy", _SCORES, _row_entropy, _softmax),
    Functional("output", _OUTPUTS, lambda layer, a: a.outputs[:, -1, 0]),
    Functional("output_positions", _OUTPUTS, lambda layer, a: a.outputs[:, 0, 0] * a.outputs[:, -1, 0], _positions),
    Functional("output_neurons", _OUTPUTS, lambda layer, a: a.outputs[:, -1, 0] * a.outputs[:, -1, 1], _coordinates),
    Functional("output_energy", _OUTPUTS, lambda layer, a: _log_energy(a.outputs[:, :, 0])),
    Functional("input_output", _INPUTS, lambda layer, a: _inputs(a)[:, 0, 0] + a.outputs[:, -1, 0]),
    Functional("input_output_squares", _INPUTS, lambda layer, a: (_inputs(a)[:, -1, 0] * a.outputs[:, -1, 0]) ** 2),
    Functional(
        "input_score_squares",
        _INPUTS | _SCORES,
        lambda layer, a: (_inputs(a)[:, -1, 0] * _scores(a)[:, 0, -1, -1]) ** 2,
    ),
)
