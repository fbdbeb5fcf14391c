"""Scores are Gaussian given inputs and keys, by formula (*) of Definition 1 (iv), and key Grams are Wishart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from attncheck.checks import plot_data
from attncheck.checks.alternatives import of_correlation, of_direction, of_kurtosis, of_law, of_spread, of_std
from attncheck.checks.check import Alternative, Check, Setting
from attncheck.checks.hashes import hashes
from attncheck.checks.laws import mixture_uniform
from attncheck.checks.reference import RATIO, Reference
from attncheck.checks.rotation import rotating_pairs
from attncheck.checks.sample import Sample
from attncheck.checks.whitening import Residual
from attncheck.evidence.families import Association, Count, Scale, Smooth, TwoSample, Uniform
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import visible
from attncheck.layers.requirements import SEVERAL_GROUPS, SEVERAL_HEADS, SEVERAL_POSITIONS, SHARED_GROUPS, UNTIED

FloatArray = NDArray[np.float64]

_KEYS = frozenset({"scores", "input_gram", "key_gram"})
_GRAM = frozenset({"scores", "input_gram"})
_KEY_GRAM = frozenset({"input_gram", "key_gram"})


def entries(setting: Setting) -> int:
    """Return the number of whitened score entries per draw."""
    return setting.layer.num_heads * setting.score_entries


def factor_entries(setting: Setting) -> int:
    """Return the number of Bartlett factor entries per draw."""
    r, m = setting.input_rank, setting.head_rank
    return setting.layer.kv_heads * (m * (m + 1) // 2 + (r - m) * m)


def head_pairs(residual: Residual) -> tuple[FloatArray, FloatArray]:
    """Return noise and weight from pairs of heads, rotating from draw to draw."""
    return rotating_pairs(residual, 1)


def rotating_scores(sample: Sample) -> tuple[FloatArray, FloatArray]:
    """Return one visible score per draw, rotating over heads and positions, and its variance given X."""
    layer, gram = sample.layer, sample.need("input_gram")
    rows, columns = np.nonzero(visible(layer))
    draw = np.arange(len(sample))
    head = draw % layer.num_heads
    place = (draw // layer.num_heads) % len(rows)
    i, j = rows[place], columns[place]
    std = layer.query_std * layer.key_std * layer.score_factor
    variances = std**2 * gram[draw, i, i] * gram[draw, j, j]
    values = sample.need("scores")[draw, head, i, j]
    seen = variances > 0
    return values[seen], variances[seen]


def _marginal(sample: Sample, reference: Reference) -> tuple[FloatArray]:
    values, variances = rotating_scores(sample)
    return (mixture_uniform(values, variances[:, None], sample.layer.head_width),)


def _law(sample: Sample, reference: Reference) -> tuple[FloatArray]:
    return (special.ndtr(sample.whitened_scores.flat()),)


def _tied(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
    noise, direction = sample.whitened_scores, sample.tied_direction
    return noise.flat(), direction.values[noise.kept]


def _heads_energy(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
    energy = sample.whitened_scores.energy_scores(2)
    return rotating_pairs(Residual(energy, np.ones(energy.shape, dtype=bool)), 1)


def _copies(field: str) -> Callable[[Sample, Reference], tuple[int, int]]:
    """Count draws with bitwise equal Gram matrices in two groups of heads."""

    def count(sample: Sample, reference: Reference) -> tuple[int, int]:
        grams = sample.need(field)[:, :: sample.layer.group_size]
        ordered = np.sort(hashes(grams.reshape(*grams.shape[:2], -1)), axis=1)
        equal = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        nonzero: NDArray[np.bool_] = (grams != 0.0).any(axis=(2, 3))
        copied = np.asarray(equal) & nonzero.all(axis=1)
        return int(copied.sum()), len(grams)

    return count


def copies(name: str, field: str, what: str) -> Check:
    """Return the check that no two groups of heads have the same Gram matrix."""
    return Check(
        name=name,
        claim="heads",
        kind="exact",
        needs=frozenset({"outputs", field}),
        null=f"no two groups of heads have one {what} Gram",
        alternative=Alternative.of("one draw in a hundred with two equal ones", 0.01),
        reads=f"share of draws in which two groups of heads have one {what} Gram:",
        family=lambda setting: Count(0.0),
        measure=_copies(field),
        hint=f"W_{what[0].upper()} is shared between heads that should not share it",
        # For one position the Gram matrix is one number, and float32 numbers may coincide by chance.
        requires=SEVERAL_GROUPS & SEVERAL_POSITIONS,
    )


def _sizes(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
    """Return log sizes of scores whitened by the inputs, per group of heads."""
    layer, residual = sample.layer, sample.input_whitened_scores
    rank = Setting(layer, sample.exposed).input_rank
    # Scores of inputs of lower rank, e.g. after relu, have a different law.
    full = residual.kept[:, 0].any(axis=-1).sum(axis=-1) == rank
    squares = (residual.values[full] ** 2).sum(axis=(2, 3))
    squares = squares.reshape(len(squares), layer.kv_heads, layer.group_size).sum(axis=-1)
    return np.log(np.maximum(squares, 1e-300)), reference.score_sizes(rank)


def same_in_groups(grams: FloatArray, layer: AttentionLayer) -> tuple[int, int]:
    """Return how many draws have Gram matrices that differ within a group of heads."""
    grouped = grams.reshape(len(grams), layer.kv_heads, layer.group_size, -1)
    spread = np.abs(grouped - grouped[:, :, :1]).max(axis=(1, 2, 3))
    return int((spread > 1e-3 * np.abs(grouped).max(axis=(1, 2, 3))).sum()), len(grams)


def _factors_law(sample: Sample, reference: Reference) -> tuple[FloatArray]:
    return (special.ndtr(sample.key_factors.flat()),)


CHECKS = (
    Check(
        name="scores.scale",
        claim="scores",
        kind="exact",
        needs=_KEYS,
        null="given inputs and keys, P = σ_Q F N Bᵀ with N of independent N(0, 1): Σ N² is chi-square",
        alternative=of_std(),
        reads="score variance given inputs and keys, observed over declared:",
        family=lambda setting: Scale(entries(setting)),
        measure=lambda sample, reference: sample.whitened_scores.squares(),
        hint="the standard deviation of W_Q or the score scaling differs from the declared one",
        plot=plot_data.whitened_scores,
        requires=UNTIED,
    ),
    Check(
        name="scores.law",
        claim="scores",
        kind="exact",
        needs=_KEYS,
        null="the whitened scores are independent N(0, 1)",
        alternative=of_law(),
        reads="Kolmogorov distance of the whitened scores from N(0, 1):",
        family=lambda setting: Uniform(per_draw=entries(setting)),
        measure=_law,
        hint="the scores are not Gaussian given the keys, or their covariance is not σ_Q² G ⊗ K Kᵀ/ν",
        requires=UNTIED,
    ),
    Check(
        name="scores.tied",
        claim="assumption",
        kind="exact",
        needs=_KEYS,
        null="the whitened scores are independent of the direction that W_Q = W_K would give them",
        alternative=of_direction("with that direction"),
        reads="standardised covariance of the scores with those of W_Q = W_K:",
        family=lambda setting: Association(entries(setting)),
        measure=_tied,
        hint="K and Q look tied: W_Q and W_K are not independent",
        requires=UNTIED,
    ),
    Check(
        name="scores.heads",
        claim="heads",
        kind="exact",
        needs=_KEYS,
        null="given inputs and keys, the scores of different heads are independent",
        alternative=of_correlation("between heads"),
        reads="standardised covariance of whitened scores between heads:",
        family=lambda setting: Association(setting.layer.num_heads // 2 * setting.score_entries),
        measure=lambda sample, reference: head_pairs(sample.whitened_scores),
        hint="heads share W_Q, or a stream of random numbers",
        plot=plot_data.between_heads,
        requires=UNTIED & SEVERAL_HEADS,
    ),
    Check(
        name="scores.heads_energy",
        claim="heads",
        kind="exact",
        needs=_KEYS,
        null="given inputs and keys, the sizes of the scores of different heads are independent",
        alternative=of_correlation("between the heads' sizes"),
        reads="standardised covariance of score sizes between heads:",
        family=lambda setting: Association(setting.layer.num_heads // 2),
        measure=_heads_energy,
        hint="something random is shared between heads beyond inputs and declared groups",
        requires=UNTIED & SEVERAL_HEADS,
    ),
    Check(
        name="scores.marginal",
        claim="scores",
        kind="exact",
        needs=_GRAM,
        null="given inputs, P_ij is a normal times √(χ²_ν/ν)",
        alternative=of_law(),
        reads="Kolmogorov distance of single scores from their law given the inputs:",
        family=lambda setting: Uniform(),
        measure=_marginal,
        hint="the standard deviation of W_Q or W_K, or the score scaling, differs from the declared one",
        requires=UNTIED,
    ),
    Check(
        name="scores.size",
        claim="scores",
        kind="exact",
        needs=_GRAM | {"masked scores"},
        null="F⁺ P F⁺ᵀ/σ, F Fᵀ the inputs' Gram matrix, has the law of N Tᵀ/√ν: N normal, T Bartlett",
        alternative=of_law(),
        reads="Kolmogorov distance of the log size of whitened scores from its law:",
        family=lambda setting: TwoSample(RATIO, per_draw=setting.layer.kv_heads, unit=1.0),
        measure=_sizes,
        hint="the standard deviation of W_Q or W_K, or the score scaling, differs from the declared one",
        requires=UNTIED,
    ),
    Check(
        name="scores.spread",
        claim="scores",
        kind="exact",
        needs=_GRAM,
        null="the same, examined for a wrong spread of single scores",
        alternative=of_spread(),
        reads="spread component of single scores (0 is right, above 0 too wide):",
        family=lambda setting: Smooth(2),
        measure=_marginal,
        hint="the standard deviation of W_Q or W_K, or the score scaling, differs from the declared one",
        plot=plot_data.score_covariances,
        requires=UNTIED,
    ),
    Check(
        name="scores.kurtosis",
        claim="scores",
        kind="exact",
        needs=_GRAM,
        null="given inputs, the excess kurtosis of P_ij is exactly 6/ν, by the fourth smooth component",
        alternative=of_kurtosis(),
        reads="kurtosis component of single scores (0 is an excess kurtosis of 6/ν):",
        family=lambda setting: Smooth(4),
        measure=_marginal,
        hint="the scores are Gaussian at a width where they cannot be, or heavier-tailed than they should be",
        requires=UNTIED,
    ),
    Check(
        name="scores.key_scale",
        claim="scores",
        kind="exact",
        needs=_KEY_GRAM,
        null="the whitened key Grams have trace χ²_{rν}/ν",
        alternative=of_std(),
        reads="key variance, observed over declared:",
        family=lambda setting: Scale(setting.layer.kv_heads * setting.input_rank * setting.layer.head_width),
        measure=lambda sample, reference: sample.key_energy(),
        hint="the standard deviation of W_K differs from the declared one",
    ),
    Check(
        name="scores.key_law",
        claim="scores",
        kind="exact",
        needs=_KEY_GRAM,
        null="the whitened key Grams are Wishart_r(ν, I)/ν: independent Bartlett factors",
        alternative=of_law(),
        reads="Kolmogorov distance of the keys' Bartlett factors from their law:",
        family=lambda setting: Uniform(per_draw=factor_entries(setting)),
        measure=_factors_law,
        hint="the head size ν, the weights' law or the inputs that the keys see differ from the declared ones",
    ),
    Check(
        name="scores.key_heads",
        claim="heads",
        kind="exact",
        needs=_KEY_GRAM,
        null="the key Grams of different groups of heads are independent given the inputs",
        alternative=of_correlation("between groups"),
        reads="standardised covariance of key Grams between groups of heads:",
        family=lambda setting: Association(
            setting.layer.kv_heads // 2 * (factor_entries(setting) // setting.layer.kv_heads)
        ),
        measure=lambda sample, reference: head_pairs(sample.key_factors),
        hint="W_K is shared between heads that should not share it",
        requires=SEVERAL_GROUPS,
    ),
    copies("scores.key_copies", "key_gram", "key"),
    Check(
        name="scores.key_groups",
        claim="heads",
        kind="exact",
        needs=frozenset({"outputs", "key_gram"}),
        null="heads of one group have one key Gram",
        alternative=Alternative.of("one draw in a hundred with different ones", 0.01),
        reads="share of draws in which heads of a group differ in their key Gram:",
        family=lambda setting: Count(0.0),
        measure=lambda sample, reference: same_in_groups(sample.need("key_gram"), sample.layer),
        hint="heads that should share W_K have their own",
        requires=SHARED_GROUPS,
    ),
)
