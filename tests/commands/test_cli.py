"""The command line: help, one-line errors, explanations, power."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import attncheck
from attncheck._lib.exit_codes import ExitCode
from attncheck.checks.check import Check
from attncheck.checks.claims import CLAIMS
from attncheck.checks.registry import CHECKS
from attncheck.checks.statements import STATEMENTS
from attncheck.commands.cli import app, main
from attncheck.faults import FAULTS
from attncheck.faults.pairs import paired, rejecting
from attncheck.faults.programs import PROGRAM_FAULTS
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.profiles import PROFILES, Profile

from .conftest import refused

COMMANDS = (
    "init",
    "run",
    "replay",
    "explain",
    "gate",
    "power",
    "calibrate",
    "inspect",
    "widths",
    "check",
    "report",
    "paper",
)


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
    calls = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    command = [sys.executable, "-c", LIGHT, json.dumps(calls)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    assert json.loads(done.stdout) == [[arguments, 0, True, []] for arguments in calls]


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == ExitCode.CONSISTENT
    said = capsys.readouterr().out
    assert all(f" {name} " in said for name in COMMANDS)
    assert {name for name in app if not name.startswith("-")} == set(COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == ExitCode.CONSISTENT
    assert capsys.readouterr().out == f"{attncheck.__version__}\n"


UNUSABLE = {
    ("rnu",): 'Did you mean "run"?',
    ("run", "--profil", "smoke"): "attncheck run --help",
    ("run", "--profile", "huge"): "thorough",
    ("run", "unexpected"): "attncheck run --help",
    ("run", "--subject", "nowhere"): "is not of the form module:callable",
    ("run", "--subject", "nowhere:at_all"): "add that folder to PYTHONPATH",
    ("run", "--seed", "many"): "pass a whole number, or random",
    ("run", "--seed", "1_0"): "seed='1_0': must be a whole number; pass a whole number, or random",
    ("run", "--false-alarm", "0.0_1"): "false_alarm='0.0_1': must be a number",
    ("run", "--record"): "requires an argument",
    ("replay", "only.jsonl"): "attncheck replay --help",
    ("replay", "none.jsonl", "a@b"): "pass the path of a run record",
    ("gate", "none.jsonl"): "attncheck gate --help",
    ("gate", "none.jsonl", "--baseline", "x"): "pass the path of a run record",
    ("explain", "scroes"): "try scores",
    ("power", "no_such_fault"): "use one of",
    ("paper", "fig4"): "attncheck paper --help",
    ("paper", "--scale", "2"): "must be at most 1",
    ("paper", "--scale", "0.01", "--out", ""): "out='': names no folder",
    ("paper", "--seed", "-1"): "seed=-1: must be at least 0",
    ("check", "--layer", "x", "--samples", "x", "--seed", "1.5"): "seed='1.5': must be a whole number",
    ("paper", "--workers", "some"): "pass a number of processes, or auto",
    ("inspect", "nowhere:at_all", "--width", "64"): "cannot be imported",
    ("inspect", "math:pi", "--width", "64"): "is not a function",
    ("inspect", "builtins:object", "--width", "64"): "is not a module of torch, flax, keras, equinox",
    ("widths", "nowhere"): "build='nowhere': is not of the form module:callable",
    ("widths", "builtins:object", "--widths", "64,x,256"): "widths='x': must be a whole number",
    ("widths", "builtins:object", "--expect", "maximal"): "expect='maximal': is not a prediction",
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


def test_the_seed_of_a_run_is_shown_as_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == ExitCode.CONSISTENT
    assert "--seed INT " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", UNUSABLE)
def test_unusable_input_is_said_in_one_line(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == ExitCode.UNUSABLE
    said = capsys.readouterr()
    assert UNUSABLE[arguments] in refused(said.err)
    assert said.out == ""


def test_a_fault_of_ours_is_one_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[str]:
        raise RuntimeError("a\nb")

    monkeypatch.setattr("attncheck.commands.explanation._overview", fail)
    assert main(["explain"]) == ExitCode.UNUSABLE
    assert "RuntimeError: a b; set ATTNCHECK_TRACEBACK=1" in refused(capsys.readouterr().err)
    monkeypatch.setenv("ATTNCHECK_TRACEBACK", "1")
    assert main(["explain"]) == ExitCode.UNUSABLE
    assert "in fail" in capsys.readouterr().err


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """Return the file descriptor of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


# The ends of whole processes: their streams are flushed after the command.


def ended(arguments: str, folder: Path, **streams: Any) -> subprocess.CompletedProcess[str]:
    line = f"{sys.executable} -m attncheck {arguments}"
    kept: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(line, shell=True, cwd=folder, text=True, check=False, timeout=60, **kept)


def test_a_reader_that_stops_reading_ends_the_command_quietly(closed_pipe: int, tmp_path: Path) -> None:
    done = ended("--help", tmp_path, stdout=closed_pipe)
    assert (done.returncode, done.stderr) == (ExitCode.UNUSABLE, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_output_that_cannot_be_written_is_no_pass(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = ended("--help", tmp_path, stdout=full)
    assert done.returncode not in (ExitCode.CONSISTENT, ExitCode.VIOLATED)
    assert "No space left on device" in done.stderr


def test_closed_streams_are_no_fault(tmp_path: Path) -> None:
    done = ended("--help >&-", tmp_path)
    assert (done.returncode, done.stderr) == (ExitCode.CONSISTENT, "")


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
    said = explained(capsys, name)
    claim = CLAIMS[name]
    assert claim.statement in said
    assert claim.source in said
    assert claim.unseen in said
    for check in CHECKS:
        assert (f"Check {check.name} " in said) == (check.claim == name)


@pytest.mark.parametrize("check", CHECKS[:: len(CHECKS) // 6], ids=lambda check: check.name)
def test_explain_a_check(capsys: pytest.CaptureFixture[str], check: Check) -> None:
    said = explained(capsys, check.name)
    for text in (check.null, check.alternative.text, check.hint, CLAIMS[check.claim].statement, *check.needs):
        assert " ".join(text.split()) in said
    assert explained(capsys, f"{check.name}@0123456789ab") == said
    assert all(f"{fault.name} ({fault.what})" in said for fault in paired(check))


@pytest.mark.sampled
@pytest.mark.parametrize("name", FAULTS)
def test_explain_a_fault(capsys: pytest.CaptureFixture[str], name: str) -> None:
    said = explained(capsys, name)
    fault = FAULTS[name]
    assert fault.what in said
    seen = not all(map(fault.reason_hidden, PROFILES["default"].layers))
    assert (f"--attncheck-subject attncheck.faults:{name}" if seen else f"attncheck power {name} --quick") in said
    assert not rejecting(fault) or f"seen by: {', '.join(rejecting(fault))} try:" in said
    described = said.split("fixed layers: ")[1].split(" seen by: ")[0].split(" try: ")[0].split("; ")
    for layer in PROFILES["default"].layers:
        assert (layer.describe() in described) is not bool(fault.reason_hidden(layer))


@pytest.mark.sampled
@pytest.mark.parametrize("name", PROGRAM_FAULTS)
def test_explain_a_fault_of_programs(capsys: pytest.CaptureFixture[str], name: str) -> None:
    said, fault = explained(capsys, name), PROGRAM_FAULTS[name]
    assert f"what: {fault.what} where: {fault.requires} seen by: {', '.join(rejecting(fault))} try:" in said
    assert f"--attncheck-subject attncheck.faults.programs:{name}" in said


def test_power_of_a_fault(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Profile, "layers", property(lambda profile: (AttentionLayer(width=4, seq_len=2),)))
    assert main(["power", "scores_over_n", "--quick", "--profile", "smoke"]) == ExitCode.CONSISTENT
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["scores_over_n", e] for e in ("grams", "scores", "outputs")]
    assert float(rows[0][2].rstrip("%")) > 99.0


def test_power_of_a_fault_that_no_layer_of_the_profile_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["power", "untied_query_key", "--quick", "--profile", "smoke"]) == ExitCode.CONSISTENT
    lines = capsys.readouterr().out.splitlines()[2:]
    assert len(lines) == 3
    assert all(line.endswith("it changes none of the fixed layers of this profile") for line in lines)
