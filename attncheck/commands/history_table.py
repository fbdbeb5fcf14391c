"""`attncheck history`: table and plot."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.files import write_whole
from attncheck._lib.measured import table
from attncheck._lib.text import printable
from attncheck.checks.registry import all_checks
from attncheck.evidence.detector import ALARM
from attncheck.gate.history import History, accept, short_key, write

# Maximum number of streams in the table.
_ROWS = 12
# Maximum number of characters of a stream's name and of a line of the plot's title, and the smallest evidence shown.
_LONGEST, _TITLE, _LEAST = 60, 110, 1e-3
_OTHER = "of another version"

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def show_history(states: Sequence[Path], out: Path | None, plot: Path | None, accepted: bool) -> int:
    """Print a history; arguments as for `attncheck history`."""
    if not states:
        refuse("states", "", "names no file", "pass the file written by attncheck gate --history")
    if accepted and len(states) > 1:
        refuse("accept", "", "changes one file, and several were passed", "combine them first with --out")
    if plot is not None:
        _check_plot(plot)
    shown = accept(states[0]) if accepted else History.read(states)
    print(shown.sentence())
    moved = shown.moved()
    claims = by_claim(shown)
    if claims:
        most = [(name, f"{part[-1]:.3g}", f"{part.max():.3g}") for name, part in claims.items()]
        print(table(("claim", "evidence", "at most"), most))
    rows = [
        (
            each.stream,
            f"{each.evidence:.3g}",
            short_key(each.since),
            f"{each.runs:,}",
            f"{each.mean:+.2f}",
            f"{each.last:+.2f}",
        )
        for each in moved[:_ROWS]
    ]
    if rows:
        print(table(("check@pool", "evidence", "moves since", "runs", "mean score", "last"), rows))
    if len(moved) > _ROWS:
        print(f"and {len(moved) - _ROWS:,} more streams with less evidence")
    if out is not None:
        print(f"History: {write(shown, out)}")
    if plot is not None:
        print(f"Plot: {draw(shown, plot)}")
    return ExitCode.CONSISTENT if shown.course.alarm is None else ExitCode.VIOLATED


def by_claim(shown: History) -> dict[str, FloatArray]:
    """Return the evidence of each claim after each run, (runs,), sorted by largest evidence."""
    claims = {check.key: check.claim for check in all_checks()}
    found: dict[str, FloatArray] = {}
    for place, stream in enumerate(shown.streams):
        check = stream.rpartition("@")[0].partition("#")[0]  # a stream's check may end in "#" and its revision
        claim, part = claims.get(check, _OTHER), shown.course.evidence[:, place]
        found[claim] = found[claim] + part if claim in found else part
    return dict(sorted(found.items(), key=lambda each: (-float(each[1].max()), each[0])))


def _check_plot(path: Path) -> str:
    """Return the file format of a plot."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in ("svg", "png"):
        refuse("plot", str(path), "ends in neither .svg nor .png", "use one of these suffixes")
    return kind


def draw(shown: History, path: Path) -> Path:
    """Plot the evidence after each run and cumulative sums of the most drifted scores; return the path.

    Raises
    ------
    InputError
        If the file cannot be written, or its name ends in neither .svg nor .png.
    """
    kind = _check_plot(path)
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from attncheck.report.svg import BAD, METADATA, PAPER, style

    with style():
        figure = Figure(figsize=(11.0, 6.5), layout="constrained", facecolor=PAPER)
        title = textwrap.fill(printable(shown.sentence(), 4 * _TITLE), _TITLE)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12.0)
        above, below = figure.subplots(2, 1, sharex=True)
        _draw_evidence(above, shown)
        _draw_scores(below, shown)
        for axes in (above, below):
            if shown.course.alarm is not None:
                axes.axvline(shown.course.alarm + 1, color=BAD, linewidth=0.8, linestyle=":")
            axes.legend(fontsize=10.5, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata=METADATA if kind == "svg" else None)
    return write_whole(path, buffer.getvalue(), "plot")


def _draw_evidence(axes: Axes, shown: History) -> None:
    """Draw the evidence of all claims together, that of the leading claims, and the alarm threshold."""
    from attncheck.report.svg import BAD, INK, SERIES, plain

    runs = np.arange(1, len(shown.since) + 1)
    axes.semilogy(runs, np.maximum(shown.course.total, _LEAST), color=INK, linewidth=2.0, label="all claims")
    for color, (claim, part) in zip(SERIES, by_claim(shown).items(), strict=False):
        axes.semilogy(runs, np.maximum(part, _LEAST), color=color, label=claim.replace("_", " "))
    axes.axhline(ALARM, color=BAD, linestyle="--")
    axes.annotate("alarm", (1.0, ALARM), (0, -4), ("axes fraction", "data"), "offset points", va="top", ha="right")
    axes.set_ylabel("evidence of drift (1: none)")
    axes.yaxis.set_major_formatter(plain())


def _draw_scores(axes: Axes, shown: History) -> None:
    """Draw cumulative sums of the most drifted scores, and three standard deviations of such a sum."""
    from attncheck.report.svg import BAND, SERIES

    runs = np.arange(1, len(shown.since) + 1)
    for color, each in zip(SERIES, shown.moved(), strict=False):
        scores = np.nan_to_num(shown.scores[:, shown.streams.index(each.stream)])
        axes.plot(runs, np.cumsum(scores), color=color, label=printable(each.stream, _LONGEST))
    within = 3.0 * runs**0.5
    axes.fill_between(runs, -within, within, color=BAND, linewidth=0, label="three standard deviations")
    axes.set(xlabel="runs", ylabel="sum of normal scores")
