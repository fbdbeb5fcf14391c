"""Inference on the initialiser: laws, scales with valid intervals, uneven groups, and copies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from attncheck._lib.arrays import FloatArray
from attncheck.frameworks.initialiser import same_layers
from attncheck.frameworks.laws import ScaleEstimate, correlated, laws_of, off_centre, orthogonal, scale_of, uneven

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


@pytest.mark.parametrize("size", [4, 16, 64, 256])
def test_a_right_law_is_never_refused(size: int) -> None:
    rng = np.random.default_rng(0)
    for name, draw in LAWS.items():
        for _ in range(300):
            entries = draw(rng, size)
            assert name in laws_of(entries, scale_of(entries), SINGLE)


def test_laws_that_are_none_of_these() -> None:
    rng = np.random.default_rng(0)
    for entries in (rng.standard_t(5, 2**14), rng.choice([-1.0, 1.0], 2**14), rng.exponential(size=2**14)):
        assert laws_of(entries, scale_of(entries), SINGLE) == ("none known",)


@pytest.mark.parametrize("size", [16, 256, 8192])
def test_intervals_hold_as_often_as_they_say(size: int) -> None:
    rng = np.random.default_rng(size)
    times, z = 4000, 2.0
    scales = [scale_of(rng.standard_normal(size), z) for _ in range(times)]
    missed = sum(not scale.holds(1.0) for scale in scales)
    # Two standard errors miss one in 22.
    assert stats.binomtest(missed, times, 2 * stats.norm.sf(z)).pvalue > 1e-4


def test_zeros_have_a_scale() -> None:
    assert scale_of(np.zeros(9)) == ScaleEstimate(0.0, 0.0, 0.0)
    assert laws_of(np.zeros(9), scale_of(np.zeros(9)), SINGLE) == ("constant",)
    assert not orthogonal(np.zeros((9, 9)))
    assert correlated(np.zeros(9), np.zeros(9)) == 0.0
    assert not off_centre(np.zeros(9), scale_of(np.zeros(9)))


@pytest.mark.parametrize("shape", [(16, 16), (64, 16), (16, 64), (256, 256)])
def test_orthogonal_matrices_are_told_from_independent_entries(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        normal = rng.standard_normal(shape)
        assert not orthogonal(normal)
        tall = normal if shape[0] >= shape[1] else normal.T
        assert orthogonal(np.linalg.qr(tall)[0])


@pytest.mark.parametrize("rank", [0, 4, 48])
def test_even_groups_are_hardly_ever_called_uneven(rank: int) -> None:
    """Groups of independent entries, or heads of products of matrices, whose entries depend on each other."""
    rng = np.random.default_rng(rank)
    for draws, heads, size in ((2, 2, 1), (2, 64, 4), (8, 8, 8), (3, 4, 64)) if rank == 0 else ((2, 4, 16), (8, 4, 16)):
        for _ in range(1000 if rank == 0 else 100):
            if rank == 0:
                entries = rng.standard_normal((draws, heads, size))
            else:
                products = rng.standard_normal((draws, 64, rank)) @ rng.standard_normal((draws, rank, heads * size))
                entries = products.reshape(draws, 64, heads, size).swapaxes(1, 2).reshape(draws, heads, -1)
            squares, sizes = np.mean(entries**2, axis=-1), np.full(draws, entries.shape[-1])
            assert uneven(squares, sizes, entries) is None


def test_layers_that_are_copies() -> None:
    one, other = np.random.default_rng(0).standard_normal((2, 4, 4))
    weights = {f"h.{i}.a.{j}": one * j for i in range(3) for j in (1, 2)} | {"h.3.a.1": other}
    assert [str(note) for note in same_layers(weights)] == [
        "layers 0, 1 and 2 have the same weights: h.*.a.1 and 1 more"
    ]
    assert same_layers({"embedding": one, "head": one, "h.0.zero": one * 0, "h.1.zero": one * 0}) == []
