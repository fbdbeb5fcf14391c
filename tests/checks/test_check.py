"""Numbers of draws per look, for the alternative or the coarsest within the budget, and messages about a null."""

from __future__ import annotations

import pytest

from attncheck.checks.check import Check, Setting
from attncheck.checks.registry import CHECKS
from attncheck.checks.returned import FIELDS
from attncheck.looks.profiles import ANCHORS

SETTING = Setting(ANCHORS[0], frozenset({*FIELDS, "masked scores"}), 2)
LEVEL, POWER, ANY = 1e-3, 0.9, 10**9
COARSE = [
    check for check in CHECKS if check.alternative.coarsest is not None and not check.reason_not_examined(SETTING)
]
# Without counts, whose power is not monotonic in the draws.
SMOOTH = [check for check in COARSE if check.family_on(SETTING).continuous]


@pytest.mark.parametrize("check", SMOOTH, ids=lambda check: check.name)
def test_a_look_takes_what_the_coarsest_departure_asks_for_at_least(check: Check) -> None:
    assert check.alternative.coarsest is not None
    item, family = check.draws_per_unit, check.family_on(SETTING)
    fine = check.look_size(SETTING, LEVEL, POWER, ANY)
    coarse = family.size(check.alternative.coarsest(SETTING), LEVEL, POWER, ANY)
    assert fine is not None
    assert coarse is not None
    assert fine == check.size(SETTING, LEVEL, POWER, ANY)
    assert coarse * item < fine
    # With fewer, a look takes all available draws if they reveal the coarsest alternative.
    assert check.look_size(SETTING, LEVEL, POWER, fine) == fine
    assert check.look_size(SETTING, LEVEL, POWER, fine - 1) == (fine - 1) // item * item
    assert check.look_size(SETTING, LEVEL, POWER, coarse * item) == coarse * item
    assert check.look_size(SETTING, LEVEL, POWER, coarse * item - 1) is None


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("outputs.tail_4", (0, 1000), "allowed up to"),
        ("outputs.law", ([0.01 * k for k in range(100)],), "allowed up to"),
        ("outputs.symmetry", (500, 1000), "expected"),
    ],
)
def test_a_check_says_what_is_allowed_or_expected(name: str, data: tuple[object, ...], text: str) -> None:
    (check,) = (check for check in CHECKS if check.name == name)
    bound = check.family_on(SETTING).null_effect
    assert bound > 0.0
    assert check.describe(check.test(SETTING, data)).endswith(f", {text} {bound:.4g}")
