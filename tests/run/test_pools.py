"""Pools find effects too small for any case, on fresh draws, with any executor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

import attncheck
from attncheck._lib.workers import InProcess
from attncheck.diagnosis.messages import explain
from attncheck.evidence.summaries import NormalScore, to_record
from attncheck.looks.pools import ALL, CasePool, LookTask, examine_pools, fresh, most_pools, pools_of, repeat_pool, take
from attncheck.records.schema import Result, case_key
from attncheck.subject import collapsed
from tests.recorded import make_result
from tests.refusals import refused

WIDTHS = (3, 4, 5, 6, 7, 8, 9, 10)
LAYERS = [attncheck.AttentionLayer(width=width, seq_len=2, num_heads=1) for width in WIDTHS]
#: Hardly visible in one look at one layer, but in eight together.
SLIGHT = 1.012


def slight(layer: attncheck.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
    return collapsed(layer.replace(query_std=SLIGHT * layer.query_std), size, rng)


def gross(layer: attncheck.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
    return collapsed(layer.replace(query_std=2**0.5 * layer.query_std), size, rng)


def broken(layer: attncheck.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
    raise AssertionError("no look should be taken")


pytestmark = pytest.mark.usefixtures("verdicts_only")


@functools.cache
def found(subject: Callable[..., Any]) -> attncheck.CheckReport:
    return attncheck.check(subject, LAYERS, properties=["scores"], profile="smoke")


def pool_of(report: attncheck.CheckReport, check: str) -> CasePool:
    (pool,) = (each for each in pools_of(report.results) if each.id == f"{check}@{ALL}")
    return pool


def test_a_slight_departure_shows_in_all_cases_together() -> None:
    # Minimum detectable effect: one layer 1.065, eight 1.022. 1.024 is found by the pool with a chance above 98%,
    # by one layer below 0.3%.
    report = found(slight)
    assert report.verdict == "violated"
    assert all(result.id.endswith("@all") for result in report.violated)
    assert all(result.verdict == "consistent" for result in report.results if result.p_values)
    (pool,) = (result for result in report.violated if result.check == "scores.scale")
    assert pool.low is not None
    assert pool.high is not None
    assert pool.mde is not None
    assert pool.low < SLIGHT**2 < pool.high
    assert 1.0 < pool.mde < SLIGHT**2
    assert len(pool.p_values) >= 3
    message = explain([pool], None)
    for words in ("VIOLATED: ", "8 cases together, pool all", "score variance given inputs and keys"):
        assert words in message
    with pytest.raises(AssertionError, match=r"scores\.scale@all"):
        report.require()
    assert "Pooled: " in str(report)


def test_violated_cases_explain_a_suspicious_pool() -> None:
    report = found(gross)
    (pool,) = (each for each in report.pools if each.id == "scores.scale@all")
    assert pool.verdict == "explained"
    assert len(pool.p_values) == 1
    bad = [case_key(result) for result in report.results if result.verdict == "violated"]
    (again,), failed = examine_pools([pool_of(report, "scores.scale")], bad, fresh(broken, 0, InProcess()), pool.level)
    assert again.verdict == "explained"
    assert failed == []
    # Cases outside the pool are no explanation. A failed look leaves only its pools without results.
    quiet = pool_of(found(collapsed), "scores.size")
    results, failed = examine_pools(
        [pool_of(report, "scores.scale"), quiet], ["elsewhere"], fresh(broken, 0, InProcess()), pool.level
    )
    assert [result.id for result in results] == ["scores.size@all"]
    (text,) = failed
    assert "no look should be taken" in text


def test_a_subject_that_returns_less_in_a_further_look_is_told_so() -> None:
    def forgetful(layer: attncheck.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        drawn = slight(layer, size, rng)
        return {name: array for name, array in drawn.items() if name != "key_gram"}

    results, failed = examine_pools(
        [pool_of(found(slight), "scores.scale")], [], fresh(forgetful, 0, InProcess()), 1e-3
    )
    assert results == []
    assert all("can no longer be examined on n=" in text and "key_gram" in text for text in failed)


def test_further_looks_are_fresh_draws_of_all_cases() -> None:
    report, asked = found(slight), list[LookTask]()

    class Noting(InProcess):
        def gather(self, function: Any, tasks: Any) -> Iterator[tuple[int, Any]]:
            asked.extend(tasks)
            return super().gather(function, tasks)

    pool = pool_of(report, "scores.scale")
    (result,), _ = examine_pools([pool], [], fresh(slight, 0, Noting()), pool.results[0].level)
    numbers = [each.look for each in asked]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(2, 1 + len(result.p_values)))
    for number in set(numbers):
        assert {one.items[0].case for one in asked if one.look == number} == set(LAYERS)
    # Neither those of single cases nor of another look.
    case = asked[0]
    alone = msgspec.structs.asdict(pool.results[0])["summary"]
    others = [case, *(one for one in asked if one.items == case.items and one.look != case.look)]
    seen = [alone, *(to_record(take(one)["scores.scale"]) for one in others)]
    assert len({str(each) for each in seen}) == len(seen)


def test_a_pool_is_repeated_to_the_digit() -> None:
    report = found(slight)
    (pool,) = (result for result in report.violated if result.check == "scores.scale")
    again = repeat_pool(pool, report.results, slight, 0)
    assert msgspec.structs.replace(again, seconds=0.0) == msgspec.structs.replace(pool, seconds=0.0)
    fewer = [one for one in report.results if one.case["width"] != 3]
    refused(lambda: repeat_pool(pool, fewer, slight, 0), "which has no result in the record")


CAUSAL: dict[str, Any] = {"mask": "causal"}
GROUPED = {**CAUSAL, "num_kv_heads": 1, "head_dim": 2}


def of_layer(number: int, **fields: Any) -> Result:
    layer = attncheck.AttentionLayer(width=8, seq_len=2, num_heads=2, **fields)
    names = {"id": f"scores.scale@{number:012x}", "item": f"scores@{number:012x}"}
    return make_result(layer=layer, summary=to_record(NormalScore(0.1 * number, 10.0, "ratio")), **names)


@pytest.mark.parametrize(
    ("fields", "pools"),
    [
        ([CAUSAL, CAUSAL, {}], {"all": 3, "causal": 2}),
        ([{}], {}),  # none of one case
        ([CAUSAL, {}], {"all": 2}),
        # All are causal, and grouped ones have fixed head dimensions: no pool twice.
        ([CAUSAL, GROUPED, GROUPED], {"all": 3, "grouped": 2}),
    ],
)
def test_pools_are_formed_by_feature(fields: Sequence[dict[str, Any]], pools: dict[str, int]) -> None:
    results = [of_layer(k, **options) for k, options in enumerate(fields)]
    # Whatever has no summary is in no pool.
    results.append(msgspec.structs.replace(of_layer(9), summary=None))
    formed = list(pools_of(results))
    assert {pool.name: len(pool.results) for pool in formed} == pools
    assert [pool.results for pool in formed] == [pool.results for pool in pools_of(results[::-1])]


def test_no_more_pools_are_formed_than_the_budget_counts() -> None:
    report = found(collapsed)
    assert 0 < len(report.pools) <= most_pools(["scores"])
    one = attncheck.check(collapsed, LAYERS[0], properties=["scores"], profile="smoke")
    assert one.pools == ()


def test_a_missing_pool_is_missed() -> None:
    report = found(collapsed)
    assert report.run.conclude([*report.results, *report.pools]).verdict == "consistent"
    lost = report.run.conclude([*report.results, *report.pools[1:]])
    assert lost.verdict == "incomplete"
    assert report.pools[0].id in lost.reasons[0]
    twice = report.run.conclude([*report.results, *report.pools, report.pools[0]])
    assert twice.verdict == "incomplete"
