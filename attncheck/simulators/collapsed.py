"""The collapsed method: attention only, exact in law in O(s n) + O(H s³) operations per draw.

Given the (normalised) inputs X (s × n), let G = X Xᵀ/n = F Fᵀ (F = X/√n if n ≤ s). Keys matter through their Gram
matrix: X W^K has the law of √ν B_K, B_K = σ_K F T_K/√ν with T_K the Bartlett factor of a Wishart(ν, I) matrix.
Scores, values and outputs are then conditionally Gaussian, jointly with the inputs' coordinates:

    P_a = σ_Q F N_a B_Kᵀ,   y[:, c] = H^{-1/2} Σ_a A(P_a) σ_O B_V N'_a[:, c],

with independent standard normal N_a, N'_a; with tied queries P_a = B_K B_Kᵀ. Rotary positions and norms of queries and
keys need all neurons, Q = σ_Q F N and K = σ_K F N'.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Draws
from attncheck.layers.kernel import position_covariance, psd_root
from attncheck.layers.norm import normalised
from attncheck.layers.parts.qk_norm import score_vectors
from attncheck.layers.parts.scores import whole_vectors, with_offsets
from attncheck.simulators.linalg import bartlett, gram_of, input_root

#: Gram matrices that draws contain by default.
GRAMS = frozenset({"key_gram", "value_gram"})


def draw_hidden(layer: AttentionLayer, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Draw normals N^i, (size, seq_len, width), and lengths ‖h‖/√n, (size,), with h^i = input_std · ‖h‖/√n · N^i."""
    n = layer.width
    lengths = np.sqrt(rng.chisquare(n, size=size) / n)
    rho = layer.input_correlation
    h = rng.standard_normal((size, layer.seq_len, n)) if rho < 1.0 else np.zeros((size, layer.seq_len, n))
    if rho > 0.0:
        h *= (1.0 - rho) ** 0.5
        h += rho**0.5 * rng.standard_normal((size, 1, n))
    return h, lengths


def draw_stream(layer: AttentionLayer, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw h^i + e^i, (size, seq_len, width)."""
    h, lengths = draw_hidden(layer, size, rng)
    h *= (lengths * layer.input_std)[:, None, None]
    if layer.position_std:
        h += draw_positions(layer, size, rng)
    return h


def draw_positions(layer: AttentionLayer, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw e^i, (size, seq_len, width), or a zero of shape (1, 1, 1) for a layer without position vectors."""
    if not layer.position_std:
        return np.zeros((1, 1, 1))
    root = psd_root(position_covariance(layer))
    return np.asarray(root @ rng.standard_normal((size, root.shape[1], layer.width)))


def draw_images(layer: AttentionLayer, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw φ(h^i + e^i), the inputs before normalisation, (size, seq_len, width)."""
    return layer.phi(draw_stream(layer, size, rng))


def draw_inputs(layer: AttentionLayer, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw the inputs x^i = norm(φ(h^i + e^i)), (size, seq_len, width)."""
    return normalised(layer.norm, draw_images(layer, size, rng))


def input_entries(layer: AttentionLayer) -> int:
    """Return a bound on the entries of the inputs X per draw."""
    arrays = (3 if layer.position_std else 2) + 2 * bool(layer.norm)
    return arrays * layer.seq_len * layer.width


def draw_collapsed(
    layer: AttentionLayer, size: int, coordinates: int, rng: np.random.Generator, grams: frozenset[str] = GRAMS
) -> Draws:
    """Draw inputs, scores and outputs of a layer by the collapsed method, exactly in law."""
    return attend(layer, draw_inputs(layer, size, rng), coordinates, rng, grams)


@dataclasses.dataclass(frozen=True, eq=False)
class HeadDraws:
    """Random numbers that determine the heads: Bartlett factors of keys and values, and standard normals N of scores.

    The Bartlett factors T_K and T_V have shape (size, kv_heads, r, min(r, ν)), where r is the number of columns of a
    root F of the input Gram matrix. N is empty if queries are tied.
    """

    keys: FloatArray
    values: FloatArray
    scores: FloatArray

    def of(self, layer: AttentionLayer, root: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return scores P, and roots B_K and B_V of the key and value Gram matrices, of every head.

        `root` is F, (size, seq_len, r), with the Gram matrix F Fᵀ of the inputs.
        """
        root, shrink = root[:, None], layer.head_width**-0.5
        keys = _per_head(layer, layer.key_std * shrink * (root @ self.keys))
        values = _per_head(layer, layer.value_std * shrink * (root @ self.values))
        queries = keys if layer.tied_query_key else (layer.query_std * layer.score_factor) * (root @ self.scores)
        return queries @ keys.swapaxes(-1, -2), keys, values


def _per_head(layer: AttentionLayer, of_groups: FloatArray) -> FloatArray:
    """Repeat each group's array for every head of the group."""
    return of_groups if layer.group_size == 1 else np.repeat(of_groups, layer.group_size, axis=1)


def draw_heads(layer: AttentionLayer, size: int, rank: int, rng: np.random.Generator) -> HeadDraws:
    """Draw the random factors of all heads, for a root F of the input Gram matrix with `rank` columns."""
    batch, nu = (size, layer.kv_heads), layer.head_width
    keys, values = bartlett(rng, batch, rank, nu), bartlett(rng, batch, rank, nu)
    columns = 0 if layer.tied_query_key else keys.shape[-1]
    return HeadDraws(keys, values, rng.standard_normal((size, layer.num_heads, rank, columns)))


def output_covariance(layer: AttentionLayer, scores: FloatArray, values: FloatArray) -> FloatArray:
    """Return σ_O²/H Σ_a A(P_a) B_V B_Vᵀ A(P_a)ᵀ, the covariance of an output neuron given scores and values.

    `values` contains a root B_V of the value Gram matrix of each head.
    """
    mixed = layer.attention_weights(scores) @ values
    grams = (mixed @ mixed.swapaxes(-1, -2)).sum(axis=1)
    return np.asarray((layer.output_std * layer.head_factor) ** 2 * grams)


def attend(
    layer: AttentionLayer,
    inputs: FloatArray,
    coordinates: int,
    rng: np.random.Generator,
    grams: frozenset[str] = GRAMS,
) -> Draws:
    """Draw scores and outputs exactly in law, given inputs X (size, seq_len, width).

    The result contains `coordinates` neurons of the inputs and outputs, possibly 0, and the Gram matrices named in
    `grams`.
    """
    gram = gram_of(inputs)
    root = input_root(inputs, gram)
    if whole_vectors(layer):
        scores, keys, values = _draw_all(layer, root, rng)
    else:
        scores, keys, values = draw_heads(layer, len(inputs), root.shape[-1], rng).of(layer, root)
    scores = with_offsets(layer, scores, rng)
    return Draws(
        outputs=_outputs(layer, scores, values, coordinates, rng),
        scores=scores,
        inputs=inputs[:, :, :coordinates].copy(),
        input_gram=gram,
        key_gram=_per_head(layer, group_grams(layer, keys)) if "key_gram" in grams else None,
        value_gram=_per_head(layer, group_grams(layer, values)) if "value_gram" in grams else None,
        keys=None if layer.rotary_base is None else keys * layer.head_width**0.5,
    )


def group_grams(layer: AttentionLayer, vectors: FloatArray) -> FloatArray:
    """Return V Vᵀ of each group of heads, for keys or values V that are given for each head."""
    of_groups = vectors[:, :: layer.group_size]
    return np.asarray(of_groups @ of_groups.swapaxes(-1, -2))


def _draw_all(
    layer: AttentionLayer, root: FloatArray, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Draw all neurons of queries and keys; return the scores, keys/√ν, and a root B_V of the value Gram matrix.

    Each array has an entry for every head. Keys are returned as they are before rotation.

    `root` is F, (size, seq_len, r), with the Gram matrix F Fᵀ of the inputs.
    """
    (size, _, rank), nu = root.shape, layer.head_width
    normals = rng.standard_normal((size, layer.num_heads + layer.kv_heads, rank, nu))
    projected = root[:, None] @ normals
    queries = score_vectors(layer, layer.query_std * projected[:, : layer.num_heads])
    keys = _per_head(layer, layer.key_std * projected[:, layer.num_heads :])
    scores = layer.score_factor * nu**-0.5 * (queries @ score_vectors(layer, keys).swapaxes(-1, -2))
    values = _per_head(
        layer, layer.value_std * nu**-0.5 * (root[:, None] @ bartlett(rng, (size, layer.kv_heads), rank, nu))
    )
    return scores, keys * nu**-0.5, values


def _outputs(
    layer: AttentionLayer, scores: FloatArray, values: FloatArray, coordinates: int, rng: np.random.Generator
) -> FloatArray:
    """Draw outputs (size, seq_len, coordinates), given scores and roots `values` of the value Gram matrices."""
    if coordinates == 0:
        return np.zeros((len(scores), layer.seq_len, 0))
    projected = values @ rng.standard_normal((len(scores), layer.num_heads, values.shape[-1], coordinates))
    outputs = (layer.attention_weights(scores) @ projected).sum(axis=1)
    outputs *= layer.output_std * layer.head_factor
    return np.asarray(outputs)
