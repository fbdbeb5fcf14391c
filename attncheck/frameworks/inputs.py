"""Notes on inputs and outputs of attention: norms, rotations and confused axes."""

from __future__ import annotations

import numpy as np

from attncheck._lib.text import listed
from attncheck.frameworks.binding import FloatArray
from attncheck.frameworks.effective import NONE, ROLES
from attncheck.frameworks.notes import Note
from attncheck.frameworks.probe import Probe

PLURALS = {"query": "queries", "key": "keys", "value": "values", "output": "outputs"}
# Relative tolerance for the lengths of normalised vectors.
_STEADY = 0.02

NORMALISED, ROTATED = "normalised", "rotated by position: rotary positions"
MIXED_BATCH = "outputs of a sequence depend on the other sequences of its batch"
_RANDOM = "random: two calls on one input differ"
_CHANGED = "different in a second call on the same input: a call changes the module's state"
_SPLIT = "reshaped to heads without a transpose, so that heads hold positions"
_MIXED = "made of inputs at other positions too"
_UNKNOWN = "not x W + b"


def about_inputs(probe: Probe) -> tuple[list[Note], frozenset[str]]:
    """Return notes on queries, keys and values, and roles without a matrix."""
    notes, layout = [], probe.reader.layout
    if layout.first_axis:
        notes.append(Note("attends over the first axis of its inputs: batch_first", blames=True))
    if layout.extra:
        keys = "a key" if layout.extra == 1 else f"{layout.extra} keys"
        notes.append(Note(f"attention sees {keys} beyond the positions: bias_k and bias_v, or add_zero_attn"))
    if probe.value_dim != probe.head_dim:
        notes.append(Note(f"heads of values have {probe.value_dim} neurons, those of keys {probe.head_dim}"))
    if probe.reader.norm != NONE:
        notes.append(Note(f"the inputs are normalised before attention: {probe.reader.norm}"))
    found = {role: kind(probe, role) for role in ROLES}
    if not probe.matrices.key.any() and probe.matrices.query.any() and found["key"] != _MIXED:
        notes.append(Note("keys do not depend on the inputs: cross-attention, whose other inputs `call` keeps fixed"))
    kinds: dict[str, list[str]] = {}
    for role, what in found.items():
        if what:
            kinds.setdefault(what, []).append(role)
    for what, roles in kinds.items():
        which = ", ".join(PLURALS[role] for role in roles[:-1])
        which = f"{which} and {PLURALS[roles[-1]]}" if which else PLURALS[roles[-1]]
        claims = f": {listed([f'W_{role[0].upper()}' for role in roles])} unknown" if what == _MIXED else ""
        notes.append(Note(f"{which} are {what}{claims}", blames=what in (_RANDOM, _CHANGED, _SPLIT)))
    none = (NORMALISED, _UNKNOWN, _MIXED, _CHANGED)
    unclaimed = {role for what, roles in kinds.items() if what in none for role in roles}
    return notes, frozenset(unclaimed)


def kind(probe: Probe, role: str) -> str:
    """Return how a role differs from x W + b; empty if it does not."""
    seen, length = probe.seen[role], probe.x.shape[1]
    lin, seen = probe.lin(role), seen[:, :, :length]
    small = 2 * probe.bound * max(float(np.abs(lin).max()), 1e-300)
    if np.abs(lin - seen).max() <= small:
        return ""
    if np.abs(probe.reader.see(probe.state, probe.x)[role][:, :, :length] - seen).max() > small:
        return _CHANGED if probe.reader.instrument.draws(probe.state, probe.x, probe.reader.path) is False else _RANDOM
    if np.abs(lin.swapaxes(1, 2).reshape(lin.shape) - seen).max() <= small:
        return _SPLIT
    lengths = np.linalg.norm(seen, axis=-1)
    together = np.linalg.norm(lengths, axis=1)
    if _steady(lengths.swapaxes(0, 1).reshape(lengths.shape[1], -1)) or _steady(together.reshape(1, -1)):
        return NORMALISED
    if np.abs(np.linalg.norm(lin, axis=-1) - lengths).max() <= 8 * probe.bound * lengths.max():
        return ROTATED
    for at, others in ((-1, slice(None, -1)), (0, slice(1, None))):
        changed = probe.x.copy()
        changed[:, at] = 0.0
        moved = probe.reader.see(probe.state, changed)[role][:, :, :length] - seen
        if np.abs(moved[:, :, others]).max() > small:
            return _MIXED
    return _UNKNOWN


def multiplied_inputs(times: float) -> Note:
    """Report a factor shared by queries, keys and values."""
    return Note(f"the inputs are multiplied by {times:.4g} before attention: W_Q, W_K and W_V include this factor")


def _steady(lengths: FloatArray) -> bool:
    """Return whether the entries of each row are equal."""
    return bool(np.all(lengths.std(axis=1) <= _STEADY * lengths.mean(axis=1)))


def about_outputs(probe: Probe) -> tuple[list[Note], bool]:
    """Return notes on the layer after attention, and whether W_O is known."""
    notes = [] if probe.apart else [Note(MIXED_BATCH, blames=True)]
    if probe.merged is None:
        return [*notes, Note(_after(probe))], False
    past, output = probe.matrices.past, probe.matrices.output
    if output.shape[1] != probe.reader.width:
        notes.append(Note(f"outputs have {output.shape[1]} neurons, inputs {probe.reader.width}"))
    if probe.merged == "wrong":
        notes.append(Note("heads are merged without a transpose, so that outputs mix positions", blames=True))
    small = 4 * probe.bound * max(float(np.abs(past).max()), float(np.abs(output).max()))
    if np.abs(past).max() > small:
        own = past.shape[0] == past.shape[1] and np.abs(past - np.eye(len(past))).max() <= small
        what = "the inputs" if own else "inputs that bypass attention"
        notes.append(Note(f"a residual path: the outputs include {what}" if own else f"the outputs include {what}"))
    none = output.shape[0] == output.shape[1] and np.abs(output - np.eye(len(output))).max() <= small
    if none:
        notes.append(Note("heads are concatenated and returned: there is no W_O"))
    return notes, not none


def _after(probe: Probe) -> str:
    shape = (1, probe.num_heads, 1, probe.value_dim)
    heads = np.round(np.random.default_rng(0).standard_normal(shape) * 8) * 2.0**7
    zero = np.zeros((1, 1, probe.reader.width))
    once, twice = (probe.reader.see(probe.state, zero, each).y for each in (heads, 2 * heads))
    if np.abs(twice - once).max() <= _STEADY * np.abs(once).max():
        return "the outputs are normalised: W_O cannot be determined"
    return "the layer after attention is not linear: W_O cannot be determined, inspect attention alone"
