"""Fact 1 and Theorem 1: averages over neurons converge to their limits at rate n^{-1/2}."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.checks.check import FEWEST_NUMBERS
from attncheck.checks.programs.functionals import ProgramReference
from attncheck.checks.programs.kinds import ProgramAlternative, ProgramCheck, no_limit, several_widths
from attncheck.checks.programs.residuals import conditioned_sides, given_one_side
from attncheck.checks.programs.sample import ProgramSample, ProgramSetting
from attncheck.checks.rejected import Rejected
from attncheck.evidence.families import Uniform
from attncheck.evidence.orders import Order
from attncheck.layers.program import Initial, Node, Output, Program, ProgramCase, Score
from attncheck.layers.program.extent import vectors_of
from attncheck.layers.program.nodes import made_from
from attncheck.simulators.multipliers import MatrixFreeMultiplier
from attncheck.simulators.programs import draw_exposed
from attncheck.theory.limits.programs import ProgramLimit, limit_of_program

_NEEDS = frozenset({"scores", "gram"})
# Relative deviations up to this size are rounding errors.
_ROUNDING = 1e-9
# Number of draws for computing the distance from the limit, and maximum vector entries in memory.
_DRAWS, _ENTRIES = 1_000, 2**21


@functools.lru_cache(maxsize=8)
def _limit(program: Program) -> ProgramLimit:
    return limit_of_program(program)


def _netsor_pair(case: ProgramCase) -> tuple[Node, Node] | None:
    """Return the last two full-width vectors that do not depend on scores, excluding initial vectors."""
    after = made_from(case.program.nodes, lambda node: isinstance(node, Score))
    found = [
        node
        for node in vectors_of(case.program)
        if node not in after and node.size is None and not isinstance(node, Initial)
    ]
    return (found[-2], found[-1]) if len(found) > 1 else (found[0], found[0]) if found else None


def _output(case: ProgramCase) -> Output | None:
    """Return the last full-width output that uses scores."""
    outputs = [n for n in case.program.nodes if isinstance(n, Output) and n.scores and n.size is None]
    return outputs[-1] if outputs else None


def _logs(
    sample: ProgramSample, deviation: Callable[[ProgramSample, int], FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Return log |deviation| at each width, one row per draw, and the widths."""
    found = np.stack([np.abs(deviation(sample, k)) for k in range(len(sample.draws))], axis=1)
    # Skip deviations that are only rounding, e.g. with zero matrices.
    moves = (found > _ROUNDING).all(axis=1)
    return np.log(np.minimum(found[moves], 1e300)), np.array([sample.case.widths] * 3, dtype=np.float64)


def _gram(sample: ProgramSample, k: int) -> FloatArray:
    gram = sample.draws[k].gram
    assert gram is not None
    return gram


def _netsor_deviation(sample: ProgramSample, k: int) -> FloatArray:
    """Return x·x'/n - E[Z^x Z^x'], the deviation in Fact 1, over the product of root mean squares."""
    pair = _netsor_pair(sample.case)
    assert pair is not None
    lines = vectors_of(sample.case.program)
    one, other = (lines.index(node) for node in pair)
    law = _limit(sample.case.program)
    size = float(np.sqrt(law.second(pair[0], pair[0]) * law.second(pair[1], pair[1])))
    return (_gram(sample, k)[:, one, other] - law.second(*pair)) / max(size, 1e-300)


def _output_deviation(sample: ProgramSample, k: int) -> FloatArray:
    """Return the relative deviation of |y|²/n from E[(Z^y)² | p° = p] in Theorem 1."""
    output = _output(sample.case)
    assert output is not None
    place = vectors_of(sample.case.program).index(output)
    expected = _limit(sample.case.program).conditional_square(output, sample.draws[k].scores)
    return (_gram(sample, k)[:, place, place] - expected) / np.maximum(expected, 1e-300)


@functools.lru_cache(maxsize=8)
def _direction(program: Program) -> tuple[tuple[float, ...], float]:
    """Return a fixed direction over the scores, and the limit standard deviation along it."""
    covariance = _limit(program).score_covariance
    vector = stream(0, "direction", program.key).standard_normal(len(covariance))
    return tuple(vector.tolist()), float(np.sqrt(vector @ covariance @ vector))


@functools.lru_cache(maxsize=64)
def score_distance(case: ProgramCase) -> tuple[float, float]:
    """Return the distance of projected scores from their Gaussian limit at the largest width, and its error.

    Scores are conditionally normal, so their law is a mean of normal laws over draws of the conditional variance.

    Returns
    -------
    distance, error : float
        Kolmogorov distance, and the maximum over points of six standard errors.
    """
    sides, _ = conditioned_sides(case.program)
    vector, std = _direction(case.program)
    width = case.widths[-1]
    rng = stream(0, "score distance", case.key)
    step = max(1, _ENTRIES // max(1, case.stored_entries))
    sizes = [min(step, _DRAWS - start) for start in range(0, _DRAWS, step)]
    draws = (draw_exposed(case.program, width, size, 1, rng, MatrixFreeMultiplier).gram for size in sizes)
    covariances = np.concatenate([given_one_side(case, sides, gram) for gram in draws if gram is not None])
    variances = np.einsum("i,nij,j->n", vector, covariances, vector) / std**2
    points = np.linspace(-4.0, 4.0, 161)[:, None]
    laws = special.ndtr(points / np.sqrt(np.maximum(variances, 1e-300)))
    errors = 6.0 * laws.std(axis=1) / len(variances) ** 0.5
    return float(np.abs(laws.mean(axis=1) - special.ndtr(points[:, 0])).max()), float(errors.max())


def _score_uniform(sample: ProgramSample, reference: ProgramReference) -> tuple[FloatArray]:
    vector, std = _direction(sample.case.program)
    return (special.ndtr(sample.draws[-1].scores @ np.array(vector) / std),)


def _allowance(setting: ProgramSetting) -> float:
    return min(0.999, sum(score_distance(setting.case)))


def _unless(found: Callable[[ProgramCase], object], missing: str) -> Callable[[ProgramSetting], str]:
    """Return the exclusion of cases that have no limit or no three widths, or for which `found` returns None."""
    return lambda setting: several_widths(setting) or no_limit(setting) or ("" if found(setting.case) else missing)


def _no_scores(setting: ProgramSetting) -> str:
    found = several_widths(setting) or no_limit(setting) or conditioned_sides(setting.case.program)[1]
    return found or ("" if _direction(setting.case.program)[1] > 0 else "the scores are 0 in the limit")


_DEPARTURE = ProgramAlternative.of("an order off by 0.15", -0.35, coarsest=-0.2)

CHECKS = (
    ProgramCheck(
        name="fact1.order",
        rejects=Rejected.of("equal_rows"),
        claim="fact1",
        kind="limit",
        needs=_NEEDS,
        null="x·x'/n deviates from E[Z^x Z^x'] by an amount of order n^{-1/2}",
        alternative=_DEPARTURE,
        reads="order in n of the deviation of an average over neurons from its limit:",
        family=lambda setting: Order(-0.5),
        measure=lambda sample, reference: _logs(sample, _netsor_deviation),
        hint="averages do not converge to the limit of Definition 1, or converge more slowly",
        excluded=_unless(_netsor_pair, "no vector with n coordinates is computed without scores"),
    ),
    ProgramCheck(
        name="theorem1.order",
        rejects=Rejected.of("wandering_scale"),
        claim="theorem1",
        kind="limit",
        needs=_NEEDS,
        null="|y|²/n deviates from E[(Z^y)² | p°], a function of the scores, by an amount of order n^{-1/2}",
        alternative=_DEPARTURE,
        reads="order in n of the deviation of |y|²/n from its random limit:",
        family=lambda setting: Order(-0.5),
        measure=lambda sample, reference: _logs(sample, _output_deviation),
        hint="averages of outputs do not converge to the random limit that the scores determine",
        excluded=_unless(_output, "no output with n coordinates uses scores"),
    ),
    ProgramCheck(
        name="theorem1.scores",
        rejects=Rejected.of("scores_over_n"),
        claim="program_scores",
        kind="limit",
        needs=frozenset({"scores"}),
        null="a fixed projection of the scores is no further from N(0, (*)) than computed for the largest width",
        alternative=ProgramAlternative(
            "a law at Kolmogorov distance 0.05 beyond the computed one",
            lambda setting: min(1.0, 0.05 + _allowance(setting)),
            coarsest=lambda setting: min(1.0, 0.2 + _allowance(setting)),
        ),
        reads="Kolmogorov distance of projected scores from their limit:",
        family=lambda setting: Uniform(allowance=_allowance(setting)),
        measure=_score_uniform,
        hint="the scores do not approach the Gaussian with the covariance of formula (*)",
        excluded=_no_scores,
        fewest_draws=FEWEST_NUMBERS,
    ),
)
