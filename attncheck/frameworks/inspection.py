"""`inspect`: matrices, initialisers and formula of an attention layer at initialisation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attncheck._lib.errors import InputError, check_whole, refuse
from attncheck.frameworks.binding import (
    Binding,
    FloatArray,
    Instrument,
    NoAttentionCall,
    bind,
    generator_kept,
    parameters_of,
)
from attncheck.frameworks.by_hand import watched
from attncheck.frameworks.effective import LAYER, ROLES, Effective, ModuleReader
from attncheck.frameworks.factors import gain_of
from attncheck.frameworks.heads import about_heads
from attncheck.frameworks.initialiser import (
    SYMBOLS,
    MatrixStatistics,
    biased,
    kv_labels,
    matrix_of,
    repeated,
    same_layers,
)
from attncheck.frameworks.inputs import PLURALS, about_inputs, about_outputs, multiplied_inputs
from attncheck.frameworks.laws import Z
from attncheck.frameworks.lengths import beyond
from attncheck.frameworks.notes import Note
from attncheck.frameworks.paths import over_paths
from attncheck.frameworks.probe import Forward, Probe
from attncheck.frameworks.result import Inspection
from attncheck.frameworks.rotary import ROTARY, positions_of
from attncheck.frameworks.views import CallView

# Entries of each matrix used from later draws.
_ENTRIES = 2**16
_DRAWS, _MOST_DRAWS = 8, 1024
# A matrix closer than this to a parameter is identified with it.
_GAIN = 1e-2
# Limit on the width: larger inputs fill the memory.
_MOST_NEURONS = 2**20
# Largest relative error at which ratios of standard deviations are used.
_SURE = 0.1


@generator_kept()
def inspect(
    make: Callable[..., Any] | Binding,
    width: int,
    call: Callable[..., Any] | None = None,
    *,
    draws: int = _DRAWS,
    seed: int = 0,
) -> Inspection:
    """Inspect an attention layer at initialisation: matrices, entry laws, scales and formula.

    Unit vectors as inputs, with the module's attention replaced, give its matrices exactly, for any law of the
    weights. The outputs are then compared with the formula for these matrices.

    Parameters
    ----------
    make : callable or attncheck.frameworks.binding.Binding
        Returns a freshly initialised module of torch, flax, keras or equinox. With an argument `width`, a second
        width is inspected too. flax.nnx receives generators as `rngs`, equinox a key as `key`.
    width : int
        Number of input neurons.
    call : callable, optional
        ``call(module, x)`` returns the outputs, if ``module(x)`` does not; both are (batch, positions, width).
    draws : int
        Number of modules to initialise.
    seed : int
        Seed of the first module.

    Returns
    -------
    Inspection

    Raises
    ------
    InputError
        If the module fails, or its attention cannot be observed.

    Examples
    --------
    >>> import numpy as np
    >>> class Plain:
    ...     def init(self, seed):
    ...         return np.random.default_rng(seed).standard_normal((4, 64, 64)) / 8
    ...
    ...     def run(self, state, x, core):
    ...         q, k, v = ((x @ w).reshape(*x.shape[:2], 2, 32).swapaxes(1, 2) for w in state[:3])
    ...         heads = core(q, k, v)
    ...         if heads is None:
    ...             weights = np.exp(q @ k.swapaxes(-1, -2) / 32**0.5)
    ...             heads = weights / weights.sum(-1, keepdims=True) @ v
    ...         return heads.swapaxes(1, 2).reshape(x.shape) @ state[3]
    >>> found = inspect(Plain(), width=64)
    >>> found.weights["query"].law, found.forward.mask, found.forward.scale, found.notes
    ('normal', 'none', '1/sqrt(head_dim)', ())
    >>> found.require(query_std=1.0, mask="none", bias=False)
    >>> found.require(query_std=0.5)
    Traceback (most recent call last):
    ...
    AssertionError: W_Q: std·√fan-in is 0.9992, from 0.9771 to 1.022, not 0.5
    """
    width = check_whole("width", width, 1, "pass the neurons of an input, e.g. width=64", _MOST_NEURONS)
    draws = check_whole("draws", draws, 1, "pass a number of draws, e.g. draws=8", _MOST_DRAWS)
    seed = check_whole("seed", seed, 0, "pass a whole number, e.g. seed=0")
    instrument = Instrument(bind(make, width, call))
    state = instrument.init(seed)
    reader = _reader(instrument, state, width)
    found = None if reader is None else _inspected(reader, state, draws, seed)
    if found is None and instrument.softmax_watched:
        found = watched(instrument, state, width, draws, seed)
    if found is None:
        what = "its forward pass calls neither attention nor a softmax over positions"
        refuse("make", make, what, "test it by sampling: pass a simulator to attncheck.check")
    if not isinstance(make, Binding) and "width" in parameters_of(make):
        other = _other_width(make, 2 * width, call, seed)
        found = dataclasses.replace(found, notes=(*found.notes, *_over_widths(found, other)))
    return found


def _reader(instrument: Instrument, state: Any, width: int) -> ModuleReader | None:
    """Return a reader on the first path where attention is called, or None."""
    for path in instrument.paths or ("",):
        try:
            return ModuleReader(instrument, state, width, path)
        except NoAttentionCall:
            continue
        except InputError:
            # A path of another configuration may fail.
            if path not in instrument.spare:
                raise
    return None


def _inspected(reader: ModuleReader, state: Any, draws: int, seed: int) -> Inspection | None:
    """Return the inspection, or None if the result of attention has no effect."""
    first = reader.read(state)
    probe = Probe(reader, state, first)
    if probe.idle:
        return None
    before, unclaimed = about_inputs(probe)
    # Roles other than x W + b have no matrix, and no factor.
    gains = {} if unclaimed & {"query", "key"} else _gains(reader, state, first)
    shared = _shared(gains)
    gains = {role: gain for role, gain in gains.items() if role != "value" and not shared}
    probe.gain = math.prod(gains.values())
    positions = positions_of(probe)
    base = positions.rotation.base if positions.rotation and positions.name == ROTARY else None

    def look(y: FloatArray) -> tuple[Forward, list[Note]]:
        made, told = probe.forward(y)
        return dataclasses.replace(made, positions=positions.name, rotary_base=base), told

    forward, notes = look(probe.y) if probe.steady else probe.unsteady
    formula = probe.formula
    instrument = reader.instrument
    paths, differing = over_paths(
        instrument.paths,
        instrument.spare,
        reader.path,
        forward,
        probe.output,
        probe.differs,
        lambda path, y: look(y),
        lambda path: instrument.draws(state, probe.x, path),
    )
    probe.formula = formula
    forward, paths, longer = beyond(probe, forward, paths)
    after, has_output = about_outputs(probe)
    roles = [role for role in ROLES if role not in unclaimed] + ["output"] * has_output
    precision = reader.instrument.precision
    labels = kv_labels(first, precision)
    copies = same_layers(reader.instrument.parameters(state))
    # If make returns one module repeatedly, other draws modify it, so it is probed first.
    read = [_ungained(each, gains) for each in (first, *_others(reader, first, draws, seed))]
    distinct = [labels.index(label) for label in sorted(set(labels))]
    weights = {r: matrix_of(r, read, distinct, precision, reader.norm == LAYER) for r in roles}
    said = [
        *before,
        *([multiplied_inputs(shared)] if shared else []),
        *positions.notes,
        *notes,
        *longer,
        *after,
        *repeated(read, roles, labels, precision),
        *about_heads(read, roles, labels, precision),
        *(_multiplied(gains, forward) if gains or shared else _scaled_beforehand(weights, forward, probe)),
        *biased(weights),
        *copies,
        *differing,
    ]
    if probe.seen.calls > 1:
        said.append(Note(f"attention runs {probe.seen.calls} times per forward pass: only the first is inspected"))
    number = probe.num_heads
    kv = len(set(labels)) if len(labels) in (number, first.key.shape[1]) else number
    shape = (reader.width, number, kv, probe.head_dim)
    view = CallView(reader, forward.factor, positions.rotation, gains)
    value_dim = None if probe.value_dim == probe.head_dim else probe.value_dim
    return Inspection(*shape, draws, weights, forward, paths, tuple(said), view, reader.layout.extra, value_dim)


def _others(reader: ModuleReader, first: Effective, draws: int, seed: int) -> Iterator[Effective]:
    """Yield as many rows of later draws as the statistics need."""
    columns = min(first[role].shape[1] * first[role].shape[2] for role in ROLES)
    rows = slice(0, -(-_ENTRIES // columns))
    output_rows = slice(0, -(-_ENTRIES // first.output.shape[1]))
    for i in range(1, draws):
        yield reader.read(reader.instrument.init(seed + i), rows, output_rows)


def _gains(reader: ModuleReader, state: Any, first: Effective) -> dict[str, float]:
    """Return the factors of queries, keys and values relative to parameters."""
    instrument = reader.instrument
    parameters = instrument.parameters(state)
    centred = reader.norm == LAYER
    found = {r: gain_of(first[r][:, 0], parameters, instrument.precision, centred) for r in ROLES}
    seen = {role: gain for role, gain in found.items() if gain is not None}
    return seen if {"query", "key"} <= seen.keys() else {}


def _shared(gains: Mapping[str, float]) -> float | None:
    """Return the common factor of queries, keys and values, or None."""
    value = gains.get("value", 1.0)
    alike = all(abs(gain / value - 1) <= _GAIN for gain in gains.values()) if value else False
    return value if alike and abs(value - 1) > _GAIN else None


def _ungained(read: Effective, gains: Mapping[str, float]) -> Effective:
    """Return the matrices divided by the known factors applied after them."""
    biases = {role: bias / gains.get(role, 1.0) for role, bias in read.biases.items()}
    made = {role: read[role] / gain for role, gain in gains.items() if abs(gain - 1) > _GAIN}
    return dataclasses.replace(read, **made, biases=biases) if made else read


def _multiplied(gains: Mapping[str, float], forward: Forward) -> list[Note]:
    """Report factors that multiply queries and keys before attention."""
    return [
        Note(f"{PLURALS[role]} are multiplied by {gain:.4g} before attention: scores times {forward.scales} in all")
        for role, gain in gains.items()
        if abs(gain - 1) > _GAIN
    ]


def _scaled_beforehand(weights: Mapping[str, MatrixStatistics], forward: Forward, probe: Probe) -> list[Note]:
    """Report a W_Q smaller than W_K by the score scale."""
    if not {"query", "key"} <= weights.keys() or probe.head_dim == 1:
        return []
    q, k = weights["query"], weights["key"]
    factor = probe.head_dim**-0.5
    error = Z * _relative(q, k)
    if q.laws == k.laws and error < _SURE and abs(q.std / k.std / factor - 1) <= error:
        what = "1/head_dim in all" if forward.scale == "1/sqrt(head_dim)" else "1/sqrt(head_dim) in all"
        blames = forward.scale == "1/sqrt(head_dim)"
        return [
            Note(f"W_Q has W_K's scale times 1/sqrt(head_dim): queries seem to be scaled beforehand, {what}", blames)
        ]
    return []


def _relative(one: MatrixStatistics, other: MatrixStatistics) -> float:
    return math.hypot(*((m.high - m.low) / (2 * Z * max(m.std, 1e-300)) for m in (one, other)))


def _other_width(make: Callable[..., Any], width: int, call: Callable[..., Any] | None, seed: int) -> Inspection | None:
    """Return the inspection of a module of another width, or None."""
    try:
        instrument = Instrument(bind(make, width, call))
        state = instrument.init(seed)
        reader = _reader(instrument, state, width)
        found = None if reader is None else _inspected(reader, state, 2, seed)
        if found is None and instrument.softmax_watched:
            found = watched(instrument, state, width, 2, seed)
        return found
    except InputError:
        return None


def _over_widths(found: Inspection, other: Inspection | None) -> list[Note]:
    """Report standard deviations that do not change with the width."""
    if other is None:
        return [Note(f"a module of width {2 * found.width} could not be inspected: widths are not compared")]
    notes = []
    for role, m in found.weights.items():
        if role not in SYMBOLS or role not in other.weights:
            continue
        there = other.weights[role]
        here, wide = (each.scale.times(each.fan_in**-0.5) for each in (m, there))
        if m.std and here.low <= wide.high and wide.low <= here.high and (m.high < there.low or there.high < m.low):
            notes.append(Note(f"{m.name}: std {here.std:.2g} whatever the width"))
    return notes
