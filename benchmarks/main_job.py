"""How long the main job takes: ``pytest -n 2 properties/`` with the smoke and the default profile.

``python benchmarks/main_job.py`` runs both and prints wall seconds and seconds per property, read from the
run's record; ``--write`` also puts them into benchmarks/main_job.md.
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
from attncheck.records.schema import Closing, Line, Manifest, Result, of_pool, read

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
# One BLAS thread per worker, as tox sets it.
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
# Wall seconds that were promised on two cores.
TARGETS = {"default": 180.0}


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of the main job.

    Attributes
    ----------
    profile : str
    seconds : float
        Wall seconds from the command to its end.
    processor : float
        Processor seconds of all its processes; 0 where the system does not tell.
    code : int
        Exit code of pytest.
    lines : list of Line
        The record of the run.
    """

    profile: str
    seconds: float
    processor: float
    code: int
    lines: list[Line]

    def results(self) -> list[Result]:
        """Return the results of single configurations."""
        return [line for line in self.lines if isinstance(line, Result) and not of_pool(line)]


@dataclasses.dataclass(frozen=True)
class UnitTime:
    """What one property took on one layer or program."""

    property_name: str
    layer: str
    seconds: float
    draws: int


def run_job(profile: str, keep: Path | None = None) -> Job:
    """Run the main job once and read its record, which stays in the folder `keep` if there is one."""
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
    """Return the processor seconds of all processes started from here that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def unit_times(results: Iterable[Result]) -> list[UnitTime]:
    """Return what each property took on each layer or program, the longest first.

    Checks of a unit run together and each bears the seconds of the whole unit.
    """
    units: dict[str, list[Result]] = {}
    for result in results:
        units.setdefault(result.unit, []).append(result)
    times = [
        UnitTime(
            group[0].property,
            layer_name(group[0].case),
            max(result.seconds for result in group),
            max(result.size * max(1, len(result.p_values)) for result in group),
        )
        for group in units.values()
    ]
    return sorted(times, key=lambda unit: -unit.seconds)


def property_table(times: Sequence[UnitTime]) -> str:
    """Return the table of properties, the slowest first."""
    total = sum(unit.seconds for unit in times)
    rows = []
    for name in {unit.property_name for unit in times}:
        group = [unit for unit in times if unit.property_name == name]
        seconds = sum(unit.seconds for unit in group)
        longest = f"{group[0].seconds:.1f} s: {group[0].layer}"
        rows.append((seconds, name, str(len(group)), f"{seconds:.1f}", longest))
    rows.sort(reverse=True)
    rows.append((total, "together", str(len(times)), f"{total:.1f}", ""))
    return table(("property", "configurations", "seconds", "longest"), [row[1:] for row in rows])


def longest_table(times: Sequence[UnitTime], count: int = 5) -> str:
    """Return the table of the slowest configurations."""
    rows = [(unit.property_name, unit.layer, f"{unit.draws:,}", f"{unit.seconds:.1f}") for unit in times[:count]]
    return table(("slowest", "configuration", "draws", "seconds"), rows)


def describe(job: Job) -> str:
    """Return what is printed of one run."""
    closing = next((line for line in job.lines if isinstance(line, Closing)), None)
    manifest = next(line for line in job.lines if isinstance(line, Manifest))
    results = job.results()
    examined = sum(bool(result.p_values) for result in results)
    outcome = f"{closing.verdict}, digest {closing.digest}" if closing else "the run did not finish"
    return "\n\n".join(
        [
            f"## {job.profile}: {job.seconds:.0f} s{judged(job)}",
            f"Exit code {job.code}; {outcome}; {len(results)} of {len(manifest.planned)} planned results, "
            f"{examined} examined. {job.processor:.0f} processor seconds: {job.processor / WORKERS:.0f} s of "
            f"{WORKERS} cores that do nothing else.",
            property_table(unit_times(results)),
            longest_table(unit_times(results)),
        ]
    )


def judged(job: Job) -> str:
    """Return the target of a profile and whether it was met.

    A run that waited for others to leave the cores settles nothing where its own work would have
    fitted into the time, with a fifth to spare for workers that end at different times.
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
    """Return with what the runs were made, without naming the machine."""
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    machine = manifest.machine
    return (
        f"`pytest -n {WORKERS} properties/`, {machine.get('cores', '?')} cores, wall seconds with start and "
        f"collection; wall seconds of the properties, added up over both workers. "
        f"Python {machine.get('python', '?')}, {versions}, {machine.get('system', '?')}."
    )


def report(jobs: Sequence[Job]) -> str:
    """Return the page that is printed and written."""
    manifest = next(line for line in jobs[0].lines if isinstance(line, Manifest))
    head = ["# Main job", "`python benchmarks/main_job.py --write` makes this page.", setting(manifest)]
    return "\n\n".join([*head, *(describe(job) for job in jobs)]) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, and write if asked to."""
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
