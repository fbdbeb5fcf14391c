"""`attncheck history`: arguments."""

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
    """Show drift over the runs of a subject, by claim.

    Parameters
    ----------
    states
        Files written by attncheck gate --history; several, for example of branches, are combined.
    out
        Write the combined runs to this path.
    plot
        Write a plot as SVG or PNG to this path.
    accept
        Accept the current state: detection restarts after it.
    """
    from attncheck.commands.history_table import show_history

    return show_history(states, out, plot, accept)
