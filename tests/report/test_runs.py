"""Reports of real runs: through the plugin, with faults, and with failures to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.report import render_report
from tests.recorded import SMALL, Recorded, examine, results_in

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]


# Headings come from violated checks; causes take as long again, and are tested elsewhere.
@pytest.mark.sampled
@pytest.mark.usefixtures("no_causes")
@pytest.mark.parametrize(
    ("fault", "name", "heading"),
    [
        ("scores_over_n", "scores", "the standard deviation of W_Q or the score scaling differs"),
        ("tied_query_key", "scores", "W_Q and W_K are not independent"),
        ("value_std_10", "conditional", "the standard deviation of W_V differs from the declared one"),
        ("half_precision_scores", "draws", "scores were rounded to half precision"),
        ("repeated_stream", "draws", "random streams repeat"),
    ],
)
def test_fault_is_named_first(tmp_path: Path, fault: str, name: str, heading: str) -> None:
    # One layer: diagnosing violated layers takes most of the time.
    examine(tmp_path / "record.jsonl", f"attncheck.faults:{fault}", [name], SMALL[:1])
    page = render_report(tmp_path / "record.jsonl", out=tmp_path / "page.html").read_text(encoding="utf-8")
    verdict, _, failures = page.partition('id="failures"')
    assert heading[1:] in failures.partition("<h3>")[2].partition("</h3>")[0]  # a heading begins with a capital
    assert fault != "scores_over_n" or "declared 1" in verdict


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
