"""Fields of a layer that a subject does not read although they change the layer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.text import listed
from attncheck.layers.attention import AttentionLayer
from attncheck.subject import Subject

_FIELDS = {field.name: field.default for field in dataclasses.fields(AttentionLayer)}
# Attributes that give access to all fields at once; `vars` and `pickle` read them.
_ALL_FIELDS = {"__dict__", "__getstate__", "__reduce__", "__reduce_ex__"}
# Cached properties of a layer. A watched layer computes them each time, so that the fields that they need are read.
_CACHED = {
    name: attribute.func
    for name, attribute in vars(AttentionLayer).items()
    if isinstance(attribute, functools.cached_property)
}
# Fields of the law of the inputs. A subject need not read them if attncheck draws its inputs.
_OF_INPUTS = {"seq_len", "activation", "clip", "input_std", "input_correlation", "position_std", "position_reach"}
# Number of draws of a call, as in a probe; maximum number of fields in a message; maximum length of a displayed value.
_DRAWS, _NAMED, _MOST_FIELDS = 4, 4, 20


class _WatchedLayer(AttentionLayer):
    """A layer that records which of its fields are read; comparing, hashing or copying it reads all of them."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return AttentionLayer
        if name in _CACHED:
            return _CACHED[name](self)
        noted: set[str] = object.__getattribute__(self, "__dict__").setdefault("_noted", set())
        noted.update(_FIELDS if name in _ALL_FIELDS else {name})
        return super().__getattribute__(name)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return AttentionLayer.from_dict, (self.to_dict(), None)


def unused_fields(subject: Subject, layer: AttentionLayer, rng: np.random.Generator) -> set[str]:
    """Return the names of the fields that have an effect on a layer but that a subject does not read to draw from it.

    Fields that the subject's `supports` reads count as read. The set is empty for a module of one layer, and for a
    function that draws its inputs without reading their width, because both are written for one layer.

    Examples
    --------
    >>> def plain(layer, size, rng):
    ...     return {"outputs": rng.standard_normal((size, layer.seq_len, layer.width))}
    >>> layer = AttentionLayer(width=8, seq_len=3, mask="causal", head_dim=8)
    >>> unused_fields(Subject.of(plain), layer, np.random.default_rng(0))
    {'mask'}
    """
    if subject.layers:
        return set()
    watched = _WatchedLayer(**{name: getattr(layer, name) for name in _FIELDS})
    fields = object.__getattribute__(watched, "__dict__")
    noted = fields["_noted"] = set[str]()
    spied = dataclasses.replace(
        subject,
        call=lambda _, *arguments: subject.call(watched, *arguments),
        supports=lambda _: subject.supports(watched),
    )
    try:
        spied.reason_unsupported(layer)
        spied.draw(layer, _DRAWS, rng)
    finally:  # stop watching the layer, because the subject may retain it
        del fields["_noted"]
        vars(object)["__class__"].__set__(watched, AttentionLayer)
    if subject.form == "size" and "width" not in noted:
        return set()
    return set(_set_by(layer)) - noted - (_OF_INPUTS if subject.form == "inputs" else set())


def never_read(layers: Sequence[AttentionLayer], fields: Sequence[set[str]]) -> dict[str, Any]:
    """Return the fields that are not read on any layer that sets them, with their values on the first such layer.

    `fields` are the unread fields of each layer.

    Examples
    --------
    >>> plain = AttentionLayer(width=8)
    >>> never_read([plain.replace(mask="causal", window=2), plain.replace(window=2)], [{"mask", "window"}, set()])
    {'mask': 'causal'}
    """
    values: dict[str, Any] = {}
    for layer in reversed(layers):
        values |= _set_by(layer)
    read = {name for layer, names in zip(layers, fields, strict=True) for name in _set_by(layer) if name not in names}
    return {name: value for name, value in values.items() if name not in read}


def unused_text(values: Mapping[str, Any]) -> str:
    """Return a sentence on unread fields.

    Examples
    --------
    >>> unused_text({"mask": "causal"})
    "in a repeated call, the subject did not read mask (here 'causal')"
    """
    fields = [f"{name} (here {v!r})" if len(repr(v)) <= _MOST_FIELDS else name for name, v in values.items()]
    more = [f"{len(fields) - _NAMED} other fields"] if len(fields) > _NAMED else []
    return f"in a repeated call, the subject did not read {listed([*fields[:_NAMED], *more])}"


def _set_by(layer: AttentionLayer) -> Mapping[str, Any]:
    """Return the fields of a layer that are not at their defaults and have an effect, with their serialised values."""
    idle = set(_idle(layer))
    return {name: value for name, value in layer.to_dict().items() if name not in idle and value != _FIELDS[name]}


def _idle(layer: AttentionLayer) -> Iterator[str]:
    """Yield the fields that need not be read, and those that have no effect because of other fields."""
    yield from ("width", "seq_len")  # if not read, outputs have a wrong shape and are refused
    if layer.num_heads == 1:
        yield from ("num_heads", "head_scaling")
    if layer.tied_query_key:
        yield from ("key_std", "score_scaling")
    if layer.norm:
        yield "input_std"
    if layer.seq_len == 1:
        yield from ("mask", "window", "rotary_base", "bias_slopes", "bias_std", "qk_norm", "input_correlation")
    if layer.window is not None and layer.window >= layer.seq_len:
        yield "window"
    if layer.head_dim == layer.width:
        yield "head_dim"
    if layer.kv_heads == layer.num_heads:
        yield "num_kv_heads"
