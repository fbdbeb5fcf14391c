"""Inference on the initialiser: laws, scales with valid intervals, uneven groups, and copies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from attncheck._lib.arrays import FloatArray
from attncheck.frameworks.initialiser import same_layers
from attncheck.frameworks.laws import ScaleEstimate, correlated, laws_of, off_centre, orthogonal, scale_of

Draws = Callable[[np.random.Generator, int], FloatArray]
LAWS: dict[str, Draws] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "uniform": lambda rng, size: rng.uniform(-1, 1, size),
    "truncated normal": lambda rng, size: stats.truncnorm.rvs(-2, 2, size=size, random_state=rng),
}
SINGLE, BFLOAT = 2.0**-24, 2.0**-8


def to_bfloat(x: FloatArray) -> FloatArray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("size", [2048, 2**16, 2**19])
@pytest.mark.parametrize("name", LAWS)
def test_laws_are_distinguished(name: str, size: int) -> None:
    for seed in range(4):
        entries = LAWS[name](np.random.default_rng(seed), size)
        rounded = to_bfloat(entries)
        centred = entries.reshape(64, -1) - entries.reshape(64, -1).mean(axis=0)
        assert laws_of(entries, scale_of(entries), SINGLE) == (name,)
        assert laws_of(rounded, scale_of(rounded), BFLOAT) == (name,)
        without_means = laws_of(centred, scale_of(centred), SINGLE, lost=1 / 64)
        assert name in without_means
        assert size == 2048 or without_means == (name,)


def test_laws_that_are_none_of_these() -> None:
    rng = np.random.default_rng(0)
    for entries in (rng.standard_t(5, 2**14), rng.choice([-1.0, 1.0], 2**14), rng.exponential(size=2**14)):
        assert laws_of(entries, scale_of(entries), SINGLE) == ("none known",)


def test_zeros_have_a_scale() -> None:
    assert scale_of(np.zeros(9)) == ScaleEstimate(0.0, 0.0, 0.0)
    assert laws_of(np.zeros(9), scale_of(np.zeros(9)), SINGLE) == ("constant",)
    assert not orthogonal(np.zeros((9, 9)))
    assert correlated(np.zeros(9), np.zeros(9)) == 0.0
    assert not off_centre(np.zeros(9), scale_of(np.zeros(9)))


def test_layers_that_are_copies() -> None:
    one, other = np.random.default_rng(0).standard_normal((2, 4, 4))
    weights = {f"h.{i}.a.{j}": one * j for i in range(3) for j in (1, 2)} | {"h.3.a.1": other}
    assert [str(note) for note in same_layers(weights)] == [
        "layers 0, 1 and 2 have the same weights: h.*.a.1 and 1 more"
    ]
    assert same_layers({"embedding": one, "head": one, "h.0.zero": one * 0, "h.1.zero": one * 0}) == []
