"""Heads: scores, keys and values have the same scale in every head."""

from __future__ import annotations

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks.check import Alternative, Check
from attncheck.checks.matrices import KEY, QUERY, VALUE, HeadMatrix
from attncheck.checks.reference import Reference
from attncheck.checks.sample import Sample
from attncheck.evidence.groups import EqualVariances


def _each_head(name: str, of: HeadMatrix) -> Check:
    """Return the check that a matrix has one scale in all heads."""

    def sums(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
        """Return each head's sum of squares and its degrees of freedom, (1, heads)."""
        squares, dof = of.energy(sample)
        return squares.sum(axis=0, keepdims=True), np.asarray(dof.sum(axis=0, keepdims=True))

    return Check(
        name=name,
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
    )


CHECKS = (
    _each_head("scores.each_head", QUERY),
    _each_head("scores.key_each_head", KEY),
    _each_head("conditional.value_each_head", VALUE),
)
