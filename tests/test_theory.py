"""Statements of the theory: planned, recorded with their numbers, part of the digest, shown and repeated."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from attncheck.commands.cli import main
from attncheck.gate import gate
from attncheck.pytest_plugin import theory
from attncheck.records.schema import Closing, Manifest, Theory, read
from attncheck.report import render_report

pytest_plugins = ["pytester"]

# Runs inside this process forget what they import: imported here, it is imported once.
for module in ("attncheck.runs.run", "attncheck.strategies", "attncheck.runs.summary", "statsmodels.stats.multitest"):
    importlib.import_module(module)

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


def recorded(place: pytest.Pytester, *options: str) -> tuple[pytest.RunResult, Path, list[Theory]]:
    record = place.path / "record.jsonl"
    record.unlink(missing_ok=True)
    result = place.runpytest_inprocess(f"--attncheck-record={record}", "-p", "no:cacheprovider", *options)
    return result, record, [line for line in read(record) if isinstance(line, Theory)]


def closing(record: Path) -> Closing:
    *_, last = read(record)
    assert isinstance(last, Closing)
    return last


def test_each_case_is_planned_and_recorded_with_its_numbers(place: pytest.Pytester) -> None:
    result, record, found = recorded(place)
    assert result.ret == 0
    assert "Theory, without the subject: 9 of 9 statements hold" in result.stdout.str()
    manifest = next(read(record))
    assert isinstance(manifest, Manifest)
    assert {each.id for each in manifest.planned} == {each.id for each in found}
    assert len(manifest.planned) == len(found) == 9
    assert {each.name: each.numbers for each in found}["things.grid"].keys() == {"heads"}
    assert sum(each.name == "things.widths" for each in found) == 4
    assert {each.case for each in found if each.name == "things.grid"} == {
        f"of={of}, heads={heads}" for of in ("outputs", "scores") for heads in (1, 3)
    }
    assert all(re.fullmatch(r"things\.\w+@[0-9a-f]{12}", each.key) for each in found)
    # A worker changes nothing: ids, numbers and digest are those of one process. Several are in test_plugin.
    place.runpytest_inprocess("-n", "1", "-p", "no:cacheprovider", "--attncheck-record=workers.jsonl")
    assert closing(place.path / "workers.jsonl").digest == closing(record).digest


def test_one_that_does_not_hold_is_a_violation_that_everybody_tells(
    place: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = recorded(place)[1].rename(place.path / "before.jsonl")
    monkeypatch.setenv("FEWEST", "2")
    result, record, found = recorded(place)
    assert result.ret == 1
    bad = [each for each in found if each.verdict == "violated"]
    assert [each.case for each in bad] == ["of=outputs, heads=3", "of=scores, heads=3"]
    assert bad[0].reason.startswith("too many heads")
    said = result.stdout.str()
    assert "7 of 9 statements hold" in said
    assert f"attncheck replay {record} {bad[0].id}" in said
    assert closing(record).verdict == "violated"
    judged = gate(record, before)
    assert judged.verdict == "violated"
    assert judged.findings[0].text == "2 results are violated: things.grid"
    page = render_report(record, out=place.path / "page.html").read_text("utf-8")
    assert "2 results are violated: things.grid" in page
    assert "too many heads" in page


def test_one_that_could_not_be_examined_is_missing(place: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "1")
    result, record, found = recorded(place)
    assert result.ret == 1
    assert len(found) == 8
    assert closing(record).verdict == "incomplete"


def test_the_gate_misses_a_statement_of_the_baseline(place: pytest.Pytester) -> None:
    before = recorded(place)[1].rename(place.path / "before.jsonl")
    _, record, _ = recorded(place, "--deselect", "test_statements.py::test_without_cases_or_numbers")
    judged = gate(record, before)
    assert judged.verdict == "incomplete"
    assert any("things.alone" in finding.text for finding in judged.findings)
    assert gate(before, record).verdict == "consistent"


def test_smoke_leaves_the_theory_out_and_draws_nothing_for_it(place: pytest.Pytester) -> None:
    place.makeconftest("""
        from pathlib import Path
        from attncheck.pytest_plugin import deselect_theory, engage
        def pytest_sessionstart(session):
            engage(session.config)
        def pytest_collection_modifyitems(config, items):
            deselect_theory(config, items, Path(__file__).parent)
    """)
    result = place.runpytest_inprocess("--attncheck-profile=smoke", "--collect-only", "-q")
    assert "things." not in result.stdout.str()


def test_replay_repeats_a_statement_of_the_properties(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.jsonl"
    folder = Path(__file__).resolve().parents[1] / "properties"
    pytest.main([str(folder / "theory" / "test_regimes.py"), "-q", "-k", "laplace", f"--attncheck-record={record}"])
    (statement,) = (line for line in read(record) if isinstance(line, Theory))
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


def test_numbers_that_no_record_holds_and_failures_of_pytest_are_violations(place: pytest.Pytester) -> None:
    place.makepyfile(test_statements=ODD)
    _, record, found = recorded(place)
    assert {each.name: each.verdict for each in found} == {"odd.nan": "violated", "odd.failed": "violated"}
    assert next(each for each in found if each.name == "odd.nan").reason.startswith("x is nan")
    assert closing(record).verdict == "violated"


@pytest.mark.parametrize("key", ["nodot", "a.subtle-key", "a.b.c", ""])
def test_keys_have_a_form(key: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form group\.statement"):
        theory(key)
