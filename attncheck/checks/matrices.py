"""Checks of W_Q, W_K and W_V by whitened scores, keys and values.

Each matrix has the same scale in all heads. The Gram matrices of keys and values are Wishart given the inputs, and
shared only within groups of heads.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.checks.check import Alternative, Check, Setting
from attncheck.checks.declared import KEYS, SCORES, VALUES, Rejected, of_correlation, of_law, of_std
from attncheck.checks.derived import WHITENED
from attncheck.checks.reference import Reference
from attncheck.checks.rotation import rotating_pairs
from attncheck.checks.sample import Sample
from attncheck.evidence.families import Association, Count, Scale, Uniform
from attncheck.evidence.groups import EqualVariances
from attncheck.layers import regimes
from attncheck.layers import requirements as need
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.requirement import ANY
from attncheck.layers.requirements import OfLayer


@dataclasses.dataclass(frozen=True)
class HeadMatrix:
    """W_Q, W_K or W_V: a matrix drawn for each head or group of heads.

    Attributes
    ----------
    name : str
    images : str
        What the matrix produces: "scores", "keys" or "values".
    needs : frozenset of str
        Arrays needed to whiten the images.
    energy : callable Sample -> (squares, dof)
        Sums of squares of the whitened images, χ² given the inputs, and their degrees of freedom, (draws, matrices).
    count : callable Setting -> int
        Number of matrices in a layer.
    dof : callable Setting -> int
        Degrees of freedom of the images of one matrix in a draw.
    several : Requirement
        Requirement that the layer has several such matrices.
    stage : str
        Stage of the computation that produces the images.
    requires : Requirement
        Requirement that the matrix is not tied to another one.
    """

    name: str
    images: str
    needs: frozenset[str]
    energy: Callable[[Sample], tuple[FloatArray, FloatArray]]
    count: Callable[[Setting], int]
    dof: Callable[[Setting], int]
    several: OfLayer
    stage: str
    requires: OfLayer = ANY


def _score_entries(setting: Setting) -> int:
    entries = setting.input_rank * setting.head_rank
    return entries if setting.layer.rotary_base is None else setting.score_entries


QUERY = HeadMatrix(
    "W_Q",
    "scores",
    frozenset({"scores", "input_gram", "key_gram", WHITENED}),
    lambda sample: sample.whitened_scores.squares(2),
    lambda setting: setting.layer.num_heads,
    _score_entries,
    need.SEVERAL_HEADS,
    SCORES,
    need.UNTIED,
)
KEY, VALUE = (
    HeadMatrix(
        f"W_{name[0].upper()}",
        f"{name}s",
        frozenset({"input_gram", f"{name}_gram"}),
        functools.partial(Sample.gram_energy, name=name),
        lambda setting: setting.layer.kv_heads,
        lambda setting: setting.input_rank * setting.layer.head_width,
        need.SEVERAL_GROUPS,
        stage,
    )
    for name, stage in (("key", KEYS), ("value", VALUES))
)


def _by_head(name: str, of: HeadMatrix, layer: AttentionLayer) -> Check:
    """Return the check that the matrix `of` has the same scale in all heads.

    On `layer`, the check must reject a simulator in which one head has a larger scale.
    """

    def sums(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
        """Return the sum of squares of each head's whitened images over all draws, and its degrees of freedom.

        Both arrays are (1, heads).
        """
        squares, dof = of.energy(sample)
        return squares.sum(axis=0, keepdims=True), np.asarray(dof.sum(axis=0, keepdims=True))

    return Check(
        name=name,
        rejects=Rejected.of("one_head_larger", on=layer),
        claim="head_scales",
        needs=frozenset({"outputs"}) | of.needs,
        null=f"the whitened {of.images} of all heads have one scale: the variance ratio of one head to the others "
        "has an F law",
        alternative=Alternative.of(
            "a head's standard deviation off by 4% from that of the others (variance ratio 1.0816)", 1.0816, 1.44
        ),
        reads=f"ratio of the variance of one head's {of.images} to that of the other heads:",
        family=lambda setting: EqualVariances(of.count(setting), of.dof(setting)),
        measure=sums,
        hint=f"the standard deviation of {of.name} differs from head to head, or all draws of a call share one "
        f"{of.name}",
        requires=of.requires & of.several,
        stage=of.stage,
    )


def hashes(rows: FloatArray) -> NDArray[np.uint64]:
    """Return an integer hash of each row, (..., m) -> (...).

    Different rows collide with probability about 2^-63. The sign of 0 is ignored.

    Examples
    --------
    >>> one, other, again = hashes(np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0]]))
    >>> one == again, one == other
    (np.True_, np.False_)
    """
    digits = np.ascontiguousarray(rows + 0.0).view(np.uint64)
    # The low bits of float32 values are 0 and would stay 0 in products, so mix the high bits into them.
    folded = digits ^ (digits >> np.uint64(32))
    odd = np.random.default_rng(0).integers(2**63, size=rows.shape[-1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return np.asarray((folded * odd).sum(axis=-1, dtype=np.uint64))


def factor_entries(setting: Setting) -> int:
    """Return the number of Bartlett factor entries per draw."""
    r, m = setting.input_rank, setting.head_rank
    return setting.layer.kv_heads * (m * (m + 1) // 2 + (r - m) * m)


def gram_checks(prefix: str, claim: str, of: HeadMatrix, rejects: Sequence[Rejected]) -> tuple[Check, ...]:
    """Return the checks of the Gram matrices of keys, or of values.

    Parameters
    ----------
    prefix : str
        Beginning of the checks' names.
    claim : str
        Claim of the checks of scale and law; the other checks have the claim "heads".
    of : HeadMatrix
        W_K or W_V.
    rejects : sequence of Rejected
        Wrong simulators that the checks must reject, in this order: scale, law, heads (and copies), groups.
    """
    kind, matrix = of.images[:-1], of.name
    field, factors = f"{kind}_gram", operator.attrgetter(f"{kind}_factors")
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
            requires=need.SEVERAL_GROUPS,
        ),
        checked(
            name=f"{prefix}_copies",
            rejects=heads,
            claim="heads",
            needs=bare,
            null=f"no two groups of heads have equal {kind} Grams",
            alternative=Alternative.of("two groups of heads with equal Gram matrices in 1% of the draws", 0.01),
            reads=f"share of draws in which two groups of heads have equal {kind} Grams:",
            family=lambda setting: Count(0.0),
            measure=lambda sample, reference: _copies(sample.need(field)[:, :: sample.layer.group_size]),
            hint=f"{matrix} is shared between heads that should not share it",
            # For one position the Gram matrix is one number, and float32 numbers may coincide by chance.
            requires=need.SEVERAL_GROUPS & need.SEVERAL_POSITIONS,
        ),
        checked(
            name=f"{prefix}_groups",
            rejects=groups,
            claim="heads",
            needs=bare,
            null=f"heads of one group share one {kind} Gram",
            alternative=Alternative.of("different Gram matrices within a group in 1% of the draws", 0.01),
            reads=f"share of draws in which heads of a group differ in their {kind} Gram:",
            family=lambda setting: Count(0.0),
            measure=lambda sample, reference: _differ_in_groups(sample, field),
            hint=f"heads that should share {matrix} have their own",
            requires=need.SHARED_GROUPS,
        ),
    )


def _copies(grams: FloatArray) -> tuple[int, int]:
    """Return how many draws have bitwise equal Gram matrices in two groups of heads, and the number of draws."""
    ordered = np.sort(hashes(grams.reshape(*grams.shape[:2], -1)), axis=1)
    equal = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    nonzero: BoolArray = (grams != 0.0).any(axis=(2, 3))
    return int((np.asarray(equal) & nonzero.all(axis=1)).sum()), len(grams)


def _differ_in_groups(sample: Sample, field: str) -> tuple[int, int]:
    """Return how many draws have Gram matrices that differ within a group of heads, and the number of draws."""
    layer, grams = sample.layer, sample.need(field)
    grouped = grams.reshape(len(grams), layer.kv_heads, layer.group_size, -1)
    spread = np.abs(grouped - grouped[:, :, :1]).max(axis=(1, 2, 3))
    return int((spread > 1e-3 * np.abs(grouped).max(axis=(1, 2, 3))).sum()), len(grams)


CHECKS = (
    _by_head("scores.each_head", QUERY, regimes.STANDARD),
    _by_head("scores.key_each_head", KEY, regimes.CAUSAL),
    _by_head("conditional.value_each_head", VALUE, regimes.CAUSAL),
)
