"""Compare the minimum detectable effects of two runs.

``python benchmarks/visible.py OLD NEW`` reads two records of one profile. For each check it gives the minimum
detectable effect of the median and the worst case in both records, and that of the pool in the new one, in the
check's unit. ``--write`` updates benchmarks/visible.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from scipy import special

from attncheck.checks.reference import RATIO
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


def rows(old: Path, new: Path) -> Iterator[tuple[str, str, float, float, float, float, float]]:
    """Yield check, claim, and effects: median and worst before, median and worst now, together now."""
    before, now, pools = results_of(old), results_of(new), pools_of(new)
    for check, singles in now.items():
        if check in before and check in pools and (singles[0].summary or {}).get("unit") != "excess":
            old_mdes, mdes = ([deviation(each, each.mde) for each in group] for group in (before[check], singles))
            ends = statistics.median(old_mdes), max(old_mdes), statistics.median(mdes), max(mdes)
            yield check, singles[0].claim, *ends, together(pools[check], singles)


def page(old: Path, new: Path) -> str:
    found = list(rows(old, new))
    half = sum(row[6] <= 0.5 * row[2] for row in found)
    claims = sorted({row[1] for row in found})
    best = [
        min(row[6] for row in found if row[1] == claim) / min(row[2] for row in found if row[1] == claim)
        for claim in claims
    ]
    lines = [
        "# Minimum detectable effects\n",
        "`python benchmarks/visible.py OLD NEW --write` makes this page from two records.\n",
        (
            "Effects that a run detects with the planned power, in each check's unit (variance ratios: the "
            "logarithm). *Single* and *worst*: one case, the median and the worst. *Together*: the pool of all "
            "cases, for a common effect.\n"
        ),
        (
            f"The pool's is at most half of the median single one before: {half} of {len(found)} checks, and "
            f"{sum(ratio <= 0.5 for ratio in best)} of {len(claims)} claims (by their most sensitive check).\n"
        ),
        "| check | single before | worst before | single now | worst now | together now |",
        "| --- | --- | --- | --- | --- | --- |",
        *(f"| `{row[0]}` | {' | '.join(f'{value:.3g}' for value in row[2:])} |" for row in found),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare the minimum detectable effects of two runs.")
    parser.add_argument("old", type=Path, help="record of the state before")
    parser.add_argument("new", type=Path, help="record of the state now")
    parser.add_argument("--write", action="store_true", help="write benchmarks/visible.md too")
    given = parser.parse_args(arguments)
    text = page(given.old, given.new)
    print(text, end="")
    if given.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
