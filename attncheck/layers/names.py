"""Short names of layers and programs, and constructor calls of layers."""

from __future__ import annotations

import dataclasses
from typing import Any

from attncheck._lib.errors import InputError
from attncheck._lib.text import counted
from attncheck.layers.attention import AttentionLayer


def layer_name(layer: dict[str, Any]) -> str:
    """Return the short name of a serialised layer, program or pool; for anything else, list its fields."""
    if "program" in layer:
        return _program_name(layer)
    if "pool" in layer:
        return f"{counted(len(layer['of']), 'case')} together, pool {layer['pool']}"
    try:
        return AttentionLayer.from_dict(layer, trust=None).describe()
    except (InputError, TypeError):
        return " ".join(f"{name}={value}" for name, value in sorted(layer.items()))


def layer_call(layer: AttentionLayer) -> str:
    """Return the Python expression that constructs a layer.

    Examples
    --------
    >>> layer_call(AttentionLayer(width=8, mask="causal"))
    "attncheck.AttentionLayer(width=8, mask='causal')"
    """
    fields = ((field.name, getattr(layer, field.name), field.default) for field in dataclasses.fields(layer))
    changed = (f"{name}={value!r}" for name, value, default in fields if value != default)
    return f"attncheck.AttentionLayer({', '.join(changed)})"


def _program_name(case: dict[str, Any]) -> str:
    """Return the short name of a serialised program, without importing its functions."""
    try:
        rows = case["program"]["lines"]
        lines = sum(len(row.get("initial", [row])) for row in rows)
        scores = sum("score" in row for row in rows)
        widths = ",".join(str(width) for width in case["widths"])
    except (KeyError, TypeError, AttributeError):
        return "a program that this version does not know"
    return f"n={widths} program of {counted(lines, 'line')}, {counted(scores, 'score')}"
