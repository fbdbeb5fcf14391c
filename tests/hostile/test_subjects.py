"""Whatever a subject does, a run ends in seconds with a verdict or the reason for none, and leaves a readable record.

Subjects run in workers, or in a process of their own where they concern the command's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

from attncheck.commands.cli import main
from attncheck.records.explanation import Certainty, Explanation
from attncheck.records.schema import Manifest, PlannedResult, Result, read
from tests.recorded import Recorded, closing_of, make_result, write_record

HERE = Path(__file__).parent
# Seconds after which a run counts as hung, and the time limit of a call; bytes of output.
_HUNG, _LIMIT, _OUTPUT = 120, 2, 20_000

VIOLATED, REFUSED, UNFINISHED, DONE = 1, 2, 4, 0
#: Exit code and output of a run of each subject.
EXPECTED = {
    "fails_later": (UNFINISHED, r"INCOMPLETE.*raised RuntimeError: unreadable .*mend the simulator"),
    "ends_process": (REFUSED, r"during a probe call on n=8 s=2 H=1, its process died"),
    "segfaults_later": (UNFINISHED, r"its process died \(Fatal Python error: Segmentation fault at \S+\.py:\d+\)"),
    "sleeps_on_every": (UNFINISHED, r"took more than 2 s for one call.*\(and 3 more like it\)"),
    "forks_and_raises": (DONE, r"CONSISTENT"),
    "prints": (DONE, r"CONSISTENT"),
    "counts_calls": (DONE, r"CONSISTENT.*not reproducible.* has no digest"),
    "dies_when_questioned": (
        VIOLATED,
        r"VIOLATED.*during the search for a cause, its process died.*cause: .*the fault begins with scores",
    ),
}

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="process groups are as POSIX has them")


def arguments(name: str, *options: str) -> list[str]:
    limit = _LIMIT if name == "sleeps_on_every" else _HUNG  # on a busy machine, imports take seconds
    run = ["run", "--subject", f"subjects:{name}", "--profile", "smoke", "--only", "scores", "--timeout", f"{limit}"]
    return [*run, "--record", "record.jsonl", *options]


@POSIX
@pytest.mark.sampled
@pytest.mark.parametrize("name", EXPECTED)
def test_a_run_ends_with_a_verdict_or_a_reason(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(HERE)
    code, text = EXPECTED[name]
    assert main(arguments(name, "--workers", "1")) == code
    output, errors = capfd.readouterr()
    assert re.search(text, output, re.DOTALL), output + errors
    assert "Traceback" not in errors
    complete = code in (DONE, VIOLATED) and "This run has no digest" not in output
    assert ("Digest of all digits" in output) == complete
    assert len(output) + len(errors) < _OUTPUT
    if code != REFUSED:
        assert isinstance(next(iter(read(tmp_path / "record.jsonl"))), Manifest)
    if name == "prints":  # and what it prints is not in the digest
        digest = closing_of(tmp_path / "record.jsonl").digest
        assert main(arguments("right", "--workers", "0")) == DONE
        assert closing_of(tmp_path / "record.jsonl").digest == digest


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command in a folder, in a separate process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "attncheck", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(HERE), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the output of a command, which must end in time; kill what is left of it."""
    try:
        return process.communicate(timeout=_HUNG)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@POSIX
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_end_leaves_a_record(
    number: int, tmp_path: Path, wait_for: Callable[[Callable[[], bool]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    process, record = begin(tmp_path, *arguments("pauses", "--workers", "1")), tmp_path / "record.jsonl"
    wait_for(lambda: process.poll() is not None or (record.exists() and record.read_bytes().count(b"\n") > 1))
    if number == signal.SIGINT:  # as a terminal does: to the whole process group
        os.killpg(process.pid, number)
    else:
        process.terminate()
    output, errors = finish(process)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "attncheck: interrupted"
    assert re.search(r"Interrupted\. record\.jsonl holds [0-9]+ finished results?\.", output)
    manifest, first, *_ = read(record)
    assert isinstance(manifest, Manifest)
    assert isinstance(first, Result)
    assert main(["gate", str(record), "--baseline", str(tmp_path / "none.jsonl")]) == UNFINISHED
    assert "planned results are missing" in capsys.readouterr().out


# A slow worker start: execnet starts workers with Python's option -c.
BEGINNING = """
import pathlib, sys, time
if "-c" in sys.orig_argv:
    pathlib.Path("begun").touch()
    time.sleep(2)
"""


@POSIX
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_workers_begin_is_one_line(tmp_path: Path, wait_for: Callable[[Callable[[], bool]], None]) -> None:
    (tmp_path / "sitecustomize.py").write_text(BEGINNING, encoding="utf-8")
    process = begin(tmp_path, *arguments("right", "--workers", "1"))
    wait_for((tmp_path / "begun").exists)
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process)[1] == "attncheck: interrupted\n"


@POSIX
def test_threads_that_go_on_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """In one process, whose threads Python waits for."""
    process = begin(tmp_path, *arguments("leaves_thread", "--workers", "0"))
    output, errors = finish(process)
    assert process.returncode == DONE, output + errors
    assert re.search(r"attncheck: ended although Thread-\d+ .* still runs", errors)


# Names and texts of other people's files are shown, and do nothing: not in a terminal, on GitHub or in a browser


Runs = Callable[..., tuple[int, str]]

#: Each of these alone, and together, in place of a text.
TEXTS = {
    "terminal": "\x1b[31mred\x1b]0;title\x07\x9b2J\x7f\u202edesrever\u2028next",
    "annotation": "\n::error title=attncheck::forged",
    "first": "::error title=attncheck::forged",
    "old command": "##[error]forged",
    "wrapped": "word " * 60 + "::error title=attncheck::forged",
    "returned": "\r::set-output name=x::forged\r\n::stop-commands::x",
    "mathematics": "$\\frac$ $x^2$ {{7*7}} {% x %}",
    "page": "</td></table><script>alert(1)</script><img src=x onerror=alert(2)>\"' onmouseover='alert(3)",
    "markup": "[/red] [link=https://example.org]click[/link] [bold]b[/bold] :boom:",
    "markdown": "\n# heading\n| a | b |\n[click](https://example.org) https://example.org www.example.org <b>b</b> `x`",
    "xml": "]]></failure><testcase name='forged'/>\x00\x0b",
}


@pytest.fixture
def runs(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Runs:
    """Return a function that runs a command in a folder with a baseline: its exit code and all its output."""
    shutil.copy(recorded.right, tmp_path / "baseline.jsonl")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        code, output = main(arguments), capsys.readouterr()
        assert "internal error" not in output.err
        return code, output.out + output.err

    return run


def write_texts(path: Path, text: str) -> None:
    """Write a violated record with a text in place of every name and text."""
    texts: dict[str, Any] = dict.fromkeys(("reason", "text", "hint", "claim"), text) | {"diagnosis": [text]}
    names: dict[str, Any] = {"property": text, "check": text, "item": f"{text}@x", "case": {text: text, "mask": text}}
    violated: dict[str, Any] = {"verdict": "violated", "p_values": [1e-9] * 3, "effects": [9.0] * 3, "combined": 1e-26}
    results = [make_result(id=f"{text}@{number}", **texts, **names, **violated) for number in range(3)]
    results += [make_result(**texts), make_result(id=text, **texts, verdict="not examined", p_values=[])]
    head: dict[str, Any] = {"subject": text, "profile": text, "versions": {text: text}, "machine": {text: text}}
    write_record(
        path,
        results,
        closing={"reasons": [text], "explanations": [Explanation(text, Certainty.FITTED, text)], "failed": [text]},
        planned=[*results, PlannedResult(text, f"{text}@{text}", text)],
        **head,
    )


def steering(text: str) -> set[str]:
    """Return the characters that move a cursor, end a line or turn the direction of a text."""
    turning = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    kinds = {char: (unicodedata.category(char), unicodedata.bidirectional(char)) for char in set(text) - {"\n"}}
    return {char for char, kind in kinds.items() if kind[0] in ("Cc", "Zl", "Zp") or kind[1] in turning}


def check_terminal(output: str) -> None:
    """Check that nothing steers a terminal or a GitHub workflow."""
    assert not steering(output)
    assert "##[" not in output
    assert not [line for line in output.split("\n") if line.strip().startswith("::")]


@pytest.mark.sampled
@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_texts_of_a_record_are_inert(text: str, runs: Runs) -> None:
    write_texts(Path("whole.jsonl"), text)
    files = ["--summary", "summary.md", "--json", "gate.json"]
    code, said = runs("gate", "whole.jsonl", "--baseline", "baseline.jsonl", *files)
    assert code == 1
    check_terminal(said)
    _check_summary()
    for arguments in (
        ["report", "whole.jsonl", "--out", "page.html"],
        ["replay", "whole.jsonl", f"{text}@0"],
        ["replay", "whole.jsonl", "x"],
    ):
        check_terminal(runs(*arguments)[1])
    _check_page(Path("page.html").read_text("utf-8"))


def _check_summary() -> None:
    summary = Path("summary.md").read_text("utf-8")
    # GitHub reads no Markdown within the block of the command, and escapes leave no tag there.
    outside = re.sub(r"<pre>[^<>\n]*</pre>", "", summary.partition("\n")[2])
    assert not re.search(r"<|\[click\]\(|https://|www\.|^\s*[#|]", outside, re.M)
    assert not steering(summary)


def _check_page(page: str) -> None:
    for element in BeautifulSoup(page, "html.parser").find_all():
        assert element.name not in ("script", "iframe", "object", "form", "base")
        assert not any(name.startswith("on") for name in element.attrs)
        for name in ("src", "href"):
            assert str(element.get(name) or "#").startswith(("#", "data:image/", "data:,"))
    assert not steering(page)


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_texts_of_a_layer_a_table_and_arguments_are_inert(text: str, runs: Runs) -> None:
    Path("samples.csv").write_text(f'"{text}",y2\n1,2\n', "utf-8")
    fields = f"mask = {json.dumps(text)}", f"{json.dumps(text)} = 1", f"attention_map = {json.dumps(f'{text}:f')}"
    for line in ("", *fields):
        Path("layer.toml").write_text(f"[layer]\nwidth = 8\nseq_len = 2\n{line}\n", "utf-8")
        code, said = runs("check", "--layer", "layer.toml", "--samples", "samples.csv")
        assert code == 2
        check_terminal(said)
    for arguments in (["gate", text, "--baseline", "b"], ["explain", text], [text]):
        code, said = runs(*arguments)
        assert code == 2
        check_terminal(said)
