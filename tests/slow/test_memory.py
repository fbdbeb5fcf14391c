"""A look's memory: the same for a hundred thousand draws and four times as many."""

from __future__ import annotations

import numpy as np

from attncheck.checks.check import AnyCheck
from attncheck.checks.registry import EVERY_PROPERTY, PROGRAM_PROPERTIES
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.examine import probed
from attncheck.looks.item import Item
from attncheck.looks.look import observe
from attncheck.looks.plan import Cost, Plan
from attncheck.subject import Subject
from tests.memory import with_peak

LAYER = AttentionLayer(width=2, seq_len=1, num_heads=2)
CHUNK = 2**14


def test_memory_does_not_grow_with_the_draws() -> None:
    """One check per family; twice the draws take hardly more memory, once all marks that are kept (2^17) are there."""
    subject = Subject.of("attncheck.subject:collapsed")
    checks: dict[type, AnyCheck] = {}
    for name in EVERY_PROPERTY:
        if name not in PROGRAM_PROPERTIES:
            plan = probed([Item(name, LAYER)], subject, 0, Cost(10**6, 5e-4, 0.99))
            for check in plan.sizes:
                checks.setdefault(type(check.family_on(plan.setting)), check)
    assert len(checks) >= 10

    def peak(draws: int) -> int:
        several = Plan(plan.setting, CHUNK, 5e-4, 0.99, dict.fromkeys(checks.values(), draws), {})
        rng, root = np.random.default_rng(0), np.random.SeedSequence(0)
        found, most = with_peak(lambda: observe(several, list(several.sizes), 1, subject, rng, root))
        assert all(0.9 * draws / 4 < outcome.count for outcome in found.values())
        assert min(outcome.p_value for outcome in found.values()) > 1e-8
        return most

    few, many = peak(4 * 10**5), peak(8 * 10**5)
    assert many < 1.05 * few
