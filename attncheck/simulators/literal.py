"""A small simulator, step by step. Replacing a step gives a wrong simulator; see `attncheck.faults.wrong_wirings`.

For an n × ν matrix W, X W is drawn as F Ω, which has the same law: F is a root of X Xᵀ/n, and the s × ν entries of Ω
are i.i.d. N(0, 1). Two heads that share W share Ω, so no n × n array is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts.qk_norm import score_vectors
from attncheck.layers.parts.scores import with_offsets
from attncheck.simulators.collapsed import draw_inputs
from attncheck.simulators.linalg import gram_of, gram_root


@dataclasses.dataclass(frozen=True, eq=False)
class Projections:
    """Inputs X (draws, positions, width), and X W_Q, X W_K and X W_V, each (draws, heads, positions, head width)."""

    inputs: FloatArray
    queries: FloatArray
    keys: FloatArray
    values: FloatArray


def independent(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Projections:
    """Project inputs with independent matrices: one per head for queries, one per group for keys and for values."""
    root = gram_root(gram_of(inputs))[:, None]

    def project(matrices: int, std: float) -> FloatArray:
        normals = rng.standard_normal((len(root), matrices, layer.seq_len, layer.head_width))
        return np.asarray(std * root @ normals)

    return projections(layer, inputs, project)


def projections(layer: AttentionLayer, inputs: FloatArray, project: Callable[[int, float], FloatArray]) -> Projections:
    """Return the projections of the inputs by the function `project`.

    It is called as ``project(matrices, std)`` for queries, then for keys, then for values, and returns an array (draws,
    matrices, positions, head width).
    """
    queries = project(layer.num_heads, layer.query_std)
    of_groups = (project(layer.kv_heads, std) for std in (layer.key_std, layer.value_std))
    return Projections(inputs, queries, *(np.repeat(array, layer.group_size, axis=1) for array in of_groups))


def by_matrices(
    layer: AttentionLayer, inputs: FloatArray, normals: Callable[[tuple[int, ...]], FloatArray]
) -> Projections:
    """Return the projections of the inputs, after any norm, by explicit matrices.

    `normals` maps the shape (matrices, width, head width) to standard normals, of this shape or one set for each draw.
    """

    def project(matrices: int, std: float) -> FloatArray:
        weights = normals((matrices, layer.width, layer.head_width))
        return np.asarray(std * layer.width**-0.5 * (inputs[:, None] @ weights))

    return projections(layer, inputs, project)


def dot_products(layer: AttentionLayer, projected: Projections, rng: np.random.Generator) -> FloatArray:
    """Return the scores, (draws, heads, positions, positions).

    If queries are tied to keys, the keys are also used as queries.
    """
    queries = projected.keys if layer.tied_query_key else projected.queries
    queries, keys = score_vectors(layer, queries), score_vectors(layer, projected.keys)
    scores = layer.score_factor * layer.head_width**-0.5 * (queries @ keys.swapaxes(-1, -2))
    return with_offsets(layer, np.asarray(scores), rng)


def project_out(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator) -> FloatArray:
    """Apply W_O to the heads' mixed values (draws, heads, positions, head width) and sum over heads."""
    matrices = rng.standard_normal((*mixed.shape[:2], layer.head_width, coordinates))
    return summed_over_heads(layer, mixed @ matrices)


def summed_over_heads(layer: AttentionLayer, images: FloatArray) -> FloatArray:
    """Return the outputs, as a scaled sum over heads.

    `images`, (draws, heads, positions, neurons), contains the product of each head's mixed values with a matrix of
    standard normal entries. This function applies the scale of W_O.
    """
    std = layer.output_std * layer.head_factor * layer.head_width**-0.5
    return np.asarray(std * images.sum(axis=1))


@dataclasses.dataclass(frozen=True)
class LiteralSimulator:
    """A simulator with replaceable steps; the defaults are correct.

    Attributes
    ----------
    project : callable
        Maps inputs to projections.
    arrange : callable
        Changes the projections before scores are computed; by default, it returns them unchanged.
    score : callable
        Maps projections to scores.
    weigh : callable
        Maps scores to attention weights.
    finish : callable
        Maps mixed values to outputs.
    """

    project: Callable[[AttentionLayer, FloatArray, np.random.Generator], Projections] = independent
    arrange: Callable[[AttentionLayer, Projections], Projections] = lambda layer, projected: projected
    score: Callable[[AttentionLayer, Projections, np.random.Generator], FloatArray] = dot_products
    weigh: Callable[[AttentionLayer, FloatArray], FloatArray] = AttentionLayer.attention_weights
    finish: Callable[[AttentionLayer, FloatArray, int, np.random.Generator], FloatArray] = project_out

    def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw inputs, and return outputs, scores and the other arrays of the draws by name."""
        return self.after(layer, self.project(layer, draw_inputs(layer, size, rng), rng), rng)

    def after(self, layer: AttentionLayer, projected: Projections, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Return outputs, scores and the other arrays of draws by name, given their projections."""
        projected = self.arrange(layer, projected)
        scores = self.score(layer, projected, rng)
        coordinates = min(layer.width, 2)
        return {
            "outputs": self.finish(layer, self.weigh(layer, scores) @ projected.values, coordinates, rng),
            "scores": scores,
            "inputs": projected.inputs[:, :, :coordinates].copy(),
            "input_gram": gram_of(projected.inputs),
            "key_gram": gram_of(projected.keys),
            "value_gram": gram_of(projected.values),
            **({} if layer.rotary_base is None else {"keys": projected.keys}),
        }
