"""Results of a width-scaling check: rows, verdict, text and built-in types."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import msgspec

from attncheck._lib.errors import refuse
from attncheck._lib.text import aligned, counted, listed
from attncheck.evidence.verdicts import Verdict

_BARS = "▁▂▃▄▅▆▇█"
_MOMENTS = ("at initialisation", "change after 1 step")
# Escape codes for red and normal terminal text.
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"
# Maximum number of taps named in a finding.
_NAMED = 3


@dataclasses.dataclass(frozen=True)
class WidthsRow:
    """Result of one measurement.

    Attributes
    ----------
    name, what, kind : str
        Tap name; the class or function that computes it; one of ``attncheck.scaling.taps.KINDS``.
    steps : int
        0 for the size at initialisation, else the number of steps before the change.
    predicted : str
        Prediction as text; empty without one.
    low_predicted, high_predicted : float or None
        Predicted exponents, without tolerance.
    exponent, low, high : float or None
        Exponent and interval in the last look; None for zero sizes.
    share : float or None
        For mixed orders, the share of parts that grow faster than predicted, in the mean square at the largest width.
    spread : float or None
        Standard deviation of a log size over seeds.
    sizes : tuple of float
        Geometric mean at each width.
    verdict : Verdict
    p_values : tuple of float
        One per look.
    more_seeds : int or None
        Additional seeds per width that would decide an inconclusive result, if any number would.
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
        """Time of the measurement as text."""
        return _MOMENTS[self.steps] if self.steps < len(_MOMENTS) else f"change after {self.steps} steps"

    @property
    def cells(self) -> tuple[str, ...]:
        """Table row as text."""
        numbers = ("–" if each is None else f"{each:+.3f}" for each in (self.exponent, self.low, self.high))
        return (self.name, self.what, _bars(self.sizes), *numbers, self.predicted or "–", self.said)

    @property
    def said(self) -> str:
        """Verdict with notes."""
        more = self.notes
        if self.verdict is Verdict.INCONCLUSIVE:
            more = ("no number of seeds decides" if self.more_seeds is None else _more(self.more_seeds), *more)
        return f"{self.verdict}{': ' if more else ''}{'; '.join(more)}"


@dataclasses.dataclass(frozen=True)
class Widths:
    """Width scaling of a model.

    Attributes
    ----------
    widths : tuple of int
    seeds : int
        Models per width and look.
    level : float
        Error probability of an interval.
    false_alarm : float
        Probability of reporting any violation if all predictions hold.
    tolerance : float
        Allowed difference between an exponent and its prediction.
    rows : tuple of WidthsRow
        In the order of the computation.
    """

    widths: tuple[int, ...]
    seeds: int
    level: float
    false_alarm: float
    tolerance: float
    rows: tuple[WidthsRow, ...]

    @property
    def verdict(self) -> Verdict:
        """Violated if any row is, else inconclusive if any is, else consistent if any row was examined."""
        worst = Verdict.worst(row.verdict for row in self.rows)
        return Verdict.INCONCLUSIVE if worst is Verdict.NOT_EXAMINED else worst

    @property
    def violated(self) -> tuple[WidthsRow, ...]:
        """Violated rows in the order of the computation; later ones may follow from earlier ones."""
        return tuple(row for row in self.rows if row.verdict is Verdict.VIOLATED)

    def __getitem__(self, name: str) -> WidthsRow:
        """Return the row of a tap at initialisation.

        Raises
        ------
        InputError
            If there is no such tap.
        """
        found = {row.name: row for row in self.rows if not row.steps}
        if name not in found:
            close = get_close_matches(name, found, n=1) or [*found][:1]
            refuse("name", name, "is not a tap", f"use a name in the table, e.g. {close[0]}")
        return found[name]

    def require(self) -> None:
        """Raise if any row is violated.

        Raises
        ------
        AssertionError
            Listing the violations in the order of the computation.
        """
        __tracebackhide__ = True
        if self.violated:
            raise AssertionError("\n".join(self._said()))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as built-in types."""
        return {"verdict": str(self.verdict), **msgspec.to_builtins(self)}

    def __str__(self) -> str:
        return self.shown()

    def shown(self, red: bool = False) -> str:
        """Return the result as text, optionally with violations in red."""
        return "\n".join([self.headline, *self._said(), *self._tables(red)])

    @property
    def headline(self) -> str:
        """Verdict and number of exponents examined."""
        examined = sum(row.verdict is not Verdict.NOT_EXAMINED for row in self.rows)
        widths = f"widths {self.widths[0]} to {self.widths[-1]}, {counted(self.seeds, 'seed')} each"
        return f"{str(self.verdict).upper()}: {counted(examined, 'exponent')} examined, {widths}"

    def _said(self) -> Iterator[str]:
        for what, text in self.findings:
            yield f"  {what + ':':9} {text}"

    @property
    def findings(self) -> list[tuple[str, str]]:
        """Findings on rows that are not consistent, as pairs of a label ("first", "then", "and", "open") and a text."""
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
        """One table at initialisation and one per step, each starting with its heading."""
        heading = ("tap", "of", "sizes", "exponent", "from", "to", "predicted", "verdict")
        moments = dict.fromkeys(row.moment for row in self.rows)
        return [(m, [heading, *(row.cells for row in self.rows if row.moment == m)]) for m in moments]

    def _tables(self, red: bool) -> Iterator[str]:
        for moment, rows in self.tables:
            yield f"\n{moment}"
            for row, line in zip(rows, aligned(rows), strict=True):
                yield f"{_RED}{line}{_PLAIN}" if red and row[-1].startswith(Verdict.VIOLATED) else line


def _finding(row: WidthsRow) -> str:
    """Return a sentence on one violation."""
    what = f" ({row.what})" if row.what else ""
    share = "" if row.share is None else f", {row.share:.0%} of its mean square grows at a larger order"
    return (
        f"{row.name}{what} {row.moment}: n^{row.exponent:+.2f}, from {row.low:+.2f} to {row.high:+.2f}{share}; "
        f"predicted {'; '.join((row.predicted, *row.notes))}"
    )


def _more(seeds: int) -> str:
    return f"{counted(seeds, 'more seed')} a width"


def _bars(sizes: tuple[float, ...]) -> str:
    """Return sizes as bars on a logarithmic scale, eight steps per factor of 16.

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
