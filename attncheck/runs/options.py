"""Options of a run, common to all front ends."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: Default path of a record.
RECORD = Path("reports/output/record.jsonl")
#: Default time limit of a call of the subject, in seconds.
TIMEOUT = 300.0


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of a run, not yet validated; numbers may be text.

    Attributes
    ----------
    subject : callable or str, optional
        Simulator to test, or its name; by default the built-in literal simulator.
    seed : int or str
    profile : {"smoke", "default", "thorough"}
    false_alarm : float or str
        False-alarm budget of the run.
    draws : int or str, optional
        Number of draws that a look may always take, whatever their cost; only with the profile thorough.
    min_examined : int or str, optional
        Minimum number of examined results for a pass.
    only : sequence of str
        Properties to test; all if empty.
    record : Path, optional
        Where to write the record.
    checks : sequence of str
        Modules with further checks to examine, besides the checks of installed packages.
    timeout : float or str, optional
        Seconds that one call of the subject may take; None for no limit.
    """

    subject: Any = None
    seed: Any = 0
    profile: str = "default"
    false_alarm: Any = 1e-6
    draws: Any = None
    min_examined: Any = None
    only: Sequence[str] = ()
    record: Path | None = None
    checks: Sequence[str] = ()
    timeout: Any = TIMEOUT


def drawn_seed(text: str) -> str:
    """Return the text of a seed; "random" is replaced by a newly drawn seed.

    Examples
    --------
    >>> drawn_seed("3"), drawn_seed("random").isdecimal()
    ('3', True)
    """
    return str(int.from_bytes(os.urandom(4), "big")) if text == "random" else text


def typed(value: Any, kind: Callable[[str], Any]) -> Any:
    """Convert text to a number if possible, else return it unchanged, to be rejected when options are validated.

    Examples
    --------
    >>> typed("12", int), typed("1e6", count), typed("many", int)
    (12, 1000000, 'many')
    """
    try:
        # Do not accept underscores: Python reads 1_0 as 10.
        return kind(value) if isinstance(value, str) and "_" not in value else value
    except ValueError:
        return value


def count(text: str) -> int:
    """Convert text such as "1000" or "1e6" to a whole number.

    Raises
    ------
    ValueError
        If the text is not a whole number.

    Examples
    --------
    >>> count("1e6")
    1000000
    """
    number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)
