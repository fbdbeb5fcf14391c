"""Tests of samples that cannot be drawn again: three disjoint blocks serve as looks.

If a block is too small for a check whose p-values are exact far into the tail, the whole file is one look at the
check's share of the false-alarm budget. A pass then counts only if the look has power against the check's
alternative. Several files, each of a different layer, are pooled block by block.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from attncheck._lib.errors import refuse
from attncheck._lib.streams import seed_sequence
from attncheck._lib.text import mde_text
from attncheck.checks.check import AnyCheck, Check, Setting
from attncheck.checks.registry import CHECKS, PROPERTIES
from attncheck.evidence.family import DRAWS_CAP, Outcome
from attncheck.evidence.looks import Budget, examine_blocks, per_look_power
from attncheck.evidence.verdicts import Trail, Verdict
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.item import Item
from attncheck.looks.look import observe
from attncheck.looks.plan import Cost, Plan, chunk_of
from attncheck.looks.pools import CasePool, Later, Left, examine_pools, most_pools, pools_of, summaries_of
from attncheck.looks.result import examined_result, skipped_result
from attncheck.records.schema import Result, case_key
from attncheck.runs.samples.files import Samples
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws
from attncheck.subject import Subject

BLOCKS = 3
_POWER = 0.99


@dataclasses.dataclass(frozen=True)
class FilePlan:
    """Plan for a file of samples: ``blocks`` for the checks examined in three blocks, ``whole`` for those in one look.

    ``excused`` holds the reasons for skipping the other checks.
    """

    samples: Samples
    setting: Setting
    blocks: Plan
    whole: Plan
    excused: Mapping[Check, str]


def plan_file(samples: Samples, budget: Budget, result_count: int, laws: WeightLaws) -> FilePlan:
    """Return the plan of a file; `result_count` is the number of results, over all files, that share the budget."""
    sample = samples.sample
    setting = Setting(sample.layer, sample.exposed, sample.coordinates, laws)
    level, single = budget.level(result_count), budget.looks_share / result_count
    block, size, power = len(samples) // BLOCKS, len(samples), per_look_power(_POWER)
    in_blocks, in_one, skipped = [], [], {}
    for check in CHECKS:
        reason = check.reason_not_examined(setting)
        if reason:
            skipped[check] = reason
            continue
        # Blocks cannot stand for the sample if draws of different blocks are compared, e.g. to find repeats.
        is_across_blocks = check.family_on(setting).across_blocks
        if block and not is_across_blocks and check.look_size(setting, level, power, block) is not None:
            in_blocks.append(check)
        elif size >= check.draws_per_unit and check.family_on(setting).tail_exact:
            in_one.append(check)
        else:
            skipped[check] = _too_small(check, check.size(setting, level, power, DRAWS_CAP), size)
    blocks = _plan(setting, in_blocks, block, level, power)
    return FilePlan(samples, setting, blocks, _plan(setting, in_one, size, single, _POWER), skipped)


def _plan(setting: Setting, checks: Sequence[Check], size: int, level: float, power: float) -> Plan:
    return Plan(setting, chunk_of(setting.layer, size), level, power, dict.fromkeys(checks, size), {})


def _too_small(check: AnyCheck, needed: int | None, size: int) -> str:
    takes = f"more than {DRAWS_CAP:,}" if needed is None else f"{BLOCKS * needed:,}"
    return f"{check.alternative.text} needs {takes} draws; the file has {size:,}"


def examine_samples(
    files: Sequence[Samples], *, seed: int = 0, false_alarm: float = 1e-6, laws: WeightLaws = GAUSSIAN_LAWS
) -> tuple[list[Result], list[Result]]:
    """Return one result per file and check, and the results of pools; raise InputError for two files of one layer."""
    layers = [file.sample.layer for file in files]
    twice = next((file for at, file in enumerate(files) if layers[at] in layers[:at]), None)
    if twice is not None:
        first = files[layers.index(twice.sample.layer)].source
        refuse("samples", twice.source, f"has the same layer as {first}", "put draws of one layer into one file")
    budget = Budget(false_alarm)
    result_count = len(CHECKS) * len(files) + (most_pools(PROPERTIES) if len(files) > 1 else 0)
    plans = [plan_file(file, budget, result_count, laws) for file in files]
    single = [(plan, result) for plan in plans for result in _examine(plan, seed)]
    in_blocks = [result for plan, result in single if result.check in _names(plan.blocks)]
    results = [result for _, result in single]
    bad = [case_key(result) for result in results if result.verdict == Verdict.VIOLATED]
    later = _later_blocks(plans, seed)
    pools, _ = examine_pools(pools_of(in_blocks), bad, later, budget.level(result_count), examine_blocks)
    return results, pools


def _later_blocks(plans: Sequence[FilePlan], seed: int) -> Later:
    """Return a function that takes looks at pools; each look uses one block of every file."""
    by_key = {plan.setting.layer.key: plan for plan in plans}

    def later(pools: Sequence[CasePool], look: int, factor: int) -> dict[str, Left]:
        summaries: dict[str, Left] = {}
        for key in sorted({case_key(one) for pool in pools for one in pool.results}):
            plan, pooled = by_key[key], {pool.check.name for pool in pools}
            names = tuple(name for name in _names(plan.blocks) if name in pooled)
            summaries[key] = summaries_of(_evaluate(plan.samples, plan.blocks, seed)(look, factor, names))
        return summaries

    return later


def _names(plan: Plan) -> tuple[str, ...]:
    """Return the names of the checks in a plan."""
    return tuple(check.name for check in plan.sizes)


def _examine(file: FilePlan, seed: int) -> list[Result]:
    """Return one result per check of a file."""
    started, blocks, whole = time.perf_counter(), file.blocks, file.whole
    trails: dict[str, Trail] = {}
    if blocks.sizes:
        trails |= examine_blocks(_evaluate(file.samples, blocks, seed), _names(blocks), blocks.level)
    if whole.sizes:
        once = _evaluate(file.samples, whole, seed)(1, 1, _names(whole))
        trails |= {name: _single(outcome, whole.level) for name, outcome in once.items()}
    seconds = time.perf_counter() - started
    results = [
        _result(file, plan, check, trails[check.name], seconds) for plan in (blocks, whole) for check in plan.sizes
    ]
    cost = Cost(len(file.samples), blocks.level, _POWER)
    skipped = [skipped_result(_item(file, check), check, cost, reason) for check, reason in file.excused.items()]
    return results + skipped


def _single(outcome: Outcome, level: float) -> Trail:
    verdict = Verdict.VIOLATED if outcome.p_value < level else Verdict.CONSISTENT
    return Trail((outcome,), verdict, level)


def _evaluate(samples: Samples, plan: Plan, seed: int) -> Any:
    by_name = {check.name: check for check in plan.sizes}
    layer = plan.setting.case

    def evaluate(look: int, factor: int, names: tuple[str, ...]) -> dict[str, Outcome]:
        size = next(iter(plan.sizes.values()))
        position = (look - 1) * size

        def read(layer: AttentionLayer, count: int, rng: np.random.Generator) -> dict[str, Any]:
            """Return the next draws in the file as if they were fresh."""
            nonlocal position
            position += count
            return samples.sample[position - count : position].arrays

        subject = Subject(samples.source, read, "size")
        reference = seed_sequence(seed, "samples", layer.key, look=look, role="reference")
        rng = np.random.default_rng(0)  # a required argument that is not used for files
        return observe(plan, [by_name[name] for name in names], factor, subject, rng, reference)

    return evaluate


def _item(file: FilePlan, check: AnyCheck) -> Item:
    return Item(check.property_name, file.setting.layer)


def _result(file: FilePlan, plan: Plan, check: AnyCheck, trail: Trail, seconds: float) -> Result:
    cost = Cost(plan.sizes[check], plan.level, plan.power)
    result = examined_result(_item(file, check), check, cost, plan, trail, seconds)
    size, is_alone = len(file.samples), plan is file.whole and result.verdict == Verdict.CONSISTENT
    if is_alone and check.look_size(file.setting, plan.level, _POWER, size) is None:
        needed = check.size(file.setting, file.blocks.level, per_look_power(_POWER), DRAWS_CAP)
        reason = f"{_too_small(check, needed, size)}; this file would reveal {mde_text(result.mde)}"
        return msgspec.structs.replace(result, verdict=str(Verdict.NOT_EXAMINED), reason=reason, p_values=[])
    if result.verdict == Verdict.INCONCLUSIVE:
        return msgspec.structs.replace(
            result, reason="the blocks of draws disagree; a file with more draws would decide"
        )
    return result
