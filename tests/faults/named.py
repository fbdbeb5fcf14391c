"""Layers that show each known-wrong simulator, and checks that identify those that no check has as its first."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attncheck.checks.registry import CHECKS
from attncheck.faults.pairs import paired
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts import named_parts
from attncheck.layers.regimes import REGIMES
from attncheck.looks.profiles import ANCHORS

_PAPER, _NARROW, _ONE, _GROUPED = ANCHORS[:4]

#: For each fault that is not the first of a check's own, a layer and a check that detects it there.
OTHERS: Mapping[str, tuple[AttentionLayer, str]] = MappingProxyType(
    {
        **{
            f"{matrix}_std_{percent}": (_GROUPED, check)
            for matrix, check in (
                ("key", "scores.key_scale"),
                ("value", "conditional.value_scale"),
                ("output", "conditional.scale"),
            )
            for percent in (2, 10)
        },
        "weights_per_call": (_NARROW, "draws.calls"),
        "copied_draws": (_PAPER, "exactness.repeats"),
        "dropped_head": (_PAPER, "conditional.scale"),
        "bartlett_freedom": (_NARROW, "scores.key_scale"),
        "student_weights": (_ONE, "scores.key_law"),
        "repeated_stream": (_PAPER, "draws.repeats"),
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
#: Layers that show a fault: those of a check that it is the first fault of, and these.
SHOWN_ON: Mapping[str, AttentionLayer] = MappingProxyType(
    {
        **{paired(check)[0].name: check.rejects.layer for check in CHECKS if check.rejects.layer is not None},
        **{name: layer for name, (layer, _) in OTHERS.items()},
    }
)
