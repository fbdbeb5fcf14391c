"""Frameworks: what `attncheck init` writes for them runs unchanged, and only inspections import them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main


@pytest.mark.sampled
@pytest.mark.parametrize("framework", ["torch", "flax", "keras"])
def test_lines_of_the_workflow_pass(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(framework)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "layer", raising=False)  # of the framework before
    assert main(["init", "--framework", framework]) == ExitCode.CONSISTENT
    workflow = Path(".github/workflows/attncheck.yml").read_text(encoding="utf-8")
    install, test, inspect = (line.split() for line in re.findall(r"^ *- run: (.*)$", workflow, re.MULTILINE))
    assert install[:4] == ["python", "-m", "pip", "install"]
    assert (test[:3], inspect[0]) == (["python", "-m", "pytest"], "attncheck")
    sys.path.insert(0, "")  # as `python -m` does
    monkeypatch.delitem(sys.modules, "test_layer", raising=False)
    assert pytest.main(["-p", "no:cacheprovider", *test[3:]]) == pytest.ExitCode.OK
    assert main(inspect[1:]) == ExitCode.CONSISTENT
