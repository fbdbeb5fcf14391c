"""Budget and look protocol, exhaustively; the ledger; and streams, with the same digits everywhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck._lib.streams import digest, encode, seed_sequence, stream
from attncheck.evidence.distances import Uniform
from attncheck.evidence.families import Association, Outcome
from attncheck.evidence.ledger import Conclusion, Entry, Ledger
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
    for target in (0.01, 0.5, 0.9, 0.9999):
        assert detection(per_look_power(target)) == pytest.approx(target, rel=1e-7)
    # The fourth look is sure unless said otherwise.
    assert detection(0.9) == pytest.approx(0.9**3 + 0.9**2 * 0.1, rel=1e-12)


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


# The ledger: uniformity, order, completeness and conclusion


def entry(name: str, verdict: str = "consistent", *p_values: float, **rest: Any) -> Entry:
    return Entry(name, name.split("/", maxsplit=1)[0], verdict, p_values, **rest)


def ledger(planned: Iterable[str], entries: Iterable[Entry], run_seed: int) -> Ledger:
    result = Ledger(planned, run_seed)
    for line in entries:
        result.take(line)
    return result


def conclude(planned: Iterable[str], entries: Iterable[Entry], budget: Budget, run_seed: int) -> Conclusion:
    return ledger(planned, entries, run_seed).conclude(budget)


def keyed_p_values(entries: Iterable[Entry], run_seed: int) -> dict[str, float]:
    return ledger([], entries, run_seed).keyed_p_values


def null_run(rng: np.random.Generator, units: int) -> list[Entry]:
    records = []
    for unit in range(units):
        p = float(rng.random())
        dependent = (p, 1.0 - p, (p + 0.5) % 1.0)
        records += [entry(f"{unit}/{i}", "consistent", each) for i, each in enumerate(dependent)]
        records.append(entry(f"{unit}/discrete", "consistent", 1.0, continuous=False))
    return records


def ids(records: list[Entry]) -> list[str]:
    return [each.id for each in records]


@pytest.mark.parametrize("seed", range(5))
def test_a_right_run_is_consistent_in_any_order(seed: int) -> None:
    records = null_run(stream(seed, "tests", "ledger"), 50)  # chance of a false alarm: 1e-7
    forward = conclude(ids(records), records, Budget(), run_seed=seed)
    assert (forward.verdict, forward.reasons) == ("consistent", ())
    assert forward == conclude(reversed(ids(records)), records[::-1], Budget(), run_seed=seed)
    assert forward.uniformity == Uniform().test(list(keyed_p_values(records, seed).values()))
    assert forward.uniformity.count == 50
    assert conclude([*ids(records), "x/1"], records, Budget(), run_seed=seed).missing == 1


def test_the_p_value_of_a_unit_is_chosen_by_key_and_not_by_value() -> None:
    chosen: Counter[int] = Counter()
    for seed in range(50):
        entries = [Entry(f"u/{i}", "u", "consistent", (0.1 * (i + 1),)) for i in range(5)]
        value = keyed_p_values(entries, seed)["u"]
        which = [entry.p_values[0] for entry in entries].index(value)
        changed = [Entry(e.id, "u", "consistent", (1.0 - e.p_values[0],)) for e in reversed(entries)]
        assert keyed_p_values(changed, seed)["u"] == 1.0 - value
        chosen[which] += 1
    assert len(chosen) > 1


def test_what_is_discrete_or_not_examined_is_not_entered() -> None:
    entries = [
        Entry("a/1", "a", "consistent", (0.2,), continuous=False),
        Entry("b/1", "b", "not examined", ()),
        Entry("c/1", "c", "violated", (1e-5, 1e-6, 1e-7), 1e-15),
    ]
    assert keyed_p_values(entries, 0) == {"c": 1e-5}
    records = [entry("a/1", "consistent", 0.2, continuous=False)]
    assert conclude(["a/1"], records, Budget(), 0).uniformity is None


GOOD = entry("a/1", "consistent", 0.4)
UNSURE = entry("b/1", "inconclusive", 1e-9, 1e-9, 0.4)
FORTY = [f"{unit}/a" for unit in range(40)]
CONCLUSIONS: list[tuple[list[str], list[Entry], str, str]] = [
    (["a/1", "b/1"], [GOOD], "incomplete", "1 planned result is missing: b/1"),
    (["a/1"], [GOOD, GOOD], "incomplete", "1 result is reported more than once: a/1"),
    (["a/1"], [GOOD, entry("b/1", "consistent", 0.5)], "incomplete", "1 result is reported but not planned: b/1"),
    (["a/1", "b/1"], [GOOD, entry("b/1", "violated", 1e-9, 1e-9, 1e-9)], "violated", "1 result is violated: b/1"),
    (["a/1", "b/1"], [entry("b/1", "violated", 1e-9, 1e-9, 1e-9)], "violated", "1 planned result is missing: a/1"),
    (["a/1", "b/1"], [GOOD, UNSURE], "inconclusive", "1 result is inconclusive: b/1"),
    (["a/1"], [entry("a/1", "not examined")], "inconclusive", "nothing was examined"),
    ([], [], "inconclusive", "nothing was examined"),
    (["a/1"], [], "incomplete", "nothing was examined"),
    (["a/1", *"bcdef"], [GOOD], "incomplete", "5 planned results are missing: b, c, d, e, f"),
    (["a/1", *"bcdefg"], [GOOD], "incomplete", "6 planned results are missing: b, c, d, e, f, …"),
    (["a/1", "b/1"], [GOOD, entry("b/1", "not examined")], "consistent", ""),
    *((FORTY, [entry(name, "consistent", p) for name in FORTY], "violated", "not uniform") for p in (1e-3, 0.5, 0.999)),
]


@pytest.mark.parametrize(("planned", "records", "verdict", "reason"), CONCLUSIONS)
def test_conclusions_and_their_reasons(planned: list[str], records: list[Entry], verdict: str, reason: str) -> None:
    found = conclude(planned, records, Budget(), run_seed=0)
    assert found.verdict == verdict
    assert reason in (*found.reasons, "") or reason in found.reasons[0]


@pytest.mark.parametrize(("verdict", "findings"), [("violated", 1), ("consistent", 0), ("odd", 1)])
def test_a_record_is_no_better_than_its_run_said_and_incomplete_without_an_end(verdict: str, findings: int) -> None:
    found = conclude(["a/1"], [GOOD], Budget(), 0).no_better_than(verdict, ["why"])
    assert len(found.findings) == findings
    assert found.verdict == {"odd": "incomplete"}.get(verdict, verdict)
    assert found.no_better_than(found.verdict, ["again"]) == found
    assert ledger(["a/1"], [GOOD], 0).conclude(Budget(), ended=False).verdict == "incomplete"


def test_what_is_violated_is_told_by_its_check_and_the_most_suspicious_first() -> None:
    seen = [("a@00000000000a", 0.1), ("b@00000000000a", 0.01), ("a@00000000000b", 0.2), ("a@causal", 0.3)]
    bad = [entry(name, "violated", 1e-9, combined=q, continuous=False) for name, q in seen]
    assert conclude(ids(bad), bad, Budget(), 0).reasons == ("4 results are violated: b, a, a@causal",)
    assert conclude(ids(bad[:1]), bad[:1], Budget(), 0).reasons == ("1 result is violated: a@00000000000a",)


# Streams: the same digits everywhere, and a new stream per key ------------------------------------


LAYER = {"width": 64, "heads": 4, "mask": "causal", "scaling": 0.5, "std": None, "shape": [1, 2]}

SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
VALUE = st.recursive(
    SCALAR | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


def test_digits_are_fixed_whatever_was_drawn_before() -> None:
    """On every platform: a change makes old records unreplayable."""
    assert digest(LAYER) == digest(LAYER, 64)[:12] == "c787c1f4fda3"
    assert [len(digest(LAYER, length)) for length in (1, 5, 64)] == [1, 5, 64]
    stream(7, "outputs", LAYER).standard_normal(50)
    assert stream(7, "scores", LAYER, look=2).integers(1000, size=4).tolist() == [871, 525, 793, 232]


KEYS: list[tuple[Any, ...]] = [
    ("outputs", LAYER),
    *(("scores", {**LAYER, **change}) for change in ({"heads": 5}, {"scaling": 0.5000000000000001}, {"extra": 0})),
    ("scores",),
    ("scores", LAYER, None),
    (["scores", LAYER],),
]


def test_changing_any_part_gives_an_unrelated_stream() -> None:
    changes: list[dict[str, Any]] = [{"run_seed": 8}, {"look": 2}, {"role": "inputs"}, *({"key": key} for key in KEYS)]
    ours = stream(7, "scores", LAYER).standard_normal(2000)
    for change in changes:
        fields: dict[str, Any] = {"run_seed": 7, "key": ("scores", LAYER), "look": 1, "role": "draws"} | change
        other = stream(fields.pop("run_seed"), *fields.pop("key"), **fields).standard_normal(2000)
        assert Association().test(ours, other).p_value > 1e-7, change  # chance of a false alarm
    looks = ((seed, f"property {i}", look) for seed in range(10) for i in range(250) for look in range(1, 5))
    assert len({seed_sequence(seed, name, look=look).entropy for seed, name, look in looks}) == 10_000


def test_a_key_survives_json_and_numpy() -> None:
    assert digest(json.loads(json.dumps(LAYER))) == digest(LAYER)
    assert digest((1, 2)) == digest([1, 2])
    numbers = {"n": np.int64(3), "x": np.float64(0.5), "b": np.bool_(True)}
    assert digest(numbers) == digest({"x": 0.5, "b": True, "n": 3})


@settings(max_examples=50)
@given(one=VALUE, other=VALUE)
def test_encodings_are_equal_only_for_equal_values(one: Any, other: Any) -> None:
    assert (encode(one) == encode(other)) == (repr(in_order(one)) == repr(in_order(other)))


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(item) for item in value] if isinstance(value, list) else value
