"""Checks of the Gram matrices of keys and values: Wishart given the inputs, and shared within groups of heads only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.checks.check import Alternative, Check, Setting
from attncheck.checks.declared import Rejected, of_correlation, of_law, of_std
from attncheck.checks.draws import hashes
from attncheck.checks.matrices import HeadMatrix
from attncheck.checks.rotation import rotating_pairs
from attncheck.checks.sample import Sample
from attncheck.checks.whitening import Residual
from attncheck.evidence.families import Association, Count, Scale, Uniform
from attncheck.layers.requirements import SEVERAL_GROUPS, SEVERAL_POSITIONS, SHARED_GROUPS


def factor_entries(setting: Setting) -> int:
    """Return the number of Bartlett factor entries per draw."""
    r, m = setting.input_rank, setting.head_rank
    return setting.layer.kv_heads * (m * (m + 1) // 2 + (r - m) * m)


def gram_checks(
    prefix: str, claim: str, of: HeadMatrix, factors: Callable[[Sample], Residual], rejects: Sequence[Rejected]
) -> tuple[Check, ...]:
    """Return the checks of one kind of Gram matrix.

    Parameters
    ----------
    prefix : str
        Beginning of the checks' names.
    claim : str
        Claim of the checks of scale and law; the other checks have the claim "heads".
    of : HeadMatrix
        W_K or W_V.
    factors : callable
        Bartlett factors of a sample's whitened Gram matrices.
    rejects : sequence of Rejected
        What the checks must reject: of scale, of law, of heads (and copies), and of groups.
    """
    kind, matrix = of.images[:-1], of.name
    field = f"{kind}_gram"
    bare = frozenset({"outputs", field})
    scale, law, heads, groups = rejects
    checked = functools.partial(Check, stage=of.stage)
    return (
        checked(
            name=f"{prefix}_scale",
            rejects=scale,
            claim=claim,
            needs=of.needs,
            null=f"the whitened {kind} Grams have trace χ²_{{rν}}/ν",
            alternative=of_std(),
            reads=f"{kind} variance, observed over declared:",
            family=lambda setting: Scale(of.count(setting) * of.dof(setting)),
            measure=lambda sample, reference: of.energy(sample),
            hint=f"the standard deviation of {matrix} differs from the declared one",
        ),
        checked(
            name=f"{prefix}_law",
            rejects=law,
            claim=claim,
            needs=of.needs,
            null=f"the whitened {kind} Grams are Wishart_r(ν, I)/ν: independent Bartlett factors",
            alternative=of_law(),
            reads=f"Kolmogorov distance of the {kind}s' Bartlett factors from their law:",
            family=lambda setting: Uniform(per_draw=factor_entries(setting)),
            measure=lambda sample, reference: factors(sample).uniform(),
            hint=f"the head size ν, the weights' law or the inputs that the {kind}s see differ from the declared ones",
        ),
        checked(
            name=f"{prefix}_heads",
            rejects=heads,
            claim="heads",
            needs=of.needs,
            null=f"the {kind} Grams of different groups of heads are independent given the inputs",
            alternative=of_correlation("between groups"),
            reads=f"standardised covariance of {kind} Grams between groups of heads:",
            family=lambda setting: Association(
                setting.layer.kv_heads // 2 * (factor_entries(setting) // setting.layer.kv_heads)
            ),
            measure=lambda sample, reference: rotating_pairs(factors(sample), 1),
            hint=f"{matrix} is shared between heads that should not share it",
            requires=SEVERAL_GROUPS,
        ),
        checked(
            name=f"{prefix}_copies",
            rejects=heads,
            claim="heads",
            needs=bare,
            null=f"no two groups of heads have equal {kind} Grams",
            alternative=Alternative.of("one draw in a hundred with two equal ones", 0.01),
            reads=f"share of draws in which two groups of heads have equal {kind} Grams:",
            family=lambda setting: Count(0.0),
            measure=lambda sample, reference: _copies(sample.need(field)[:, :: sample.layer.group_size]),
            hint=f"{matrix} is shared between heads that should not share it",
            # For one position the Gram matrix is one number, and float32 numbers may coincide by chance.
            requires=SEVERAL_GROUPS & SEVERAL_POSITIONS,
        ),
        checked(
            name=f"{prefix}_groups",
            rejects=groups,
            claim="heads",
            needs=bare,
            null=f"heads of one group share one {kind} Gram",
            alternative=Alternative.of("one draw in a hundred with different ones", 0.01),
            reads=f"share of draws in which heads of a group differ in their {kind} Gram:",
            family=lambda setting: Count(0.0),
            measure=lambda sample, reference: _differ_in_groups(sample, field),
            hint=f"heads that should share {matrix} have their own",
            requires=SHARED_GROUPS,
        ),
    )


def _copies(grams: FloatArray) -> tuple[int, int]:
    """Return how many draws have bitwise equal Gram matrices in two groups of heads."""
    ordered = np.sort(hashes(grams.reshape(*grams.shape[:2], -1)), axis=1)
    equal = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    nonzero: BoolArray = (grams != 0.0).any(axis=(2, 3))
    return int((np.asarray(equal) & nonzero.all(axis=1)).sum()), len(grams)


def _differ_in_groups(sample: Sample, field: str) -> tuple[int, int]:
    """Return how many draws have Gram matrices that differ within a group of heads."""
    layer, grams = sample.layer, sample.need(field)
    grouped = grams.reshape(len(grams), layer.kv_heads, layer.group_size, -1)
    spread = np.abs(grouped - grouped[:, :, :1]).max(axis=(1, 2, 3))
    return int((spread > 1e-3 * np.abs(grouped).max(axis=(1, 2, 3))).sum()), len(grams)
