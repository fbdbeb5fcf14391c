"""Draws of a right simulator, tampered with: departures that no wrong wiring or scale makes alone.

Each is a subject, as ``attncheck.check("attncheck.faults.tampered:residual_added", layer)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from attncheck.attention import AttentionLayer
from attncheck.faults.literal import Literal, Projections
from attncheck.simulators.collapsed import draw_inputs
from attncheck.subject import collapsed

FloatArray = NDArray[np.float64]
Drawn = dict[str, FloatArray]


def by_sign(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """The draws of a call are sorted by the sign of their outputs."""
    drawn = _drawn(layer, size, rng)
    return _taken(drawn, np.argsort(drawn["outputs"].sum(axis=(1, 2)) > 0))


def by_size(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """The draws of a call are sorted by the size of their outputs."""
    drawn = _drawn(layer, size, rng)
    return _taken(drawn, np.argsort(_energy(drawn["outputs"])))


def twice(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """Every draw of a call is returned twice."""
    return _taken(_drawn(layer, size, rng), np.arange(size) // 2)


def stale_weights(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """Every second draw multiplies by the matrices of the one before it."""
    inputs = draw_inputs(layer, size, rng)
    draw = np.arange(size) // 2

    def project(matrices: int, std: float) -> FloatArray:
        weights = rng.standard_normal((size // 2 + 1, matrices, layer.width, layer.head_width))
        return np.asarray(std * layer.width**-0.5 * (inputs[:, None] @ weights[draw]))

    keys, values = (
        np.repeat(project(layer.kv_heads, std), layer.group_size, axis=1) for std in (layer.key_std, layer.value_std)
    )
    made = Projections(inputs, project(layer.num_heads, layer.query_std), keys, values)
    return Literal().after(layer, made, rng)


def scale_per_call(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """One random scale multiplies all outputs of a call."""
    scale = np.exp(rng.standard_normal())
    return _changed(_drawn(layer, size, rng), outputs=lambda drawn: scale * drawn["outputs"])


def half_precision_outputs(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """The outputs are rounded to float16."""
    drawn = _drawn(layer, size, rng)
    return _changed(drawn, outputs=lambda drawn: drawn["outputs"].astype(np.float16).astype(np.float64))


def residual_added(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """The inputs are added to the outputs, as a residual stream would be."""
    return _changed(_drawn(layer, size, rng), outputs=lambda drawn: drawn["outputs"] + drawn["inputs"])


def first_position_added(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """The first position's output is added to the last one's."""
    drawn = _drawn(layer, size, rng)
    drawn["outputs"][:, -1] += drawn["outputs"][:, 0]
    return drawn


def scores_added(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """Half of the first head's last row of scores is added to the outputs."""
    drawn = _drawn(layer, size, rng)
    return _changed(drawn, outputs=lambda drawn: drawn["outputs"] + 0.5 * drawn["scores"][:, 0, -1, :, None])


def input_bias(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """The first neuron of an input is added to its scores."""
    drawn = _drawn(layer, size, rng)
    return _changed(drawn, scores=lambda drawn: drawn["scores"] + drawn["inputs"][:, None, :, :1])


def outputs_sized_by_scores(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """The outputs are as large as the scores of their draw are."""
    return _changed(_drawn(layer, size, rng), outputs=lambda drawn: _sized(drawn["outputs"], drawn["scores"]))


def outputs_sized_by_inputs(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """The outputs are as large as the inputs of their draw are, once more than they should be."""
    return _changed(_drawn(layer, size, rng), outputs=lambda drawn: _sized(drawn["outputs"], drawn["inputs"]))


def scores_sized_by_inputs(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    """The scores are as large as the inputs of their draw are, once more than they should be."""
    return _changed(_drawn(layer, size, rng), scores=lambda drawn: _sized(drawn["scores"], drawn["inputs"]))


#: Every one by name.
TAMPERED: Mapping[str, Callable[[AttentionLayer, int, np.random.Generator], Drawn]] = MappingProxyType(
    {
        each.__name__: each
        for each in (
            by_sign,
            by_size,
            twice,
            stale_weights,
            scale_per_call,
            half_precision_outputs,
            residual_added,
            first_position_added,
            scores_added,
            input_bias,
            outputs_sized_by_scores,
            outputs_sized_by_inputs,
            scores_sized_by_inputs,
        )
    }
)


def _drawn(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    return {name: np.array(array) for name, array in collapsed(layer, size, rng).items()}


def _changed(drawn: Drawn, **change: Callable[[Drawn], FloatArray]) -> Drawn:
    return {**drawn, **{name: of(drawn) for name, of in change.items()}}


def _taken(drawn: Drawn, index: NDArray[np.int64]) -> Drawn:
    return {name: array[index] for name, array in drawn.items()}


def _sized(values: FloatArray, by: FloatArray) -> FloatArray:
    """Return values in each draw times the size of something else, of mean square one."""
    squares = _energy(by)
    factor = np.sqrt(squares / squares.mean())
    return np.asarray(values * factor.reshape(-1, *[1] * (values.ndim - 1)))


def _energy(values: FloatArray) -> FloatArray:
    """Return the sum of squares of each draw."""
    return np.asarray((values**2).sum(axis=tuple(range(1, values.ndim))))
