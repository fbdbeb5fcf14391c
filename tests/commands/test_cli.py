"""The command line: help, one-line errors, explanations, power."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import attncheck
from attncheck._lib.exit_codes import ExitCode
from attncheck.checks.check import Check
from attncheck.checks.claims import CLAIMS, STATEMENTS
from attncheck.checks.registry import CHECKS, EVERY_CHECK, PROGRAM_PROPERTIES, PROPERTIES
from attncheck.commands.cli import app, main
from attncheck.faults import FAULTS
from attncheck.faults.pairs import paired, rejecting
from attncheck.faults.programs import PROGRAM_FAULTS
from attncheck.looks.profiles import PROFILES, Profile

from .conftest import refused

COMMANDS = {"init", "run", "replay", "explain", "gate", "power", "calibrate", "inspect"}
COMMANDS |= {"widths", "check", "report", "paper"}


# Help and errors ----------------------------------------------------------------------------------


# Prints each call's imports and answer length, in one process: imports of one would show in the next.
LIGHT = """
import contextlib, io, json, sys
from attncheck.commands.cli import main
heavy, told = {'numpy', 'scipy', 'statsmodels', 'hypothesis', 'pytest', 'jinja2', 'msgspec', 'torch'}, []
for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main(arguments)
    told.append([arguments, code, bool(said.getvalue().strip()), sorted(heavy & set(sys.modules))])
print(json.dumps(told))
"""


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    calls = [["--help"], ["--version"], *([name, "--help"] for name in sorted(COMMANDS))]
    command = [sys.executable, "-c", LIGHT, json.dumps(calls)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    assert json.loads(done.stdout) == [[arguments, 0, True, []] for arguments in calls]


def test_every_command_is_listed_and_the_version_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == ExitCode.CONSISTENT
    text = capsys.readouterr().out
    assert all(f" {name} " in text for name in COMMANDS)
    assert {name for name in app if not name.startswith("-")} == COMMANDS
    assert main(["--version"]) == ExitCode.CONSISTENT
    assert capsys.readouterr().out == f"{attncheck.__version__}\n"
    assert main(["run", "--help"]) == ExitCode.CONSISTENT
    assert "--seed INT " in capsys.readouterr().out  # although it may be random


UNUSABLE = {
    ("rnu",): 'Did you mean "run"?',
    ("run", "--profil", "smoke"): "attncheck run --help",
    ("run", "unexpected"): "attncheck run --help",
    ("run", "--subject", "nowhere:at_all"): "add that folder to PYTHONPATH",
    ("run", "--record"): "requires an argument",
    ("replay", "only.jsonl"): "attncheck replay --help",
    ("replay", "none.jsonl", "a@b"): "pass the path of a run record",
    ("gate", "none.jsonl"): "attncheck gate --help",
    ("gate", "none.jsonl", "--baseline", "x"): "pass the path of a run record",
    ("explain", "scroes"): "try scores",
    ("power", "no_such_fault"): "use one of",
    ("paper", "fig4"): "attncheck paper --help",
    ("paper", "--scale", "0.01", "--out", ""): "out='': names no folder",
    ("paper", "--workers", "some"): "pass a number of processes, 0 for this one, or auto",
    ("inspect", "nowhere:at_all", "--width", "64"): "cannot be imported",
    ("inspect", "math:pi", "--width", "64"): "is not a function",
    ("inspect", "builtins:object", "--width", "64"): "is not a module of torch, flax, keras, equinox",
    ("widths", "builtins:object", "--widths", "64,x,256"): "widths='x': must be a whole number",
    ("widths", "builtins:object", "--widths", "2", "4", "8"): "Lists have commas, e.g. 64,128,256",
    ("report", "run.jsonl", "--out", "./run.jsonl"): "is also the path of run",
    ("init", ""): "folder='': names no folder; pass a folder, or . for the current one",
    ("init", "--framework", "tensor"): "attncheck init --help",
}


MISSING = {"make": ("inspect", "--width", "8"), "build": ("widths",), "subject": ("run", "--subject")}


@pytest.mark.parametrize("field", MISSING)
def test_a_missing_framework_is_to_be_installed(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The error of `import torch` without torch, on any machine.
    missing = """raise ModuleNotFoundError("No module named 'torch'", name="torch")\n"""
    (tmp_path / "needs.py").write_text(missing, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main([*MISSING[field], "needs:build"]) == ExitCode.UNUSABLE
    said = refused(capsys.readouterr().err)
    assert f"{field}=needs:build: cannot be imported: " in said
    assert said.rstrip().endswith("; pip install torch")


@pytest.mark.parametrize("arguments", UNUSABLE)
def test_unusable_input_is_said_in_one_line(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == ExitCode.UNUSABLE
    said = capsys.readouterr()
    assert UNUSABLE[arguments] in refused(said.err)
    assert said.out == ""


def test_a_fault_of_ours_is_one_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[str]:
        raise RuntimeError("a\nb")

    monkeypatch.setattr("attncheck.commands.explanation.overview", fail)
    assert main(["explain"]) == ExitCode.UNUSABLE
    assert "RuntimeError: a b; set ATTNCHECK_TRACEBACK=1" in refused(capsys.readouterr().err)
    monkeypatch.setenv("ATTNCHECK_TRACEBACK", "1")
    assert main(["explain"]) == ExitCode.UNUSABLE
    assert "in fail" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_streams_that_cannot_be_written_are_told_at_the_end(tmp_path: Path) -> None:
    """Whole processes, whose streams are flushed after the command: a full device, no output; a pipe that is closed.

    A reader that leaves, as ``head`` does, changes neither what a command does nor its exit code.
    """
    reader, writer = os.pipe()
    os.close(reader)
    help = f"{sys.executable} -m attncheck --help"
    for redirection, code, errors in (
        (f">&{writer}", ExitCode.CONSISTENT, ""),
        (">&-", ExitCode.CONSISTENT, ""),
        (">/dev/full", ExitCode.UNUSABLE, "No space left on device"),
    ):
        for unbuffered in ("", "1"):
            done = subprocess.run(
                ["bash", "-c", f"{help} {redirection}"],
                cwd=tmp_path,
                env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
                pass_fds=[writer],
                capture_output=True,
                text=True,
            )
            assert errors in done.stderr
            assert len(done.stderr.splitlines()) == bool(errors)
            assert done.returncode == code
    os.close(writer)


def test_a_terminal_that_lacks_characters_shows_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["explain", "independence"]) == ExitCode.CONSISTENT
    whole = capsys.readouterr().out
    assert "°" in whole
    with open(tmp_path / "plain", "w", encoding="ascii") as plain:
        monkeypatch.setattr(sys, "stdout", plain)
        assert main(["explain", "independence"]) == ExitCode.CONSISTENT
    assert (tmp_path / "plain").read_bytes() == whole.encode("ascii", "replace")


# explain and power --------------------------------------------------------------------------------


def explained(capsys: pytest.CaptureFixture[str], *names: str) -> str:
    assert main(["explain", *names]) == ExitCode.CONSISTENT
    return " ".join(capsys.readouterr().out.split())


MASKED = "needs: input_gram, scores (masked scores too: numbers where the mask hides them, not -inf)"
QUOTED = {row.name: " ".join(row.statement.split()) for row in STATEMENTS}
#: Arguments of explain, a part of the answer, and what it does not have.
ANSWERS = [
    ("scores.scale", "alternative: a standard deviation off by", "masked scores"),
    ("scores.size", MASKED, "not known"),
    ("", "; 1 check)", " 1 checks"),
    ("non_gaussianity", QUOTED["Theorem 1"], "not known"),
    ("draws", QUOTED["Corollary 2, Example 1"], "not known"),
    ("netsor", QUOTED["Definition 1 (i)-(iii)"], QUOTED["Definition 1 (iv), Proposition 8"]),
    *(("", claim.statement, "not known") for claim in CLAIMS.values()),
    *(("faults", f"{fault.name}: {fault.what}", "not known") for fault in (*FAULTS.values(), *PROGRAM_FAULTS.values())),
    *((rejecting(fault)[0], f"{fault.name} ({fault.what})", "not known") for fault in PROGRAM_FAULTS.values()),
]


def test_explain_answers(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {name: explained(capsys, *name.split()) for name in {name for name, *_ in ANSWERS}}
    for name, part, absent in ANSWERS:
        assert part in answers[name]
        assert absent not in answers[name]


@pytest.mark.sampled
@pytest.mark.parametrize("name", CLAIMS)
def test_explain_a_claim(capsys: pytest.CaptureFixture[str], name: str) -> None:
    text, claim = explained(capsys, name), CLAIMS[name]
    for part in (claim.statement, claim.source, claim.unseen):
        assert part in text
    for check in CHECKS:
        assert (f"Check {check.name} " in text) == (check.claim == name)


def test_every_check_has_all_parts_and_every_claim_a_check() -> None:
    assert all(
        check.null and check.alternative.text and check.hint and check.reads.endswith(":") for check in EVERY_CHECK
    )
    assert {check.claim for check in EVERY_CHECK} == set(CLAIMS)
    assert {check.property_name for check in EVERY_CHECK} == {*PROPERTIES, *PROGRAM_PROPERTIES}


@pytest.mark.parametrize("check", CHECKS[:: len(CHECKS) // 6], ids=lambda check: check.name)
def test_explain_a_check(capsys: pytest.CaptureFixture[str], check: Check) -> None:
    text = explained(capsys, check.name)
    for part in (check.null, check.alternative.text, check.hint, CLAIMS[check.claim].statement, *check.needs):
        assert " ".join(part.split()) in text
    assert explained(capsys, f"{check.name}@0123456789ab") == text
    assert all(f"{fault.name} ({fault.what})" in text for fault in paired(check))


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*FAULTS, *PROGRAM_FAULTS])
def test_explain_a_fault(capsys: pytest.CaptureFixture[str], name: str) -> None:
    text, layers = explained(capsys, name), PROFILES["default"].layers
    rejected_by = f"seen by: {', '.join(rejecting(({**FAULTS, **PROGRAM_FAULTS})[name]))} try:"
    if name in PROGRAM_FAULTS:
        program_fault = PROGRAM_FAULTS[name]
        assert f"what: {program_fault.what} where: {program_fault.requires} {rejected_by}" in text
        assert f"--attncheck-subject attncheck.faults.programs:{name}" in text
        return
    fault = FAULTS[name]
    assert fault.what in text
    visible = not all(map(fault.reason_hidden, layers))
    assert (f"--attncheck-subject attncheck.faults:{name}" if visible else f"attncheck power {name} --quick") in text
    assert not rejecting(fault) or rejected_by in text
    described = text.split("fixed layers: ")[1].split(" seen by: ")[0].split(" try: ")[0].split("; ")
    for layer in layers:
        assert (layer.describe() in described) is not bool(fault.reason_hidden(layer))


def test_power_of_a_fault(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Profile, "layers", property(lambda profile: (attncheck.AttentionLayer(width=4, seq_len=2),)))
    assert main(["power", "scores_over_n", "--quick", "--profile", "smoke"]) == ExitCode.CONSISTENT
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["scores_over_n", e] for e in ("grams", "scores", "outputs")]
    assert float(rows[0][2].rstrip("%")) > 99.0


def test_power_of_a_fault_that_no_layer_of_the_profile_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["power", "untied_query_key", "--quick", "--profile", "smoke"]) == ExitCode.CONSISTENT
    lines = capsys.readouterr().out.splitlines()[2:]
    assert len(lines) == 3
    assert all(line.endswith("it changes none of the fixed layers of this profile") for line in lines)
