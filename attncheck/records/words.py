"""Results of a record in words and numbers."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path

from attncheck._lib.words import number
from attncheck.checks.claims import NOT_EXPOSED
from attncheck.records.schema import Result

#: Where attncheck's own subjects are: a record that names one of them is replayed without further ado.
OWN_SUBJECTS = ("attncheck.subject", "attncheck.faults")


def replay_command(record: Path | str, id: str, subject: str) -> str:
    """Return the command that repeats a result; who runs it says that the module of the subject is trusted.

    Examples
    --------
    >>> replay_command("run.jsonl", "scores.scale@0123456789ab", "attncheck.subject:direct")
    'attncheck replay run.jsonl scores.scale@0123456789ab'
    >>> replay_command("run.jsonl", "scores.scale@0123456789ab", "mine.attention:packed")
    'attncheck replay run.jsonl scores.scale@0123456789ab --trust mine.attention'
    """
    module, colon, _ = subject.partition(":")
    foreign = bool(colon) and module not in OWN_SUBJECTS
    return shlex.join(["attncheck", "replay", str(record), id, *(["--trust", module] if foreign else [])])


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
