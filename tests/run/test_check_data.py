"""Looks on condensed data agree with looks on all data."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attncheck.checks.registry import EVERY_PROPERTY, PROGRAM_PROPERTIES
from attncheck.evidence.exchange import Calls, Trend
from attncheck.evidence.family import Outcome
from attncheck.layers.attention import AttentionLayer
from attncheck.looks import look as look_module
from attncheck.looks.examine import probed
from attncheck.looks.item import Item
from attncheck.looks.look import CheckData, observe
from attncheck.looks.plan import Cost, Plan
from attncheck.subject import Subject

LAYER = AttentionLayer(width=4, seq_len=3, num_heads=2)
DRAWS, CHUNK = 3000, 300
SUBJECT = Subject.of("attncheck.subject:collapsed")


def planned(name: str) -> Plan:
    plan = probed([Item(name, LAYER)], SUBJECT, 0, Cost(100_000, 5e-4, 0.99))
    return dataclasses.replace(plan, sizes=dict.fromkeys(plan.sizes, DRAWS), chunk=CHUNK)


def look(plan: Plan) -> dict[str, Outcome]:
    return observe(plan, list(plan.sizes), 1, SUBJECT, np.random.default_rng(0), np.random.SeedSequence(0))


@pytest.mark.sampled
@pytest.mark.parametrize("name", [name for name in EVERY_PROPERTY if name not in (*PROGRAM_PROPERTIES, "structure")])
def test_a_condensed_look_says_what_the_whole_one_says(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plan = planned(name)
    whole = look(plan)
    monkeypatch.setattr(look_module, "MOST_RETAINED", 600)
    found = look(plan)
    assert found.keys() == whole.keys()
    assert found
    for check in plan.sizes:
        one, other = found[check.name], whole[check.name]
        assert one.count == other.count
        if isinstance(check.family_on(plan.setting), Trend | Calls):  # ranks among the first draws only
            assert abs(one.effect - other.effect) < 0.2 * (other.high - other.low)
        else:
            assert one.p_value >= other.p_value * (1.0 - 1e-6)
            assert one.effect == pytest.approx(other.effect, abs=0.01)


def data_of(name: str) -> CheckData:
    plan = planned("scores")
    return CheckData(next(check for check in plan.sizes if check.name == name), plan.setting)


def test_one_chunk_is_never_condensed_and_several_are() -> None:
    many, data = np.ones(2 * look_module.MOST_RETAINED), data_of("scores.scale")
    data.add((many, many))
    assert len(data._parts) == 1
    data.add((many[:1], many[:1]))
    assert data._parts == []
    assert data.outcome().effect == 1.0
    assert data.outcome().count == 2 * look_module.MOST_RETAINED + 1


def test_a_sample_without_another_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_module, "MOST_RETAINED", 1000)
    rng, data = np.random.default_rng(0), data_of("scores.size")
    for _ in range(50):
        data.add((np.zeros(0), rng.standard_normal(500)))
        assert sum(np.size(column) for part in data._parts for column in part) <= 1500
    assert data.outcome().count == 0
    for _ in range(50):
        data.add((rng.standard_normal(100), rng.standard_normal(400)))
    data.add((np.zeros(0), rng.standard_normal(400)))
    assert data.outcome().count == 5000
    assert data.outcome().p_value > 1e-6
