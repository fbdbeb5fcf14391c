"""Cases: an attention layer, or a program at one or several widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attncheck._lib.errors import InputError
from attncheck.layers.attention import NAMED_FIELDS, AttentionLayer
from attncheck.layers.program import ProgramCase

#: Widths at which checks that hold exactly at any width test programs, with explicit matrices.
EXACT_WIDTHS = (16,)
#: Widths at which checks of a rate of convergence, a power of the width n, test programs.
RATE_WIDTHS = (32, 128, 512)


Case = AttentionLayer | ProgramCase


def read_case(fields: Mapping[str, Any], trust: Sequence[str] | None = ()) -> Case:
    """Build the layer or program that a record describes.

    Invalid fields, and functions of modules that `trust` does not list, raise `InputError`. If `trust` is None,
    functions of a layer are not imported; the layer then contains their names.
    """
    if not isinstance(fields, Mapping):
        raise InputError("layer: is not a table; make the record again")
    if "program" in fields:
        return ProgramCase.from_dict(fields, trust or ())
    return AttentionLayer.from_dict(fields, trust)


def modules_of(fields: Any) -> tuple[str, ...]:
    """Return the names of the modules whose functions a serialised layer or program uses.

    Examples
    --------
    >>> modules_of({"program": {"lines": [{"nonlin": {"path": "mine.layers:phi"}}]}, "widths": [16]})
    ('mine.layers',)
    """
    if isinstance(fields, Mapping):
        paths = [path for name in ("path", *NAMED_FIELDS) if isinstance(path := fields.get(name), str) and ":" in path]
        modules = [path.partition(":")[0] for path in paths]
        return tuple(dict.fromkeys([*modules, *(name for part in fields.values() for name in modules_of(part))]))
    if isinstance(fields, list | tuple):
        return tuple(dict.fromkeys(name for part in fields for name in modules_of(part)))
    return ()
