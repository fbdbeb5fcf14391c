"""How fast scores become independent of the inputs: computed from exact conditional moments."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from attncheck._lib.errors import check_draws, refuse
from attncheck._lib.memory import check_memory
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import FloatArray
from attncheck.simulators.collapsed import draw_inputs

# Entries of X that are drawn at a time.
_ENTRIES = 2**21


@dataclasses.dataclass(frozen=True)
class Dependence:
    """Cov(P_ij², x_kc²) over E[P_ij²] E[x_kc²], with its standard error."""

    value: float
    error: float


def score_input_dependence(layer: AttentionLayer, size: int, rng: np.random.Generator, token: int = 0) -> Dependence:
    """Return how much the square of a score moves with the square of an input's coordinate.

    Definition 1 (iv) makes scores independent of every vector in the limit; at width n they share the
    inputs, and Cov(P_ij², x_kc²) falls as 1/n. Given X, E[P_ij²] is σ² G_ii G_jj exactly, and neurons are
    exchangeable, so the covariance is that of σ² G_ii G_jj and G_kk: no score has to be drawn.

    Parameters
    ----------
    layer : AttentionLayer
        The score is that of the first position with the last.
    size : int
        Draws of the inputs.
    rng : numpy.random.Generator
    token : int
        k, the position of the coordinate.

    Returns
    -------
    Dependence

    Raises
    ------
    InputError
        If the layer ties queries to keys, where E[P_ij² | X] is another one, or `size` is below 2.

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
    """Return `score_input_dependence` for several tokens, from the same draws of the inputs."""
    if layer.tied_query_key:
        remedy = "pass a layer with matrices of its own for both"
        refuse("tied_query_key", True, "makes scores that depend on the inputs in the limit too", remedy)
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
    """Return |x^i|²/n, (size, seq_len)."""
    inputs = draw_inputs(layer, size, rng)
    return np.asarray(np.einsum("bsn,bsn->bs", inputs, inputs) / layer.width)
