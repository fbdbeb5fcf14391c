"""Fact 1 and Theorem 1: averages over neurons converge to their limits at rate n^{-1/2}."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks.declared import Rejected
from attncheck.checks.programs.functionals import ProgramAlternative, ProgramCheck, no_limit, several_widths
from attncheck.checks.programs.sample import ProgramSample, ProgramSetting
from attncheck.evidence.normal import Order
from attncheck.layers.program import Initial, Node, Output, Program, ProgramCase, Score
from attncheck.layers.program.extent import vectors_of
from attncheck.layers.program.nodes import defined_by
from attncheck.theory.limits.programs import ProgramLimit, limit_of_program

_NEEDS = frozenset({"scores", "gram"})
# Relative deviations up to this size are rounding errors.
_ROUNDING = 1e-9


@functools.lru_cache(maxsize=8)
def _limit(program: Program) -> ProgramLimit:
    return limit_of_program(program)


def _netsor_pair(case: ProgramCase) -> tuple[Node, Node] | None:
    """Return the last two full-width vectors that do not depend on scores, excluding initial vectors."""
    after = defined_by(case.program.nodes, lambda node: isinstance(node, Score))
    vectors = [
        node
        for node in vectors_of(case.program)
        if node not in after and node.size is None and not isinstance(node, Initial)
    ]
    return (vectors[-2], vectors[-1]) if len(vectors) > 1 else (vectors[0], vectors[0]) if vectors else None


def _output(case: ProgramCase) -> Output | None:
    """Return the last full-width output that uses scores."""
    outputs = [n for n in case.program.nodes if isinstance(n, Output) and n.scores and n.size is None]
    return outputs[-1] if outputs else None


def _logs(
    sample: ProgramSample, deviation: Callable[[ProgramSample, int], FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Return log |deviation| at each width, one row per draw, and the widths.

    `deviation` maps a sample and the index of a width to one number per draw. Draws are left out if a deviation is only
    a rounding error.
    """
    deviations = np.stack([np.abs(deviation(sample, k)) for k in range(len(sample.draws))], axis=1)
    # Skip deviations that are only rounding, e.g. with zero matrices.
    moves = (deviations > _ROUNDING).all(axis=1)
    return np.log(np.minimum(deviations[moves], 1e300)), np.array([sample.case.widths] * 3, dtype=np.float64)


def _gram(sample: ProgramSample, k: int) -> FloatArray:
    gram = sample.draws[k].gram
    assert gram is not None
    return gram


def _netsor_deviation(sample: ProgramSample, k: int) -> FloatArray:
    """Return the deviation x·x'/n - E[Z^x Z^x'] in Fact 1, divided by the product of the vectors' root mean squares.

    The vectors x and x' are those of `_netsor_pair`; `k` is the index of the width.
    """
    pair = _netsor_pair(sample.case)
    assert pair is not None
    lines = vectors_of(sample.case.program)
    one, two = (lines.index(node) for node in pair)
    law = _limit(sample.case.program)
    size = float(np.sqrt(law.second(pair[0], pair[0]) * law.second(pair[1], pair[1])))
    return (_gram(sample, k)[:, one, two] - law.second(*pair)) / max(size, 1e-300)


def _output_deviation(sample: ProgramSample, k: int) -> FloatArray:
    """Return the relative deviation of |y|²/n from E[(Z^y)² | p° = p] in Theorem 1.

    Here y is the output, and p are the scores; `k` is the index of the width.
    """
    output = _output(sample.case)
    assert output is not None
    index = vectors_of(sample.case.program).index(output)
    expected = _limit(sample.case.program).conditional_square(output, sample.draws[k].scores)
    return (_gram(sample, k)[:, index, index] - expected) / np.maximum(expected, 1e-300)


def _unless(lookup: Callable[[ProgramCase], object], missing: str) -> Callable[[ProgramSetting], str]:
    """Return a function that gives the reason to exclude a case, or an empty string.

    A case is excluded if it lacks three suitable widths or a limit, or if `lookup` returns None for it; in the last
    case, the reason is `missing`.
    """
    return lambda setting: several_widths(setting) or no_limit(setting) or ("" if lookup(setting.case) else missing)


_DEPARTURE = ProgramAlternative.of("an order off by 0.15", -0.35, coarsest=-0.2)

_check = functools.partial(
    ProgramCheck, kind="limit", needs=_NEEDS, alternative=_DEPARTURE, family=lambda setting: Order(-0.5)
)

CHECKS = (
    _check(
        name="fact1.order",
        rejects=Rejected.of("equal_rows"),
        claim="fact1",
        null="x·x'/n deviates from E[Z^x Z^x'] by an amount of order n^{-1/2}",
        reads="order in n of the deviation of an average over neurons from its limit:",
        measure=lambda sample, reference: _logs(sample, _netsor_deviation),
        hint="averages do not converge to the limit of Definition 1, or converge more slowly",
        excluded=_unless(_netsor_pair, "no vector with n coordinates is computed without scores"),
    ),
    _check(
        name="theorem1.order",
        rejects=Rejected.of("wandering_scale"),
        claim="theorem1",
        null="|y|²/n deviates from E[(Z^y)² | p°], a function of the scores, by an amount of order n^{-1/2}",
        reads="order in n of the deviation of |y|²/n from its random limit:",
        measure=lambda sample, reference: _logs(sample, _output_deviation),
        hint="averages of outputs do not converge to the random limit that the scores determine",
        excluded=_unless(_output, "no output with n coordinates uses scores"),
    ),
)
