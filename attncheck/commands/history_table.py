"""`attncheck history`: table and plot."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attncheck._lib.errors import refuse
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.files import write_whole
from attncheck._lib.measured import table
from attncheck._lib.text import printable
from attncheck.checks.registry import all_checks
from attncheck.evidence.detector import ALARM
from attncheck.gate.history import FloatArray, History, accept, short_key, write

# Maximum number of streams in the table; maximum number of claims, and of streams, in the plot.
_ROWS, _DRAWN = 12, 5
# Characters of a stream's name in the plot.
_LONGEST = 60
_OTHER = "of another version"


def show_history(states: Sequence[Path], out: Path | None, plot: Path | None, accepted: bool) -> int:
    """Print a history; arguments as for `attncheck history`."""
    if not states:
        refuse("states", "", "are missing", "pass the file written by attncheck gate --history")
    if accepted and len(states) > 1:
        refuse("accept", "", "takes one file", "combine them first with --out")
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

    figure = Figure(figsize=(8.0, 6.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    runs = np.arange(1, len(shown.since) + 1)
    above.semilogy(runs, np.maximum(shown.course.total, 1e-3), color="black", label="all claims")
    for claim, part in list(by_claim(shown).items())[:_DRAWN]:
        above.semilogy(runs, np.maximum(part, 1e-3), linewidth=0.8, label=claim)
    above.axhline(ALARM, color="tab:red", linestyle="--")
    above.set_ylabel("evidence")
    above.legend(fontsize="small", loc="upper left")
    above.set_title("Dashed: alarm threshold", fontsize="medium")
    for each in shown.moved()[:_DRAWN]:
        scores = np.nan_to_num(shown.scores[:, shown.streams.index(each.stream)])
        name = printable(each.stream, _LONGEST).replace("$", r"\$")  # no mathematics
        below.plot(runs, np.cumsum(scores), label=name)
    below.fill_between(runs, -3.0 * runs**0.5, 3.0 * runs**0.5, color="0.9", label="three standard deviations")
    below.set_xlabel("runs")
    below.set_ylabel("sum of scores")
    below.legend(fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return write_whole(path, buffer.getvalue(), "plot")
