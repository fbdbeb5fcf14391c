"""`attncheck report`: arguments."""

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
    """Render a record as a self-contained HTML page.

    Parameters
    ----------
    run
        Record of a run.
    baseline
        Record to compare with.
    recipe
        Contents: validation, gate, paper, or the path of your own recipe.
    power
        Table written by attncheck power.
    paper
        Folder written by attncheck paper.
    out
        Write the page to this path.
    """
    panels = None
    if paper is not None:
        from attncheck.paper.page import read_paper  # slow imports, needed for figures only

        panels = read_paper(paper)
    print(f"Report: {render_report(run, baseline, recipe, out, power=power, paper=panels)}")
    return ExitCode.CONSISTENT
