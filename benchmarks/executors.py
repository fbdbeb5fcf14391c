"""Compare the overhead of a process pool and a dask cluster, and predict the speed on many cores.

``python benchmarks/executors.py`` prints the page; ``--write`` updates benchmarks/executors.md.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import importlib
import operator
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attncheck._lib.errors import InputError
from attncheck._lib.executor_spec import spec_of
from attncheck._lib.executors import ExecutorSpec, TaskExecutor, pool
from attncheck._lib.measured import installed, table
from attncheck._lib.text import counted
from attncheck.commands.planned_run import collect, properties_folder
from attncheck.records.schema import Closing, Line, Result, StatementResult, of_pool, read
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.runs.tasks import CaseTask, Examination, examine

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
CORES = (1, 2, 8, 32, 128, 1_000)
TASKS = 2_000
# dask's default settings release memory after every array, which takes a third more time.
MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": 10**9,
    "MALLOC_MMAP_THRESHOLD_": 2**25,
    "MALLOC_ARENA_MAX": 1,
    "OMP_NUM_THREADS": 1,
}
# A task's result, without its computation.
_ECHO = operator.itemgetter(1)


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[str]:
    """Yield the address of a local dask cluster of single-threaded processes."""
    dask, distributed = map(importlib.import_module, ("dask.config", "distributed"))  # an extra
    with (
        dask.set({"distributed.nanny.pre-spawn-environ": MEMORY}),
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=50
        ) as made,
    ):
        yield f"dask:{made.scheduler_address}"


def one_task(profile: str) -> tuple[CaseTask, dict[str, Examination]]:
    """Return a task of the main job and its result, to measure data transfer."""
    run = Run.of(RunOptions(profile=profile))
    collected = collect(run, properties_folder())
    item = min(collected.items, key=lambda item: item.case.weight_entries)
    (task,) = collected.run.tasks(collected.run.beside(item), collected.run.subject.sent)
    return task, examine(task)


def handed_over(spec: ExecutorSpec, travels: tuple[CaseTask, dict[str, Examination]], tasks: int) -> float:
    """Return the seconds per empty task."""
    with TaskExecutor(spec) as executor:
        executor.results(_ECHO, [travels] * WORKERS)
        started = time.perf_counter()
        executor.results(_ECHO, [travels] * tasks)
        return (time.perf_counter() - started) / tasks


def job(record: Path, profile: str, *options: str) -> float:
    """Return the wall seconds of a run by the command.

    Raises
    ------
    RuntimeError
        If the run is not consistent.
    """
    line = [sys.executable, "-m", "attncheck", "run", "--profile", profile, "--record", str(record), *options]
    one_thread = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    started = time.perf_counter()
    done = subprocess.run(line, cwd=ROOT, env={**os.environ, **one_thread}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return time.perf_counter() - started


def jobs(folder: Path, profile: str, repeats: int) -> tuple[list[float], list[float], list[str]]:
    """Return the seconds of the main job on processes and on dask, alternating, and all digests."""
    ours, theirs, digests = [], [], []
    for number in range(repeats):
        pooled, spread = folder / f"pool{number}.jsonl", folder / f"dask{number}.jsonl"
        ours.append(job(pooled, profile, "--workers", str(WORKERS)))
        with cluster(WORKERS) as address:
            theirs.append(job(spread, profile, "--executor", address))
        digests += [closing_of(pooled).digest, closing_of(spread).digest]
    return ours, theirs, digests


def closing_of(record: Path) -> Closing:
    *_, closing = read(record)
    assert isinstance(closing, Closing)
    return closing


def seconds_of(lines: Sequence[Line]) -> list[float]:
    """Return the seconds of each task of a run: test items and theory statements."""
    items = {line.item: line.seconds for line in lines if isinstance(line, Result) and not of_pool(line)}
    return [*items.values(), *(line.seconds for line in lines if isinstance(line, StatementResult))]


def makespan(seconds: Sequence[float], cores: int, handing: float) -> float:
    """Return the total time of tasks started one by one, the longest first.

    Parameters
    ----------
    seconds : sequence of float
        One per task.
    cores : int
        Each runs one task at a time.
    handing : float
        Seconds between two starts.

    Examples
    --------
    >>> makespan([3.0, 2.0, 1.0], 2, 0.0), makespan([1.0, 1.0], 2, 0.5)
    (3.0, 2.0)
    """
    free = [0.0] * cores
    handed = 0.0
    for each in sorted(seconds, reverse=True):
        handed += handing
        heapq.heappush(free, max(handed, heapq.heappop(free)) + each)
    return max(free)


def prediction(seconds: Sequence[float], handing: float) -> str:
    alone = sum(seconds)
    rows = []
    for cores in CORES:
        took = makespan(seconds, cores, handing)
        rows.append((f"{cores:,}", f"{took:,.1f}", f"{alone / took:,.1f}", f"{alone / took / cores:.0%}"))
    return table(("cores", "seconds", "times as fast as one", "efficiency"), rows)


def page(profile: str, repeats: int, tasks: int) -> str:
    travels = one_task(profile)
    by_pool = handed_over(pool(WORKERS), travels, tasks)
    with cluster(WORKERS) as address:
        by_dask = handed_over(spec_of(address, "auto"), travels, tasks)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs, digests = jobs(Path(folder), profile, repeats)
        seconds = seconds_of(list(read(Path(folder) / "pool0.jsonl")))
    ratios = [dask / pooled for dask, pooled in zip(theirs, ours, strict=True)]
    if len(set(digests)) > 1:
        raise InputError(f"digest={sorted(set(digests))}: the runs have other digits; find out why")
    rows: list[tuple[Any, ...]] = [
        ("main job, processes", ", ".join(f"{each:.1f} s" for each in ours)),
        ("main job, dask", ", ".join(f"{each:.1f} s" for each in theirs)),
        ("dask over processes, median", f"{statistics.median(ratios):.3f} (1.15 promised)"),
        ("empty task, processes", f"{1e3 * by_pool:.2f} ms"),
        ("empty task, dask", f"{1e3 * by_dask:.2f} ms"),
        ("common digest", digests[0]),
    ]
    parts = [
        "# Executors",
        f"`python benchmarks/executors.py --write` makes this page, here with {installed()}.",
        (
            f"The main job with profile {profile} on {WORKERS} cores, alternating between a process pool and a "
            "running dask cluster of single-threaded processes with the memory settings of docs/campaigns.md. "
            f"{counted(repeats, 'pair')} of runs; one pair has no measured error. "
            f"{tasks:,} empty tasks transfer the data of a test item in both directions."
        ),
        table(("what", "measured"), rows),
        "## Predicted times on many cores",
        (
            f"The job has {len(seconds):,} tasks that take {sum(seconds):,.1f} s together; the longest takes "
            f"{max(seconds):.1f} s. One process starts them, the longest first, one per {1e3 * by_dask:.2f} ms, "
            "dask's time for an empty task. Computed from these numbers, not measured."
        ),
        prediction(seconds, by_dask),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time who does the work.")
    parser.add_argument("--profile", default="default", choices=("smoke", "default"), help="of the job")
    parser.add_argument("--repeats", type=int, default=1, help="jobs on each (default: 1)")
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"that do nothing (default: {TASKS:,})")
    parser.add_argument("--write", action="store_true", help="write executors.md")
    options = parser.parse_args()
    text = page(options.profile, options.repeats, options.tasks)
    print(text, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
