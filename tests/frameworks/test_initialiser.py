"""Inference on the initialiser: laws, scales with valid intervals, and repeats."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.frameworks.laws import (
    LEVEL,
    NUMBERS,
    ScaleEstimate,
    correlated,
    laws_of,
    off_centre,
    orthogonal,
    scale_of,
)

from .plain import Array, Plain

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


def told(**changes: Any) -> tuple[str, ...]:
    return ac.inspect(Plain(**changes), width=64).blamed


# Laws and scales ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("size", [2048, 2**16, 2**19])
def test_the_law_is_told_from_the_others(name: str, size: int) -> None:
    for seed in range(4):
        entries = LAWS[name](np.random.default_rng(seed), size)
        assert laws_of(entries, scale_of(entries), SINGLE) == (name,)
        rounded = to_bfloat(entries)
        assert laws_of(rounded, scale_of(rounded), BFLOAT) == (name,)


@pytest.mark.parametrize("size", [4, 16, 64, 256])
def test_a_right_law_is_never_refused(size: int) -> None:
    rng = np.random.default_rng(0)
    for name, draw in LAWS.items():
        for _ in range(300):
            entries = draw(rng, size)
            assert name in laws_of(entries, scale_of(entries), SINGLE)


@pytest.mark.parametrize("name", LAWS)
def test_the_law_is_told_without_the_mean_of_rows(name: str) -> None:
    entries = LAWS[name](np.random.default_rng(0), 2**15).reshape(64, -1)
    entries = entries - entries.mean(axis=0)
    assert laws_of(entries, scale_of(entries), SINGLE, lost=1 / 64) == (name,)


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


def test_the_budget_is_one_in_a_million() -> None:
    assert pytest.approx(1e-6) == LEVEL * NUMBERS


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


# Through a layer ----------------------------------------------------------------------------------

KNOWN = {
    "1/fan_in (lecun)": 1.0,
    "1/(3 fan_in) (torch.nn.Linear)": 3**-0.5,
    "2/(fan_in + 3 fan_in) (xavier over packed q, k, v)": 0.5**0.5,
    "2/fan_in (he)": 2**0.5,
    "0.02² (whatever the width)": 0.02 * 8,
}


@pytest.mark.parametrize(("name", "std"), KNOWN.items(), ids=list(KNOWN))
def test_known_scales_are_named(name: str, std: float) -> None:
    found = ac.inspect(Plain(stds={"query": std}), width=64)
    matrix = found.weights["query"]
    assert name in matrix.known
    assert matrix.low < std < matrix.high
    assert matrix.high - matrix.low < 0.1 * std


def test_xavier_takes_the_given_fans() -> None:
    std = (2 * 64 / (64 + 32)) ** 0.5
    found = ac.inspect(Plain(kv=2, stds={"value": std}), width=64)
    assert "2/(fan_in + fan_out) (xavier)" in found.weights["value"].known


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_law_of_a_layer(name: str, dtype: Any) -> None:
    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        return LAWS[name](rng, shape[0] * shape[1]).reshape(shape)

    found = ac.inspect(Plain(draw=draw, bias=0.7, dtype=dtype), width=64)
    assert {matrix.law for matrix in found.weights.values()} == {name}
    assert all(0.6 < matrix.bias_std < 0.8 for matrix in found.weights.values())
    assert found.blamed == ()


def test_an_orthogonal_layer() -> None:
    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        return np.asarray(np.linalg.qr(rng.standard_normal(shape))[0] * shape[0] ** 0.5)

    found = ac.inspect(Plain(draw=draw), width=64)
    assert {matrix.law for matrix in found.weights.values()} == {"orthogonal"}


State = dict[str, Array]
#: A change of the matrices, and the only error that it is, as a pattern.
MISTAKES: dict[str, tuple[Callable[[State], Any], str]] = {
    "tied": (lambda m: m.update(key=m["query"]), "W_Q and W_K are the same matrix"),
    "all tied": (lambda m: m.update(key=m["query"], value=m["query"]), "W_Q, W_K and W_V are the same matrix"),
    "half tied": (
        lambda m: m.update(key=((m["query"] + m["key"]) / 2**0.5).astype(np.float32)),
        r"entries of W_Q and W_K have correlation 0\.7\d*",
    ),
    "heads": (lambda m: m.update(query=np.tile(m["query"][:, :16], (1, 4))), "W_Q is the same in every head"),
    "output": (lambda m: m.update(output=m["value"]), "W_V is W_O"),
    "transposed": (lambda m: m.update(output=m["value"].T.copy()), "W_V is W_O, transposed"),
    "fixed": (
        lambda m: m.update(output=np.random.default_rng(10**6).standard_normal((64, 64)).astype(np.float32) / 8),
        "W_O is the same in every draw: this initialiser does not draw it",
    ),
    "shifted": (lambda m: m.update(value=m["value"] + np.float32(0.05)), r"entries of W_V have mean 0\.05\d*, at .*"),
}


@pytest.mark.parametrize("bias", [0.0, 0.5])
@pytest.mark.parametrize(("changed", "said"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_wrong_matrix_is_named(changed: Callable[[State], Any], said: str, bias: float) -> None:
    (text,) = told(changed=changed, bias=bias)
    assert re.fullmatch(said, text)


def test_constants_are_mistakes_but_for_an_output_of_zeros() -> None:
    text = "every entry of W_Q is 0.125: this initialiser does not draw it"
    assert told(changed=lambda state: state["query"].fill(0.125)) == (text,)
    assert told(changed=lambda state: state["output"].fill(0.0)) == ()


def test_a_seed_that_is_not_used() -> None:
    class Same(Plain):
        def make(self, seed: int) -> dict[str, Array]:
            return super().make(0)

    assert ac.inspect(Same(), width=64).blamed == (
        "all weights are the same in every draw: make returns the same module",
    )


@pytest.mark.parametrize("width", [16, 64])
def test_right_layers_are_not_blamed(width: int) -> None:
    for seed in range(40):
        found = ac.inspect(Plain(width=width, head_dim=width // 4), width=width, seed=1000 * seed)
        assert found.blamed == ()
        found.require(query_std=1.0, key_std=1.0, value_std=1.0, output_std=1.0)
        assert all("normal" in matrix.laws for matrix in found.weights.values())
