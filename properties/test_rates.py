"""Rates: laws of outputs approach the limit as 1/n (Corollary 2), scores become independent of the inputs as 1/n.

Properties of the theory rather than of a subject: laws at finite width and the dependence of scores and inputs are
computed from exact conditional moments, so that nothing else is left to estimate.
"""

from __future__ import annotations

import math

from attncheck.attention import AttentionLayer
from attncheck.evidence.streams import stream
from attncheck.limits.dependence import Dependence, score_input_dependence
from attncheck.pytest_plugin import drawn
from attncheck.rates.gap import ERRORS
from attncheck.rates.law import distance
from attncheck.strategies import layers

_NARROW, _WIDE, _DRAWS = 64, 1024, 6_000
# Two-sided level 1e-9 for each layer and token.
_QUANTILE = 6.1
# The next order, 1/n², bends the slope between the two widths by less than this (0.03 at most was measured).
_CURVATURE = 0.05
# Widths at which laws are compared, and draws; errors come from 8 repetitions: beyond `_STUDENT` standard errors
# (7 degrees of freedom) with a chance of 2e-9.
_LAW_WIDTHS, _LAW_DRAWS, _STUDENT = (1024, 32_768), 64, 30.0


@drawn(layers(max_entries=800))
def test_outputs_approach_the_limit_as_one_over_n(layer: AttentionLayer, run_seed: int) -> None:
    # A gap stays with heads of fixed size; "1/n" makes outputs of maps that vanish at 0 vanish. The kink of relu
    # leaves more noise than this many draws take away.
    softmax = "softmax" if layer.attention_map == "relu" else layer.attention_map
    wanted = layer.replace(head_dim=None, attention_map=softmax, tied_query_key=False)
    if softmax == "linear":
        wanted = wanted.replace(score_scaling="1/sqrt(n)")
    seed = int(stream(run_seed, "rates", "laws", wanted.to_dict()).integers(2**32))
    narrow, wide = (
        distance(wanted, position=layer.seq_len - 1, size=_LAW_DRAWS, seed=seed + step, width=width)
        for step, width in enumerate(_LAW_WIDTHS)
    )
    span = math.log(_LAW_WIDTHS[1] / _LAW_WIDTHS[0])
    order = math.log(wide.value / narrow.value) / span
    error = math.hypot(narrow.error / narrow.value, wide.error / wide.value) / ERRORS / span
    assert abs(order + 1.0) < _CURVATURE + _STUDENT * error, f"order {order:.3f}, error {error:.3f}"
    # An order of -1/2, that of cyclically shared weights, would have been told apart.
    assert _CURVATURE + _STUDENT * error < 0.45


@drawn(layers(max_entries=5_000))
def test_scores_become_independent_of_inputs_as_one_over_n(layer: AttentionLayer, run_seed: int) -> None:
    layer = layer.replace(tied_query_key=False)
    # A third token shares ‖h‖ alone with the score, which may be little next to what positions add.
    between = set() if layer.position_std else {layer.seq_len // 2}
    for token in sorted({0, layer.seq_len - 1} | between):
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
