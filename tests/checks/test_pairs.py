"""Every check rejects a wrong simulator, and accepts right ones, on the same number of draws.

Each test is one look of a run. Noise fails a test with chance below 1e-6, split over all checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.registry import CHECKS
from attncheck.faults.pairs import paired
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.look import observe
from attncheck.looks.plan import Plan
from attncheck.subject import Subject, collapsed
from attncheck.subject.subject import CALL_DRAWS
from tests.simulators.answering import RIGHT

FALSE_ALARM = 1e-6
DRAWS = 2_000
# tests/checks/test_structure.py tests the checks of structure, which need a simulator that receives its inputs.
BY_NAME = {check.name: check for check in CHECKS if check.property_name != "structure"}

# Draws that leave p-values below 1e-15 for all of 4 seeds, if `DRAWS` do not. Only one draw in 16,000 has an input
# beyond 4 standard deviations. With 16 heads and 12 positions each draw has 17,000 products of two heads.
OTHER_DRAWS = {
    "inputs.tail_4": 500_000,
    "outputs.projection": 20_000,
    "scores.head_pairs": 500,
    **dict.fromkeys(("scores.key_scale", "outputs.tail_4", "conditional.joint"), 8_000),
    **dict.fromkeys(("outputs.limit_projection", "conditional.head_shares", "exactness.output_neurons"), 6_000),
    "scores.size": 6_000,
}

#: Checks of whitened scores, which fall back on visible scores.
WHITENED = {name for name, check in BY_NAME.items() if check.needs >= {"scores", "key_gram"}}

Simulator = Callable[[AttentionLayer, int, np.random.Generator], Mapping[str, FloatArray]]


def hiding(simulator: Any) -> Simulator:
    """Return a simulator with scores of minus infinity behind the mask."""

    def hidden(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        drawn = dict(simulator(layer, size, rng))
        return {**drawn, "scores": np.where(layer.visible, drawn["scores"], -np.inf)}

    return hidden


def fault_of(name: str) -> Any:
    """Return the first simulator that a check must reject."""
    return paired(BY_NAME[name])[0].subject


def layer_of(name: str) -> AttentionLayer:
    layer = BY_NAME[name].rejects.layer
    assert layer is not None
    return layer


def masked(name: str) -> AttentionLayer:
    """Return a pair's layer with an effective mask."""
    layer = layer_of(name).replace(mask="causal")
    return layer if layer.seq_len > 1 else layer.replace(seq_len=4, width=max(4, layer.width))


def p_value(subject: object, name: str, layer: AttentionLayer) -> float:
    check, settled, key = BY_NAME[name], Subject.of(subject), ("tests", "pairs", name)
    setting = settled.probe(layer, stream(0, *key, role="probe"))
    assert check.reason_not_examined(setting) == ""
    size = OTHER_DRAWS.get(name, DRAWS)
    planned = Plan(setting, CALL_DRAWS, FALSE_ALARM, 0.99, {check: size}, {})
    outcome = observe(planned, [check], 1, settled, stream(0, *key), seed_sequence(0, *key, role="reference"))[name]
    assert outcome.count > 0
    return outcome.p_value


@pytest.mark.sampled
@pytest.mark.parametrize("name", BY_NAME)
def test_wrong_simulator_is_rejected(name: str) -> None:
    assert p_value(fault_of(name), name, layer_of(name)) < FALSE_ALARM


@pytest.mark.sampled
@pytest.mark.parametrize("name", BY_NAME)
def test_right_simulator_is_not(name: str) -> None:
    right = RIGHT if name.startswith("draws.seeds") else collapsed
    assert p_value(right, name, layer_of(name)) > FALSE_ALARM / len(BY_NAME)


@pytest.mark.sampled
@pytest.mark.parametrize("name", sorted(WHITENED))
def test_behind_a_mask_the_wrong_simulator_is_rejected_and_the_right_is_not(name: str) -> None:
    assert p_value(hiding(fault_of(name)), name, masked(name)) < FALSE_ALARM
    assert p_value(hiding(collapsed), name, masked(name)) > FALSE_ALARM / len(BY_NAME)
