"""Reports of real runs: through the plugin, with faults, and with failures to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.report import render_report
from tests.recorded import Recorded, results_in

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]


def test_right_simulator_gets_pictures_of_its_draws(recorded: Recorded, tmp_path: Path) -> None:
    page = render_report(recorded.right, out=tmp_path / "page.html").read_text(encoding="utf-8")
    assert "behaves as the theorem says" in page
    for words in ("expected density of scores.", "expected density of conditional.", "stays inside its 99% band"):
        assert words in page
    assert recorded.right.stat().st_size < 1_700 * len(results_in(recorded.right))


#: Subjects, the verdict of a run, and what its page says in its heading.
FAILING = """
import numpy as np

def simulate(layer, size, rng):
    return {"outputs": np.full((size, layer.seq_len, 1), np.nan)}
"""
ERROR = "run on broken:simulate is incomplete, which is not a pass: subject[&#39;outputs&#39;][0, 0, 0]=nan"


@pytest.mark.usefixtures("verdicts_only")
@pytest.mark.parametrize(
    ("subject", "code", "heading"),
    [
        ("attncheck.subject:direct", 0, "behaves as the theorem says"),
        ("broken:simulate", ExitCode.UNUSABLE, ERROR),
        # A page that cannot be made hides no verdict.
        ("attncheck.faults:half_precision_scores", ExitCode.VIOLATED, ""),
    ],
)
def test_plugin_renders_the_page_at_the_end(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, subject: str, code: int, heading: str
) -> None:
    """The property of draws on causal layers, in this process."""
    for name in ("ATTNCHECK_SUBJECT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(broken=FAILING)
    pytester.syspathinsert()
    page = pytester.path / "out" / "page.html"
    if not heading:
        page.mkdir(parents=True)
    command = [str(ROOT / "properties" / "test_draws.py"), "-k", "causal", "-p", "no:cacheprovider"]
    command += ["--attncheck-profile", "smoke", "--attncheck-record", str(pytester.path / "record.jsonl")]
    finished = pytester.runpytest_inprocess(*command, "--attncheck-report", str(page), "--attncheck-subject", subject)
    assert finished.ret == code, finished.outlines
    if heading:
        assert f"Report: {page}" in finished.outlines
        assert heading in page.read_text(encoding="utf-8").partition("<h2")[2].partition("</h2>")[0]
    else:
        assert "Report: not written, InputError" in finished.stdout.str()
        assert f"VIOLATED: {subject}" in finished.stdout.str()
