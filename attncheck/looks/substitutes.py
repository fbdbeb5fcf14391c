"""Layers that stand in for those that a subject does not support, so that what it does support is examined."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from attncheck._lib.errors import InputError
from attncheck.layers.attention import ATTENTION_MAPS, MASKS, AttentionLayer

# What every layer has to say; all other fields have defaults.
_SIZES = ("width", "seq_len", "num_heads")
# What a subject may ask for beside the sizes: heads of width/num_heads, a mask, and at most one of the others.
_OTHERS: tuple[dict[str, Any], ...] = (
    {},
    {"head_scaling": False},
    {"score_scaling": "1/n"},
    {"num_kv_heads": 1},
    *({"attention_map": name} for name in ATTENTION_MAPS if name != "softmax"),
)


def substitute(layer: AttentionLayer, supports: Callable[[AttentionLayer], bool]) -> AttentionLayer | None:
    """Return the layer with what `supports` refuses set to that of a plain layer, or None if no plain one is supported.

    The plain layer is the first that `supports` accepts: defaults but for the sizes; then heads of size
    width/num_heads, a causal mask, or both; then each of these with another scaling, grouped heads or another map.
    Fields are taken over one by one, in the order of `AttentionLayer`, and then once more those that need others.

    Parameters
    ----------
    layer : AttentionLayer
    supports : callable AttentionLayer -> bool

    Examples
    --------
    >>> grouped = AttentionLayer(width=16, num_heads=4, num_kv_heads=2, mask="causal")
    >>> print(substitute(grouped, lambda layer: layer.num_kv_heads is None).describe())
    n=16 s=4 H=4 causal
    >>> print(substitute(grouped, lambda layer: layer.head_dim is not None and layer.mask == "none").head_dim)
    4
    """
    found = next(filter(supports, _plain(layer)), None)
    if found is None:
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


def _plain(layer: AttentionLayer) -> Iterator[AttentionLayer]:
    """Yield layers of the same sizes that a subject may be written for, the plainest first."""
    sizes = {name: getattr(layer, name) for name in _SIZES}
    head_dims = (None, max(1, layer.width // layer.num_heads))
    for other, mask, head_dim in itertools.product(_OTHERS, MASKS, head_dims):
        yield AttentionLayer(**sizes, mask=mask, head_dim=head_dim, **other)


def _changed(layer: AttentionLayer, name: str, value: Any) -> AttentionLayer | None:
    """Return a layer with another value of a field, None where that is impossible."""
    try:
        return layer.replace(**{name: value})
    except InputError:
        return None
