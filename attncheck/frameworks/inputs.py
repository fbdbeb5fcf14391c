"""Notes on inputs and outputs of attention: norms, rotations and confused axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.text import listed
from attncheck.frameworks.effective import NONE, ROLES, WITHOUT_TRANSPOSE
from attncheck.frameworks.notes import ASKS, NOTE, WRONG, Note, asks, wrong
from attncheck.frameworks.probe import Probe

PLURALS = {"query": "queries", "key": "keys", "value": "values", "output": "outputs"}
# Relative tolerance within which normalised vectors have the same length.
_STEADY = 0.02

NORMALISED, ROTATED = "normalised", "rotated by position"
PLACED = "x W + b plus a vector that depends on the position"
TWISTED = "changed by position, but not by a rotation: rotary angles and neurons may not match"
DEPENDENT = "dependent on the position"
SCALED = "multiplied by a factor that depends on the position"
MIXED_BATCH = "outputs of a sequence depend on the other sequences of its batch"
_RANDOM = "random: two calls on one input differ"
_CHANGED = "different in a second call on the same input: a call changes the module's state"
_SPLIT = "reshaped to heads without a transpose, so that heads hold positions"
_MIXED = "dependent on inputs at other positions too"
_UNKNOWN = "not x W + b"
#: Note on attention over the batch axis, as if sequences were positions.
FIRST_AXIS = "attends over the first axis of its inputs: batch_first"
_WITHOUT_MATRIX = (NORMALISED, _UNKNOWN, _MIXED, _CHANGED, SCALED)
_LEVELS = {_RANDOM: WRONG, _CHANGED: WRONG, _SPLIT: WRONG, TWISTED: ASKS, _MIXED: ASKS}


@dataclasses.dataclass(frozen=True)
class InputFindings:
    """Findings on queries, keys and values.

    Attributes
    ----------
    notes : tuple of Note
    kinds : mapping of str to tuple of str
        By role ("query", "key", "value"), how queries, keys or values differ from x W + b.
    unclaimed : frozenset of str
        Roles whose matrix is unknown or absent.
    normalised : frozenset of str
        Roles whose vectors are x W + b, normalised and possibly rotated.
    """

    notes: tuple[Note, ...]
    kinds: Mapping[str, tuple[str, ...]]
    unclaimed: frozenset[str]
    normalised: frozenset[str]


def about_inputs(probe: Probe) -> InputFindings:
    """Return the findings on queries, keys and values."""
    notes, layout = [], probe.reader.layout
    if layout.first_axis:
        notes.append(wrong(FIRST_AXIS))
    if layout.extra:
        keys = "a key" if layout.extra == 1 else f"{layout.extra} keys"
        text = "learned or fixed, as by bias_k or add_zero_attn, or from a cache"
        notes.append(Note(f"attention sees {keys} beyond the positions: {text}"))
    if probe.value_dim != probe.head_dim:
        notes.append(Note(f"heads of values have {probe.value_dim} neurons, those of keys {probe.head_dim}"))
    by_role = {role: _kinds(probe, role) for role in ROLES}
    if probe.reader.norm != NONE and any(not {_UNKNOWN, NORMALISED} & {*kinds} for kinds in by_role.values()):
        notes.append(Note(f"the inputs are normalised before attention: {probe.reader.norm}"))
    silent = (role for role in ROLES if not probe.matrices[role].any() and probe.seen[role].any())
    fixed = {role for role in silent if _MIXED not in by_role[role]}
    if "query" in fixed:
        notes.append(Note("queries do not depend on the inputs: they are learned, or fixed by `call`"))
    elif fixed:
        notes.append(Note("keys do not depend on the inputs: cross-attention, whose other inputs `call` keeps fixed"))
    every = dict.fromkeys(kind for kinds in by_role.values() for kind in kinds)
    roles_by_kind = {kind: [role for role, kinds in by_role.items() if kind in kinds] for kind in every}
    for kind, roles in roles_by_kind.items():
        which = listed([PLURALS[role] for role in roles])
        claims = f": {listed([f'W_{role[0].upper()}' for role in roles])} unknown" if kind in _WITHOUT_MATRIX else ""
        text = f"{which} are {kind}{claims}"
        # The expectation of rotary positions does not declare rotated values.
        if kind == ROTATED and "value" in roles:
            notes.append(asks(text))
        else:
            notes.append(Note(text, _LEVELS.get(kind, NOTE), ("positions",)))
    unclaimed = {role for kind, roles in roles_by_kind.items() if kind in _WITHOUT_MATRIX for role in roles}
    normalised = {role for role, kinds in by_role.items() if NORMALISED in kinds and {*kinds} <= {NORMALISED, ROTATED}}
    return InputFindings(tuple(notes), by_role, frozenset(unclaimed | fixed), frozenset(normalised - fixed))


def _kinds(probe: Probe, role: str) -> tuple[str, ...]:
    """Return how queries, keys or values, as named by `role`, differ from x W + b; empty if they do not."""
    vectors, length = probe.seen[role], probe.x.shape[1]
    lin, vectors = probe.lin(role), vectors[:, :, :length]
    small = 2 * probe.bound * max(float(np.abs(lin).max()), 1e-300)
    if np.abs(lin - vectors).max() <= small:
        return ()
    reader, state = probe.reader, probe.state
    if np.abs(reader.see(state, probe.x)[role][:, :, :length] - vectors).max() > small:
        return (_CHANGED if reader.adapter.random(state, probe.x, reader.path) is False else _RANDOM,)
    if np.abs(lin.swapaxes(1, 2).reshape(lin.shape) - vectors).max() <= small:
        return (_SPLIT,)
    lengths = np.linalg.norm(vectors, axis=-1)
    together = np.linalg.norm(lengths, axis=1)
    steady = _steady(lengths.swapaxes(0, 1).reshape(lengths.shape[1], -1)) or _steady(together.reshape(1, -1))
    normalised = (NORMALISED,) if steady else ()
    if _is_mixed(probe, role, vectors, small):
        return (_MIXED,)
    same = reader.see(state, np.repeat(probe.x[:, :1], length, axis=1))[role][:, :, :length]
    changes = same - same[:, :, :1]
    if np.abs(changes).max() > small:
        if np.ptp(changes, axis=0).max() <= 4 * small:
            return (*normalised, PLACED)
        # If vectors are only rotated, by an angle that depends on the position, products of two vectors at the same
        # position do not depend on the angle.
        gram = np.einsum("bhld,chld->hlbc", same, same)
        if np.ptp(gram, axis=1).max() <= 8 * probe.bound * np.abs(gram).max():
            linear = normalised or np.abs(same[:, :, 0] - lin[:, :, 0]).max() <= small
            return (*normalised, ROTATED) if linear else (_UNKNOWN, ROTATED)
        first = same[:, :, :1]
        factors = (same * first).sum(axis=(0, 1, 3), keepdims=True) / (first * first).sum()
        if np.abs(same - factors * first).max() <= small:
            return (*normalised, SCALED)
        return (*normalised, DEPENDENT) if normalised else (TWISTED,)
    return normalised or (_UNKNOWN,)


def _is_mixed(probe: Probe, role: str, vectors: FloatArray, small: float) -> bool:
    """Return whether queries, keys or values, as named by `role`, depend on inputs at other positions.

    `vectors` are these queries, keys or values for the inputs of the probe. Changes up to `small` count as rounding.
    """
    for at in (0, probe.x.shape[1] // 2, -1):
        changed = probe.x.copy()
        changed[:, at] = 0.0
        changes = probe.reader.see(probe.state, changed)[role][:, :, : vectors.shape[2]] - vectors
        if np.abs(np.delete(changes, at, axis=2)).max(initial=0.0) > small:
            return True
    return False


def multiplied_inputs(times: float) -> Note:
    """Report a factor shared by queries, keys and values."""
    return Note(f"the inputs are multiplied by {times:.4g} before attention: W_Q, W_K and W_V include this factor")


def _steady(lengths: FloatArray) -> bool:
    """Return whether the entries of each row are nearly equal."""
    return bool(np.all(lengths.std(axis=1) <= _STEADY * lengths.mean(axis=1)))


def about_outputs(probe: Probe) -> tuple[list[Note], bool]:
    """Return notes on how outputs depend on attention, and whether W_O is known."""
    notes, merged = list[Note](), probe.reader.merged
    if merged == WITHOUT_TRANSPOSE:
        notes.append(wrong("heads are merged without a transpose, so that outputs mix positions"))
    elif not probe.apart:
        notes.append(wrong(MIXED_BATCH))
    if not probe.linear:
        reason = "mixes positions" if merged is None else "is not linear"
        return [*notes, Note(f"what follows attention {reason}: W_O is not read")], False
    past, output = probe.matrices.past, probe.matrices.output
    if output.shape[1] != probe.reader.width:
        notes.append(Note(f"outputs have {output.shape[1]} neurons, inputs {probe.reader.width}"))
    small = 4 * probe.bound * max(float(np.abs(past).max()), float(np.abs(output).max()))
    if np.abs(past).max() > small:
        is_identity = past.shape[0] == past.shape[1] and np.abs(past - np.eye(len(past))).max() <= small
        source = "the inputs" if is_identity else "inputs that bypass attention"
        path = "a residual path: " if is_identity else ""
        notes.append(Note(f"{path}the outputs include {source}"))
    none = output.shape[0] <= output.shape[1] and np.abs(output - np.eye(*output.shape)).max() <= small
    if none:
        notes.append(Note("heads are concatenated and returned: there is no W_O"))
    return notes, not none
