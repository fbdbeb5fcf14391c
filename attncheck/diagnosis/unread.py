"""Fields of a layer that a subject never reads although they change the layer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.text import listed
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.inputs import InputLaw
from attncheck.subject import Subject

_FIELDS = {field.name: field.default for field in dataclasses.fields(AttentionLayer)}
# Attributes that hold all fields at once, as `vars` and `pickle` read them.
_WHOLE = {"__dict__", "__getstate__", "__reduce__", "__reduce_ex__"}
# Properties that a layer computes once; a watched layer computes them each time, which reads their fields.
_CACHED = {
    name: each.func for name, each in vars(AttentionLayer).items() if isinstance(each, functools.cached_property)
}
# Fields that a subject need not read if it receives its inputs, as they only determine the inputs and their shape.
_OF_INPUTS = {"width", "seq_len", *(field.name for field in dataclasses.fields(InputLaw))} - {"norm"}


class _WatchedLayer(AttentionLayer):
    """A layer that notes which of its fields are read. Comparing or hashing it reads all of them."""

    def __getattribute__(self, name: str) -> Any:
        if name in _CACHED:
            return _CACHED[name](self)
        noted: set[str] = object.__getattribute__(self, "__dict__").setdefault("_noted", set())
        noted.update(_FIELDS if name in _WHOLE else {name})
        return super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        return AttentionLayer(**_fields_of(self)) == other

    __hash__ = AttentionLayer.__hash__


def unread(subject: Subject, layer: AttentionLayer, rng: np.random.Generator) -> Mapping[str, Any]:
    """Return the fields, with their values, that change a layer but that a subject does not read to draw from it.

    Fields read by a subject's `supports` count as read.

    Examples
    --------
    >>> def plain(layer, size, rng):
    ...     return {"outputs": rng.standard_normal((size, layer.seq_len, layer.width))}
    >>> layer = AttentionLayer(width=8, seq_len=3, mask="causal", head_dim=8)
    >>> unread(Subject.of(plain), layer, np.random.default_rng(0))
    {'mask': 'causal'}
    """
    if subject.layers:
        return {}
    watched = _WatchedLayer(**_fields_of(layer))
    noted: set[str] = vars(watched)["_noted"]
    noted.clear()
    spied = dataclasses.replace(
        subject,
        call=lambda _, *arguments: subject.call(watched, *arguments),
        supports=lambda _: subject.supports(watched),
    )
    spied.reason_unsupported(layer)
    spied.draw(layer, 1, rng)
    without = {"head_dim": layer.width, "num_kv_heads": layer.num_heads, "window": layer.seq_len}
    ignored = noted | (_OF_INPUTS if subject.form == "inputs" else set())
    return {
        name: value
        for name, value in layer.to_dict().items()
        if name not in ignored and value not in (_FIELDS[name], without.get(name))
    }


def unread_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on the fields of several layers that a subject never reads, with the first values.

    Examples
    --------
    >>> unread_text([{"mask": "causal"}, {}, {"mask": "causal", "num_kv_heads": 2}])
    "the subject never reads mask (here 'causal') and num_kv_heads (here 2)"
    """
    values = {name: value for each in reversed(found) for name, value in each.items()}
    names = listed(f"{name} (here {values[name]!r})" for name in _FIELDS if name in values)
    return f"the subject never reads {names}"


def _fields_of(layer: AttentionLayer) -> dict[str, Any]:
    return {name: getattr(layer, name) for name in _FIELDS}
