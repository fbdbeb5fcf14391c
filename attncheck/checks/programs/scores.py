"""Checks of a program's scores uᵀv (Definition 1 (iv), Proposition 8).

Given one of the two vectors u and v of each score, scores are exactly Gaussian. Formula (*) of the paper, in
`attncheck.checks.programs.residuals.score_residual`, gives their covariance.
"""

from __future__ import annotations

import functools

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks.declared import Rejected, of_correlation, of_law
from attncheck.checks.functionals import log
from attncheck.checks.independence import standard
from attncheck.checks.programs.functionals import ProgramAlternative, ProgramCheck, ProgramReference
from attncheck.checks.programs.residuals import conditioned_sides
from attncheck.checks.programs.sample import ProgramSample
from attncheck.evidence.families import Association, Scale, Uniform
from attncheck.layers.program.extent import vectors_of


def _vectors(sample: ProgramSample, reference: ProgramReference) -> tuple[FloatArray, FloatArray]:
    """Pair each whitened score with one coordinate of a vector on which it is conditioned.

    The vector changes from draw to draw.
    """
    free = {sides.free.weight for sides in conditioned_sides(sample.case.program)[0].values()}
    uses = [images.weight for images in sample.images for _ in images.inputs]
    indices = [k for k, weight in enumerate(uses) if weight not in free]
    residual, noise = sample.matmuls, sample.score_noise
    if not indices:
        return np.zeros(0), np.zeros(0)
    draw = np.arange(len(sample))
    columns = (draw[:, None] + np.arange(noise.values.shape[1])) % len(indices)
    weight = residual.values[draw[:, None], np.array(indices)[columns], 0]
    return noise.flat(), weight[noise.kept]


def _sizes(sample: ProgramSample, reference: ProgramReference) -> tuple[FloatArray, FloatArray]:
    """Pair the size of each draw's whitened scores with the size of the given vectors."""
    noise = sample.score_noise
    valid = noise.kept.any(axis=1)
    squares = np.diagonal(sample.need("gram"), axis1=1, axis2=2)
    known = {node for sides in conditioned_sides(sample.case.program)[0].values() for node in sides.known}
    indices = [k for k, node in enumerate(vectors_of(sample.case.program)) if node in known]
    return noise.energy_scores(1)[valid], standard(log(squares[:, indices].sum(axis=1)))[valid]


_check = functools.partial(
    ProgramCheck,
    claim="program_scores",
    needs=frozenset({"scores", "vectors", "gram"}),
    excluded=lambda setting: conditioned_sides(setting.case.program)[1],
)

CHECKS = (
    _check(
        name="program_scores.law",
        rejects=Rejected.of("biased_matmuls", "tied_matrices", "scores_over_n", "leaking_neuron"),
        null="given one of the two vectors of each score, scores whitened by formula (*) are N(0, 1)",
        alternative=of_law(),
        reads="Kolmogorov distance of whitened scores from N(0, 1):",
        family=lambda setting: Uniform(),
        measure=lambda sample, reference: sample.score_noise.uniform(),
        hint="the scaling of the scores, their factor, or the matrices that they share differ from the declared ones",
    ),
    _check(
        name="program_scores.scale",
        rejects=Rejected.of(
            "matrix_std_5", "fresh_matrices", "scores_over_n", "scores_5", "scores_of_another_draw", "limit_scores"
        ),
        null="whitened scores have variance 1",
        alternative=ProgramAlternative.of("a variance off by 15%", 1.15, coarsest=1.5),
        reads="ratio of the variance of scores to that of formula (*):",
        family=lambda setting: Scale(1.0),
        measure=lambda sample, reference: sample.score_noise.squares(),
        hint="the scaling of the scores or their factor differs from the declared one",
    ),
    _check(
        name="program_scores.independence",
        rejects=Rejected.of("leaking_neuron"),
        null="whitened scores are independent of the vectors that they are conditioned on",
        alternative=of_correlation(),
        reads="standardised covariance of whitened scores with coordinates of vectors:",
        family=lambda setting: Association(),
        measure=_vectors,
        hint="a score is computed from other vectors than the declared ones",
    ),
    _check(
        name="program_scores.sizes",
        rejects=Rejected.of("tied_matrices", "leaking_neuron", "scores_of_another_draw", "limit_scores"),
        null="sizes of whitened scores are independent of the sizes of the vectors",
        alternative=of_correlation(),
        reads="standardised covariance of the sizes of whitened scores with those of the vectors:",
        family=lambda setting: Association(),
        measure=_sizes,
        hint="scores do not scale with the lengths of their vectors: they are drawn separately, or from the limit",
    ),
)
