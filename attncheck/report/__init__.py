"""Self-contained HTML reports, rendered from records only."""

from __future__ import annotations

from pathlib import Path

from attncheck._lib.errors import InputError


def rendered(record: Path, page: Path) -> tuple[str, bool]:
    """Render a record; return a line with the page's path, or why there is none, and whether there is one."""
    try:
        from attncheck.report.page import render_report  # late, as it imports matplotlib

        return f"Report: {render_report(record, page)}", True
    except Exception as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        return f"Report: not written, {kind}{error}", False
