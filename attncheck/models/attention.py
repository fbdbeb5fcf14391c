"""Detection of the attention modules of a model, grouped by class, shape and formula."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError
from attncheck._lib.names import grouped, name_of, names_of, pattern_of
from attncheck._lib.text import listed
from attncheck.frameworks.adapter import Adapter
from attncheck.frameworks.forward import Forward
from attncheck.frameworks.notes import ASKS, Note, asks, wrong
from attncheck.frameworks.result import Inspection
from attncheck.frameworks.trace import CoreTrace, ScoresTrace
from attncheck.models.replay import HiddenStates, ModuleCall

# Number of positions used to detect attention in modules that accept any number.
_ENOUGH = 64
# Vectors are parallel if the absolute value of their cosine is at least 1 minus this.
_SAME = 1e-6
# Smallest change of outputs at other positions, relative to the largest output, that is not rounding.
_CHANGED = 1e-5
#: Why modules that mix positions are not inspected.
WITHOUT_SOFTMAX = "positions are mixed without a softmax, as in linear attention, a state-space layer or a convolution"
_CHANGED_WEIGHTS = (
    "a softmax is found, but not products of queries and keys before it and of weights and values after it, as in "
    "differential or chunked attention"
)
_MORE_KEYS = (
    "a softmax has {} keys for {} positions, whose scores are not one product of queries and keys: learned keys?"
)
_DIGITS = re.compile(r"[\d.e+-]+")
# Properties in which modules of several layers are compared.
_COMPARED = ("mask", "map", "scale", "positions", "optional_parts")


@dataclasses.dataclass(frozen=True)
class AttentionModules:
    """Attention modules of a model with the same class, shape and formula.

    Attributes
    ----------
    names : tuple of str
    kind : str
        Class of the modules.
    source : str
        In cross-attention, the name of the argument from which keys and values are computed.
    inspection : Inspection
        Inspection of the first module.
    """

    names: tuple[str, ...]
    kind: str
    source: str
    inspection: Inspection

    @property
    def title(self) -> str:
        """Names as text, such as "h.*.attn (12)"."""
        return names_of(self.names)


def attention_calls(calls: Sequence[ModuleCall], replayed: Callable[[ModuleCall], Adapter]) -> list[ModuleCall]:
    """Return one call of each innermost module in which attention runs.

    `replayed` returns the adapter that repeats a call.
    """
    outer: set[int] = set()
    innermost: dict[str, ModuleCall] = {}
    for i in reversed(range(len(calls))):  # in reverse, calls of inner modules come before that of the outer module
        call: ModuleCall | None = calls[i]
        if i not in outer and calls[i].name not in innermost:
            call = _attending(calls[i], replayed)
            if call is None:
                continue
            innermost[call.name] = call
        above = calls[i].parent
        while above is not None and calls[i].name in innermost:
            outer.add(above)
            above = calls[above].parent
    return list(reversed(innermost.values()))


def _attending(call: ModuleCall, replayed: Callable[[ModuleCall], Adapter]) -> ModuleCall | None:
    """Return the call if attention runs in it, else None.

    In cross-attention, the returned call takes new hidden states as the source of keys and values, too.
    """
    if call.given is None or call.given.long:
        return None
    keys, crossed = _keys(replayed(call), call.given), call.given.crossed
    if crossed is not None and not crossed.long and (keys is None or np.array_equal(*keys)):
        cross_call = dataclasses.replace(call, given=crossed)
        # In JAX, attention is traced only if values in the module depend on the inputs, so the call is repeated with
        # new hidden states as the source.
        return None if _keys(replayed(cross_call), crossed) is None else cross_call
    return None if keys is None else call


def mixing_calls(
    calls: Sequence[ModuleCall], attention: Sequence[ModuleCall], replayed: Callable[[ModuleCall], Adapter]
) -> dict[str, tuple[ModuleCall, str]]:
    """Return the calls of innermost modules that mix positions without attention.

    The mapping is by module name; each value is a call and the reason why it is not inspected as attention.
    """
    mixing: dict[str, tuple[ModuleCall, str]] = {}
    for call in reversed(calls):
        inside = [*(module.name for module in attention), *mixing]
        related = any(_related(call.name, name) for name in inside)
        if call.name and not related and call.given is not None and not call.given.long:
            how = _mixing(replayed(call), call.given)
            mixing |= {call.name: (call, how)} if how else {}
    return dict(reversed(mixing.items()))


def unread_calls(
    calls: Sequence[ModuleCall], examined: Sequence[str], replayed: Callable[[ModuleCall], Adapter]
) -> dict[str, tuple[ModuleCall, str]]:
    """Return the calls that compute attention, but neither contain an examined module nor run in one.

    The mapping is by module name; each value is a call and the reason why its attention is not inspected.
    """
    return {
        call.name: (call, _obstacle(call, replayed))
        for call in calls
        if call.attends and not any(_related(call.name, name) for name in examined)
    }


def _related(one: str, two: str) -> bool:
    """Return whether one of two modules is the other one, or contains it."""
    return f"{one}.".startswith(f"{two}.") or f"{two}.".startswith(f"{one}.")


def _obstacle(call: ModuleCall, replayed: Callable[[ModuleCall], Adapter]) -> str:
    """Return the reason why the attention of a call is not inspected."""
    if call.given is None:
        return "no argument of its call is an array of hidden states, (batch, positions, width)"
    if call.given.long:
        return "its inputs are too long"
    adapter, length = replayed(call), call.given.lengths[0]
    try:
        adapter.outputs(adapter.fresh(0), np.ones((2, length, call.given.width)), CoreTrace(), adapter.paths[0])
    except InputError as error:
        return str(error).partition("; ")[0]
    return "a call on other hidden states shows no queries and keys that depend on them"


def _mixing(adapter: Adapter, hidden: HiddenStates) -> str:
    """Return a text on how a module mixes positions; empty if it does not mix them, or has no matrix."""
    if not any(array.ndim == 2 for array in adapter.initialised(0).values()):
        return ""
    state, length = adapter.fresh(0), hidden.lengths[-1 if hidden.lengths[-1] <= _ENOUGH else 0]
    x = np.round(np.random.default_rng(0).standard_normal((2, length, hidden.width)) * 64) / 64
    changed, trace = x.copy(), ScoresTrace()
    changed[:, 0] *= -1.0
    try:
        y, y_changed = (adapter.outputs(state, array, trace, adapter.paths[0]) for array in (x, changed))
    except InputError:
        return ""
    if y.shape[:2] != x.shape[:2] or not np.abs(y_changed - y)[:, 1:].max(initial=0.0) > _CHANGED * np.abs(y).max():
        return ""
    if not trace.scores:
        return WITHOUT_SOFTMAX
    keys = max(scores.shape[axis] for scores, axis in trace.scores)
    return _MORE_KEYS.format(keys, length) if keys > length else _CHANGED_WEIGHTS


def _keys(adapter: Adapter, hidden: HiddenStates) -> tuple[FloatArray, FloatArray] | None:
    """Return the keys for two random inputs, or None if the module has no projections or no attention."""
    if not any(array.ndim > 1 for array in adapter.initialised(0).values()):
        return None
    state, rng, keys = adapter.fresh(0), np.random.default_rng(0), list[FloatArray]()
    length = min(hidden.lengths[-1], _ENOUGH) if len(hidden.lengths) > 1 else hidden.lengths[0]
    for _ in range(2):
        # Multiples of 1/64 are exact in every precision.
        x = np.round(rng.standard_normal((2, length, hidden.width)) * 64) / 64
        trace = CoreTrace()
        try:
            adapter.outputs(state, x, trace, adapter.paths[0])
        except InputError:
            return None
        if not trace.cores or _is_external(trace.cores[0].query, x):
            return None
        keys.append(trace.cores[0].key)
    return keys[0], keys[1]


def _is_external(query: FloatArray, x: FloatArray) -> bool:
    """Return whether a query is proportional to part of the inputs, so that it was computed outside the module.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((2, 3, 8))
    >>> _is_external(x[:, :, :4] / 2, x), _is_external(x @ np.ones((8, 4)), x)
    (True, False)
    """
    one = query.reshape(-1, query.shape[-1])[0]
    size = one.size
    if size == 1 or not np.isfinite(one).all() or not one.any():
        return False
    parts = x[..., : x.shape[-1] // size * size].reshape(-1, size)
    lengths = np.linalg.norm(parts, axis=1) * np.linalg.norm(one)
    return bool(np.any(np.abs(parts @ one) >= (1 - _SAME) * lengths))


def grouped_modules(calls: Sequence[ModuleCall], inspections: Mapping[str, Inspection]) -> tuple[AttentionModules, ...]:
    """Group modules with equal class, shape and formula whose names differ only in numbers."""

    def key(call: ModuleCall) -> tuple[Any, ...]:
        return pattern_of(call.name), call.kind, call.source, _form(inspections[call.name])

    return tuple(
        AttentionModules(tuple(call.name for call in group), kind, source, inspections[group[0].name])
        for (_, kind, source, _), group in grouped(calls, key).items()
    )


def _compared(forward: Forward, field: str) -> str:
    """Return a property as text, without the values of sinks, which may be random parameters of each layer."""
    values = dict(forward.parts)
    if field != "optional_parts" or "sink" not in values:
        return str(getattr(forward, field))
    rest = tuple((name, value) for name, value in forward.parts if name != "sink")
    others = dataclasses.replace(forward, parts=rest).optional_parts
    return "sinks" if others == "none" else f"sinks, {others}"


def _form(layer: Inspection) -> tuple[Any, ...]:
    """Return what modules of a group have in common: shape, formula, and notes on errors and undeclared choices."""
    forward = layer.forward
    shape = (layer.width, layer.num_heads, layer.kv_heads, layer.head_dim, layer.value_dim, layer.extra)
    formula = tuple(_compared(forward, field) for field in _COMPARED)
    asked = tuple(_DIGITS.sub("", note.text) for note in layer.notes if note.level == ASKS)  # without estimates
    return (*shape, *formula, forward.rotary_base, forward.biased, forward.known, layer.blamed, asked)


def differences(groups: Sequence[AttentionModules]) -> Iterator[Note]:
    """Report differences between modules whose names differ only in numbers."""
    for members in grouped(groups, lambda group: pattern_of(group.names[0])).values():
        every = [name for group in members for name in group.names]
        majority = max(members, key=lambda group: len(group.names))
        for group in members:
            first, second = group.inspection.forward, majority.inspection.forward
            fields = [field for field in _COMPARED if _compared(first, field) != _compared(second, field)]
            # A difference is not reported if both groups have errors, or if one formula does not reproduce the weights.
            unclear = (group.inspection.blamed and majority.inspection.blamed) or not (first.known and second.known)
            if fields and not unclear:
                # If later positions are visible in one layer, outputs of a causal model depend on them: this is an
                # error.
                leaks = first.causal != second.causal and (first.shows_later or second.shows_later)
                texts = []
                for one in (group, majority):
                    forward = one.inspection.forward
                    values = (f"{field.replace('_', ' ')} {_compared(forward, field)}" for field in fields)
                    texts.append(f"{name_of(one.names, every)}: {listed(values)}")
                yield wrong("; ".join(texts)) if leaks else asks("; ".join(texts))
