"""Messages about a null: expectations and allowances."""

from __future__ import annotations

import pytest

from attncheck.checks.check import Setting
from attncheck.checks.registry import EVERY_CHECK
from attncheck.layers.attention import AttentionLayer

SETTING = Setting(AttentionLayer(width=8, seq_len=2, num_heads=1), frozenset({"outputs"}))


@pytest.mark.parametrize(
    ("name", "data"),
    [("outputs.tail_4", (0, 1000)), ("outputs.law", ([0.01 * k for k in range(100)],))],
)
def test_a_check_says_what_is_allowed(name: str, data: tuple[object, ...]) -> None:
    (check,) = (check for check in EVERY_CHECK if check.name == name)
    bound = check.family_on(SETTING).null_effect
    assert bound > 0.0
    assert check.describe(check.test(SETTING, data)).endswith(f", allowed up to {bound:.4g}")


def test_a_check_says_what_is_expected() -> None:
    (check,) = (check for check in EVERY_CHECK if check.name == "outputs.symmetry")
    assert check.describe(check.test(SETTING, (500, 1000))).endswith(", expected 0.5")
