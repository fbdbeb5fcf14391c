"""Substitutes for layers that a subject does not support."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from attncheck._lib.errors import InputError
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts.attention_map import ATTENTION_MAPS
from attncheck.layers.parts.mask import MASKS

# Fields that have no default value.
_SIZES = ("width", "seq_len", "num_heads")
# Other options that a subject may require, at most one at a time.
_OTHERS: tuple[dict[str, Any], ...] = (
    {},
    {"head_scaling": False},
    {"score_scaling": "1/n"},
    {"num_kv_heads": 1},
    *({"attention_map": name} for name in ATTENTION_MAPS if name != "softmax"),
)


def substitute(layer: AttentionLayer, supports: Callable[[AttentionLayer], bool]) -> AttentionLayer | None:
    """Return a supported layer close to `layer`, or None if the subject supports no plain layer.

    Start from the first supported layer of `_plain`, then copy the supported fields of `layer` one by one, in two
    passes because some fields need others.

    Examples
    --------
    >>> grouped = AttentionLayer(width=16, num_heads=4, num_kv_heads=2, mask="causal")
    >>> print(substitute(grouped, lambda layer: layer.num_kv_heads is None).describe())
    n=16 s=4 H=4 causal
    >>> print(substitute(grouped, lambda layer: layer.head_dim is not None and layer.mask == "none").head_dim)
    4
    """
    candidate = next(filter(supports, _plain(layer)), None)
    if candidate is None:
        return None
    chosen = {
        field.name: getattr(layer, field.name)
        for field in dataclasses.fields(layer)
        if field.name not in _SIZES and getattr(layer, field.name) != field.default
    }
    for name, value in [*chosen.items(), *chosen.items()]:
        changed = _changed(candidate, name, value)
        if changed is not None and supports(changed):
            candidate = changed
    return candidate


def _plain(layer: AttentionLayer) -> Iterator[AttentionLayer]:
    """Yield plain layers of the same sizes, plainest first, then some with one head."""
    for heads in dict.fromkeys((layer.num_heads, 1)):
        sizes: dict[str, Any] = {"width": layer.width, "seq_len": layer.seq_len, "num_heads": heads}
        head_dims = (None, max(1, layer.width // heads))
        for fields, mask, head_dim in itertools.product(_OTHERS, MASKS, head_dims):
            yield AttentionLayer(**sizes, mask=mask, head_dim=head_dim, **fields)


def _changed(layer: AttentionLayer, name: str, value: Any) -> AttentionLayer | None:
    """Return a layer with another value of a field, or None if that is invalid."""
    try:
        return layer.replace(**{name: value})
    except InputError:
        return None
