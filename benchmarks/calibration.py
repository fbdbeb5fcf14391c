"""How often each check raises a false alarm on a right simulator, against how often it may.

``python benchmarks/calibration.py`` gives every check small samples of the collapsed reading on layers that
are hard in different ways, counts p-values below four levels, and then gives every check one large sample
per layer of right simulators of several kinds, where a null that is only nearly true would show. ``--write``
puts the tables into benchmarks/calibration.md; ``--quick`` runs everything at a tiny scale. All streams are
keyed: the same numbers come out every time.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from threadpoolctl import threadpool_limits

import attncheck as ac
from attncheck.calibration import LEVELS, Calibration, calibrate
from attncheck.checks.check import Check
from attncheck.checks.reference import Reference
from attncheck.checks.registry import CHECKS
from attncheck.evidence.family import Outcome
from attncheck.evidence.streams import seed_sequence, stream
from attncheck.profiles import ANCHORS
from attncheck.subject import Subject, collapsed, direct, matrix_free
from attncheck.unit import join

Layer = ac.AttentionLayer

#: Layers on which nearly every check says something: they carry most of the replications.
MAIN = (ANCHORS[0], ANCHORS[1], ANCHORS[3])
#: Layers that are hard in one way each.
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
)
#: Many scores a draw: fewer replications.
LARGE = ANCHORS[4]


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is measured: replications on each of three kinds of layer, and draws of a large sample."""

    main: int
    hard: int
    large: int
    draws: int

    def part(self, share: float) -> Scale:
        """Return a share of all counts."""
        return Scale(*(max(1, round(share * count)) for count in dataclasses.astuple(self)))


FULL = Scale(main=7_000, hard=1_000, large=150, draws=100_000)
QUICK = Scale(main=3, hard=2, large=1, draws=600)


def single(layer: Layer, size: int, rng: np.random.Generator) -> dict[str, Any]:
    """Draw the collapsed reading and round it to single precision."""
    return {name: array.astype(np.float32) for name, array in collapsed(layer, size, rng).items()}


SUBJECTS: dict[str, Callable[..., dict[str, Any]]] = {
    "collapsed": collapsed,
    "collapsed, rounded to float32": single,
    "matrix-free": matrix_free,
    "direct": direct,
}


def plan(scale: Scale) -> list[tuple[Layer, int]]:
    """Return the layers and the replications on each."""
    plans = [(layer, scale.main) for layer in MAIN] + [(layer, scale.hard) for layer in HARD]
    return [*plans, (LARGE, scale.large)]


def calibrations(scale: Scale) -> dict[Layer, dict[str, Calibration]]:
    """Return the p-values of every check on every layer."""
    return {layer: calibrate(layer, CHECKS, replications) for layer, replications in plan(scale)}


def pooled(found: Iterable[dict[str, Calibration]]) -> dict[str, Calibration]:
    """Join each check's p-values over layers, in the order of the registry."""
    joined: dict[str, Calibration] = {}
    for calibration in (each for on_layer in found for each in on_layer.values()):
        before = joined.get(calibration.check)
        joined[calibration.check] = calibration if before is None else before.joined(calibration)
    return {check.name: joined[check.name] for check in CHECKS if check.name in joined}


def rate(calibration: Calibration, level: float) -> str:
    """Return the false-alarm rate over the level, with its standard error under the null."""
    count = len(calibration.p_values)
    expected = count * level
    return f"{calibration.alarms(level) / expected:.2f} ± {((1 - level) / expected) ** 0.5:.2f}"


def row(calibration: Calibration) -> tuple[str, ...]:
    """Return a line of the table of checks."""
    count = len(calibration.p_values)
    rates = (rate(calibration, level) if count else "" for level in LEVELS)
    distance = f"{calibration.distance_p():.2g}" if calibration.uniform else "at most uniform"
    return calibration.check, f"{count:,}", *rates, distance, f"{calibration.least():.2g}"


def smallest(calibrated: Iterable[Calibration]) -> str:
    """Return a sentence on the least likely of all comparisons."""
    each = [calibration for calibration in calibrated if len(calibration.p_values)]
    worst = min(each, key=Calibration.least)
    comparisons = sum(calibration.comparisons for calibration in each)
    corrected = min(1.0, worst.least() * comparisons)
    return (
        f"{comparisons:,} comparisons; the least likely, in {worst.check}, has a chance of {worst.least():.2g} "
        f"by itself and of at most {corrected:.2g} as the least of all."
    )


def large_samples(layer: Layer, subject: Any, draws: int) -> dict[str, Outcome]:
    """Return what every check says of one large sample of a subject."""
    settled, key = Subject.of(subject), ("large sample", layer.to_dict(), subject.__name__)
    setting = settled.probe(layer, stream(0, *key, role="probe"))
    checks = [check for check in CHECKS if not check.reason_not_examined(setting)]
    step = max(500, 2**20 // (layer.num_heads * layer.seq_len**2 + layer.seq_len * layer.width))
    rng, root = stream(0, *key), seed_sequence(0, *key, role="reference")
    parts: dict[Check, list[tuple[Any, ...]]] = {check: [] for check in checks}
    for start in range(0, draws, step):
        sample = settled.draw_as(setting, min(step, draws - start), rng)
        reference = Reference(layer, len(sample), setting.coordinates, root.spawn(1)[0])
        for check in checks:
            parts[check].append(check.measure(sample, reference))
    outcomes = {check.name: check.test(setting, join(parts[check])) for check in checks}
    return {name: outcome for name, outcome in outcomes.items() if outcome.count}


def large_row(name: str, subject: Any, draws: int) -> tuple[str, ...]:
    """Return a subject's line of the table of large samples."""
    found: list[tuple[float, str]] = []
    for layer in (*MAIN, *HARD):
        for check, outcome in large_samples(layer, subject, draws).items():
            found.append((outcome.p_value, f"{check} on {layer.describe()}"))
    p_value, where = min(found)
    below = ", ".join(f"{sum(p < level for p, _ in found)} of {len(found) * level:.3g}" for level in (0.01, 0.001))
    corrected = min(1.0, p_value * len(found))
    return name, f"{len(found):,}", below, f"{p_value:.2g}", where, f"{corrected:.2g}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, its columns of even width."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    padded = [f"| {' | '.join(cell.ljust(w) for cell, w in zip(line, widths, strict=True))} |" for line in lines]
    return "\n".join([padded[0], f"|{'|'.join('-' * (w + 2) for w in widths)}|", *padded[1:]])


def setting(scale: Scale) -> str:
    """Return what was measured and with what."""
    return (
        f"{scale.main:,} small samples on each of {len(MAIN)} layers, {scale.hard:,} on each of {len(HARD)} that are "
        f"hard in one way each, and {scale.large:,} on one with many scores. attncheck {ac.__version__}, "
        f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}."
    )


def layer_rows(found: dict[Layer, dict[str, Calibration]]) -> list[tuple[str, ...]]:
    """Return the lines of the table of layers."""
    rows: list[tuple[str, ...]] = []
    for layer, on_layer in found.items():
        tested = [each for each in on_layer.values() if len(each.p_values)]
        worst = min(tested, key=Calibration.least)
        comparisons = sum(each.comparisons for each in tested)
        corrected = min(1.0, worst.least() * comparisons)
        rows.append((layer.describe(), f"{len(tested)}", worst.check, f"{worst.least():.2g}", f"{corrected:.2g}"))
    return rows


def report(scale: Scale) -> str:
    """Measure everything, on one thread, and return the page."""
    with threadpool_limits(1):
        found = calibrations(scale)
        checks = pooled(found.values())
        large = [large_row(name, subject, scale.draws) for name, subject in SUBJECTS.items()]
    levels = [f"below {level:g}" for level in LEVELS]
    parts = [
        "# False alarms of every check",
        f"`python benchmarks/calibration.py --share {scale.main / FULL.main:g} --write` makes this page.",
        setting(scale),
        "Rates are over the level, ± one standard error; 1 is right where p-values must be uniform, and at most 1 "
        "where counts, ties or an allowance make them larger. Then the Kolmogorov–Smirnov p-value against "
        "uniform, and the least of the chances of what the line shows.",
        table(("check", "samples", *levels, "uniform", "least"), [row(each) for each in checks.values()]),
        smallest(checks.values()),
        "The same by layer: the check whose counts are the least likely there, its chance, and that chance as the "
        "least of all on the layer.",
        table(("layer", "checks", "worst check", "chance", "as the least"), layer_rows(found)),
        f"One sample of {scale.draws:,} draws of right simulators, by every check on every layer but the last: a null "
        "that holds only nearly would show here.",
        table(("subject", "p-values", "below 0.01, 0.001", "least", "where", "as the least"), large),
    ]
    if scale is QUICK:
        parts.insert(2, "A quick run: it shows that everything runs; its numbers mean nothing.")
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description="Measure the false alarms of every check.")
    parser.add_argument("--write", action="store_true", help="write benchmarks/calibration.md too")
    parser.add_argument("--quick", action="store_true", help="run everything at a tiny scale")
    parser.add_argument("--share", type=float, default=1.0, help="measure a share of it, such as 0.1 (default: 1)")
    options = parser.parse_args(arguments)
    if not 0 < options.share <= 1:
        parser.error(f"--share {options.share}: must be above 0 and at most 1")
    if options.write and options.quick:
        parser.error("--write: a quick run measures nothing worth keeping; leave --quick out")
    page = report(QUICK if options.quick else FULL.part(options.share))
    print(page, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
