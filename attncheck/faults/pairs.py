"""The wrong simulator that each check must reject."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attncheck.checks.registered import registrations
from attncheck.faults import all_faults, registered_fault
from attncheck.faults.fault import Fault
from attncheck.faults.tampered import TAMPERED
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.regimes import REGIMES
from attncheck.looks.profiles import ANCHORS

_PAPER, _NARROW, _ONE, _GROUPED = ANCHORS[:4]
# Two groups of heads, and enough positions to distinguish them.
_GROUPS = AttentionLayer(width=8, seq_len=8, num_heads=4, num_kv_heads=2)
# Heads that share keys and W_Q have equal scores.
_ONE_GROUP = AttentionLayer(width=8, seq_len=4, num_heads=2, num_kv_heads=1)
_SINGLE = AttentionLayer(width=16, seq_len=1, num_heads=2)
_OVER_N, _TIED = REGIMES["1/n scaling"], REGIMES["tied queries and keys"]
_LOW_RANK, _LINEAR, _MANY = (REGIMES[name] for name in ("low rank", "linear attention", "many heads"))
# Too many pairs of heads for rotation to find a shared matrix.
_CROWD = ANCHORS[5]
_RELU, _POSITIONS = REGIMES["relu inputs"], REGIMES["positions"]

#: For every check of layers, a fault that it rejects within some thousands of draws, and the layer.
PAIRS: Mapping[str, tuple[str, AttentionLayer]] = MappingProxyType(
    {
        "exactness.score": ("tied_query_key", _ONE),
        "exactness.score_off": ("scores_over_root_s", _OVER_N),
        "exactness.score_heads": ("shared_keys", _TIED),
        "exactness.score_energy": ("scores_over_root_s", _PAPER),
        "exactness.row_entropy": ("query_std_10", _TIED),
        "exactness.output": ("shifted_outputs", _ONE),
        "exactness.output_positions": ("missing_head_scaling", _RELU),
        "exactness.output_neurons": ("missing_head_scaling", _RELU),
        "exactness.output_energy": ("missing_head_scaling", _PAPER),
        "exactness.output_contrast": ("scores_over_root_s", _PAPER),
        "exactness.output_given_scores": ("softmax_over_columns", _OVER_N),
        "exactness.score_shape": ("independent_scores", _PAPER),
        "exactness.score_contrast": ("shared_keys", _MANY),
        "exactness.score_output_size": ("missing_head_scaling", _PAPER),
        "exactness.score_columns": ("shared_keys", _NARROW),
        "exactness.score_rows": ("shared_keys", _TIED),
        "exactness.score_columns_apart": ("shared_keys", _GROUPS),
        "exactness.input": ("limit_as_finite", _ONE),
        "exactness.input_neurons": ("neuron_twice", _PAPER),
        "exactness.input_length": ("limit_as_finite", _PAPER),
        "exactness.input_overlap": ("limit_as_finite", _GROUPED),
        "exactness.input_products": ("inputs_turned", _NARROW),
        "exactness.input_output": ("gaussian_outputs", _ONE),
        "exactness.input_output_squares": ("residual_added", _PAPER),
        "exactness.input_score_squares": ("scores_over_root_s", _MANY),
        "non_gaussianity.output_energy": ("missing_head_scaling", _PAPER),
        "inputs.law": ("limit_as_finite", _ONE),
        "inputs.lengths": ("limit_as_finite", _LINEAR),
        "inputs.tail_4": ("clipped_inputs", _ONE),
        "scores.scale": ("scores_over_root_s", _PAPER),
        "scores.law": ("query_std_5", _MANY),
        "scores.tied": ("tied_query_key", _ONE),
        "scores.heads": ("twin_queries", _ONE_GROUP),
        "scores.heads_energy": ("twin_queries", _ONE_GROUP),
        "scores.head_pairs": ("twin_queries", _CROWD),
        "scores.marginal": ("tied_query_key", _ONE),
        "scores.size": ("query_std_2", _MANY),
        "scores.spread": ("scores_over_n", _PAPER),
        "scores.kurtosis": ("inputs_apart", _LINEAR),
        "scores.key_scale": ("key_std_2", _LOW_RANK),
        "scores.key_law": ("key_std_5", _LINEAR),
        "scores.key_heads": ("shared_keys", _GROUPED),
        "scores.key_copies": ("shared_keys", _GROUPED),
        "scores.key_groups": ("fresh_group_keys", _GROUPED),
        "outputs.given_scores": ("shifted_outputs", _ONE),
        "outputs.given_scores_spread": ("dropped_head", _GROUPED),
        "outputs.law": ("shifted_outputs", _ONE),
        "outputs.projection": ("gaussian_outputs", _TIED),
        "outputs.symmetry": ("shifted_outputs", _ONE),
        "outputs.zeros": ("unfilled", _PAPER),
        "outputs.tail_4": ("missing_head_scaling", _RELU),
        "outputs.tail_6": ("missing_head_scaling", _GROUPED),
        "outputs.tail_8": ("missing_head_scaling", _MANY),
        "outputs.limit": ("missing_head_scaling", _MANY),
        "outputs.limit_projection": ("leaking_mask", _GROUPED),
        "outputs.limit_scores": ("scores_over_n", _GROUPED),
        "conditional.scale": ("missing_head_scaling", _PAPER),
        "conditional.law": ("softmax_over_columns", _OVER_N),
        "conditional.joint": ("output_std_5", _PAPER),
        "conditional.neurons": ("shifted_outputs", _LINEAR),
        "conditional.positions": ("first_position_added", _PAPER),
        "conditional.shift": ("shifted_outputs", _LINEAR),
        "conditional.head_shares": ("uneven_heads", _NARROW),
        "conditional.value_scale": ("value_std_5", _LINEAR),
        "conditional.value_law": ("value_std_5", _LINEAR),
        "conditional.value_heads": ("interleaved_groups", _GROUPED),
        "conditional.value_copies": ("interleaved_groups", _GROUPED),
        "conditional.value_groups": ("fresh_group_keys", _GROUPED),
        "independence.output_scores": ("scores_added", _SINGLE),
        "independence.output_score_size": ("outputs_sized_by_scores", _PAPER),
        "independence.output_inputs": ("residual_added", _PAPER),
        "independence.output_input_size": ("outputs_sized_by_inputs", _NARROW),
        "independence.output_gram": ("outputs_sized_by_inputs", _NARROW),
        "independence.score_inputs": ("input_bias", _SINGLE),
        "independence.score_input_size": ("scores_sized_by_inputs", _NARROW),
        "independence.score_gram": ("scores_sized_by_inputs", _NARROW),
        "independence.keys_values": ("tied_key_value", _LINEAR),
        "independence.values_any_keys": ("slipped_slice", _NARROW),
        "independence.values_any_scores": ("tied_query_value", _NARROW),
        "independence.output_scores_by_head": ("tied_query_output", _ONE),
        "independence.output_keys_by_head": ("tied_key_output", _NARROW),
        "independence.output_values_by_head": ("tied_value_output", _NARROW),
        "draws.signs": ("by_sign", _PAPER),
        "draws.sizes": ("by_size", _PAPER),
        "exactness.neighbours": ("by_size", _PAPER),
        "draws.calls": ("scale_per_call", _PAPER),
        "draws.scores": ("stale_weights", _ONE),
        "draws.keys": ("stale_weights", _NARROW),
        "draws.values": ("stale_weights", _NARROW),
        "draws.repeats": ("twice", _PAPER),
        "draws.repeats_inputs": ("inputs_again", _PAPER),
        "draws.repeats_scores": ("halves_alike", _PAPER),
        "draws.repeats_keys": ("halves_alike", _PAPER),
        "draws.repeats_values": ("halves_alike", _PAPER),
        "exactness.repeats": ("twice", _PAPER),
        "draws.precision_outputs": ("half_precision_outputs", _PAPER),
        "draws.precision_scores": ("half_precision_scores", _LINEAR),
        "exactness.extremes": ("clipped_outputs", _PAPER),
        "exactness.trend": ("by_size", _PAPER),
        "conditional.trend": ("by_size", _PAPER),
        "scores.trend": ("fading_scores", _NARROW),
        "scores.each_head": ("one_head_larger", _PAPER),
        "scores.key_each_head": ("one_head_larger", _GROUPED),
        "conditional.value_each_head": ("one_head_larger", _GROUPED),
    }
)


def paired(check: str) -> Fault:
    """Return the wrong simulator paired with a check of layers, which may be registered.

    Examples
    --------
    >>> paired("independence.output_inputs").what
    'the inputs are added to the outputs, as a residual stream would be'
    """
    if check in PAIRS:
        return fault_named(PAIRS[check][0])
    return next(registered_fault(each) for each in registrations() if each.check.name == check)


def fault_named(name: str) -> Fault:
    """Return a wrong simulator of layers by its name.

    Examples
    --------
    >>> fault_named("twice").what
    'every draw of a call is returned twice'
    """
    return {**all_faults(), **TAMPERED}[name]
