"""Fact 1 and Theorem 1: averages over neurons approach their limits as n^{-1/2}."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attncheck.case import ProgramCase
from attncheck.checks.programs.kinds import ProgramCheck, ProgramDeparture, no_limit, several_widths
from attncheck.checks.programs.reference import ProgramReference
from attncheck.checks.programs.sample import ProgramSample, ProgramSetting
from attncheck.evidence.orders import Order
from attncheck.limits.programs import ProgramLimit, limit_of_program
from attncheck.program import Initial, Node, Output, Program
from attncheck.simulators.programs import vectors_of

FloatArray = NDArray[np.float64]

_NEEDS = frozenset({"scores", "gram"})


@functools.lru_cache(maxsize=8)
def _limit(program: Program) -> ProgramLimit:
    return limit_of_program(program)


def _netsor_pair(case: ProgramCase) -> tuple[Node, Node] | None:
    """Return the last two vectors that no score enters and that have the width's size, initial ones left out."""
    after = _after_scores(case)
    found = [
        node
        for node in vectors_of(case.program)
        if node not in after and node.size is None and not isinstance(node, Initial)
    ]
    return (found[-2], found[-1]) if len(found) > 1 else (found[0], found[0]) if found else None


def _after_scores(case: ProgramCase) -> set[Node]:
    after: set[Node] = set(case.scores)
    for node in case.program.nodes:
        if any(parent in after for parent in node.parents):
            after.add(node)
    return after


def _output(case: ProgramCase) -> Output | None:
    """Return the last output that takes scores and has the width's size."""
    outputs = [n for n in case.program.nodes if isinstance(n, Output) and n.scores and n.size is None]
    return outputs[-1] if outputs else None


def _logs(
    sample: ProgramSample, deviation: Callable[[ProgramSample, int], FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Return log |deviation| at each width, one row per draw, and the widths, once per chunk."""
    columns = [np.log(np.maximum(np.abs(deviation(sample, k)), 1e-300)) for k in range(len(sample.draws))]
    return np.stack(columns, axis=1), np.array([sample.layer.widths], dtype=np.float64)


def _gram(sample: ProgramSample, k: int) -> FloatArray:
    gram = sample.draws[k].gram
    assert gram is not None
    return gram


def _netsor_deviation(sample: ProgramSample, k: int) -> FloatArray:
    """Return x·x'/n less E[Z^x Z^x']: Fact 1's average of the product."""
    pair = _netsor_pair(sample.layer)
    assert pair is not None
    lines = vectors_of(sample.layer.program)
    one, other = (lines.index(node) for node in pair)
    return _gram(sample, k)[:, one, other] - _limit(sample.layer.program).second(*pair)


def _output_deviation(sample: ProgramSample, k: int) -> FloatArray:
    """Return |y|²/n less E[(Z^y)² | p° = p]: Theorem 1's average of the square, given the scores of the draw."""
    output = _output(sample.layer)
    assert output is not None
    place = vectors_of(sample.layer.program).index(output)
    return _gram(sample, k)[:, place, place] - _limit(sample.layer.program).conditional_square(
        output, sample.draws[k].scores
    )


def _measure(
    deviation: Callable[[ProgramSample, int], FloatArray],
) -> Callable[[ProgramSample, ProgramReference], tuple[FloatArray, FloatArray]]:
    return lambda sample, reference: _logs(sample, deviation)


def _no_netsor(setting: ProgramSetting) -> str:
    missing = "" if _netsor_pair(setting.layer) else "no vector of the width's size is made without scores"
    return several_widths(setting) or no_limit(setting) or missing


def _no_output(setting: ProgramSetting) -> str:
    missing = "" if _output(setting.layer) else "no output of the width's size takes scores"
    return several_widths(setting) or no_limit(setting) or missing


_DEPARTURE = ProgramDeparture.of("an order off by 0.15", -0.35, coarsest=-0.2)

CHECKS = (
    ProgramCheck(
        name="fact1.order",
        claim="fact1",
        kind="limit",
        needs=_NEEDS,
        null="x·x'/n deviates from E[Z^x Z^x'] by an amount of order n^{-1/2}",
        departure=_DEPARTURE,
        reads="order in n of the deviation of an average over neurons from its limit:",
        family=lambda setting: Order(-0.5),
        measure=_measure(_netsor_deviation),
        hint="averages do not converge to the limit of Definition 1, or not as fast",
        excluded=_no_netsor,
    ),
    ProgramCheck(
        name="theorem1.order",
        claim="theorem1",
        kind="limit",
        needs=_NEEDS,
        null="|y|²/n deviates from E[(Z^y)² | p°], a function of the scores, by an amount of order n^{-1/2}",
        departure=_DEPARTURE,
        reads="order in n of the deviation of |y|²/n from its random limit:",
        family=lambda setting: Order(-0.5),
        measure=_measure(_output_deviation),
        hint="averages of outputs do not converge to the random limit that the scores decide",
        excluded=_no_output,
    ),
)
