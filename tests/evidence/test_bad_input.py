"""Bad input to the evidence is refused by a message that names field, value and remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attncheck._lib.errors import InputError
from attncheck._lib.streams import digest, stream
from attncheck.evidence.budget import Budget
from attncheck.evidence.exchange import Calls, Extremes, Repeats, Trend
from attncheck.evidence.families import Association, Count, Outcome, Scale, Smooth, TwoSample, Uniform
from attncheck.evidence.groups import EqualVariances, LargestAssociation
from attncheck.evidence.looks import detection, per_look_power
from attncheck.evidence.orders import Order
from attncheck.evidence.pools import Pool
from attncheck.evidence.summaries import Events, NormalScore, from_record

LEVEL, POWER = 5e-4, 0.99
SCORE = NormalScore(0.0, 1.0)
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
    (lambda: Pool({"a": SCORE}).merge(Pool({"a": NormalScore(1.0, 1.0)})), "summaries"),
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
    (
        # Wrong type on purpose.
        lambda: Budget().level(1.5),  # type: ignore[arg-type]  # wrong on purpose
        "statistics",
    ),
    (lambda: detection(1.1), "power_per_look"),
    (lambda: detection(-0.1), "power_per_look"),
    (lambda: detection(0.5, -0.1), "power_fourth"),
    (lambda: detection(0.5, 1.1), "power_fourth"),
    (lambda: per_look_power(1.0), "target"),
    (lambda: per_look_power(0.0), "target"),
    (lambda: stream(-1, "a"), "run_seed"),
    (lambda: stream(0, "a", look=0), "look"),
    (
        # Wrong type on purpose.
        lambda: stream(0, "a", role=1),  # type: ignore[arg-type]  # wrong on purpose
        "role",
    ),
    (lambda: stream(0, object()), "key"),
    (lambda: stream(0, np.zeros(3)), "key"),
    (lambda: stream(0, {"x": [math.nan]}), "key"),
    (lambda: digest("a", 0), "length"),
    (lambda: digest("a", 65), "length"),
]


@pytest.mark.parametrize(("call", "field"), BAD)
def test_bad_input_names_field_value_and_remedy(
    call: Callable[[], Any], field: str, refusal: Callable[[str], str]
) -> None:
    with pytest.raises(InputError, match=refusal(field)):
        call()
