"""The page: its content, escaping and reproducibility."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.checks.claims import CLAIMS
from attncheck.diagnosis.causes import stage
from attncheck.records.explanation import Certainty, Explanation
from attncheck.records.schema import Result, read
from attncheck.report.page import render_report
from tests.recorded import Recorded, make_result, results_in, write_record

from .conftest import LAYERS, violated_result
from .page import render

# What it says ------------------------------------------------------------------------------------


def causes(*texts: str) -> dict[str, Any]:
    """Return the fields of a record with explanations."""
    return {"closing": {"explanations": [Explanation(text, Certainty.FITTED) for text in texts]}}


class Page(NamedTuple):
    """A record, and what its page says by section, and does not say."""

    results: Sequence[Result]
    record: dict[str, Any]
    says: dict[str, Sequence[str]]
    not_says: str = "another text"


BAD, DOUBLED = violated_result(), make_result(layer=LAYERS[0])
OTHER = make_result(layer=LAYERS[1])
SINGLE = [make_result(layer=layer) for layer in LAYERS]
POOL = msgspec.structs.replace(
    violated_result(id="scores.scale@all", item="scores@all", diagnosis=[]),
    case={"pool": "all", "of": [result.item.partition("@")[2] for result in SINGLE]},
)
UNEXAMINED = [make_result(layer=layer, p_values=[], verdict="not examined", reason="no") for layer in LAYERS[1:]]
SKEWED = [
    make_result(p_values=[0.02], layer=LAYERS[0].replace(width=width), item=f"scores@{width:012x}")
    for width in range(16, 56)
]
HINT = "the standard deviation of W_Q differs"
NO_DIGEST = "none: the draws are not reproducible"
NAN = "subject['outputs'][0]=nan: is not finite; mend the simulator"
PAGES = {
    "fitted causes stand before what checks point at": Page(
        [BAD],
        causes("the mask leaks", "W_Q is half"),
        {"verdict": ["departs from the theorem: the mask leaks; score", "Or W_Q is half"]},
    ),
    "an observation that is a cause is not repeated": Page(
        [BAD],
        causes("scores: score variance by head: 1, 2 times"),
        {"verdict": ["theorem: scores: score variance by head: 1, 2 times."]},
    ),
    "a cause may be a question": Page(
        [BAD],
        causes("W_Q is half: He's?"),
        {"verdict": ["departs from the theorem: W_Q is half: He's? Score variance 0.25"]},
    ),
    "a pool that is violated alone is told as any failure": Page(
        [*SINGLE, POOL],
        {},
        {
            "verdict": [f"departs from the theorem: {HINT}", "attncheck replay", "scores.scale@all"],
            "failures": ["3 cases together"],
        },
    ),
    "a subject that fails is told first": Page(
        [],
        {"planned": [DOUBLED], "closing": {"verdict": "incomplete", "failed": [NAN]}},
        {"verdict": [f"is incomplete, which is not a pass: {NAN}."]},
    ),
    "layers on which nothing was examined were not visited": Page(
        [DOUBLED, *UNEXAMINED], {}, {"": ["1 case"]}, f"{len(LAYERS)} cases"
    ),
    "inconclusive": Page(
        [make_result(verdict="inconclusive", p_values=[1e-5, 1e-5, 0.3])],
        {},
        {"": ["is inconclusive, which is not a pass", "inconclusive: "]},
    ),
    "not uniform": Page(SKEWED, {}, {"": ["40 test items are not uniform", "errors, which leaves its 99% band"]}),
    "no better than the closing line": Page(
        [DOUBLED],
        {"closing": {"verdict": "inconclusive", "reasons": ["blocks are too small"]}},
        {"": ["is inconclusive", "blocks are too small"]},
    ),
    "nor than the results": Page([BAD], {"closing": {"verdict": "consistent"}}, {"": ["departs from the theorem"]}),
    "draws that are not reproducible have no digest": Page([make_result(repeatable=False)], {}, {"": [NO_DIGEST]}),
    "reproducible draws have one": Page([DOUBLED], {}, {"": ["1 claim"]}, NO_DIGEST),
    "a killed run": Page(
        [DOUBLED],
        {"planned": [DOUBLED, OTHER], "close": False},
        {"": ["is incomplete, which is not a pass", "the run did not finish", "1 planned result is missing"]},
    ),
    "a run killed after its first line": Page(
        [], {"planned": [DOUBLED], "close": False}, {"": ["is incomplete", "nothing was examined"]}
    ),
    "duplicated and unplanned results": Page(
        [DOUBLED, DOUBLED, OTHER],
        {"planned": [DOUBLED]},
        {"": ["1 result is reported more than once", f"1 result is reported but not planned: {OTHER.check}"]},
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_page_says(tmp_path: Path, name: str) -> None:
    results, record, says, absent = PAGES[name]
    page = render(write_record(tmp_path / "record.jsonl", results, **record))
    for section, texts in says.items():
        for text in texts:
            assert text in page.text(section)
    assert absent not in page.text()


def in_order(elements: list[str], *wanted: str) -> bool:
    """Return whether elements come in this order, with gaps."""
    rest = iter(elements)
    return all(any(element == name for element in rest) for name in wanted)


def test_clean_run(clean_record: Path) -> None:
    """The verdict with its budget, what was not examined and what would have been seen; the map; all claims."""
    page = render(clean_record)
    verdict, claims = page.text("verdict"), page.text("claims")
    assert [attributes["id"] for attributes in page.all("section")] == ["verdict", "claims", "space", "provenance"]
    assert in_order(page.first, "div.box consistent", "h2", "div.first", "ul", "figure.map", "details")
    for text in (
        "mine:simulate behaves as the theorem says",
        "false-alarm probability set to 1e-06 before the run",
        "the subject does not expose value_gram: conditional.law",
        "Smallest detectable error in variance: 3% on the median layer",  # a gap of 1.03
        "Not ruled out: smaller errors",
    ):
        assert text in verdict
    marks = verdict.partition("5 claims on")[2]
    assert marks.count("✓") - 1 == 3 + 4  # without the key: scores on three layers, four claims on one
    for title in ("Check", "Effect", "Minimum detectable effect", "Examined", "Verdict"):
        assert title in claims
    for text in ("numpy 2.1.0", "12.5 s", "1.001 [0.981, 1.021], expected 1", "relu not visited"):
        assert text in page.text()


def test_faulty_run(faulty_record: Path) -> None:
    """On the first screen sentence, picture, smallest layer and replay; the same among the failures."""
    page, smallest = render(faulty_record), violated_result(layer=LAYERS[2])
    assert in_order(page.first, "div.box violated", "h2", "div.first", "figure", "dl.facts", "pre.copy", "details")
    assert "figure.map" not in page.first
    sentence, _, rest = page.text("verdict").partition("declared 1.")
    assert f"mine:simulate departs from the theorem: {HINT}" in sentence
    assert sentence.endswith("; score variance 0.25 [0.24, 0.26], ")
    assert "Layer n=2 s=5 H=1 causal, the smallest of them" in rest
    assert "Return value_gram too: up to 1 more result." in rest
    failures = page.text("failures")
    for text in (rest, failures):
        assert f"attncheck replay {faulty_record} {smallest.id}" in text
    assert "Smallest of them: n=2 s=5 H=1 causal" in failures
    assert "1e-09 , 1e-08 , 1e-09 , at the level 0.0005 of one look" in failures


def test_sharpest_violation_comes_first_whatever_its_p_values(tmp_path: Path) -> None:
    texts: dict[str, Any] = {"hint": "blunt", "text": "blunt: 0.5 ["}
    blunt = violated_result("scores.size", effect=0.5, low=0.1, high=0.9, null_effect=0.0, **texts)
    sharp = violated_result("scores.scale", p_values=[1e-4] * 3, hint="sharp", combined=1e-12)
    limit = violated_result("inputs.limit", kind="limit", effect=9.0, low=8.999, high=9.001, hint="limit")
    page = render(write_record(tmp_path / "run.jsonl", [blunt, sharp, limit]))
    headings = [page.text("failures").index(word) for word in ("Sharp", "Blunt", "Limit")]
    assert headings == sorted(headings)
    assert "departs from the theorem: sharp" in page.text("verdict")


def test_every_claim_has_its_place_along_the_computation() -> None:
    assert [stage(claim)[0] for claim in [*CLAIMS, "a claim of somebody else"]] == list(range(len(CLAIMS) + 1))


# The same bytes, few of them, in little memory ---------------------------------------------------


def long_record(path: Path, lines: int) -> Path:
    result = make_result()
    names = [(f"scores.scale@{number:012x}", f"scores@{number // 8:012x}") for number in range(lines)]
    results = [msgspec.structs.replace(result, id=id, item=item) for id, item in names]
    return write_record(path, results, close=False)


# Prints the peak memory after each page. Not resource.getrusage, whose peak includes the parent's.
RENDER = """
import re, sys
from pathlib import Path
from attncheck.report.page import render_report

for record in map(Path, sys.argv[1:]):
    render_report(record, out=Path(record.name).with_suffix(".html"))
    print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
def test_another_process_makes_the_same_bytes_with_few_kilobytes_per_line(tmp_path: Path, faulty_record: Path) -> None:
    records = [long_record(tmp_path / f"{lines}.jsonl", lines) for lines in (100, 4_000)]
    command = [sys.executable, "-c", RENDER, *map(str, (faulty_record, *records))]
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": other, "TZ": "UTC5"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True, text=True)
    _, before, peak = map(int, done.stdout.split())
    assert peak - before < 33 * 1024  # KiB
    assert "4,000 planned results examined on 1 claim" in (tmp_path / "4000.html").read_text(encoding="utf-8")
    here = render_report(faulty_record, out=tmp_path / "here.html")
    assert here.read_bytes() == (tmp_path / "faulty.html").read_bytes()


def test_order_of_lines_does_not_show(tmp_path: Path, faulty_record: Path) -> None:
    manifest, *results = list(read(faulty_record))[:-1]
    pages = []
    for ordered in (results, results[::-1]):
        record = write_record(tmp_path / "record.jsonl", ordered, planned=manifest.planned)
        pages.append(render_report(record, out=tmp_path / "page.html").read_bytes())
    assert pages[0] == pages[1]


# Real runs: through the plugin, with faults, and with failures to write

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
        # A page that cannot be made hides no verdict, and is no pass.
        ("attncheck.faults:half_precision_scores", ExitCode.VIOLATED, ""),
        ("attncheck.subject:direct", ExitCode.UNUSABLE, ""),
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
        assert "Report: not written, out=" in finished.stdout.str()
        verdict = "VIOLATED" if code == ExitCode.VIOLATED else "CONSISTENT"
        assert f"{verdict}: {subject}" in finished.stdout.str()
