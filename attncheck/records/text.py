"""Texts about the results of a record."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from attncheck._lib.text import counted, listed, number
from attncheck.checks.claims import NOT_EXPOSED
from attncheck.checks.registry import EVERY_PROPERTY
from attncheck.records.schema import Result

#: Modules of attncheck's own subjects, which are trusted.
BUILTIN_SUBJECTS = ("attncheck.subject", "attncheck.faults")


def replay_command(record: Path | str, id: str, subject: str, checks: Sequence[str] = ()) -> str:
    """Return the command that repeats a result, with ``--trust`` for the subject's module.

    `checks` are the modules of registered checks in the record; a result of such a check needs them too.

    Examples
    --------
    >>> replay_command("run.jsonl", "scores.scale@0123456789ab", "attncheck.subject:direct")
    'attncheck replay run.jsonl scores.scale@0123456789ab'
    >>> replay_command("run.jsonl", "scores.scale@0123456789ab", "mine.attention:packed")
    'attncheck replay run.jsonl scores.scale@0123456789ab --trust mine.attention'
    >>> replay_command("run.jsonl", "signs.mean@0123456789ab", "attncheck.subject:direct", ["mine.checks"])
    'attncheck replay run.jsonl signs.mean@0123456789ab --trust mine.checks'
    """
    module, colon, _ = subject.partition(":")
    foreign = [module] if colon and module not in BUILTIN_SUBJECTS else []
    foreign += [] if id.partition(".")[0] in EVERY_PROPERTY else checks
    trust = [part for name in dict.fromkeys(foreign) for part in ("--trust", name)]
    return shlex.join(["attncheck", "replay", str(record), id, *trust])


def most_informative(reasons: Mapping[str, int]) -> str:
    """Return the reason that the user can remedy, or else the most common one; empty if there are no reasons.

    Examples
    --------
    >>> most_informative({"softmax only": 9, "the subject does not expose value_gram": 3})
    'the subject does not expose value_gram'
    """
    return min(reasons, key=lambda reason: (not reason.startswith(NOT_EXPOSED), -reasons[reason], reason), default="")


def unexamined(reasons: Mapping[str, int]) -> list[str]:
    """Return lines on results that were not examined.

    One line counts the results that need more returned fields, another one all other results.

    Examples
    --------
    >>> unexamined({"the subject does not expose scores, keys": 3, "softmax only": 2})
    ['Return keys and scores too: up to 3 more results.', 'Not examined: 2 other results; all of them: softmax
    only']
    """
    fields, count = missing_fields(reasons)
    rest = {reason: number for reason, number in reasons.items() if not reason.startswith(NOT_EXPOSED)}
    lines = []
    if fields:
        lines.append(f"Return {fields} too: up to {counted(count, 'more result')}.")
    if rest:
        most, total = max(sorted(rest), key=lambda reason: rest[reason]), sum(rest.values())
        line = f"Not examined: {counted(total, 'other result' if fields else 'result')}"
        lines.append(f"{line}; {'all' if rest[most] == total else f'{rest[most]:,}'} of them: {most}")
    return lines


def missing_fields(reasons: Mapping[str, int]) -> tuple[str, int]:
    """Return the fields that a subject does not return, as text, and the number of results that need them."""
    exposing = {reason: count for reason, count in reasons.items() if reason.startswith(NOT_EXPOSED)}
    fields = {field for reason in exposing for field in reason.removeprefix(NOT_EXPOSED).split(", ")}
    return listed(sorted(fields)) if fields else "", sum(exposing.values())


def interval(result: Result) -> str:
    """Return the effect with its interval."""
    if result.effect is None:
        return "–"
    return f"{number(result.effect)} [{number(result.low)},\N{NO-BREAK SPACE}{number(result.high)}]"


def label_of(result: Result) -> str:
    """Return the name of the measured quantity, which precedes the effect in the text of the result."""
    return result.text.partition(f" {number(result.effect)} [")[0].rstrip(":") if result.effect is not None else ""


def quantity(result: Result) -> str:
    """Return the quantity that a check tests, e.g. "score variance", without "Kolmogorov distance of"."""
    label = label_of(result).removesuffix(", observed over declared")
    distance, of, statistic = label.partition("Kolmogorov distance of ")
    return statistic.partition(" from ")[0] if of and not distance else label


def in_alternatives(result: Result, value: float | None) -> float | None:
    """Return an effect in units of the alternative: 0 is the null, and 1 is the alternative.

    Ratios are replaced by their logarithms.
    """
    null, unit = result.null_effect, result.alternative
    if value is None or null is None or unit is None or unit == null or not math.isfinite(unit):
        return None
    if null == 1.0 and unit > 0.0:
        return math.log(max(value, 1e-12)) / math.log(unit)
    return (value - null) / (unit - null)
