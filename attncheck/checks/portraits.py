"""Pictures that take a whole sample: residuals against the normal, score covariances against the declared."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck.checks.sample import Sample
from attncheck.evidence.pictures import covariances, histogram_of_residuals
from attncheck.layers.attention_map import visible
from attncheck.layers.rotary import score_alignment

FloatArray = NDArray[np.float64]

# Score entries whose pairs are shown, and of those also between heads.
_ENTRIES = 6
_BETWEEN_HEADS = 3


def whitened_scores(sample: Sample) -> dict[str, Any]:
    """Show the scores whitened by inputs and keys."""
    return histogram_of_residuals(sample.whitened_scores.flat())


def whitened_outputs(sample: Sample) -> dict[str, Any]:
    """Show the outputs whitened by scores and values."""
    return histogram_of_residuals(sample.output_residual.flat())


def score_covariances(sample: Sample) -> dict[str, Any]:
    """Show E[P_ij P_kl], observed and as the inputs' Gram matrix predicts it: σ² G_ik G_jl, 0 between heads.

    With rotary positions it is c(d) times as large, see `attncheck.layers.rotary`.
    """
    layer, gram, scores = sample.layer, sample.need("input_gram"), sample.need("scores")
    rows, columns = np.nonzero(visible(layer))
    chosen = np.unique(np.linspace(0, len(rows) - 1, _ENTRIES).astype(int))
    first, second = (chosen[index] for index in np.triu_indices(len(chosen)))
    std = layer.query_std * layer.key_std * layer.score_factor
    predicted = std**2 * gram[:, rows[first], rows[second]] * gram[:, columns[first], columns[second]]
    steps = columns - rows
    predicted = predicted * score_alignment(layer)[np.abs(steps[first] - steps[second])]
    entries = scores[:, :, rows, columns]
    products = (entries[:, :, first] * entries[:, :, second]).mean(axis=1)
    if layer.num_heads > 1:
        crossed = chosen[:_BETWEEN_HEADS]
        products = np.hstack([products, entries[:, 0, crossed] * entries[:, 1, crossed]])
        predicted = np.hstack([predicted, np.zeros((len(sample), len(crossed)))])
    return covariances(predicted, products)
