"""Pools: one check combined across all cases of a property, or those with a common feature.

A pool reveals an effect that is common to its cases and too small for any single one. Its first look combines the
first looks of the cases. If that is suspicious, further looks take fresh draws of all cases.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError, refuse
from attncheck._lib.names import grouped
from attncheck._lib.text import counted
from attncheck._lib.workers import InProcess, LostTask, Workers
from attncheck.checks.check import AnyCheck
from attncheck.checks.registered import load_checks, modules_with
from attncheck.checks.registry import check_named, checks_of
from attncheck.evidence.family import Outcome
from attncheck.evidence.looks import examine, per_look_power
from attncheck.evidence.pools import Pool
from attncheck.evidence.summaries import Summary, from_record, to_record
from attncheck.evidence.verdicts import Trail, Verdict, expected
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case, modules_of, read_case
from attncheck.layers.features import features_of
from attncheck.looks.domains import LAYERS, domain_of
from attncheck.looks.examine import probed, take_look
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.looks.result import looks_of, unexamined
from attncheck.records.schema import Result, case_key
from attncheck.subject import Subject

#: The pool of all cases.
ALL = "all"
#: Pools of layers. All layers of a pool have one feature of ``attncheck.layers.features``, or two features that a line
#: of code often combines.
POOLS: Mapping[str, tuple[str, ...]] = {
    "causal": ("causal",),
    "grouped": ("grouped heads",),
    "head_dim": ("fixed head_dim",),
    "over_n": ("scores below 1/√n",),
    "tied": ("tied queries and keys",),
    "map": ("not softmax",),
    "activation": ("other φ",),
    "stds": ("other standard deviations",),
    "unscaled": ("plain sum of heads",),
    "correlated": ("correlated inputs",),
    "positions": ("position vectors",),
    "causal+grouped": ("causal", "grouped heads"),
    "causal+map": ("causal", "not softmax"),
    "grouped+head_dim": ("grouped heads", "fixed head_dim"),
}
# Role of the streams of further looks.
_ROLE = "pool"

#: Summaries of a look at a case, by check; or an error message.
Left = dict[str, Summary] | str


def most_pools(names: Iterable[str]) -> int:
    """Return the maximum number of pools of these properties, which the budget counts as statistics.

    Examples
    --------
    >>> most_pools(["non_gaussianity"]), most_pools(["fact1"])
    (15, 1)
    """
    return sum(len(checks_of(name)) * (1 + len(POOLS) * (domain_of(name) is LAYERS)) for name in set(names))


@dataclasses.dataclass(frozen=True)
class CasePool:
    """Results of one check on the cases of a pool, sorted by id; `name` is `ALL` or a key of `POOLS`."""

    name: str
    check: AnyCheck
    results: tuple[Result, ...]

    @property
    def id(self) -> str:
        """The id of the pool, ``check name@pool``."""
        return f"{self.check.name}@{self.name}"

    @property
    def first_look(self) -> Pool:
        """The combined first looks at all cases of the pool."""
        return Pool({case_key(one): from_record(one.summary) for one in self.results if one.summary is not None})


def pools_of(results: Iterable[Result]) -> list[CasePool]:
    """Group results on single cases into pools.

    If several pools of a check have the same cases, only the first is retained.
    """
    # Retain one result per id: two tests of one property may examine the same cases.
    distinct = {one.id: one for one in sorted(results, key=lambda one: one.id)}.values()
    examined = grouped((one for one in distinct if one.summary is not None), lambda one: one.check)
    shares = _shared({case_key(one): one.case for members in examined.values() for one in members})
    pools = []
    for check, members in examined.items():
        sets: dict[tuple[str, ...], str] = {}
        for name in (ALL, *POOLS):
            of = tuple(one.id for one in members if name == ALL or name in shares[case_key(one)])
            if len(of) > 1:
                sets.setdefault(of, name)
        by_id = {one.id: one for one in members}
        pools += [CasePool(name, check_named(check), tuple(by_id[key] for key in of)) for of, name in sets.items()]
    return pools


def _shared(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, frozenset[str]]:
    """Return, for each case key, the names of the pools that contain the case, without `ALL`."""
    return {
        key: frozenset() if "program" in fields else _pools_of(AttentionLayer.from_dict(dict(fields), trust=None))
        for key, fields in cases.items()
    }


def _pools_of(layer: AttentionLayer) -> frozenset[str]:
    has = features_of(layer)
    return frozenset(name for name, features in POOLS.items() if set(features) <= set(has))


@dataclasses.dataclass(frozen=True)
class LookTask:
    """One look at one case, as a task that can be pickled.

    A case given as a mapping is in serialised form, as in the record of the run.
    """

    subject: Any
    seed: int
    case: Case | Mapping[str, Any]
    role: str
    cost: Cost
    look: int
    factor: int
    checks: tuple[str, ...]
    modules: tuple[str, ...] = ()

    @property
    def items(self) -> list[Item]:
        """The test items; modules that a serialised case names are imported, as the run has done already."""
        written = self.case
        case = read_case(written, trust=modules_of(written)) if isinstance(written, Mapping) else written
        names = dict.fromkeys(check_named(check_name).property_name for check_name in self.checks)
        return [Item(name, case, role=self.role) for name in names]


def take(one: LookTask) -> dict[str, Summary]:
    """Take one look and return its summaries by check; may raise InputError.

    Checks without data have no summary.
    """
    load_checks(one.modules)
    subject, items = Subject.of(one.subject), one.items
    with own_arithmetic():
        plan = probed(items, subject, one.seed, one.cost)
        lost = sorted(set(one.checks) - {check.name for check in plan.sizes})
        if lost:
            problem = f"can no longer be examined on {items[0].case.describe()} ({plan.excused.get(lost[0], '')})"
            raise InputError(f"check={lost[0]}: {problem}; return the same arrays in every call")
        outcomes = take_look(items[0], plan, subject, one.seed, one.look, one.factor, one.checks)
    return summaries_of(outcomes)


def summaries_of(outcomes: Mapping[str, Outcome]) -> dict[str, Summary]:
    """Return the summaries of outcomes by name; outcomes without data are left out."""
    summaries = {name: outcome.summary for name, outcome in outcomes.items() if outcome.count}
    return {name: summary for name, summary in summaries.items() if summary is not None}


#: Callable that takes a look, given its number and factor, at some pools; returns summaries by case.
Later = Callable[[Sequence["CasePool"], int, int], Mapping[str, Left]]


def examine_pools(
    pools: Sequence[CasePool],
    violated: Iterable[str],
    later: Later,
    level: float,
    protocol: Callable[..., dict[str, Trail]] = examine,
) -> tuple[list[Result], list[str]]:
    """Return one result per pool, and the errors of further looks; pools with such an error have no result.

    `violated` holds the keys of violated cases: a suspicious pool that contains one is explained and gets no further
    looks. Other suspicious pools get further looks from the function `later`. `protocol` is
    `attncheck.evidence.looks.examine`, or `examine_blocks` if there are no fresh draws.
    """
    started, bad = time.perf_counter(), set(violated)
    by_id, failed = {pool.id: pool for pool in pools}, dict[str, str]()
    first = {name: pool.first_look.outcome() for name, pool in by_id.items()}
    explained = [
        name
        for name, outcome in first.items()
        if outcome.p_value < level and any(case_key(one) in bad for one in by_id[name].results)
    ]

    def evaluate(look: int, factor: int, names: tuple[str, ...]) -> dict[str, Outcome]:
        if look == 1:
            return {name: first[name] for name in names}
        by_case = later([by_id[name] for name in names], look, factor)
        return {name: _later_look(by_id[name], by_case, failed) for name in names}

    trails = {name: Trail((first[name],), Verdict.EXPLAINED, level) for name in explained}
    trails |= protocol(evaluate, [name for name in by_id if name not in explained], level)
    seconds = time.perf_counter() - started
    results = [_result(pool, trails[name], seconds) for name, pool in by_id.items() if name not in failed]
    return results, list(dict.fromkeys(failed.values()))


def fresh(subject: Any, seed: int, workers: Workers, cases: Mapping[str, Case] | None = None) -> Later:
    """Return a function that takes further looks at pools, with fresh draws of all their cases.

    `cases`, by key, replaces the cases stored in the results.
    """

    def later(pools: Sequence[CasePool], look: int, factor: int) -> dict[str, Left]:
        looks = _looks(pools, subject, seed, look, factor, cases or {})
        return dict(zip(looks, map(unwrap, workers.results(_attempt, list(looks.values()))), strict=True))

    def unwrap(result: Left | LostTask) -> Left:
        if not isinstance(result, LostTask):
            return result
        return f"subject={subject.name}: a further look at pools: {result.reason}; {result.remedy}"

    return later


def _looks(
    pools: Iterable[CasePool], subject: Any, seed: int, look: int, factor: int, cases: Mapping[str, Case]
) -> dict[str, LookTask]:
    """Return one look for each case of the pools; it serves all checks that are pooled on this case."""
    members = {(case_key(one), one.check): one for pool in pools for one in pool.results}
    tasks = {}
    for key, pairs in grouped(sorted(members), lambda pair: pair[0]).items():
        result, names = members[pairs[0]], tuple(check for _, check in pairs)
        cost = Cost(result.affordable, result.level, result.power)
        case = cases.get(key, result.case)
        modules = modules_with(name.partition(".")[0] for name in names)
        tasks[key] = LookTask(subject, seed, case, _ROLE, cost, look, factor, names, modules)
    return tasks


def _attempt(one: LookTask) -> Left:
    """Return the summaries of a look, or its error message."""
    try:
        return take(one)
    except InputError as error:
        return str(error)


def _later_look(pool: CasePool, by_case: Mapping[str, Left], failed: dict[str, str]) -> Outcome:
    """Return the outcome of a pool on fresh draws of its cases.

    If a case has an error instead of a summary, the error is added to `failed`.
    """
    summaries = {}
    for one in pool.results:
        result = by_case[case_key(one)]
        if isinstance(result, str):
            failed[pool.id] = result
        elif pool.check.name in result:
            summaries[case_key(one)] = result[pool.check.name]
    return Pool(summaries).outcome() if summaries and pool.id not in failed else Outcome(1.0, 0.0, 0.0, 0.0, 0.0, 0)


def repeat_pool(pool: Result, results: Sequence[Result], subject: Any, seed: int, trust: Sequence[str] = ()) -> Result:
    """Repeat a recorded pool from fresh draws of its cases; raises InputError if the record lacks a case."""
    of = set(pool.case["of"])
    members = sorted((one for one in results if one.check == pool.check and case_key(one) in of), key=lambda r: r.id)
    missing = sorted(of - {case_key(one) for one in members})
    if missing:
        refuse("id", pool.id, f"contains the case {missing[0]}, which has no result in the record", "repeat the run")
    cases = {case_key(one): read_case(one.case, trust) for one in members}
    again = tuple(_again(one, cases[case_key(one)], subject, seed) for one in members)
    violated = [case_key(one) for one in results if one.verdict == Verdict.VIOLATED]
    once = [CasePool(case_key(pool), check_named(pool.check), again)]
    pool_results, failed = examine_pools(once, violated, fresh(subject, seed, InProcess(), cases), pool.level)
    if failed:
        raise InputError(failed[0])
    return pool_results[0]


def _again(result: Result, case: Case, subject: Any, seed: int) -> Result:
    """Repeat the first look of a result, and return the result with the summary of the new look."""
    cost = Cost(result.affordable, result.level, result.power)
    once = LookTask(subject, seed, case, "draws", cost, look=1, factor=1, checks=(result.check,))
    summary = take(once).get(result.check)
    return msgspec.structs.replace(result, summary=None if summary is None else to_record(summary))


def _result(pool: CasePool, trail: Trail, seconds: float) -> Result:
    """Return the result of a pool after its looks."""
    first, power = pool.results[0], min(one.power for one in pool.results)
    mde = pool.first_look.mde(trail.level, per_look_power(power))
    cost = Cost(sum(one.affordable for one in pool.results), trail.level, power)
    case = {"pool": pool.name, "of": [case_key(one) for one in pool.results]}
    reason = "some of its cases are violated themselves" if trail.verdict == Verdict.EXPLAINED else ""
    return msgspec.structs.replace(
        unexamined(pool.check, first.property, pool.name, case, cost, reason),
        **looks_of(trail),
        verdict=str(trail.verdict),
        size=sum(one.size for one in pool.results),
        p_values=list(trail.p_values),
        mde=mde if math.isfinite(mde) else None,
        # A pool declares no alternative: the record gives its minimum detectable effect instead.
        alternative=mde if math.isfinite(mde) else None,
        text=_text(pool, trail.last),
        hint=first.hint,
        seconds=seconds,
    )


def _text(pool: CasePool, outcome: Outcome) -> str:
    """Return a pool's common effect as text, with its interval and its expected value."""
    unit = (pool.results[0].summary or {}).get("unit", "")
    common = {
        "size": "common factor between the compared sizes",
        "shift": "common shift in standard deviations",
        "excess": "normal score per case",
    }.get(unit)
    label = common or (f"common deviation of: {pool.check.reads}" if unit == "deviation" else pool.check.reads)
    numbers = f"{outcome.effect:.4g} [{outcome.low:.4g}, {outcome.high:.4g}]"
    null = f" (null: {pool.check.null})" if common else ""
    expectation = expected(outcome.null_effect, outcome.at_most)
    return f"{label} {numbers}, {expectation}, pooled over {counted(outcome.count, 'case')}{null}"
