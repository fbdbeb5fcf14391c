"""Measure the power of whole runs on known-wrong simulators: fault × exposure.

``python benchmarks/power.py --write`` takes first looks at the fixed cases of a run and updates benchmarks/power.md;
``--resume FILE`` continues an interrupted call. ``attncheck power`` measures single checks on single layers.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from scipy import special

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError
from attncheck._lib.executors import TaskExecutor, in_order, processes
from attncheck.checks.registry import PROPERTIES, check_named
from attncheck.evidence.family import Outcome
from attncheck.evidence.verdicts import Trail, Verdict
from attncheck.faults import EXPOSURES, FAULTS, exposing
from attncheck.looks.domains import domain_of
from attncheck.looks.examine import probed, take_look
from attncheck.looks.pools import pools_of
from attncheck.looks.profiles import profile_named
from attncheck.looks.result import examined_result
from attncheck.records.schema import Result
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.runs.tasks import CaseTask
from attncheck.subject import Subject
from benchmarks.rows import Rows

#: Fixed cases of a fault: the first ones that reveal it.
CASES = 3
# Subtracted to correct for selection: the best of some thousand right scores exceeds it with a chance of about 0.1.
_SELECTED = 4.0
#: Further seeds where the first is not conclusive.
AGAIN = (1, 2)
_SURE = 0.999
# p-values above are not kept.
_KEPT = 0.05


class Seen(msgspec.Struct, frozen=True):
    """First looks at a fault: normal scores by result id, without small ones.

    `level` is that of one look, `examined` counts results of cases and pools, and `scores` are normal quantiles of
    the p-values.
    """

    fault: str
    exposure: str
    seed: int
    level: float
    examined: int
    scores: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Row:
    """Table row: the first result to reveal a fault, and a lower bound on the chance of a violated verdict."""

    fault: str
    exposure: str
    seen: str
    where: str
    score: str
    chance: float


def percent(chance: float) -> str:
    """Return a chance in percent, never rounded up to 100."""
    return "> 99.9%" if chance > 0.999 else f"{100 * chance:.1f}%"


def first_looks(piece: CaseTask, subject: Subject) -> list[Result]:
    """Return the results of a case's items as if no first look were suspicious."""
    items, cost = piece.items, piece.cost
    with own_arithmetic():
        plan = probed(items, subject, piece.seed, cost)
        names = [check.name for check in plan.sizes]
        seen = take_look(items[0], plan, subject, piece.seed, 1, 1, names) if names else {}
    return [
        examined_result(item, check, cost, plan, _trail(seen[check.name], cost.level), 0.0)
        for item in items
        for check in item.checks
        if check in plan.sizes and seen[check.name].count
    ]


def _trail(outcome: Outcome, level: float) -> Trail:
    return Trail((outcome,), Verdict.CONSISTENT, level)


@functools.lru_cache(maxsize=4)
def run_of(fault: str, profile: str, seed: int) -> tuple[Run, tuple[CaseTask, ...]]:
    """Return a run with all fields returned, and its tasks on the cases of a fault."""
    subject = exposing(FAULTS[fault], EXPOSURES["grams"])
    run = Run.of(RunOptions(subject=subject, seed=seed, profile=profile))
    items = [item for name in PROPERTIES for item in run.items(name, domain_of(name).strategy(name))]
    run = run.settled([item.id for item in items])
    cases = [layer for layer in run.profile.layers if not FAULTS[fault].reason_hidden(layer)][:CASES]
    return run, tuple(piece for piece in run.tasks(items, run.subject) if piece.case in cases)


def look(task: tuple[str, str, int, int]) -> list[Result]:
    """Return the results of a run on one case; none if the fault cannot be drawn."""
    run, pieces = run_of(*task[:3])
    piece = pieces[task[3]]
    try:
        return [] if run.subject.reason_unsupported(piece.case) else first_looks(piece, run.subject)
    except InputError:  # not every layer supports the fault
        return []


def seen(fault: str, profile: str, seed: int, workers: int) -> list[Seen]:
    """Return first looks at every exposure, all on the same draws."""
    run, pieces = run_of(fault, profile, seed)
    with TaskExecutor(processes(workers)) as executor:
        tasks = [(fault, profile, seed, number) for number in range(len(pieces))]
        results = list(itertools.chain.from_iterable(in_order(executor, look, tasks)))
    found = []
    for exposure, fields in EXPOSURES.items():
        some = [result for result in results if check_named(result.check).needs <= frozenset(fields)]
        scores = {result.id: score(result.p_values[0]) for result in some}
        scores |= {pool.id: score(pool.first_look.outcome().p_value) for pool in pools_of(some)}
        kept = {name: value for name, value in scores.items() if value > score(_KEPT)}
        found.append(Seen(fault, exposure, seed, run.level, len(scores), kept))
    return found


def score(p_value: float) -> float:
    """Return the two-sided normal score of a p-value.

    Examples
    --------
    >>> round(score(0.05), 2)
    1.96
    """
    return -float(special.ndtri(0.5 * max(p_value, 1e-300)))


def chance(distance: float, level: float) -> float:
    """Return the chance that three looks with this mean score are suspicious."""
    return float(special.ndtr(distance - score(level))) ** 3


def row(group: Sequence[Seen], words: Mapping[str, str]) -> Row:
    """Return the row of a fault at an exposure from one look, or from further looks at the chosen result."""
    first, further = group[0], group[1:]
    if not first.scores:
        return Row(first.fault, first.exposure, "not seen", "", "", 0.0)
    best = max(first.scores, key=lambda name: (first.scores[name], name))
    if not further:
        mean, told = first.scores[best] - _SELECTED, f"{first.scores[best]:.1f}"
    else:
        shared = [name for name in first.scores if name.rpartition("@")[2] in words]
        best = max(shared or first.scores, key=lambda name: (first.scores[name], name))
        values = [each.scores.get(best, 0.0) for each in further]
        mean, told = sum(values) / len(values), ", ".join(f"{value:.1f}" for value in values)
    check, _, where = best.rpartition("@")
    return Row(first.fault, first.exposure, f"`{check}`", words.get(where, where), told, chance(mean, first.level))


def settled(group: Sequence[Seen]) -> bool:
    """Return whether the first seed is conclusive."""
    best = max(group[0].scores.values(), default=0.0)
    return chance(best - _SELECTED, group[0].level) > _SURE


def measured(faults: Sequence[str], options: argparse.Namespace) -> Iterator[Seen]:
    """Yield all first looks, with further seeds for inconclusive rows."""
    rows = Rows(options.resume)
    for fault in faults:
        for seed in (0, *AGAIN):
            looks = functools.partial(seen, fault, options.profile, seed, options.workers)
            found = rows.get(f"{fault}, seed {seed}", list[Seen], looks)
            yield from found
            if seed == 0 and all(settled([each]) for each in found):
                break


def shown(profile: str) -> list[str]:
    """Return the faults that show in a fixed layer; `attncheck power` covers the others."""
    layers = profile_named(profile).layers
    return [name for name, fault in FAULTS.items() if not all(map(fault.reason_hidden, layers))]


def page(every: Sequence[Seen], profile: str) -> str:
    words = {layer.key: layer.describe() for layer in Run.of(RunOptions(profile=profile)).profile.layers}
    words |= {"all": "all together"}
    groups: dict[tuple[str, str], list[Seen]] = {}
    for each in every:
        groups.setdefault((each.fault, each.exposure), []).append(each)
    rows = []
    for group in groups.values():
        rows.append(row(group[:1] if settled(group) else group, words))
    weak = [each for each in rows if each.chance <= _SURE]
    lines = [
        "# Power",
        "",
        "`python benchmarks/power.py --write` makes this page.",
        "",
        (
            f"First looks of the profile {profile} on known-wrong simulators: the check that finds a fault first, and "
            "its case or pool. The score is the normal quantile of its p-value. A look is suspicious beyond "
            f"{score(every[0].level):.2f}; three make a violated verdict, whose chance is computed from the score "
            f"less {_SELECTED:g}, to correct for selection; if inconclusive, from the same result's mean score "
            f"under {len(AGAIN)} other seeds (shown). Only the first {CASES} fixed cases that reveal the fault are "
            "examined, with seed 0 first, so that the chance is a lower bound for a whole run. All exposures share "
            "their draws."
        ),
        "",
        f"{len(rows) - len(weak)} of {len(rows)} rows above {percent(_SURE)}.",
        "",
        "| fault | exposed | seen first by | where | score | violated |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {each.fault} | {each.exposure} | {each.seen} | {each.where} | {each.score} | {percent(each.chance)} |"
            for each in rows
        ),
        "",
        "Faults:",
        "",
        *(f"- {name}: {FAULTS[name].what}." for name in shown(profile)),
        "",
        "Exposures:",
        "",
        *(f"- {name}: {', '.join(fields)}." for name, fields in EXPOSURES.items()),
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure the power of whole runs.")
    parser.add_argument("--profile", choices=("smoke", "default"), default="default", help="what the runs may cost")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only these")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep what is done there, and go on from it")
    parser.add_argument("--write", action="store_true", help="write benchmarks/power.md")
    options = parser.parse_args(arguments)
    text = page(list(measured(options.fault or shown(options.profile), options)), options.profile)
    print(text, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
