"""Rates: scores become independent of the inputs as 1/n (Definition 1 (iv), approached from finite width).

A property of the theory rather than of a subject: the dependence at both widths is computed from exact
conditional moments, so that nothing else is left to estimate.
"""

from __future__ import annotations

import math

from attncheck.attention import AttentionLayer
from attncheck.evidence.streams import stream
from attncheck.limits.dependence import Dependence, score_input_dependence
from attncheck.pytest_plugin import drawn
from attncheck.strategies import layers

_NARROW, _WIDE, _DRAWS = 64, 1024, 6_000
# Two-sided level 1e-9 for each layer and token.
_QUANTILE = 6.1
# The next order, 1/n², bends the slope between the two widths by less than this (0.03 at most was measured).
_CURVATURE = 0.05


@drawn(layers(max_entries=5_000))
def test_scores_become_independent_of_inputs_as_one_over_n(layer: AttentionLayer, run_seed: int) -> None:
    for token in sorted({0, layer.seq_len // 2, layer.seq_len - 1}):
        narrow, wide = (_at_width(layer, width, token, run_seed) for width in (_NARROW, _WIDE))
        assert narrow.value > _QUANTILE * narrow.error, "at finite width the dependence is there, and is seen"
        order = math.log(wide.value / narrow.value) / math.log(_WIDE / _NARROW)
        error = math.hypot(narrow.error / narrow.value, wide.error / wide.value) / math.log(_WIDE / _NARROW)
        assert abs(order + 1.0) < _CURVATURE + _QUANTILE * error, f"order {order:.3f}, error {error:.3f}"
        # An order of -1/2, that of cyclically shared weights, would have been told apart.
        assert _CURVATURE + _QUANTILE * error < 0.25


def _at_width(layer: AttentionLayer, width: int, token: int, run_seed: int) -> Dependence:
    wider = layer.replace(width=width)
    rng = stream(run_seed, "rates", wider.to_dict(), token)
    return score_input_dependence(wider, _DRAWS, rng, token)
