"""Norms of queries and keys (Qwen3, OLMo 2): scores are cosines, times √ν."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_boolean, refuse
from attncheck.layers.norm import normalised
from attncheck.layers.parts.part import LayerPart, Misreading
from attncheck.layers.parts.rotary import rotated

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer


class QKNormPart(LayerPart):
    """The field `qk_norm`: an RMS norm per head of queries and keys, with gains `query_std` and `key_std`."""

    fields: ClassVar[Mapping[str, Any]] = {"qk_norm": False}
    name: ClassVar[str] = "QK norm"
    example: ClassVar[Mapping[str, Any]] = {"qk_norm": True, "head_dim": 4}
    undeclared: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "queries and keys are normalised, although no qk_norm is declared": {"qk_norm": True}
    }
    misreadings: ClassVar[tuple[Misreading, ...]] = (
        Misreading(
            "ignored_qk_norm",
            "queries and keys are not normalised",
            lambda layer: {"qk_norm": False},
            "exactness.score_energy",
        ),
    )
    refusals: ClassVar[Mapping[str, str]] = {
        "finite-width law": "makes scores that are not normal given the keys",
        "tangent kernel": "is not supported by the tangent kernel",
        "long sequences": "changes the law of the scores",
        "stack": "is not supported in a stack",
        "normal scores": "normalised queries and keys: scores are not normal given inputs and keys",
        "small scores": "makes scores independent of the size of the inputs",
    }
    whole_vectors: ClassVar[bool] = True

    def settle(self, layer: AttentionLayer) -> Mapping[str, Any]:
        """Return the validated `qk_norm`."""
        qk_norm = check_boolean("qk_norm", layer.qk_norm, "pass True for normalised queries and keys, or False")
        if layer.qk_norm and layer.head_width == 1:
            problem = "allows only two score values if heads have one neuron"
            refuse("qk_norm", True, problem, "pass head_dim=2 or more, or leave it out")
        if layer.qk_norm and layer.tied_query_key:
            refuse("qk_norm", True, "is not supported with tied_query_key", "leave out one of them")
        return {"qk_norm": qk_norm}

    def describe(self, fields: Mapping[str, Any]) -> str:
        """Return the part as text."""
        return self.name

    def shows(self, layer: AttentionLayer, variant: AttentionLayer) -> bool:
        """Return whether heads are so small that the lengths of queries and keys vary visibly."""
        return layer.head_width <= 16

    def unread(self, layer: AttentionLayer) -> Mapping[str, float]:
        """Return the standard deviation 1/√n of W_Q and W_K, which the norm hides from inspection."""
        return dict.fromkeys(("query", "key"), layer.width**-0.5) if layer.qk_norm else {}

    def values(self, layer: AttentionLayer) -> Sequence[Mapping[str, Any]]:
        """Return field values for random layers."""
        return [] if layer.tied_query_key or layer.head_width == 1 else [{"qk_norm": True}]


def score_kernel(layer: AttentionLayer, kernel: FloatArray) -> FloatArray:
    """Return the limiting kernel of queries and keys for query_std = key_std = 1, given the inputs' `kernel`."""
    if not layer.qk_norm:
        return kernel
    lengths = np.sqrt(np.diagonal(kernel))
    lengths = np.where(lengths > 0, lengths, 1.0)
    return np.asarray(kernel / lengths[:, None] / lengths)


def score_vectors(layer: AttentionLayer, vectors: FloatArray) -> FloatArray:
    """Return queries or keys, (..., seq_len, head_dim), in the form that enters scores: normalised, then rotated."""
    if layer.qk_norm:
        vectors = np.asarray((layer.query_std * layer.key_std) ** 0.5 * normalised("rms", vectors))
    return rotated(layer, vectors)
