"""`attncheck report`: arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.files import refuse_same
from attncheck.commands.arguments import Out


def report(
    run: Path,
    /,
    *more: Path,
    out: Annotated[Path, Out] = Path("report.html"),
) -> int:
    """Render a record as a self-contained HTML page.

    Parameters
    ----------
    run
        Record of a run.
    more
        Records of other parts of the same run.
    out
        Write the page to this path.
    """
    from attncheck.report.page import render_report

    parts = {"run": run, **{f"run {number}": part for number, part in enumerate(more, 2)}}
    refuse_same(parts, {"out": out})
    print(f"Report: {render_report((run, *more), out)}")
    return ExitCode.CONSISTENT
