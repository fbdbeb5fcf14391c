"""Dependence of scores on inputs, from exact conditional moments."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_draws, refuse
from attncheck._lib.memory import check_memory
from attncheck.layers.attention import AttentionLayer
from attncheck.simulators.collapsed import draw_inputs

# Number of entries of the inputs X drawn at a time.
_ENTRIES = 2**21


@dataclasses.dataclass(frozen=True)
class Dependence:
    """The ratio Cov(P_ij², x_kc²) / (E[P_ij²] E[x_kc²]), with its standard error."""

    value: float
    error: float


def score_input_dependence(layer: AttentionLayer, size: int, rng: np.random.Generator, token: int = 0) -> Dependence:
    """Return the relative covariance of the squared first-to-last score with a squared input coordinate of `token`.

    Scores are independent of every vector in the limit (Definition 1 (iv)); Cov(P_ij², x_kc²) decays as 1/n. Given X,
    E[P_ij²] = σ² G_ii G_jj, and neurons are exchangeable, so the covariance of σ² G_ii G_jj and G_kk suffices.

    Raises
    ------
    InputError
        If the layer ties queries to keys, which changes E[P_ij² | X], or `size` is below 2.

    Examples
    --------
    >>> layer = AttentionLayer(width=64)
    >>> found = score_input_dependence(layer, 20_000, np.random.default_rng(0))
    >>> abs(found.value * 64 - 6.4) < 6 * 64 * found.error
    True
    """
    return score_input_dependences(layer, size, rng, (token,))[0]


def score_input_dependences(
    layer: AttentionLayer, size: int, rng: np.random.Generator, tokens: Sequence[int]
) -> list[Dependence]:
    """Return `score_input_dependence` for several tokens from the same input draws."""
    if layer.tied_query_key:
        remedy = "pass a layer with tied_query_key=False"
        refuse("tied_query_key", True, "makes scores depend on the inputs even in the limit", remedy)
    check_draws("size", size, 2, "pass the number of draws, e.g. size=10000")
    check_memory("size", size, "norms of all inputs", size * layer.seq_len, "pass fewer draws")
    step = max(1, _ENTRIES // (layer.seq_len * layer.width))
    parts = [_norms(layer, min(step, size - start), rng) for start in range(0, size, step)]
    norms = np.concatenate(parts)
    scores = norms[:, 0] * norms[:, -1]
    return [_dependence(scores, norms[:, token]) for token in tokens]


def _dependence(scores: FloatArray, inputs: FloatArray) -> Dependence:
    products = (scores - scores.mean()) * (inputs - inputs.mean()) / (scores.mean() * inputs.mean())
    return Dependence(float(products.mean()), float(products.std() / len(products) ** 0.5))


def _norms(layer: AttentionLayer, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw the squared norms |x^i|²/n of the inputs, (size, seq_len)."""
    inputs = draw_inputs(layer, size, rng)
    return np.asarray(np.einsum("bsn,bsn->bs", inputs, inputs) / layer.width)
