"""Checks that whitened outputs, scores and values are independent of inputs, scores, keys and other heads' matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.checks.check import Check, Setting
from attncheck.checks.conditional import VALUES_GIVEN, residuals
from attncheck.checks.declared import GIVEN_SCORES, SCORES, Rejected, of_correlation, of_direction
from attncheck.checks.derived import BY_ROWS, WHITENED
from attncheck.checks.functionals import log, log_energy
from attncheck.checks.matrices import KEY, QUERY, VALUE, HeadMatrix, factor_entries
from attncheck.checks.reference import Reference
from attncheck.checks.rotation import centred, pairings
from attncheck.checks.sample import Sample
from attncheck.checks.scores import entries
from attncheck.checks.whitening import Residual, chi_square_scores
from attncheck.evidence.families import Association
from attncheck.evidence.groups import LargestAssociation
from attncheck.layers import regimes
from attncheck.layers.requirement import ANY
from attncheck.layers.requirements import SEVERAL_HEADS, UNTIED, OfLayer

Pair = tuple[FloatArray, FloatArray]

_KEYS = QUERY.needs
_VALUE_GRAM = frozenset({"outputs", "input_gram", "value_gram"})
#: Maximum number of tested pairs of heads: all pairs of 16 heads.
MOST_PAIRS = 120
# Dropped positions get eigenvalues that exceed a bound on all others by this factor.
_BEYOND = 2.0


def standard(values: FloatArray) -> FloatArray:
    """Standardise a variable; the null holds at any scale, but the power assumes unit variance."""
    if not values.size:
        return values
    spread = values.std()
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)


def _sizes(residual: Residual, variable: FloatArray) -> Pair:
    """Return the size of each draw's residual and the standardised `variable`.

    Draws with an empty residual are left out.
    """
    valid = residual.kept.any(axis=tuple(range(1, residual.kept.ndim)))
    return residual.energy_scores(1)[valid], standard(variable[valid])


def _trace(sample: Sample) -> FloatArray:
    return log(np.trace(sample.need("input_gram"), axis1=1, axis2=2))


def _keys_values(sample: Sample, reference: Reference) -> Pair:
    values, keys = sample.value_factors, sample.key_factors
    both = values.kept & keys.kept
    return values.values[both], centred(keys.values, both)[both]


def _all_entries(energies: Pair) -> FloatArray:
    """Return each draw's sum of squares over all heads as a normal score; NaN if the draw has no squares.

    `energies` are the sums of squares of each head and their degrees of freedom. Given the inputs, the sum over heads
    has a χ² law under the null.
    """
    energy, dof = (part.reshape(len(part), -1).sum(axis=1) for part in energies)
    return np.where(dof > 0, chi_square_scores(np.maximum(dof, 1.0), energy), np.nan)


def _values_with(energy: Callable[[Sample], Pair]) -> Callable[[Sample, Reference], Pair]:
    """Return a measure that pairs the size of the value Gram matrices with the size of scores or keys.

    `energy` returns the squares of the scores or of the keys. Both sizes are summed over heads.
    """

    def pair(sample: Sample, reference: Reference) -> Pair:
        noise, weight = _all_entries(VALUE.energy(sample)), _all_entries(energy(sample))
        valid = ~np.isnan(noise + weight)
        return noise[valid], standard(weight[valid])

    return pair


def _tie(
    name: str,
    between: tuple[str, str],
    needs: frozenset[str],
    measure: Callable[[Sample, Reference], Pair],
    cause: str,
    rejects: Rejected,
    per_draw: Callable[[Setting], int] = lambda setting: 1,
    claim: str = "independence",
    requires: OfLayer = ANY,
) -> Check:
    """Return the check that a residual is uncorrelated with another variable.

    `between` holds the names of the residual and of the variable, and `measure` returns their values. `per_draw` gives
    the number of these values per draw, and `cause` is the hint. The other arguments are fields of the check.
    """
    noise, variable = between
    return Check(
        name=f"independence.{name}",
        rejects=rejects,
        claim=claim,
        needs=needs,
        null=f"{noise} is standard normal, independent of {variable}",
        alternative=of_correlation(),
        reads=f"standardised covariance of {noise} with {variable}:",
        family=lambda setting: Association(per_draw(setting)),
        measure=measure,
        hint=cause,
        requires=requires,
        stage=GIVEN_SCORES if noise in (_RESIDUAL, _RESIDUAL_SIZE) else "",
    )


def axes_of(matrices: FloatArray, retained: BoolArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return eigenvalues (..., s) and eigenvectors (..., s, s) of matrices (..., s, s) on the retained positions.

    The third result, (..., s), marks the valid eigenvalues, which come first. Matrices must be 0 in the rows and
    columns of dropped positions.
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
    """Return the whitened scores, (draws, heads, rows, columns).

    If the subject hides masked scores, return the largest block of which all scores are visible.
    """
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
    """Return data that test whether two heads share W_Q, in two arrays (values, pairs of heads).

    For whitened scores N_a and N_b of two heads with N_b N_bᵀ = U Λ Uᵀ, Uᵀ N_a is i.i.d. N(0, 1) given N_b. The first
    array holds the sizes of the rows of Uᵀ N_a as normal scores, the second the eigenvalues Λ. The squares of Uᵀ N_a,
    weighted by Λ, add up to tr(N_a N_aᵀ N_b N_bᵀ), which reveals a shared W_Q.
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
    """Return the check that each head's W_O is independent of its matrix `of` (W_Q, W_K or W_V)."""

    def pair(sample: Sample, reference: Reference) -> Pair:
        """Return data that test whether W_O depends on another matrix of the same head, in two arrays.

        The images of the other matrix are the scores, keys or values of a head; their size in head h, centred over the
        draws, is w_h. The whitened outputs are projected on the eigenvectors of Σ_h w_h W_h W_hᵀ, where W_h is head h's
        part of `head_directions`. The first array holds the sizes of the projections, the second one the eigenvalues,
        which are weighted means of the w_h. Under the null, the projections are independent standard normals.
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
        null=f"sizes of the heads' parts of the whitened output are independent of the sizes of their {of.images}",
        alternative=of_direction(),
        reads=f"standardised covariance of the sizes of whitened outputs with those of the heads' {of.images}:",
        family=lambda setting: Association(setting.output_rank),
        measure=pair,
        hint=f"W_O and {of.name} of a head are one matrix",
        requires=of.requires,
    )


_RESIDUAL = "the whitened output"
_RESIDUAL_SIZE = "the size of the whitened output"
_SCORE_SIZE = "the size of the whitened scores"
_VALUE_SIZE = "the size of the whitened value Grams"
_OTHER_SCORES = "the outputs do not use these scores, or W_O depends on them"
_OTHER_INPUTS = "the outputs contain the inputs, e.g. through a residual connection"

CHECKS = (
    _tie(
        "output_scores",
        (_RESIDUAL, "the scores"),
        VALUES_GIVEN,
        # An output at position j, and the first head's score of the last query and key j.
        lambda sample, reference: sample.output_residual.paired_with(sample.told_scores[:, 0, -1, :, None]),
        _OTHER_SCORES,
        Rejected.of("scores_added", on=regimes.SINGLE),
        residuals,
    ),
    _tie(
        "output_score_size",
        (_RESIDUAL_SIZE, "the size of the scores"),
        VALUES_GIVEN,
        lambda sample, reference: _sizes(sample.output_residual, log_energy(sample.told_scores)),
        _OTHER_SCORES,
        Rejected.of("outputs_sized_by_scores", on=regimes.STANDARD),
    ),
    _tie(
        "output_inputs",
        (_RESIDUAL, "the same neuron of the inputs"),
        VALUES_GIVEN | {"inputs"},
        lambda sample, reference: sample.output_residual.paired_with(sample.need("inputs")),
        _OTHER_INPUTS,
        Rejected.of("residual_added", on=regimes.STANDARD),
        residuals,
    ),
    _tie(
        "output_gram",
        (_RESIDUAL_SIZE, "the inputs' Gram matrix"),
        VALUES_GIVEN | {"input_gram"},
        lambda sample, reference: _sizes(sample.output_residual, _trace(sample)),
        "outputs were scaled by the inputs, e.g. by a normalisation layer",
        Rejected.of("outputs_sized_by_inputs", on=regimes.NARROW),
    ),
    _tie(
        "score_inputs",
        ("a whitened score", "an input of its draw"),
        _KEYS | {"inputs"},
        # A score in row i, and the first neuron's input at position i.
        lambda sample, reference: sample.whitened_scores.paired_with(sample.need("inputs")[:, None, :, :1]),
        "W_Q depends on the inputs",
        Rejected.of("input_bias", on=regimes.SINGLE),
        entries,
        requires=UNTIED,
    ),
    _tie(
        "score_gram",
        (_SCORE_SIZE, "the inputs' Gram matrix"),
        _KEYS,
        lambda sample, reference: _sizes(sample.whitened_scores, _trace(sample)),
        "the scores are computed from other inputs than the exposed ones, e.g. normalised ones",
        Rejected.of("scores_sized_by_inputs", on=regimes.NARROW),
        requires=UNTIED,
    ),
    _tie(
        "keys_values",
        ("the whitened value Gram", "the key Gram of its head"),
        frozenset({"input_gram", "key_gram", "value_gram"}),
        _keys_values,
        "W_V and W_K are shared",
        Rejected.of("tied_key_value", on=regimes.LINEAR),
        factor_entries,
        claim="assumption",
    ),
    _tie(
        "values_any_keys",
        (_VALUE_SIZE, "the size of the key Grams of all heads"),
        _VALUE_GRAM | {"key_gram"},
        _values_with(KEY.energy),
        "W_V of a head and W_K of this or another head are one matrix",
        Rejected.of("slipped_slice", on=regimes.NARROW),
        claim="assumption",
    ),
    _tie(
        "values_any_scores",
        (_VALUE_SIZE, "the size of the scores of all heads, given their keys"),
        _VALUE_GRAM | QUERY.needs,
        _values_with(lambda sample: sample.whitened_scores.squares()),
        "W_V of a head and W_Q of this or another head are one matrix",
        Rejected.of("tied_query_value", on=regimes.NARROW),
        claim="assumption",
        requires=UNTIED,
    ),
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
