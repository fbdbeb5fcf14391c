"""`attncheck merge`: arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from attncheck.commands.arguments import Natural, Out, Verbose


def merge(
    *parts: Path,
    out: Annotated[Path, Out] = Path("run.jsonl"),
    min_examined: Natural | None = None,
    checks: list[str] | None = None,
    verbose: Annotated[bool, Verbose] = False,
) -> int:
    """Combine the records of all shards of a run.

    Parameters
    ----------
    parts
        Records of the shards, in any order.
    out
        Write the combined record to this path.
    min_examined
        Fewest examined results for a pass.
    checks
        Module that registers checks of the run; can be repeated.
    verbose
        Print details of skipped and visited cases.
    """
    from attncheck.checks.registered import load_checks
    from attncheck.commands.merging import merge_records

    load_checks(checks or ())
    return merge_records(parts, out, min_examined, verbose)
