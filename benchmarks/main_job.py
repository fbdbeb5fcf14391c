"""Time the main job: ``pytest -n 2 properties/`` with the smoke and the default profile.

``python benchmarks/main_job.py`` runs both and prints wall seconds, and those of each layer and program from the
run's record; ``--write`` updates benchmarks/main_job.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from attncheck.layers.names import layer_name
from attncheck.looks.profiles import PROFILES
from attncheck.records.schema import Closing, Line, Manifest, Result, case_key, of_pool, read

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
# One BLAS thread per worker, as in tox.
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
# Promised wall seconds on two cores.
TARGETS = {"default": 60.0}


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of the main job.

    `seconds` are wall seconds; `processor` are seconds of all processes, 0 if unknown; `code` is pytest's exit code
    and `lines` the run's record.
    """

    profile: str
    seconds: float
    processor: float
    code: int
    lines: list[Line]

    def results(self) -> list[Result]:
        return [line for line in self.lines if isinstance(line, Result) and not of_pool(line)]


@dataclasses.dataclass(frozen=True)
class CaseTime:
    """Time of one layer or program, over all its properties."""

    layer: str
    properties: int
    seconds: float
    draws: int


def run_job(profile: str, keep: Path | None = None) -> Job:
    """Run the main job once and read its record, which stays in the folder `keep` if given."""
    with tempfile.TemporaryDirectory() as folder:
        record = (keep or Path(folder)).resolve() / f"{profile}.jsonl"
        options = ["--attncheck-profile", profile, "--attncheck-record", str(record)]
        started, used = time.perf_counter(), children_seconds()
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", str(WORKERS), "properties/", *options],
            cwd=ROOT,
            env={**os.environ, **dict.fromkeys(THREADS, "1")},
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        seconds, processor = time.perf_counter() - started, children_seconds() - used
        if not record.exists():
            sys.exit(f"profile {profile}: pytest wrote no record; it said:\n{run.stdout}{run.stderr}")
        return Job(profile, seconds, processor, run.returncode, list(read(record)))


def children_seconds() -> float:
    """Return the processor seconds of all finished child processes."""
    times = os.times()
    return times.children_user + times.children_system


def case_times(results: Iterable[Result]) -> list[CaseTime]:
    """Return the time of each layer or program, the longest first.

    Properties that share draws share their seconds.
    """
    cases: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        cases.setdefault(case_key(result), {}).setdefault(result.property, []).append(result)
    times = [
        CaseTime(
            layer_name(next(iter(of_case.values()))[0].case),
            len(of_case),
            sum(group[0].seconds for group in of_case.values()),
            max(result.size * max(1, len(result.p_values)) for group in of_case.values() for result in group),
        )
        for of_case in cases.values()
    ]
    return sorted(times, key=lambda case: -case.seconds)


def summed_table(times: Sequence[CaseTime]) -> str:
    several = [case for case in times if case.properties > 1]
    one = [case for case in times if case.properties == 1]
    rows = [
        (name, str(len(group)), f"{sum(case.draws for case in group):,}", f"{sum(case.seconds for case in group):.1f}")
        for name, group in (("several", several), ("one", one), ("together", times))
    ]
    return table(("visited by properties", "cases", "draws", "seconds"), rows)


def longest_table(times: Sequence[CaseTime], count: int = 8) -> str:
    rows = [(case.layer, str(case.properties), f"{case.draws:,}", f"{case.seconds:.1f}") for case in times[:count]]
    return table(("slowest", "properties", "draws", "seconds"), rows)


def describe(job: Job) -> str:
    closing = next((line for line in job.lines if isinstance(line, Closing)), None)
    manifest = next(line for line in job.lines if isinstance(line, Manifest))
    results = job.results()
    examined = sum(bool(result.p_values) for result in results)
    outcome = f"{closing.verdict}, digest {closing.digest}" if closing else "the run did not finish"
    return "\n\n".join(
        [
            f"## {job.profile}: {job.seconds:.0f} s{judged(job)}",
            (
                f"Exit code {job.code}; {outcome}; {len(results)} of {len(manifest.planned)} planned results, "
                f"{examined} examined. {job.processor:.0f} processor seconds: {job.processor / WORKERS:.0f} s of "
                f"{WORKERS} idle cores."
            ),
            summed_table(case_times(results)),
            longest_table(case_times(results)),
        ]
    )


def judged(job: Job) -> str:
    """Return the target of a profile and whether it was met.

    A run that waited for busy cores is not settled if its own work would have fitted into the time with a fifth to
    spare.
    """
    if job.profile not in TARGETS:
        return ""
    target = TARGETS[job.profile]
    if job.seconds <= target:
        verdict = "met"
    elif 0 < job.processor / WORKERS <= target / 1.2:
        verdict = "not settled, the machine was busy"
    else:
        verdict = "missed"
    return f" (at most {target:.0f} s: {verdict})"


def setting(manifest: Manifest) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    machine = manifest.machine
    return (
        f"`pytest -n {WORKERS} properties/`, {machine.get('cores', '?')} cores; wall seconds with start and "
        f"collection; per case, the sum over both workers. Python {machine.get('python', '?')}, {versions}, "
        f"{machine.get('system', '?')}."
    )


def report(jobs: Sequence[Job]) -> str:
    manifest = next(line for line in jobs[0].lines if isinstance(line, Manifest))
    head = ["# Main job", "`python benchmarks/main_job.py --write` makes this page.", setting(manifest)]
    return "\n\n".join([*head, *(describe(job) for job in jobs)]) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time the main job on two workers.")
    parser.add_argument("--write", action="store_true", help="write benchmarks/main_job.md too")
    parser.add_argument("--profile", action="append", choices=sorted(PROFILES), help="default: smoke and default")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the records there, as smoke.jsonl and so on")
    options = parser.parse_args(arguments)
    page = report([run_job(profile, options.keep) for profile in options.profile or ("smoke", "default")])
    print(page, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
