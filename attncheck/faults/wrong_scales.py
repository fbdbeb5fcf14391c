"""Faults that simulate another layer than the declared one, with wrong scales, widths or laws."""

from __future__ import annotations

from typing import Any

from attncheck.faults.fault import Fault, MisreadLayer, with_changed_fields
from attncheck.layers import requirements as need
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.requirement import ANY
from attncheck.layers.requirements import OfLayer

_MATRICES = {"query": "W_Q", "key": "W_K", "value": "W_V", "output": "W_O"}
# Clipping bound of inputs, in standard deviations.
_CLIPPED_AT = 4.0


_ROOT_S = OfLayer("W_Q other than W_K", lambda layer: not layer.tied_query_key, "the layer declares 1/n") & OfLayer(
    "√s other than √n", lambda layer: layer.seq_len != layer.head_width, "√s is √n in this layer"
)
_CLIPPED = (
    OfLayer("clipped inputs", lambda layer: layer.activation == "clip", "this layer does not declare clipped inputs")
    & OfLayer(
        "a larger bound",
        lambda layer: layer.clip > _CLIPPED_AT * layer.hidden_std,
        "the layer declares a smaller bound",
    )
    & need.SMALL_HEADS
)


def _std(matrix: str, percent: int) -> Fault:
    factor = 1 + percent / 100
    field = f"{matrix}_std"

    def changes(layer: AttentionLayer) -> dict[str, Any]:
        """Return the field with a wrong value; if W_Q and W_K are tied, the standard deviations of both matrices."""
        one = ("query_std", "key_std")
        fields = one if layer.tied_query_key and field in one else (field,)
        return {name: factor * getattr(layer, name) for name in fields}

    description = f"the standard deviation of {_MATRICES[matrix]} is {percent}% too large"
    return Fault(f"{field}_{percent}", description, ANY, MisreadLayer(changes))


FAULTS: list[Fault] = []


@with_changed_fields(FAULTS, "scores are divided by n where √n is declared", need.OVER_ROOT_N & need.TWO_SCALINGS)
def _scores_over_n(layer: AttentionLayer) -> dict[str, Any]:
    return {"score_scaling": "1/n"}


@with_changed_fields(FAULTS, "scores are divided by √s, s the number of positions, where √n is declared", _ROOT_S)
def _scores_over_root_s(layer: AttentionLayer) -> dict[str, Any]:
    if layer.tied_query_key:
        return {}
    return {"query_std": layer.query_std * (layer.head_width / layer.seq_len) ** 0.5}


@with_changed_fields(FAULTS, "the sum over heads is not multiplied by H^{-1/2}", need.HEAD_SCALING & need.SEVERAL_HEADS)
def _missing_head_scaling(layer: AttentionLayer) -> dict[str, Any]:
    return {"head_scaling": False}


FAULTS.extend(_std(matrix, percent) for matrix in _MATRICES for percent in (2, 5, 10))


@with_changed_fields(FAULTS, "heads that should share W_K and W_V in groups draw their own", need.SHARED_GROUPS)
def _fresh_group_keys(layer: AttentionLayer) -> dict[str, Any]:
    return {"num_kv_heads": None}


@with_changed_fields(FAULTS, f"the inputs are clipped at {_CLIPPED_AT:g} standard deviations", _CLIPPED)
def _clipped_inputs(layer: AttentionLayer) -> dict[str, Any]:
    return {"clip": _CLIPPED_AT * layer.hidden_std}
