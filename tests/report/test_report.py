"""The page: its content, escaping and reproducibility."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from attncheck._lib.errors import InputError
from attncheck.checks.claims import CLAIMS
from attncheck.checks.registry import CHECKS
from attncheck.diagnosis.causes import stage
from attncheck.looks.profiles import ANCHORS
from attncheck.records.explanation import Certainty, Explanation
from attncheck.records.schema import PlannedResult, read
from attncheck.report import render_report

from .conftest import LAYERS, long_record, make_result, plotted_results, violated_result, write_record
from .page import in_order, render

# What it says ------------------------------------------------------------------------------------


def test_clean_run_says_so_with_its_budget_and_what_was_not_examined(clean_record: Path) -> None:
    page = render(clean_record)
    text = page.text
    assert "mine:simulate behaves as the theorem says" in page.section("verdict")
    assert "false-alarm probability set to 1e-06 before the run" in page.section("verdict")
    assert "the subject does not expose value_gram: conditional.law" in page.section("verdict")
    assert not page.section("failures")
    assert "numpy 2.1.0" in text
    assert "12.5 s" in text


def test_fault_can_be_named_from_the_verdict_alone(faulty_record: Path) -> None:
    page = render(faulty_record)
    assert "mine:simulate departs from the theorem: the standard deviation of W_Q differs" in page.section("verdict")
    assert "score variance 0.25 [0.24, 0.26], declared 1" in page.section("verdict")


def test_first_screen_of_a_violated_run_has_sentence_picture_layer_and_replay(faulty_record: Path) -> None:
    page = render(faulty_record)
    assert in_order(page.first, "div.box violated", "h2", "div.first", "figure", "dl.facts", "pre.copy", "details")
    assert "figure.map" not in page.first
    text, smallest = page.section("verdict"), violated_result(layer=LAYERS[2])
    sentence, _, rest = text.partition("declared 1.")
    assert sentence.endswith("; score variance 0.25 [0.24, 0.26], ")
    assert "Layer n=2 s=5 H=1 causal, the smallest of them" in rest
    assert f"attncheck replay {faulty_record} {smallest.id}" in rest
    assert "Return value_gram too: up to 1 more result." in rest


def test_first_screen_of_a_consistent_run_has_what_would_have_been_seen_and_the_map(clean_record: Path) -> None:
    page = render(clean_record)
    assert in_order(page.first, "div.box consistent", "h2", "div.first", "ul", "figure.map", "details")
    seen = page.section("verdict").partition("Smallest detectable ")[2]
    assert seen.startswith("error in variance: 3% on the median layer")  # a gap of 1.03
    assert "Not ruled out: smaller errors" in seen
    verdicts = page.section("verdict").partition("5 claims on")[2]
    assert verdicts.count("✓") - 1 == 3 + 4  # without the key: scores on three layers, four claims on one


def test_sharpest_violation_comes_first_whatever_its_p_values(tmp_path: Path) -> None:
    blunt = violated_result(
        "scores.size", effect=0.5, low=0.1, high=0.9, null_effect=0.0, hint="blunt", text="blunt: 0.5 ["
    )
    sharp = violated_result("scores.scale", p_values=[1e-4] * 3, hint="sharp", combined=1e-12)
    limit = violated_result(
        "outputs.limit", kind="limit", claim="limit", effect=9.0, low=8.999, high=9.001, hint="limit"
    )
    page = render(write_record(tmp_path / "run.jsonl", [blunt, sharp, limit]))
    headings = [page.section("failures").index(word) for word in ("Sharp", "Blunt", "Limit")]
    assert headings == sorted(headings)
    assert "departs from the theorem: sharp" in page.section("verdict")


def test_fitted_causes_stand_before_what_checks_point_at(tmp_path: Path) -> None:
    for causes, words in (
        (["the mask leaks", "W_Q is half"], ["departs from the theorem: the mask leaks; score", "Or W_Q is half"]),
        (["scores: score variance by head: 1, 2 times"], ["theorem: scores: score variance by head: 1, 2 times."]),
        (["W_Q is half: He's?"], ["departs from the theorem: W_Q is half: He's? Score variance 0.25"]),
    ):
        closing = {"explanations": [Explanation(text, Certainty.FITTED) for text in causes]}
        record = write_record(tmp_path / f"{len(words[0])}.jsonl", [violated_result()], closing=closing)
        for word in words:
            assert word in render(record).section("verdict")


def test_pool_that_is_violated_alone_is_told_as_any_failure(tmp_path: Path) -> None:
    single = [make_result(layer=layer) for layer in LAYERS]
    of = {"pool": "all", "of": [each.item.partition("@")[2] for each in single]}
    pool = violated_result(id="scores.scale@all", item="scores@all", diagnosis=[])
    page = render(write_record(tmp_path / "pool.jsonl", [*single, msgspec.structs.replace(pool, case=of)]))
    assert "departs from the theorem: the standard deviation of W_Q differs" in page.section("verdict")
    assert "attncheck replay" in page.section("verdict")
    assert "scores.scale@all" in page.section("verdict")
    assert "3 cases together" in page.section("failures")


def test_subject_that_fails_is_told_first(tmp_path: Path) -> None:
    owed = [PlannedResult("scores.scale@0", "scores@0", "scores.scale")]
    closing = {"verdict": "incomplete", "failed": ["subject['outputs'][0]=nan: is not finite; mend the simulator"]}
    text = render(write_record(tmp_path / "nan.jsonl", [], planned=owed, closing=closing)).section("verdict")
    assert "is incomplete, which is not a pass: subject['outputs'][0]=nan: is not finite; mend the simulator." in text


def test_failures_have_smallest_layer_and_replay(faulty_record: Path) -> None:
    text = render(faulty_record).section("failures")
    smallest = violated_result(layer=LAYERS[2])
    assert f"attncheck replay {faulty_record} {smallest.id}" in text
    assert "Smallest of them: n=2 s=5 H=1 causal" in text
    assert "1e-09 , 1e-08 , 1e-09 , at the level 0.0005 of one look" in text


def test_claims_table_has_all_columns(clean_record: Path) -> None:
    page = render(clean_record)
    for title in ("Check", "Effect", "Minimum detectable effect", "Examined", "Verdict"):
        assert title in page.section("claims")
    assert "1.001 [0.981, 1.021], expected 1" in page.text


def test_every_claim_has_its_place_along_the_computation() -> None:
    assert [stage(claim)[0] for claim in [*CLAIMS, "a claim of somebody else"]] == list(range(len(CLAIMS) + 1))


def test_sections_come_in_reading_order(clean_record: Path) -> None:
    ids = [attributes["id"] for attributes in render(clean_record).all("section")]
    assert ids == [
        "verdict",
        "claims",
        "space",
        "provenance",
    ]


def test_unvisited_choices_are_listed(clean_record: Path) -> None:
    assert "relu not visited" in render(clean_record).text


def test_layers_on_which_nothing_was_examined_were_not_visited(tmp_path: Path) -> None:
    tried = [make_result(layer=LAYERS[0])]
    left = [make_result(layer=layer, p_values=[], verdict="not examined", reason="no") for layer in LAYERS[1:]]
    path = write_record(tmp_path / "run.jsonl", [*tried, *left])
    assert "1 case" in render(path).text
    assert f"{len(LAYERS)} cases" not in render(path).text


def test_inconclusive_and_not_uniform_runs_are_not_passes(tmp_path: Path) -> None:
    doubtful = make_result(verdict="inconclusive", p_values=[1e-5, 1e-5, 0.3])
    text = render(write_record(tmp_path / "doubt.jsonl", [doubtful])).text
    assert "is inconclusive, which is not a pass" in text
    assert "inconclusive: " in text
    skewed = [
        make_result(p_values=[0.02], layer=LAYERS[0].replace(width=width), item=f"scores@{width:012x}")
        for width in range(16, 56)
    ]
    text = render(write_record(tmp_path / "skew.jsonl", skewed)).text
    assert "departs from the theorem" in text
    assert "40 test items are not uniform" in text


def test_verdict_is_never_better_than_the_closing_line(tmp_path: Path) -> None:
    closing = {"verdict": "inconclusive", "reasons": ["blocks are too small"]}
    text = render(write_record(tmp_path / "few.jsonl", [make_result()], closing=closing)).text
    assert "is inconclusive" in text
    assert "blocks are too small" in text
    better = write_record(tmp_path / "better.jsonl", [violated_result()], closing={"verdict": "consistent"})
    assert "departs from the theorem" in render(better).text


# Hostile and broken input ------------------------------------------------------------------------


def test_hostile_names_are_text(hostile_record: Path) -> None:
    page = render(hostile_record)
    assert not page.all("script")
    assert all(str(image["src"]).startswith("data:") for image in page.all("img"))
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text
    assert "{{7*7}}" in page.text
    assert "\x00" not in page.text


@pytest.mark.parametrize("kept", [1, 2, 4])
def test_killed_runs_are_incomplete(tmp_path: Path, clean_record: Path, kept: int) -> None:
    lines = clean_record.read_bytes().splitlines(keepends=True)
    killed = tmp_path / "killed.jsonl"
    killed.write_bytes(b"".join(lines[:kept]) + lines[kept][:50])
    text = render(killed).text
    assert "is incomplete, which is not a pass" in text
    assert "the run did not finish" in text
    missing = f"{len(lines) - 1 - kept} planned results are missing"
    assert (missing if kept > 1 else "nothing was examined") in text


@pytest.mark.parametrize("repeatable", [True, False])
def test_draws_that_are_not_reproducible_have_no_digest(tmp_path: Path, repeatable: bool) -> None:
    record = write_record(tmp_path / "draws.jsonl", [make_result(repeatable=repeatable)])
    assert ("none: the draws are not reproducible" in render(record).text) is not repeatable


def test_duplicated_and_unplanned_results_are_told(tmp_path: Path) -> None:
    result, other = make_result(), make_result(layer=LAYERS[1])
    planned = [PlannedResult(result.id, result.item, result.check)]
    text = render(write_record(tmp_path / "odd.jsonl", [result, result, other], planned=planned)).text
    assert "1 result is reported more than once" in text
    assert f"1 result is reported but not planned: {other.check}" in text


def test_broken_and_edited_records_are_refused(tmp_path: Path, clean_record: Path) -> None:
    lines = clean_record.read_bytes().splitlines(keepends=True)
    broken, edited = tmp_path / "broken.jsonl", tmp_path / "edited.jsonl"
    broken.write_bytes(b"".join([lines[0], b"{]\n", *lines[1:]]))
    edited.write_bytes(b"".join(lines).replace(b"0.4", b"0.5"))
    for path in (broken, edited):
        with pytest.raises(InputError, match=r"line 2 is broken|its digest is not that of its results"):
            render(path)


def test_impossible_p_value_is_refused(tmp_path: Path) -> None:
    record = write_record(tmp_path / "p.jsonl", [make_result(p_values=[2.0])])
    with pytest.raises(
        InputError, match=r"p\.jsonl: line 2 was edited or damaged \(p_values=2\.0: .*; make the record"
    ):
        render(record)


def test_a_verdict_that_was_edited_is_refused_by_its_line(tmp_path: Path) -> None:
    unexamined = make_result(verdict="not examined", p_values=[])
    record = write_record(tmp_path / "edited.jsonl", [make_result(layer=LAYERS[1]), unexamined])
    record.write_bytes(record.read_bytes().replace(b"not examined", b"consistent"))
    with pytest.raises(InputError) as caught:
        render(record)
    assert f"record={record}: line 3 was edited or damaged (p_values=(): is empty although" in str(caught.value)
    assert str(caught.value).endswith("; make the record again")
    assert "Entry" not in str(caught.value)


def test_output_that_cannot_be_written_is_one_line(clean_record: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        render_report(clean_record, out=tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


# The same bytes, few of them, in little memory ---------------------------------------------------


def test_same_record_gives_the_same_bytes_in_any_process(tmp_path: Path, faulty_record: Path) -> None:
    here, there = tmp_path / "here.html", tmp_path / "there.html"
    render_report(faulty_record, out=here)
    code = (
        "import sys; from pathlib import Path; from attncheck.report import render_report;"
        "render_report(Path(sys.argv[1]), out=Path(sys.argv[2]))"
    )
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": other, "TZ": "UTC5", "MPLCONFIGDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(faulty_record), str(there)], env=environment, check=True)
    assert here.read_bytes() == there.read_bytes()


def test_order_of_lines_does_not_show(tmp_path: Path, faulty_record: Path) -> None:
    manifest, *results = list(read(faulty_record))[:-1]
    pages = []
    for ordered in (results, results[::-1]):
        record = write_record(tmp_path / "record.jsonl", ordered, planned=manifest.planned)
        pages.append(render_report(record, out=tmp_path / "page.html").read_bytes())
    assert pages[0] == pages[1]


def test_page_of_a_run_of_default_size_is_small(tmp_path: Path) -> None:
    plot = next(result.plot for result in plotted_results() if result.check == "scores.law")
    layers = [*ANCHORS, *(LAYERS[0].replace(width=width) for width in range(2, 12))]
    results = [
        make_result(check.name, check.claim, layer, plot=plot, kind=check.kind) for layer in layers for check in CHECKS
    ]
    record = write_record(tmp_path / "default.jsonl", results)
    page = render_report(record, out=tmp_path / "page.html")
    assert page.stat().st_size < 3_000_000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
def test_a_line_of_a_record_takes_a_few_kilobytes(tmp_path: Path) -> None:
    short, record = long_record(tmp_path / "short.jsonl", 100), long_record(tmp_path / "long.jsonl", 4_000)
    # Not resource.getrusage, whose peak includes the parent's.
    code = (
        "import re, sys; from pathlib import Path; from attncheck.report import render_report\n"
        "for record in map(Path, sys.argv[2:]):\n"
        "    render_report(record, out=Path(sys.argv[1]))\n"
        "    print(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])"
    )
    page = tmp_path / "page.html"
    command = [sys.executable, "-c", code, str(page), str(short), str(record)]
    before, peak = map(int, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())
    assert peak - before < 33 * 1024  # KiB
    assert "4,000 planned results examined on 1 claim" in page.read_text(encoding="utf-8")
