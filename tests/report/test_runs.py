"""Reports of real runs: through the plugin, with faults, and with failures to write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.layers.attention import AttentionLayer
from attncheck.report import render_report
from attncheck.runs.options import RunOptions
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
LAYERS = [AttentionLayer(width=8, seq_len=3, num_heads=2), AttentionLayer(width=4, seq_len=2, num_heads=1)]


def record_of(path: Path, subject: str, *properties: str, layers: Sequence[AttentionLayer] = LAYERS) -> Path:
    """Examine some properties on small layers, and return the record."""
    run = Run.of(RunOptions(subject=subject, seed=3, profile="smoke", record=path))
    items = [item for name in properties for item in run.items_on(name, layers)]
    report = RunReport(run.planning(item.id for item in items))
    for item in items:
        report.take(report.run.examine([item]))
    report.finish()
    return path


# Headings come from violated checks; causes take as long again, and are tested elsewhere.
@pytest.mark.sampled
@pytest.mark.usefixtures("no_causes")
@pytest.mark.parametrize(
    ("fault", "properties", "words"),
    [
        ("scores_over_n", ["scores"], ["the standard deviation of W_Q or the score scaling differs", "declared 1"]),
        ("tied_query_key", ["scores"], ["W_Q and W_K are not independent"]),
        ("value_std_10", ["conditional"], ["the standard deviation of W_V differs from the declared one"]),
        ("half_precision_scores", ["draws"], ["scores were rounded to half precision"]),
        ("repeated_stream", ["draws"], ["random streams repeat"]),
    ],
)
def test_fault_is_named_first(tmp_path: Path, fault: str, properties: list[str], words: list[str]) -> None:
    # One layer: diagnosing violated layers takes most of the time.
    record = record_of(tmp_path / "record.jsonl", f"attncheck.faults:{fault}", *properties, layers=LAYERS[:1])
    page = render_report(record, out=tmp_path / "page.html").read_text(encoding="utf-8")
    verdict, _, failures = page.partition('id="failures"')
    assert words[0][1:] in failures.partition("<h3>")[2].partition("</h3>")[0]  # a heading begins with a capital
    for word in words[1:]:
        assert word in verdict


def test_right_simulator_gets_pictures_of_its_draws(tmp_path: Path) -> None:
    subject, names = "attncheck.subject:collapsed", ("scores", "conditional", "outputs")
    record = record_of(tmp_path / "record.jsonl", subject, *names, layers=LAYERS[:1])
    page = render_report(record, out=tmp_path / "page.html").read_text(encoding="utf-8")
    assert "behaves as the theorem says" in page
    for words in ("expected density of scores.", "expected density of conditional.", "stays inside its 99% band"):
        assert words in page
    assert record.stat().st_size < 100_000


def run_pytest(pytester: pytest.Pytester, page: Path, *options: str) -> pytest.RunResult:
    """Run the property of draws on causal layers, in this process."""
    command = [str(ROOT / "properties" / "test_draws.py"), "-k", "causal", "-p", "no:cacheprovider"]
    command += ["--attncheck-profile", "smoke", "--attncheck-record", str(pytester.path / "record.jsonl")]
    return pytester.runpytest_inprocess(*command, "--attncheck-report", str(page), *options)


@pytest.fixture
def place(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("ATTNCHECK_SUBJECT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    return pytester


def test_plugin_renders_the_page_at_the_end(place: pytest.Pytester) -> None:
    page = place.path / "out" / "page.html"
    finished = run_pytest(place, page)
    assert finished.ret == 0, finished.outlines
    assert f"Report: {page}" in finished.outlines
    assert "behaves as the theorem says" in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("verdicts_only")
def test_page_that_cannot_be_made_does_not_hide_the_verdict(place: pytest.Pytester) -> None:
    (place.path / "page.html").mkdir()
    subject = "attncheck.faults:half_precision_scores"
    finished = run_pytest(place, place.path / "page.html", "--attncheck-subject", subject)
    assert finished.ret == 1
    said = finished.stdout.str()
    assert "VIOLATED: attncheck.faults:half_precision_scores" in said
    assert "Report: not written, InputError" in said


def test_page_of_a_subject_that_fails_begins_with_its_error(place: pytest.Pytester) -> None:
    returns = "{'outputs': np.full((size, layer.seq_len, 1), np.nan)}"
    place.makepyfile(broken=f"import numpy as np\ndef simulate(layer, size, rng): return {returns}")
    place.syspathinsert()
    page = place.path / "page.html"
    assert run_pytest(place, page, "--attncheck-subject", "broken:simulate").ret == ExitCode.UNUSABLE
    found = page.read_text(encoding="utf-8").partition("<h2")[2].partition("</h2>")[0]
    assert (
        "The run on broken:simulate is incomplete, which is not a pass: subject[&#39;outputs&#39;][0, 0, 0]=nan"
        in found
    )
