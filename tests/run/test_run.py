"""Runs: planned ahead, reproducible by seed, with clear messages on failures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from attncheck import AttentionLayer, InputError, faults
from attncheck.checks.registry import checks_of
from attncheck.evidence.looks import ROOM
from attncheck.looks.profiles import ANCHORS, PROFILES, REGIME_ANCHORS
from attncheck.runs.reporting import RunReport
from attncheck.strategies import layers
from attncheck.subject import collapsed
from tests.recorded import RIGHT, closing_of
from tests.refusals import refused

from .conftest import GROUPED, LAYER, made, planned

THOROUGH: dict[str, Any] = {"profile": "thorough"}
#: Options that all front ends share, and what is said of them.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"seed": "-1"}, "seed=-1: must be at least 0; pass a whole number, or random"),
    ({"seed": "1.5"}, "seed='1.5': must be a whole number"),
    ({"profile": "fast"}, "profile='fast': is not known; use one of 'smoke', 'default', 'thorough'"),
    ({"false_alarm": "0"}, "false_alarm=0.0: must be greater than 0"),
    ({"false_alarm": "1"}, "false_alarm=1.0: must be less than 1"),
    ({"false_alarm": "nan"}, "false_alarm=nan: must be finite; pass a chance such as 1e-6"),
    ({"draws": "1e6"}, "draws='1e6': has no effect with the profile smoke; use the profile thorough"),
    *(({"draws": text, **THOROUGH}, f"draws='{text}': must be a whole number") for text in ("0.5", "inf", "many")),
    ({"draws": "0", **THOROUGH}, "draws=0: must be at least 1"),
    ({"subject": "nowhere:f"}, "subject=nowhere:f: cannot be imported"),
    ({"subject": 3}, "is not callable; pass a function (layer, size, rng) or (layer, inputs, rng)"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_an_unusable_option_is_named(options: dict[str, Any], message: str) -> None:
    refused(lambda: made(**options), re.escape(message))


def test_numbers_may_be_typed_or_given() -> None:
    assert made(seed="7", false_alarm="1e-3") == made(seed=7, false_alarm=1e-3)
    assert made(draws="1e6", **THOROUGH).draws == made(draws=10**6, **THOROUGH).draws == 10**6


def test_items_are_fixed_cases_and_then_examples() -> None:
    for name, profile in PROFILES.items():
        cases = [item.case for item in made(profile=name).items("scores", layers(max_entries=500))]
        fixed = ANCHORS[: profile.fixed_cases] + REGIME_ANCHORS[: profile.regimes]
        assert cases[: len(fixed)] == list(fixed) == list(profile.layers)
        assert len(fixed) < len(cases) == len(set(cases)) <= len(fixed) + profile.examples


def test_no_cost_depends_on_the_plan() -> None:
    run = planned("scores", "draws")
    checks = [check.name for item in run.item_ids for check in checks_of(item.partition("@")[0])]
    assert [result.check for result in run.planned] == checks
    assert run.planning([*run.item_ids, *run.item_ids]).planned == run.planned
    alone, both = (made().items_on("scores", cases) for cases in ([LAYER], [LAYER, GROUPED]))
    (task,), (same, _) = made().tasks(alone), made().tasks(both)
    assert task.cost == same.cost == PROFILES["smoke"].cost(LAYER)


def test_thorough_draws_are_those_of_costly_layers() -> None:
    wide = AttentionLayer(width=2048)
    profile = made(draws=10**5, **THOROUGH).profile
    assert profile.affordable(wide) == profile.affordable(LAYER) == 10**5 > PROFILES["thorough"].affordable(LAYER)
    assert PROFILES["thorough"].affordable(wide) == PROFILES["thorough"].fewest_draws


def test_more_than_the_budget_allows_is_refused() -> None:
    count = -(-ROOM // len(checks_of("scores")))
    with pytest.raises(InputError, match=r"plan='10,\d+': are more results, pools included, than the 10,000 that"):
        made().planning(f"scores@{number:012x}" for number in range(count))
    assert made().planning(f"scores@{number:012x}" for number in range(count // 2)).planned


def reported(record: Path, *names: str, **options: Any) -> tuple[RunReport, bool]:
    """Return the report of a run planned for scores and draws that examined properties, and whether it passed."""
    run = planned("scores", "draws", record=record, **{"subject": RIGHT, **options})
    report = RunReport(run)
    for name in names:
        report.take(run.examine(run.items_on(name, [LAYER])))
    return report, report.finish()


@pytest.mark.parametrize("names", [[], ["scores"], ["scores", "draws", "draws"], ["scores", "draws", "inputs"]])
def test_missing_or_further_results_are_incomplete(tmp_path: Path, names: list[str]) -> None:
    report, passed = reported(tmp_path / "record.jsonl", *names)
    assert not passed
    closing, text = closing_of(tmp_path / "record.jsonl"), report.summary()
    assert closing.verdict == "incomplete"
    assert closing.reasons[0] in text
    if not names:  # without a table
        assert text.startswith(f"INCOMPLETE: {RIGHT}, 0 of {len(report.run.planned)} planned results examined on 0")
        assert "property" not in text


def test_a_report_needs_a_path() -> None:
    with pytest.raises(InputError, match="record=None: is missing"):
        RunReport(planned("scores"))


def test_summary_tells_what_no_layer_examined(tmp_path: Path) -> None:
    blind = faults.exposing(collapsed, ["outputs", "scores"])
    report, passed = reported(tmp_path / "record.jsonl", "scores", "draws", subject=blind)
    assert not passed
    text = report.summary(verbose=True)
    assert text.startswith("INCONCLUSIVE: ")
    assert "none on a law" in text
    assert "Not examined on any layer:" in text
    assert "  the subject does not expose input_gram, key_gram: draws.keys, draws.scores, scores" in text
    assert not any(line.startswith(" scores") for line in text.splitlines())
    assert "Return input_gram, key_gram" not in text
    assert " too: up to " in report.summary()
