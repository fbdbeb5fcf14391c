"""Layers that stand in for those that a subject does not support, so that what it does support is examined."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from attncheck.attention import AttentionLayer
from attncheck.errors import InputError

# What every layer has to say; all other fields have defaults.
_SIZES = ("width", "seq_len", "num_heads")


def stand_in(layer: AttentionLayer, supports: Callable[[AttentionLayer], bool]) -> AttentionLayer | None:
    """Return the layer with what `supports` refuses set to its default, or None if its sizes alone are refused.

    Fields are taken over one by one, in the order of `AttentionLayer`, and then once more those that need others.

    Parameters
    ----------
    layer : AttentionLayer
    supports : callable AttentionLayer -> bool

    Examples
    --------
    >>> grouped = AttentionLayer(width=16, num_heads=4, num_kv_heads=2, mask="causal")
    >>> print(stand_in(grouped, lambda layer: layer.num_kv_heads is None).describe())
    n=16 s=4 H=4 causal
    """
    found = AttentionLayer(**{name: getattr(layer, name) for name in _SIZES})
    if not supports(found):
        return None
    chosen = {
        field.name: getattr(layer, field.name)
        for field in dataclasses.fields(layer)
        if field.name not in _SIZES and getattr(layer, field.name) != field.default
    }
    for name, value in [*chosen.items(), *chosen.items()]:
        changed = _changed(found, name, value)
        if changed is not None and supports(changed):
            found = changed
    return found


def _changed(layer: AttentionLayer, name: str, value: Any) -> AttentionLayer | None:
    """Return a layer with another value of a field, None where that is impossible."""
    try:
        return layer.replace(**{name: value})
    except InputError:
        return None
