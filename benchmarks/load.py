"""Measure time and memory under load: long records, long histories, many draws, and long sequences.

``python benchmarks/load.py`` runs each command in a process of its own and prints the page (a quarter of an hour);
``--write`` updates benchmarks/load.md. The order is the exponent of the growth between the smallest and the largest.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import attncheck as ac
from attncheck._lib.measured import installed, table
from attncheck.gate.history import RunEntry
from attncheck.records.schema import Closing, Manifest, PlannedResult, Result, of_pool, read, run_digest
from attncheck.records.writer import Writer

LINES, RUNS, DRAWS, LENGTHS = (5_000, 50_000), (500, 5_000), (10**5, 10**6), (16, 32, 64)
QUICK_LINES, QUICK_RUNS, QUICK_DRAWS, QUICK_LENGTHS = (20, 40), (3, 6), (10**4, 2 * 10**4), (4, 8)
_SMOKE = ("run", "--profile", "smoke", "--only", "draws", "--only", "inputs", "--workers", "0", "--seed", "7")


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds and peak memory of a command's process; `children`, the largest of its workers."""

    seconds: float
    own: float
    children: float = 0.0

    def row(self, what: str, size: int, order: str) -> tuple[str, ...]:
        """Return the row of a table."""
        children = f" + {self.children:,.0f}" if self.children else ""
        return what, f"{size:,}", f"{self.seconds:,.1f}", order, f"{self.own:,.0f}{children}"


# Reports its own and its children's peak, in KiB, as the last line of the errors.
_WATCHED = """
import resource, sys
from attncheck.commands.cli import main
code = main(sys.argv[1:])
peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print("", *peaks, file=sys.stderr)
raise SystemExit(code)
"""
# One look of so many draws, by all checks of two properties that scores and Gram matrices allow.
_LOOK = """
import resource, sys
import numpy as np
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.examine import probed
from attncheck.looks.item import Item
from attncheck.looks.look import observe
from attncheck.looks.plan import Cost, Plan
from attncheck.subject import Subject
subject, layer = Subject.of("attncheck.subject:collapsed"), AttentionLayer(width=16)
plan = probed([Item(name, layer) for name in ("scores", "exactness")], subject, 0, Cost(10**6, 5e-4, 0.99))
look = Plan(plan.setting, plan.chunk, 5e-4, 0.99, dict.fromkeys(plan.sizes, int(sys.argv[1])), {})
observe(look, list(look.sizes), 1, subject, np.random.default_rng(0), np.random.SeedSequence(0))
print("", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0, file=sys.stderr)
"""


def cost(folder: Path, *arguments: str, code: str = _WATCHED) -> Cost:
    """Run an attncheck command, or other code, in a folder; it must not fail on its input."""
    started = time.monotonic()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 3, 4):
        raise RuntimeError(f"{shlex.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    own, children = (int(each) / 1024 for each in done.stderr.split()[-2:])
    return Cost(time.monotonic() - started, own, children)


def enlarged(source: Path, count: int, target: Path) -> None:
    """Write a record with `count` results, repeating those of another one under further ids."""
    lines = list(read(source))
    results = [line for line in lines if isinstance(line, Result) and not of_pool(line)]
    repeated = [
        msgspec.structs.replace(
            each, **{name: f"{getattr(each, name)}-{k // len(results)}" for name in ("id", "key", "item")}
        )
        for k in range(count)
        for each in (results[k % len(results)],)
    ]
    writer = Writer(target)
    for line in lines:
        if isinstance(line, Manifest):
            planned = [PlannedResult(each.id, each.item, each.check) for each in repeated]
            writer.write(msgspec.structs.replace(line, planned=planned))
        elif isinstance(line, Closing):
            for each in repeated:
                writer.write(each)
            writer.write(msgspec.structs.replace(line, reported=count, digest=run_digest(repeated)))
    writer.close()


def lengthened(source: Path, count: int, target: Path) -> None:
    """Write a history with `count` runs, repeating its last one under other commits and seeds."""
    head = source.read_bytes().splitlines()
    entry = msgspec.json.decode(head[-1], type=RunEntry)
    runs = (
        msgspec.structs.replace(entry, key=f"{k:040x}", seed=k, started=f"2026-01-01T{k:09d}") for k in range(count)
    )
    target.write_bytes(b"\n".join([*head[:-1], *map(msgspec.json.encode, runs), b""]))


def order(sizes: Sequence[int], seconds: Sequence[float]) -> str:
    """Return the exponent of the growth of the seconds, "" for one size."""
    if len(sizes) < 2:
        return ""
    return f"{math.log(seconds[-1] / seconds[0]) / math.log(sizes[-1] / sizes[0]):.2f}"


def rows(what: str, sizes: Sequence[int], costs: Sequence[Cost]) -> Iterator[tuple[str, ...]]:
    """Yield a row per size; the order of growth stands in the last."""
    for k, (size, each) in enumerate(zip(sizes, costs, strict=True)):
        last = k == len(sizes) - 1
        yield each.row(what, size, order(sizes, [one.seconds for one in costs]) if last else "")


def commands(
    folder: Path, profile: str, lines: Sequence[int], runs: Sequence[int], draws: Sequence[int]
) -> Iterator[tuple[str, ...]]:
    """Yield the rows of all commands."""
    cost(folder, *_SMOKE, "--record", "small.jsonl")
    gate = "gate", "small.jsonl", "--baseline", "baseline.jsonl"
    cost(folder, *gate, "--write-baseline")
    cost(folder, *gate, "--history", "small-history.jsonl", "--key", "0")
    for count in lines:
        for name in (f"{count}.jsonl", f"before-{count}.jsonl"):
            enlarged(folder / "small.jsonl", count, folder / name)
    for count in runs:
        lengthened(folder / "small-history.jsonl", count, folder / f"history-{count}.jsonl")
    yield from rows("page of a record of so many results", lines, [cost(folder, "report", f"{n}.jsonl") for n in lines])
    gates = [cost(folder, "gate", f"{n}.jsonl", "--baseline", f"before-{n}.jsonl") for n in lines]
    yield from rows("gate of such a record against one as long", lines, gates)
    yield from rows("history of so many runs", runs, [cost(folder, "history", f"history-{n}.jsonl") for n in runs])
    run = "run", "--profile", profile, "--workers", "2"
    yield from rows(f"run of profile {profile} with so many workers", [2], [cost(folder, *run)])
    yield from rows("one look of so many draws", draws, [cost(folder, str(n), code=_LOOK) for n in draws])


def lengths(sizes: Sequence[int], draws: int) -> Iterator[tuple[str, ...]]:
    """Yield the milliseconds of a draw by the number of positions."""
    for method in ("collapsed", "limit"):
        spent = []
        ac.simulate(ac.AttentionLayer(width=64, seq_len=2), 1, method=method)  # imports
        for s in sizes:
            started = time.process_time()
            ac.simulate(ac.AttentionLayer(width=64, seq_len=s), draws, method=method, coordinates=1)
            spent.append((time.process_time() - started) / draws)
        growth = order(sizes, spent)
        for k, (s, each) in enumerate(zip(sizes, spent, strict=True)):
            yield method, f"{s}", f"{1e3 * each:.2f}", growth if k == len(sizes) - 1 else ""


def page(quick: bool) -> str:
    """Measure everything; return the page."""
    chosen = ("smoke", QUICK_LINES, QUICK_RUNS, QUICK_DRAWS) if quick else ("default", LINES, RUNS, DRAWS)
    with tempfile.TemporaryDirectory() as folder:
        found = list(commands(Path(folder), *chosen))
    by_length = list(lengths(QUICK_LENGTHS if quick else LENGTHS, 50 if quick else 1_000))
    return "\n\n".join(
        [
            "# Load",
            f"`python benchmarks/load.py --write` makes this page, here with {installed()}.",
            "Each command is a process of its own; the memory is its peak, and after + that of its largest worker. The"
            "\norder is the exponent of the growth of the seconds from a command's first row to its last.",
            table(("command", "size", "seconds", "order", "MiB"), found),
            "A draw of a layer of width 64 with two heads, by its number of positions s: it has s² scores, and Cholesky"
            "\nfactors of s³ operations.",
            table(("method", "s", "milliseconds", "order"), by_length),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--write", action="store_true", help="write benchmarks/load.md")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--quick measures nothing worth keeping; leave --write out")
    text = page(options.quick)
    print(text)
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
