"""What is found of a model over widths: a table, what may be required of it, and built-in types."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from attncheck._lib.errors import refuse
from attncheck._lib.words import counted, listed
from attncheck.evidence.verdicts import Verdict

_BARS = "▁▂▃▄▅▆▇█"
_MOMENTS = ("at initialisation", "change after 1 step")
# What makes a terminal write in red, and in its own colour again.
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"
# Taps that a sentence names.
_NAMED = 3


@dataclasses.dataclass(frozen=True)
class WidthsRow:
    """What is found of one number.

    Attributes
    ----------
    name, what, kind : str
        Of the tap; what makes it, such as the name of a class; one of ``attncheck.scaling.taps.KINDS``.
    steps : int
        0 for the size at initialisation, else the change after so many steps.
    predicted : str
        Empty where nothing is.
    low_predicted, high_predicted : float or None
        The exponents that are predicted, without the tolerance.
    exponent, low, high : float or None
        The exponent in the last look with its interval, None where sizes are zero.
    share : float or None
        Where orders are mixed: part of the mean square at the widest width that is of a larger order.
    spread : float or None
        Standard deviation of the logarithm of a size over seeds.
    sizes : tuple of float
        The geometric mean at each width.
    verdict : Verdict
    p_values : tuple of float
        Of each look.
    more_seeds : int or None
        How many more seeds a width would decide, where it is inconclusive and some number would.
    notes : tuple of str
    """

    name: str
    what: str
    kind: str
    steps: int
    predicted: str
    low_predicted: float | None
    high_predicted: float | None
    exponent: float | None
    low: float | None
    high: float | None
    share: float | None
    spread: float | None
    sizes: tuple[float, ...]
    verdict: Verdict
    p_values: tuple[float, ...]
    more_seeds: int | None
    notes: tuple[str, ...]

    @property
    def moment(self) -> str:
        """When it is measured, in words."""
        return _MOMENTS[self.steps] if self.steps < len(_MOMENTS) else f"change after {self.steps} steps"

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table as text."""
        numbers = ("–" if each is None else f"{each:+.3f}" for each in (self.exponent, self.low, self.high))
        return (self.name, self.what, _bars(self.sizes), *numbers, self.predicted or "–", self.said)

    @property
    def said(self) -> str:
        """The verdict, with what is to be known of it."""
        more = self.notes
        if self.verdict is Verdict.INCONCLUSIVE:
            more = ("no number of seeds decides" if self.more_seeds is None else _more(self.more_seeds), *more)
        return f"{self.verdict}{': ' if more else ''}{'; '.join(more)}"


@dataclasses.dataclass(frozen=True)
class Widths:
    """How sizes of a model grow with its width.

    Attributes
    ----------
    widths : tuple of int
    seeds : int
        Models for each width in a look.
    level : float
        The chance that an interval misses its exponent.
    false_alarm : float
        The chance that anything is violated where all predictions are right.
    tolerance : float
        How far an exponent may be from what is predicted.
    rows : tuple of WidthsRow
        In the order in which a model makes them.
    """

    widths: tuple[int, ...]
    seeds: int
    level: float
    false_alarm: float
    tolerance: float
    rows: tuple[WidthsRow, ...]

    @property
    def verdict(self) -> Verdict:
        """Violated if anything is, else inconclusive if anything is; consistent where all that is examined is."""
        found = {row.verdict for row in self.rows}
        for verdict in (Verdict.VIOLATED, Verdict.INCONCLUSIVE, Verdict.CONSISTENT):
            if verdict in found:
                return verdict
        return Verdict.INCONCLUSIVE

    @property
    def violated(self) -> tuple[WidthsRow, ...]:
        """What is violated, the first that a model makes first: what comes later may follow from it."""
        return tuple(row for row in self.rows if row.verdict is Verdict.VIOLATED)

    def __getitem__(self, name: str) -> WidthsRow:
        """Return what is found of a tap at initialisation.

        Raises
        ------
        InputError
            If there is none of that name.
        """
        found = {row.name: row for row in self.rows if not row.steps}
        if name not in found:
            close = get_close_matches(name, found, n=1) or [*found][:1]
            refuse("name", name, "is no tap", f"see the table, e.g. {close[0]}")
        return found[name]

    def require(self) -> None:
        """Raise where anything is violated.

        Raises
        ------
        AssertionError
            With what is violated, and where it begins.
        """
        __tracebackhide__ = True
        if self.violated:
            raise AssertionError("\n".join(self._said()))

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as built-in types."""
        fields = dataclasses.asdict(self)
        fields["rows"] = [row | {"verdict": str(row["verdict"])} for row in fields["rows"]]
        return {"verdict": str(self.verdict), **fields}

    def __str__(self) -> str:
        return self.shown()

    def shown(self, red: bool = False) -> str:
        """Return all of it as text; on a terminal what is violated may be red."""
        return "\n".join([self.headline, *self._said(), *self._tables(red)])

    @property
    def headline(self) -> str:
        """The verdict, and what was examined."""
        examined = sum(row.verdict is not Verdict.NOT_EXAMINED for row in self.rows)
        widths = f"widths {self.widths[0]} to {self.widths[-1]}, {counted(self.seeds, 'seed')} each"
        return f"{str(self.verdict).upper()}: {counted(examined, 'exponent')} examined, {widths}"

    def _said(self) -> Iterator[str]:
        for what, text in self.findings:
            yield f"  {what + ':':9} {text}"

    @property
    def findings(self) -> list[tuple[str, str]]:
        """What is not consistent: "first", "then", "and" or "open", and a sentence."""
        return list(self._findings())

    def _findings(self) -> Iterator[tuple[str, str]]:
        told: set[str] = set()
        for steps in sorted({row.steps for row in self.violated}):
            new = [row for row in self.violated if row.steps == steps and row.name not in told]
            if new:
                yield "and" if told else "first", _finding(new[0])
            if len(new) > 1:
                hidden = [f"{len(new) - 1 - _NAMED} more"] if len(new) - 1 > _NAMED else []
                names = listed([row.name for row in new[1 : 1 + _NAMED]] + hidden)
                yield "then", f"{names}: may follow from it"
            told |= {row.name for row in new}
        undecided = [row for row in self.rows if row.verdict is Verdict.INCONCLUSIVE]
        known = [row.more_seeds for row in undecided if row.more_seeds is not None]
        if undecided:
            needed = f"{_more(max(known))} would decide {len(known)} of them" if known else "no number of seeds decides"
            yield "open", f"{counted(len(undecided), 'exponent')}; {needed}"

    @property
    def tables(self) -> list[tuple[str, list[tuple[str, ...]]]]:
        """A table for each moment, with its heading first."""
        heading = ("tap", "of", "sizes", "exponent", "from", "to", "predicted", "verdict")
        moments = dict.fromkeys(row.moment for row in self.rows)
        return [(m, [heading, *(row.cells for row in self.rows if row.moment == m)]) for m in moments]

    def _tables(self, red: bool) -> Iterator[str]:
        for moment, rows in self.tables:
            yield f"\n{moment}"
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for row in rows:
                line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                yield f"{_RED}{line}{_PLAIN}" if red and row[-1].startswith(Verdict.VIOLATED) else line


def _finding(row: WidthsRow) -> str:
    """Return one violation in a sentence."""
    what = f" ({row.what})" if row.what else ""
    share = "" if row.share is None else f", {row.share:.0%} of its square of a larger order"
    return (
        f"{row.name}{what} {row.moment}: n^{row.exponent:+.2f}, from {row.low:+.2f} to {row.high:+.2f}{share}; "
        f"predicted {row.predicted}"
    )


def _more(seeds: int) -> str:
    return f"{counted(seeds, 'more seed')} a width"


def _bars(sizes: tuple[float, ...]) -> str:
    """Return sizes as bars on a logarithmic scale, eight steps for a factor of 16.

    Examples
    --------
    >>> _bars((1.0, 2.0, 4.0)), _bars((1.0, 1.0, 1.0)), _bars((0.0, 0.0))
    ('▂▄▆', '▄▄▄', '')
    """
    if not all(size > 0.0 for size in sizes):
        return ""
    logs = [2.0 * math.log2(size) for size in sizes]
    middle = 0.5 * (max(logs) + min(logs))
    scale = min(1.0, (len(_BARS) - 1) / max(max(logs) - min(logs), 1e-9))
    return "".join(_BARS[round(3.5 + scale * (each - middle) - 0.01)] for each in logs)
