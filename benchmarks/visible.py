"""Compare the minimum detectable effects of single cases with those of pools.

``python benchmarks/visible.py`` runs the main job. For each check it gives the minimum detectable effect of the median
and the worst case, and that of the pool, in the check's unit. ``--record FILE`` reads a record in place of the run;
``--write`` updates benchmarks/visible.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from scipy import special

from attncheck.checks.reference import RATIO
from attncheck.commands import cli
from attncheck.looks.pools import ALL
from attncheck.records.schema import Result, case_key, of_pool, read


def results_of(path: Path) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for line in read(path):
        if isinstance(line, Result) and line.p_values and line.mde is not None and not of_pool(line):
            found.setdefault(line.check, []).append(line)
    return dict(sorted(found.items()))


def pools_of(path: Path) -> dict[str, Result]:
    lines = (line for line in read(path) if isinstance(line, Result) and of_pool(line))
    return {line.check: line for line in lines if case_key(line) == ALL and line.mde is not None}


def deviation(result: Result, mde: float | None) -> float:
    """Return an effect's distance from the null; for ratios, their logarithm."""
    null = result.null_effect or 0.0
    return abs(math.log(mde or 1.0)) if null == 1.0 else abs((mde or 0.0) - null)


def together(pool: Result, singles: Sequence[Result]) -> float:
    """Return a pool's minimum detectable effect in the unit of its check, on the median case.

    A common shift of δ standard deviations is a Kolmogorov distance of 2 Φ(δ/2) - 1 between normal laws. A common
    factor on sizes is a shift by its logarithm over their spread, given by their information.
    """
    unit = (singles[0].summary or {}).get("unit", "")
    if unit == "shift":
        return distance(pool.mde or 0.0) - distance(pool.null_effect or 0.0)
    if unit != "size":
        return deviation(pool, pool.mde)
    told = [each for each in singles if information(each) > 0.0]
    spreads = [math.sqrt(RATIO / (RATIO + 1.0) * each.size / information(each)) for each in told]
    return statistics.median(distance(math.log(pool.mde or 1.0) / spread) for spread in spreads)


def information(result: Result) -> float:
    return float((result.summary or {}).get("information", math.nan))


def distance(shift: float) -> float:
    """Return the Kolmogorov distance of two normal laws a shift apart.

    Examples
    --------
    >>> round(distance(0.1), 3)
    0.04
    """
    return float(2.0 * special.ndtr(0.5 * shift) - 1.0)


def rows(record: Path) -> Iterator[tuple[str, str, float, float, float]]:
    """Yield check, claim, and effects: of the median and the worst case, and of all together."""
    pools = pools_of(record)
    for check, singles in results_of(record).items():
        if check in pools and (singles[0].summary or {}).get("unit") != "excess":
            mdes = [deviation(each, each.mde) for each in singles]
            yield check, singles[0].claim, statistics.median(mdes), max(mdes), together(pools[check], singles)


def page(record: Path) -> str:
    found = list(rows(record))
    half = sum(row[4] <= 0.5 * row[2] for row in found)
    claims = sorted({row[1] for row in found})
    best = [
        min(row[4] for row in found if row[1] == claim) / min(row[2] for row in found if row[1] == claim)
        for claim in claims
    ]
    lines = [
        "# Minimum detectable effects\n",
        "`python benchmarks/visible.py --write` makes this page.\n",
        (
            "Effects that a run with profile default and seed 0 detects with the planned power, in each check's unit "
            "(variance ratios: the logarithm). *Median* and *worst*: one case alone. *Together*: the pool of all "
            "cases, for a common effect.\n"
        ),
        (
            f"The pool's is at most half of the median case's: {half} of {len(found)} checks, and "
            f"{sum(ratio <= 0.5 for ratio in best)} of {len(claims)} claims (by their most sensitive check).\n"
        ),
        "| check | median | worst | together |",
        "| --- | --- | --- | --- |",
        *(f"| `{row[0]}` | {' | '.join(f'{value:.3g}' for value in row[2:])} |" for row in found),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare the minimum detectable effects of cases and pools.")
    parser.add_argument("--record", type=Path, metavar="FILE", help="of a run (default: run the main job)")
    parser.add_argument("--write", action="store_true", help="write benchmarks/visible.md too")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        record = given.record or Path(folder) / "record.jsonl"
        if given.record is None:
            cli.main(["run", "--profile", "default", "--seed", "0", "--workers", "2", "--record", str(record)])
        text = page(record)
    print(text, end="")
    if given.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
