"""Measure detection delays and false alarms of run histories: simulated streams and real runs.

``python benchmarks/history.py`` prints the page; ``--write`` updates benchmarks/history.md. The runs are of one
property, for a right subject and for one that drifts from the middle on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from attncheck._lib.commits import keyed_seed
from attncheck._lib.measured import installed, table
from attncheck._lib.text import counted
from attncheck.evidence.detector import ALARM, course
from attncheck.gate.history import History, add
from attncheck.records.schema import Result, read

FloatArray = NDArray[np.float64]
Drawn = Callable[[np.random.Generator, int, int], FloatArray]

STREAMS, RUNS, LIVES, NIGHTS = 92, 1_000, 2_000, 16
#: Factor of W_V in the drifting subject.
FACTOR = 1.01
_PROPERTY = "exactness"
# Scores are exposed, and no Gram matrices.
_SUBJECT = """
import os
from attncheck.subject import collapsed

def simulate(layer, size, rng):
    drawn = collapsed(layer.replace(value_std=float(os.environ["NIGHTLY_FACTOR"]) * layer.value_std), size, rng)
    return {"outputs": drawn["outputs"], "scores": drawn["scores"]}
"""
# Histories in memory at a time.
_AT_ONCE = 50
# Drift of one stream, as a fraction of one look's minimum detectable effect (6 standard deviations).
GAP = 6.0
DRIFTS = {0.25: 25, 0.15: 60, 0.1: 150}


def independent(rng: np.random.Generator, lives: int, runs: int) -> FloatArray:
    """Draw scores of independent streams, shape (histories, runs, streams)."""
    return rng.standard_normal((lives, runs, STREAMS))


def correlated(rho: float) -> Drawn:
    """Draw scores with a common part, as of pools that share layers."""

    def drawn(rng: np.random.Generator, lives: int, runs: int) -> FloatArray:
        common = rng.standard_normal((lives, runs, 1))
        return np.asarray(rho**0.5 * common + (1.0 - rho) ** 0.5 * independent(rng, lives, runs))

    return drawn


def biased(bias: float) -> Drawn:
    """Draw scores with a small common bias."""

    def drawn(rng: np.random.Generator, lives: int, runs: int) -> FloatArray:
        return independent(rng, lives, runs) + bias

    return drawn


KINDS: dict[str, Drawn] = {
    "independent": independent,
    "correlation 0.5": correlated(0.5),
    "correlation 0.95": correlated(0.95),
    "scores biased by 0.03": biased(0.03),
    "scores biased by 0.05": biased(0.05),
}


def alone(rng: np.random.Generator, lives: int, runs: int) -> FloatArray:
    """Draw scores of one stream, shape (histories, runs, 1)."""
    return rng.standard_normal((lives, runs, 1))


def as_measured(history: History) -> tuple[Drawn, str]:
    """Draw scores with the correlations and the mean of the signed streams of real runs, and return these too."""
    signed = _signed(history)
    there = ~np.isnan(signed)
    bias = float(np.nanmean(signed, axis=1).mean())
    seen = np.where(there, signed - np.nanmean(signed, axis=0), 0.0)
    seen = seen[:, (seen**2).sum(axis=0) > 0]
    rows = seen / np.sqrt((seen**2).sum(axis=0))

    def drawn(rng: np.random.Generator, lives: int, runs: int) -> FloatArray:
        return np.asarray(rng.standard_normal((lives, runs, len(rows))) @ rows + bias)

    return drawn, f"correlations of {rows.shape[1]} streams in {len(rows)} runs, off by {bias:.3f} as they are"


def delays(
    drawn: Drawn, lives: int, runs: int, drift: float, seed: int, shares: FloatArray | None = None
) -> FloatArray:
    """Return the runs until the first alarm of each history, infinity if none, shape (histories,)."""
    found = []
    for start in range(0, lives, _AT_ONCE):
        z = drawn(np.random.default_rng([seed, start]), min(_AT_ONCE, lives - start), runs)
        z[:, :, 0] += drift
        reached = course(z, np.zeros(z.shape[-1], bool), shares).total >= ALARM
        found.append(np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, np.inf))
    return np.concatenate(found)


def false_alarms(lives: int, runs: int, real: History | None) -> str:
    rows, kinds = [], dict(KINDS)
    if real is not None and len(real.since) > 1:
        drawn, name = as_measured(real)
        kinds[name] = drawn
    for name, drawn in kinds.items():
        alarms = int(np.isfinite(delays(drawn, lives, runs, 0.0, seed=1)).sum())
        upper = stats.beta.ppf(0.95, alarms + 1, lives - alarms) if alarms < lives else 1.0
        rows.append((name, f"{lives:,}", f"{alarms:,}", f"{alarms / lives:.2%}", f"{upper:.2%}"))
    return table(("scores", f"lives of {runs:,} runs", "with an alarm", "share", "at most (95%)"), rows)


def found_after(lives: int) -> str:
    rows = []
    for part, most in DRIFTS.items():
        after = delays(independent, lives, 4 * most, part * GAP, seed=2)
        low, middle, high = np.quantile(after, [0.1, 0.5, 0.9])
        rows.append((f"{part:g}", f"{part * GAP:g}", f"{middle:.0f}", f"{low:.0f} to {high:.0f}"))
    header = ("part of a look's gap", "standard deviations a run", "runs until the alarm, median", "tenths")
    return table(header, rows)


def entries(count: int, state: Path, factor: float, since: int) -> Iterator[History]:
    """Make or continue nightly runs of a subject whose W_V becomes too large on some night."""
    there = len(History.read([state]).entries) if state.exists() else 0
    for number in range(there, count):
        with tempfile.TemporaryDirectory() as folder:
            record = entry(number, factor if number >= since else 1.0, Path(folder))
            yield add(state, record, _key(number))[0]


def entry(number: int, factor: float, folder: Path) -> Path:
    (folder / "nightly.py").write_text(_SUBJECT, encoding="utf-8")
    os.environ["NIGHTLY_FACTOR"] = str(factor)
    line = [sys.executable, "-m", "attncheck", "run", "--profile", "smoke", "--seed", str(keyed_seed(_key(number)))]
    line += ["--subject", "nightly:simulate", "--workers", "1", "--only", _PROPERTY]
    subprocess.run(line, cwd=folder, check=False, capture_output=True)
    return folder / "reports" / "output" / "record.jsonl"


def _key(number: int) -> str:
    return f"night {number:04d}"


def drift_told(history: History, factor: float, since: int, lives: int) -> str:
    """Return when a drift of real runs was found, and the prediction from the first run."""
    if history.course.alarm is None:
        drifting = counted(len(history.since) - since, "run")
        return f"W_V {factor:g} times as large from run {since + 1} on: not found in {drifting}."
    first = history.moved()[0]
    with tempfile.TemporaryDirectory() as folder:
        results = read(entry(0, 1.0, Path(folder)))
        pool = next(line for line in results if isinstance(line, Result) and line.key == first.stream)
    off = pool.effects[0] - (pool.null_effect or 0.0)
    spread = abs(off / special.ndtri(pool.p_values[0] / 2.0))
    drift = (factor**2 - 1.0) / spread
    share = history.shares[history.streams.index(first.stream)]
    low, middle, high = np.quantile(delays(alone, lives, 400, drift, 3, np.array([share])), [0.1, 0.5, 0.9])
    rows = [
        (
            f"W_V {factor:g} times as large from run {since + 1} on: found after",
            f"{history.course.alarm + 1 - since} runs",
        ),
        ("predicted from this stream: median, deciles", f"{middle:.0f} runs, {low:.0f} to {high:.0f}"),
        ("stream with the largest drift", first.stream),
        ("start of its drift", first.since),
        ("its mean score since", f"{first.mean:+.2f} ± {first.runs**-0.5:.2f}"),
        ("predicted from the change of variance, in standard deviations of a run", f"{drift:+.2f}"),
    ]
    return table(("what", "measured"), rows)


def _signed(history: History) -> FloatArray:
    one_sided = {name for each in history.since for name in each.one_sided}
    return history.scores[:, [name not in one_sided for name in history.streams]]


def told(history: History) -> str:
    one_sided = {name for each in history.since for name in each.one_sided}
    upwards = np.array([name in one_sided for name in history.streams])
    signed, others = history.scores[:, ~upwards], history.scores[:, upwards]
    counts = (~np.isnan(signed)).sum(axis=0)
    errors = np.abs(np.nansum(signed, axis=0)) / counts**0.5
    rows = [
        ("nights", f"{len(history.since):,}"),
        ("streams, one-sided ones", f"{len(upwards):,}, {upwards.sum():,}"),
        ("evidence (alarm at 1,000,000)", f"{history.evidence:.3g}"),
        ("mean of signed scores ± error over nights", _mean_of(signed)),
        ("extreme mean of a signed stream, in its errors", f"{errors.max():.2f}"),
        ("mean of the others (at most 0 without drift)", _mean_of(others)),
    ]
    return table(("what", "measured"), rows)


def _mean_of(scores: FloatArray) -> str:
    by_entry = np.nanmean(scores, axis=1)
    return f"{by_entry.mean():+.3f} ± {by_entry.std(ddof=1) / len(by_entry) ** 0.5:.3f}"


def page(lives: int, runs: int, real: History | None, drifting: str) -> str:
    parts = [
        "# Run histories",
        f"`python benchmarks/history.py --write` makes this page, here with {installed()}.",
        f"Histories of {STREAMS} streams without drift. The bound for {runs:,} runs is {runs / ALARM:.2%}.",
        false_alarms(lives, runs, real),
        ("One stream drifts from the first run on. A look's minimum detectable effect is about 6 standard deviations."),
        found_after(max(200, lives // 10)),
    ]
    if real is not None:
        parts += ["## Nightly runs", _NIGHTLY, told(real)]
    if drifting:
        parts += ["## Nightly runs of a drifting subject", drifting]
    return "\n\n".join(parts) + "\n"


_NIGHTLY = f"Property {_PROPERTY} with profile smoke, scores exposed, a new seed each night."


def _all_entries(count: int, state: Path, factor: float, since: int) -> History:
    for longer in entries(count, state, factor, since):
        print(longer.sentence(), file=sys.stderr, flush=True)
    return History.read([state])


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate lives of a history, and make real runs.")
    parser.add_argument("--lives", type=int, default=LIVES, help=f"simulated lives (default: {LIVES:,})")
    parser.add_argument("--nights", type=int, default=NIGHTS, help=f"real runs of each (default: {NIGHTS})")
    parser.add_argument("--write", action="store_true", help="write history.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "right.jsonl", Path(folder) / "drifting.jsonl"
        since = options.nights // 2
        _all_entries(since, before, 1.0, 0)
        shutil.copy(before, after)
        real = _all_entries(options.nights, before, 1.0, 0)
        found = _all_entries(options.nights, after, FACTOR, since)
    drifting = drift_told(found, FACTOR, since, max(200, options.lives // 5))
    text = page(options.lives, RUNS, real, drifting)
    print(text, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
