"""Plot data from a whole sample: residuals against the normal law, and covariances against their declared values."""

from __future__ import annotations

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks.laws import MarginalLaw
from attncheck.checks.sample import Sample
from attncheck.evidence.plot_data import Density, Estimates, Matrix, covariances, density, matrix
from attncheck.layers.attention_map import visible
from attncheck.layers.parts.rotary import score_alignment
from attncheck.layers.parts.scores import offset_covariance

# Number of score entries whose products are shown: of one head, and of two heads.
_ENTRIES = 6
_BETWEEN_HEADS = 3
# Maximum heads or positions in a matrix.
_MOST = 12


def whitened_scores(sample: Sample) -> Density:
    """Return a histogram of scores whitened by inputs and keys."""
    return density(sample.whitened_scores.flat())


def whitened_outputs(sample: Sample) -> Density:
    """Return a histogram of outputs whitened by scores and values."""
    return density(sample.output_residual.flat())


def score_covariances(sample: Sample) -> Estimates:
    """Return E[P_ij P_kl], observed and predicted from the inputs' Gram matrix: σ² G_ik G_jl, and 0 between heads.

    Rotary positions add the factor c(d) of `attncheck.layers.parts.rotary`.
    """
    layer, gram, scores = sample.layer, sample.need("input_gram"), sample.centred_scores
    rows, columns = np.nonzero(visible(layer))
    chosen = np.unique(np.linspace(0, len(rows) - 1, _ENTRIES).astype(int))
    first, second = (chosen[index] for index in np.triu_indices(len(chosen)))
    std = layer.query_std * layer.key_std * layer.score_factor
    predicted = std**2 * gram[:, rows[first], rows[second]] * gram[:, columns[first], columns[second]]
    steps = columns - rows
    predicted = predicted * score_alignment(layer)[np.abs(steps[first] - steps[second])]
    predicted = predicted + offset_covariance(layer, rows, columns)[first, second]
    entries = scores[:, :, rows, columns]
    products = (entries[:, :, first] * entries[:, :, second]).mean(axis=1)
    if layer.num_heads > 1:
        crossed = chosen[:_BETWEEN_HEADS]
        products = np.hstack([products, entries[:, 0, crossed] * entries[:, 1, crossed]])
        predicted = np.hstack([predicted, np.zeros((len(sample), len(crossed)))])
    return covariances(predicted, products)


def between_heads(sample: Sample) -> Matrix:
    """Return the correlations of N Nᵀ between heads, N their whitened scores; 0 unless heads share W_Q."""
    residual, heads = sample.whitened_scores, min(_MOST, sample.layer.num_heads)
    scores = np.where(residual.kept, residual.values, 0.0)[:, :heads]
    squares = (scores @ scores.swapaxes(-1, -2)).reshape(len(sample), heads, -1)
    squares = squares - squares.mean(axis=0)
    products = squares @ squares.swapaxes(-1, -2)
    sizes = np.sqrt(np.einsum("nhh->h", products))
    scale = np.maximum(np.outer(sizes, sizes), 1e-300) / len(sample)
    error = np.where(np.eye(heads) > 0, 1.0, products.std(axis=0) / np.sqrt(len(sample)) / scale)
    quantity = "correlations between heads of N Nᵀ, N the whitened scores"
    return matrix(products.mean(axis=0) / scale, np.eye(heads), error, "heads", quantity, len(sample))


def between_positions(sample: Sample) -> Matrix:
    """Return E[y_i y_j] of one neuron, observed and given scores and values (Σ_y)."""
    factor, outputs = sample.output_factor[:, :_MOST], sample.outputs[:, :_MOST]
    declared = factor @ factor.swapaxes(-1, -2)
    observed = outputs @ outputs.swapaxes(-1, -2) / outputs.shape[-1]
    error = (observed - declared).std(axis=0) / np.sqrt(len(sample))
    quantity = "covariances between positions of one neuron's output, given scores and values"
    return matrix(observed.mean(axis=0), declared.mean(axis=0), error, "positions", quantity, len(sample))


def against_limit(values: FloatArray, law: MarginalLaw) -> Density:
    """Return the density of one number per draw, with its limit law."""

    def cdf(points: FloatArray) -> FloatArray:
        return np.where(points > 0.0, 1.0 - (tail := law.mixture.upper_tail(np.abs(points))), tail)

    return density(values, law.std, cdf)
