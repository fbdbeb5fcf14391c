"""Expected initialisers of parameters, written as text such as ``normal(0.02/sqrt(2*n_layer))``."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from attncheck._lib.errors import refuse
from attncheck._lib.names import name_of, names_of, pattern_of
from attncheck.frameworks.expectations import EXAMPLE, evaluated
from attncheck.frameworks.laws import CONSTANT, LAWS, ORTHOGONAL
from attncheck.models.parameters import NOT_FINITE, NOT_INITIALISED, ParameterStatistics

_FIELD = "parameters"
_DRAWN = (*(law.name for law in LAWS), ORTHOGONAL)
_VALUES = {"zeros": 0.0, "ones": 1.0}
#: In place of an initialiser: another pattern must match each parameter that this one matches.
DECLARED = "declared"
_TIED = re.compile(r"tied\((.+)\)")
_CALL = re.compile(r"\s*([a-z ]+?)\s*(?:\((.*)\))?\s*", re.DOTALL)
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
# An expression that is a plain number, and so need not be shown next to its value.
_PLAIN = re.compile(r"([\d.]+(e[+-]?\d+)?)?")


@dataclasses.dataclass(frozen=True)
class _Expected:
    """Expected initialiser of a parameter.

    `number` is the standard deviation or the constant, None if it is not specified. `text` is the expression for
    `number`, with values in place of names.
    """

    law: str
    number: float | None
    text: str


def checked(expected: Any) -> Mapping[str, Any]:
    """Return `expected`; raise `InputError` unless it is a mapping of patterns to initialisers."""
    if not isinstance(expected, Mapping) or not all(isinstance(pattern, str) for pattern in expected):
        refuse(_FIELD, expected, "is not a mapping of patterns to initialisers", 'pass e.g. {"*.bias": "zeros"}')
    return expected


def unmet(expected: Mapping[str, Any], table: Sequence[ParameterStatistics], names: Mapping[str, float]) -> list[str]:
    """Return one sentence per parameter, or group of similar parameters, that does not meet an expectation.

    Parameters
    ----------
    expected : mapping of str to str
        Initialisers by pattern of names. The number is the standard deviation of an entry, and may use fan_in,
        fan_out and `names`: ``{"*.c_proj.weight": "normal(0.02/sqrt(2*n_layer))", "*.bias": "zeros"}``. Or "tied(X)",
        for a parameter that is the parameter X, or "declared".
    table : sequence of ParameterStatistics
    names : mapping of str to float
        Numbers of the model's configuration.

    Examples
    --------
    >>> import numpy as np
    >>> from attncheck.frameworks.framework import Parameter
    >>> from attncheck.models.parameters import statistics_of
    >>> bias = Parameter("fc.bias", (4,), "Linear", None, (np.zeros(4), np.zeros(4)))
    >>> unmet({"*.bias": "constant(eps)"}, statistics_of([bias]), {"eps": 0.1})
    ['fc.bias: zeros, not constant 0.1']
    """
    sentences = []
    matched = {pattern: [row for row in table if _matches(row, pattern)] for pattern in expected}
    for pattern, text in expected.items():
        rows = matched[pattern]
        if not rows:
            example = table[0].name if table else "*.weight"
            refuse(_FIELD, pattern, "matches no parameter", f"use a pattern of names such as {example!r}")
        if text == DECLARED:
            others = {row.name for one, of in matched.items() if expected[one] != DECLARED for row in of}
            names_left = [row.name for row in rows if row.name not in others]
            sentences += [f"{names_of(names_left)}: no expectation declares it"] if names_left else []
            continue
        if match := _TIED.fullmatch(str(text)):
            untied = [row.name for row in rows if match[1] not in (row.name, *row.tied)]
            sentences += [f"{name} is not tied to {match[1]}" for name in untied]
            continue
        wrong: dict[tuple[str, tuple[str, ...], _Expected], list[ParameterStatistics]] = {}
        for row in rows:
            initialiser = _expected(text, row, names)
            if failed := _failures(row, initialiser):
                wrong.setdefault((pattern_of(row.name), failed, initialiser), []).append(row)
        for (_, failed, initialiser), members in wrong.items():
            sentences.append(_sentence(members, failed, initialiser))
    return sentences


def _matches(row: ParameterStatistics, pattern: str) -> bool:
    """Return whether a pattern matches one of the names of a parameter."""
    return any(fnmatch.fnmatchcase(name, pattern) for name in (row.name, *row.tied))


def _expected(text: Any, row: ParameterStatistics, names: Mapping[str, float]) -> _Expected:
    """Parse `text`, the expected initialiser of a parameter; its expression may contain the numbers `names`."""
    match = _CALL.fullmatch(text) if isinstance(text, str) else None
    law, expression = match.groups() if match else ("", None)
    accepted = (*_DRAWN, *_VALUES) if expression is None else (*_DRAWN, CONSTANT)
    if law not in accepted:
        laws = ", ".join((*_DRAWN, *_VALUES, CONSTANT))
        refuse(_FIELD, text, "is not a known initialiser", f"use one of {laws}; {EXAMPLE}")
    if expression is None:
        return _Expected(law, _VALUES.get(law), "")
    fans = {} if row.fans is None else {"fan_in": row.fans[0], "fan_out": row.fans[1]}
    known: dict[str, float] = {**names, **fans}
    number = evaluated(_FIELD, text, expression, known)
    if law != CONSTANT and number <= 0:
        refuse(_FIELD, text, f"the standard deviation must be positive, not {number:g}", EXAMPLE)
    formula = _NAME.sub(lambda word: f"{known[word[0]]:g}" if word[0] in known else word[0], expression).strip()
    return _Expected(law, number, formula)


def _failures(row: ParameterStatistics, initialiser: _Expected) -> tuple[str, ...]:
    """Return what differs from the expected initialiser: "law", "std", "mean", "value", or another reason as text."""
    state = next((note for note in (NOT_INITIALISED, NOT_FINITE) if note in row.notes), "")
    if state or math.isnan(row.scale.std):
        return (state,) if state else ()
    if initialiser.law in (*_VALUES, CONSTANT):
        near = initialiser.number is not None and abs(row.mean - initialiser.number) <= max(row.mean_error, 1e-12)
        return () if row.constant and near else ("value",)
    failed = []
    unknown = initialiser.law == ORTHOGONAL and not row.orthogonality_known
    if unknown and not row.constant:
        failed.append("whether it is orthogonal is not determined: it has too few entries, or too many")
    elif row.constant or initialiser.law not in row.laws:
        failed.append("law")
    if initialiser.number is not None and not row.constant and not row.scale.holds(initialiser.number):
        failed.append("std")
    if not row.constant and abs(row.mean) > row.mean_error:
        failed.append("mean")
    return tuple(failed)


def _sentence(rows: Sequence[ParameterStatistics], failed: Sequence[str], initialiser: _Expected) -> str:
    """Return the sentence on parameters that differ from the expected initialiser in the same way.

    `failed` lists their differences, as returned by `_failures`.
    """
    names = [row.name for row in rows]
    name = names[0] if len(rows) == 1 else f"{name_of(names, names)} ({len(rows)})"
    first = rows[0]
    number = "" if initialiser.number is None else f"{initialiser.number:.3g}"
    origin = "" if _PLAIN.fullmatch(initialiser.text) else f" = {initialiser.text}"
    actual = first.law if first.constant else f"{first.law}, std {_std_text(rows)}"
    value = initialiser.law if initialiser.law in _VALUES else f"constant {number}"
    texts = {
        "law": f"{first.law}, not {initialiser.law}",
        "value": f"{actual}, not {value}{origin}",
        "std": f"std {_std_text(rows)}, not {number}{origin}",
        "mean": f"mean {first.mean:.3g}, not 0",
    }
    return f"{name}: {'; '.join(texts.get(failure, failure) for failure in failed)}"


def _std_text(rows: Sequence[ParameterStatistics]) -> str:
    """Return the standard deviation of one parameter with its interval, or the range over several parameters."""
    if len(rows) == 1:
        scale = rows[0].scale
        return f"{scale.std:.3g}, from {scale.low:.3g} to {scale.high:.3g}"
    stds = [row.scale.std for row in rows]
    return f"{min(stds):.3g} to {max(stds):.3g}"
