"""Theory statements: planned, recorded with numbers, part of the digest, shown and repeatable."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main
from attncheck.commands.planned_run import properties_folder, statements
from attncheck.evidence.comparisons import order_p_value
from attncheck.evidence.looks import detection
from attncheck.gate import gate
from attncheck.looks.profiles import PROFILES
from attncheck.pytest_plugin import theory
from attncheck.records.schema import Closing, Manifest, StatementResult, read
from attncheck.report import render_report
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.runs.statements import LEVEL, MOST, Statement

pytest_plugins = ["pytester"]
PROPERTIES = Path(__file__).resolve().parents[2] / "properties"

STATEMENTS = """
import os
from attncheck.pytest_plugin import theory
from attncheck.strategies import layers, stacks

@theory("things.widths", layers(max_entries=300))
def test_widths_are_positive(layer, run_seed, note):
    note(width=layer.width)
    assert layer.width > 0

@theory("things.grid", of=("outputs", "scores"), heads=(1, 3))
def test_on_a_grid(of, heads, note):
    note(heads=heads)
    assert heads < int(os.environ.get("FEWEST", 9)), "too many heads"

@theory("things.alone")
def test_without_cases_or_numbers():
    if "BROKEN" in os.environ:
        raise OSError("no answer")
"""


@pytest.fixture
def place(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("FEWEST", "BROKEN"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(test_statements=STATEMENTS)
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'\n")
    return pytester


def recorded(place: pytest.Pytester, *options: str) -> tuple[pytest.RunResult, Path, list[StatementResult]]:
    record = place.path / "record.jsonl"
    record.unlink(missing_ok=True)
    result = place.runpytest_inprocess(f"--attncheck-record={record}", "-p", "no:cacheprovider", *options)
    return result, record, [line for line in read(record) if isinstance(line, StatementResult)]


def closing(record: Path) -> Closing:
    *_, last = read(record)
    assert isinstance(last, Closing)
    return last


def test_each_case_is_planned_and_recorded_with_its_numbers(place: pytest.Pytester) -> None:
    result, record, found = recorded(place)
    assert result.ret == 0
    said = result.stdout.str()
    assert "9 of 9 statements of attncheck's own theory hold" in said
    assert "CONSISTENT" not in said, "no simulator was examined"
    manifest = next(read(record))
    assert isinstance(manifest, Manifest)
    assert manifest.planned == []
    assert set(manifest.statements) == {each.id for each in found}
    assert len(manifest.statements) == len(found) == 9
    assert {each.name: each.numbers for each in found}["things.grid"].keys() == {"heads"}
    assert sum(each.name == "things.widths" for each in found) == 4
    assert {each.case for each in found if each.name == "things.grid"} == {
        f"of={of}, heads={heads}" for of in ("outputs", "scores") for heads in (1, 3)
    }
    assert all(re.fullmatch(r"things\.\w+@[0-9a-f]{12}", each.key) for each in found)
    # Ids, numbers and digest do not depend on workers. test_plugin tests several.
    place.runpytest_inprocess("-n", "1", "-p", "no:cacheprovider", "--attncheck-record=workers.jsonl")
    assert closing(place.path / "workers.jsonl").digest == closing(record).digest


def test_one_that_fails_is_a_fault_of_attncheck_and_says_nothing_of_a_subject(
    place: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEWEST", "2")
    result, record, found = recorded(place)
    assert result.ret == ExitCode.REFUTED
    bad = [each for each in found if each.verdict == "violated"]
    assert [each.case for each in bad] == ["of=outputs, heads=3", "of=scores, heads=3"]
    assert bad[0].reason.startswith("too many heads")
    said = result.stdout.str()
    first = "ATTNCHECK'S OWN STATEMENT FAILED: things.grid; this is a bug in attncheck, not in attncheck.subject:direct"
    assert first in said
    assert "7 of 9 statements of attncheck's own theory hold" in said
    assert "VIOLATED" not in said
    assert f"attncheck replay {record} {bad[0].id}" in said
    assert closing(record).verdict == "refuted"
    judged = gate(record, place.path / "none.jsonl")
    assert judged.verdict == "refuted"
    assert judged.exit_code == ExitCode.REFUTED
    assert "attncheck's own statements failed: things.grid" in [finding.text for finding in judged.findings]
    page = render_report(record, out=place.path / "page.html").read_text("utf-8")
    assert "2 statements of attncheck&#39;s own theory failed, which says nothing of attncheck.subject:direct" in page
    assert "too many heads" in page


def test_one_that_could_not_be_examined_is_missing(place: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "1")
    result, record, found = recorded(place)
    assert result.ret == 1
    assert len(found) == 8
    assert closing(record).verdict == "incomplete"


def test_a_failed_one_beside_a_right_subject(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subject keeps its verdict; the exit code is not that of a violation."""
    folder = tmp_path / "properties"
    (folder / "theory").mkdir(parents=True)
    shutil.copy(PROPERTIES / "test_draws.py", folder)
    (folder / "theory" / "test_statements.py").write_text(STATEMENTS, "utf-8")
    monkeypatch.setattr("attncheck.commands.session.properties_folder", lambda: folder)
    monkeypatch.setattr("attncheck.commands.planned_run.properties_folder", lambda: folder)
    monkeypatch.setitem(PROFILES, "smoke", dataclasses.replace(PROFILES["smoke"], examples=0))
    monkeypatch.setenv("FEWEST", "2")
    run = ["run", "--profile=smoke", "--workers=0", f"--record={tmp_path / 'record.jsonl'}"]
    assert main(run) == ExitCode.CONSISTENT
    assert "own theory" not in capsys.readouterr().out
    assert main([*run, "--theory"]) == ExitCode.REFUTED
    said = capsys.readouterr().out
    assert said.index("ATTNCHECK'S OWN STATEMENT FAILED: things.grid") < said.index("CONSISTENT: attncheck.subject")
    assert "VIOLATED" not in said
    manifest = next(read(tmp_path / "record.jsonl"))
    assert isinstance(manifest, Manifest)
    assert not {each.id for each in manifest.planned} & set(manifest.statements)


@pytest.mark.parametrize(("options", "stated"), [((), False), (("--attncheck-theory",), True)])
def test_the_folder_of_properties_leaves_them_out_unless_asked(
    place: pytest.Pytester, options: tuple[str, ...], stated: bool
) -> None:
    folder = place.mkdir("properties")
    shutil.copy(PROPERTIES / "conftest.py", folder)
    shutil.copy(PROPERTIES / "test_draws.py", folder)
    (folder / "theory").mkdir()
    (folder / "theory" / "test_statements.py").write_text(STATEMENTS, "utf-8")
    common = ("--collect-only", "-q", "--attncheck-profile=smoke", "-p", "no:cacheprovider")
    said = place.runpytest_inprocess("properties", *common, *options).stdout.str()
    assert "test_draws[" in said
    assert ("things.grid" in said) == stated
    assert "things.grid" in place.runpytest_inprocess("properties/theory", *common).stdout.str()


def test_replay_repeats_a_statement_of_the_properties(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.jsonl"
    pytest.main([str(PROPERTIES / "theory" / "test_regimes.py"), "-q", "-k", "laplace", f"--attncheck-record={record}"])
    (statement,) = (line for line in read(record) if isinstance(line, StatementResult))
    assert statement.numbers.keys() == {"tail"}
    capsys.readouterr()
    assert main(["replay", str(record), statement.id]) == 0
    said = capsys.readouterr().out
    assert "The digits agree." in said
    assert f"{statement.numbers['tail']:.17g}" in said


ODD = """
import pytest
from attncheck.pytest_plugin import theory

@theory("odd.nan")
def test_nan(note):
    note(fine=1.0)
    note(x=float("nan"))

@theory("odd.failed")
def test_failed():
    with pytest.raises(ValueError):
        pass
"""


def test_numbers_that_no_record_holds_and_failures_of_pytest_are_failures(place: pytest.Pytester) -> None:
    place.makepyfile(test_statements=ODD)
    _, record, found = recorded(place)
    assert {each.name: each.verdict for each in found} == {"odd.nan": "violated", "odd.failed": "violated"}
    assert next(each for each in found if each.name == "odd.nan").reason.startswith("x is nan")
    assert closing(record).verdict == "refuted"


@pytest.mark.parametrize("key", ["nodot", "a.subtle-key", "a.b.c", ""])
def test_keys_have_a_form(key: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form group\.statement"):
        theory(key)


LOOKS = """
import os
import numpy as np
from attncheck.pytest_plugin import theory

@theory("looks.mean")
def test_mean(run_seed, note):
    draws = np.random.default_rng(run_seed).standard_normal(400) + float(os.environ.get("SHIFT", 0))
    note.equals("mean", draws.mean(), 0.05, 0.0, neighbours=[float(os.environ.get("NEIGHBOUR", 1))])

@theory("looks.computed")
def test_computed(note):
    note(half=0.5)
"""


def test_looks_decide_on_what_is_drawn(place: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    place.makepyfile(test_statements=LOOKS)
    result, record, found = recorded(place)
    mean, computed = sorted(found, key=lambda each: each.name, reverse=True)
    assert result.ret == 0
    assert mean.numbers.keys() == {"mean", "smallest p", "largest p of a neighbour", "looks"}
    assert mean.numbers["largest p of a neighbour"] < LEVEL < mean.numbers["smallest p"]
    assert computed.numbers == {"half": 0.5}
    # A wrong mean is violated by three looks, on separate draws.
    monkeypatch.setenv("SHIFT", "0.5")
    result, record, found = recorded(place)
    mean = next(each for each in found if each.name == "looks.mean")
    assert (mean.verdict, mean.numbers["looks"]) == ("violated", 3)
    assert re.match(r"mean: p = \S+, \S+, \S+$", mean.reason)
    assert len(set(mean.reason.removeprefix("mean: p = ").split(", "))) == 3
    assert closing(record).verdict == "refuted"


def test_what_tells_no_neighbour_apart_is_inconclusive(place: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    place.makepyfile(test_statements=LOOKS)
    monkeypatch.setenv("NEIGHBOUR", "0.01")
    result, record, found = recorded(place)
    mean = next(each for each in found if each.name == "looks.mean")
    assert mean.verdict == "inconclusive"
    assert mean.reason.startswith("not told apart: mean 0.01 (p = ")
    assert closing(record).verdict == "inconclusive"
    assert result.ret == 1
    said = result.stdout.str()
    assert "1 of 2 statements of attncheck's own theory hold, 1 inconclusive" in said
    assert mean.reason in said


def statement(*p_values: float, name: str = "one") -> tuple[Statement, list[int], Callable[[int], None]]:
    """Return a statement, its test's run seeds, and a test that returns these p-values in turn."""
    taken, seeds = Statement("looks.made@0", ""), list[int]()

    def test(run_seed: int) -> None:
        seeds.append(run_seed)
        taken.p_value(name, p_values[len(seeds) - 1])

    return taken, seeds, test


@pytest.mark.parametrize(
    ("p_values", "looks", "violated"),
    [
        ((0.5,), 1, False),
        ((1e-4, 0.5), 2, False),
        ((1e-4, 1e-4, 1e-4), 3, True),
        ((1e-4, 1e-4, 0.5, 0.5), 4, False),
        ((1e-4, 1e-4, 0.5, 1e-4), 4, True),
    ],
)
def test_statements_follow_the_protocol(p_values: tuple[float, ...], looks: int, violated: bool) -> None:
    taken, seeds, test = statement(*p_values)
    with pytest.raises(AssertionError) if violated else contextlib.nullcontext():
        taken.examine(test, {"run_seed": 7}, 7)
    assert taken.numbers["looks"] == len(seeds) == looks
    assert seeds[0] == 7
    assert len(set(seeds)) == looks
    assert taken.numbers["smallest p"] == p_values[0]


def test_a_right_statement_is_violated_as_often_as_its_level_says() -> None:
    level, runs = 0.2, 4_000

    def test(run_seed: int, note: Statement) -> None:
        draws = np.random.default_rng(run_seed).standard_normal((2, 9))
        for name, each in zip("ab", draws, strict=True):
            note.equals(name, each.mean(), each.std(ddof=1) / 3.0, 0.0, df=8)

    violated = 0
    for seed in range(runs):
        taken = Statement("looks.made@0", "")
        try:
            taken.examine(test, {"run_seed": seed, "note": taken}, seed, level)
        except AssertionError:
            violated += 1
    expected = 2 * runs * detection(level / 2.0, level / 2.0)
    assert abs(violated - expected) < 4.0 * expected**0.5


def test_names_are_stated_once_and_p_values_are_chances() -> None:
    taken, _, test = statement(math.nan)
    with pytest.raises(AssertionError, match="the p-value of one is nan"):
        taken.examine(test, {"run_seed": 0}, 0)
    taken, _, test = statement(0.5)

    def twice(run_seed: int) -> None:
        test(run_seed)
        taken.p_value("one", 0.5)

    with pytest.raises(AssertionError, match="one is stated twice"):
        taken.examine(twice, {"run_seed": 0}, 0)


def test_orders_hold_however_large_errors_are() -> None:
    rng, widths = np.random.default_rng(0), (64, 256)
    errors = (0.3, 0.1)
    found = rng.normal((1.0, 0.25), errors, (4_000, 2))
    p_values = [order_p_value(values, errors, widths, -1.0) for values in found]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-6
    assert np.mean([order_p_value(values, errors, widths, -0.5) for values in found]) < 0.3
    assert order_p_value((1.0, 0.26), (1e-3, 1e-3), widths, -1.0, allowance=0.05) == 1.0
    assert order_p_value((1.0, 0.30), (1e-3, 1e-3), widths, -1.0, allowance=0.05) < 1e-6
    assert order_p_value((1.0, 0.25), (0.0, 0.0), widths, -1.0) == 1.0
    assert order_p_value((1.0, 0.26), (0.0, 0.0), widths, -1.0) == 0.0


def test_a_thorough_run_has_no_more_statements_than_the_level_is_for() -> None:
    run = Run.of(RunOptions(profile="thorough"))
    assert len(list(statements(run, properties_folder()))) <= MOST
    assert 2.0 * LEVEL**3 * MOST <= 1e-6 * (1.0 + 1e-9)
