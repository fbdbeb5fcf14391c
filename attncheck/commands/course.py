"""`attncheck history`: the course of runs as a table and a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attncheck._lib.errors import refuse
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.files import write_whole
from attncheck._lib.measured import table
from attncheck.evidence.detector import ALARM
from attncheck.gate.history import History, accept, write

# Streams that the table and the picture show.
_ROWS, _DRAWN = 12, 5


def show_history(states: Sequence[Path], out: Path | None, picture: Path | None, accepted: bool) -> int:
    """Print what a history shows; the arguments are those of `attncheck history`."""
    if not states:
        refuse("states", "", "are no histories", "pass the file that attncheck gate --history wrote")
    if accepted and len(states) > 1:
        refuse("accept", "", "is of one file", "merge them first, with --out")
    shown = accept(states[0]) if accepted else History.read(states)
    print(shown.sentence())
    moved = shown.moved()
    rows = [
        (
            each.stream,
            f"{each.evidence:.3g}",
            each.since[:12],
            f"{each.runs:,}",
            f"{each.mean:+.2f}",
            f"{each.last:+.2f}",
        )
        for each in moved[:_ROWS]
    ]
    if rows:
        print(table(("check@pool", "evidence", "moves since", "runs", "mean score", "last"), rows))
    if len(moved) > _ROWS:
        print(f"and {len(moved) - _ROWS:,} more streams that show less")
    if out is not None:
        print(f"History: {write(shown, out)}")
    if picture is not None:
        print(f"Picture: {draw(shown, picture)}")
    return ExitCode.CONSISTENT if shown.course.alarm is None else ExitCode.VIOLATED


def draw(shown: History, path: Path) -> Path:
    """Draw the evidence after each run, and the sums of the scores that move most; return the path.

    Raises
    ------
    InputError
        If the file cannot be written, or its name ends in neither .svg nor .png.
    """
    kind = path.suffix.removeprefix(".")
    if kind not in ("svg", "png"):
        refuse("picture", str(path), "ends in neither .svg nor .png", "choose one of them")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 6.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    runs = np.arange(1, len(shown.since) + 1)
    above.semilogy(runs, np.maximum(shown.course.total, 1e-3), color="black")
    above.axhline(ALARM, color="tab:red", linestyle="--")
    above.set_ylabel("evidence of all streams")
    above.set_title("Dashed: where there is an alarm", fontsize="medium")
    for each in shown.moved()[:_DRAWN]:
        scores = np.nan_to_num(shown.scores[:, shown.streams.index(each.stream)])
        below.plot(runs, np.cumsum(scores), label=each.stream)
    below.fill_between(runs, -3.0 * runs**0.5, 3.0 * runs**0.5, color="0.9", label="three standard deviations")
    below.set_xlabel("runs")
    below.set_ylabel("sum of scores")
    below.legend(fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return write_whole(path, buffer.getvalue(), "picture")
