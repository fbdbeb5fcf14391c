"""Checks that W_O is not another matrix of its head, and that no two of many heads share W_Q."""

from __future__ import annotations

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.checks.check import Check, Setting
from attncheck.checks.conditional import VALUES_GIVEN
from attncheck.checks.declared import GIVEN_SCORES, SCORES, Rejected, of_correlation, of_direction
from attncheck.checks.derived import BY_ROWS, WHITENED
from attncheck.checks.matrices import KEY, QUERY, VALUE, HeadMatrix
from attncheck.checks.reference import Reference
from attncheck.checks.rotation import pairings
from attncheck.checks.sample import Sample
from attncheck.checks.whitening import Residual, chi_square_scores
from attncheck.evidence.families import Association
from attncheck.evidence.groups import LargestAssociation
from attncheck.layers import regimes
from attncheck.layers.requirements import SEVERAL_HEADS, UNTIED

Pair = tuple[FloatArray, FloatArray]

#: Maximum number of tested pairs of heads: all pairs of 16 heads.
MOST_PAIRS = 120
# Factor that gives dropped positions eigenvalues above all others.
_BEYOND = 2.0


def axes_of(matrices: FloatArray, retained: BoolArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return eigenvalues (..., s) and eigenvectors (..., s, s) of matrices on the kept positions, and a mask (..., s).

    Matrices must be 0 in the rows and columns of dropped positions, which come last in the result.
    """
    size = matrices.shape[-1]
    ceiling = _BEYOND * np.maximum(np.abs(matrices).sum(axis=-1).max(axis=-1), 1.0)
    shift = np.where(retained, 0.0, ceiling[..., None])[..., None] * np.eye(size)
    values, vectors = np.linalg.eigh(matrices + shift)
    return values, vectors, np.arange(size) < retained.sum(axis=-1)[..., None]


def head_pairs(count: int) -> list[tuple[int, int]]:
    """Return all pairs of heads, or `MOST_PAIRS` of them, neighbours and heads `count // 2` apart first.

    Examples
    --------
    >>> head_pairs(3), len(head_pairs(16)), len(head_pairs(64))
    ([(0, 1), (1, 2), (0, 2)], 120, 120)
    """
    turns = [(min(pair), max(pair)) for pair in pairings(count).reshape(-1, 2).tolist()]
    return list(dict.fromkeys(turns))[:MOST_PAIRS]


def _block(sample: Sample) -> Residual:
    """Return whitened scores, (draws, heads, rows, columns), or their largest visible block if some are hidden."""
    residual = sample.whitened_scores
    if "masked scores" in sample.exposed:
        return residual
    middle = sample.layer.seq_len // 2
    block = (..., slice(middle, None), slice(middle + 1))
    return Residual(residual.values[block], residual.kept[block])


def _block_rank(setting: Setting) -> int:
    s = setting.layer.seq_len
    return min(setting.input_rank, s if "masked scores" in setting.exposed else s - s // 2)


def _pairs(sample: Sample, reference: Reference) -> Pair:
    """Return sizes of one head's scores along another head's axes, and the lengths of the axes, (values, pairs).

    For whitened scores N_a and N_b with N_b N_bᵀ = U Λ Uᵀ, Uᵀ N_a is i.i.d. N(0, 1) given N_b. Its squares weighted by
    Λ add up to tr(N_a N_aᵀ N_b N_bᵀ), which reveals a shared W_Q.
    """
    block = _block(sample)
    rows, columns = np.asarray(block.kept.any(axis=-1)), block.kept.any(axis=-2).sum(axis=-1)
    lengths, axes, retained = axes_of(block.values @ block.values.swapaxes(-1, -2), rows)
    pairs = head_pairs(sample.layer.num_heads)
    noise, weight = np.zeros((2, len(pairs), *lengths[:, 0].shape))
    for k, (one, two) in enumerate(pairs):
        squares = ((axes[:, two].swapaxes(-1, -2) @ block.values[:, one]) ** 2).sum(axis=-1)
        valid = retained[:, two] & retained[:, one]
        noise[k] = np.where(valid, chi_square_scores(np.maximum(columns[:, one, None], 1), squares), 0.0)
        weight[k] = np.where(valid, lengths[:, two] - lengths[:, two][valid].mean() if valid.any() else 0.0, 0.0)
    return noise.reshape(len(pairs), -1).T, weight.reshape(len(pairs), -1).T


def _output_tie(of: HeadMatrix, rejects: Rejected) -> Check:
    """Return the check that W_O of a head is not another matrix of this head."""

    def pair(sample: Sample, reference: Reference) -> Pair:
        """Pair sizes of whitened outputs with sizes of another matrix of each head.

        Outputs are projected on the eigenvectors of Σ_h w_h W_h W_hᵀ, w_h the size of head h's other matrix and W_h
        from `head_directions`. The projections are still independent normals, and the eigenvalues mix the sizes w_h.
        """
        residual, directions = sample.output_residual, sample.head_directions.values
        energy, dof = of.energy(sample)
        sizes = np.where(dof > 0, chi_square_scores(np.maximum(dof, 1.0), energy), 0.0)
        # Centre head by head, because different scales per head are no dependence.
        entries = sample.layer.seq_len * sample.layer.num_heads // sizes.shape[1]
        weights = np.repeat(sizes - sizes.mean(axis=0), entries, axis=1)[:, None, :]
        mixed = (directions * weights) @ directions.swapaxes(-1, -2)
        values, vectors, valid = axes_of(mixed, np.asarray(residual.kept.any(axis=-1)))
        squares = ((vectors.swapaxes(-1, -2) @ residual.values) ** 2).sum(axis=-1)
        noise = chi_square_scores(sample.coordinates, squares)[valid]
        weight = values[valid]
        return noise, weight - weight.mean() if weight.size else weight

    return Check(
        name=f"independence.output_{of.images}_by_head",
        rejects=rejects,
        claim="independence",
        stage=GIVEN_SCORES,
        needs=VALUES_GIVEN | of.needs,
        null=f"sizes of the heads' parts of the whitened output are independent of those of the heads' {of.images}",
        alternative=of_direction(),
        reads=f"standardised covariance of the whitened output's sizes with those of its heads' {of.images}:",
        family=lambda setting: Association(setting.output_rank),
        measure=pair,
        hint=f"W_O and {of.name} of a head are one matrix",
        requires=of.requires,
    )


CHECKS = (
    _output_tie(QUERY, Rejected.of("tied_query_output", on=regimes.ONE_POSITION)),
    _output_tie(KEY, Rejected.of("tied_key_output", on=regimes.NARROW)),
    _output_tie(VALUE, Rejected.of("tied_value_output", on=regimes.NARROW)),
    Check(
        name="scores.head_pairs",
        rejects=Rejected.of("twin_queries", on=regimes.EIGHT_HEADS),
        claim="heads",
        stage=SCORES,
        needs=QUERY.needs - {WHITENED} | {BY_ROWS},
        null="given inputs and keys, the whitened scores N of any two heads are independent: N_a N_aᵀ and N_b N_bᵀ too",
        alternative=of_correlation("between two heads"),
        reads="largest standardised covariance of whitened scores' sizes between two heads:",
        family=lambda setting: LargestAssociation(_block_rank(setting), len(head_pairs(setting.layer.num_heads))),
        measure=_pairs,
        hint="two heads share W_Q",
        requires=UNTIED & SEVERAL_HEADS,
    ),
)
