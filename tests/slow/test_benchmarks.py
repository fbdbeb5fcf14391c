"""Run the benchmarks at a tiny scale and check that they report every figure, whatever the clock."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import attncheck as ac
from attncheck._lib.streams import stream
from attncheck.commands import cli
from attncheck.commands.planned_run import StatementTask, statements
from attncheck.layers.nonlinearity import erf, tanh
from attncheck.layers.program import Weight
from attncheck.layers.regimes import REGIMES
from attncheck.paper import exact
from attncheck.programs import perceptron
from attncheck.records.schema import SCHEMA, Closing, Line, Manifest, PlannedResult, Result, read
from attncheck.runs.options import RunOptions
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run
from attncheck.simulators.multipliers import DirectMultiplier, MatrixFreeMultiplier
from benchmarks import (
    executors,
    false_alarms,
    history,
    infinite_heads,
    large,
    main_job,
    paper,
    programs,
    rates,
    speed,
    stacks,
    visible,
)
from benchmarks.whole_runs import StatementsRun, WholeRun

FloatArray = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[2]

# Required rows of the page, one pattern per promise.
FIGURES = (
    r"collapsed against direct, n = \d+",
    r"matrix-free against direct, n = \d+",
    r"direct against 12 n² normals into the direct reading's buffer",
    r"direct against 12 n² normals into one whole buffer",
    r"collapsed against s·n normals into a buffer of a block of draws",
    r"collapsed against s·n normals into a buffer of one draw",
    r"collapsed against a literal loop, legacy generator",
    r"collapsed against a literal loop, default_rng",
    r"exponent of the cost of collapsed",
    r"limit cdf, .*: sup error",
    r"limit cdf, .*: fresh law each time",
    r"working memory of direct",
    r"memory of a look",
)


Said = Callable[..., str]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """Return a function that runs a benchmark as a command in this process, and returns its output."""

    def call(module: ModuleType, *arguments: str) -> str:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", [str(module.__file__), *arguments])
        assert not module.main()
        printed = capsys.readouterr().out
        assert str(ROOT) not in printed
        return printed

    return call


@pytest.mark.parametrize(
    "name", ["infinite_heads", "load", "paper", "programs", "rates", "speed", "stacks", "widths", "wild"]
)
def test_quick_run_is_never_written(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs each script in this process, as Python would start it, to save imports."""
    path = ROOT / "benchmarks" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--quick", "--write"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(path), run_name="__main__")
    assert left.value.code == 2
    assert "--quick" in capsys.readouterr().err


def test_quick_run_reports_every_figure(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    # The limit's accuracy is tested below; this tests the rows.
    monkeypatch.setattr(speed, "QUICK", dataclasses.replace(speed.QUICK, points=2**10))
    page = said(speed, "--quick")
    for figure in FIGURES:
        assert re.search(rf"^\| {figure}", page, re.MULTILINE), figure
    verdicts = re.findall(r"\| (met|missed) +\|$", page, re.MULTILINE)
    assert len(verdicts) == 15


def test_limit_cdf_is_accurate() -> None:
    error, uncertainty = speed.limit_error(np.linspace(-4, 4, 401), 2**16)
    assert uncertainty <= 5e-6
    assert error <= 1e-5


def test_reference_sees_a_wrong_limit() -> None:
    t = np.linspace(-4, 0, 41)
    reference, uncertainty = speed.reference_cdf(t, 2**10)
    one_head = ac.limit(ac.AttentionLayer(width=64, seq_len=4, num_heads=1)).cdf(t)
    assert np.abs(one_head - reference).max() > 10 * uncertainty


@pytest.mark.parametrize("legacy", [True, False])
def test_literal_loop_draws_the_layer(legacy: bool) -> None:
    layer = speed.layer_of(16)
    source = np.random.RandomState(5) if legacy else np.random.default_rng(5)
    literal = np.array([speed.literal_draw(layer, source)[1, 3] for _ in range(4000)])
    collapsed = ac.simulate(layer, 40_000, seed=1).outputs[:, 1, 0]
    assert stats.ks_2samp(literal, collapsed).pvalue > 1e-4


def test_buffers_hold_what_a_draw_needs() -> None:
    layer = speed.layer_of(16)
    assert layer.weight_entries == (layer.seq_len + 4 * layer.num_heads) * layer.width**2
    assert speed.draws_per_block(layer, "direct") > 1


def result_of(item: str, check: str, seconds: float, **fields: Any) -> Result:
    name = item.partition("@")[0]
    blank: dict[str, Any] = {
        "id": f"{check}@{item.partition('@')[2]}",
        "item": item,
        "property": name,
        "check": check,
        "case": ac.AttentionLayer(width=8).to_dict(),
        "seconds": seconds,
        "p_values": [0.5],
        "size": 100,
    }
    empty: dict[Any, Any] = {str: "", int: 0, float: 0.0, bool: False, list[float]: []}
    for field in msgspec.structs.fields(Result):
        if field.required:
            blank.setdefault(field.name, empty.get(field.type))
    return msgspec.convert({**blank, **fields}, Result)


def test_main_job_adds_up_cases_not_checks() -> None:
    results = [
        result_of("scores@aa", "scores.law", 2.0),
        result_of("scores@aa", "scores.mean", 2.0),
        result_of("scores@bb", "scores.law", 1.0),
        result_of("outputs@aa", "outputs.law", 2.0, p_values=[0.1, 0.2]),
        result_of("outputs@aa", "outputs.limit", 2.0, p_values=[], size=0),
        result_of("netsor@cc", "netsor.scale", 3.0, case=perceptron(1).at(16).to_dict()),
    ]
    planned = [PlannedResult(result.id, result.item, result.check) for result in results]
    manifest = Manifest(SCHEMA, {"numpy": "0"}, 0, "default", 1e-6, 1e-4, "direct", planned)
    lines: list[Line] = [manifest, *results, Closing("d", "consistent", [], len(results), 7.0)]
    page = main_job.report([main_job.Job("default", 300.0, 500.0, 0, lines)])
    assert "300 s (at most 60 s: missed)" in page
    assert "500 processor seconds: 250 s of 2 idle cores" in page
    assert "6 of 6 planned results, 5 examined" in page
    assert re.search(r"\| several \| 1 \| 200 \| 4\.0 \|", page)
    assert re.search(r"\| one \| 2 \| 200 \| 4\.0 \|", page)
    assert re.search(r"\| together \| 3 \| 400 \| 8\.0 \|", page)
    assert re.search(r"\| n=8 s=4 H=2 \| 2 \| 200 \| 4\.0 \|", page)


@pytest.mark.parametrize(
    ("seconds", "processor", "verdict"),
    [
        (59.0, 100.0, "met"),
        (61.0, 120.0, "missed"),
        (900.0, 100.0, "not settled"),
        (900.0, 0.0, "missed"),
    ],
)
def test_main_job_is_not_blamed_for_others(seconds: float, processor: float, verdict: str) -> None:
    assert f": {verdict}" in main_job.judged(main_job.Job("default", seconds, processor, 0, []))


ONE_NUMBER = """
from attncheck.subject import collapsed


def subject(layer, size, rng):
    return collapsed(layer, size, rng)


subject.supports = lambda layer: layer.width == layer.seq_len == 1 or "too large for a test"
"""


def test_whole_runs_of_the_benchmark_are_those_of_the_main_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    (tmp_path / "one_number.py").write_text(ONE_NUMBER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    record = tmp_path / "record.jsonl"
    given = ["--profile", "smoke", "--subject", "one_number:subject", "--seed", "1", "--record", str(record)]
    command = [sys.executable, "-m", "attncheck", "run", *given, "--workers", "0"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    given = ["--subject=one_number:subject", "--workers=1"]
    page = said(false_alarms, "--smoke=2", "--default=0", "--statements=0", *given)
    *_, closing = read(record)
    assert isinstance(closing, Closing)
    assert "2 runs: 2 consistent. The chance of a violated run is at most 0.776" in page
    assert re.search(rf"^\| 1 \| consistent \| .* \| {closing.digest} \|$", page, re.MULTILINE)


def test_what_a_run_could_have_seen(tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    run = Run.of(RunOptions(profile="smoke", record=record))
    layers = [ac.AttentionLayer(width=width, seq_len=2, num_heads=1) for width in (6, 8, 10, 12)]
    items = [*run.items_on("scores", layers), *run.items_on("exactness", layers)]
    run = run.settled([item.id for item in items])
    report = RunReport(run)
    for item in items:
        report.take(run.examine([item]))
    assert report.pool() == ([], [])
    assert report.finish()
    found = {row[0]: row[2:] for row in visible.rows(record)}
    for check in ("scores.scale", "exactness.score_energy", "exactness.output"):
        median, worst, together = found[check]
        assert 0.0 < together < median <= worst
    assert f"of {len(found)} checks" in visible.page(record)


def test_false_alarms_are_counted() -> None:
    runs = [
        WholeRun(seed, verdict, "d", 1000, 900, 0, looks, 5e-4, 0.1 + 0.1 * seed)
        for seed, verdict, looks in [(0, "consistent", (898, 2, 0, 0)), (1, "violated", (895, 1, 3, 1))]
    ]
    text = false_alarms.report("smoke", runs, 1e-6)
    assert "2 runs: 1 consistent, 1 violated." in text
    assert "7 suspicious first looks, at most 0.9 expected" in text
    assert "| 1 | violated | 900 of 1,000 | 5 (0.45 expected) | 1/3/1 | 0 (0.00 expected) | 0/0/0 | 0.2 | d |" in text


def test_statements_of_the_theory_are_counted_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    kept = tmp_path / "kept.jsonl"

    def some(run: Run, folder: Path) -> list[list[StatementTask]]:
        return [cases for cases in statements(run, folder) if "clt.constants" in cases[0].id]

    monkeypatch.setattr(false_alarms, "statements", some)
    options = ("--smoke=0", "--default=0", "--statements=2", "--workers=1", f"--resume={kept}")
    page = said(false_alarms, *options)
    assert "2 run seeds, 12 statements: 0 violated, 0 inconclusive. Of the 12 decided by looks" in page
    monkeypatch.setattr(false_alarms, "settle", None)
    assert said(false_alarms, *options) == page
    runs = [StatementsRun(0, 139, 120, ("a.b@0",), (), ("a.b@0", "a.c@0"), 40.0)]
    assert "1 violated, 0 inconclusive. Of the 120 decided by looks, 2 had" in false_alarms.statements_report(runs)


# Required rows of the page on programs, one pattern per promise.
PROGRAM_FIGURES = (
    r"matrix-free against direct, n = \d+: recurrent network of 3 states, 12 vectors, 3 scores",
    r"smallest p-value of 14 functionals, n = 3, ",
    r"smallest p-value of 14 functionals, n = 8, ",
    r"limit: recurrent network with erf, 64 vectors, 16 scores",
    r"limit: recurrent network with tanh, 64 vectors, 16 scores",
    r"peak memory of a process that makes a draw, n = [\d,]+: recurrent network of 3 states",
)


def test_quick_run_on_programs_reports_every_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: Said
) -> None:
    started: list[str] = []

    def run_here(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        """Run a Python command line in this process; the peak means nothing at this size."""
        at = command.index(str(programs.__file__))
        assert command[0] == sys.executable
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
            patch.setattr(sys, "argv", list(command[at:]))
            runpy.run_path(command[at], run_name="__main__")
        started.append(command[at + 2])
        return subprocess.CompletedProcess(command, 0, printed.getvalue(), "")

    monkeypatch.setattr(subprocess, "run", run_here)
    page = said(programs, "--quick")
    for figure in PROGRAM_FIGURES:
        assert re.search(rf"^\| {figure}", page, re.MULTILINE), figure
    assert len(started) == 2
    assert "not measured" not in page


class Forgetful:
    """Draws a new matrix for every W h, without weight sharing."""

    def __init__(self, width: int, rng: np.random.Generator) -> None:
        self._width, self._rng = width, rng

    def __call__(self, weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        return MatrixFreeMultiplier(self._width, self._rng)(weight, vectors, rows, True)


def test_comparison_of_laws_sees_lost_sharing() -> None:
    program = programs.network(3, erf())
    rngs = [stream(0, "benchmark laws of the test", k) for k in range(2)]
    ours = programs.values_of(program, 8, 2_000, Forgetful, rngs[0])
    theirs = programs.values_of(program, 8, 2_000, DirectMultiplier, rngs[1])
    p_values = {name: stats.ks_2samp(ours[name], theirs[name]).pvalue for name in ours}
    assert min(p_values.values()) < 1e-6
    assert len(p_values) >= 10


def test_programs_of_the_benchmark_are_covered() -> None:
    for program in (*(make() for make in programs.PROGRAMS.values()), programs.large_network(tanh())):
        assert program.coverage().proved


def test_quick_run_on_the_paper_reports_every_figure(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    made: list[Sequence[str]] = []
    # tests/paper examines values; this, the page's times.
    monkeypatch.setattr(exact, "compute", runpy.run_path(str(ROOT / "tests" / "paper" / "conftest.py"))["cheap"])
    monkeypatch.setattr(paper, "publish", lambda names, *_: made.append(names))
    # A literal draw of 256 heads takes 0.2 s.
    monkeypatch.setattr(paper, "QUICK", dataclasses.replace(paper.QUICK, repeats=1))
    page = said(paper, "--quick")
    for figure in (r"fig2 +\| 1/√n", r"fig2 +\| 1/n", r"fig2 +\| H = 1 ", r"fig2 +\| H = 256", "all "):
        assert re.search(rf"^\| {figure}", page, re.MULTILINE), figure
    assert re.search(r"The whole command, [\d,]+ items, takes [\d,]+ s of processor time", page)
    assert made == [("fig2",)]


def test_quick_run_on_infinite_heads_reports_every_kernel(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    # The two cheapest kernels, of two positions instead of four. tests/limits has the others, and longer ones.
    cheap = dict([*infinite_heads.kernels(2).items()][-2:])
    monkeypatch.setattr(infinite_heads, "kernels", lambda s: cheap)
    page = said(infinite_heads, "--quick")
    assert len(re.findall(r"^\| outputs .* \| none ", page, re.MULTILINE)) == 2
    assert len(re.findall(r"^\| tangents .* \| none ", page, re.MULTILINE)) == 2


def test_quick_run_on_a_large_layer_is_as_far_from_uniform_as_computed(said: Said) -> None:
    page = said(large, "--quick")
    found = re.findall(r"([\d.]+) ± ([\d.]+) +\| ([\d.]+) ± ([\d.]+) ", page)
    assert len(found) == 7
    for mean, error, computed, of_a_draw in np.array(found, float):
        assert 0.0 < of_a_draw < computed
        assert abs(mean - computed) < 6.0 * error + 4.0 * of_a_draw


def test_quick_run_on_rates_reports_every_figure(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    distance = ac.distance

    def narrower(layer: ac.AttentionLayer, metric: str, **options: Any) -> ac.Distance:
        """Return a distance at 4,096 instead of a million (see tests/rates/test_law.py)."""
        if options.get("width") == 10**6:
            options["width"] = 4096
        return distance(layer, metric, **options)

    monkeypatch.setattr(ac, "distance", narrower)
    # Rates of other weights at the widths of tests/rates/test_weights.py cost ten times as much.
    monkeypatch.setattr(rates, "LITERAL_WIDTHS", (9, 10, 11))
    # tests/rates/test_regimes.py has every regime.
    shown = ("tied queries and keys", "low rank")
    monkeypatch.setattr(rates, "REGIMES", {name: REGIMES[name] for name in shown})
    page = said(rates, "--quick")
    for figure in ("KL of y, n = 1,024", "KS of y, n = 10⁶", "KL of y, n = ∞, head_dim = 64, H = 16"):
        assert f"| {figure} |" in page
    rows = re.findall(r"^\| (?:y, |score, ).* \| (ks|w1|tv|kl) \| (-[\d.]+) \[", page, re.MULTILINE)
    assert len(rows) == 12
    for metric, order in rows:
        assert abs(float(order) + (2.0 if metric == "kl" else 1.0)) < 0.5
    sums = re.findall(r"^\| sum of scores (.*?) \| (?:ks|w1|tv) \| (-[\d.]+) \[", page, re.MULTILINE)
    assert len(sums) == 6
    for sides, order in sums:
        assert abs(float(order) + (0.5 if sides == "A·B, B·C, C·A" else 1.0)) < 0.2
    for name in ("rademacher weights, y", *shown):
        assert f"| {name} |" in page


def test_quick_run_on_stacks_says_conjecture_and_reports_every_depth(said: Said) -> None:
    page = said(stacks, "--quick")
    assert page.startswith("# Stacks (conjecture)")
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert len(headings) == 4
    assert all(heading.endswith("(conjecture)") for heading in headings)
    for depth in (1, 2):
        assert len(re.findall(rf"^\| {depth} .*\| -?\d\.\d+ \[", page, re.MULTILINE)) == 4


def test_quick_run_on_public_bugs_has_a_row_for_each(said: Said) -> None:
    pytest.importorskip("torch")
    page = said(importlib.import_module("benchmarks.wild"), "--quick")
    assert len(re.findall(r"^\| .* \| (?:yes, \w+|no) +\| ", page, re.MULTILINE)) == 2
    assert len(re.findall(r"^\| .* \| [01] of 1 +\| ", page, re.MULTILINE)) == 2
    assert len(re.findall(r"^\| torch .*\| \d+\.\d +\|$", page.partition("## Well-known")[2], re.MULTILINE)) == 2


def test_page_of_executors_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """On jobs of one property, with a real cluster."""
    pytest.importorskip("distributed")

    def job(record: Path, profile: str, *options: str) -> float:
        arguments = ["run", "--profile", profile, "--only", "scores", "--record", str(record), *options]
        assert cli.main(arguments) in (0, 3)
        return 2.0

    monkeypatch.setattr(executors, "job", job)
    page = executors.page("smoke", 1, 20)
    assert re.search(r"^\| dask over processes, median +\| 1\.000 \(1\.15 promised\) \|$", page, re.MULTILINE)
    assert len(re.findall(r"^\| empty task, \w+ +\| \d+\.\d\d ms", page, re.MULTILINE)) == 2
    cores = [
        int(each.replace(",", "")) for each in re.findall(r"^\| ([\d,]+) +\| [\d,.]+ +\| [\d,.]+ ", page, re.MULTILINE)
    ]
    assert tuple(cores) == executors.CORES


def test_many_cores_are_as_fast_as_the_longest_piece_and_whoever_hands_over() -> None:
    assert executors.makespan([3.0, 2.0, 1.0], 2, 0.0) == 3.0
    assert executors.makespan([1.0] * 10, 10, 0.5) == 6.0  # the last one starts after 5 s
    assert executors.makespan([1.0] * 10, 1, 0.5) == 10.5
    assert executors.makespan([4.0, 1.0, 1.0, 1.0], 1_000, 0.0) == 4.0


def test_lives_of_a_history_are_quiet_and_drifts_are_found() -> None:
    page = history.page(20, 40, None, "")
    rows = r"^\| (?:independent|correlation|scores biased)[^|]*\| 20 +\| 0 +\| 0\.00% \| 13\.91% +\|$"
    assert len(re.findall(rows, page, re.MULTILINE)) == 5
    medians = [int(each) for each in re.findall(r"^\| 0\.\d+ +\| [\d.]+ +\| (\d+) ", page, re.MULTILINE)]
    assert medians == sorted(medians)
    assert medians[0] <= 25
    assert medians[1] <= 60


def test_error_rates_of_exponents_are_measured(said: Said) -> None:
    """Few narrow models: tests that all are reported."""
    pytest.importorskip("torch")
    page = said(importlib.import_module("benchmarks.widths"), "--quick")
    noise = r"^\| (?:normal|of \w+ normal).*?(?:\| [\d.]+ +){3}\|$"
    assert len(re.findall(noise, page, re.MULTILINE)) == 6
    assert "2 random right models: violated in 0," in page
    assert len(re.findall(r"\| [01] of 1 +\|", page)) == 5
