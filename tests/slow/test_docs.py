"""Documents are true: Python examples print what they show, and commands parse."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sybil import Document, Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser
from sybil.typing import Evaluator

from attncheck import AttentionLayer
from attncheck.commands.cli import app, main

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "reports" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

SHELL = ("sh", "yaml")
NOT_EXAMINED = {"jinja", "{eval-rst}", "{include}", "{toctree}", "{page}"}
# Optional imports of documents: see `tox run -e frameworks`.
FRAMEWORK = re.compile(r"^import (torch)$", re.MULTILINE)
# A fence with its language, empty at the end.
FENCE = re.compile(r"^[ \t>]*(?:`{3,}|~{3,})[ \t]*(\S*).*$", re.MULTILINE)


def read_toml(example: Example) -> None:
    """Parse a TOML block, and a layer if it describes one."""
    if "layer" in tomllib.loads(example.parsed):
        AttentionLayer.from_toml(example.parsed)


def shown_only(example: Example) -> None:
    """Leave a block to the tests below."""


EVALUATORS: dict[str, Evaluator] = {
    "python": PythonEvaluator(),
    "toml": read_toml,
    **dict.fromkeys(("text", "console", *SHELL), shown_only),
}
BLOCKS = Sybil(parsers=[CodeBlockParser(language, evaluator) for language, evaluator in EVALUATORS.items()])


def language(example: Example) -> str:
    return str(example.region.lexemes["arguments"])


def shell_blocks(document: Document) -> list[str]:
    return [str(example.parsed) for example in document.examples() if language(example) in SHELL]


def commands(block: str) -> Iterator[list[str]]:
    """Yield the attncheck calls in a shell block, or in a workflow's `run:` lines."""
    for line in block.replace("\\\n", " ").splitlines():
        call = re.sub(r"^\s*(?:- )?(?:run: )?", "", line)
        if call.startswith("attncheck "):
            yield shlex.split(call, comments=True)[1:]


def parse(tokens: list[str]) -> None:
    app.parse_args(tokens, exit_on_error=False, print_error=False)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_blocks_commands_and_numbers_are_known(path: Path) -> None:
    document = BLOCKS.parse(path)
    written = FENCE.findall(document.text)[::2]
    assert [language(example) for example in document.examples()] == [
        block for block in written if block not in NOT_EXAMINED
    ]
    names = "|".join(command for command in app if not command.startswith("-"))
    for block in shell_blocks(document):
        calls = list(commands(block))
        # Calls in any other form would be missed.
        assert len(calls) == len(re.findall(rf"\battncheck (?:{names})\b", block))
        for tokens in calls:
            parse(tokens)
    assert unquoted(path.read_text(encoding="utf-8"))[1] == []


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_examples_run_in_order(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    document = BLOCKS.parse(path)
    for framework in FRAMEWORK.findall(document.text):
        pytest.importorskip(framework)
    document.namespace["__name__"] = path.stem
    previous: Example | None = None
    for example in document.examples():
        if language(example) == "python":
            capsys.readouterr()
        example.evaluate()
        kinds = (previous and language(previous), language(example))
        if previous and kinds == ("sh", "console"):
            for tokens in commands(previous.parsed):
                main(tokens)
        if kinds in (("python", "text"), ("sh", "console")):
            assert_printed(example.parsed, capsys.readouterr().out)
        previous = example


def assert_printed(shown: str, printed: str) -> None:
    """Assert that every shown line was printed; a final ellipsis matches anything."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for line in shown.splitlines():
        start = " ".join(line.removesuffix("…").split()).strip("─")
        assert any(each.startswith(start) for each in lines), f"not printed: {line}"


def unquoted(source: str, root: Path = ROOT) -> tuple[str, list[str]]:
    """Return what the documentation's own extension, which is no module of the package, makes of a page."""
    spec = importlib.util.spec_from_file_location("measured", ROOT / "docs" / "measured.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: tuple[str, list[str]] = module.unquoted(source, root)
    return found


def test_number_that_no_page_has_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks" / "speed.md"
    page.parent.mkdir()
    page.write_text("| reading | 3.1 s |\n| writing | 4 s |\n", encoding="utf-8")
    good = 'takes [3.1 s](../benchmarks/speed.md "reading").'
    assert unquoted(good, tmp_path) == ("takes 3.1 s.", [])
    changes = {"3.1": "1", "3.1 s": "3 s", "reading": "writing", "speed": "gone"}
    for old, new in changes.items():
        wrong = good.replace(old, new)
        assert len(unquoted(wrong, tmp_path)[1]) == 1
