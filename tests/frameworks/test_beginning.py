"""`attncheck init --framework NAME` writes files that run unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main


@pytest.mark.sampled
@pytest.mark.parametrize("framework", ["torch", "flax", "keras"])
def test_each_line_of_the_workflow_passes(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    assert main(["init", str(tmp_path), "--framework", framework]) == ExitCode.CONSISTENT
    workflow = (tmp_path / ".github/workflows/attncheck.yml").read_text(encoding="utf-8")
    lines = [line.split() for line in re.findall(r"^ *- run: (.*)$", workflow, re.MULTILINE)]
    assert lines[0][:4] == ["python", "-m", "pip", "install"]
    for program, *arguments in lines[1:]:
        command = [sys.executable, *(["-m", "attncheck"] if program == "attncheck" else []), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == ExitCode.CONSISTENT, done.stdout + done.stderr
    assert (tmp_path / "report.html").exists()
