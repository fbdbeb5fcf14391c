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
from attncheck.frameworks.forward import BACKWARD
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
    "the weights of a softmax are changed before they multiply values, as in differential or chunked attention"
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
        related = any(f"{name}.".startswith(f"{call.name}.") or call.name.startswith(f"{name}.") for name in inside)
        if call.name and not related and call.given is not None and not call.given.long:
            how = _mixing(replayed(call), call.given)
            mixing |= {call.name: (call, how)} if how else {}
    return dict(reversed(mixing.items()))


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
    return _CHANGED_WEIGHTS if trace.scores else WITHOUT_SOFTMAX


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


def _form(layer: Inspection) -> tuple[Any, ...]:
    """Return what modules of a group have in common: shape, formula, and notes on errors and undeclared choices."""
    forward = layer.forward
    shape = (layer.width, layer.num_heads, layer.kv_heads, layer.head_dim, layer.value_dim, layer.extra)
    formula = tuple(getattr(forward, field) for field in _COMPARED)
    asked = tuple(_DIGITS.sub("", note.text) for note in layer.notes if note.level == ASKS)  # without estimates
    return (*shape, *formula, forward.rotary_base, forward.biased, forward.known, layer.blamed, asked)


def differences(groups: Sequence[AttentionModules]) -> Iterator[Note]:
    """Report differences between modules whose names differ only in numbers."""
    for members in grouped(groups, lambda group: pattern_of(group.names[0])).values():
        every = [name for group in members for name in group.names]
        majority = max(members, key=lambda group: len(group.names))
        for group in members:
            first, second = group.inspection.forward, majority.inspection.forward
            fields = [field for field in _COMPARED if getattr(first, field) != getattr(second, field)]
            # A difference is not reported if both groups have errors, or if one formula does not reproduce the weights.
            unclear = (group.inspection.blamed and majority.inspection.blamed) or not (first.known and second.known)
            if fields and not unclear:
                masks = {first.mask, second.mask}
                # If later positions are visible in one layer, outputs of a causal model depend on them: this is an
                # error.
                leaks = "causal" in masks and not masks.isdisjoint(("none", *BACKWARD))
                pair = [group, majority]
                if leaks and first.mask == "causal" and len(group.names) == len(majority.names):
                    pair.reverse()
                text = "; ".join(
                    f"{name_of(one.names, every)}: "
                    + listed(f"{field.replace('_', ' ')} {getattr(one.inspection.forward, field)}" for field in fields)
                    for one in pair
                )
                yield wrong(text) if leaks else asks(text)
