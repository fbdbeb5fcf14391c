"""Checks that W_Q, W_K and W_V have one scale in all heads, seen through whitened scores, keys and values."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks.check import Alternative, Check, Setting
from attncheck.checks.declared import KEYS, SCORES, VALUES, Rejected
from attncheck.checks.derived import WHITENED
from attncheck.checks.reference import Reference
from attncheck.checks.sample import Sample
from attncheck.evidence.groups import EqualVariances
from attncheck.layers import regimes
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.requirement import ANY
from attncheck.layers.requirements import SEVERAL_GROUPS, SEVERAL_HEADS, UNTIED, OfLayer


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
    count, dof : callable Setting -> int
        Number of matrices, and degrees of freedom of one of them in a draw.
    several : Requirement
        Requirement that the layer has several such matrices.
    stage : str
        Stage of the computation that the images are.
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
    SEVERAL_HEADS,
    SCORES,
    UNTIED,
)
KEY, VALUE = (
    HeadMatrix(
        f"W_{name[0].upper()}",
        f"{name}s",
        frozenset({"input_gram", f"{name}_gram"}),
        functools.partial(Sample.gram_energy, name=name),
        lambda setting: setting.layer.kv_heads,
        lambda setting: setting.input_rank * setting.layer.head_width,
        SEVERAL_GROUPS,
        stage,
    )
    for name, stage in (("key", KEYS), ("value", VALUES))
)


def _by_head(name: str, of: HeadMatrix, layer: AttentionLayer) -> Check:
    """Return the check that a matrix has one scale in all heads."""

    def sums(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
        """Return each head's sum of squares and its degrees of freedom, (1, heads)."""
        squares, dof = of.energy(sample)
        return squares.sum(axis=0, keepdims=True), np.asarray(dof.sum(axis=0, keepdims=True))

    return Check(
        name=name,
        rejects=Rejected.of("one_head_larger", on=layer),
        claim="head_scales",
        needs=frozenset({"outputs"}) | of.needs,
        null=f"the whitened {of.images} of all heads have one scale: the ratio of one head's to the others' has an F "
        "law",
        alternative=Alternative.of(
            "a head's standard deviation off by 4% from that of the others (variance ratio 1.0816)", 1.0816, 1.44
        ),
        reads=f"variance of one head's {of.images}, over that of the others':",
        family=lambda setting: EqualVariances(of.count(setting), of.dof(setting)),
        measure=sums,
        hint=f"the standard deviation of {of.name} differs from head to head, or all draws of a call share one "
        f"{of.name}",
        requires=of.requires & of.several,
        stage=of.stage,
    )


CHECKS = (
    _by_head("scores.each_head", QUERY, regimes.STANDARD),
    _by_head("scores.key_each_head", KEY, regimes.CAUSAL),
    _by_head("conditional.value_each_head", VALUE, regimes.CAUSAL),
)
