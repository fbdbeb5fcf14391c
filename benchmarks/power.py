"""The power of the checks on known-wrong simulators: fault × exposure, planned and verified.

``python benchmarks/power.py --quick`` takes minutes, ``--seeds 300 --write`` more than an hour on two cores and
puts the table into benchmarks/power.md, and into benchmarks/power.json for ``attncheck report --power``. With
``--resume FOLDER`` what is done is kept in a folder, and a call that was interrupted goes on where it was, with
the same code.
"""

from __future__ import annotations

import argparse
import itertools
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attncheck.calibration.power import PowerEntry, level_of, power_table
from attncheck.calibration.power.text import percent, render, to_json
from attncheck.calibration.whole_runs import whole_runs
from attncheck.evidence.looks import per_look_power
from attncheck.faults import EXPOSURES, FAULTS
from attncheck.looks.profiles import profile_named

PROFILES = ("smoke", "default")
#: Faults that whole runs are given: a small one, and one of each kind.
HANDFUL = ("query_std_2", "shared_keys", "leaking_mask", "gaussian_outputs", "repeated_stream")
# Faults of every kind that show in cheap layers.
QUICK = ("query_std_2", "tied_query_key", "shared_keys", "leaking_mask", "gaussian_outputs", "bartlett_freedom")


def whole(options: argparse.Namespace) -> list[str]:
    """Return what whole runs of the smoke profile say of a handful of faults, under seeds of their own."""
    if not options.runs:
        return ["Not measured on this state."]
    lines = ["| fault | violated | violated results in a run |", "| --- | --- | --- |"]
    for fault in HANDFUL:
        done = kept(options, f"{fault}-runs-{options.runs}")
        if not done:
            done = list(whole_runs(range(options.runs), "smoke", f"attncheck.faults:{fault}", options.workers))
            keep(options, f"{fault}-runs-{options.runs}", done)
        violated = sum(run.verdict == "violated" for run in done)
        counts = ", ".join(str(run.violated) for run in done)
        lines.append(f"| {fault} | {violated} of {options.runs} | {counts} |")
    return lines


def page(entries: Sequence[PowerEntry], options: argparse.Namespace, seconds: float, runs: Sequence[str]) -> str:
    """Return the page that is printed and written."""
    profiles, seeds, seed = list(entries[0].rows), options.seeds, options.seed
    profile = profile_named(profiles[-1])
    level, power = level_of(profile), per_look_power(profile.power)
    measured = len({entry.fault for entry in entries})
    faults = [f"- {fault.name}: {fault.what}." for fault in FAULTS.values()]
    exposed = [f"- {name}: {', '.join(fields)}." for name, fields in EXPOSURES.items()]
    return "\n".join(
        [
            "# Power",
            "",
            f"`python benchmarks/power.py --profiles {' '.join(profiles)} --seeds {seeds} --runs {options.runs} "
            "--write` makes this page.",
            "",
            f"A pilot sample per fault and anchor layer measures the effect on every check (99% interval in "
            f"brackets, what a right simulator gives in parentheses). From it follow the draws of a look that is "
            f"suspicious with chance {percent(power)} at level {level:.2g}, and the chance of a violated verdict "
            f"(three looks) by the best single check at what each profile plans; a whole run has at least that. "
            f"Verified: suspicious looks among {seeds} on fresh streams (fewer where looks cost much, none where the "
            f"chance is below a half), of as many draws as stated, with the 99% interval of their chance; where so "
            f"many proved too few, because most draws show little and some much, they were doubled until it held. "
            f"Seed {seed}; {measured} of {len(FAULTS)} "
            f"faults, {seconds / 60:.0f} minutes in the last call.",
            "",
            render(entries),
            "",
            "Whole runs of the smoke profile, everything exposed that the fault's simulator can expose:",
            "",
            *runs,
            "",
            "Faults:",
            "",
            *faults,
            "",
            "Exposures:",
            "",
            *exposed,
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description="Measure the power of the checks.")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=PROFILES, help="what to plan for")
    parser.add_argument("--quick", action="store_true", help="six faults, at the sizes of the smoke profile")
    parser.add_argument("--seeds", type=int, default=30, help="looks that verify each entry (default: 30)")
    parser.add_argument("--runs", type=int, default=4, help="whole smoke runs for each of a handful of faults")
    parser.add_argument("--seed", type=int, default=0, help="run seed (default: 0)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only these")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="keep what is done there, and go on from it")
    parser.add_argument("--write", action="store_true", help="write benchmarks/power.md and power.json")
    options = parser.parse_args(arguments)
    started = time.perf_counter()

    entries = []
    for entry in table(options):
        entries.append(entry)
        print(f"{time.perf_counter() - started:6.0f} s  {entry.fault} {entry.exposure}", file=sys.stderr, flush=True)
        # What was measured is not lost if the rest never comes.
        save(entries, options, time.perf_counter() - started, ["Not done."])
    print(save(entries, options, time.perf_counter() - started, whole(options)), end="")


def table(options: argparse.Namespace) -> Iterator[PowerEntry]:
    """Iterate over the entries of all faults, those that an interrupted call has left first."""
    names = options.fault or (QUICK if options.quick else tuple(FAULTS))
    profiles = PROFILES[:1] if options.quick else tuple(options.profiles)
    found = {name: kept(options, key_of(options, name)) for name in names}
    for entries in found.values():
        yield from entries
    missing = [name for name in names if not found[name]]
    measured = power_table(missing, profiles=profiles, seeds=options.seeds, seed=options.seed, workers=options.workers)
    for name, group in itertools.groupby(measured, lambda entry: entry.fault):
        entries = list(group)
        keep(options, key_of(options, name), entries)
        yield from entries


def key_of(options: argparse.Namespace, fault: str) -> str:
    """Return what the entries of a fault are kept as."""
    profiles = "quick" if options.quick else "-".join(options.profiles)
    return f"{fault}-{profiles}-{options.seeds}-{options.seed}"


def kept(options: argparse.Namespace, key: str) -> list[Any]:
    """Return what an interrupted call has left; nothing if it did not come so far."""
    if options.resume is None or not place(options, key).exists():
        return []
    found: list[Any] = pickle.loads(place(options, key).read_bytes())
    return found


def keep(options: argparse.Namespace, key: str, measured: list[Any]) -> None:
    """Keep what was measured, if there is a folder for it."""
    if options.resume is not None:
        options.resume.mkdir(parents=True, exist_ok=True)
        place(options, key).write_bytes(pickle.dumps(measured))


def place(options: argparse.Namespace, key: str) -> Path:
    """Return where something is kept."""
    folder: Path = options.resume
    return folder / f"{key}.pickle"


def save(entries: Sequence[PowerEntry], options: argparse.Namespace, seconds: float, runs: Sequence[str]) -> str:
    """Return the page of what was measured so far; write it if asked to."""
    text = page(entries, options, seconds, runs)
    if options.write:
        path = Path(__file__)
        path.with_suffix(".md").write_text(text, encoding="utf-8")
        path.with_suffix(".json").write_bytes(to_json(entries, list(entries[0].rows)[-1]))
    return text


if __name__ == "__main__":
    main()
