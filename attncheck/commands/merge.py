"""`attncheck merge`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from attncheck.commands.arguments import Out, Verbose


def merge(
    *parts: Path,
    out: Annotated[Path, Out] = Path("run.jsonl"),
    min_examined: str | None = None,
    verbose: Annotated[bool, Verbose] = False,
) -> int:
    """Make one record of the records of all shards of a run.

    Parameters
    ----------
    parts
        The records of the shards, in any order.
    out
        Where the record of the run goes.
    min_examined
        Examined results below which the run is inconclusive.
    verbose
        Show all that was skipped, visited and could have been seen.
    """
    from attncheck.commands.merging import merge_records

    return merge_records(parts, out, min_examined, verbose)
