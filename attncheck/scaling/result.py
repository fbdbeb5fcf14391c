"""Results of a width-scaling check: rows, verdict, text and built-in types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from attncheck._lib.errors import refuse, suggestion
from attncheck._lib.names import grouped, pattern_of
from attncheck._lib.text import aligned, counted, first_few, listed
from attncheck.evidence.verdicts import Verdict
from attncheck.scaling.predictions import TapSeries

_MOMENTS = ("at initialisation", "change after 1 step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WidthsRow(TapSeries):
    """Result of one measurement.

    Attributes
    ----------
    name : str
        Name of the tap.
    what : str
        Class or function that computes the tap.
    kind : str
        One of ``attncheck.scaling.taps.KINDS``.
    steps : int
        0 for the size at initialisation, else the number of steps before the change.
    predicted : str
        Prediction as text; empty without one.
    low_predicted, high_predicted : float or None
        Predicted exponents, without tolerance.
    exponent : float or None
        Estimated exponent in the last look; None for zero sizes.
    low, high : float or None
        Ends of the interval of the exponent; None for zero sizes.
    share : float or None
        For a mixed prediction, the share of the mean square at the largest width that is due to parts that grow faster
        than predicted.
    spread : float or None
        Standard deviation of a log size over seeds.
    sizes : tuple of float
        Geometric mean at each width.
    verdict : Verdict
    p_values : tuple of float
        One per look.
    seeds_needed : int or None
        Option `seeds` that would decide an inconclusive result, if any number would.
    notes : tuple of str
    """

    predicted: str
    low_predicted: float | None
    high_predicted: float | None
    exponent: float | None
    low: float | None
    high: float | None
    share: float | None
    sizes: tuple[float, ...]
    verdict: Verdict
    p_values: tuple[float, ...]
    seeds_needed: int | None
    notes: tuple[str, ...]

    @property
    def moment(self) -> str:
        """Time of the measurement as text."""
        return _MOMENTS[self.steps] if self.steps < len(_MOMENTS) else f"change after {self.steps} steps"

    @property
    def cells(self) -> tuple[str, ...]:
        """Table row as text."""
        numbers = ("–" if number is None else f"{number:+.3f}" for number in (self.exponent, self.low, self.high))
        return (self.name, self.what, *numbers, self.predicted or "–", self.said)

    @property
    def said(self) -> str:
        """Verdict with notes."""
        more = self.notes
        if self.verdict is Verdict.INCONCLUSIVE:
            needed = "no number of seeds decides" if self.seeds_needed is None else f"seeds={self.seeds_needed} decides"
            more = (needed, *more)
        return f"{self.verdict}{': ' if more else ''}{'; '.join(more)}"


@dataclasses.dataclass(frozen=True)
class Widths:
    """Width scaling of a model.

    Attributes
    ----------
    widths : tuple of int
    seeds : tuple of int
        Models per look at each width.
    level : float
        Error probability of an interval.
    false_alarm : float
        Probability of reporting any violation if all predictions hold.
    tolerance : float
        Allowed difference between an exponent and its prediction.
    rows : tuple of WidthsRow
        In the order of the computation.
    fixed_scales : tuple of float
        Standard deviations of matrices that have two growing axes, but the same standard deviation at every width;
        empty unless a size at initialisation is violated.
    fitting : str
        If a size at initialisation is violated, the name of a prediction that fits all such sizes.
    seconds : float
        Duration of the longest look.
    """

    widths: tuple[int, ...]
    seeds: tuple[int, ...]
    level: float
    false_alarm: float
    tolerance: float
    rows: tuple[WidthsRow, ...]
    fixed_scales: tuple[float, ...] = ()
    fitting: str = ""
    seconds: float = dataclasses.field(default=0.0, compare=False)

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of all rows; inconclusive if no row was examined."""
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
        rows = {row.name: row for row in self.rows if not row.steps}
        if name not in rows:
            remedy = f"use a name in the table, e.g. {next(iter(rows))}"
            refuse("name", name, "is not a tap", suggestion(name, rows, remedy))
        return rows[name]

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
        tables = (line for moment, rows in self.tables for line in (f"\n{moment}", *aligned(rows)))
        return "\n".join([self.headline, *self._said(), *tables])

    @property
    def headline(self) -> str:
        """Verdict, number of exponents, and, if known, the cause of violations or the seeds needed for a verdict."""
        number = counted(sum(row.verdict is not Verdict.NOT_EXAMINED for row in self.rows), "exponent")
        plan = f"widths {self.widths[0]} to {self.widths[-1]}, {min(self.seeds)} to {max(self.seeds)} seeds each"
        count = f"{len(self.violated)} of {number}" if self.violated else f"{number} examined"
        parts = [f"{count}, {plan}"]
        if self.fixed_scales:
            parts = [self._fixed(), *parts]
        elif self.fitting:
            parts += [f"sizes at initialisation agree with expect={self.fitting!r} (--expect {self.fitting})"]
        elif self._undecided and not self.violated:
            parts += [self._remedy()]
        return f"{str(self.verdict).upper()}: {'; '.join(parts)}"

    @property
    def _undecided(self) -> list[WidthsRow]:
        return [row for row in self.rows if row.verdict is Verdict.INCONCLUSIVE]

    def _remedy(self) -> str:
        """Return the option of a run that would decide inconclusive exponents, and how long that run takes."""
        known = [row.seeds_needed for row in self._undecided if row.seeds_needed is not None]
        if not known:
            return "no number of seeds would decide the open exponents"
        seconds = self.seconds * max(known) / min(self.seeds)
        option = f"seeds={max(known)} (--seeds {max(known)})"
        return f"{option} would decide {len(known)} of {len(self._undecided)} open exponents, in about {seconds:,.0f} s"

    def _fixed(self) -> str:
        """Describe matrices with the same standard deviation at every width."""
        scales = dict.fromkeys(f"{std:.2g}" for std in sorted(self.fixed_scales))
        matrices = (
            "1 hidden matrix has" if len(self.fixed_scales) == 1 else f"{len(self.fixed_scales)} hidden matrices have"
        )
        return f"{matrices} std {listed(scales)} at every width: neither standard parametrisation nor μP"

    def _said(self) -> Iterator[str]:
        for label, text in self.findings:
            yield f"  {label + ':':9} {text}"

    @property
    def findings(self) -> list[tuple[str, str]]:
        """Pairs of a label ("first", "then", "and", "also" or "open") and a text on rows that are not consistent."""
        findings = []
        initial = [row for row in self.violated if not row.steps]
        later = [row for row in self.violated if row.name not in {row.name for row in initial}]
        for label, rows, rest_label, cause in (
            ("first", initial, "then", "computed later, may follow from it"),
            ("and" if initial else "first", later, "also", "changes in the same steps; check learning rates"),
        ):
            if rows:
                findings.append((label, _finding(rows[0])))
            names = _names(row for row in rows if row.name != rows[0].name)
            if names:
                findings.append((rest_label, f"{names}: {cause}"))
        if self._undecided:
            # The headline of an inconclusive result has the remedy; a violated one needs none.
            findings.append(("open", _names(self._undecided)))
        return findings

    @property
    def tables(self) -> list[tuple[str, list[tuple[str, ...]]]]:
        """One table at initialisation and one per step, each starting with its heading; similar rows are merged."""
        heading = ("tap", "of", "exponent", "from", "to", "predicted", "verdict")
        moments = dict.fromkeys(row.moment for row in self.rows)
        return [(m, [heading, *(row.cells for row in _merged(self.rows) if row.moment == m)]) for m in moments]


def _finding(row: WidthsRow) -> str:
    """Return a sentence on one violation."""
    class_text = f" ({row.what})" if row.what else ""
    share = "" if row.share is None else f", {min(row.share, 1.0):.0%} of its mean square grows faster than predicted"
    return (
        f"{row.name}{class_text} {row.moment}: n^{row.exponent:+.2f}, from {row.low:+.2f} to {row.high:+.2f}{share}; "
        f"predicted {'; '.join((row.predicted, *row.notes))}"
    )


def _pattern(name: str) -> str:
    """Replace numbers of blocks by stars, unless the name begins with a number, as in a sequence of layers.

    Examples
    --------
    >>> _pattern("blocks.0.attn.q"), _pattern("Block_1.Dense"), _pattern("0"), _pattern("block.ln2")
    ('blocks.*.attn.q', 'Block_*.Dense', '0', 'block.ln2')
    """
    return name if name[:1].isdigit() else pattern_of(name)


def _names(rows: Iterable[WidthsRow]) -> str:
    """Return the first few names of rows as text, with a star for the number of a block; empty without rows."""
    names = dict.fromkeys(_pattern(row.name) for row in rows)
    return first_few(names) if names else ""


def _merged(rows: Iterable[WidthsRow]) -> list[WidthsRow]:
    """Merge rows with the same verdict and prediction whose names differ in the numbers of blocks."""
    groups = grouped(rows, lambda row: (_pattern(row.name), row.what, row.moment, row.predicted, row.verdict))
    return [group[0] if len(group) == 1 else _merge(group) for group in groups.values()]


def _merge(rows: Sequence[WidthsRow]) -> WidthsRow:
    """Return a row with the mean exponent, the range of all intervals, and the notes common to all."""
    first = rows[0]
    measured = [row for row in rows if row.exponent is not None]
    needed = [row.seeds_needed for row in rows if row.seeds_needed is not None]
    return dataclasses.replace(
        first,
        name=f"{_pattern(first.name)} ({len(rows)})",
        exponent=sum(row.exponent or 0.0 for row in measured) / len(measured) if measured else None,
        low=min((row.low or 0.0 for row in measured), default=None),
        high=max((row.high or 0.0 for row in measured), default=None),
        seeds_needed=max(needed, default=None),
        notes=tuple(note for note in first.notes if all(note in row.notes for row in rows)),
    )
