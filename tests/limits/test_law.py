"""Laws that have closed forms, all scale mixtures of normals; tests/theory compares every law with draws."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.checks.laws import last_position, marginal_law
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import input_kernel, input_moments
from attncheck.layers.norm import normalised_gram
from attncheck.theory.limit import cached_limit, limit
from attncheck.theory.limits.mixture import ScaleMixture, condense

TIED = AttentionLayer(width=64, seq_len=3, tied_query_key=True, score_scaling="1/n", activation="relu")
#: Variances and their probabilities; a variance of 0 is an atom.
Mixture = tuple[FloatArray, FloatArray]


def layer(**fields: Any) -> AttentionLayer:
    return AttentionLayer.from_dict({"width": 16, **fields})


def normal(variance: float) -> Mixture:
    return np.array([variance]), np.ones(1)


def chi_squared(degrees: int, count: int = 4_000) -> Mixture:
    """Return a χ² law, by the trapezoidal rule on the logarithm."""
    logs = np.linspace(-60.0, 7.0, count)
    weights = np.exp(0.5 * degrees * logs - 0.5 * np.exp(logs))
    return np.exp(logs), weights / weights.sum()


def linear(s: int, heads: int) -> Mixture:
    values, weights = chi_squared(s * heads)
    return values / heads, weights


def relu(s: int, heads: int) -> Mixture:
    """Return the law of a sum of the squares of those of s H scores that are positive."""
    counts = [(k, stats.binom.pmf(k, s * heads, 0.5)) for k in range(1, s * heads + 1)]
    positive = [
        (values / (s**2 * heads), chance * weights) for k, chance in counts for values, weights in [chi_squared(k)]
    ]
    values, weights = (np.concatenate(each) for each in zip(*positive, strict=True))
    return np.append(values, 0.0), np.append(weights, 2.0 ** -(s * heads))


def softmax(s: int, heads: int) -> Mixture:
    """Return the law of v for K = I, by a product rule on score differences.

    Softmax depends on s - 1 orthonormal contrasts per head, each standard normal.
    """
    dimension = heads * (s - 1)
    nodes, weights = np.polynomial.legendre.leggauss(240)
    nodes, weights = 9 * nodes, 9 * weights * stats.norm.pdf(9 * nodes)
    grid = np.meshgrid(*[nodes] * dimension, indexing="ij")
    z = np.stack([g.ravel() for g in grid], axis=-1).reshape(-1, heads, s - 1)
    contrasts = np.linalg.qr(np.eye(s) - 1 / s)[0][:, : s - 1]
    alpha = special.softmax(z @ contrasts.T, axis=-1)
    probability = np.prod(np.meshgrid(*[weights] * dimension, indexing="ij"), axis=0).ravel()
    return (alpha**2).sum(axis=(1, 2)) / heads, probability / probability.sum()


def tied_scores(position: int) -> Mixture:
    kernel = input_kernel(TIED.inputs).matrix
    weights = special.softmax(kernel, axis=1)
    return normal((weights @ kernel @ weights.T)[position, position])


#: Layers, positions, and the laws of their conditional variances in the limit.
EXACT: Mapping[str, tuple[AttentionLayer, int, Callable[[], Mixture]]] = {
    **{
        f"{name}, {s} positions, {heads} heads": (
            layer(seq_len=s, num_heads=heads, attention_map=name),
            0,
            functools.partial(mixture, s, heads),
        )
        for name, mixture, sizes in (
            ("linear", linear, ((1, 1), (4, 2), (3, 5), (12, 4))),
            ("softmax", softmax, ((2, 1), (2, 2), (3, 1))),
            ("relu", relu, ((1, 1), (3, 1), (2, 2))),
        )
        for s, heads in sizes
    },
    **{
        str(fields): (layer(**fields), position, functools.partial(normal, variance))
        for fields, position, variance in (
            ({"seq_len": 1, "num_heads": 3}, 0, 1.0),
            ({"score_scaling": "1/n"}, 2, 0.25),
            ({"score_scaling": "1/n", "mask": "causal"}, 2, 1 / 3),
            ({"score_scaling": "1/n", "attention_map": "sigmoid"}, 0, 4 / 25),
            ({"mask": "causal", "value_std": 2.0, "output_std": 0.5}, 0, 1.0),
            ({"input_correlation": 1.0, "head_scaling": False, "num_heads": 3}, 1, 3.0),
        )
    },
    "tied": (TIED, 2, functools.partial(tied_scores, 2)),
}


def tail_of(mixture: Mixture, t: FloatArray) -> FloatArray:
    variances, weights = mixture
    return special.ndtr(-t[:, None] / np.sqrt(np.maximum(variances, 1e-300))) @ weights


@pytest.mark.parametrize("name", EXACT)
def test_limits_have_their_closed_forms_to_twelve_standard_deviations(name: str) -> None:
    described, position, mixture = EXACT[name]
    variances, weights = mixture()
    law, mean = limit(described), float(weights @ variances)
    t = np.array([0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0]) * np.sqrt(mean)
    tails = tail_of((variances, weights), t)
    positive = np.maximum(variances, 1e-300)
    density = (np.exp(-(t[:, None] ** 2) / (2 * positive)) / np.sqrt(2 * np.pi * positive)) @ weights
    exact = len(variances) == 1
    np.testing.assert_allclose(law.sf(t, position), tails, rtol=1e-9 if exact else 0.01)
    np.testing.assert_allclose(law.pdf(t, position), density, rtol=1e-9 if exact else 0.01)
    largest = law.cdf_error(t, position).max()
    assert np.abs(law.sf(t, position) - tails).max() <= largest + 1e-9
    assert largest <= 1e-3
    assert law.variance(position) == pytest.approx(mean, rel=1e-9 if exact else 2e-3)
    kurtosis = 3 * (weights @ (variances - mean) ** 2) / mean**2
    assert law.excess_kurtosis(position) == pytest.approx(kurtosis, rel=5e-3, abs=1e-11)
    assert law.atom(position) == pytest.approx(float(weights[variances == 0.0].sum()), abs=1e-3)
    error = law.covariance_error()[position, position]
    assert abs(law.covariance()[position, position] - mean) <= 1.5 * error + 1e-8 * mean


def test_long_sequences() -> None:
    law = limit(layer(seq_len=512, num_heads=1))
    # s E[v] → e; the next term, by those of the means of e^z and e^2z, is -(2e² - 3e + 1)/s of that.
    first = 2 * np.e**2 - 3 * np.e + 1
    assert abs(512 * law.variance() - np.e * (1 - first / 512)) <= 512 * law.covariance_error()[0, 0] < 0.02


_CACHED = AttentionLayer(width=48, seq_len=3, num_heads=3)


@pytest.mark.parametrize(
    "layer",
    [
        _CACHED.replace(mask="causal", head_dim=4, activation="relu", position_std=0.5),
        _CACHED.replace(tied_query_key=True, score_scaling="1/n", input_correlation=0.5),
        _CACHED.replace(attention_map="linear", num_kv_heads=1),
        _CACHED.replace(attention_map="sigmoid", score_scaling="1/n", num_heads=1),
    ],
    ids=lambda layer: layer.describe(),
)
def test_a_cached_limit_is_that_of_every_width_and_grouping(layer: AttentionLayer) -> None:
    cached = cached_limit(layer)
    assert cached is cached_limit(layer.replace(width=7))
    ours, theirs = (law.mixture(2) for law in (cached, limit(layer.replace(num_kv_heads=None))))
    np.testing.assert_array_equal(ours.variances, theirs.variances)
    np.testing.assert_array_equal(ours.weights, theirs.weights)
    head = limit(layer.replace(num_heads=1, num_kv_heads=None)).mixture(2)
    whole = head.scaled(1.0 / layer.num_heads).times(layer.num_heads)
    assert whole.mean() == pytest.approx(ours.mean(), rel=1e-3)
    assert whole.variance() == pytest.approx(ours.variance(), rel=1e-2, abs=1e-12)


def test_densities_are_infinite_at_an_atom_and_the_law_has_a_short_name() -> None:
    law = limit(layer(seq_len=3, num_heads=1, attention_map="relu"))
    assert float(law.pdf(0.0)) == math.inf
    assert float(law.pdf_error(0.0)) == 0.0
    assert repr(law) == f"LimitLaw(layer={law.layer!r}, scramble=0)"
    importlib.import_module("attncheck.layers.kernel")
    assert ac.limit(law.layer) == law


# Kernels of the inputs, and roots of singular matrices

DISTANCE = np.subtract.outer(np.arange(5), np.arange(5))
PLACED = {"seq_len": 5, "position_std": 1.5, "position_reach": 1.2, "activation": "identity"}
#: Fields, and kernels by their entries on and off the diagonal.
KERNELS: list[tuple[dict[str, Any], FloatArray]] = [
    ({}, np.eye(4)),
    ({"activation": "relu"}, 0.5 * np.eye(4) + (1 - np.eye(4)) / (2 * np.pi)),
    ({"activation": "relu", "norm": "rms"}, np.eye(4) + (1 - np.eye(4)) / np.pi),
    ({"activation": "relu", "norm": "layer"}, np.eye(4)),
    ({"activation": "tanh", "norm": "rms"}, np.eye(4)),
    (PLACED, np.eye(5) + 1.5**2 * np.exp(-(DISTANCE**2) / (2 * 1.2**2))),
]


@pytest.mark.parametrize(("fields", "expected"), KERNELS)
def test_kernels_have_their_closed_forms_and_cannot_be_written_to(fields: Any, expected: FloatArray) -> None:
    kernel = input_kernel(AttentionLayer(width=8, **fields).inputs).matrix
    np.testing.assert_allclose(kernel, expected, atol=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        kernel[0, 0] = 2.0


def test_the_error_of_the_kernel_bounds_what_an_error_of_the_moments_makes() -> None:
    inputs = AttentionLayer(width=8, seq_len=3, activation="tanh", norm="layer", input_correlation=0.5).inputs
    kernel, means = input_moments(inputs)
    off = normalised_gram("layer", kernel.matrix + kernel.error * np.array([[1, -1, 1], [-1, 1, 1], [1, 1, -1]]), means)
    assert np.abs(off - input_kernel(inputs).matrix).max() <= input_kernel(inputs).error


# Scale mixtures, condensed to two points a cell


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("gap", "reach"), [(0.0, 1.0), (120.0, 1.0), (300.0, 1.0), (60.0, 200.0)])
def test_moments_are_kept_however_far_variances_lie_apart(gap: float, reach: float) -> None:
    rng = np.random.default_rng(0)
    variances = 10.0 ** -np.concatenate([rng.uniform(0.0, 2.0, 10_000), rng.uniform(gap, gap + reach, 10_000)])
    mixture = condense(variances, np.ones(len(variances)))
    assert len(mixture.variances) < 0.2 * len(variances)
    assert np.isfinite(mixture.variances).all()
    assert (mixture.variances >= variances.min()).all()
    for power in (1, 2, 3):
        assert mixture.weights @ mixture.variances**power == pytest.approx(np.mean(variances**power), rel=1e-12)


_MANY_HEADS = (
    {"attention_map": "sigmoid", "seq_len": 1},
    {"attention_map": "sigmoid", "seq_len": 1, "query_std": 8.0},
    {"attention_map": "sigmoid", "seq_len": 4, "query_std": 2.0, "activation": "tanh", "input_correlation": 0.5},
    {"attention_map": "relu", "seq_len": 4},
    {"attention_map": "linear", "seq_len": 4, "input_correlation": 0.5},
    {"attention_map": "linear", "seq_len": 4, "activation": "relu"},
    {"attention_map": "softmax", "seq_len": 4, "query_std": 3.0},
)


@pytest.mark.sampled
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fields", _MANY_HEADS, ids=str)
def test_sums_of_many_heads_have_the_transform_of_sums(fields: dict[str, Any]) -> None:
    """E e^{-cv} of a sum over heads is a power of one head's, and condensing preserves it at all scales c."""
    head = limit(AttentionLayer(**{"width": 64, "num_heads": 1, **fields})).mixture()
    for count in (1, 2, 7, 16, 64):
        whole = head.times(count)
        assert whole.mean() == pytest.approx(count * head.mean(), rel=1e-12)
        assert whole.variance() == pytest.approx(count * head.variance(), rel=1e-11)
        for scale in (0.1, 1.0, 10.0):
            c = scale / whole.mean()
            assert _transform(whole, c) == pytest.approx(_transform(head, c) ** count, rel=0.0, abs=3e-8)


def _transform(mixture: ScaleMixture, c: float) -> float:
    return mixture.atom + float(mixture.weights @ np.exp(-c * mixture.variances))


def test_the_law_of_a_layer_whose_variances_underflow_is_one() -> None:
    """Sigmoid weights of large negative scores: output variances span hundreds of orders of magnitude."""
    fields: dict[str, Any] = {"attention_map": "sigmoid", "mask": "causal", "activation": "identity"}
    layer = AttentionLayer(width=1, seq_len=6, num_heads=3, key_std=4.0, input_std=2.0, input_correlation=1.0, **fields)
    law = marginal_law(layer, last_position(layer))
    assert np.isfinite(law.mixture.variances).all()
    assert (law.mixture.variances > 0.0).all()
    assert 0.0 < law.error < 0.05
