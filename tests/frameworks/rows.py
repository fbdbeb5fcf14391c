"""Layers in rows, and the body that compares an inspection of each with its row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

import attncheck as ac
from attncheck.frameworks.notes import Note
from tests.refusals import refused

#: Fields of the forward pass of usual attention.
USUAL: dict[str, Any] = {
    "known": True,
    "map": "softmax",
    "mask": "none",
    "scale": "1/sqrt(head_dim)",
    "positions": "none",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A layer, and what its inspection says.

    Attributes
    ----------
    name : str
    make : adapter or function
    notes : tuple of str
        The level of each note, and parts of its text: "wrong: same in every head", "asks: added as 3 ... lower by 3".
    forward : mapping
        Fields of the forward pass other than those of usual attention; any value for `...`.
    matrices : str
        Letters of the matrices that are read.
    require : mapping
        Further expectations that the layer meets.
    refusal : str
        What `layer` reports, as a pattern, if the layer has no description.
    options : mapping
        Arguments of the inspection.
    bound : float
        Largest relative error that rounding may explain.
    """

    name: str
    make: Any
    notes: tuple[str, ...]
    forward: dict[str, Any]
    matrices: str = "QKVO"
    require: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    refusal: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    bound: float = 1e-4


def row(name: str, make: Any, *notes: str, **fields: Any) -> Row:
    """Return a row; other fields than its own are those of the forward pass."""
    own = {field: fields.pop(field) for field in [*fields] if field in Row.__dataclass_fields__}
    return Row(name, make, notes, fields, **own)


def each(rows: Iterable[Row]) -> pytest.MarkDecorator:
    """Return the mark that runs a test on each row."""
    rows = list(rows)
    return pytest.mark.parametrize("row", rows, ids=[row.name for row in rows])


def inspected(make: Any, call: Any = None, width: int = 64, **options: Any) -> ac.Inspection:
    """Inspect a layer in two draws."""
    return ac.inspect(make, width, call, **({"draws": 2} | options))


def is_noted(note: Note, expected: str) -> bool:
    level, _, text = expected.partition(": ")
    return note.level == level and all(part in str(note) for part in text.split(" ... "))


def notes_of(inspection: ac.Inspection) -> list[str]:
    return [f"{note.level}: {note}" for note in inspection.notes]


def assert_says(row: Row) -> ac.Inspection:
    """Assert that an inspection says what the row does, and no more; return it."""
    inspection = inspected(row.make, **row.options)
    assert len(inspection.notes) == len(row.notes), notes_of(inspection)
    assert all(map(is_noted, inspection.notes, row.notes)), notes_of(inspection)
    assert inspection.verdict.startswith("WRONG") == bool(inspection.blamed)
    assert "".join(role[0].upper() for role in inspection.weights) == row.matrices
    usual = USUAL if row.forward.get("known", True) else {}
    for name, value in (usual | row.forward).items():
        assert value in (..., getattr(inspection.forward, name)), name
    if inspection.forward.known:
        assert inspection.forward.error <= inspection.forward.bound < row.bound
    inspection.require(**row.require)
    if row.refusal:
        refused(inspection.layer, row.refusal)
    return inspection
