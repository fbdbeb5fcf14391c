"""`inspect`: matrices, initialisers and formula of an attention layer at initialisation."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError, refuse
from attncheck._lib.text import first_few, listed
from attncheck.frameworks.adapter import Adapter, Arrays, NoAttentionCall
from attncheck.frameworks.comparisons import beyond, leaks, over_paths
from attncheck.frameworks.effective import LAYER, ROLES, Effective, ModuleReader
from attncheck.frameworks.factors import ParameterBlocks
from attncheck.frameworks.forward import ADDED, BY_HEAD, NAMED, RIGHT, Formula, Forward
from attncheck.frameworks.framework import adapter_of, parameters_of
from attncheck.frameworks.heads import about_heads, about_maps
from attncheck.frameworks.initialiser import (
    biased,
    constant,
    kv_labels,
    matrix_of,
    order_of_groups,
    repeated,
    same_layers,
    same_parameters,
    unusual_scales,
)
from attncheck.frameworks.inputs import PLACED, PLURALS, about_inputs, about_outputs, multiplied_inputs
from attncheck.frameworks.layer_parts import norm_fields
from attncheck.frameworks.notes import NOTE, Note, asks, wrong
from attncheck.frameworks.probe import Probe
from attncheck.frameworks.result import Inspection
from attncheck.frameworks.rotary import Positions, positions_of
from attncheck.frameworks.score_scale import DECLARED, about_scale
from attncheck.frameworks.subject import AttentionView
from attncheck.frameworks.weights_notes import about_weights, own_scales

# Number of entries of each matrix that suffice in a later draw. Of the first draw, all entries are used.
_ENTRIES = 2**16
# Relative tolerance within which two factors are equal. A factor this close to 1 is ignored.
_GAIN = 1e-2
# A factor is the same in every draw up to the larger of a relative tolerance and a number of unit roundoffs.
_CONSTANT, _ROUNDED = 1e-5, 16.0


def inspect_layer(make: Any, width: int, call: Callable[..., Any] | None, draws: int, seed: int) -> Inspection:
    """Inspect an attention layer at initialisation; see `attncheck.models.inspection.inspect`."""
    adapter = adapter_of(make, width, call)
    inspection = inspected(adapter, width, draws, seed, calls_module=call is None)
    if inspection is None:
        problem = "its forward pass has no attention that is recognised: no product of weights and values"
        refuse("make", make, problem, "test it by sampling: pass a simulator to attncheck.check")
    if not isinstance(make, Adapter) and "width" in parameters_of(make):
        try:
            wide = inspected(adapter_of(make, 2 * width, call), 2 * width, 2, seed, calls_module=False)
        except InputError:
            wide = None
        inspection = _over_widths(inspection, wide)
    return inspection


def _reader(adapter: Adapter, state: Any, width: int) -> ModuleReader | None:
    """Return a reader of the first code path that calls attention, or None."""
    for path in adapter.paths:
        try:
            return ModuleReader(adapter, state, width, path)
        except NoAttentionCall:
            continue
        except InputError:
            # Code paths of another configuration of the module, as listed in `spare`, may fail.
            if path not in adapter.spare:
                raise
    return None


def inspected(adapter: Adapter, width: int, draws: int, seed: int, calls_module: bool) -> Inspection | None:
    """Inspect an adapter's layer; return None if there is no attention, or the outputs do not depend on it.

    `calls_module` is False if the user's own function calls the module. As that function may use only a part of the
    module, unused parameters are then not reported.
    """
    state = adapter.fresh(seed)
    reader = _reader(adapter, state, width)
    if reader is None:
        return None
    first = reader.read(state)
    probe = Probe(reader, state, first)
    if probe.idle:
        return None
    inputs = about_inputs(probe)
    unclaimed = inputs.unclaimed
    parameters = adapter.parameters(state)
    blocks = _blocks(reader, state)
    # If queries or keys are not x W + b, they have no matrix, and so no factor of a matrix.
    own = {} if unclaimed & {"query", "key"} else _own_gains(reader, state, first, seed)
    gains = {} if unclaimed & {"query", "key"} else _gains(reader, state, _ungained(first, own))
    by_head = _rotated_by_head(blocks, {role: first[role] / gain for role, gain in gains.items()})
    shared = _shared(gains)
    gains = {role: gain for role, gain in gains.items() if role != "value" and not shared}
    probe.gain = math.prod(gains.values())
    positions = positions_of(probe, inputs.kinds)
    gains = _of_scores(probe, gains, seed)
    forward, formula, about = _forward(probe, positions, probe.steady)
    paths, differing = _over_paths(probe, positions, forward, about, gains)
    if {"query", "key"} <= inputs.normalised:
        norms = norm_fields({role: probe.seen[role] for role in ("query", "key")})
        forward = dataclasses.replace(forward, parts=(*forward.parts, *norms.items()))
    forward, paths, longer = beyond(probe, forward, formula, paths)
    factors = np.asarray(math.prod(own.values()))  # one per head if heads have different factors
    own_scale = bool(np.abs(factors - 1).max() > _GAIN)
    unlike = BY_HEAD if own_scale else ADDED if "output" in probe.by_maps else ""
    forward = forward.beside(unlike)
    paths = {name: of_path.beside(unlike) for name, of_path in paths.items()}
    after, has_output = about_outputs(probe)
    roles = [role for role in ROLES if role not in unclaimed] + ["output"] * has_output
    precision = adapter.precision
    # If several attention maps share all matrices, only the heads of the first are examined. Maps whose outputs are
    # concatenated do not share W_O.
    maps = probe.maps if {*ROLES, "output"} <= {*probe.by_maps} else 1
    labels = kv_labels(first.of_first(maps), unclaimed, precision)
    copies = same_layers(parameters) + (same_parameters(parameters) if {"query", "key"} & unclaimed else [])
    unused = adapter.unused(state, probe.x, reader.path) if calls_module else ()
    # Probe the module before later draws are made: if `make` returns the same module every time, they modify it.
    leaking = list(leaks(probe, forward, formula))
    read = [
        _ungained(draw, {**gains, **own}).of_first(maps) for draw in (first, *_later_draws(reader, first, draws, seed))
    ]
    distinct = [labels.index(label) for label in sorted(set(labels))]
    of_maps = [draw.of_first(probe.maps // maps) for draw in read]
    by_role = {role: of_maps if role in probe.by_maps else read for role in (*ROLES, "output")}
    weights = {r: matrix_of(r, by_role[r], distinct, precision, reader.norm == LAYER) for r in roles}
    # Whether all factors of queries and keys are known. They are not if there are parameters, but none matches a
    # matrix.
    attributed = (not parameters or bool(gains) or bool(shared)) and not unclaimed & {"query", "key"}
    # True if several attention calls share keys and values only. Their heads are in another order than in W_Q.
    in_turn = maps == 1 and {"key", "value"} <= {*probe.by_maps}
    order = _order_of_queries(blocks, first) if in_turn else [*range(len(labels))]
    notes = [
        *inputs.notes,
        *([multiplied_inputs(shared)] if shared else []),
        *by_head,
        *positions.notes,
        *about,
        *([own_scales(forward.factor * factors)] if own_scale else []),
        *longer,
        *leaking,
        *about_scale(forward, gains, weights, probe.head_dim, attributed),
        *after,
        *repeated(read, roles, distinct, precision),
        *order_of_groups([labels[head] for head in order]),
        *constant(first, roles, parameters),
        *unusual_scales(weights),
        *([about_maps(probe.maps, probe.by_maps)] if probe.by_maps else []),
        *about_heads(by_role, roles, distinct, precision),
        *biased({role: matrix for role, matrix in weights.items() if PLACED not in inputs.kinds.get(role, ())}),
        *copies,
        *_unused(unused),
        *differing,
    ]
    if probe.seen.calls > 1:
        notes.append(Note(f"attention runs {probe.seen.calls} times per forward pass: only the first is inspected"))
    number = probe.num_heads // (probe.maps if "output" in probe.by_maps else 1)
    kv = min(number, len(set(labels))) if len(labels) in (number, first.key.shape[1]) else number
    shape = (reader.width, number, kv, probe.head_dim)
    grouped = tuple(sorted(range(len(labels)), key=lambda head: labels[head])) if in_turn and kv < number else ()
    view = AttentionView(reader, forward.factor, positions.rotation, gains, order=grouped)
    value_dim = None if probe.value_dim == probe.head_dim else probe.value_dim
    more = (reader.layout.extra, value_dim, probe.seen.calls)
    return Inspection(*shape, draws, weights, forward, paths, tuple(notes), view, *more)


def _forward(probe: Probe, positions: Positions, steady: bool) -> tuple[Forward, Formula, list[Note]]:
    """Return the formula of the probed code path, as `Forward` and as `Formula`, and notes on it.

    The formula is unknown unless two calls on the same inputs agree (`steady`).
    """
    if not steady:
        return probe.unknown(), Formula(), []
    if not np.isfinite(probe.seen.weights).any():
        return probe.unknown(), Formula(), [wrong("all attention weights are NaN or infinite")]
    forward, formula = probe.forward(probe.seen)
    base = positions.rotation.base if positions.rotation else None
    forward = dataclasses.replace(forward, positions=positions.name, rotary_base=base)
    missing = np.flatnonzero(~np.isfinite(probe.y).all(axis=(0, 2)))
    derivation = "" if forward.known else probe.derivation(probe.seen)
    notes = about_weights(forward, formula, probe.seen, derivation, probe.maps if probe.by_maps else 1)
    if probe.reader.divides_later:
        notes.append(
            Note("attention weights are divided by the sums of their rows only after they multiply the values")
        )
    if len(missing):
        notes.append(wrong(f"outputs are NaN or infinite at positions {', '.join(map(str, missing))}"))
    return forward, formula, notes


def _over_paths(
    probe: Probe, positions: Positions, forward: Forward, about: Sequence[Note], gains: Mapping[str, float]
) -> tuple[dict[str, Forward], list[Note]]:
    """Return the formulas of all code paths, and notes on them other than those `about` the path of `probe`.

    `forward` and `gains` are the formula and the factors of queries and keys on the probed code path.
    """
    adapter, state = probe.reader.adapter, probe.state

    def look(path: str) -> tuple[Forward, list[Note]]:
        try:
            reader = ModuleReader(adapter, state, probe.reader.width, path)
        except NoAttentionCall:
            return probe.unknown(), []
        there = probe.on(reader)
        path_gains = _gains(reader, state, reader.read(state))
        there.gain = math.prod(path_gains.get(role, gain) for role, gain in gains.items())
        path_forward, _, notes = _forward(there, positions, steady=True)
        return path_forward, [note for note in notes if note not in about]

    return over_paths(probe, forward, look)


def _unused(names: Sequence[str]) -> Iterator[Note]:
    """Report parameters that the outputs do not depend on."""
    if names:
        which = "it" if len(names) == 1 else "them"
        yield wrong(f"{first_few(names)}: never used, the outputs do not depend on {which}")


def _later_draws(reader: ModuleReader, first: Effective, draws: int, seed: int) -> Iterator[Effective]:
    """Yield the matrices of later draws, with as many rows as the statistics use."""
    columns = min(first[role].shape[1] * first[role].shape[2] for role in ROLES)
    rows = slice(0, -(-_ENTRIES // columns))
    output_rows = slice(0, -(-_ENTRIES // first.output.shape[1]))
    for i in range(1, draws):
        yield reader.read(reader.adapter.fresh(seed + i), rows, output_rows)


def _blocks(reader: ModuleReader, state: Any) -> ParameterBlocks:
    """Return the blocks of a module's parameters."""
    return ParameterBlocks(reader.adapter.parameters(state), reader.adapter.precision, reader.norm == LAYER)


def _gains(reader: ModuleReader, state: Any, read: Effective) -> dict[str, float]:
    """Return, by role, the factors c for which W_Q, W_K and W_V are c times a parameter.

    `read` has these matrices. Roles without such a factor are left out. The result is empty unless both W_Q and W_K
    have one.
    """
    blocks = _blocks(reader, state)
    known = {}
    for role in ROLES:
        first, last = (blocks.gain(read[role][:, head]) for head in (0, -1))
        # Heads with different factors have no common factor.
        if first is not None and (last is None or abs(last - first) <= _GAIN * abs(first)):
            known[role] = first
    return known if {"query", "key"} <= known.keys() else {}


def _own_gains(reader: ModuleReader, state: Any, read: Effective, seed: int) -> dict[str, FloatArray]:
    """Return, by role, the factors of W_Q or W_K relative to parameters, (heads,), if they differ between heads.

    Factors such as temperatures are the same in every draw. Those that differ between the first two draws are left out.
    """
    own = _gains_by_head(_blocks(reader, state), read)
    if own:
        state = reader.adapter.fresh(seed + 1)
        again = _gains_by_head(_blocks(reader, state), reader.read(state))
        own = {role: gain for role, gain in own.items() if role in again and np.allclose(again[role], gain, _CONSTANT)}
    return own


def _gains_by_head(blocks: ParameterBlocks, read: Effective) -> dict[str, FloatArray]:
    """Return, by role, the factors of W_Q or W_K relative to parameters in one draw, (heads,).

    Roles are left out if the factor of a head is unknown, or if all heads have the same factor.
    """
    own = {}
    for role in ("query", "key"):
        gains = (blocks.gain(read[role][:, head]) for head in range(read[role].shape[1]))
        known = np.array([*itertools.takewhile(lambda gain: gain is not None, gains)], dtype=np.float64)
        if len(known) == read[role].shape[1] and np.ptp(known) > _GAIN * abs(known[0]):
            own[role] = known
    return own


def _order_of_queries(blocks: ParameterBlocks, first: Effective) -> list[int]:
    """Return the heads in the order of their query blocks in the parameters; empty if a head matches no block."""
    matches = [blocks.match(first.query[:, head]) for head in range(first.query.shape[1])]
    numbers = [match[1] for match in matches if match is not None]
    return sorted(range(len(numbers)), key=lambda head: numbers[head]) if len(numbers) == len(matches) else []


def _rotated_by_head(blocks: ParameterBlocks, matrices: Arrays) -> list[Note]:
    """Report matrices whose heads seem to be rotated by angles that depend on the head instead of the position.

    `matrices` have shape (rows, heads, d), and their head 0 equals a block of a parameter. A matrix is reported if its
    head 1 equals no block, but may be a block that was rotated.
    """
    second = {role: matrix[:, 1] for role, matrix in matrices.items() if matrix.shape[1] > 1}
    rotated = [PLURALS[role] for role, head in second.items() if blocks.gain(head) is None and blocks.rotates(head)]
    text = "are rotated in the same way at every position, by angles that depend on the head"
    return [wrong(f"{listed(rotated)} {text}")] if rotated else []


def _shared(gains: Mapping[str, float]) -> float | None:
    """Return the factor that queries, keys and values have in common.

    The result is None if their factors (`gains`) differ, or are 1.
    """
    value = gains.get("value", 1.0)
    is_common = all(abs(gain / value - 1) <= _GAIN for gain in gains.values()) if value else False
    return value if is_common and abs(value - 1) > _GAIN else None


def _of_scores(probe: Probe, gains: dict[str, float], seed: int) -> dict[str, float]:
    """Return the factors that belong to the scale of scores: those of `gains` that are the same in every draw.

    `probe.gain` becomes their product; factors that vary belong to the matrices. If no factor differs from 1, or the
    scale already has a name, nothing changes, and all factors are returned.
    """
    if all(abs(gain - 1) <= _GAIN for gain in gains.values()) or probe.forward(probe.seen)[0].scale in NAMED:
        return gains
    reader, fixed = probe.reader, gains
    constant = max(_CONSTANT, _ROUNDED * reader.adapter.precision)
    # A factor that varies has the same value in another draw about once in a thousand, so two more draws are compared.
    for state in (reader.adapter.fresh(seed + i) for i in (1, 2)):
        redraw = _gains(reader, state, reader.read(state))
        fixed = {role: gain for role, gain in fixed.items() if abs(redraw.get(role, math.inf) / gain - 1) <= constant}
    probe.gain = math.prod(fixed.values())
    return fixed


def _ungained(read: Effective, gains: Mapping[str, float | FloatArray]) -> Effective:
    """Divide matrices and biases by the known factors in `gains`, one per role or one per head."""
    columns = {role: np.asarray(gain)[..., None] for role, gain in gains.items()}
    biases = {role: bias / columns.get(role, 1.0) for role, bias in read.biases.items()}
    matrices = {role: read[role] / gain for role, gain in columns.items() if np.abs(gain - 1).max() > _GAIN}
    return dataclasses.replace(read, **matrices, biases=biases) if matrices else read


def _over_widths(narrow: Inspection, wide: Inspection | None) -> Inspection:
    """Return the narrow layer's inspection, with a note on how the scales of scores at the two widths compare."""
    if wide is None:
        text = f"a module of width {2 * narrow.width} could not be inspected: scales of scores are not compared"
        return dataclasses.replace(narrow, notes=(*narrow.notes, Note(text)))
    mine, theirs = ({f.scale, *f.ties} for f in (narrow.forward, wide.forward))
    if not (narrow.forward.known and wide.forward.known) or mine & theirs & {RIGHT, "1/head_dim"}:
        return narrow
    times, there = (one.forward.factor * one.head_dim for one in (narrow, wide))
    if narrow.head_dim != wide.head_dim and times > 1 and abs(there / times - 1) < _GAIN:
        at = f"which is {RIGHT} at a head_dim of {times**2:.4g}, as in maximal-update parametrisation"
        note = asks(f"scores times {times:.4g}/head_dim, {at}", DECLARED)
    elif RIGHT in mine:
        scale = min(mine & theirs, default=wide.forward.scale)
        note = wrong(f"scores times {scale}, not {RIGHT}: width {wide.width} tells them apart", DECLARED)
    else:
        return narrow
    notes = [one for one in narrow.notes if one.level == NOTE or DECLARED not in one.expectations]
    return dataclasses.replace(narrow, notes=(*notes, note))
