"""The collapsed reading: attention only, exact in law in O(s n) + O(H s³) operations per draw.

Given the inputs X (s × n) and their Gram matrix G = X Xᵀ/n = F Fᵀ (F = X/√n where n ≤ s), the keys of a
group of heads enter only through their Gram matrix: X W^K has the law of √ν B_K, B_K = σ_K F T_K/√ν with
T_K the Bartlett factor of a Wishart(ν, I) matrix. Scores, values and outputs are then Gaussian given what
came before:

    P_a = σ_Q F N_a B_Kᵀ,   y[:, c] = H^{-1/2} Σ_a A(P_a) σ_O B_V N'_a[:, c],

with N_a, N'_a of independent standard normals; with tied queries P_a = B_K B_Kᵀ. This holds
jointly with the inputs' coordinates.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from attncheck import nonlinearity
from attncheck.attention import AttentionLayer
from attncheck.attention_map import attention_weights
from attncheck.limits.kernel import position_covariance, psd_root
from attncheck.simulators.draws import Draws
from attncheck.simulators.linalg import bartlett, gram_root

FloatArray = NDArray[np.float64]


def draw_inputs(layer: AttentionLayer, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw X: x^i = φ(W^i h + e^i), where the argument is Gaussian given ‖h‖² ~ χ²_n.

    Returns
    -------
    ndarray, shape (size, seq_len, width)
    """
    n = layer.width
    length = np.sqrt(rng.chisquare(n, size=size) / n) * layer.input_std
    rho = layer.input_correlation
    h = rng.standard_normal((size, layer.seq_len, n)) if rho < 1.0 else np.zeros((size, layer.seq_len, n))
    if rho > 0.0:
        h *= (1.0 - rho) ** 0.5
        h += rho**0.5 * rng.standard_normal((size, 1, n))
    h *= length[:, None, None]
    if layer.position_std:
        root = psd_root(position_covariance(layer))
        h += root @ rng.standard_normal((size, root.shape[1], n))
    return nonlinearity.from_layer(layer)(h)


def draw_collapsed(layer: AttentionLayer, size: int, coordinates: int, rng: np.random.Generator) -> Draws:
    """Draw inputs, scores and outputs of `layer` exactly in law, without weight matrices."""
    inputs = draw_inputs(layer, size, rng)
    return attend(layer, inputs, coordinates, rng)


def attend(layer: AttentionLayer, inputs: FloatArray, coordinates: int, rng: np.random.Generator) -> Draws:
    """Draw what the layer makes of given inputs: exact in law given X.

    Parameters
    ----------
    layer : AttentionLayer
    inputs : ndarray, shape (size, seq_len, width)
        X.
    coordinates : int
        Neurons of the outputs and inputs to return.
    rng : numpy.random.Generator

    Returns
    -------
    Draws
    """
    size, nu = len(inputs), layer.head_width
    gram = inputs @ inputs.swapaxes(-1, -2) / layer.width
    root = (inputs * layer.width**-0.5 if layer.width <= layer.seq_len else gram_root(gram))[:, None]
    rank, batch = root.shape[-1], (size, layer.kv_heads)
    spread = functools.partial(np.repeat, repeats=layer.group_size, axis=1)
    keys = spread(layer.key_std * nu**-0.5 * (root @ bartlett(rng, batch, rank, nu)))
    values = spread(layer.value_std * nu**-0.5 * (root @ bartlett(rng, batch, rank, nu)))
    per_head = (size, layer.num_heads)
    if layer.tied_query_key:
        scores = keys @ keys.swapaxes(-1, -2)
    else:
        queries = root @ rng.standard_normal((*per_head, rank, keys.shape[-1]))
        scores = (layer.query_std * layer.score_factor) * (queries @ keys.swapaxes(-1, -2))
    projected = values @ rng.standard_normal((*per_head, values.shape[-1], coordinates))
    outputs = (attention_weights(layer, scores) @ projected).sum(axis=1)
    outputs *= layer.output_std * layer.head_factor
    return Draws(
        outputs=outputs,
        scores=scores,
        inputs=inputs[:, :, :coordinates].copy(),
        input_gram=gram,
        key_gram=keys @ keys.swapaxes(-1, -2),
        value_gram=values @ values.swapaxes(-1, -2),
    )
