"""Programs: examples, cases and their keys, random ones, subjects and runs; test_draws.py compares their methods."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attncheck as ac
from attncheck._lib.workers import InProcess
from attncheck.checks.programs.residuals import conditioned_sides
from attncheck.checks.registry import PROGRAM_PROPERTIES
from attncheck.commands.replaying import replay_result
from attncheck.diagnosis.messages import explain
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import EXACT_WIDTHS, RATE_WIDTHS, read_case
from attncheck.layers.program import Coordinatewise, LinearCombination, Output, Program, ProgramCase, Score
from attncheck.layers.program.coverage import CoverageKind
from attncheck.layers.program.features import FEATURES, features_of
from attncheck.layers.program.mixes import sigmoid_mix, softmax_mix
from attncheck.looks.domains import fixed_programs
from attncheck.looks.examples import draw_examples
from attncheck.looks.item import Item
from attncheck.programs import (
    EXAMPLES,
    cross_attention,
    grouped_query_attention,
    perceptron,
    recurrent,
    recurrent_attention,
)
from attncheck.report.page import render_report
from attncheck.runs.options import RunOptions
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run
from attncheck.strategies import layers, program_cases, programs
from attncheck.subject import Subject
from attncheck.theory.limits.programs import limit_of_program
from tests.refusals import refused
from tests.simulators.cases import stacks


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_line_is_proved(name: str) -> None:
    program = EXAMPLES[name]()
    covered = program.coverage()
    assert covered.has_limit
    assert covered.proved
    for node in program.nodes:
        best = {Score: CoverageKind.SCORE, Output: CoverageKind.OUTPUT}.get(type(node), CoverageKind.NETSOR)
        assert covered.of(node.name).statement is best


def test_sizes() -> None:
    assert len(ac.limit(perceptron(5)).lines) == 6
    assert ac.simulate(cross_attention(queries=3, keys=1).at(3), 2).scores.shape == (2, 3)
    assert ac.simulate(grouped_query_attention(6, 3, 2).at(3), 2).scores.shape == (2, 24)
    for name in ("perceptron", "recurrent", "residual_attention", "gated_attention"):
        write: Any = EXAMPLES[name]  # takes a size first
        refused(functools.partial(write, 0), "=0: must be at least 1; pass a size")


def test_softmax_weights_add_up_and_gates_do_not() -> None:
    value, low, high = np.ones((4, 2)), np.full((4, 1), -800.0), np.full((4, 1), 800.0)
    np.testing.assert_array_equal(softmax_mix(value, -value, high, low), value)
    np.testing.assert_array_equal(sigmoid_mix(value, value, high, high), 2.0 * value)
    for count in (0, 3):
        lines = [np.ones((2, 2))] * count
        refused(functools.partial(softmax_mix, *lines), f"lines={count}: must hold as many values as scores")


Arrays = dict[str, Any]
OWN = "attncheck.subject:direct"


def initial_program() -> tuple[ac.Program, Any]:
    """Return a program with one vector x = tanh(W h)."""
    program = ac.Program()
    return program, program.nonlin(ac.tanh(), program.matmul(program.weight("W"), program.initial("h")))


def tied() -> ac.Program:
    program, x = initial_program()
    Q = program.weight("Q")
    program.score(program.matmul(Q, x), program.matmul(Q, x))
    return program


def seeded(rng: np.random.Generator) -> np.random.SeedSequence:
    return np.random.SeedSequence([int(word) for word in rng.integers(2**32, size=4)])


def over_n(program: ac.Program, width: int, size: int, rng: np.random.Generator) -> Arrays:
    draws = ac.simulate(program.at(width), size, seeded(rng))
    return {"outputs": draws.outputs, "scores": draws.scores / width**0.5}


@pytest.mark.parametrize("write", EXAMPLES.values(), ids=EXAMPLES)
def test_cases_come_back_from_built_in_types(write: Callable[[], ac.Program]) -> None:
    case = ProgramCase.of(write(), RATE_WIDTHS)
    fields = json.loads(json.dumps(case.to_dict()))
    assert read_case(fields) == case
    assert read_case(fields).describe() == case.describe()
    assert case.describe().startswith("n=32,128,512 program of")


def test_widths_are_sorted_and_checked() -> None:
    assert ProgramCase.of(recurrent(), (128, 32)).widths == (32, 128)
    for widths, said in (((), "must not be empty"), ((0,), "must be at least 1"), ((2.5,), "must be a whole")):
        refused(functools.partial(ProgramCase.of, recurrent(), widths), said)  # type: ignore[arg-type]  # as people do


# Programs are slow to draw: busy machines must not fail the deadline.
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_random_programs_have_a_limit_and_can_be_written_down(program: ac.Program) -> None:
    assert program.coverage().has_limit
    assert str(ac.Program.from_dict(program.to_dict())) == str(program)
    law = limit_of_program(program)
    assert np.linalg.eigvalsh(law.score_covariance).min(initial=0.0) > -1e-9
    assert np.isfinite(law.draw(2, 1, np.random.default_rng(0)).outputs).all()


def test_bounds_of_random_programs() -> None:
    @settings(max_examples=20)
    @given(programs(min_scores=2, max_scores=2))
    def two(program: ac.Program) -> None:
        assert len(program.at(4).scores) == 2

    two()

    @settings(max_examples=1)
    @given(programs(min_scores=4, max_scores=9))
    def four(program: ac.Program) -> None:
        raise AssertionError("there are none")

    refused(four, "min_scores=4: is more than any program has")


def test_a_default_run_covers_what_the_theorem_allows() -> None:
    run = Run.of(RunOptions(seed=0, profile="default"))
    items = [item for name in PROGRAM_PROPERTIES for item in run.items(name)]
    found = [set(features_of(item.case.to_dict()["program"])) for item in items]
    assert set.union(*found) == set(FEATURES)
    assert all(item.case.to_dict()["widths"] in ([*EXACT_WIDTHS], [*RATE_WIDTHS]) for item in items)


def test_choices_of_sides() -> None:
    assert conditioned_sides(recurrent())[1] == "the program has no scores"
    assert conditioned_sides(tied())[1] == "a score has the same matrix on both sides"
    cyclic = ac.Program()
    h = cyclic.initial("h")
    images = {name: cyclic.matmul(cyclic.weight(name), h) for name in "ABC"}
    for left, right in ("AB", "BC", "CA"):
        cyclic.score(images[left], images[right])
    assert conditioned_sides(cyclic)[1] == "the matrices of the scores form an odd cycle"


def test_subjects_of_programs_are_known_by_its_parameters() -> None:
    subject = Subject.of(over_n)
    assert subject.form == "program"
    case = recurrent_attention().at(8)
    assert not subject.reason_unsupported(case)
    assert subject.reason_unsupported(ac.AttentionLayer(width=8)) == "the subject simulates programs only"
    assert Subject.of("attncheck.subject:matrix_free").reason_unsupported(case).startswith("the subject simulates")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda d: None, "must return a mapping of arrays"),
        (lambda d: {"outputs": d["outputs"]}, "returned no scores"),
        (lambda d: {"scores": d["scores"]}, "returned no outputs"),
        (lambda d: d | {"weights": 1.0}, "is not a known field"),
        (lambda d: d | {"scores": d["scores"][:, :-1]}, "must be (4, 3) at width 16"),
        (lambda d: d | {"outputs": d["outputs"] * np.nan}, "holds NaN"),
        (lambda d: d | {"outputs": d["outputs"][:, 0]}, "must be (4, results, neurons)"),
    ],
)
def test_bad_arrays_are_named(spoil: Callable[[Arrays], Any], said: str) -> None:
    def subject(program: ac.Program, width: int, size: int, rng: np.random.Generator) -> Any:
        return spoil(over_n(program, width, size, rng))

    check = functools.partial(ac.check, subject, recurrent_attention(), properties="corollary2", profile="smoke")
    assert "16 program of 30 lines" in refused(check, re.escape(said))


def test_subjects_that_ignore_the_generator_are_refused() -> None:
    def stuck(program: ac.Program, width: int, size: int, rng: np.random.Generator) -> Arrays:
        return over_n(program, width, size, np.random.default_rng(0))

    check = functools.partial(ac.check, stuck, recurrent(2), properties="corollary2", profile="smoke")
    refused(check, "two different generators gave the same outputs")


def unnamed() -> ac.Program:
    program, x = initial_program()
    program.nonlin(lambda y: np.tanh(y), x)
    return program


def zero_program(zero: str) -> ac.Program:
    std = {name: 0.0 if zero in (name, "all") else 1.0 for name in "hWQKV"}
    program = ac.Program()
    W, Q, K, V = (program.weight(name, std[name]) for name in "WQKV")
    x = program.nonlin(ac.tanh(), program.matmul(W, program.initial("h", std=std["h"])))
    score = program.score(program.matmul(Q, x), program.matmul(K, x))
    program.output(lambda v, a: np.tanh(a) * v, vectors=[program.matmul(V, x)], scores=[score])
    return program


def exchanged() -> ac.Program:
    """⟨Q x, K x⟩ and ⟨K x, Q x⟩: methods with another rounding order differ by rounding only."""
    program, x = initial_program()
    Q, K, V, L = (program.weight(name) for name in "QKVL")
    q, k, other = program.matmul(Q, x), program.matmul(K, x), program.matmul(L, x)
    scores = [program.score(q, k), program.score(k, q), program.score(q, other)]
    program.output(lambda v, *a: np.tanh(sum(a)) * v, vectors=[program.matmul(V, x)], scores=scores)
    return program


def rounded(rounding: float, program: ac.Program, width: int, size: int, rng: np.random.Generator) -> Arrays:
    draws = ac.simulate(program.at(width), size, seeded(rng))
    scores = draws.scores * (1.0 + rounding * rng.standard_normal(draws.scores.shape))
    return {"outputs": draws.outputs, "scores": scores}


#: Right programs with something unusual, their subjects, and properties.
UNUSUAL: dict[str, tuple[Callable[[], ac.Program], Any, Any]] = {
    "unnamed function": (unnamed, OWN, "netsor"),
    **{f"zero {name}": (functools.partial(zero_program, name), OWN, PROGRAM_PROPERTIES) for name in (*"hWKV", "all")},
    "rounding": (exchanged, functools.partial(rounded, 1e-15), "corollary2"),
    "single rounding": (exchanged, functools.partial(rounded, 1e-7), "corollary2"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_no_fault(name: str) -> None:
    write, subject, properties = UNUSUAL[name]
    report = ac.check(subject, write(), properties=properties, profile="smoke")
    assert report.verdict == "consistent"
    assert "rounding" not in name or "corollary2.closest_scores" in {r.check for r in report.results if r.p_values}


def test_right_layers_and_programs_together() -> None:
    cases: list[ac.AttentionLayer | ac.Program] = [ac.AttentionLayer(width=8, seq_len=2), recurrent_attention()]
    report = ac.check(OWN, cases, properties=["scores", "netsor", "program_scores"], profile="smoke")
    assert (report.verdict, report.coverage) == ("consistent", ())
    kinds = {result.property: "program" in result.case for result in report.results}
    assert kinds == {"scores": False, "netsor": True, "program_scores": True}


def test_the_clause_that_is_broken_is_told() -> None:
    report = ac.check(OWN, tied(), profile="smoke")
    sentence = "violates Assumption 1 (b) (Q is on both sides; give the score two matrices)"
    assert report.coverage == (f"p1: {sentence}",)
    assert f"Not proved by the paper:\n  p1: {sentence}" in str(report)
    reasons = {result.check: result.reason for result in report.results if not result.p_values}
    assert reasons["theorem1.order"].startswith("no limit is stated: p1 violates Assumption 1 (b), Q is on both")


def test_a_wrong_one_is_told_in_words() -> None:
    report = ac.check(over_n, recurrent_attention(2), properties="corollary2", profile="smoke")
    assert report.verdict == "violated"
    assert re.search(r"program:  n=16 program of \d+ lines, \d+ score", explain(report.results, None))


@pytest.mark.usefixtures("verdicts_only")
def test_a_copied_score_is_seen_without_vectors() -> None:
    def copying(program: ac.Program, width: int, size: int, rng: np.random.Generator) -> Arrays:
        draws = ac.simulate(program.at(width), size, seeded(rng))
        draws.scores[:, 1] = draws.scores[:, 0]
        return {"outputs": draws.outputs, "scores": draws.scores}

    report = ac.check(copying, EXAMPLES["grouped_query_attention"](), properties="corollary2", profile="smoke")
    assert "corollary2.closest_scores" in [result.check for result in report.violated]


def test_results_on_programs_replay_to_the_digit_and_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "r.jsonl"
    run = Run.of(RunOptions(seed=3, profile="smoke", record=record))
    items = [*run.items("netsor")[:3], Item("fact1", ProgramCase.of(recurrent(2), RATE_WIDTHS))]
    report = RunReport(run.planning(item.id for item in items))
    report.take(report.run.examine(items))
    assert report.pool(InProcess()) == ([], [])
    assert report.finish()
    assert replay_result(record, f"{items[0].checks[2].name}@all") == 0
    assert replay_result(record, f"{items[2].checks[2].name}@{items[2].case.key}") == 0
    assert "The digits agree." in capsys.readouterr().out
    page = render_report(record, out=tmp_path / "r.html").read_text(encoding="utf-8")
    assert "fact1.order" in page
    assert any(item.case.describe() in page for item in items)
    assert "program: reused weight" in page


def test_deep_programs_cost_no_more_than_their_lines() -> None:
    program = ac.Program()
    state = program.initial("s")
    W, U = program.weight("W"), program.weight("U")
    for _ in range(20):
        total = program.nonlin(LinearCombination((1.0, 1.0)), program.matmul(W, state), program.matmul(U, state))
        state = program.nonlin(ac.tanh(), total)
    assert repr(state) == f"<Nonlin {state.name}>"
    law = ac.limit(program)
    assert 0.0 < law.second(state, state) == law.second(state, state.name) < 1.0


# Keys depend on what is described, not on modules, addresses or literals --------------------------


def test_a_field_that_comes_later_changes_no_key() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(AttentionLayer):
        dropout: float = 0.0

    layer = AttentionLayer(width=8, mask="causal")
    assert Later(width=8, mask="causal").key == layer.key
    assert Later(width=8, mask="causal", dropout=0.1).key != layer.key
    assert layer.replace(mask="none").key != layer.key


def test_no_module_is_named_in_what_programs_are_known_by() -> None:
    drawn = draw_examples(program_cases(RATE_WIDTHS, min_scores=1), 12, 0, "identity")
    for case in (*fixed_programs("fact1"), *drawn):
        text = json.dumps(case.to_dict())
        assert "attncheck" not in text
        assert "path" not in text
        assert type(case).from_dict(json.loads(text)) == case


def test_literals_and_comments_of_a_module_redraw_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> list[str]:
        cases = [
            *draw_examples(layers(), 20, 3, "literals"),
            *draw_examples(program_cases(EXACT_WIDTHS), 10, 3, "literals"),
            *draw_examples(stacks(max_entries=500), 5, 3, "literals"),
        ]
        numbers = st.lists(st.integers() | st.floats(), min_size=20).map(tuple)
        return [*(case.key for case in cases), *map(repr, draw_examples(numbers, 20, 3, "literals"))]

    before = drawn()
    file = tmp_path / "local_literals.py"
    file.write_text("# A comment.\nA, B, C = 12345, 0.7071, [104729, 1.618]\n", "utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    assert drawn() == before


def of_function(function: Coordinatewise) -> ProgramCase:
    program = Program()
    program.nonlin(function, program.initial("h"))
    return program.at(8)


def test_functions_without_a_name_are_not_taken_for_each_other() -> None:
    one, other = of_function(lambda x: np.tanh(x)), of_function(lambda x: np.tanh(0.01 * x))
    assert one.key == other.key
    assert one != other
    assert one == one
    assert of_function(np.tanh) == of_function(np.tanh)
    run = Run.of(RunOptions(profile="smoke"))
    refused(lambda: run.items_on("fact1", [one, other]), "differs from another one only in a function without a name")


def test_no_address_in_memory_is_in_a_key() -> None:
    @dataclasses.dataclass(repr=False)
    class Scaled:
        factor: float

        def __call__(self, x: np.ndarray) -> np.ndarray:
            return self.factor * x

    assert of_function(Scaled(2.0)).key == of_function(Scaled(2.0)).key
    assert of_function(functools.partial(Scaled(2.0))).key == of_function(functools.partial(Scaled(2.0))).key
