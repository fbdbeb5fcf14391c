"""`attncheck history`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from attncheck.commands.arguments import Out


def history(
    *states: Path,
    out: Annotated[Path | None, Out] = None,
    plot: Path | None = None,
    accept: bool = False,
) -> int:
    """Show what runs of a subject come to together, and which claim moves.

    Parameters
    ----------
    states
        What attncheck gate --history wrote; files of several branches are taken as one.
    out
        Write the runs of all of them to this file.
    picture
        Draw the course as an SVG or PNG picture into this file.
    accept
        Note in the file that somebody looked at what it shows: all streams begin again.
    """
    from attncheck.commands.history_table import show_history

    return show_history(states, out, plot, accept)
