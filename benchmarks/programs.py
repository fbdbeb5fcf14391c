"""Measure the cost of drawing programs and computing their limits, and compare the laws of both methods.

``python benchmarks/programs.py`` measures on one thread and prints two tables; ``--write`` updates
benchmarks/programs.md. Compared methods alternate within one process, and a ratio is the median over rounds. Times
are processor time of the thread, system calls included. The laws use keyed streams, so p-values are reproducible.
Peak memory is that of a separate process, interpreter and libraries included.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from threadpoolctl import threadpool_limits

import attncheck as ac
from attncheck._lib.measured import installed, spread, table
from attncheck._lib.streams import stream
from attncheck.layers.draws import ProgramDraws
from attncheck.layers.nonlinearity import Nonlinearity, erf, tanh
from attncheck.layers.program import Node, Program, Score
from attncheck.layers.program.extent import vectors_of
from attncheck.layers.program.mixes import residual_softmax_mix, softmax_mix
from attncheck.methods import Method
from attncheck.programs import recurrent_attention
from attncheck.simulators.multipliers import DirectMultiplier, Matrices, MatrixFreeMultiplier
from attncheck.simulators.programs import draw_exposed
from attncheck.theory.limits.programs import limit_of_program

FloatArray = NDArray[np.float64]
Functional = Callable[[ProgramDraws], FloatArray]

MEBIBYTE = 2**20
# Working memory per draw; peak memory is what the measurement tests.
MEMORY = 2**33
# Chance that any p-value rejects equal laws.
LEVEL = 0.01


@dataclasses.dataclass(frozen=True)
class Scale:
    """Benchmark size.

    `rounds` of at least `seconds` per method at one `width`; `laws` are widths and draws of the comparison of laws,
    `peak` is the width at which peak memory is measured.
    """

    rounds: int
    seconds: float
    width: int
    laws: tuple[tuple[int, int], ...]
    peak: int


FULL = Scale(rounds=15, seconds=0.15, width=512, laws=((3, 20_000), (8, 20_000), (24, 20_000)), peak=100_000)
QUICK = Scale(rounds=2, seconds=0.001, width=32, laws=((3, 200), (8, 200)), peak=1_000)


@dataclasses.dataclass(frozen=True)
class Row:
    """Table row; `met` is None without a target."""

    what: str
    measured: str
    target: str = "for scale"
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        verdict = {True: "met", False: "missed", None: ""}[self.met]
        return self.what, self.measured, self.target, verdict


def network(steps: int, phi: Nonlinearity) -> Program:
    """Return a recurrent network s_t = φ(W s_{t-1}) whose last state attends to all states."""
    program = Program()
    states = _states(program, steps, phi)
    query, key = (program.weight(name) for name in "QK")
    asking = program.matmul(query, states[-1])
    scores = [program.score(asking, program.matmul(key, state)) for state in states]
    program.output(softmax_mix, states, scores)
    return program


def large_network(phi: Nonlinearity) -> Program:
    """Return 64 vectors and 16 scores: the last four of 25 states attend to each other; one input is skipped."""
    program = Program()
    skipped = program.initial("x")
    states = _states(program, 25, phi)[-4:]
    query, key = (program.weight(name) for name in "QK")
    keys = [program.matmul(key, state) for state in states]
    for state in states:
        asking = program.matmul(query, state)
        scores = [program.score(asking, each) for each in keys]
        program.output(residual_softmax_mix, [skipped, *states], scores)
    return program


def _states(program: Program, steps: int, phi: Nonlinearity) -> list[Node]:
    recur, state, states = program.weight("W"), program.initial("s0"), []
    for _ in range(steps):
        state = program.nonlin(phi, program.matmul(recur, state))
        states.append(state)
    return states


#: Timed programs; the promise and the comparison of laws are about the first.
PROGRAMS: Mapping[str, Callable[[], Program]] = {
    "recurrent network of 3 states": lambda: network(3, erf()),
    "recurrent_attention(3)": lambda: recurrent_attention(3),
    "recurrent network of 12 states": lambda: network(12, erf()),
    "recurrent_attention(12)": lambda: recurrent_attention(12),
}
LARGEST = "recurrent_attention(12)"


def described(name: str, program: Program) -> str:
    scores = sum(isinstance(node, Score) for node in program.nodes)
    return f"{name}, {len(vectors_of(program))} vectors, {scores} scores"


def seconds_per_draw(program: Program, width: int, method: Method, size: int) -> float:
    started = time.process_time()
    ac.simulate(program.at(width), size, method=method, memory=MEMORY)
    # Coarse clocks may show no time for a short call.
    return max(time.process_time() - started, 1e-9) / size


def take_turns(program: Program, scale: Scale) -> tuple[FloatArray, FloatArray]:
    """Return seconds per draw of the matrix-free and the direct method, one per round."""
    methods: tuple[Method, Method] = ("matrix-free", "direct")
    sizes = {}
    for method in methods:
        seconds_per_draw(program, scale.width, method, 1)
        trial = seconds_per_draw(program, scale.width, method, 20)
        sizes[method] = max(1, round(scale.seconds / trial))
    turns = [
        [seconds_per_draw(program, scale.width, method, sizes[method]) for method in methods]
        for _ in range(scale.rounds)
    ]
    free, literal = np.array(turns).T
    return free, literal


def time_rows(scale: Scale) -> tuple[list[Row], str]:
    """Return the rows on the cost of a draw, and the table of times."""
    rows: list[Row] = []
    times = []
    for name, make in PROGRAMS.items():
        program = make()
        free, literal = take_turns(program, scale)
        ratios = literal / free
        what = f"matrix-free against direct, n = {scale.width:,}: {described(name, program)}"
        promised = ("at least 100×", bool(np.median(ratios) >= 100)) if not rows else ("for scale", None)
        rows.append(Row(what, spread(ratios, "×", ",.0f"), *promised))
        times.append((name, *(f"{1e6 * np.median(each):,.1f}" for each in (free, literal))))
    return rows, table((f"processor µs per draw, median, n = {scale.width:,}", "matrix-free", "direct"), times)


def functionals(program: Program) -> dict[str, Functional]:
    """Return functionals of a draw: single lines, pairs of lines, and lengths over all neurons."""
    place = {node.name: k for k, node in enumerate(vectors_of(program))}

    def gram(one: str, other: str) -> Functional:
        return lambda draws: _some(draws.gram)[:, place[one], place[other]]

    def neuron(name: str, k: int) -> Functional:
        return lambda draws: _some(draws.vectors)[:, place[name], k]

    def product(one: Functional, other: Functional) -> Functional:
        return lambda draws: one(draws) * other(draws)

    def score(k: int) -> Functional:
        return lambda draws: draws.scores[:, k]

    return {
        "the first score": score(0),
        "the last score": score(-1),
        "the product of the first and the last score": product(score(0), score(-1)),
        "the sum of squares of all scores": lambda draws: (draws.scores**2).sum(axis=1),
        "a neuron of the output": neuron("y1", 0),
        "the product of two neurons of the output": product(neuron("y1", 0), neuron("y1", 1)),
        "the squared length of the output": gram("y1", "y1"),
        "the squared length of the last state": gram("x3", "x3"),
        "the overlap of the first and the last state": gram("x1", "x3"),
        "the overlap of the initial state and its image": gram("s0", "g1"),
        "the overlap of the images of the first and the last state": gram("g2", "g3"),
        "the overlap of the query and a state": gram("g4", "x1"),
        "the product of a score and a neuron of the output": product(score(0), neuron("y1", 0)),
        "the product of a squared score and the squared length of the last state": product(
            product(score(-1), score(-1)), gram("x3", "x3")
        ),
    }


def _some(array: FloatArray | None) -> FloatArray:
    assert array is not None
    return array


def values_of(
    program: Program,
    width: int,
    size: int,
    multiplier: Matrices,
    rng: np.random.Generator,
) -> dict[str, FloatArray]:
    """Return every functional of a program's draws, in batches of a thousand."""
    wanted = functionals(program)
    parts: dict[str, list[FloatArray]] = {name: [] for name in wanted}
    for start in range(0, size, 1_000):
        draws = draw_exposed(program, width, min(1_000, size - start), 2, rng, multiplier)
        for name, functional in wanted.items():
            parts[name].append(functional(draws))
    return {name: np.concatenate(each) for name, each in parts.items()}


def law_p_values(width: int, size: int) -> dict[str, float]:
    """Return Kolmogorov–Smirnov p-values, matrix-free against direct, for every functional."""
    program = next(iter(PROGRAMS.values()))()
    ours = values_of(program, width, size, MatrixFreeMultiplier, stream(0, "benchmark laws", width, "matrix-free"))
    theirs = values_of(program, width, size, DirectMultiplier, stream(0, "benchmark laws", width, "direct"))
    return {name: float(stats.ks_2samp(ours[name], theirs[name]).pvalue) for name in ours}


def law_rows(scale: Scale) -> tuple[list[Row], str]:
    """Return the rows on the matrix-free law, and the table of p-values."""
    found = {width: law_p_values(width, size) for width, size in scale.laws}
    count = sum(map(len, found.values()))
    rows = []
    for width, size in scale.laws:
        smallest = min(found[width].values())
        what = f"smallest p-value of {len(found[width])} functionals, n = {width}, {size:,} draws of each reading"
        rows.append(Row(what, f"{smallest:.2g}", f"at least {LEVEL / count:.2g}", smallest >= LEVEL / count))
    names = next(iter(found.values()))
    lines = [(name, *(f"{found[width][name]:.3f}" for width, _ in scale.laws)) for name in names]
    header = ("p-value, matrix-free against direct", *(f"n = {width}" for width, _ in scale.laws))
    return rows, table(header, lines)


def limit_rows(scale: Scale) -> list[Row]:
    """Return the rows on the time of an uncached limit."""
    rows = []
    # E φ(u) φ(v) in closed form and by quadrature.
    for phi in (erf(), tanh()):
        program = large_network(phi)
        seconds = np.array([limit_seconds(program) for _ in range(scale.rounds)])
        what = f"limit: {described(f'recurrent network with {phi.name}', program)}"
        rows.append(Row(what, spread(seconds, " s", ".3f"), "at most 1 s", bool(np.median(seconds) <= 1.0)))
    return rows


def limit_seconds(program: Program) -> float:
    started = time.process_time()
    limit_of_program(program)
    return time.process_time() - started


def peak_row(name: str, scale: Scale) -> Row:
    """Return the row on peak memory of a matrix-free draw in a separate process."""
    command = [sys.executable, "-X", "utf8", __file__, "--peak", name, str(scale.peak)]
    what = f"peak memory of a process that makes a draw, n = {scale.peak:,}: {described(name, PROGRAMS[name]())}"
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        # `resource` is not portable.
        return Row(what, "not measured: " + done.stderr.strip().splitlines()[-1], "at most 500 MiB")
    before, peak, seconds = map(float, done.stdout.split())
    measured = f"{peak:.0f} MiB, {before:.0f} MiB of it before the draw; {seconds:.2f} s"
    return Row(what, measured, "at most 500 MiB", peak <= 500)


def measure_peak(name: str, width: int) -> None:
    """Print this process's peak MiB before and after a draw, and the draw's seconds."""
    program = PROGRAMS[name]()
    before = peak_mebibytes()
    seconds = seconds_per_draw(program, width, "matrix-free", 1)
    print(before, peak_mebibytes(), seconds)


def peak_mebibytes() -> float:
    import resource

    # Linux counts KiB, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MEBIBYTE


def setting(scale: Scale) -> str:
    return (
        f"One thread of {os.cpu_count()} cores, {scale.rounds} rounds; median (quartiles) of processor time. "
        f"{installed()}."
    )


def measure(scale: Scale) -> tuple[list[Row], list[str]]:
    """Measure everything on one thread; return the rows and the other tables."""
    with threadpool_limits(1):
        # First, because a child process starts at its parent's peak: so far only imports.
        memory = [peak_row(name, scale) for name in (next(iter(PROGRAMS)), LARGEST)]
        limits = limit_rows(scale)
        speed, times = time_rows(scale)
        laws, p_values = law_rows(scale)
    return [*speed, *laws, *limits, *memory], [times, p_values]


def report(rows: Sequence[Row], tables: Sequence[str], scale: Scale) -> str:
    figures = table(("what", "measured", "target", "verdict"), [row.cells() for row in rows])
    parts = ["# Programs", "`python benchmarks/programs.py --write` makes this page.", setting(scale), figures, *tables]
    if scale is QUICK:
        parts.insert(2, "A quick run: it shows that everything runs; its figures and verdicts mean nothing.")
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time attncheck's methods for programs on one thread.")
    parser.add_argument("--write", action="store_true", help="write benchmarks/programs.md too")
    parser.add_argument("--quick", action="store_true", help="run everything at a tiny scale")
    parser.add_argument("--peak", nargs=2, metavar=("PROGRAM", "WIDTH"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.peak:
        measure_peak(options.peak[0], int(options.peak[1]))
        return
    if options.write and options.quick:
        parser.error("--write: a quick run measures nothing worth keeping; leave --quick out")
    scale = QUICK if options.quick else FULL
    page = report(*measure(scale), scale)
    print(page, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
