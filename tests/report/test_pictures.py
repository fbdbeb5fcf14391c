"""Pictures of a page: what they show and say."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from attncheck.evidence.plot_data import cdf_of_two, cdf_of_uniform, positions, profile, read_plot
from attncheck.records.explanation import Certainty, Explanation
from attncheck.records.schema import Result
from attncheck.records.tallies import tallied
from attncheck.report.intervals import by_case
from attncheck.report.results import of_result
from attncheck.report.svg import BAD
from tests.recorded import make_result, write_record

from .conftest import LAYERS, violated_result
from .page import render

RNG = np.random.default_rng(12)


def test_first_picture_is_that_of_the_first_cause(tmp_path: Path) -> None:
    seen = msgspec.to_builtins(positions(np.tri(3, k=1), np.tri(3), "input", "Inputs that change the outputs"))
    missing = {**seen, "rows": seen["rows"][1:]}
    for number, plot in enumerate((seen, missing, {"kind": "hologram"})):
        closing = {"explanations": [Explanation("position 0 attends to 0 and 1", Certainty.EXACT, plot=plot)]}
        page = render(write_record(tmp_path / f"{number}.jsonl", [violated_result()], closing=closing))
        found = [image for image in page.all("img") if "Inputs that change" in str(image["alt"])]
        assert len(found) == (plot is seen)
        assert ("by case with 99% intervals" in page.text("verdict")) is (plot is not seen)
        if found:
            assert "2 of 9 differ, first at query 0 and input 1: 1 is observed, 0 is" in str(found[0]["alt"])


def test_map_keeps_violated_layers_and_says_how_many_are_left_out(tmp_path: Path) -> None:
    layers = [LAYERS[0].replace(width=width) for width in range(2, 62)]
    results = [make_result(layer=layer) for layer in layers[:-1]] + [violated_result(layer=layers[-1])]
    text = render(write_record(tmp_path / "many.jsonl", results)).text("claims")
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
        images = render(record).all("img")
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
    assert not render(write_record(tmp_path / "bad.jsonl", results)).all("img")
