"""No result depends on the other items of its run, their order or who examines them."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from attncheck._lib.processes import Processes
from attncheck._lib.workers import InProcess, Workers
from attncheck.commands.session import examined
from attncheck.looks.item import Item
from attncheck.records.schema import Result
from attncheck.runs.run import Run
from tests.recorded import results_in

from .conftest import made

pytest_plugins = ["pytester"]

# A fault of which some cases are violated and others take several looks.
SUBJECT = "attncheck.faults:value_std_10"


@functools.cache
def run_and_items() -> tuple[Run, list[Item]]:
    """Return a run of a few small layers and programs."""
    run = made(subject=SUBJECT, only=("draws", "scores", "conditional"))
    items = run.all_items
    small = sorted({item.case for item in items}, key=lambda case: (case.weight_entries, case.key))[:3]
    return run, [item for item in items if item.case in small]


def results_of(items: Iterable[Item], workers: Workers) -> dict[str, bytes]:
    """Return the results of items as they are recorded, without times."""
    run, _ = run_and_items()
    with workers:
        return lines(result for _, done in examined(run, list(items), workers) for result in done.results)


def lines(results: Iterable[Result]) -> dict[str, bytes]:
    untimed = (msgspec.structs.replace(result, seconds=0.0, arithmetic="") for result in results)
    return {result.id: msgspec.json.encode(result) for result in untimed}


def items_in(results: Iterable[bytes]) -> set[str]:
    return {msgspec.json.decode(line)["item"] for line in results}


@functools.cache
def whole() -> dict[str, bytes]:
    results = results_of(run_and_items()[1], InProcess())
    verdicts = {msgspec.json.decode(line)["verdict"] for line in results.values()}
    assert verdicts == {"consistent", "violated", "not examined"}
    return results


@pytest.mark.parametrize("seed", range(2))
def test_any_part_of_a_run_in_any_order(seed: int) -> None:
    _, items = run_and_items()
    generator = random.Random(seed)
    some = generator.sample(items, generator.randint(1, len(items) // 2))
    results = results_of(some, InProcess())
    assert results == {id: whole()[id] for id in results}
    assert items_in(results.values()) == {item.id for item in some}


def test_any_number_of_processes() -> None:
    assert results_of(run_and_items()[1][::-1], Processes(2)) == whole()


def test_a_test_of_pytest_alone(pytester: pytest.Pytester) -> None:
    item = next(item for item in run_and_items()[1] if item.property_name == "scores")
    options = [f"--attncheck-subject={SUBJECT}", "--attncheck-profile=smoke", "--attncheck-record=alone.jsonl"]
    test = str(Path(__file__).parents[2] / "properties" / "test_scores.py")
    pytester.runpytest_inprocess(test, "-p", "no:cacheprovider", "-k", item.case.key, *options)
    assert lines(results_in(Path("alone.jsonl"))) == {
        id: line for id, line in whole().items() if items_in([line]) == {item.id}
    }
