"""Right simulators of another layer than the declared one: wrong scales, wrong widths, wrong laws."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from attncheck.faults import visibility as seen
from attncheck.faults.fault import Fault, FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.subject import collapsed

_MATRICES = {"query": "W_Q", "key": "W_K", "value": "W_V", "output": "W_O"}
# The bound of the clipped inputs, in standard deviations.
_CLIPPED_AT = 4.0


@dataclasses.dataclass(frozen=True)
class Misread:
    """A right simulator that is given a layer with some fields changed, and reports the declared one."""

    changes: Callable[[AttentionLayer], dict[str, Any]]

    def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw the wrong layer."""
        return collapsed(layer.replace(**self.changes(layer)), size, rng)


def _visible_scaling(layer: AttentionLayer) -> bool | str:
    if layer.score_scaling == "1/n":
        return "the layer declares 1/n"
    return layer.head_width > 1 or "1/n is 1/√n at this width"


def _visible_positions_scaling(layer: AttentionLayer) -> bool | str:
    if layer.tied_query_key:
        return "the layer declares 1/n"
    return layer.seq_len != layer.head_width or "√s is √n in this layer"


def _over_root_s(layer: AttentionLayer) -> dict[str, Any]:
    if layer.tied_query_key:
        return {}
    return {"query_std": layer.query_std * (layer.head_width / layer.seq_len) ** 0.5}


def _visible_head_scaling(layer: AttentionLayer) -> bool | str:
    if not layer.head_scaling:
        return "the layer declares a plain sum over heads"
    return seen.several_heads(layer)


def _visible_clip(layer: AttentionLayer) -> bool | str:
    if layer.activation != "clip":
        return "the inputs of this layer are not clipped ones"
    if layer.clip <= _CLIPPED_AT * layer.hidden_std:
        return "the layer declares a smaller bound"
    return seen.small_width(layer)


def _std(matrix: str, percent: int) -> Fault:
    factor = 1 + percent / 100
    field = f"{matrix}_std"

    def changes(layer: AttentionLayer) -> dict[str, Any]:
        """Change the field, and with one matrix for two of them both."""
        one = ("query_std", "key_std")
        fields = one if layer.tied_query_key and field in one else (field,)
        return {name: factor * getattr(layer, name) for name in fields}

    return Fault(
        name=f"{field}_{percent}",
        what=f"the standard deviation of {_MATRICES[matrix]} is {percent}% too large",
        visible=seen.everywhere,
        subject=Misread(changes),
    )


FAULTS = (
    Fault(
        "scores_over_n",
        "scores are divided by n where √n is declared",
        _visible_scaling,
        Misread(lambda layer: {"score_scaling": "1/n"}),
    ),
    Fault(
        "scores_over_root_s",
        "scores are divided by √s, s the number of positions, where √n is declared",
        _visible_positions_scaling,
        Misread(_over_root_s),
    ),
    Fault(
        "missing_head_scaling",
        "the sum over heads is not multiplied by H^{-1/2}",
        _visible_head_scaling,
        Misread(lambda layer: {"head_scaling": False}),
    ),
    *(_std(matrix, percent) for matrix in _MATRICES for percent in (2, 5, 10)),
    Fault(
        "fresh_group_keys",
        "heads that should share W_K and W_V in groups draw their own",
        seen.shared_groups,
        Misread(lambda layer: {"num_kv_heads": None}),
    ),
    Fault(
        "clipped_inputs",
        f"the inputs are clipped at {_CLIPPED_AT:g} standard deviations",
        _visible_clip,
        Misread(lambda layer: {"clip": _CLIPPED_AT * layer.hidden_std}),
    ),
)
