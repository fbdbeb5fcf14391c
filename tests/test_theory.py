"""Statements of the theory: planned, recorded with their numbers, part of the digest, shown and repeated."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main
from attncheck.gate import gate
from attncheck.pytest_plugin import theory
from attncheck.records.schema import Closing, Manifest, Theory, read
from attncheck.report import render_report

pytest_plugins = ["pytester"]
PROPERTIES = Path(__file__).resolve().parents[1] / "properties"

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
    # A worker changes nothing: ids, numbers and digest are those of one process. Several are in test_plugin.
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
    first = (
        "ATTNCHECK'S OWN STATEMENT FAILED: things.grid; this is a fault of attncheck, not of attncheck.subject:direct"
    )
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
    """The subject keeps its verdict; the run ends with a code that is not that of a violation."""
    folder = tmp_path / "properties"
    (folder / "theory").mkdir(parents=True)
    shutil.copy(PROPERTIES / "test_draws.py", folder)
    (folder / "theory" / "test_statements.py").write_text(STATEMENTS, "utf-8")
    monkeypatch.setattr("attncheck.commands.session.properties_folder", lambda: folder)
    monkeypatch.setattr("attncheck.commands.collected.properties_folder", lambda: folder)
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
