"""Messages about a null: expectations and allowances."""

from __future__ import annotations

import pytest

from attncheck.checks.check import Setting
from attncheck.checks.registry import EVERY_CHECK
from attncheck.evidence.families import Count, Uniform
from attncheck.evidence.family import Outcome
from attncheck.layers.attention import AttentionLayer

SETTING = Setting(AttentionLayer(width=8, seq_len=2, num_heads=1), frozenset({"outputs"}))


@pytest.mark.parametrize(
    ("outcome", "at_most"),
    [
        (Count(0.01).test(0, 100), True),
        (Count(0.01, tail="two-sided").test(0, 100), False),
        (Count(0.0).test(0, 100), False),
        (Uniform(allowance=0.01).test([0.2, 0.7]), True),
        (Uniform().test([0.2, 0.7]), False),
    ],
)
def test_a_bound_is_told_from_what_a_right_simulator_has(outcome: Outcome, at_most: bool) -> None:
    assert outcome.at_most is at_most


@pytest.mark.parametrize(
    ("name", "data"),
    [("outputs.tail_8", (0, 1000)), ("outputs.law", ([0.01 * k for k in range(100)],))],
)
def test_a_check_says_what_is_allowed(name: str, data: tuple[object, ...]) -> None:
    (check,) = (check for check in EVERY_CHECK if check.name == name)
    bound = check.family(SETTING).null_effect
    assert bound > 0.0
    assert check.describe(check.test(SETTING, data)).endswith(f", allowed up to {bound:.4g}")


def test_a_check_says_what_is_expected() -> None:
    (check,) = (check for check in EVERY_CHECK if check.name == "outputs.symmetry")
    assert check.describe(check.test(SETTING, (500, 1000))).endswith(", expected 0.5")
