"""The page: its content, pictures, escaping and reproducibility."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from bs4 import BeautifulSoup

from attncheck.checks.claims import CLAIMS
from attncheck.diagnosis.causes import stage
from attncheck.evidence.plot_data import cdf_of_two, cdf_of_uniform, positions, profile, read_plot
from attncheck.records.explanation import Certainty, Explanation
from attncheck.records.schema import Result, read
from attncheck.records.tallies import tallied
from attncheck.report.intervals import by_case
from attncheck.report.page import render_report
from attncheck.report.results import of_result
from attncheck.report.svg import BAD
from tests.recorded import Recorded, make_result, results_in, write_record

from .conftest import LAYERS, render, text_of, violated_result

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


VIOLATED, DOUBLED = violated_result(), make_result(layer=LAYERS[0])
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
        [VIOLATED],
        causes("the mask leaks", "W_Q is half"),
        {"verdict": ["departs from the theorem: the mask leaks; score", "Or W_Q is half"]},
    ),
    "an observation that is a cause is not repeated": Page(
        [VIOLATED],
        causes("scores: score variance by head: 1, 2 times"),
        {"verdict": ["theorem: scores: score variance by head: 1, 2 times."]},
    ),
    "a cause may be a question": Page(
        [VIOLATED],
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
    "or than its results": Page([VIOLATED], {"closing": {"verdict": "consistent"}}, {"": ["departs from the theorem"]}),
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
            assert text in text_of(page, section)
    assert absent not in text_of(page)


def in_order(page: BeautifulSoup, *wanted: str) -> bool:
    """Return whether elements of the verdict come in this order, with gaps."""
    rest = iter(page.select("section#verdict *"))
    return all(any(element.css.match(selector) for element in rest) for selector in wanted)


def test_clean_run(clean_record: Path) -> None:
    """The verdict with its budget, what was not examined and what would have been seen; the map; all claims."""
    page = render(clean_record)
    verdict, claims = text_of(page, "verdict"), text_of(page, "claims")
    assert [section["id"] for section in page.find_all("section")] == ["verdict", "claims", "space", "provenance"]
    assert in_order(page, "div.box.consistent", "h2", "div.first", "ul", "figure.map", "details")
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
        assert text in text_of(page)


def test_faulty_run(faulty_record: Path) -> None:
    """On the first screen sentence, picture, smallest layer and replay; the same among the failures."""
    page, smallest = render(faulty_record), violated_result(layer=LAYERS[2])
    assert in_order(page, "div.box.violated", "h2", "div.first", "figure", "dl.facts", "pre.copy", "details")
    assert not page.select("section#verdict figure.map")
    sentence, _, rest = text_of(page, "verdict").partition("declared 1.")
    assert f"mine:simulate departs from the theorem: {HINT}" in sentence
    assert sentence.endswith("; score variance 0.25 [0.24, 0.26], ")
    assert "Layer n=2 s=5 H=1 causal, the smallest of them" in rest
    assert "Return value_gram too: up to 1 more result." in rest
    failures = text_of(page, "failures")
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
    headings = [text_of(page, "failures").index(word) for word in ("Sharp", "Blunt", "Limit")]
    assert headings == sorted(headings)
    assert "departs from the theorem: sharp" in text_of(page, "verdict")


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
    records = [long_record(tmp_path / f"{lines}.jsonl", lines) for lines in (100, 2_000)]
    command = [sys.executable, "-c", RENDER, *map(str, (faulty_record, *records))]
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": other, "TZ": "UTC5"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True, text=True)
    _, before, peak = map(int, done.stdout.split())
    assert peak - before < 16 * 1024  # KiB
    assert "2,000 planned results examined on 1 claim" in (tmp_path / "2000.html").read_text(encoding="utf-8")
    here = render_report(faulty_record, out=tmp_path / "here.html")
    assert here.read_bytes() == (tmp_path / "faulty.html").read_bytes()


def test_order_of_lines_does_not_show(tmp_path: Path, faulty_record: Path) -> None:
    manifest, *results = list(read(faulty_record))[:-1]
    pages = []
    for ordered in (results, results[::-1]):
        record = write_record(tmp_path / "record.jsonl", ordered, planned=manifest.planned)
        pages.append(render_report(record, out=tmp_path / "page.html").read_bytes())
    assert pages[0] == pages[1]


# Real runs; tests/pytest_plugin renders pages of pytest's


def test_right_simulator_gets_pictures_of_its_draws(recorded: Recorded, tmp_path: Path) -> None:
    page = render_report(recorded.right, out=tmp_path / "page.html").read_text(encoding="utf-8")
    assert "behaves as the theorem says" in page
    for words in ("expected density of scores.", "expected density of conditional.", "stays inside its 99% band"):
        assert words in page
    assert recorded.right.stat().st_size < 1_700 * len(results_in(recorded.right))


# Pictures: what they show and say -----------------------------------------------------------------


RNG = np.random.default_rng(12)


def test_first_picture_is_that_of_the_first_cause(tmp_path: Path) -> None:
    seen = msgspec.to_builtins(positions(np.tri(3, k=1), np.tri(3), "input", "Inputs that change the outputs"))
    missing = {**seen, "rows": seen["rows"][1:]}
    for number, plot in enumerate((seen, missing, {"kind": "hologram"})):
        closing = {"explanations": [Explanation("position 0 attends to 0 and 1", Certainty.EXACT, plot=plot)]}
        page = render(write_record(tmp_path / f"{number}.jsonl", [violated_result()], closing=closing))
        found = [image for image in page.find_all("img") if "Inputs that change" in str(image["alt"])]
        assert len(found) == (plot is seen)
        assert ("by case with 99% intervals" in text_of(page, "verdict")) is (plot is not seen)
        if found:
            assert "2 of 9 differ, first at query 0 and input 1: 1 is observed, 0 is" in str(found[0]["alt"])


def test_map_keeps_violated_layers_and_says_how_many_are_left_out(tmp_path: Path) -> None:
    layers = [LAYERS[0].replace(width=width) for width in range(2, 62)]
    results = [make_result(layer=layer) for layer in layers[:-1]] + [violated_result(layer=layers[-1])]
    text = text_of(render(write_record(tmp_path / "many.jsonl", results)), "claims")
    assert "1 claim on 40 cases" in text
    assert "20 other cases not shown" in text
    assert text.partition("not shown")[2].count("✗") == 3  # the cell, the claim and the check


def test_effects_by_case_are_drawn_and_told(tmp_path: Path) -> None:
    tally = tallied([make_result(layer=LAYERS[0]), violated_result(layer=LAYERS[1], mde=1.5)])["scores.scale"]
    drawing = by_case(tally)
    assert drawing is not None
    assert drawing.caption.endswith("by case with 99% intervals. Shaded: too small to be detected")
    wrong, right = drawing.alt.partition("detected: ")[2].split("; ")
    assert wrong.startswith(f"{LAYERS[1].describe()}: 0.25 [0.23,")
    assert right.startswith(f"{LAYERS[0].describe()}: ")
    svg = base64.b64decode(drawing.source.partition(",")[2]).decode()
    assert svg.count(BAD) > 0  # the violated one
    assert f">{LAYERS[0].describe()}</text>" in svg


def test_every_picture_says_its_message_in_words(clean_record: Path, faulty_record: Path) -> None:
    for record in (clean_record, faulty_record):
        images = render(record).find_all("img")
        assert len(images) >= 5
        for image in images:
            assert len(str(image["alt"])) > 80
            assert re.search(r"\d", str(image["alt"]))
            assert str(image["src"]).startswith("data:image/svg+xml;base64,")
        texts = " ".join(str(image["alt"]) for image in images)
        for words in ("distribution function", "expected density of scores.law", "expected density of scores.size"):
            assert words in texts


EVEN = (np.arange(1000) + 0.5) / 1000
FEW_LOW = np.sort(np.append(np.full(9, 1e-5), RNG.random(991)))
FEW = r"too few values lie (below|above), 0 of 4,000 where the band has"
OURS, THEIRS = np.sort(RNG.standard_normal(500) + 1.0), np.sort(RNG.standard_normal(2000))
SIZE = "Kolmogorov distance of the log size of scores from its law: 0.4 [0.3, 0.5], expected 0"
MEDIAN = f"{np.median(np.concatenate([OURS, THEIRS])):.2g}"


@pytest.mark.parametrize(
    ("result", "caption", "labels"),
    [
        (make_result("scores.law", plot=cdf_of_uniform(FEW_LOW, 0.0)), r"too many values lie below, 9 of", []),
        (make_result("scores.law", plot=cdf_of_uniform(np.sort(1.0 - FEW_LOW), 0.0)), r"at quantile 1 − .*above", []),
        (make_result("scores.law", plot=cdf_of_uniform(0.01 + 0.98 * np.sort(RNG.random(4000)), 0.0)), FEW, []),
        (
            make_result("scores.law", plot=cdf_of_uniform(EVEN, 0.0)),
            "stays inside its 99% band$",
            [">−3.7<", ">0<", ">3.7<", ", on the scale of N(0, 1)<"],
        ),
        (
            make_result("scores.size", plot=cdf_of_two(OURS, THEIRS, np.zeros_like), text=SIZE, effect=0.4),
            r"leaves its 99% band, .*: too (few values lie below|many values lie above), \d+ of 500",
            [">the log size of scores<", f">{MEDIAN}<"],
        ),
    ],
    ids=["below", "above", "few", "inside", "two samples"],
)
def test_picture_names_where_a_law_leaves_its_band(result: Result, caption: str, labels: list[str]) -> None:
    drawing = of_result(result)
    assert drawing is not None
    assert re.search(caption, drawing.caption)
    assert ("too" in drawing.alt) == ("too" in drawing.caption)
    svg = base64.b64decode(drawing.source.partition(",")[2]).decode()
    assert all(f"{label}/text>" in svg for label in labels)


def test_pictures_that_cannot_be_drawn_are_left_out(tmp_path: Path) -> None:
    counts: dict[str, object] = {"kind": "counts", "below": [2] * 63, "count": 3}
    paired: dict[str, object] = {"kind": "counts", "count": 3, "against": 3, "below": [1, 2], "pooled": [2, 4]}
    paired["labels"] = [1.0] * 7
    estimates = msgspec.to_builtins(profile([0.0], [1.0], [0.1], 1.0, "head", "score variance"))
    entries = msgspec.to_builtins(positions(np.eye(2), np.eye(2), "key", "attention weights"))
    assert all(read_plot(plot) for plot in (counts, paired, estimates, entries))
    plots: list[dict[str, object]] = [
        {"kind": "hologram"},
        {"kind": "cdf", "difference": [0.0], "band": 0.1, "count": 3},
        counts | {"below": [1]},
        counts | {"count": 10**12},
        counts | {"below": [*[2] * 62, 1]},
        paired | {"below": [1], "pooled": [1, 2]},
        paired | {"below": [1, 3], "pooled": [2, 6]},
        paired | {"labels": [1.0]},
        estimates | {"observed": [1e300]},
        estimates | {"expected": [0.5, 0.5]},
        estimates | {"indices": [1.0, 2.0]},
        entries | {"rows": [0, 1, 10**9]},
    ]
    results = [make_result(f"scores.{number}", plot=plot) for number, plot in enumerate(plots)]
    assert not render(write_record(tmp_path / "bad.jsonl", results)).find_all("img")
