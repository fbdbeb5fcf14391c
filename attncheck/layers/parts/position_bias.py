"""Biases of the scores by position: ALiBi's slopes, and T5's random table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck._lib.errors import check_number, refuse
from attncheck.layers.parts.part import LayerPart, Misreading

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer

#: The slopes of Press, Smith and Lewis (2022), 2^{-8h/H} for head h = 1, …, H.
ALIBI = "alibi"
_LARGEST = 1e3
_REMEDY = "pass 'alibi', a number for each head, or None"


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Return ALiBi's published slopes, which combine two geometric sequences unless `heads` is a power of 2.

    Examples
    --------
    >>> alibi_slopes(4)
    (0.25, 0.0625, 0.015625, 0.00390625)
    >>> alibi_slopes(3)
    (0.0625, 0.00390625, 0.25)
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    between = [2.0 ** (-4.0 * h / power) for h in range(1, 2 * power + 1, 2)]
    return tuple((slopes + between)[:heads])


def slopes_of(layer: AttentionLayer) -> tuple[float, ...]:
    """Return the slope of each head; all are 0 if the layer has none."""
    if layer.bias_slopes is None:
        return (0.0,) * layer.num_heads
    return alibi_slopes(layer.num_heads) if isinstance(layer.bias_slopes, str) else layer.bias_slopes


class PositionBiasPart(LayerPart):
    """The fields `bias_slopes` and `bias_std`: scores are P_ij - slope |i - j| + b_{j-i}, b ~ N(0, bias_std²)."""

    fields: ClassVar[Mapping[str, Any]] = {"bias_slopes": None, "bias_std": 0.0}
    name: ClassVar[str] = "position bias"
    example: ClassVar[Mapping[str, Any]] = {"bias_slopes": (1.0, 0.25), "bias_std": 0.5}
    undeclared: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "ALiBi's slopes are subtracted from the scores, but not declared": {"bias_slopes": ALIBI}
    }
    misreadings: ClassVar[tuple[Misreading, ...]] = (
        Misreading(
            "ignored_slopes",
            "the slopes of the position bias are left out",
            lambda layer: {"bias_slopes": None},
            "exactness.score_off",
        ),
        Misreading(
            "rising_slopes",
            "the slopes of the position bias have the wrong sign: distant positions are favoured",
            lambda layer: {"bias_slopes": tuple(-slope for slope in slopes_of(layer))},
            "exactness.score_off",
        ),
        Misreading(
            "ignored_bias_table",
            "the random position bias is left out",
            lambda layer: {"bias_std": 0.0},
            "scores.scale",
        ),
    )
    refusals: ClassVar[Mapping[str, str]] = {
        "finite-width law": "has no computed law at finite width",
        "tangent kernel": "is not supported by the tangent kernel",
        "long sequences": "changes the law of the scores",
        "stack": "is not supported in a stack",
        "law of one head": "differs between heads",
        "homogeneous scores": "adds numbers to scores",
    }

    def settle(self, layer: AttentionLayer) -> Mapping[str, Any]:
        """Return the validated `bias_slopes` and `bias_std`."""
        remedy = f"pass the standard deviation of each bias, from 0 to {_LARGEST:g}"
        std = check_number("bias_std", layer.bias_std, remedy, minimum=0.0, maximum=_LARGEST)
        slopes = layer.bias_slopes
        if slopes is not None and not (isinstance(slopes, str) and slopes == ALIBI):
            listed = isinstance(slopes, list | tuple | np.ndarray)
            if not listed or any(isinstance(slope, list | tuple | np.ndarray) for slope in slopes):
                refuse("bias_slopes", slopes, "is not known", _REMEDY)
            if len(slopes) != layer.num_heads:
                refuse("bias_slopes", slopes, f"are {len(slopes)} slopes for num_heads={layer.num_heads}", _REMEDY)
            slopes = tuple(
                check_number("bias_slopes", slope, _REMEDY, minimum=-_LARGEST, maximum=_LARGEST) for slope in slopes
            )
        if layer.softcap is not None and (slopes is not None or std):
            refuse("softcap", layer.softcap, "is not supported with a position bias", "leave out one of them")
        return {"bias_slopes": slopes, "bias_std": std}

    def describe(self, fields: Mapping[str, Any]) -> str:
        """Return the part with these field values as text."""
        slopes = fields.get("bias_slopes")
        if slopes is None:
            return "random bias by distance"
        if isinstance(slopes, str):
            return "ALiBi"
        distinct = list(dict.fromkeys(f"{slope:.3g}" for slope in slopes))
        return f"{'slopes' if len(distinct) > 1 else 'slope'} {', '.join(distinct)}"

    def unread(self, layer: AttentionLayer) -> Mapping[str, float]:
        """Return `bias_std`, the standard deviation of the table of random biases, for the role "weights"."""
        return {"weights": layer.bias_std} if layer.bias_std else {}

    def of_head(self, layer: AttentionLayer, head: int) -> Mapping[str, Any]:
        """Return the slope of the given head."""
        return {} if layer.bias_slopes is None else {"bias_slopes": (slopes_of(layer)[head],)}

    def shows(self, layer: AttentionLayer, variant: AttentionLayer) -> bool:
        """Return whether biases differ by more than a tenth of a score's standard deviation at this width."""
        spread = 0.1 * layer.query_std * layer.key_std * layer.score_factor * layer.input_scale**2
        slopes = np.abs(np.subtract(slopes_of(layer), slopes_of(variant))).max() * (layer.seq_len - 1)
        return max(slopes, abs(layer.bias_std - variant.bias_std)) > spread and layer.seq_len > 1

    def values(self, layer: AttentionLayer) -> Sequence[Mapping[str, Any]]:
        """Return field values for random layers."""
        if layer.softcap is not None:
            return []
        return [{"bias_slopes": "alibi"}, {"bias_slopes": (0.5,) * layer.num_heads}, {"bias_std": 0.5}]


def mean_offset(layer: AttentionLayer) -> FloatArray:
    """Return the mean bias of each score, (num_heads, seq_len, seq_len); without slopes, a 0 of shape (1, 1, 1)."""
    if layer.bias_slopes is None:
        return np.zeros((1, 1, 1))
    return np.asarray(-np.array(slopes_of(layer))[:, None, None] * np.abs(steps(layer)))


def steps(layer: AttentionLayer) -> IntArray:
    """Return j - i, (seq_len, seq_len); scores with equal steps have the same random bias."""
    positions = np.arange(layer.seq_len)
    return np.asarray(positions - positions[:, None])
