"""Bad input to the evidence is refused by a message that names field, value and remedy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attncheck._lib.streams import digest, stream
from attncheck.evidence import Evidence
from attncheck.evidence.exchange import Calls, Trend
from attncheck.evidence.families import Association, Count, Outcome, Scale, Smooth, TwoSample, Uniform
from attncheck.evidence.groups import EqualVariances, LargestAssociation
from attncheck.evidence.ledger import Entry
from attncheck.evidence.looks import Budget, detection, examine, examine_blocks, per_look_power
from attncheck.evidence.normal import Order
from attncheck.evidence.pools import Pool
from attncheck.evidence.summaries import Events, NormalScore, from_record
from tests.refusals import refused

from .families import CASES

LEVEL, POWER = 5e-4, 0.99
SCORE = NormalScore(0.0, 1.0)
LOOKS: tuple[Callable[..., Any], ...] = (examine, examine_blocks)
FEW_OR_NAN = [np.zeros(19), np.full(40, math.nan)]
OUTCOME = Outcome(0.5, 0.0, -1.0, 1.0, 0.0, 10)
FAMILIES = [case.family for name, case in CASES.items() if name != "blocks"]
# For draws that their own generator does not decide.
SHARED = np.random.default_rng(0)


# Calls with usable arguments, some of which are replaced below.
entry = functools.partial(Entry, id="a/1", case="a", verdict="consistent", p_values=(0.4,))
events = functools.partial(Events, events=0, trials=1, probability=0.5)
outcome = functools.partial(Outcome, p_value=0.5, effect=0.0, low=0.0, high=0.0, null_effect=0.0, count=1)
size_of = functools.partial(Association().size, 0.5, level=LEVEL, power=POWER)


def scale(draw: Any) -> None:
    Evidence().assert_scale(draw, std=0.5, effect=0.1)


def law(law: Any, effect: float = 0.1) -> None:
    Evidence().assert_law(normals, law, effect)


def twice(rng: np.random.Generator, size: int) -> Any:
    return rng.standard_normal(size // 2).repeat(2)


def normals(rng: np.random.Generator, size: int) -> Any:
    return rng.standard_normal(size)


def few_values(family: Any) -> None:
    Evidence().assert_statistic(normals, family, lambda draws: (stats.norm.cdf(draws[:9]),), 0.5, "shift")


def p_values(values: Callable[[np.random.Generator], Any]) -> None:
    Evidence().assert_p_values(lambda seed: values(np.random.default_rng(seed)))


#: A function with one argument that it refuses, and values of it.
VALUES: list[tuple[Callable[..., Any], str, list[Any]]] = [
    (Scale, "dof", [0]),
    (lambda squares: Scale(1).test(squares), "squares", [[1.0, math.nan], [-1.0], [1e308, 1e308]]),
    (lambda dof: Scale(1).test([1.0], dof), "dof", [[1.0, 1.0], [math.nan]]),
    (lambda weight: Association().test([1.0], weight), "weight", [[1.0, 2.0], [math.inf]]),
    (lambda noise: Association().test(noise, [1.0]), "noise", [[math.nan], ["a"]]),
    *((family, "per_draw", [0]) for family in (Association, Uniform, TwoSample)),
    (LargestAssociation, "columns", [0]),
    (lambda noise: LargestAssociation().test(noise, [[1.0]]), "noise", [[[math.nan]], [1.0]]),
    (size_of, "power", [1.0, LEVEL]),
    (size_of, "cap", [0]),
    (functools.partial(Association().mde, level=LEVEL, power=POWER), "size", [0]),
    (Uniform, "allowance", [1.5]),
    (Uniform().test, "values", [[0.5, -1e-6], [math.nan]]),
    (Smooth, "order", [0, 5]),
    (TwoSample, "ratio", [0.0]),
    (TwoSample, "unit", [-1.0]),
    (functools.partial(TwoSample().test, reference=np.zeros(40)), "sample", FEW_OR_NAN),
    (functools.partial(TwoSample().test, np.zeros(40)), "reference", FEW_OR_NAN),
    (Count, "probability", [-0.1]),
    (functools.partial(Count, 0.5), "tail", ["lower"]),
    (functools.partial(Count(0.5).test, trials=4), "events", [5]),
    (functools.partial(Count(0.5).test, 0), "trials", [0]),
    (outcome, "p_value", [math.nan]),
    (outcome, "effect", [math.inf]),
    (outcome, "count", [-1]),
    (Calls, "calls", [1]),
    (functools.partial(EqualVariances, dof=5), "groups", [1]),
    (functools.partial(EqualVariances, 2), "dof", [0]),
    (lambda dof: EqualVariances(2, 5).test(np.ones((1, 2)), dof), "dof", [np.ones((1, 3))]),
    (lambda logs: Order(-0.5).test(logs, (1, 4, 16)), "logs", [np.zeros((5, 2)), np.full((5, 3), math.nan)]),
    (lambda widths: Order(-0.5).test(np.zeros((5, 3)), widths), "widths", [[1, 4, 8]]),
    (
        Pool,
        "summaries",
        [
            {},
            *({"a": SCORE, "b": other} for other in (Events(0, 1, 0.5), NormalScore(0.0, 1.0, "ratio"))),
            {"a": Events(0, 1, 0.5), "b": Events(0, 1, 0.5, one_sided=False)},
        ],
    ),
    (functools.partial(NormalScore, information=1.0), "z", [math.nan]),
    (functools.partial(NormalScore, 0.0), "information", [-1.0]),
    (functools.partial(NormalScore, 0.0, 1.0), "unit", ["ratios"]),
    (functools.partial(NormalScore, 0.0, 1.0), "bias", [-1.0]),
    (events, "events", [2]),
    (events, "trials", [0]),
    (events, "probability", [1.5]),
    (Budget, "false_alarm", [0.0, 1.0, math.nan]),
    (Budget, "ledger_share", [0.0, 1.0]),
    (Budget().level, "statistics", [0, 1.5]),
    (detection, "power_per_look", [1.1, -0.1]),
    (functools.partial(detection, 0.5), "power_fourth", [-0.1, 1.1]),
    (per_look_power, "target", [0.0, 1.0]),
    (functools.partial(stream, 0, "a"), "look", [0]),
    (functools.partial(stream, 0, "a"), "role", [1]),
    (functools.partial(digest, "a"), "length", [0, 65]),
    (entry, "verdict", ["passed"]),
    (entry, "p_values", [(), (1.5,), (math.nan,), ("x",)]),
    (entry, "id", [""]),
    (entry, "case", [3]),
]
#: Calls, and the field that their message names.
BAD: list[tuple[Callable[[], Any], str]] = [
    *((functools.partial(call, **{name: value}), name) for call, name, values in VALUES for value in values),
    # Blocks leave this to their family; orders may be any number.
    *((functools.partial(family.power, -9.0, 1000, LEVEL), "alternative") for family in FAMILIES[:-1]),
    *((functools.partial(family.power, family.null_effect, 0, LEVEL), "size") for family in FAMILIES),
    *((functools.partial(family.power, family.null_effect, 1000, 1.0), "level") for family in FAMILIES),
    (lambda: Association().test([], []), "weight"),
    (lambda: Association().test([1e308, -1e308], [1.0, 1.0]), "noise"),
    (lambda: LargestAssociation().test([[1.0, 2.0]], [[1.0], [2.0]]), "weight"),
    (lambda: Calls(2).test([1.0, math.nan, 2.0], [2, 1]), "values"),
    (lambda: Trend().test([np.nan] * 40, [40]), "values"),
    (lambda: entry(combined=-1.0), "p_values"),
    *((lambda summary=summary: from_record(summary), "summary") for summary in ({"z": 1.0}, {"trials": 1})),
    (lambda: stream(-1, "a"), "run_seed"),
    *((lambda key=key: stream(0, key), "key") for key in (object(), np.zeros(3), {"x": [math.nan]})),
    *(
        (lambda run=run, answer=answer: run(lambda look, factor, names: answer, ["a"], LEVEL), "evaluate")
        for run in LOOKS
        for answer in ({}, {"b": OUTCOME}, {"a": OUTCOME, "b": OUTCOME})
    ),
    *((lambda run=run: run(lambda *_: {"a": OUTCOME}, ["a", "a"], LEVEL), "statistics") for run in LOOKS),
    *((lambda run=run: run(lambda *_: {"a": OUTCOME}, ["a"], 0.0), "level") for run in LOOKS),
]


MESSAGES: list[tuple[Callable[[], Any], str]] = [
    (lambda: scale(normals(SHARED, 100)), r"^draw=.*100: .*too few to find this effect; pass at least [\d,]+$"),
    (lambda: scale(lambda rng, size: rng.standard_normal((size, 2))), "^draw=.*must have the shape"),
    (lambda: scale(lambda rng, size: rng.standard_normal(size + 1)), "^draw=.*must have the shape"),
    (lambda: scale(lambda rng, size: np.full(size, np.nan)), "^draw=.*must be finite"),
    (lambda: scale(lambda rng, size: np.zeros(size)), "^draw=.*is the value of all draws"),
    (lambda: scale(lambda rng, size: SHARED.standard_normal(size)), "^draw=.*differs between calls"),
    (lambda: Evidence().assert_law(twice, stats.norm(), 0.1), "^draw=.*only 8 of 16 .* distinct"),
    (lambda: scale(lambda rng, size: np.random.default_rng(0).standard_normal(size)), "^draw=.*for two generators"),
    (lambda: scale(lambda rng, size: ["a"] * size), "^draw=.*must hold real numbers"),
    (lambda: law(stats.poisson(3.0)), "^law=.*is discrete"),
    (lambda: law(3.0), "^law=.*no distribution function"),
    (lambda: law(lambda values: 0.5), "^law="),
    (lambda: law(stats.t), "^law="),
    (lambda: law(stats.norm(loc=[0.0, 1.0])), "^law="),
    (lambda: law(stats.norm(), 1e-4), "^effect=.*draws per look"),
    (lambda: few_values(Smooth(1)), "^measure=.*give too few values"),
    (lambda: Evidence().assert_independent(normals, effect=0.1), "^draw=.*must give x and y"),
    (lambda: Evidence(alpha=0.0), "^alpha="),
    (lambda: Evidence(power=1.0), "^power="),
    (lambda: p_values(lambda rng: ({"mean": np.nan}, {})), "return a chance for mean"),
    (lambda: p_values(lambda rng: ({"mean": np.nan}, {"mean": 0.0})), "return a chance for mean"),
    (lambda: p_values(lambda rng: ({}, {})), "returned no p-value"),
    (lambda: p_values(lambda rng: ({f"mean {rng.uniform()}": 1e-9}, {})), "names other nulls with another seed"),
]


#: Field, value, problem and remedy.
PATTERN = r"^{}=(?!None:).+: (?:[a-z]|NaN).+; [a-z]+ [^X]+$"


@pytest.mark.parametrize(
    ("call", "pattern"),
    [*((call, PATTERN.format(field)) for call, field in BAD), *MESSAGES],
)
def test_bad_input_names_field_value_and_remedy(call: Callable[[], Any], pattern: str) -> None:
    refused(call, pattern)
