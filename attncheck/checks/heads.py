"""Heads: scores, keys and values have the same scale in every head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attncheck.checks.check import Alternative, Check, Setting
from attncheck.checks.reference import Reference
from attncheck.checks.sample import Sample
from attncheck.evidence.groups import EqualVariances
from attncheck.layers.requirements import SEVERAL_GROUPS, SEVERAL_HEADS, UNTIED, OfLayer

FloatArray = NDArray[np.float64]


def _sums(energies: Callable[[Sample], tuple[FloatArray, FloatArray]]) -> Callable[..., tuple[FloatArray, FloatArray]]:
    """Return the measure of each head's sum of squares and its degrees of freedom, (1, heads)."""

    def measure(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
        squares, dof = energies(sample)
        return squares.sum(axis=0, keepdims=True), np.asarray(dof.sum(axis=0, keepdims=True))

    return measure


def _each_head(
    name: str,
    what: str,
    matrix: str,
    needs: frozenset[str],
    family: Callable[[Setting], EqualVariances],
    energies: Callable[[Sample], tuple[FloatArray, FloatArray]],
    requires: OfLayer,
) -> Check:
    return Check(
        name=name,
        claim="head_scales",
        needs=frozenset({"outputs"}) | needs,
        null=f"the whitened {what} of all heads have one scale: the ratio of one head's to the others' has an F law",
        alternative=Alternative.of(
            "a head's standard deviation off by 4% from that of the others (variance ratio 1.0816)", 1.0816, 1.44
        ),
        reads=f"variance of one head's {what}, over that of the others':",
        family=family,
        measure=_sums(energies),
        hint=f"the standard deviation of {matrix} differs from head to head, or all draws of a call share one {matrix}",
        requires=requires,
    )


def _row_entries(setting: Setting) -> int:
    whole = setting.input_rank * setting.head_rank
    return whole if setting.layer.rotary_base is None else setting.score_entries


def _per_group(setting: Setting) -> EqualVariances:
    return EqualVariances(setting.layer.kv_heads, setting.input_rank * setting.layer.head_width)


CHECKS = (
    _each_head(
        "scores.each_head",
        "scores",
        "W_Q",
        frozenset({"scores", "input_gram", "key_gram"}),
        lambda setting: EqualVariances(setting.layer.num_heads, _row_entries(setting)),
        lambda sample: sample.whitened_scores.squares(2),
        UNTIED & SEVERAL_HEADS,
    ),
    _each_head(
        "scores.key_each_head",
        "keys",
        "W_K",
        frozenset({"input_gram", "key_gram"}),
        _per_group,
        Sample.key_energy,
        SEVERAL_GROUPS,
    ),
    _each_head(
        "conditional.value_each_head",
        "values",
        "W_V",
        frozenset({"input_gram", "value_gram"}),
        _per_group,
        Sample.value_energy,
        SEVERAL_GROUPS,
    ),
)
