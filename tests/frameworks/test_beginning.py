"""`attncheck init --framework NAME` writes files that run unchanged."""

from __future__ import annotations

import re
import sys

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("framework", ["torch", "flax", "keras"])
def test_each_line_of_the_workflow_passes(
    framework: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(framework)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "layer", raising=False)  # of the framework before
    assert main(["init", str(pytester.path), "--framework", framework]) == ExitCode.CONSISTENT
    workflow = (pytester.path / ".github/workflows/attncheck.yml").read_text(encoding="utf-8")
    install, test, inspect = (line.split() for line in re.findall(r"^ *- run: (.*)$", workflow, re.MULTILINE))
    assert install[:4] == ["python", "-m", "pip", "install"]
    assert test[:3] == ["python", "-m", "pytest"]
    pytester.runpytest_inprocess("-p", "no:cacheprovider", *test[3:]).assert_outcomes(passed=2)
    assert inspect[0] == "attncheck"
    assert main(inspect[1:]) == ExitCode.CONSISTENT
    assert (pytester.path / "report.html").exists()
