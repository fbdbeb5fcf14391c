"""Explanations: none names a fault that the draws or the answers of a subject contradict."""

from __future__ import annotations

import numpy as np
from scipy import special

from attncheck import AttentionLayer, check
from attncheck._lib.arrays import FloatArray
from attncheck.diagnosis.sources import Violations, explanations
from attncheck.layers.attention_map import attention_weights
from attncheck.records.explanation import Certainty
from attncheck.simulators.literal import LiteralSimulator
from attncheck.simulators.weights import GAUSSIAN_LAWS
from tests.simulators.answering import on_inputs

LAYER = AttentionLayer(width=8, seq_len=3, num_heads=4)


def mixed_heads(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    """Attend with a tenth of the weights of the head before: no known fault does so."""
    weights = attention_weights(layer, scores)
    return 0.9 * weights + 0.1 * np.roll(weights, 1, axis=1)


def over_queries(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return np.asarray(special.softmax(scores, axis=-2))


def test_a_fault_that_uses_positions_otherwise_is_not_named() -> None:
    report = check(on_inputs(LiteralSimulator(weigh=mixed_heads)), LAYER, profile="smoke")
    assert report.verdict == "violated"
    kinds = {explanation.certainty for explanation in report.explanations}
    assert kinds <= {Certainty.ESTIMATED, Certainty.HINTED}
    assert "the fault begins with outputs given scores" in report.causes[0]


def test_a_cause_is_said_once() -> None:
    report = check(on_inputs(LiteralSimulator(weigh=over_queries)), LAYER, profile="smoke")
    assert "softmax normalises the columns of the scores" in report.causes[0]
    assert not any("softmax" in cause for cause in report.causes[1:])


def test_nothing_is_explained_without_violations() -> None:
    assert explanations(Violations((), 0, GAUSSIAN_LAWS)) == ()
