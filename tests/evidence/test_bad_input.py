"""Bad input to the evidence is refused by a message that names field, value and remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attncheck._lib.errors import InputError
from attncheck._lib.streams import digest, stream
from attncheck.evidence import Evidence
from attncheck.evidence.budget import Budget
from attncheck.evidence.exchange import Calls, Extremes, Repeats, Trend
from attncheck.evidence.families import Association, Count, Outcome, Scale, Smooth, TwoSample, Uniform
from attncheck.evidence.groups import EqualVariances, LargestAssociation
from attncheck.evidence.ledger import Entry
from attncheck.evidence.looks import detection, examine, examine_blocks, per_look_power
from attncheck.evidence.orders import Order
from attncheck.evidence.pools import Pool
from attncheck.evidence.summaries import Events, NormalScore, from_record

LEVEL, POWER = 5e-4, 0.99
SCORE = NormalScore(0.0, 1.0)
LOOKS: tuple[Callable[..., Any], ...] = (examine, examine_blocks)
OUTCOME = Outcome(0.5, 0.0, -1.0, 1.0, 0.0, 10)
# For draws that their own generator does not decide.
SHARED = np.random.default_rng(0)


def entry(**changes: Any) -> Entry:
    fields: dict[str, Any] = {"id": "a/1", "case": "a", "verdict": "consistent", "p_values": (0.4,)}
    return Entry(**(fields | changes))


def scale(draw: Any) -> None:
    Evidence().assert_scale(draw, std=0.5, effect=0.1)


def law(law: Any, effect: float = 0.1) -> None:
    Evidence().assert_law(normals, law, effect)


def normals(rng: np.random.Generator, size: int) -> Any:
    return rng.standard_normal(size)


def p_values(values: Callable[[np.random.Generator], Any]) -> None:
    Evidence().assert_p_values(lambda seed: values(np.random.default_rng(seed)))


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: Scale(dof=0), "dof"),
    (lambda: Scale(dof=1).test([1.0, math.nan]), "squares"),
    (lambda: Scale(dof=1).test([-1.0]), "squares"),
    (lambda: Scale(dof=1).test([1e308, 1e308]), "squares"),
    (lambda: Scale(dof=1).test([1.0, 1.0], [1.0, 1.0, 1.0]), "dof"),
    (lambda: Scale(dof=0.1).test([1.0]), "dof"),
    (lambda: Scale(dof=1).test([1.0], [math.nan]), "dof"),
    (lambda: Scale(dof=1).power(0.0, 10, LEVEL), "alternative"),
    (lambda: Association(per_draw=0), "per_draw"),
    (lambda: Association().test([1.0], [1.0, 2.0]), "weight"),
    (lambda: Association().test([math.nan], [1.0]), "noise"),
    (lambda: Association().test([1.0], [math.inf]), "weight"),
    (lambda: Association().test([], []), "noise"),
    (lambda: Association().test(["a"], [1.0]), "noise"),
    (lambda: Association().test([1e308, -1e308], [1.0, 1.0]), "noise"),
    (lambda: LargestAssociation(columns=0), "columns"),
    (lambda: LargestAssociation().test([1.0], [1.0]), "noise"),
    (lambda: LargestAssociation().test([[1.0, 2.0]], [[1.0], [2.0]]), "noise"),
    (lambda: LargestAssociation().test([[math.nan]], [[1.0]]), "noise"),
    (lambda: LargestAssociation(columns=3).power(0.5, 10, 1.0), "level"),
    (lambda: Association().power(1.5, 10, LEVEL), "alternative"),
    (lambda: Association().power(0.5, 0, LEVEL), "size"),
    (lambda: Association().power(0.5, 10, 1.0), "level"),
    (lambda: Association().size(0.5, LEVEL, 1.0), "power"),
    (lambda: Association().size(0.5, 0.05, 0.05), "power"),
    (lambda: Association().size(0.5, LEVEL, POWER, cap=0), "cap"),
    (lambda: Association().mde(0, LEVEL, POWER), "size"),
    (lambda: Uniform(allowance=1.5), "allowance"),
    (lambda: Uniform(per_draw=0), "per_draw"),
    (lambda: Uniform().test([0.5, -1e-6]), "values"),
    (lambda: Uniform().test([math.nan]), "values"),
    (lambda: Uniform().power(-0.1, 10, LEVEL), "alternative"),
    (lambda: Uniform().power(0.1, 0, LEVEL), "size"),
    (lambda: Smooth(order=5), "order"),
    (lambda: Smooth(order=0), "order"),
    (lambda: Smooth(order=1).test(np.full(499, 0.5)), "values"),
    (lambda: Smooth(order=1).power(-2.0, 1000, LEVEL), "alternative"),
    (lambda: Smooth(order=1).power(0.1, 0, LEVEL), "size"),
    (lambda: Smooth(order=1, per_draw=0), "per_draw"),
    (lambda: TwoSample(ratio=0.0), "ratio"),
    (lambda: TwoSample(unit=-1.0), "unit"),
    (lambda: TwoSample().test(np.zeros(19), np.zeros(40)), "sample"),
    (lambda: TwoSample().test(np.zeros(40), np.zeros(19)), "reference"),
    (lambda: TwoSample().test(np.full(40, math.nan), np.zeros(40)), "sample"),
    (lambda: TwoSample().test(np.zeros(40), np.full(40, math.nan)), "reference"),
    (lambda: TwoSample(per_draw=0), "per_draw"),
    (lambda: TwoSample().power(-0.1, 40, LEVEL), "alternative"),
    (lambda: TwoSample().power(0.5, 0, LEVEL), "size"),
    (lambda: Count(-0.1), "probability"),
    (lambda: Count(0.5, per_draw=0), "per_draw"),
    (lambda: Count(0.5).power(-0.1, 10, LEVEL), "alternative"),
    (lambda: Count(0.5).power(0.6, 0, LEVEL), "size"),
    (lambda: Count(0.5, tail="lower"), "tail"),
    (lambda: Count(0.5).test(5, 4), "events"),
    (lambda: Count(0.5).test(0, 0), "trials"),
    (lambda: Outcome(math.nan, 0.0, 0.0, 0.0, 0.0, 1), "p_value"),
    (lambda: Outcome(0.5, math.inf, 0.0, 0.0, 0.0, 1), "effect"),
    (lambda: Outcome(0.5, 0.0, 0.0, 0.0, 0.0, -1), "count"),
    (lambda: Calls(1), "calls"),
    (lambda: Calls(2).test([1.0, math.nan, 2.0], [2, 1]), "values"),
    (lambda: Calls(2).power(-0.1, 10, 1e-3), "alternative"),
    (lambda: Calls(2).power(1.5, 10, 1e-3), "alternative"),
    (lambda: Calls(2).power(0.1, 0, 1e-3), "size"),
    (lambda: Calls(2).power(0.1, 10, 0.0), "level"),
    (lambda: Repeats().power(1.5, 10, 1e-3), "alternative"),
    (lambda: Repeats().power(0.1, 0, 1e-3), "size"),
    (lambda: EqualVariances(1, 5), "groups"),
    (lambda: EqualVariances(2, 0), "dof"),
    (lambda: EqualVariances(2, 5).test(np.ones((1, 2)), np.ones((1, 3))), "dof"),
    (lambda: EqualVariances(2, 5).power(0.0, 10, 1e-3), "alternative"),
    (lambda: Trend().power(1.5, 100, 1e-3), "alternative"),
    (lambda: Trend().test([np.nan] * 40, [40]), "values"),
    (lambda: Extremes().power(2.0, 10, 1e-3), "alternative"),
    (lambda: Extremes().power(0.1, 0, 1e-3), "size"),
    (lambda: Order(-0.5).test(np.zeros((5, 2)), [1, 4, 16]), "logs"),
    (lambda: Order(-0.5).test(np.zeros((5, 3)), [1, 4, 8]), "widths"),
    (lambda: Order(-0.5).test(np.full((5, 3), np.nan), [1, 4, 16]), "logs"),
    (lambda: Pool({}), "summaries"),
    (lambda: Pool({"a": SCORE, "b": Events(0, 1, 0.5)}), "summaries"),
    (lambda: Pool({"a": SCORE, "b": NormalScore(0.0, 1.0, "ratio")}), "summaries"),
    (lambda: Pool({"a": Events(0, 1, 0.5), "b": Events(0, 1, 0.5, one_sided=False)}), "summaries"),
    (lambda: NormalScore(math.nan, 1.0), "z"),
    (lambda: NormalScore(0.0, -1.0), "information"),
    (lambda: NormalScore(0.0, 1.0, "ratios"), "unit"),
    (lambda: NormalScore(0.0, 1.0, bias=-1.0), "bias"),
    (lambda: Events(2, 1, 0.5), "events"),
    (lambda: Events(0, 0, 0.5), "trials"),
    (lambda: Events(0, 1, 1.5), "probability"),
    (lambda: from_record({"z": 1.0}), "summary"),
    (lambda: from_record({"trials": 1}), "summary"),
    (lambda: Budget(0.0), "false_alarm"),
    (lambda: Budget(1.0), "false_alarm"),
    (lambda: Budget(float("nan")), "false_alarm"),
    (lambda: Budget(ledger_share=0.0), "ledger_share"),
    (lambda: Budget(ledger_share=1.0), "ledger_share"),
    (lambda: Budget().level(0), "statistics"),
    (lambda: Budget().level(1.5), "statistics"),  # type: ignore[arg-type]  # wrong on purpose
    (lambda: detection(1.1), "power_per_look"),
    (lambda: detection(-0.1), "power_per_look"),
    (lambda: detection(0.5, -0.1), "power_fourth"),
    (lambda: detection(0.5, 1.1), "power_fourth"),
    (lambda: per_look_power(1.0), "target"),
    (lambda: per_look_power(0.0), "target"),
    (lambda: stream(-1, "a"), "run_seed"),
    (lambda: stream(0, "a", look=0), "look"),
    (lambda: stream(0, "a", role=1), "role"),  # type: ignore[arg-type]  # wrong on purpose
    (lambda: stream(0, object()), "key"),
    (lambda: stream(0, np.zeros(3)), "key"),
    (lambda: stream(0, {"x": [math.nan]}), "key"),
    (lambda: digest("a", 0), "length"),
    (lambda: digest("a", 65), "length"),
    (lambda: entry(verdict="passed"), "verdict"),
    (lambda: entry(p_values=()), "p_values"),
    (lambda: entry(p_values=(1.5,)), "p_values"),
    (lambda: entry(p_values=(math.nan,)), "p_values"),
    (lambda: entry(p_values=("x",)), "p_values"),
    (lambda: entry(combined=-1.0), "p_values"),
    (lambda: entry(id=""), "id"),
    (lambda: entry(case=3), "case"),
    *(
        (lambda run=run, answer=answer: run(lambda look, factor, names: answer, ["a"], LEVEL), "evaluate")
        for run in LOOKS
        for answer in ({}, {"b": OUTCOME}, {"a": OUTCOME, "b": OUTCOME})
    ),
    *((lambda run=run: run(lambda *_: {"a": OUTCOME}, ["a", "a"], LEVEL), "statistics") for run in LOOKS),
    *((lambda run=run: run(lambda *_: {"a": OUTCOME}, ["a"], 0.0), "level") for run in LOOKS),
]


@pytest.mark.parametrize(("call", "field"), BAD)
def test_bad_input_names_field_value_and_remedy(
    call: Callable[[], Any], field: str, refusal: Callable[[str], str]
) -> None:
    with pytest.raises(InputError, match=refusal(field)):
        call()


MESSAGES: list[tuple[Callable[[], Any], str]] = [
    (lambda: scale(normals(SHARED, 100)), r"^draw=.*100: .*too few to find this effect; pass at least [\d,]+$"),
    (lambda: scale(lambda rng, size: rng.standard_normal((size, 2))), "^draw=.*must have the shape"),
    (lambda: scale(lambda rng, size: rng.standard_normal(size + 1)), "^draw=.*must have the shape"),
    (lambda: scale(lambda rng, size: np.full(size, np.nan)), "^draw=.*must be finite"),
    (lambda: scale(lambda rng, size: np.zeros(size)), "^draw=.*is the value of all draws"),
    (lambda: scale(lambda rng, size: SHARED.standard_normal(size)), "^draw=.*differs between calls"),
    (lambda: scale(lambda rng, size: ["a"] * size), "^draw=.*must hold real numbers"),
    (lambda: law(stats.poisson(3.0)), "^law=.*is discrete"),
    (lambda: law(3.0), "^law=.*no distribution function"),
    (lambda: law(lambda values: 0.5), "^law="),
    (lambda: law(stats.t), "^law="),
    (lambda: law(stats.norm(loc=[0.0, 1.0])), "^law="),
    (lambda: law(stats.norm(), 1e-4), "^effect=.*draws per look"),
    (lambda: Evidence().assert_independent(normals, effect=0.1), "^draw=.*must give x and y"),
    (lambda: Evidence(alpha=0.0), "^alpha="),
    (lambda: Evidence(power=1.0), "^power="),
    (lambda: p_values(lambda rng: ({"mean": np.nan}, {})), "return a chance for mean"),
    (lambda: p_values(lambda rng: ({"mean": np.nan}, {"mean": 0.0})), "return a chance for mean"),
    (lambda: p_values(lambda rng: ({}, {})), "returned no p-value"),
    (lambda: p_values(lambda rng: ({f"mean {rng.uniform()}": 1e-9}, {})), "names other nulls with another seed"),
]


@pytest.mark.parametrize(("call", "message"), MESSAGES)
def test_bad_assertions_say_what_is_wrong(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
