"""The Python examples in the README run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def python_blocks(text: str) -> list[str]:
    """Return the Python blocks of a Markdown text, each padded so that its line numbers are the text's."""
    return [
        "\n" * text.count("\n", 0, block.start(1)) + block[1]
        for block in re.finditer(r"^```(?:python|py)\b[^\n]*\n(.*?)^```\s*$", text, re.MULTILINE | re.DOTALL)
    ]


def test_every_python_block_is_found() -> None:
    text = README.read_text(encoding="utf-8")
    opened = re.findall(r"^\s*(?:```|~~~)\s*(?:python|py|pycon)\b.*$", text, re.MULTILINE | re.IGNORECASE)
    assert len(python_blocks(text)) == len(opened) >= 1


def test_examples_run_in_order(tmp_path: Path) -> None:
    runner = (
        "import sys, pathlib\n"
        "for name in sys.argv[2:]:\n"
        "    text = pathlib.Path(name).read_text(encoding='utf-8')\n"
        "    exec(compile(text, sys.argv[1], 'exec'), globals())\n"
    )
    files = []
    for number, block in enumerate(python_blocks(README.read_text(encoding="utf-8"))):
        file = tmp_path / f"block{number}.py"
        file.write_text(block, encoding="utf-8")
        files.append(str(file))
    result = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", runner, str(README), *files],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip(), "the examples print nothing"
