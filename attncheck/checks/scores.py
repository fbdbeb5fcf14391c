"""Checks of scores and keys.

Given inputs and keys, scores are Gaussian with the covariance of formula (*) in the paper's Definition 1 (iv). Given
inputs, the Gram matrices of keys are Wishart.
"""

from __future__ import annotations

import functools

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks.check import Alternative, Check, Setting
from attncheck.checks.declared import SCORES, Rejected, of_correlation, of_direction, of_law, of_std
from attncheck.checks.derived import BY_ROWS, NORMAL
from attncheck.checks.functionals import log
from attncheck.checks.laws import mixture_uniform
from attncheck.checks.matrices import KEY, QUERY, gram_checks
from attncheck.checks.reference import RATIO, Reference
from attncheck.checks.rotation import rotating_pairs
from attncheck.checks.sample import Sample
from attncheck.checks.whitening import Residual
from attncheck.evidence.families import Association, Scale, Smooth, TwoSample, Uniform
from attncheck.layers import regimes
from attncheck.layers.requirements import SEVERAL_HEADS, UNTIED

_GRAM = frozenset({"scores", "input_gram"})


def entries(setting: Setting) -> int:
    """Return the number of whitened score entries per draw."""
    return setting.layer.num_heads * setting.score_entries


def _marginal(sample: Sample, reference: Reference) -> tuple[FloatArray]:
    """Return the probability integral transform of one visible score per draw.

    The head and the positions of the score change from draw to draw.
    """
    layer, gram = sample.layer, sample.need("input_gram")
    rows, columns = np.nonzero(layer.visible)
    draw = np.arange(len(sample))
    head = draw % layer.num_heads
    index = (draw // layer.num_heads) % len(rows)
    i, j = rows[index], columns[index]
    std = layer.query_std * layer.key_std * layer.score_factor
    variances = std**2 * gram[draw, i, i] * gram[draw, j, j]
    values = sample.centred_scores[draw, head, i, j]
    added = layer.bias_std**2
    valid = variances + added > 0
    return (mixture_uniform(values[valid], variances[valid, None], layer.head_width, added),)


def _heads_energy(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
    energy = sample.whitened_scores.energy_scores(2)
    return rotating_pairs(Residual(energy, np.ones(energy.shape, dtype=bool)), 1)


def _sizes(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
    """Return log sizes of input-whitened scores per group of heads, for the subject and for reference draws."""
    layer, residual = sample.layer, sample.input_whitened_scores
    rank = Setting(layer, sample.exposed).input_rank
    # If inputs have a lower rank, e.g. after relu, their scores have another law.
    full = residual.kept[:, 0].any(axis=-1).sum(axis=-1) == rank
    squares = (residual.values[full] ** 2).sum(axis=(2, 3))
    squares = squares.reshape(len(squares), layer.kv_heads, layer.group_size).sum(axis=-1)
    return log(squares), reference.score_sizes(rank)


_given_keys = functools.partial(Check, claim="scores", needs=QUERY.needs, requires=UNTIED, stage=SCORES)
_given_inputs = functools.partial(
    Check,
    claim="scores",
    needs=_GRAM | {NORMAL},
    stage=SCORES,
    hint="the standard deviation of W_Q or W_K, or the score scaling, differs from the declared one",
    requires=UNTIED,
)

CHECKS = (
    _given_keys(
        name="scores.scale",
        rejects=Rejected.of("scores_over_root_s", on=regimes.STANDARD),
        null="given inputs and keys, P = σ_Q F N Bᵀ, N with independent N(0, 1) entries: Σ N² is chi-square",
        alternative=of_std(),
        reads="score variance given inputs and keys, observed over declared:",
        family=lambda setting: Scale(entries(setting)),
        measure=lambda sample, reference: sample.whitened_scores.squares(),
        hint="the standard deviation of W_Q or the score scaling differs from the declared one",
    ),
    _given_keys(
        name="scores.law",
        rejects=Rejected.of("query_std_5", on=regimes.MANY_HEADS),
        null="the whitened scores are independent N(0, 1)",
        alternative=of_law(),
        reads="Kolmogorov distance of the whitened scores from N(0, 1):",
        family=lambda setting: Uniform(per_draw=entries(setting)),
        measure=lambda sample, reference: sample.whitened_scores.uniform(),
        hint="the scores are not Gaussian given the keys, or their covariance is not σ_Q² G ⊗ K Kᵀ/ν",
    ),
    _given_keys(
        name="scores.tied",
        rejects=Rejected.of("tied_query_key", on=regimes.ONE_POSITION),
        claim="assumption",
        null="the whitened scores are independent of those that W_Q = W_K would give",
        alternative=of_direction("with that direction"),
        reads="standardised covariance of the whitened scores with those that W_Q = W_K would give:",
        family=lambda setting: Association(entries(setting)),
        measure=lambda sample, reference: sample.whitened_scores.paired_with(sample.tied_direction.values),
        hint="K and Q look tied: W_Q and W_K are not independent",
    ),
    _given_keys(
        name="scores.heads",
        rejects=Rejected.of("twin_queries", on=regimes.ONE_GROUP),
        claim="heads",
        null="given inputs and keys, the scores of different heads are independent",
        alternative=of_correlation("between heads"),
        reads="standardised covariance of whitened scores between heads:",
        family=lambda setting: Association(setting.layer.num_heads // 2 * setting.score_entries),
        measure=lambda sample, reference: rotating_pairs(sample.whitened_scores, 1),
        hint="heads share W_Q, or a stream of random numbers",
        requires=UNTIED & SEVERAL_HEADS,
    ),
    _given_keys(
        name="scores.heads_energy",
        rejects=Rejected.of("twin_queries", on=regimes.ONE_GROUP),
        claim="heads",
        null="given inputs and keys, the sizes of the scores of different heads are independent",
        alternative=of_correlation("between the heads' sizes"),
        reads="standardised covariance of score sizes between heads:",
        family=lambda setting: Association(setting.layer.num_heads // 2),
        measure=_heads_energy,
        hint="something random is shared between heads beyond inputs and declared groups",
        requires=UNTIED & SEVERAL_HEADS,
    ),
    _given_inputs(
        name="scores.marginal",
        rejects=Rejected.of("tied_query_key", on=regimes.ONE_POSITION),
        null="given inputs, P_ij is a normal times √(χ²_ν/ν)",
        alternative=of_law(),
        reads="Kolmogorov distance of single scores from their law given the inputs:",
        family=lambda setting: Uniform(),
        measure=_marginal,
    ),
    _given_inputs(
        name="scores.size",
        rejects=Rejected.of("query_std_2", on=regimes.MANY_HEADS),
        needs=_GRAM | {"masked scores", BY_ROWS},
        null="with F Fᵀ the inputs' Gram matrix, F⁺ P F⁺ᵀ/σ has the law of N Tᵀ/√ν, N normal and T a Bartlett factor",
        alternative=of_law(),
        reads="Kolmogorov distance of the log size of whitened scores from its law:",
        family=lambda setting: TwoSample(RATIO, per_draw=setting.layer.kv_heads, unit=1.0),
        measure=_sizes,
    ),
    _given_inputs(
        name="scores.spread",
        rejects=Rejected.of("scores_over_n", on=regimes.STANDARD),
        null="given inputs, P_ij is a normal times √(χ²_ν/ν), tested for a wrong spread",
        alternative=Alternative.of("a standard deviation off by about 10%", 0.14, coarsest=0.4),
        reads="spread component of single scores (0 is right, above 0 too wide):",
        family=lambda setting: Smooth(2),
        measure=_marginal,
    ),
    _given_inputs(
        name="scores.kurtosis",
        rejects=Rejected.of("inputs_apart", on=regimes.LINEAR),
        null="given inputs, the excess kurtosis of P_ij is exactly 6/ν, tested by the fourth smooth component",
        alternative=Alternative.of("a fourth component of 0.14", 0.14, coarsest=0.4),
        reads="kurtosis component of single scores (0 is an excess kurtosis of 6/ν):",
        family=lambda setting: Smooth(4),
        measure=_marginal,
        hint="the scores are Gaussian at a width where they cannot be, or heavier-tailed than they should be",
    ),
    *gram_checks(
        "scores.key",
        "scores",
        KEY,
        (
            Rejected.of("key_std_2", on=regimes.LOW_RANK),
            Rejected.of("key_std_5", on=regimes.LINEAR),
            Rejected.of("shared_keys", on=regimes.CAUSAL),
            Rejected.of("fresh_group_keys", on=regimes.CAUSAL),
        ),
    ),
)
