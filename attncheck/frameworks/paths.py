"""Comparison of a module's code paths: which are random, and which differ."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

from attncheck._lib.errors import InputError
from attncheck.frameworks.forward import Forward
from attncheck.frameworks.notes import ASKS, NOTE, WRONG, Note, wrong
from attncheck.frameworks.probe import Probe

# Code paths whose names start with this may be random.
_TRAINING = "train"
# Causes of different outputs on one input, by whether a call draws random numbers; None if unknown.
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


def over_paths(
    probe: Probe, forward: Forward, look: Callable[[str], tuple[Forward, list[Note]]]
) -> tuple[dict[str, Forward], list[Note]]:
    """Return the formulas of all examined code paths, by name, and notes on how paths differ.

    `forward` is the formula of the probe's path. If another path gives other outputs, `look` inspects it, and returns
    its formula and notes.
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
            # A random training path may have a known formula, since attention is inspected without dropout.
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
    """Yield one note per difference between paths."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for path, forward in formulas.items():
        # Paths without a known formula were reported already.
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
