"""A run's summary: verdict, table, skipped checks and detectable effects."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import msgspec

from attncheck import faults
from attncheck.checks.registry import EVERY_CHECK
from attncheck.diagnosis.causes import by_cause, violated
from attncheck.records.schema import Result
from attncheck.records.text import label_of
from attncheck.runs.details import MAIN_CHECKS, mdes, not_detected
from attncheck.runs.parts import read_run
from attncheck.runs.summary import labelled, summarize
from attncheck.runs.view import NOT_PROVED, RunView
from attncheck.subject import collapsed
from tests.recorded import WRONG, Recorded, examine

from .conftest import LAYER, planned, results_of, view_of

change = msgspec.structs.replace
BLIND = faults.exposing(collapsed, ["outputs", "scores"])


@functools.cache
def scores(subject: Any = None) -> list[Result]:
    return results_of(planned("scores", subject=subject), "scores")


def test_a_violated_summary_begins_with_the_causes_of_the_report(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    report = examine(record, WRONG, layers=[LAYER], causes=True)
    first = by_cause(violated(read_run(record).tallies))[0]
    assert first.hint
    lines = report.summary().splitlines()
    assert str(report.explanations[0]) == "W_Q and W_K are the same matrix"
    assert lines[1] == "  cause:    W_Q and W_K are the same matrix"
    labels = {line.partition(":")[0].strip() for line in lines[:15]}
    assert {"cause", "observed", "first", "layer", "replay"} <= labels
    assert f"{first.leading.name} on 1 of 1 layer: " in next(line for line in lines if line.startswith("  first:"))
    assert f"attncheck replay {record} {first.leading.name}@" in report.summary()
    assert NOT_PROVED not in lines
    assert len(lines) <= 40


def test_a_consistent_summary_ends_with_what_it_does_not_prove(recorded: Recorded) -> None:
    record = read_run(recorded.right)
    lines = summarize(RunView(record)).splitlines()
    assert lines[0].startswith("CONSISTENT: ")
    assert NOT_PROVED in lines
    assert any(line.startswith("No tested layer has: ") and "window, softcap, sink" in line for line in lines)
    assert not any(line.startswith("  cause:") for line in lines)
    assert len(lines) <= 25
    (detectable, *_) = mdes(record.results, record.pools)
    assert detectable in lines
    assert "what a green run proves, and what it does not" in NOT_PROVED.lower()
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert "## What a green run proves, and what it does not\n" in readme


def test_layers_and_programs_are_counted_together_as_configurations() -> None:
    of_program = [
        change(result, property="netsor", item=f"netsor@{number}", case={"program": {}, "widths": [number]})
        for number, result in enumerate(scores())
        if result.p_values
    ]
    view = view_of(planned("scores", "netsor"), [*scores(), *of_program])
    assert f"and {1 + len(of_program)} cases;" in view.sentence


def test_what_only_layers_with_a_violation_have_is_said() -> None:
    (result,) = (result for result in scores() if result.check == "scores.scale")
    both = LAYER.replace(mask="causal", head_dim=2)
    bad, other = (
        change(result, case=layer.to_dict(), item=f"scores@{key}", verdict="violated")
        for key, layer in enumerate([both, both.replace(head_dim=None)])
    )
    good = change(result, case=LAYER.replace(head_dim=2).to_dict(), item="scores@9")
    masked = change(good, case=LAYER.replace(mask="causal", width=4).to_dict())
    for results, text in (
        ([bad, other, good], "scores.scale on 2 of 3 layers; only with causal: "),
        ([bad, good], "on 1 of 2 layers; only with causal: "),
        ([bad, other, good, masked], "on 2 of 4 layers: "),
        ([bad, other], "on 2 of 2 layers: "),
        ([good], ""),
    ):
        lines = "\n".join(labelled(view_of(planned("scores"), results).lines))
        assert text in lines
        assert lines.startswith("  hint:" if text else "")
        assert text or not lines


def test_the_detectable_error_is_the_median_of_what_was_examined() -> None:
    (scale,) = (result for result in scores() if result.check == "scores.scale")
    results = [change(scale, mde=mde) for mde in (1.5, 1.01, 1.02, math.inf, 1.03)]
    left_out = change(scale, mde=None, p_values=[], verdict="not examined")
    (line,) = mdes([*results, left_out], [])
    assert line == "Smallest detectable error in score variance given inputs and keys: 3% on the median layer"
    pool = change(scale, item="scores.scale@all", mde=1.001)
    (line,) = mdes(results, [pool])
    assert ": 0.1% pooled, 3% on" in line
    (line,) = mdes(results, [change(pool, text=pool.text.replace("variance", "shift"))])
    assert "pooled" not in line  # in another unit
    assert mdes([], []) == []


def test_what_exposes_less_is_told_by_the_next_check() -> None:
    results = results_of(planned("exactness", subject=BLIND), "exactness")
    lines = mdes(results, [])
    assert len(lines) == 3
    for check, line in zip(("exactness.score_energy", "exactness.output_energy"), lines, strict=False):
        (result,) = (result for result in results if result.check == check)
        assert line.startswith(f"Smallest detectable {label_of(result)}: ")


def test_main_checks_are_checks() -> None:
    assert set(MAIN_CHECKS) <= {check.name for check in EVERY_CHECK}


def test_whole_properties_are_told_in_short() -> None:
    unable = [change(result, p_values=[], verdict="not examined", reason="no programs") for result in scores()]
    assert not_detected(unable) == {"no programs": [f"scores ({len(unable)} checks)"]}
    assert not_detected(unable[1:]) == {"no programs": sorted(result.check for result in unable[1:])}


def test_what_exposing_more_would_gain_is_counted() -> None:
    results = scores(BLIND)
    first, *others = view_of(planned("scores", subject=BLIND), results).remedies
    gained = sum(not result.p_values and "does not expose" in result.reason for result in results)
    assert first == f"Return input_gram and key_gram too: up to {gained} more results."
    examined = [result for result in scores() if result.p_values]
    assert len(examined) <= gained + sum(bool(result.p_values) for result in results)
    assert all(line.startswith("Not examined: ") for line in others)
    assert view_of(planned("scores"), examined).remedies == []
