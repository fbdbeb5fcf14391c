"""Runs: planned ahead, reproducible by seed, with clear messages on failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from attncheck import faults
from attncheck._lib.errors import InputError
from attncheck.checks.claims import CLAIMS
from attncheck.checks.programs import PROGRAM_CHECKS
from attncheck.checks.registry import CHECKS, EVERY_CHECK, PROGRAM_PROPERTIES, PROPERTIES, checks_of
from attncheck.evidence.budget import ROOM
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.profiles import ANCHORS, PROFILES, REGIME_ANCHORS
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run
from attncheck.strategies import layers
from attncheck.subject import Subject, collapsed

from .conftest import COST, GROUPED, LAYER, closing_of, examined, made, planned


class TestOf:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"seed": "-1"}, "seed=-1: must be at least 0; pass a whole number, or random"),
            ({"seed": "1.5"}, "seed='1.5': must be a whole number"),
            ({"seed": True}, "seed=True: must be a whole number, not a boolean"),
            ({"profile": "fast"}, "profile='fast': is not known; use one of 'smoke', 'default', 'thorough'"),
            ({"false_alarm": "0"}, "false_alarm=0.0: must be greater than 0"),
            ({"false_alarm": "1"}, "false_alarm=1.0: must be less than 1"),
            ({"false_alarm": "nan"}, "false_alarm=nan: must be finite"),
            ({"false_alarm": "few"}, "false_alarm='few': must be a number"),
            ({"draws": "1e6"}, "draws='1e6': has no effect with the profile smoke; use the profile thorough"),
            ({"draws": "0.5", "profile": "thorough"}, "draws='0.5': must be a whole number"),
            ({"draws": "inf", "profile": "thorough"}, "draws='inf': must be a whole number"),
            ({"draws": "many", "profile": "thorough"}, "draws='many': must be a whole number"),
            ({"subject": "nowhere:f"}, "subject=nowhere:f: cannot be imported"),
        ],
    )
    def test_unusable_option_is_named(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError) as caught:
            made(**options)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_numbers_may_be_typed_or_given(self) -> None:
        assert made(seed="7", false_alarm="1e-3") == made(seed=7, false_alarm=1e-3)
        assert made(profile="thorough", draws="1e6").draws == made(profile="thorough", draws=10**6).draws == 10**6


class TestPlan:
    def test_units_are_anchors_and_then_examples(self) -> None:
        for name, profile in PROFILES.items():
            items = made(profile=name).items("scores", layers(max_entries=500))
            found = [item.case for item in items]
            visited = ANCHORS[: profile.fixed_cases] + REGIME_ANCHORS[: profile.regimes]
            assert found[: len(visited)] == list(visited) == list(profile.layers)
            assert len(visited) < len(found) == len(set(found)) <= len(visited) + profile.examples

    def test_no_cost_depends_on_the_plan(self) -> None:
        run = planned("scores", "draws")
        assert [each.check for each in run.planned] == [check.name for check in run_checks(run)]
        assert run.planning([*run.item_ids, *run.item_ids]).planned == run.planned
        (alone,), (beside, _) = (made().tasks(items) for items in (units(LAYER), units(LAYER, GROUPED)))
        assert alone.cost == beside.cost == PROFILES["smoke"].cost(LAYER)

    def test_thorough_draws_are_those_of_costly_layers(self) -> None:
        wide = AttentionLayer(width=2048)
        profile = made(profile="thorough", draws=10**5).profile
        assert profile.affordable(wide) == profile.affordable(LAYER) == 10**5 > PROFILES["thorough"].affordable(LAYER)
        assert PROFILES["thorough"].affordable(wide) == PROFILES["thorough"].fewest_draws

    def test_more_than_the_budget_allows_is_refused(self) -> None:
        count = -(-ROOM // len(checks_of("scores")))
        with pytest.raises(InputError, match=r"plan='10,\d+': are more results, pools included, than the 10,000 that"):
            made().planning(f"scores@{number:012x}" for number in range(count))
        assert made().planning(f"scores@{number:012x}" for number in range(count // 2)).planned

    def test_unknown_property_is_named(self) -> None:
        with pytest.raises(InputError, match="property='score': is not known; use one of exactness"):
            made().items_on("score", [LAYER])


def units(*cases: AttentionLayer) -> list[Item]:
    return made().items_on("scores", cases)


def run_checks(run: Run) -> list[Any]:
    return [check for item in run.item_ids for check in checks_of(item.partition("@")[0])]


class TestExamine:
    def test_results_repeat_to_the_digit(self) -> None:
        run = planned("scores", subject=faults.FAULTS["tied_query_key"].subject)
        items = run.items_on("scores", [LAYER])
        results, again = run.examine(items), run.examine(items)
        assert [result.id for result in results] == [each.id for each in run.planned]
        for one, two in zip(results, again, strict=True):
            assert msgspec.structs.replace(one, seconds=0.0) == msgspec.structs.replace(two, seconds=0.0)

    def test_unit_with_one_check_is_that_part_of_the_whole(self) -> None:
        subject = Subject.of("attncheck.subject:collapsed")
        (one,) = run_item(Item("scores", LAYER, only="scores.scale"), subject, 0, COST)
        assert one.check == "scores.scale"
        assert one.verdict == "consistent"

    def test_consistent_unit_has_no_message(self) -> None:
        run = planned("scores", subject="attncheck.subject:collapsed")
        results, message = examined(run, "scores")
        assert message == ""
        assert {result.verdict for result in results} <= {"consistent", "not examined"}


class TestReport:
    def test_results_come_in_any_order(self, tmp_path: Path) -> None:
        digests = []
        for order in (1, -1):
            run = planned("scores", "draws", subject="attncheck.subject:collapsed", record=tmp_path / f"{order}.jsonl")
            report = RunReport(run)
            for name in ("scores", "draws")[::order]:
                report.take(run.examine(run.items_on(name, [LAYER])))
            assert report.finish()
            digests.append(closing_of(tmp_path / f"{order}.jsonl").digest)
            assert "CONSISTENT" in report.summary()
        assert digests[0] == digests[1]

    def test_what_is_missing_or_too_much_is_incomplete(self, tmp_path: Path) -> None:
        for number, names in enumerate([["scores"], ["scores", "draws", "draws"], ["scores", "draws", "inputs"]]):
            run = planned("scores", "draws", subject="attncheck.subject:collapsed", record=tmp_path / f"{number}.jsonl")
            report = RunReport(run)
            for name in names:
                report.take(run.examine(run.items_on(name, [LAYER])))
            assert not report.finish()
            closing = closing_of(tmp_path / f"{number}.jsonl")
            assert closing.verdict == "incomplete"
            assert closing.reasons
            assert closing.reasons[0] in report.summary()

    def test_nothing_reported_has_no_table(self, tmp_path: Path) -> None:
        report = RunReport(planned("scores", record=tmp_path / "record.jsonl"))
        assert not report.finish()
        owed = len(report.run.planned)
        started = f"INCOMPLETE: attncheck.subject:direct, 0 of {owed} planned results examined on 0 claims and 0"
        assert report.summary().startswith(started)
        assert "property" not in report.summary()

    def test_needs_a_path(self) -> None:
        with pytest.raises(InputError, match="record=None: is missing"):
            RunReport(planned("scores"))

    def test_summary_tells_what_no_layer_examined(self, tmp_path: Path) -> None:
        blind = faults.exposing(collapsed, ["outputs", "scores"])
        run = planned("scores", "draws", subject=blind, record=tmp_path / "record.jsonl")
        report = RunReport(run)
        for name in ("scores", "draws"):
            report.take(run.examine(run.items_on(name, [LAYER])))
        assert not report.finish()
        text = report.summary(verbose=True)
        assert text.startswith("INCONCLUSIVE: ")
        assert "none on a law" in text
        assert "Not examined on any layer:" in text
        without = "  the subject does not expose input_gram, key_gram: draws.keys, draws.scores, scores"
        assert without in text
        assert not any(line.startswith(" scores") for line in text.splitlines())
        assert "Return input_gram, key_gram" not in text
        assert " too: up to " in report.summary()


def test_every_check_has_null_departure_hint_and_claim() -> None:
    assert all(check.null and check.alternative.text and check.hint for check in EVERY_CHECK)
    assert all(check.claim in CLAIMS and check.reads.endswith(":") for check in EVERY_CHECK)


def test_every_claim_is_examined_by_a_property() -> None:
    assert {check.claim for check in EVERY_CHECK} == set(CLAIMS)
    assert {check.property_name for check in CHECKS} == set(PROPERTIES)
    assert {check.property_name for check in PROGRAM_CHECKS} == set(PROGRAM_PROPERTIES)
