"""Which check identifies each known-wrong simulator, and on which layer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts import named_parts
from attncheck.layers.regimes import REGIMES
from attncheck.looks.profiles import ANCHORS

_PAPER, _NARROW, _ONE, _GROUPED = ANCHORS[:4]
_MANY = ANCHORS[5]

#: For each fault, a layer and a check that detects it there and names it in its hint.
NAMED_BY: Mapping[str, tuple[AttentionLayer, str]] = MappingProxyType(
    {
        "scores_over_n": (_PAPER, "scores.scale"),
        "scores_over_root_s": (_PAPER, "scores.scale"),
        "missing_head_scaling": (_PAPER, "conditional.scale"),
        **{f"query_std_{percent}": (_GROUPED, "scores.scale") for percent in (2, 5, 10)},
        **{f"key_std_{percent}": (_GROUPED, "scores.key_scale") for percent in (2, 5, 10)},
        **{f"value_std_{percent}": (_GROUPED, "conditional.value_scale") for percent in (2, 5, 10)},
        **{f"output_std_{percent}": (_GROUPED, "conditional.scale") for percent in (2, 5, 10)},
        "fresh_group_keys": (_GROUPED, "scores.key_groups"),
        "clipped_inputs": (_ONE, "inputs.tail_4"),
        "tied_query_key": (_PAPER, "scores.tied"),
        "tied_key_value": (_PAPER, "independence.keys_values"),
        "tied_query_value": (_NARROW, "independence.values_any_scores"),
        "slipped_slice": (_PAPER, "independence.values_any_keys"),
        "tied_query_output": (_ONE, "independence.output_scores_by_head"),
        "tied_key_output": (_NARROW, "independence.output_keys_by_head"),
        "tied_value_output": (_NARROW, "independence.output_values_by_head"),
        "twin_queries": (_MANY, "scores.head_pairs"),
        "shared_keys": (_PAPER, "scores.key_heads"),
        "interleaved_groups": (_GROUPED, "scores.key_groups"),
        "weights_per_call": (_NARROW, "draws.calls"),
        "uneven_heads": (_PAPER, "conditional.head_shares"),
        "copied_draws": (_PAPER, "exactness.repeats"),
        "inputs_apart": (_PAPER, "scores.key_law"),
        "independent_scores": (_NARROW, "scores.law"),
        "half_precision_scores": (_PAPER, "draws.precision_scores"),
        "softmax_over_columns": (_PAPER, "conditional.joint"),
        "leaking_mask": (_GROUPED, "conditional.joint"),
        "dropped_head": (_PAPER, "conditional.scale"),
        "shifted_outputs": (_PAPER, "conditional.shift"),
        "gaussian_outputs": (_PAPER, "conditional.joint"),
        "limit_as_finite": (_PAPER, "scores.key_law"),
        "bartlett_freedom": (_NARROW, "scores.key_scale"),
        "student_weights": (_ONE, "scores.key_law"),
        "repeated_stream": (_PAPER, "draws.repeats"),
        "clipped_outputs": (_PAPER, "exactness.extremes"),
        "growing_outputs": (_PAPER, "conditional.trend"),
        "ignored_over_n": (REGIMES["1/n scaling"], "scores.scale"),
        "full_rank_heads": (REGIMES["low rank"], "scores.key_law"),
        "linear_as_softmax": (REGIMES["linear attention"], "conditional.scale"),
        "repeated_heads": (REGIMES["many heads"], "scores.key_copies"),
        "untied_query_key": (REGIMES["tied queries and keys"], "exactness.score"),
        "centred_relu": (REGIMES["relu inputs"], "exactness.input_overlap"),
        "forgotten_positions": (REGIMES["positions"], "inputs.law"),
        **{
            misreading.name: (_PAPER.replace(**part.example), misreading.check)
            for part in named_parts()
            for misreading in part.misreadings
        },
        "positions_apart": (REGIMES["positions"], "scores.key_law"),
        "skipped_values": (_ONE, "independence.output_inputs"),
        "ignored_mask": (_GROUPED, "conditional.joint"),
        "unscaled_uniform_weights": (_PAPER, "outputs.limit"),
        "forgotten_norm": (REGIMES["normalised inputs"], "exactness.input_length"),
        "other_norm": (REGIMES["normalised inputs"], "exactness.input"),
        "norm_over_positions": (REGIMES["normalised inputs"], "exactness.input_length"),
    }
)
