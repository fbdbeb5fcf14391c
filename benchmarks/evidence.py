"""How often attncheck is wrong: false alarms of checks and of whole runs, power, and minimum detectable effects."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import special, stats

import attncheck as ac
from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.measured import table
from attncheck.calibration.error_rates import LEVELS, Calibration, calibrate, pooled
from attncheck.checks.programs import PROGRAM_CHECKS
from attncheck.checks.reference import RATIO
from attncheck.checks.registry import CHECKS, PROPERTIES, check_named
from attncheck.commands import cli
from attncheck.faults import EXPOSURES, FAULTS, exposing
from attncheck.layers.case import EXACT_WIDTHS, RATE_WIDTHS, Case
from attncheck.layers.program import ProgramCase
from attncheck.layers.regimes import REGIMES
from attncheck.looks.examine import probed, take_look
from attncheck.looks.pools import ALL
from attncheck.looks.profiles import ANCHORS, profile_named
from attncheck.records.schema import Closing, Manifest, Result, case_key, of_pool, read
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.subject import programs
from benchmarks.pages import WORKERS, over
from benchmarks.pools import PoolCalibration, calibrate_pools
from benchmarks.samples import (
    PROGRAM_SUBJECTS,
    RATE_DRAWS,
    SUBJECTS,
    calibrate_program,
    large_samples,
    written_programs,
)

Layer = ac.AttentionLayer
#: p-values by layer or program, and by check.
Found = dict[str, dict[str, Calibration]]

#: Nearly every check applies to these layers: they get most of the samples.
MAIN = (ANCHORS[0], ANCHORS[1], ANCHORS[3])
#: Layers that are each hard in one way.
HARD = (
    ANCHORS[2],
    ANCHORS[5],
    REGIMES["normalised inputs"],
    Layer(width=3, seq_len=8, num_heads=2),
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


@dataclasses.dataclass(frozen=True)
class Scale:
    """Size of the page.

    Small samples on each main layer, on each hard one, and of each program at one and at several widths; draws of a
    large sample, and its cases (None: all); run seeds of two profiles; properties of the runs and faults (None: all);
    the profile of first looks; and processes.
    """

    main: int = 500
    hard: int = 70
    exact: int = 500
    rates: int = 20
    draws: int = 10_000
    cases: int | None = None
    seeds: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"smoke": 6, "default": 1})
    only: tuple[str, ...] = ()
    faults: int | None = None
    looks: str = "default"
    workers: int = WORKERS


FULL = Scale()
TINY = Scale(
    3, 1, 2, 1, draws=600, cases=2, seeds={"smoke": 1}, only=("exactness",), faults=1, looks="smoke", workers=0
)


# False alarms of every check


def on_layer(layer: Layer, scale: Scale) -> Found:
    """Return p-values on one hard layer."""
    return {layer.describe(): calibrate(layer, CHECKS, scale.hard)}


def on_program(name: str, scale: Scale) -> Found:
    """Return p-values of one program, at one and at several widths."""
    program = written_programs()[name]
    exact, rates = (ProgramCase.of(program, widths) for widths in (EXACT_WIDTHS, RATE_WIDTHS))
    found = calibrate_program(exact, PROGRAM_CHECKS, scale.exact)
    return {name: found | calibrate_program(rates, PROGRAM_CHECKS, scale.rates)}


def on_large(part: tuple[str, Any], scale: Scale) -> tuple[str, ...]:
    """Return the row of a right simulator, which shows nulls that hold only approximately."""
    name, subject = part
    found = []
    for where, case in large_cases(subject)[: scale.cases]:
        outcomes = large_samples(case, subject, scale.draws)
        found += [(outcome.p_value, f"{check} on {where}") for check, outcome in outcomes.items()]
    p_value, where = min(found)
    below = ", ".join(f"{sum(p < level for p, _ in found)} of {len(found) * level:.3g}" for level in (0.01, 0.001))
    return name, f"{len(found):,}", below, f"{p_value:.2g}", where, f"{min(1.0, p_value * len(found)):.2g}"


def large_cases(subject: Any) -> list[tuple[str, Case]]:
    """Return the cases of a simulator of layers or of programs; orders in n are those of the first of programs."""
    if subject in SUBJECTS.values():
        return [(layer.describe(), layer) for layer in (*MAIN, *HARD) if layer is not ANCHORS[5]]
    widths = (EXACT_WIDTHS, RATE_WIDTHS) if subject is programs else (EXACT_WIDTHS,)
    return [(title, ProgramCase.of(program, w)) for title, program in written_programs().items() for w in widths]


def rates(calibration: Calibration) -> Iterator[str]:
    """Yield false-alarm rates divided by their level, with standard errors under the null."""
    for level in LEVELS:
        expected = len(calibration.p_values) * level
        error = ((1 - level) / expected) ** 0.5 if expected else math.inf
        yield f"{calibration.alarms(level) / expected:.2f} ± {error:.2f}" if expected else ""


def check_table(found: Found) -> list[str]:
    """Return the table of checks over all layers or programs, and a sentence on its least likely number."""
    rows = []
    for each in pooled(found.values()).values():
        distance = f"{each.distance_p():.2g}" if each.uniform else "at most uniform"
        rows.append((each.check, f"{len(each.p_values):,}", *rates(each), distance, f"{each.least():.2g}"))
    header = ("check", "samples", *(f"below {level:g}" for level in LEVELS), "uniform", "least")
    return [table(header, rows), smallest((each, name) for name, on_case in found.items() for each in on_case.values())]


def pool_table(found: Mapping[str, PoolCalibration]) -> list[str]:
    """Return the table of pools, and a sentence on its least likely number."""
    rows = []
    for each in found.values():
        mean, error = each.bias
        bias = f"{mean:+.3f} ± {error:.3f}" if each.signed else "one-sided"
        rows.append((each.check, f"{len(each.p_values):,}", *rates(each), bias, f"{each.least():.2g}"))
    header = ("check", "pools", *(f"below {level:g}" for level in LEVELS), "bias", "least")
    return [table(header, rows), smallest((each, "all together") for each in found.values())]


def smallest(calibrated: Iterable[tuple[Calibration, str]]) -> str:
    """Return a sentence on the least likely comparison."""
    pairs = [(each, where) for each, where in calibrated if len(each.p_values)]
    worst, where = min(pairs, key=lambda pair: pair[0].least())
    comparisons = sum(len(LEVELS) + each.uniform for each, _ in pairs)
    corrected = min(1.0, worst.least() * comparisons)
    return (
        f"{comparisons:,} comparisons; the least likely, {worst.check} on {where}, has chance {worst.least():.2g} "
        f"alone, and at most {corrected:.2g} as the smallest of all."
    )


def calibration(scale: Scale) -> list[str]:
    """Measure the false alarms of every check."""
    main, pools = calibrate_pools(MAIN, CHECKS, scale.main)
    hard = over(functools.partial(on_layer, scale=scale), HARD[: None if scale.workers else 1], scale.workers)
    layers = functools.reduce(dict.__or__, hard, main)
    names = list(written_programs())[: None if scale.workers else 1]
    of_programs = over(functools.partial(on_program, scale=scale), names, scale.workers)
    on_programs = functools.reduce(dict.__or__, of_programs)
    subjects = [*SUBJECTS.items(), *PROGRAM_SUBJECTS.items()][: None if scale.workers else 1]
    large = list(over(functools.partial(on_large, scale=scale), subjects, scale.workers))
    columns = ("subject", "p-values", "below 0.01, 0.001", "least", "where", "as the least")
    return [
        "## False alarms of every check",
        (
            f"{scale.main:,} small samples on each of {len(MAIN)} layers, and {scale.hard:,} on each of {len(HARD)} "
            "that are each hard in one way. Rates relative to the level, ± one standard error: 1 for uniform p-values, "
            "at most 1 with counts, ties or an allowance. Then the Kolmogorov–Smirnov p-value against uniform, and "
            "the row's smallest chance."
        ),
        *check_table(layers),
        "### Pools",
        (
            f"{scale.main:,} pools per check, of one small sample on each of the first {len(MAIN)} layers. The bias "
            "is the mean score, signed by the direction of the effect; counts and unsigned effects have none."
        ),
        *pool_table(pools),
        "### Programs",
        (
            f"{len(names)} programs, each with {scale.exact:,} small samples at width {EXACT_WIDTHS[0]} and "
            f"{scale.rates:,} of {RATE_DRAWS:,} draws at widths {', '.join(map(str, RATE_WIDTHS))}, for orders in n."
        ),
        *check_table(on_programs),
        "### Large samples",
        (
            f"One sample of {scale.draws:,} draws of right simulators, by every check on every layer and program, to "
            "reveal nulls that hold only approximately."
        ),
        table(columns, large),
    ]


# Whole runs


def run_record(profile: str, seed: int, folder: Path, scale: Scale) -> Path:
    """Test the literal simulator against the properties, and return the record."""
    record = folder / f"{profile}-{seed}.jsonl"
    options = ["--profile", profile, "--seed", str(seed), "--workers", str(scale.workers), "--record", str(record)]
    with contextlib.redirect_stdout(io.StringIO()):
        cli.main(["run", *options, *(word for name in scale.only for word in ("--only", name))])
    return record


def results_of(record: Path) -> list[Result]:
    """Return the examined results of a record, pools included."""
    return [line for line in read(record) if isinstance(line, Result) and line.p_values]


def run_row(profile: str, seed: int, record: Path) -> tuple[str, ...]:
    lines, results = list(read(record)), results_of(record)
    level = next(line.level for line in lines if isinstance(line, Manifest))
    verdict = next((line.verdict for line in lines if isinstance(line, Closing)), "did not finish")
    cells = []
    for pools in (False, True):
        looks = Counter(len(result.p_values) for result in results if of_pool(result) == pools)
        further = "/".join(str(looks[count]) for count in (2, 3, 4))
        cells.append(f"{looks.total():,}: {further} ({level * looks.total():.2f} expected)")
    return profile, str(seed), verdict, *cells


def run_summary(rows: Sequence[tuple[str, ...]]) -> str:
    """Return a sentence on the chance of a violated run."""
    violated = sum(row[2] == "violated" for row in rows)
    upper = stats.beta.ppf(0.95, violated + 1, len(rows) - violated)
    return (
        f"{len(rows)} runs of the literal simulator against the properties, {violated} violated: the chance of a "
        f"violated run is at most {upper:.3f} (95%, from the count alone). A look that is suspicious by chance is "
        "followed by another one; *expected* are first looks that are."
    )


def whole_runs(records: Mapping[tuple[str, int], Path]) -> list[str]:
    """Count verdicts and suspicious first looks."""
    rows = [run_row(profile, seed, record) for (profile, seed), record in records.items()]
    header = ("profile", "seed", "verdict", "cases: 2/3/4 looks", "pools: 2/3/4 looks")
    return ["## False alarms of whole runs", run_summary(rows), table(header, rows)]


# What a run sees


def effect_of(result: Result) -> float:
    """Return the distance of a minimum detectable effect from the null; for ratios, its logarithm."""
    null, mde = result.null_effect or 0.0, result.mde
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
        return effect_of(pool)
    informed = [(each.size, float((each.summary or {}).get("information", 0.0))) for each in singles]
    spreads = [math.sqrt(RATIO / (RATIO + 1.0) * size / information) for size, information in informed if information]
    return statistics.median(distance(math.log(pool.mde or 1.0) / spread) for spread in spreads)


def distance(shift: float) -> float:
    """Return the Kolmogorov distance of two normal laws a shift apart.

    Examples
    --------
    >>> round(distance(0.1), 3)
    0.04
    """
    return float(2.0 * special.ndtr(0.5 * shift) - 1.0)


def effects(record: Path) -> Iterator[tuple[str, float, float, float]]:
    """Yield a check, and the effects that the median case, the worst case and the pool of all cases detect."""
    measured = [result for result in results_of(record) if result.mde is not None]
    pools = {result.check: result for result in measured if of_pool(result) and case_key(result) == ALL}
    for name in sorted(pools):
        singles = [result for result in measured if result.check == name and not of_pool(result)]
        if singles and (singles[0].summary or {}).get("unit") != "excess":
            alone = [effect_of(result) for result in singles]
            yield name, statistics.median(alone), max(alone), together(pools[name], singles)


def detectable(record: Path, profile: str) -> list[str]:
    """Compare the minimum detectable effects of single cases with those of pools."""
    rows = list(effects(record))
    half = sum(pool <= 0.5 * median for _, median, _, pool in rows)
    cells = [(f"`{name}`", *(f"{value:.3g}" for value in values)) for name, *values in rows]
    return [
        "## Minimum detectable effects",
        (
            f"Effects that a run with profile {profile} and seed 0 detects with the planned power, in each check's "
            "unit (variance ratios: the logarithm). *Median* and *worst*: one case alone. *Together*: the pool of all "
            f"cases, for a common effect. The pool's is at most half of the median case's for {half} of {len(rows)} "
            "checks."
        ),
        table(("check", "median", "worst", "together"), cells),
    ]


# Power

#: Subtracted to correct for selection: the best of some thousand right scores exceeds it with a chance of about 0.1.
SELECTED, SURE = 4.0, 0.999


def shown(profile: str) -> list[str]:
    """Return the faults that show in a fixed layer of a run."""
    layers = profile_named(profile).layers
    return [name for name, fault in FAULTS.items() if not all(map(fault.reason_hidden, layers))]


def first_looks(fault: str, profile: str) -> tuple[float, dict[str, float]]:
    """Return the level of a look, and normal scores by check, on the first fixed layer that reveals a fault."""
    subject = exposing(FAULTS[fault], EXPOSURES["grams"])
    run = Run.of(RunOptions(subject=subject, seed=0, profile=profile))
    items = [item for name in PROPERTIES for item in run.items(name)]
    run = run.planning(item.id for item in items)
    layers = [layer for layer in run.profile.layers if not FAULTS[fault].reason_hidden(layer)]
    tasks = (task for task in run.tasks(items) if task.case in layers)
    task = next(task for task in tasks if not run.subject.reason_unsupported(task.case))
    with own_arithmetic():
        plan = probed(task.items, run.subject, run.seed, task.cost)
        names = [check.name for check in plan.sizes]
        outcomes = take_look(task.items[0], plan, run.subject, run.seed, 1, 1, names)
    return run.budget.level(), {name: score(each.p_value) for name, each in outcomes.items() if each.count}


def score(p_value: float) -> float:
    """Return the two-sided normal score of a p-value.

    Examples
    --------
    >>> round(score(0.05), 2)
    1.96
    """
    return -float(special.ndtri(0.5 * max(p_value, 1e-300)))


def chance(value: float, level: float) -> float:
    """Return the chance that three looks with this mean score are suspicious."""
    return float(special.ndtr(value - score(level))) ** 3


def power(scale: Scale) -> list[str]:
    """Measure the power of first looks on known-wrong simulators."""
    names = shown(scale.looks)[: scale.faults]
    looks = over(functools.partial(first_looks, profile=scale.looks), names, scale.workers)
    rows: list[tuple[str, ...]] = []
    sure = 0
    for fault, (level, scores) in zip(names, looks, strict=True):
        for exposure, fields in EXPOSURES.items():
            exposed = {n: value for n, value in scores.items() if not check_named(n).missing(frozenset(fields))}
            best = max(exposed, key=lambda name: exposed[name])
            violated = chance(exposed[best] - SELECTED, level)
            sure += violated > SURE
            percent = "> 99.9%" if violated > SURE else f"{100 * violated:.1f}%"
            rows.append((fault, exposure, f"`{best}`", f"{exposed[best]:.1f}", percent))
    return [
        "## Power",
        (
            f"First looks of the profile {scale.looks} on known-wrong simulators, on the first fixed layer that "
            "reveals each: the check that finds it first, the normal score of its p-value, and the chance of a "
            f"violated verdict, from the score less {SELECTED:g} to correct for selection. A whole run looks at more "
            "cases and pools: the chance is a lower bound. All exposures share their draws."
        ),
        f"{sure} of {len(rows)} rows above {100 * SURE:g}%.",
        table(("fault", "exposed", "seen first by", "score", "violated"), rows),
        *(f"- {name}: {FAULTS[name].what}." for name in names),
    ]


def page(tiny: bool) -> list[str]:
    """Measure everything, and return the page."""
    scale = TINY if tiny else FULL
    with tempfile.TemporaryDirectory() as folder:
        wanted = [(profile, seed) for profile, count in scale.seeds.items() for seed in range(count)]
        records = {key: run_record(*key, Path(folder), scale) for key in wanted}
        profile = wanted[-1][0]
        of_runs = [*whole_runs(records), *detectable(records[profile, 0], profile)]
    return ["# Evidence", *calibration(scale), *of_runs, *power(scale)]
