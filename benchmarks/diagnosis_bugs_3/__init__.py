"""Twenty-five more public attention bugs, written without knowledge of the diagnoses, and their stages."""

from benchmarks.diagnosis_bugs.parts import Reported
from benchmarks.diagnosis_bugs_3 import maps, outputs, scores, weights

__all__ = ["BUGS", "STAGE", "Reported"]

BUGS: tuple[Reported, ...] = tuple(
    bug for module in (weights, scores, maps, outputs) for bug in vars(module).values() if isinstance(bug, Reported)
)

#: The first wrong stage: queries and keys count as scores, the mask as weights, W_O as outputs.
STAGE: dict[str, str] = {
    "sparse_values": "values",
    "same_heads": "scores",
    "orthogonal_projections": "scores",
    "split_before_projection": "scores",
    "workers_share_a_seed": "draws",
    "encoding_by_draw": "inputs",
    "scaled_by_width": "scores",
    "crossed_halves": "scores",
    "signs_only": "scores",
    "growing_scale": "scores",
    "distance_rewarded": "scores",
    "shifted_scores": "scores",
    "key_bias_from_memory": "scores",
    "groups_tiled": "scores",
    "running_maximum": "weights",
    "powers_of_two": "weights",
    "softmax_over_draws": "weights",
    "row_is_masked": "weights",
    "sees_next_position": "weights",
    "heads_averaged": "weights",
    "values_read_with_wrong_pitch": "values",
    "heads_of_other_draws": "outputs",
    "heads_normalised": "outputs",
    "largest_head": "outputs",
    "first_position_cached": "draws",
}
