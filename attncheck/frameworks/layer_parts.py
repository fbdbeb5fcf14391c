"""Optional parts of an inspected layer, as fields of `AttentionLayer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.frameworks.forward import BY_HEAD, Formula
from attncheck.frameworks.weights_notes import by_distance
from attncheck.layers.parts.mask import MASKS
from attncheck.layers.parts.position_bias import ALIBI, alibi_slopes

# Relative tolerance within which the sinks of all heads are the same number.
_TOLERANCE = 1e-3
# Relative tolerance within which normalised vectors have the same length, and biases or slopes of heads are the same.
_STEADY = 0.02


def parts_of(formula: Formula) -> tuple[dict[str, Any], str]:
    """Return the `AttentionLayer` fields for a formula's optional parts, and a description of a part without a field.

    Examples
    --------
    >>> parts_of(Formula(cap=50.0, sinks=(0.5, 0.5)))
    ({'softcap': 50.0, 'sink': 0.5}, '')
    >>> parts_of(Formula(sinks=(0.5, -0.5)))
    ({'sink': (0.5, -0.5)}, '')
    """
    fields: dict[str, Any] = {}
    remaining = ""
    if formula.cap is not None:
        fields["softcap"] = float(f"{formula.cap:.4g}")  # fitted
    if formula.sinks:
        same = np.ptp(formula.sinks) <= _TOLERANCE * max(1.0, float(np.abs(formula.sinks).max()))
        sinks = tuple(round(float(sink), 4) or 0.0 for sink in formula.sinks)
        fields["sink"] = round(float(np.mean(sinks)), 4) or 0.0 if same else sinks
    if formula.bias is not None:
        bias = _of_bias(formula.bias)
        fields |= bias
        remaining = remaining if bias else "a bias of scores that is neither by slopes nor a random table"
    if formula.factors:
        remaining = BY_HEAD
    if formula.fill is not None:
        remaining = "hidden scores that are numbers"
    return fields, remaining


def mask_fields(mask: str) -> dict[str, Any]:
    """Return the fields of `AttentionLayer` for the name of a mask; empty if no field describes it.

    Examples
    --------
    >>> mask_fields("window of 4"), mask_fields("anticausal")
    ({'mask': 'causal', 'window': 4}, {})
    """
    kind, _, size = mask.partition(" of ")
    if kind in ("window", "two-sided window"):
        return {"mask": "causal" if kind == "window" else "none", "window": int(size)}
    return {"mask": mask} if mask in MASKS else {}


def _of_bias(bias: FloatArray) -> dict[str, Any]:
    """Return the fields of `AttentionLayer` for a bias of scores; empty if no field describes it.

    The bias, (heads, positions, positions), is known up to a constant per row. The standard deviation of a random bias
    is estimated from the entries of all heads.
    """
    slopes, tables, _ = by_distance(bias)
    if slopes:
        bias_slopes = tuple(-slope for slope in slopes)
        is_alibi = np.allclose(bias_slopes, alibi_slopes(len(bias_slopes)), rtol=_STEADY)
        return {"bias_slopes": ALIBI if is_alibi else bias_slopes}
    if not tables:
        return {}
    # The table of each head is known up to a constant.
    centred = np.array([table - table.mean() for table in tables])
    if len(centred) > 1 and np.ptp(centred, axis=0).max() <= _STEADY * np.abs(centred).max():
        return {}  # not random, as all heads have the same bias
    return {"bias_std": float(np.sqrt((centred**2).sum() / (centred.size - len(centred))))}


def norm_fields(vectors: Mapping[str, FloatArray]) -> dict[str, Any]:
    """Return the fields of `AttentionLayer` for normalised queries and keys; empty if their lengths vary.

    `vectors` maps "query" and "key" to arrays (batch, heads, positions, d).
    """
    sizes = {role: np.sqrt(np.mean(vectors[role] ** 2, axis=-1)) for role in ("query", "key")}
    if any(np.ptp(norms) > _STEADY * norms.max() for norms in sizes.values()):
        return {}
    return {"qk_norm": True} | {f"{role}_std": float(f"{norms.mean():.6g}") for role, norms in sizes.items()}
