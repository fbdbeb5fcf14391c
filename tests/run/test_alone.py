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
from attncheck.looks.item import Item
from attncheck.records.schema import Result, read
from attncheck.runs.loop import examined
from attncheck.runs.run import Run

from .conftest import made

pytest_plugins = ["pytester"]

# A fault of which some cases are violated and others take several looks.
SUBJECT = "attncheck.faults:value_std_10"


@functools.cache
def run_and_items() -> tuple[Run, list[Item]]:
    """Return a run of a few small layers and programs."""
    run = made(subject=SUBJECT, only=("draws", "scores", "conditional"))
    items = run.all_items
    small = sorted({item.case for item in items}, key=lambda case: (case.weight_entries, case.key))[:4]
    return run, [item for item in items if item.case in small]


def lines(items: Iterable[Item], workers: Workers) -> dict[str, bytes]:
    """Return the results of items as they are recorded, without times."""
    run, _ = run_and_items()
    with workers:
        found = [result for _, each in examined(run, list(items), workers) for result in each.results]
    return {result.id: _line(result) for result in found}


def _line(result: Result) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(result, seconds=0.0, arithmetic=""))


@functools.cache
def whole() -> dict[str, bytes]:
    found = lines(run_and_items()[1], InProcess())
    verdicts = {msgspec.json.decode(line)["verdict"] for line in found.values()}
    assert verdicts == {"consistent", "violated", "not examined"}
    return found


@pytest.mark.parametrize("seed", range(5))
def test_any_part_of_a_run_in_any_order(seed: int) -> None:
    _, items = run_and_items()
    generator = random.Random(seed)
    some = generator.sample(items, generator.randint(1, len(items) // 2))
    found = lines(some, InProcess())
    assert found == {id: whole()[id] for id in found}
    assert {msgspec.json.decode(line)["item"] for line in found.values()} == {item.id for item in some}


@pytest.mark.parametrize("number", [1, 3])
def test_any_number_of_processes(number: int) -> None:
    _, items = run_and_items()
    assert lines(items[::-1], Processes(number)) == whole()


def test_a_test_of_pytest_alone(pytester: pytest.Pytester) -> None:
    _, items = run_and_items()
    item = next(each for each in items if each.property_name == "scores")
    options = [f"--attncheck-subject={SUBJECT}", "--attncheck-profile=smoke", "--attncheck-record=alone.jsonl"]
    test = str(Path(__file__).parents[2] / "properties" / "test_scores.py")
    pytester.runpytest_inprocess(test, "-p", "no:cacheprovider", "-k", item.case.key, *options)
    found = [line for line in read(Path("alone.jsonl")) if isinstance(line, Result)]
    assert {result.id: _line(result) for result in found} == {
        id: line for id, line in whole().items() if msgspec.json.decode(line)["item"] == item.id
    }
