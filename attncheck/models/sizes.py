"""Scaling of parameters with the width and depth of a model, by comparison with a model of twice the size."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attncheck._lib.errors import InputError
from attncheck._lib.text import listed
from attncheck.frameworks.framework import parameters_of
from attncheck.frameworks.notes import Note
from attncheck.models.factory import Inputs, first_model
from attncheck.models.families import Family, families
from attncheck.models.parameters import ParameterStatistics, statistics_of

# Arguments of `make` that determine sizes.
_SIZES = ("width", "depth")
# Powers of a size to which a standard deviation may be proportional, as text.
_POWERS = {0.0: "does not change", -0.5: "∝ 1/sqrt({})", -1.0: "∝ 1/{}", 0.5: "∝ sqrt({})"}
_ENTRIES = 2**16


def notes_of_sizes(
    make: Any,
    inputs: Inputs | None,
    call: Callable[..., Any] | None,
    seed: int,
    table: Sequence[ParameterStatistics],
) -> Iterator[Note]:
    """Report how standard deviations scale with the arguments `width` and `depth` of `make` that have a default.

    A model of twice the default size is compared with `table`.
    """
    for size in _SIZES:
        known = inspect.signature(make).parameters if size in parameters_of(make) else {}
        value = known[size].default if size in known else None
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        try:
            factory, model = first_model(functools.partial(make, **{size: 2 * value}), inputs, call, seed)
        except InputError as error:
            yield Note(f"{size} {2 * value} is not compared: {error}")
            continue
        yield from _compared(size, value, table, statistics_of(factory.parameters(model, _ENTRIES)))


def _compared(
    size: str, value: int, table: Sequence[ParameterStatistics], other: Sequence[ParameterStatistics]
) -> Iterator[Note]:
    """Yield a note on the powers of a size to which standard deviations are proportional."""
    if [(row.name, row.shape) for row in table] == [(row.name, row.shape) for row in other]:
        yield Note(f"{size} is not compared: {size} {2 * value} makes the same shapes as {value}")
        return
    here, there = _by_name(table), _by_name(other)
    found: dict[str, list[str]] = {}
    for name in here.keys() & there.keys():
        (low, high), (least, most) = here[name].bounds, there[name].bounds
        fitting = [text for power, text in _POWERS.items() if least / high <= 2**power <= most / low]
        if len(fitting) == 1:
            found.setdefault(fitting[0], []).append(name)
    parts = (f"{text.format(size)} in {listed(sorted(found[text]))}" for text in _POWERS.values() if text in found)
    if text := "; ".join(parts):
        yield Note(f"std at {size} {2 * value} against {value}: {text}")


def _by_name(table: Sequence[ParameterStatistics]) -> dict[str, Family]:
    """Return the families of drawn matrices by name."""
    drawn = (family for family in families(table) if family.drawn and len(family.first.shape) > 1)
    return {family.name: family for family in reversed(list(drawn))}
