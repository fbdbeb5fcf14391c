"""One draw of a layer by the collapsed method, head by head.

Given the inputs, heads are independent: one head's few s × s matrices suffice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_whole
from attncheck.layers.attention import AttentionLayer, check_layer
from attncheck.layers.attention_map import attention_weights
from attncheck.layers.parts.scores import of_head, score_vectors, whole_vectors, with_offsets
from attncheck.simulators.blocks import check_coordinates, root_of
from attncheck.simulators.collapsed import draw_inputs
from attncheck.simulators.linalg import bartlett, gram_root


@dataclasses.dataclass(frozen=True, eq=False)
class HeadDraw:
    """One head of a draw.

    Attributes
    ----------
    scores, weights : ndarray, shape (seq_len, seq_len)
        P, unmasked, and A.
    outputs : ndarray, shape (seq_len, coordinates)
    """

    scores: FloatArray
    weights: FloatArray
    outputs: FloatArray


def simulate_heads(
    layer: AttentionLayer, seed: int | np.random.SeedSequence = 0, coordinates: int = 1
) -> Iterator[HeadDraw]:
    """Draw a layer once, exactly in law, and yield its heads; their outputs sum to the layer's.

    Memory does not grow with the number of heads: 96 heads of 128 neurons over 2,048 positions take seconds.

    Parameters
    ----------
    layer : AttentionLayer
    seed : int or numpy.random.SeedSequence
        Draws differ from those of `simulate`.
    coordinates : int
        Neurons of the outputs, at most the width.

    Yields
    ------
    HeadDraw

    Raises
    ------
    InputError
        For an invalid argument.

    Examples
    --------
    >>> layer = AttentionLayer(width=64, seq_len=3, num_heads=4)
    >>> sum(head.outputs for head in simulate_heads(layer)).shape
    (3, 1)
    """
    check_layer(layer)
    coordinates = check_whole("coordinates", coordinates, 1, "pass how many neurons to return")
    check_coordinates(coordinates, layer.width)
    return _heads(layer, np.random.default_rng(root_of(seed)), coordinates)


def _heads(layer: AttentionLayer, rng: np.random.Generator, coordinates: int) -> Iterator[HeadDraw]:
    inputs = draw_inputs(layer, 1, rng)[0]
    scale = layer.width**-0.5
    root = inputs * scale if layer.width <= layer.seq_len else gram_root(inputs @ inputs.T / layer.width)
    del inputs
    rank, nu = root.shape[1], layer.head_width
    scale = layer.score_factor * nu**-0.5
    for group in range(layer.kv_heads):
        keys = layer.key_std * (root @ _factor(layer, rank, rng))
        values = layer.value_std * nu**-0.5 * (root @ bartlett(rng, (), rank, nu))
        for head in range(group * layer.group_size, (group + 1) * layer.group_size):
            queries = keys
            if not layer.tied_query_key:
                queries = layer.query_std * (root @ rng.standard_normal((rank, keys.shape[1])))
            scores = scale * (score_vectors(layer, queries) @ score_vectors(layer, keys).T)
            scores = with_offsets(of_head(layer, head), scores[None, None], rng)[0, 0]
            weights = attention_weights(layer, scores)
            projected = values @ rng.standard_normal((values.shape[1], coordinates))
            yield HeadDraw(scores, weights, layer.output_std * layer.head_factor * (weights @ projected))


def _factor(layer: AttentionLayer, rank: int, rng: np.random.Generator) -> FloatArray:
    """Draw the factor T of the keys F T, up to scale."""
    if not whole_vectors(layer):
        return bartlett(rng, (), rank, layer.head_width)
    return rng.standard_normal((rank, layer.head_width))
