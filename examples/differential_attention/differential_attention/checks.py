"""The check that outputs given scores and values have the covariance of differential attention."""

from __future__ import annotations

import numpy as np

from attncheck import AttentionLayer
from attncheck.checks import Alternative, OfLayer, Reference, Sample, Scale, register
from differential_attention.simulator import FloatArray, differential, draw, supports


def second_softmax_forgotten(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """The second softmax is not subtracted."""
    return draw(layer, size, rng, factor=0.0)


PAIRED = OfLayer(
    "plain layers with pairs of heads", lambda layer: supports(layer) is True, "there are no pairs of heads"
)
REGULAR = OfLayer(
    "as many values as positions",
    lambda layer: layer.seq_len <= min(layer.width, layer.head_width) // 2,
    "the covariance is nearly singular",
)


@register(
    name="differential.given_scores",
    null="given scores and values, outputs are normal with covariance (1/J) sum_j A_j G_j A_j^T",
    alternative=Alternative.of("a variance 10% too large", 1.1),
    reads="output variance given scores and values, observed over declared:",
    family=lambda setting: Scale(dof=setting.layer.seq_len),
    needs=("outputs", "scores", "value_gram"),
    fault=second_softmax_forgotten,
    requires=PAIRED & REGULAR,
    hint="the attention weights are not softmax(P1) - lambda softmax(P2), or lambda differs",
    unseen="One neuron per draw, and only its variance.",
)
def squared_lengths(sample: Sample, reference: Reference) -> tuple[FloatArray]:
    """Return y^T C^-1 y for one neuron per draw, a chi-square variable with s degrees of freedom."""
    weights, grams = differential(sample.need("scores")), sample.need("value_gram")[:, ::2]
    covariance = (weights @ grams @ weights.swapaxes(2, 3)).mean(axis=1)
    outputs = sample.outputs[:, :, :1]
    return ((outputs * np.linalg.solve(covariance, outputs)).sum(axis=(1, 2)),)
