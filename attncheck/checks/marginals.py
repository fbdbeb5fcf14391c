"""Single numbers of a draw that are conditionally normal: projected outputs of a neuron, and scores."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.checks.rotation import neighbours
from attncheck.checks.sample import Arrays
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import attention_weights, visible
from attncheck.layers.draws import Draws
from attncheck.layers.kernel import input_kernel
from attncheck.layers.parts.scores import mean_offset, offset_variance, score_kernel
from attncheck.theory.limit import limit
from attncheck.theory.limits.covariance import output_factor
from attncheck.theory.limits.rows import score_std


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A number of each draw: a projection of one neuron's outputs over positions, or a score.

    Attributes
    ----------
    direction : tuple of float
        Weights of the positions; empty for a score.
    entry : tuple of int
        Indices (head, i, j) of a score; negative ones count from the end.
    mean : float
        Mean of the score, subtracted from it.
    """

    direction: tuple[float, ...] = ()
    entry: tuple[int, int, int] = (0, -1, 0)
    mean: float = 0.0

    def values(self, arrays: Arrays) -> FloatArray:
        """Return the value of this number in each draw, (draws,)."""
        if self.direction:
            return np.asarray(neighbours(arrays.outputs, 2)[:, :, 0] @ np.array(self.direction))
        assert arrays.scores is not None
        head, i, j = self.entry
        return np.asarray(arrays.scores[:, head, i, j] - self.mean)

    def variances(self, layer: AttentionLayer, draws: Draws, weights: FloatArray | None) -> FloatArray:
        """Return the conditional variance of each draw, at finite width or (without Gram matrices) in the limit.

        `weights` are the attention weights (draws, heads, positions, positions); scores do not need them.
        """
        if not self.direction:
            return self._score_variances(layer, draws)
        assert weights is not None
        rows = np.array(self.direction) @ weights
        if draws.value_gram is None:
            scale, grams = output_factor(layer), input_kernel(layer.inputs).matrix
        else:
            scale, grams = (layer.output_std * layer.head_factor) ** 2, draws.value_gram
        variances: FloatArray = scale * ((rows[..., None, :] @ grams)[..., 0, :] * rows).sum(axis=(1, 2))
        # Variances below rounding error belong to the atom at 0.
        lengths = np.sqrt(np.diagonal(grams, axis1=-2, axis2=-1))
        rounding = 1e-14 * scale * ((np.abs(rows) * lengths).sum(axis=2) ** 2).sum(axis=1)
        return np.where(variances > rounding, variances, 0.0)

    def limit_score_variance(self, layer: AttentionLayer) -> float:
        """Return the variance of a score in the limit, where it is normal."""
        _, i, j = self.entry
        kernel = score_kernel(layer, input_kernel(layer.inputs).matrix)
        return float(score_std(layer) ** 2 * (kernel[i, i] * kernel[j, j])) + offset_variance(layer)

    def _score_variances(self, layer: AttentionLayer, draws: Draws) -> FloatArray:
        head, i, j = self.entry
        if draws.input_gram is None or draws.key_gram is None:
            return np.full(len(draws), self.limit_score_variance(layer))
        scale = (layer.query_std * layer.score_factor) ** 2
        return np.asarray(scale * draws.input_gram[:, i, i] * draws.key_gram[:, head, j, j] + offset_variance(layer))


def last_position(layer: AttentionLayer) -> Scalar:
    """Return one neuron's output at the last position, from which a causal mask hides nothing."""
    return Scalar(tuple(float(i == layer.seq_len - 1) for i in range(layer.seq_len)))


@functools.lru_cache(maxsize=256)
def random_direction(layer: AttentionLayer) -> Scalar:
    """Return one neuron's outputs projected on a unit direction over the positions, fixed by the layer."""
    vector = stream(0, "direction", layer.key).standard_normal(layer.seq_len)
    return Scalar(tuple(float(x) for x in vector / np.linalg.norm(vector)))


def one_score(layer: AttentionLayer) -> Scalar:
    """Return the first head's score of the last position with the first position visible to it."""
    entry = (0, -1, int(np.argmax(visible(layer)[-1])))
    shape = (layer.num_heads, layer.seq_len, layer.seq_len)
    return Scalar(entry=entry, mean=float(np.broadcast_to(mean_offset(layer), shape)[entry]))


def usual(layer: AttentionLayer) -> tuple[Scalar, ...]:
    """Return the numbers whose laws are tested for each layer, such as one output and one score."""
    return last_position(layer), random_direction(layer), one_score(layer)


def conditional_covariance(layer: AttentionLayer, draws: Draws) -> FloatArray:
    """Return Cov(y | inputs, scores, values), (draws, positions, positions), at finite width or in the limit."""
    if draws.value_gram is None:
        return limit(layer).conditional_covariance(draws.scores)
    weights = attention_weights(layer, draws.scores)
    scale = (layer.output_std * layer.head_factor) ** 2
    covariance: FloatArray = scale * (weights @ draws.value_gram @ weights.swapaxes(-1, -2)).sum(axis=1)
    return covariance
