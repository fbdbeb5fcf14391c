"""Budget and look protocol, exhaustively."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest

from attncheck.evidence.families import Outcome
from attncheck.evidence.looks import Budget, detection, examine, examine_blocks, per_look_power
from attncheck.evidence.verdicts import Verdict

LEVEL = 0.01
PATTERNS = list(product((True, False), repeat=4))  # suspicious or not, at looks 1 to 4


def outcome(p_value: float) -> Outcome:
    return Outcome(p_value, 0.0, -1.0, 1.0, 0.0, 10)


class Scripted:
    def __init__(self, patterns: Mapping[str, tuple[bool, ...]]) -> None:
        self.patterns = patterns
        self.calls: list[tuple[int, int, tuple[str, ...]]] = []

    def __call__(self, look: int, factor: int, names: tuple[str, ...]) -> dict[str, Outcome]:
        self.calls.append((look, factor, names))
        return {name: outcome(0.001 * look if self.patterns[name][look - 1] else 0.1) for name in names}


def expected(pattern: tuple[bool, ...]) -> tuple[Verdict, int]:
    one, two, three, four = pattern
    if not one:
        return Verdict.CONSISTENT, 1
    if not two:
        return Verdict.CONSISTENT, 2
    if three:
        return Verdict.VIOLATED, 3
    return (Verdict.VIOLATED if four else Verdict.CONSISTENT), 4


def test_detection_sums_over_all_patterns_and_power_per_look_inverts_it() -> None:
    violated = [sum(pattern) for pattern in PATTERNS if expected(pattern)[0] is Verdict.VIOLATED]
    total = sum(LEVEL**suspicious * (1 - LEVEL) ** (4 - suspicious) for suspicious in violated)
    assert detection(LEVEL, LEVEL) == pytest.approx(total, rel=1e-12)
    assert total <= 2 * LEVEL**3
    for target, fourth in product((0.01, 0.5, 0.9999), (0.0, 0.3, 1.0)):
        assert detection(per_look_power(target, fourth), fourth) == pytest.approx(target, rel=1e-7)
    # The fourth look is sure unless said otherwise.
    assert detection(0.9) == pytest.approx(0.9**3 + 0.9**2 * 0.1, rel=1e-12)
    assert detection(per_look_power(0.9)) == pytest.approx(0.9, rel=1e-7)


def test_statistics_of_a_unit_share_each_look_and_only_the_undecided_return() -> None:
    patterns = {"".join("sn"[not each] for each in pattern): pattern for pattern in PATTERNS}
    evaluate = Scripted(patterns)
    trails = examine(evaluate, patterns, LEVEL)
    assert list(trails) == list(patterns)
    for trail in trails.values():
        assert trail.combined == (max(trail.p_values[:3]) ** 3 if len(trail.outcomes) >= 3 else 1.0)
        assert (trail.last, trail.level) == (trail.outcomes[-1], LEVEL)
    assert {name: (trail.verdict, len(trail.outcomes)) for name, trail in trails.items()} == {
        name: expected(pattern) for name, pattern in patterns.items()
    }
    wanted = [
        (1, 1, tuple(patterns)),
        (2, 1, tuple(name for name in patterns if name[0] == "s")),
        (3, 1, tuple(name for name in patterns if name[:2] == "ss")),
        (4, 8, tuple(name for name in patterns if name[:3] == "ssn")),
    ]
    assert evaluate.calls == wanted
    assert examine(evaluate, [], LEVEL) == examine_blocks(evaluate, [], LEVEL) == {}
    assert evaluate.calls == wanted  # no statistics, no draws


def test_a_p_value_at_the_level_is_not_suspicious() -> None:
    trail = examine(lambda look, factor, names: {"a": outcome(LEVEL)}, ["a"], LEVEL)["a"]
    assert (trail.verdict, len(trail.outcomes)) == (Verdict.CONSISTENT, 1)

    def third(look: int, factor: int, names: tuple[str, ...]) -> dict[str, Outcome]:
        return {"a": outcome(LEVEL if look == 3 else 0.5 * LEVEL)}

    assert len(examine(third, ["a"], LEVEL)["a"].outcomes) == 4
    assert examine_blocks(third, ["a"], LEVEL)["a"].verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("pattern", PATTERNS)
def test_blocks_that_disagree_are_inconclusive(pattern: tuple[bool, ...]) -> None:
    evaluate = Scripted({"a": pattern})
    trail = examine_blocks(evaluate, ["a"], LEVEL)["a"]
    suspicious = len(trail.outcomes) - int(not all(pattern[: len(trail.outcomes)]))
    verdicts = (Verdict.CONSISTENT, Verdict.CONSISTENT, Verdict.INCONCLUSIVE, Verdict.VIOLATED)
    assert trail.verdict is verdicts[suspicious]
    assert [call[:2] for call in evaluate.calls] == [(block, 1) for block in range(1, len(trail.outcomes) + 1)]
    assert len(trail.outcomes) <= 3


def test_the_level_spends_the_budget_and_no_more() -> None:
    for false_alarm, share, statistics in ((1e-6, 0.1, 2000), (1e-3, 0.5, 1), (0.999, 0.001, 3)):
        budget = Budget(false_alarm, share)
        level = budget.level(statistics)
        assert 0 < level < 1
        assert 2 * level**3 * statistics + budget.ledger_level == pytest.approx(false_alarm, rel=1e-12)
        assert statistics * detection(level, level) + budget.ledger_level <= false_alarm * (1 + 1e-12)


def test_verdicts_are_strings_and_only_one_passes() -> None:
    names = ["consistent", "violated", "not examined", "inconclusive", "explained"]
    assert [str(verdict) for verdict in Verdict] == names
    assert [verdict for verdict in Verdict if verdict.passed] == [Verdict.CONSISTENT]
