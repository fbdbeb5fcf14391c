"""The report: one self-contained HTML page, made from records only.

``render_report`` is all that other modules need; what it uses is imported when it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

DEFAULT_RECIPE = "validation"


def render_report(
    run: Path,
    baseline: Path | None = None,
    recipe: str | Path = DEFAULT_RECIPE,
    out: Path = Path("report.html"),
    *,
    power: Path | None = None,
    paper: Any = None,
) -> Path:
    """Render a run record as a page.

    The same records, recipe and templates give the same bytes.

    Parameters
    ----------
    run : Path
        The record.
    baseline : Path, optional
        A record to compare with.
    recipe : str or Path
        The name of a shipped recipe, or the path of one's own.
    out : Path
        Where the page goes; its folder is made.
    power : Path, optional
        A power table that `attncheck power` wrote.
    paper : attncheck.paper.page.PaperView, optional
        The paper's experiments, as `attncheck.paper.page.read_paper` reads them from a folder.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    InputError
        If a record, recipe, template, power table or folder cannot be used, or the page cannot be written.
    """
    from attncheck.report.page import render

    return render(run, baseline, recipe, out, power, paper)


__all__ = ["DEFAULT_RECIPE", "render_report"]
