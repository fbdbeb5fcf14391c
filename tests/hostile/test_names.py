"""Names and texts of other people's files are shown, and do nothing: not in a terminal, on GitHub or in a browser."""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attncheck.commands.cli import main
from attncheck.records.explanation import Certainty, Explanation
from attncheck.records.schema import PlannedResult
from tests.recorded import Recorded, make_result, write_record
from tests.report.page import Parsed

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
    for tag, attributes in Parsed(page).elements:
        assert tag not in ("script", "iframe", "object", "form", "base")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert str(attributes.get(name) or "#").startswith(("#", "data:image/", "data:,"))
    assert not steering(page)


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_texts_of_a_layer_and_a_table_are_inert(text: str, runs: Runs) -> None:
    Path("samples.csv").write_text(f'"{text}",y2\n1,2\n', "utf-8")
    fields = f"mask = {json.dumps(text)}", f"{json.dumps(text)} = 1", f"attention_map = {json.dumps(f'{text}:f')}"
    for line in ("", *fields):
        Path("layer.toml").write_text(f"[layer]\nwidth = 8\nseq_len = 2\n{line}\n", "utf-8")
        code, said = runs("check", "--layer", "layer.toml", "--samples", "samples.csv")
        assert code == 2
        check_terminal(said)


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_arguments_are_inert(text: str, runs: Runs) -> None:
    for arguments in (["gate", text, "--baseline", "b"], ["explain", text], [text]):
        code, said = runs(*arguments)
        assert code == 2
        check_terminal(said)
