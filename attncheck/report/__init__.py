"""Self-contained HTML reports, rendered from records only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from attncheck._lib.errors import InputError


def render_report(run: Path | Iterable[Path], out: Path = Path("report.html")) -> Path:
    """Render a run record as a page; the same records give the same bytes.

    Parameters
    ----------
    run : Path or iterable of Path
        The record, or records of the parts of a run.
    out : Path
        The page; missing folders are created.

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

    return render(run, out)


def rendered(record: Path, page: Path) -> tuple[str, bool]:
    """Render a record; return a line with the page's path, or why there is none, and whether there is one."""
    try:
        return f"Report: {render_report(record, out=page)}", True
    except Exception as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        return f"Report: not written, {kind}{error}", False


__all__ = ["render_report", "rendered"]
