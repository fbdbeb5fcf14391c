"""`attncheck report`: the record of a run as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.arguments import Out
from attncheck.report import render_report


def report(
    run: Path,
    /,
    *,
    baseline: Path | None = None,
    recipe: str = "validation",
    power: Path | None = None,
    paper: Path | None = None,
    out: Annotated[Path, Out] = Path("report.html"),
) -> int:
    """Render the record of a run as one HTML page that needs nothing else.

    Parameters
    ----------
    run
        The record.
    baseline
        A record to compare with.
    recipe
        What goes in: validation, gate or paper, or the path of a recipe of your own.
    power
        A table that attncheck power wrote, to show beside the run.
    paper
        A folder that attncheck paper wrote, for the section on the paper's experiments.
    out
        Where the page goes.
    """
    panels = None
    if paper is not None:
        from attncheck.paper.page import read_paper  # figures are drawn by more than most reports need

        panels = read_paper(paper)
    print(f"Report: {render_report(run, baseline, recipe, out, power=power, paper=panels)}")
    return ExitCode.CONSISTENT
