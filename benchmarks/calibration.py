"""Measure the false-alarm rate of every check on right simulators.

``python benchmarks/calibration.py`` runs every check on small samples of the collapsed method, counts p-values below
four levels, and adds one large sample per layer and right simulator, which would reveal nulls that hold only
approximately. ``--write`` updates benchmarks/calibration.md; ``--share 0.1`` measures a tenth; ``--check NAME``
(repeatable) prints the small samples of single layer checks; ``--resume FILE`` continues an interrupted call. All
streams are keyed, so results are reproducible.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from threadpoolctl import threadpool_limits

import attncheck as ac
from attncheck._lib.executor_spec import spec_of
from attncheck._lib.executors import ExecutorSpec, TaskExecutor, here, in_order
from attncheck._lib.measured import installed, table
from attncheck.calibration.layers import DRAWS, LEVELS, Calibration, calibrate, pooled
from attncheck.checks.check import Check
from attncheck.checks.registry import CHECKS
from attncheck.layers.case import EXACT_WIDTHS, RATE_WIDTHS, Case
from attncheck.layers.program import ProgramCase
from attncheck.layers.regimes import REGIMES
from attncheck.looks.profiles import ANCHORS
from attncheck.programs import EXAMPLES
from attncheck.subject import programs
from benchmarks.pools import PoolCalibration, calibrate_pools
from benchmarks.rows import Rows
from benchmarks.samples import (
    PROGRAM_SUBJECTS,
    RANDOM,
    RATE_DRAWS,
    SUBJECTS,
    calibrate_program,
    large_samples,
    written_programs,
)

Layer = ac.AttentionLayer
#: p-values by layer or program, and by check.
Found = dict[str, dict[str, Calibration]]

#: Nearly every check applies to these layers: they get most of the replications.
MAIN = (ANCHORS[0], ANCHORS[1], ANCHORS[3])
#: Layers that are each hard in one way.
HARD = (
    ANCHORS[2],
    Layer(width=3, seq_len=8, num_heads=2),
    Layer(width=4, seq_len=4, num_heads=2),
    Layer(width=4, seq_len=4, num_heads=2, input_correlation=1.0),
    Layer(width=8, seq_len=4, num_heads=4, num_kv_heads=2, head_dim=2, mask="causal"),
    Layer(width=2, seq_len=4, num_heads=2, clip=1.0, input_std=2.0),
    Layer(width=4, seq_len=3, num_heads=2, attention_map="relu"),
    Layer(width=1, seq_len=2, num_heads=2, attention_map="relu", activation="relu"),
    Layer(width=2, seq_len=4, num_heads=1, attention_map="linear", input_std=2.0, query_std=2.0, key_std=2.0),
    Layer(width=8, seq_len=3, num_heads=2, attention_map="sigmoid", mask="causal", activation="tanh"),
    Layer(width=6, seq_len=3, num_heads=3, score_scaling="1/n", activation="erf", input_correlation=0.9),
    Layer(width=3, seq_len=3, num_heads=2, position_std=1.5, position_reach=2.0, input_correlation=1.0),
    Layer(width=3, seq_len=3, num_heads=2, score_scaling="1/n", tied_query_key=True, position_std=0.5),
)
LARGE = ANCHORS[4]


@dataclasses.dataclass(frozen=True)
class Scale:
    """Replications on four kinds of layer and two of program cases, and the size of a large sample.

    No layer check gets fewer than `fewest` replications.
    """

    main: int
    hard: int
    large: int
    normalised: int
    exact: int
    rates: int
    draws: int
    fewest: int

    def part(self, share: float) -> Scale:
        counts = {name: max(1, round(share * count)) for name, count in dataclasses.asdict(self).items()}
        return Scale(**{**counts, "draws": max(600, counts["draws"])})


FULL = Scale(main=1_500, hard=200, large=50, normalised=1_000, exact=1_500, rates=50, draws=20_000, fewest=6_000)
#: A rate that is this many times its level must show on the page, at this level.
TWICE, SHOWN_AT = 2.0, 0.01


def program_calibrations(scale: Scale) -> dict[str, dict[str, Calibration]]:
    return {
        name: {
            **calibrate_program(ProgramCase.of(program, EXACT_WIDTHS), scale.exact),
            **calibrate_program(ProgramCase.of(program, RATE_WIDTHS), scale.rates),
        }
        for name, program in written_programs().items()
    }


def main_layers(scale: Scale, checks: Sequence[Check] = CHECKS) -> tuple[Found, list[str]]:
    """Return the p-values of every check on the first layers, and the table of their pools with its summary."""
    found, pools = calibrate_pools(MAIN, checks, scale.main)
    return found, pool_rows(pools)


def other_layers(scale: Scale, checks: Sequence[Check] = CHECKS) -> Found:
    """Return the p-values of every check on the other layers."""
    plans = [*((layer, scale.hard) for layer in HARD), (LARGE, scale.large)]
    return {layer.describe(): calibrate(layer, checks, replications) for layer, replications in plans}


Further = tuple[str, Layer, int]


def missing(found: Found, fewest: int, checks: Sequence[Check] = CHECKS) -> Iterator[Further]:
    """Yield the further samples of checks that rarely apply."""
    for check in checks:
        layers = [layer for layer in (*MAIN, *HARD) if has(found[layer.describe()], check)]
        more = fewest - sum(len(each[check.name].p_values) for each in found.values() if has(each, check))
        yield from ((check.name, layer, -(-more // len(layers))) for layer in layers if more > 0)


def further(task: Further) -> Calibration:
    name, layer, replications = task
    return calibrate(layer, [check for check in CHECKS if check.name == name], replications, seed=1)[name]


def topped_up(found: Found, tasks: Iterable[Further], more: Iterable[Calibration]) -> Found:
    """Return p-values with those of further samples, in order of their tasks."""
    for (name, layer, _), each in zip(tasks, more, strict=True):
        on_layer = found[layer.describe()]
        on_layer[name] = on_layer[name].joined(each)
    return found


def has(found: Mapping[str, Calibration], check: Check) -> bool:
    """Return whether a check had data to test."""
    return check.name in found and len(found[check.name].p_values) > 0


def rate(calibration: Calibration, level: float) -> str:
    """Return the false-alarm rate divided by the level, with its standard error under the null."""
    count = len(calibration.p_values)
    expected = count * level
    return f"{calibration.alarms(level) / expected:.2f} ± {((1 - level) / expected) ** 0.5:.2f}"


def row(calibration: Calibration) -> tuple[str, ...]:
    count = len(calibration.p_values)
    rates = (rate(calibration, level) if count else "" for level in LEVELS)
    distance = f"{calibration.distance_p():.2g}" if calibration.uniform else "at most uniform"
    return calibration.check, f"{count:,}", *rates, distance, f"{calibration.least():.2g}"


def smallest(calibrated: Iterable[Calibration]) -> str:
    """Return a sentence on the least likely comparison."""
    each = [calibration for calibration in calibrated if len(calibration.p_values)]
    worst = min(each, key=Calibration.least)
    comparisons = sum(calibration.comparisons for calibration in each)
    corrected = min(1.0, worst.least() * comparisons)
    return (
        f"{comparisons:,} comparisons; the least likely, in {worst.check}, has chance {worst.least():.2g} "
        f"alone, and at most {corrected:.2g} as the smallest of all."
    )


def large_row(name: str, subject: Any, draws: int, cases: Iterable[tuple[str, Case]]) -> tuple[str, ...]:
    found: list[tuple[float, str]] = []
    for where, case in cases:
        for check, outcome in large_samples(case, subject, draws).items():
            found.append((outcome.p_value, f"{check} on {where}"))
    p_value, where = min(found)
    below = ", ".join(f"{sum(p < level for p, _ in found)} of {len(found) * level:.3g}" for level in (0.01, 0.001))
    corrected = min(1.0, p_value * len(found))
    return name, f"{len(found):,}", below, f"{p_value:.2g}", where, f"{corrected:.2g}"


def large_rows(draws: int) -> list[tuple[str, ...]]:
    layers = [(layer.describe(), layer) for layer in (*MAIN, *HARD)]
    return [large_row(name, subject, draws, layers) for name, subject in SUBJECTS.items()]


def large_program_rows(draws: int) -> list[tuple[str, ...]]:
    """Return the rows of all program simulators; orders in n are those of the first."""
    written = written_programs().items()
    exact = [(name, ProgramCase.of(program, EXACT_WIDTHS)) for name, program in written]
    rates = [(name, ProgramCase.of(program, RATE_WIDTHS)) for name, program in written]
    return [
        large_row(name, subject, draws, [*exact, *rates] if subject is programs else exact)
        for name, subject in PROGRAM_SUBJECTS.items()
    ]


def chance_to_show(count: int, level: float = SHOWN_AT) -> float:
    """Return the chance that a rate of `TWICE` the level has a p-value below 0.05 over all comparisons."""
    comparisons = len(CHECKS) * (len(LEVELS) + 1)
    chances = 2.0 * comparisons * stats.binom.sf(np.arange(-1, count), count, level)
    seen = int(np.argmax(chances < 0.05))
    return float(stats.binom.sf(seen - 1, count, TWICE * level))


def setting(scale: Scale) -> str:
    return (
        f"{scale.main:,} small samples on each of {len(MAIN)} layers, {scale.hard:,} on each of {len(HARD)} "
        f"that are each hard in one way, and {scale.large:,} on one with many scores; checks that rarely apply "
        f"are topped up to {scale.fewest:,}, so that a rate of {TWICE:g} times the level at {SHOWN_AT:g} shows among "
        f"all comparisons with probability {chance_to_show(scale.fewest):.3f}. All streams have seed 0, "
        f"further samples 1. {installed()}."
    )


def program_setting(scale: Scale) -> str:
    orders = scale.rates * (len(EXAMPLES) + RANDOM)
    return (
        f"{len(EXAMPLES)} example programs and {RANDOM} random ones, each with {scale.exact:,} small samples "
        f"of {DRAWS} draws at width {EXACT_WIDTHS[0]} and {scale.rates:,} of {RATE_DRAWS:,} at widths "
        f"{', '.join(map(str, RATE_WIDTHS))}, for orders in n, whose p-values should also be uniform. For an order a "
        f"rate of {TWICE:g} times the level at 0.05 shows with probability {chance_to_show(orders, 0.05):.3f}."
    )


def case_rows(found: Mapping[str, dict[str, Calibration]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, on_layer in found.items():
        tested = [each for each in on_layer.values() if len(each.p_values)]
        worst = min(tested, key=Calibration.least)
        comparisons = sum(each.comparisons for each in tested)
        corrected = min(1.0, worst.least() * comparisons)
        rows.append((name, f"{len(tested)}", worst.check, f"{worst.least():.2g}", f"{corrected:.2g}"))
    return rows


def check_table(found: Mapping[str, dict[str, Calibration]]) -> list[str]:
    """Return the table of checks over all layers or programs, and its summary sentence."""
    checks = pooled(found.values())
    levels = [f"below {level:g}" for level in LEVELS]
    lines = table(("check", "samples", *levels, "uniform", "least"), [row(each) for each in checks.values()])
    return [lines, smallest(checks.values())]


def tables(kind: str, found: Mapping[str, dict[str, Calibration]]) -> list[str]:
    return [
        *check_table(found),
        f"By {kind}: the least likely check, its chance, and that chance as the smallest of the {kind}.",
        table((kind, "checks", "worst check", "chance", "as the least"), case_rows(found)),
    ]


def some(scale: Scale, names: Sequence[str]) -> str:
    """Measure the given layer checks on small samples."""
    checks = [check for check in CHECKS if check.name in names]
    with threadpool_limits(1):
        found = {**main_layers(scale, checks)[0], **other_layers(scale, checks)}
        tasks = list(missing(found, scale.fewest, checks))
        found = topped_up(found, tasks, map(further, tasks))
    return "\n\n".join([setting(scale), *check_table(found)]) + "\n"


def pool_rows(found: Mapping[str, PoolCalibration]) -> list[str]:
    """Return the table of pools and its summary sentence."""
    header = ("check", "pools", *(f"below {level:g}" for level in LEVELS), "bias", "least")
    rows = []
    for each in found.values():
        check, count, *rates, _, least = row(each)
        mean, error = each.bias
        rows.append((check, count, *rates, f"{mean:+.3f} ± {error:.3f}" if each.signed else "one-sided", least))
    return [table(header, rows), smallest(found.values())]


def normalised(replications: int) -> list[str]:
    """Return the p-values of every check on small samples of the layer with a norm."""
    layer = REGIMES["normalised inputs"].layer
    found = calibrate(layer, CHECKS, replications)
    return normalised_rows({layer.describe(): found}, replications)


def normalised_rows(found: Mapping[str, dict[str, Calibration]], replications: int) -> list[str]:
    """Return the worst check, and its chance among all comparisons, as text."""
    return [
        f"{replications:,} small samples by every check on the runs' layer with a norm.",
        table(("layer", "checks", "worst check", "chance", "as the least"), case_rows(found)),
        smallest(each for on_layer in found.values() for each in on_layer.values()),
    ]


#: Independent parts of the page, and the types of their results.
PARTS: dict[str, tuple[Any, Callable[[Scale], Any]]] = {
    "normalised": (list[str], lambda scale: normalised(scale.normalised)),
    "large": (list[tuple[str, ...]], lambda scale: large_rows(scale.draws)),
    "large programs": (list[tuple[str, ...]], lambda scale: large_program_rows(scale.draws)),
    "programs": (Found, program_calibrations),
    "other layers": (Found, other_layers),
    "main layers": (tuple[Found, list[str]], main_layers),
}


def measured(name: str, scale: Scale) -> Any:
    with threadpool_limits(1):
        return PARTS[name][1](scale)


def report(scale: Scale, spec: ExecutorSpec | None = None, resume: Path | None = None) -> str:
    """Measure all parts and return the page."""
    rows, keys = Rows(resume), {name: f"{name}, {dataclasses.astuple(scale)}" for name in PARTS}
    with TaskExecutor(spec or here()) as executor:
        new = [name for name in PARTS if keys[name] not in rows]
        fresh = in_order(executor, functools.partial(measured, scale=scale), new)
        parts_of = {name: rows.get(keys[name], PARTS[name][0], lambda: next(fresh)) for name in PARTS}
        on_main, pooled_rows = parts_of["main layers"]
        found = {**on_main, **parts_of["other layers"]}
        tasks = list(missing(found, scale.fewest))
        found = topped_up(found, tasks, in_order(executor, further, tasks))
    large, large_programs, on_programs = (parts_of[name] for name in ("large", "large programs", "programs"))
    columns = ("subject", "p-values", "below 0.01, 0.001", "least", "where", "as the least")
    parts = [
        "# False alarms of every check",
        "`python benchmarks/calibration.py --write` makes this page.",
        setting(scale),
        (
            "Rates relative to the level, ± one standard error: 1 for uniform p-values, at most 1 with counts, "
            "ties or an allowance. Then the Kolmogorov–Smirnov p-value against uniform, and the row's smallest "
            "chance."
        ),
        *tables("layer", found),
        (
            f"One sample of {scale.draws:,} draws of right simulators, by every check on every layer but the last, "
            "to reveal nulls that hold only approximately."
        ),
        table(columns, large),
        "## Pools",
        (
            f"{scale.main:,} pools per check, of one small sample on each of the first {len(MAIN)} layers. The "
            "bias is the mean score, signed by the direction of the effect; counts and unsigned effects have none."
        ),
        *pooled_rows,
        "## Programs",
        program_setting(scale),
        *tables("program", on_programs),
        f"One sample of {scale.draws:,} draws of right simulators, by every check on every program.",
        table(columns, large_programs),
        "## Normalised inputs",
        *parts_of["normalised"],
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure the false alarms of every check.")
    parser.add_argument("--write", action="store_true", help="write benchmarks/calibration.md too")
    parser.add_argument("--share", type=float, default=1.0, help="measure a share of it, such as 0.1 (default: 1)")
    names = [check.name for check in CHECKS]
    parser.add_argument("--check", action="append", choices=names, metavar="NAME", help="measure this check alone")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep what is done there, and go on from it")
    parser.add_argument("--workers", default="2", help="processes (default: 2)")
    parser.add_argument("--executor", help="who does the work in their place, as for attncheck run")
    options = parser.parse_args(arguments)
    if not 0 < options.share <= 1:
        parser.error(f"--share {options.share}: must be above 0 and at most 1")
    if options.write and (options.check or options.share < 1):
        parser.error("--write: the page has every check, in full; leave --check and --share out")
    scale = FULL.part(options.share)
    if options.check:
        page = some(scale, options.check)
    else:
        page = report(scale, spec_of(options.executor, options.workers), options.resume)
    print(page, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
