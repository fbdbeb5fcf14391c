"""Times of the methods at finite width, of the limit, of the main job, and of large layers."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck._lib.measured import spread, table
from attncheck.methods import Method
from attncheck.records.schema import Closing, Result, of_pool, read
from benchmarks.pages import WORKERS, children_seconds

ROOT = Path(__file__).resolve().parents[1]
METHODS: tuple[Method, ...] = ("direct", "matrix-free", "collapsed")
NORMALS = "s·n normals into a buffer"
# One BLAS thread per worker, as in tox.
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
# Promised wall seconds of the main job with the profile default, on two cores.
TARGET = 60.0
# Sizes of GPT-2, of its largest version and of Llama 7B.
LARGE = tuple(
    ac.AttentionLayer(width=heads * head_dim, seq_len=1024, num_heads=heads, head_dim=head_dim)
    for heads, head_dim in ((12, 64), (25, 64), (32, 128))
)


@dataclasses.dataclass(frozen=True)
class Scale:
    """Size of the page.

    Rounds, and the least seconds of a task per round; widths; profiles of the main job; large layers.
    """

    rounds: int = 15
    seconds: float = 0.15
    widths: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    profiles: tuple[str, ...] = ("smoke", "default")
    large: tuple[ac.AttentionLayer, ...] = LARGE


TINY = Scale(2, 0.001, (16, 32, 64), (), (LARGE[0].replace(seq_len=32),))


# Methods


@dataclasses.dataclass(frozen=True)
class Times:
    """Processor seconds per draw of each task, one per round."""

    seconds: Mapping[str, FloatArray]

    def ratio(self, slow: str, fast: str) -> tuple[str, float]:
        """Return how many times as long a task takes as another one: median with quartiles, and median."""
        ratios = self.seconds[slow] / self.seconds[fast]
        return spread(ratios, "×", ".3g"), float(np.median(ratios))


def clocked(run: Callable[[int], object], size: int) -> float:
    """Return the processor seconds per draw; coarse clocks may show no time for a short call."""
    started = time.process_time()
    run(size)
    return max(time.process_time() - started, 1e-9) / size


def take_turns(tasks: Mapping[str, Callable[[int], object]], scale: Scale) -> Times:
    """Time tasks in turn, each on as many draws as take about the seconds of the scale."""
    sizes = {}
    for name, run in tasks.items():
        run(1)  # warms up
        size = max(1, round(scale.seconds / clocked(run, 1)))
        sizes[name] = max(size, round(scale.seconds / clocked(run, size)))
    rounds = [{name: clocked(run, sizes[name]) for name, run in tasks.items()} for _ in range(scale.rounds)]
    return Times({name: np.array([times[name] for times in rounds]) for name in tasks})


def layer_of(width: int) -> ac.AttentionLayer:
    """Return the paper's layer, s = 4 and H = 2, at a width."""
    return ac.AttentionLayer(width=width, seq_len=4, num_heads=2)


def drawn_by(method: Method, layer: ac.AttentionLayer) -> Callable[[int], object]:
    """Return the task of drawing a layer with a method, through the public interface."""
    return lambda size: ac.simulate(layer, size, method=method)


def normals(layer: ac.AttentionLayer) -> Callable[[int], object]:
    """Return the task of drawing the normals that a draw needs, into a reused buffer."""
    rng, buffer = np.random.default_rng(0), np.zeros(layer.seq_len * layer.width)

    def run(size: int) -> None:
        for _ in range(size):
            rng.standard_normal(out=buffer)

    return run


def methods(scale: Scale) -> list[str]:
    """Compare the methods with each other and with drawing normals, on one thread."""
    targets = {"collapsed": (300.0, 1500.0), "matrix-free": (50.0, 200.0)}
    ends = (scale.widths[0], scale.widths[2])
    rows: list[tuple[str, str, str, bool]] = []
    timed = {}
    for end, width in enumerate(ends):
        layer = layer_of(width)
        tasks: dict[str, Callable[[int], object]] = {method: drawn_by(method, layer) for method in METHODS}
        timed[width] = take_turns(tasks | {NORMALS: normals(layer)}, scale)
        at = f"n = {width:,}"
        for method, least in targets.items():
            text, ratio = timed[width].ratio("direct", method)
            rows.append((f"{method} against direct, {at}", text, f"at least {least[end]:,.0f}×", ratio >= least[end]))
    text, ratio = timed[ends[1]].ratio("collapsed", NORMALS)
    rows.append((f"collapsed against {NORMALS}, n = {ends[1]:,}", text, "at most 2.5×", ratio <= 2.5))
    costs = take_turns({str(n): drawn_by("collapsed", layer_of(n)) for n in scale.widths}, scale)
    medians = [float(np.median(seconds)) for seconds in costs.seconds.values()]
    slope = float(np.polyfit(np.log(scale.widths), np.log(medians), 1)[0])
    listed = ", ".join(f"{n:,}" for n in scale.widths)
    rows.append((f"exponent of the cost of collapsed, n = {listed}", f"{slope:.2f}", "at most 1.1", slope <= 1.1))
    rows.append(limit_row(scale))
    times = [
        (name, *(f"{1e6 * np.median(timed[n].seconds[name]):,.1f}" for n in ends)) for name in timed[ends[0]].seconds
    ]
    return [
        "## Methods at finite width",
        (
            f"s = 4, H = 2, one thread, {scale.rounds} rounds in turn; median (quartiles) of processor time, system "
            "calls included."
        ),
        table(("what", "measured", "target", "verdict"), [(*row[:3], "met" if row[3] else "missed") for row in rows]),
        table(("processor µs per draw, median", *(f"n = {n:,}" for n in ends)), times),
    ]


def limit_row(scale: Scale) -> tuple[str, str, str, bool]:
    """Return the row on the limit's cdf: the time of a new law without caches."""
    t = np.linspace(-4, 4, 401)
    seconds = np.array([clocked(lambda _: ac.limit(layer_of(64)).cdf(t), 1) for _ in range(scale.rounds)])
    measured = spread(seconds, " s", ".3f")
    return "limit cdf, 401 points, a new law", measured, "at most 0.15 s", bool(np.median(seconds) <= 0.15)


# The main job


def main_job(profile: str) -> tuple[str, ...]:
    """Run ``pytest -n 2 properties/`` with a profile, and return its row."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        options = ["--attncheck-profile", profile, "--attncheck-record", str(record)]
        line = [sys.executable, "-m", "pytest", "-q", "-n", str(WORKERS), "properties/", *options]
        before, started = children_seconds(), time.perf_counter()
        environment = {**os.environ, **dict.fromkeys(THREADS, "1")}
        run = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        seconds, used = time.perf_counter() - started, children_seconds() - before
        if not record.exists():
            sys.exit(f"profile {profile}: pytest wrote no record; it said:\n{run.stdout}{run.stderr}")
        lines = list(read(record))
    results = [each for each in lines if isinstance(each, Result) and not of_pool(each)]
    verdict = next((each.verdict for each in lines if isinstance(each, Closing)), "did not finish")
    examined = f"{sum(bool(each.p_values) for each in results):,} of {len(results):,}"
    met = f"at most {TARGET:.0f} s: {'met' if seconds <= TARGET else 'missed'}" if profile == "default" else ""
    return profile, f"{seconds:.0f}", f"{used:.0f}", verdict, examined, met


# Large layers

_DRAW = """
import json, resource, sys, time
import attncheck as ac

layer = ac.AttentionLayer.from_dict(json.loads(sys.argv[1]))
wall, processor = time.perf_counter(), time.process_time()
ac.simulate(layer, 1, memory=4 * 2**30)
spent = time.perf_counter() - wall, time.process_time() - processor
print(json.dumps([*spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]))
"""


def large_row(layer: ac.AttentionLayer) -> tuple[str, ...]:
    """Return the cost of one draw, in a process of its own for its peak memory."""
    line = [sys.executable, "-c", _DRAW, json.dumps(layer.to_dict())]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    wall, processor, peak = json.loads(done.stdout)
    sizes = (f"{layer.width:,}", f"{layer.seq_len:,}", str(layer.num_heads), str(layer.head_width))
    return *sizes, f"{wall:.1f}", f"{processor:.1f}", f"{peak:.2f}"


def page(tiny: bool) -> list[str]:
    """Measure everything, and return the page."""
    scale = TINY if tiny else Scale()
    with threadpool_limits(1):
        of_methods = methods(scale)
    header = ("profile", "wall s", "processor s", "verdict", "examined", "target")
    return [
        "# Speed",
        *of_methods,
        "## The main job",
        f"`pytest -n {WORKERS} properties/`: wall seconds with start and collection.",
        table(header, [main_job(profile) for profile in scale.profiles]),
        "## One draw of a large layer",
        f"By the collapsed method, with all of {os.cpu_count()} cores, in a process of its own.",
        table(("n", "s", "H", "head_dim", "s, wall", "s, processor", "GiB"), map(large_row, scale.large)),
    ]
