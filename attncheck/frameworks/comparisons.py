"""Tests of whether the formula of attention on one code path also holds on other paths and for longer sequences."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError
from attncheck._lib.text import listed
from attncheck.frameworks.effective import ROLES, WITHOUT_TRANSPOSE
from attncheck.frameworks.forward import AXES, NAMED, OTHER, Formula, Forward, visible
from attncheck.frameworks.inputs import PLURALS
from attncheck.frameworks.notes import ASKS, NOTE, WRONG, Note, asks, wrong
from attncheck.frameworks.probe import Probe

# Code paths whose names start with this are training paths, which may be random.
_TRAINING = "train"
# Why two calls on the same input differ: if a call draws random numbers, if it draws none, and if this is unknown.
_CAUSES = {
    True: "dropout",
    False: "a call changes the module's state",
    None: "dropout, or a state that a call changes",
}
#: Note on dropout in training.
DROPOUT = f"{_TRAINING}: two calls on one input differ: {_CAUSES[True]}"
_DESCRIPTIONS = {"none": "no mask"}
# Name of the code path without options.
_PLAIN = "as called"
# Lengths of the longer sequence to try in turn, and the maximum of positions² × width for it.
_LENGTHS = (65, 33)
_ENTRIES = 2**23
# Largest error bound of a formula at which a single position of a longer sequence has a visible effect on the weights.
_COARSEST = 1e-3
# Relative tolerance within which two factors count as the same scale; notes show only three digits.
_EQUAL = 1e-3


def over_paths(
    probe: Probe, forward: Forward, look: Callable[[str], tuple[Forward, list[Note]]]
) -> tuple[dict[str, Forward], list[Note]]:
    """Return the formulas of all examined code paths, by name of the path, and notes on how paths differ.

    `forward` is the formula of the code path that `probe` calls. If the outputs of another path are different,
    ``look(path)`` inspects that path, and returns its formula and notes.
    """
    adapter, base, output = probe.reader.adapter, probe.reader.path, probe.output
    formulas, notes, base_output = {base: forward}, list[Note](), output(base)
    failed: dict[str, list[str]] = {}
    for path in adapter.paths:
        try:
            y, again = output(path), output(path)
        except InputError as error:
            failed.setdefault(str(error), []).append(path)
            continue
        if probe.differs(y, again):
            where = f"{path}: " if path else ""
            text = f"{where}two calls on one input differ: {_CAUSES[adapter.random(probe.state, probe.x, path)]}"
            trained = path.startswith(_TRAINING)
            # A training path that is random because of dropout may still have a known formula, because attention is
            # inspected without dropout.
            is_examined = trained and forward.error != math.inf
            path_forward, more = look(path) if is_examined else (forward, [])
            if is_examined and path_forward.known:
                formulas[path] = path_forward if _differences(forward, path_forward) else forward
                notes += [Note(text), *(dataclasses.replace(note, text=f"{path or _PLAIN}: {note}") for note in more)]
            else:
                notes.append(Note(f"{text}: this path is not examined") if trained else wrong(text))
        elif not probe.differs(y, base_output):
            formulas[path] = forward
        else:
            formulas[path], more = look(path)
            notes += [dataclasses.replace(note, text=f"{path or _PLAIN}: {note}") for note in more]
    failure_notes = [
        Note(f"{' and '.join(which)}: {error.partition('; ')[0]}", NOTE if adapter.spare.issuperset(which) else ASKS)
        for error, which in failed.items()
    ]
    return formulas, [*failure_notes, *notes, *_differing(formulas, adapter.spare, base)]


def _differing(formulas: dict[str, Forward], spare: frozenset[str], base: str) -> Iterator[Note]:
    """Yield one note per difference from the code path `base`; paths with the same difference share a note.

    `formulas` has the formula of each path. Differences that occur only in paths in `spare` are no errors.
    """
    groups: dict[tuple[str, str, str], list[str]] = {}
    for path, forward in formulas.items():
        # Paths whose formula does not fit were reported already.
        if forward is formulas[base] or not (forward.known or forward.error == math.inf):
            continue
        differences = _differences(formulas[base], forward)
        if not differences:
            reference = f"those of {base or _PLAIN}, with the same formula of attention"
            text = f"outputs differ from {reference}: a batch norm, or the like"
            yield Note(f"{path or _PLAIN}: {text}", NOTE if path.startswith(_TRAINING) or path in spare else WRONG)
        for difference in differences:
            groups.setdefault(difference, []).append(path)
    for (aspect, first, second), paths in groups.items():
        where = " and ".join(path or _PLAIN for path in paths)
        text = f"two paths of this module differ in {aspect}: {base or _PLAIN}: {first}; {where}: {second}"
        yield Note(text, NOTE if spare.issuperset(paths) else WRONG)


def _differences(first: Forward, second: Forward) -> list[tuple[str, str, str]]:
    differences = []
    for aspect in ("mask", "scale", "map"):
        a, b = getattr(first, aspect), getattr(second, aspect)
        if a != b:
            differences.append((aspect, _DESCRIPTIONS.get(a, a), _DESCRIPTIONS.get(b, b)))
    if not differences and first.biased != second.biased:
        names = {False: "products times one factor", True: "more than products times one factor"}
        differences.append(("scores", names[first.biased], names[second.biased]))
    unknown = math.inf in (first.error, second.error)
    return differences or ([("their outputs", str(first), str(second))] if unknown else [])


def beyond(
    probe: Probe, forward: Forward, formula: Formula, paths: Mapping[str, Forward]
) -> tuple[Forward, dict[str, Forward], list[Note]]:
    """Compare the formula with the attention weights on a longer sequence.

    Return the formula, the formulas of all code paths, and notes. If the longer sequence reveals another mask, that
    mask replaces the previous one. Formulas are unchanged if the module does not accept longer sequences, or if
    rounding hides the effect of a single position.
    """
    x = probe.longer(_LENGTHS, _ENTRIES)
    missing = [] if x is None else _missing(probe, x)
    plain = forward.known and formula.bias is None and formula.shown is None and forward.map in AXES
    exact = plain and forward.bound <= _COARSEST
    if x is None or missing or not exact or probe.reader.layout.extra or not probe.apart:
        return forward, dict(paths), missing
    longer, longer_formula = probe.forward(probe.reader.see(probe.state, x))
    scaled = longer.scale == forward.scale or math.isclose(longer.factor, forward.factor, rel_tol=_EQUAL)
    if longer.known and scaled and (longer.map, longer.mask) == (forward.map, forward.mask):
        return forward, dict(paths), []
    if not longer.known or longer.map != forward.map or longer_formula.bias is not None:
        text = f"with {x.shape[1]} positions the attention weights do not follow the formula found with fewer positions"
        return forward, dict(paths), [Note(text)]
    if longer.mask == forward.mask:
        text = f"the scale of scores depends on the length: {forward.scale} at {probe.length} positions"
        unnamed = forward.scale[:1].isdigit() and forward.scale not in NAMED
        named = dataclasses.replace(forward, scale=OTHER) if unnamed else forward
        return named, dict(paths), [Note(f"{text}, {longer.scale} at {x.shape[1]}", ASKS if unnamed else NOTE)]
    changed = {p: dataclasses.replace(f, mask=longer.mask) for p, f in paths.items() if f.mask == forward.mask}
    notes = [Note(f"the mask is neither none nor causal: {longer.mask}")]
    if (forward.mask, longer.mask) == ("causal", OTHER):
        notes = [
            asks(f"the mask is causal at {probe.length} positions, and not at {x.shape[1]}: is it too short?", "mask")
        ]
    return dataclasses.replace(forward, mask=longer.mask), {**paths, **changed}, notes


def _missing(probe: Probe, x: FloatArray) -> list[Note]:
    """Report outputs that are NaN or infinite on longer inputs only, and name affected queries, keys or values."""
    if not np.isfinite(probe.y).all() or np.isfinite(probe.output(probe.reader.path, x)).all():
        return []
    call = probe.reader.see(probe.state, x)
    names = [PLURALS[role] for role in ROLES if not np.isfinite(call[role]).all()]
    text = f"{listed([*names, PLURALS['output']])} are NaN or infinite at length {x.shape[1]}"
    return [wrong(f"{text}, although they are finite at length {probe.length}")]


def leaks(probe: Probe, forward: Forward, formula: Formula) -> Iterator[Note]:
    """Report outputs that change with inputs at later positions although the mask hides later positions.

    One input at a time is changed, first in a short sequence and then, if the module accepts it, in a longer one.
    """
    hides = forward.mask != OTHER and not np.triu(visible(forward.mask, 3, 3), 1).any()
    if (
        not hides
        or formula.fill is not None
        or forward.map != "softmax"
        or probe.reader.merged == WITHOUT_TRANSPOSE
        or not probe.apart
    ):
        return
    long = probe.longer(_LENGTHS, _ENTRIES)
    for x in (probe.x[:1], *([] if long is None else [long[:1]])):
        reached = _reached(probe, x)
        idle = ~visible(forward.mask, x.shape[1], x.shape[1]).any(axis=1)  # no visible key; reported elsewhere
        later = np.argwhere(np.tril(reached & ~idle, -1))  # (position of the input, earlier output)
        if len(later):
            at, output = (int(i) for i in later[np.lexsort((-later[:, 0], later[:, 1]))[0]])
            text = f"outputs at position {output} change with inputs at position {at}, despite the {forward.mask} mask"
            yield wrong(text)
            return


def _reached(probe: Probe, x: FloatArray) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return which outputs change if one input of a sequence changes: booleans (changed position, output position)."""
    length = x.shape[1]
    changed = np.repeat(x, length, axis=0)
    changed[np.arange(length), np.arange(length)] *= -1.0
    y = probe.output(probe.reader.path, x)
    changes = np.abs(probe.output(probe.reader.path, changed) - y).max(axis=-1)
    return np.asarray(changes > 4 * probe.bound * np.abs(y).max())
