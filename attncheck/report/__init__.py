"""Self-contained HTML reports, rendered from records only."""

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
    """Render a run record as a page; the same records, recipe and templates give the same bytes.

    Parameters
    ----------
    run : Path
        The record.
    baseline : Path, optional
        A record to compare with.
    recipe : str or Path
        The name of a bundled recipe, or a path.
    out : Path
        The page; missing folders are created.
    power : Path, optional
        A power table written by `attncheck power`.
    paper : attncheck.paper.page.PaperView, optional
        Figures read by `attncheck.paper.page.read_paper`.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    InputError
        If an input cannot be used or the page cannot be written.
    """
    from attncheck.report.page import render

    return render(run, baseline, recipe, out, power, paper)


def rendered(record: Path, page: Path) -> str:
    """Render a record; return a line with the page's path, or why there is none."""
    try:
        return f"Report: {render_report(record, out=page)}"
    except Exception as error:
        return f"Report: not written, {type(error).__name__}: {error}"


__all__ = ["DEFAULT_RECIPE", "render_report", "rendered"]
