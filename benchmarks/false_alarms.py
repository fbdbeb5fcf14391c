"""Measure how often whole runs of right simulators are violated, and how often a look is suspicious.

``python benchmarks/false_alarms.py`` tests the literal simulator against all properties under many run seeds, each
with its own random layers, and counts verdicts, suspicious first looks and their follow-ups. ``--write`` updates
benchmarks/false_alarms.md or the given file; ``--resume FILE`` continues an interrupted call; ``--statements N`` does
the same for attncheck's theory statements under N seeds. Runs reproduce the digest of ``pytest properties/``.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from scipy import stats

from attncheck._lib.arithmetic import in_use
from attncheck._lib.executor_spec import spec_of
from attncheck._lib.executors import TaskExecutor, in_order
from attncheck.commands.planned_run import properties_folder, settle, statements
from attncheck.looks.profiles import PROFILES
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.runs.statements import LEVEL
from benchmarks.rows import Rows
from benchmarks.whole_runs import StatementsRun, WholeRun, whole_runs


def row(run: WholeRun) -> tuple[str, ...]:
    return (
        str(run.seed),
        run.verdict,
        f"{run.examined:,} of {run.results:,}",
        f"{run.suspicious} ({run.level * run.examined:.2f} expected)",
        "/".join(str(count) for count in run.looks[1:]),
        f"{run.suspicious_pools} ({run.level * sum(run.pool_looks):.2f} expected)",
        "/".join(str(count) for count in run.pool_looks[1:]),
        f"{run.uniformity:.2g}",
        run.digest,
    )


def totals(runs: Sequence[WholeRun], budget: float) -> str:
    """Summarise all runs as text."""
    violated = sum(run.verdict == "violated" for run in runs)
    suspicious, expected = sum(run.suspicious for run in runs), sum(run.level * run.examined for run in runs)
    pools, pools_expected = (
        sum(run.suspicious_pools for run in runs),
        sum(run.level * sum(run.pool_looks) for run in runs),
    )
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(run.verdict for run in runs).items())
    # Checks of an item share draws, so alarms cluster: the Poisson chance is only a guide.
    chance = float(stats.poisson.sf(suspicious - 1, expected))
    ordered = stats.kstest([run.uniformity for run in runs], "uniform").pvalue
    upper = stats.beta.ppf(0.95, violated + 1, len(runs) - violated)
    return (
        f"{len(runs)} runs: {verdicts}. The chance of a violated run is at most {upper:.3f} (95%, from the "
        f"count alone; budget {budget:g}).\n\n{suspicious} suspicious first looks, at most {expected:.1f} "
        f"expected (Poisson chance {chance:.2g}), and {pools} suspicious pools, at most {pools_expected:.1f} "
        f"expected. Runs' uniformity p-values against uniform: {ordered:.2g}."
    )


def report(profile: str, runs: Sequence[WholeRun], budget: float) -> str:
    header = (
        "seed",
        "verdict",
        "examined",
        "suspicious first looks",
        "2/3/4 looks",
        "suspicious pools",
        "2/3/4 looks",
        "uniformity p",
        "digest",
    )
    lines = [header, ("---",) * len(header), *map(row, runs)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"## {profile}\n\n{totals(runs, budget)}\n\n{table}\n"


def statements_report(runs: Sequence[StatementsRun]) -> str:
    header = ("seed", "statements", "violated", "inconclusive", "suspicious first looks", "seconds")
    lines = [header, ("---",) * len(header)]
    for run in runs:
        told = (", ".join(ids) or "-" for ids in (run.violated, run.inconclusive, run.suspicious))
        lines.append((str(run.seed), str(run.statements), *told, f"{run.seconds:.0f}"))
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    counts = [sum(len(getattr(run, what)) for run in runs) for what in ("violated", "inconclusive", "suspicious")]
    looked = sum(run.statistical for run in runs)
    return (
        f"## statements of the theory\n\n{len(runs)} run seeds, {sum(run.statements for run in runs)} "
        f"statements: {counts[0]} violated, {counts[1]} inconclusive. Of the {looked} decided by looks, "
        f"{counts[2]} had a suspicious first look; at most {LEVEL * looked:.1f} are expected.\n\n{table}\n"
    )


def statements_runs(seeds: Sequence[int], options: argparse.Namespace) -> Iterator[StatementsRun]:
    """Yield the results of the statements under each seed, and save them."""
    rows = Rows(options.resume)
    with TaskExecutor(spec_of(options.executor, options.workers)) as executor:
        for seed in seeds:
            make = functools.partial(_statements_run, seed, options.false_alarm, executor)
            yield rows.get(f"statements, seed {seed}", StatementsRun, make)


def _statements_run(seed: int, false_alarm: float, executor: TaskExecutor) -> StatementsRun:
    run = Run.of(RunOptions(seed=seed, profile="default", false_alarm=false_alarm))
    stated = [case for cases in statements(run, properties_folder()) for case in cases]
    settled = list(in_order(executor, settle, stated))
    for each in settled:
        if each.theory is None:
            sys.exit(each.failure)
    return StatementsRun.of(seed, [each.theory for each in settled if each.theory])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run all properties under many seeds, and count verdicts.")
    parser.add_argument("--smoke", type=int, default=12, metavar="RUNS", help="runs of the smoke profile")
    parser.add_argument("--default", type=int, default=3, metavar="RUNS", help="runs of the default profile")
    help_text = "run seeds of all statements of the theory"
    parser.add_argument("--statements", type=int, default=2, metavar="SEEDS", help=help_text)
    parser.add_argument("--workers", default="2", help="processes (default: 2)")
    parser.add_argument("--executor", help="who does the work in their place, as for attncheck run")
    parser.add_argument("--false-alarm", type=float, default=1e-6, metavar="B", help="budget of a run (default: 1e-6)")
    parser.add_argument("--subject", help="MODULE:CALLABLE; attncheck's literal simulator by default")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep runs there as they end, and go on from it")
    own = Path(__file__).with_suffix(".md")
    parser.add_argument("--write", type=Path, nargs="?", const=own, metavar="FILE", help=f"write {own.name}, or FILE")
    options = parser.parse_args(arguments)
    page = [
        "# False alarms of whole runs",
        "`python benchmarks/false_alarms.py --write` makes this page, for the literal simulator unless --subject "
        f"names another, here with {in_use()}.\n",
    ]
    for profile in PROFILES:
        if getattr(options, profile, 0):
            seeds = range(getattr(options, profile))
            page.append(report(profile, list(told(seeds, profile, options)), options.false_alarm))
    if options.statements:
        page.append(statements_report(list(statements_runs(range(options.statements), options))))
    text = "\n\n".join(page)
    print(text, end="")
    if options.write is not None:
        options.write.write_text(text, encoding="utf-8")


def told(seeds: Sequence[int], profile: str, options: argparse.Namespace) -> Iterator[WholeRun]:
    """Yield whole runs."""
    rows, wanted = Rows(options.resume), [f"{profile}, seed {seed}" for seed in seeds]
    missing = [seed for seed, key in zip(seeds, wanted, strict=True) if key not in rows]
    spec = spec_of(options.executor, options.workers)
    fresh = whole_runs(missing, profile, options.subject, spec, options.false_alarm)
    for key in wanted:
        yield rows.get(key, WholeRun, lambda: next(fresh))


if __name__ == "__main__":
    main()
