"""Attention modules of a model: which they are, and which of them are alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.errors import InputError
from attncheck._lib.groups import grouped
from attncheck._lib.text import listed
from attncheck.frameworks.binding import Binding
from attncheck.frameworks.notes import Note
from attncheck.frameworks.result import Inspection
from attncheck.frameworks.trace import AttentionCore, FloatArray
from attncheck.models.calls import ModuleCall
from attncheck.models.names import name_of, names_of, pattern_of
from attncheck.models.replay import HiddenStates

# Positions that suffice to see attention, in modules that take any number.
_ENOUGH = 64
# Vectors of this cosine are parallel.
_SAME = 1e-6
# What modules of several layers are compared in.
_COMPARED = ("mask", "map", "scale", "positions")


@dataclasses.dataclass(frozen=True)
class AttentionModules:
    """Attention modules of a model that are alike.

    Attributes
    ----------
    names : tuple of str
    kind : str
        Their class.
    source : str
        In cross-attention, the argument that keys and values come from.
    inspection : Inspection
        Of the first of them.
    """

    names: tuple[str, ...]
    kind: str
    source: str
    inspection: Inspection

    @property
    def title(self) -> str:
        """Names as text, such as "h.*.attn (12)"."""
        return names_of(self.names)


def attention_calls(calls: Sequence[ModuleCall], bound: Callable[[ModuleCall], Binding]) -> list[ModuleCall]:
    """Return the calls of the innermost modules in which attention runs, one for each module.

    `bound` returns the binding to a module as it is called.
    """
    outer: set[int] = set()
    found: dict[str, ModuleCall] = {}
    for i in reversed(range(len(calls))):  # calls inside of a module come after its own
        call: ModuleCall | None = calls[i]
        if i not in outer and calls[i].name not in found:
            call = _attending(calls[i], bound)
            if call is None:
                continue
            found[call.name] = call
        above = calls[i].parent
        while above is not None and calls[i].name in found:
            outer.add(above)
            above = calls[above].parent
    return list(reversed(found.values()))


def _attending(call: ModuleCall, bound: Callable[[ModuleCall], Binding]) -> ModuleCall | None:
    """Return a call in which attention runs, with the source of its keys replaced if they have no other."""
    if call.given is None or call.given.long:
        return None
    keys, crossed = _keys(bound(call), call.given), call.given.crossed
    if keys is None or crossed is None or crossed.long or not np.array_equal(*keys):
        return None if keys is None else call
    other = dataclasses.replace(call, given=crossed)
    return None if _keys(bound(other), crossed) is None else other


def _keys(binding: Binding, given: HiddenStates) -> tuple[FloatArray, FloatArray] | None:
    """Return the keys on two inputs, or None if no attention runs in a module that has projections."""
    if not any(each.ndim > 1 for each in binding.initialised(0).values()):
        return None
    state, rng, found = binding.fresh(0), np.random.default_rng(0), list[FloatArray]()
    length = min(given.lengths[-1], _ENOUGH) if len(given.lengths) > 1 else given.lengths[0]
    for _ in range(2):
        # Numbers that are exact in every precision.
        x = np.round(rng.standard_normal((2, length, given.width)) * 64) / 64
        cores: list[AttentionCore] = []
        try:
            binding.outputs(state, x, cores.append, binding.paths[0])
        except InputError:
            return None
        if not cores or _given(cores[0].query, x):
            return None
        found.append(cores[0].key)
    return found[0], found[1]


def _given(query: FloatArray, x: FloatArray) -> bool:
    """Return whether queries are inputs, but for a factor: then they come from outside of the module.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((2, 3, 8))
    >>> _given(x[:, :, :4] / 2, x), _given(x @ np.ones((8, 4)), x)
    (True, False)
    """
    one = query.reshape(-1, query.shape[-1])[0]
    size = one.size
    if size == 1 or not np.isfinite(one).all() or not one.any():
        return False
    parts = x[..., : x.shape[-1] // size * size].reshape(-1, size)
    lengths = np.linalg.norm(parts, axis=1) * np.linalg.norm(one)
    return bool(np.any(np.abs(parts @ one) >= (1 - _SAME) * lengths))


def alike(calls: Sequence[ModuleCall], inspections: Mapping[str, Inspection]) -> tuple[AttentionModules, ...]:
    """Return the modules in groups that are alike but for the numbers in their names."""

    def key(call: ModuleCall) -> tuple[Any, ...]:
        return pattern_of(call.name), call.kind, call.source, _form(inspections[call.name])

    return tuple(
        AttentionModules(tuple(call.name for call in group), kind, source, inspections[group[0].name])
        for (_, kind, source, _), group in grouped(calls, key).items()
    )


def _form(found: Inspection) -> tuple[Any, ...]:
    """Return what is alike in modules that are alike."""
    forward = found.forward
    shape = (found.width, found.num_heads, found.kv_heads, found.head_dim, found.value_dim, found.extra)
    formula = (forward.map, forward.mask, forward.scale, forward.positions, forward.rotary_base, forward.biased)
    return (*shape, *formula, forward.known, found.blamed)


def differences(groups: Sequence[AttentionModules]) -> Iterator[Note]:
    """Report how modules differ whose names differ in numbers alone."""
    for members in grouped(groups, lambda group: pattern_of(group.names[0])).values():
        every = [name for group in members for name in group.names]
        usual = max(members, key=lambda group: len(group.names))
        for group in members:
            one, other = group.inspection.forward, usual.inspection.forward
            apart = [what for what in _COMPARED if getattr(one, what) != getattr(other, what)]
            if apart:
                here, there = (listed(f"{what} {getattr(each, what)}" for what in apart) for each in (one, other))
                text = f"{name_of(group.names, every)}: {here}; {name_of(usual.names, every)}: {there}"
                # Later positions that one layer sees reach all outputs.
                leaks = {one.mask, other.mask} == {"none", "causal"}
                yield Note(text, blames=leaks, convention=not leaks)
