"""Checks of other packages run in any process, are recorded, repeated and calibrated like those of attncheck."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import attncheck
from attncheck._lib.exit_codes import ExitCode
from attncheck.checks import Alternative, Count, register, registered
from attncheck.checks.registered import load_checks, registrations
from attncheck.checks.registry import EVERY_PROPERTY, check_named, checks_of
from attncheck.commands.cli import main
from attncheck.faults.pairs import paired
from attncheck.runs.options import RunOptions
from attncheck.runs.parts import read_run
from attncheck.runs.run import Run
from attncheck.subject import collapsed
from tests.recorded import closing_of, examine
from tests.refusals import refused

SIGNS = '''
from attncheck.checks import Alternative, Count, register
from attncheck.subject import collapsed


def shifted(layer, size, rng):
    """Half a standard deviation is added to all outputs."""
    drawn = dict(collapsed(layer, size, rng))
    return {**drawn, "outputs": drawn["outputs"] + 0.5 * drawn["outputs"].std()}


def unchanged(layer, size, rng):
    """Nothing is wrong."""
    return dict(collapsed(layer, size, rng))


def check(name, fault):
    return register(
        name=name,
        null="the last output is positive with probability 1/2",
        alternative=Alternative.of("positive with probability 0.6", 0.6),
        reads="share of positive outputs:",
        family=lambda setting: Count(0.5, tail="two-sided"),
        fault=fault,
        hint="a constant is added",
    )


@check("last_position.sign", shifted)
def positive(sample, reference):
    last = sample.outputs[:, -1, 0]
    return int((last > 0).sum()), int((last != 0).sum())


@check("without_fault.sign", unchanged)
def again(sample, reference):
    return positive(sample, reference)
'''
MODULE = "signs_of_outputs"
LAYER = attncheck.AttentionLayer(width=8, seq_len=2, num_heads=2)
ID = "last_position.sign@all"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a module that registers two checks, loaded and current."""
    path = tmp_path_factory.mktemp("signs")
    (path / f"{MODULE}.py").write_text(SIGNS, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.syspath_prepend(path)
        patch.setattr(registered, "_REGISTERED", {})
        load_checks([MODULE])
        yield path
    sys.modules.pop(MODULE)


@pytest.fixture(scope="module")
def run(folder: Path) -> Callable[..., int]:
    """Run the property on the layers of the profile smoke."""

    def take(record: str, *more: str) -> int:
        given = ["--only", "last_position", "--profile", "smoke", "--checks", MODULE, "--record", record]
        return main(["run", *given, *more])

    return take


@pytest.fixture(scope="module")
def right(run: Callable[..., int], folder: Path) -> Path:
    assert run("right.jsonl", "--workers", "0") == ExitCode.CONSISTENT
    return folder / "right.jsonl"


@pytest.fixture(scope="module")
def wrong(folder: Path) -> Path:
    """The record of a violated run on two layers."""
    examine(folder / "wrong.jsonl", f"{MODULE}:shifted", ["last_position"], only=["last_position"], checks=[MODULE])
    return folder / "wrong.jsonl"


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No registered checks, as where their package is not installed."""
    monkeypatch.setattr(registered, "_REGISTERED", {})


def given(**changed: Any) -> dict[str, Any]:
    fields = {
        "name": "mine.sign",
        "null": "outputs are positive with probability 1/2",
        "alternative": Alternative.of("0.6", 0.6),
        "reads": "share:",
        "family": lambda setting: Count(0.5),
        "fault": collapsed,
    }
    return {**fields, **changed}


# Registration -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "mine"}, "not of the form property.statistic"),
        ({"name": "scores.mine"}, "in the property 'scores' of attncheck"),
        ({"name": "last_position.sign"}, f"registered already, by {MODULE}"),
        ({"null": " "}, "null=' ': is empty"),
        ({"alternative": 0.6}, "is not an Alternative"),
        ({"fault": "tied_query_key"}, "is not a function"),
        ({"needs": ["logits"]}, "needs='logits': is not known"),
    ],
)
def test_a_malformed_or_taken_check_is_refused(folder: Path, changed: dict[str, Any], message: str) -> None:
    refused(lambda: register(**given(**changed))(lambda sample, reference: (0, 1)), message)


def test_a_check_needs_its_fields_and_a_module_its_checks() -> None:
    for missing in ("null", "alternative", "family", "fault"):
        fields = given()
        del fields[missing]
        with pytest.raises(TypeError, match=missing):
            register(**fields)
    refused(lambda: load_checks(["json"]), "checks='json': registers no check")


def test_a_failed_import_leaves_no_check_behind(folder: Path) -> None:
    (folder / "fails_late.py").write_text(SIGNS.replace('"last', '"other').replace('"without', '"no') + "\n1 / 0\n")
    refused(lambda: load_checks(["fails_late"]), "checks=fails_late: cannot be imported: ZeroDivisionError")
    assert {each.check.property_name for each in registrations()} == {"last_position", "without_fault"}


def test_an_installed_package_is_found_and_a_broken_one_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, absent: None
) -> None:
    package = folder / "signs_package-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: signs-package\nVersion: 1\n", "utf-8")
    entries = package / "entry_points.txt"
    monkeypatch.delitem(sys.modules, MODULE)
    for name, module in (("good", MODULE), ("bad", "not_there")):
        registered._import_installed.cache_clear()
        entries.write_text(f"[attncheck.checks]\n{name} = {module}\n", "utf-8")
        if name == "good":
            assert [check.name for check in checks_of("last_position")] == ["last_position.sign"]
            continue
        refused(registrations, "mend or uninstall the package signs-package")
    entries.unlink()


# Runs and records ---------------------------------------------------------------------------------


def test_another_process_gives_the_digits_of_this_one(run: Callable[..., int], right: Path) -> None:
    assert run("two.jsonl", "--workers", "1") == ExitCode.CONSISTENT
    assert closing_of(right).digest == closing_of(right.parent / "two.jsonl").digest
    one = read_run(right)
    assert one.manifest.checks == [MODULE]
    assert {result.check for result in one.results} == {"last_position.sign"}


def test_only_named_checks_join_a_run(folder: Path) -> None:
    def planned(*checks: str) -> set[str]:
        run = Run.of(RunOptions(profile="smoke", checks=checks))
        return {item.property_name for item in run.all_items}

    assert planned() == set(EVERY_PROPERTY)
    assert planned(MODULE) == {*EVERY_PROPERTY, "last_position", "without_fault"}


def test_results_replay_and_name_their_check(wrong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = read_run(wrong).results[0]
    assert main(["replay", str(wrong), result.id, "--trust", MODULE]) == ExitCode.VIOLATED
    assert "The digits agree." in capsys.readouterr().out
    assert main(["explain", result.id]) == ExitCode.CONSISTENT
    told = capsys.readouterr().out
    assert "positive with probability 1/2" in told
    assert f"{MODULE}:shifted (Half a standard deviation" in told


def test_the_gate_compares_registered_checks_and_needs_none_of_them(
    right: Path, wrong: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for installed in (True, False):
        if not installed:
            monkeypatch.setattr(registered, "_REGISTERED", {})
        base = str(right.parent / f"base_{installed}.jsonl")
        assert main(["gate", str(right), "--baseline", base, "--write-baseline"]) == ExitCode.CONSISTENT
        assert main(["gate", str(wrong), "--baseline", base]) == ExitCode.VIOLATED
        assert "last_position.sign" in capsys.readouterr().out


# Where the check is not installed -----------------------------------------------------------------


def test_a_page_is_rendered_and_replay_names_the_missing_module(
    wrong: Path, absent: None, capsys: pytest.CaptureFixture[str]
) -> None:
    page = wrong.parent / "page.html"
    assert main(["report", str(wrong), "--out", str(page)]) == ExitCode.CONSISTENT
    text = page.read_text("utf-8")
    for words in ("Its check is not installed here", "share of positive outputs", f"--trust {MODULE}"):
        assert words in text
    assert main(["replay", str(wrong), ID]) == ExitCode.UNUSABLE
    assert capsys.readouterr().err.endswith(f"pass --trust {MODULE}\n")


# Error rates --------------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["last_position.sign"], ExitCode.CONSISTENT, "against signs_of_outputs:shifted: Half a standard"),
        (["without_fault"], ExitCode.INCONCLUSIVE, "without_fault.sign detects its fault on no layer"),
        (
            ["last_position", "--subject", f"{MODULE}:shifted"],
            ExitCode.VIOLATED,
            "has false alarms at a wrong rate on n=",
        ),
        (["inputs.lengths"], ExitCode.CONSISTENT, "against limit_as_finite"),
        (["fact1"], ExitCode.UNUSABLE, "is a property of programs"),
    ],
)
def test_calibrate_tells_valid_and_blind_checks(
    folder: Path, arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # With 300 looks, a valid check is called violated with a chance of at most 1e-6.
    assert main(["calibrate", *arguments, "--looks", "300", "--verified", "0"]) == code
    assert message in "".join(capsys.readouterr())


def test_the_fault_of_a_registered_check_is_a_fault(folder: Path) -> None:
    (fault,) = paired(check_named("last_position.sign"))
    assert fault.name == f"{MODULE}:shifted"
    assert attncheck.check(fault.subject, LAYER, properties="last_position", profile="smoke").verdict == "violated"
