"""Numbers, layers and effects as a reader wants them; the same on the terminal, in tables and alternative texts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from attncheck.attention import AttentionLayer
from attncheck.checks.claims import NOT_EXPOSED
from attncheck.errors import InputError
from attncheck.evidence.family import Outcome
from attncheck.records import Result


def number(value: float | None) -> str:
    """Return four significant digits, or a dash.

    Examples
    --------
    >>> number(1234567.0), number(0.25), number(None)
    ('1.235e+06', '0.25', '–')
    """
    return "–" if value is None else f"{value:.4g}"


def chance(value: float | None) -> str:
    """Return a p-value with two significant digits.

    Examples
    --------
    >>> chance(0.000123), chance(0.0)
    ('0.00012', '<1e-300')
    """
    if value is None:
        return "–"
    return "<1e-300" if value < 1e-300 else f"{value:.2g}"


def gap_text(gap: float | None) -> str:
    """Return the smallest effect that a look detects; no effect at all may be large enough.

    Examples
    --------
    >>> gap_text(0.0123), gap_text(None), gap_text(math.inf)
    ('0.0123', 'nothing', 'nothing')
    """
    return "nothing" if gap is None or math.isinf(gap) else f"{gap:.3g}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural where it needs one.

    Examples
    --------
    >>> counted(1, "layer"), counted(12000, "layer")
    ('1 layer', '12,000 layers')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def telling(reasons: Mapping[str, int]) -> str:
    """Return the reason that a reader can act on, else the most common; empty if there is none.

    Parameters
    ----------
    reasons : mapping of str to int
        Reasons why something was not examined, and how often.

    Examples
    --------
    >>> telling({"softmax only": 9, "the subject does not expose value_gram": 3})
    'the subject does not expose value_gram'
    """
    return min(reasons, key=lambda reason: (not reason.startswith(NOT_EXPOSED), -reasons[reason], reason), default="")


def span(values: list[Any]) -> str:
    """Return the range of a list of smallest and largest.

    Examples
    --------
    >>> span([1.0, 2.5]), span([3, 3]), span([])
    ('1 to 2.5', '3', '–')
    """
    texts = [f"{value:,}" if isinstance(value, int) else number(value) for value in values]
    return " to ".join(dict.fromkeys(texts)) or "–"


def layer_name(layer: dict[str, Any]) -> str:
    """Return the short name of a layer or program; of one that this version does not know, its fields."""
    if "program" in layer:
        return _program_name(layer)
    try:
        return AttentionLayer.from_dict(layer).describe()
    except (InputError, TypeError):
        return " ".join(f"{name}={value}" for name, value in sorted(layer.items()))


def layer_call(layer: AttentionLayer) -> str:
    """Return the call that makes a layer.

    Examples
    --------
    >>> layer_call(AttentionLayer(width=8, mask="causal"))
    "attncheck.AttentionLayer(width=8, mask='causal')"
    """
    given = ((field.name, getattr(layer, field.name), field.default) for field in dataclasses.fields(layer))
    return (
        f"attncheck.AttentionLayer({', '.join(f'{name}={value!r}' for name, value, usual in given if value != usual)})"
    )


def _program_name(case: dict[str, Any]) -> str:
    """Return the short name of a program without building it, which would import what its functions are in."""
    try:
        rows = case["program"]["lines"]
        lines = sum(len(row.get("initial", [row])) for row in rows)
        scores = sum("score" in row for row in rows)
        widths = ",".join(str(width) for width in case["widths"])
    except (KeyError, TypeError, AttributeError):
        return "a program that this version does not know"
    return f"n={widths} program of {counted(lines, 'line')}, {counted(scores, 'score')}"


def printable(text: str, most: int = 200) -> str:
    """Return a text without control characters, and cut where it is too long to show.

    Examples
    --------
    >>> printable(f"a{chr(0)}b") == f"a{chr(0xFFFD)}b", printable("abcdef", 4)
    (True, 'abc…')
    """
    shown = "".join(char if char.isprintable() else "\ufffd" for char in text[: most + 1])
    return shown if len(text) <= most else shown[: most - 1] + "…"


def allowed(seen: Outcome | Result) -> str:
    """Return the effect that the null expects, or the largest that it allows.

    Examples
    --------
    >>> allowed(Outcome(0.5, 1.02, 0.9, 1.1, null_effect=1.0, count=9))
    '1'
    >>> allowed(Outcome(1.0, 0.0, 0.0, 0.003, null_effect=0.0045, count=9, at_most=True))
    'up to 0.0045'
    """
    return f"{'up to ' if seen.at_most else ''}{number(seen.null_effect)}"


def expected(seen: Outcome | Result) -> str:
    """Return the same with its verb.

    Examples
    --------
    >>> expected(Outcome(0.5, 1.02, 0.9, 1.1, null_effect=1.0, count=9))
    'expected 1'
    """
    return f"{'allowed' if seen.at_most else 'expected'} {allowed(seen)}"


def interval(result: Result) -> str:
    """Return the effect with its interval."""
    if result.effect is None:
        return "–"
    return f"{number(result.effect)} [{number(result.low)},\N{NO-BREAK SPACE}{number(result.high)}]"


def reads(result: Result) -> str:
    """Return what the effect is: a result's text up to its first number."""
    return result.text.partition(f" {number(result.effect)} [")[0].rstrip(":") if result.effect is not None else ""


def in_departures(result: Result, value: float | None) -> float | None:
    """Return an effect in units of the departure that the check must catch: 0 declared, 1 must be caught.

    Ratios are measured by their logarithms, so that 1/r lies as far below as r above.
    """
    null, departure = result.null_effect, result.departure
    if value is None or null is None or departure is None or departure == null:
        return None
    if null == 1.0 and departure > 0.0:
        return math.log(max(value, 1e-12)) / math.log(departure)
    return (value - null) / (departure - null)
