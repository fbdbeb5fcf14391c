"""Exact moments at finite width, against collapsed draws.

Comparisons allow six sample standard errors: 2e-9 each for a normal mean, 4e-7 for all 180. Means of fourth powers
are not quite normal at this size, so the bound has room: over 12 other seeds the largest of 2,160 comparisons was
3.8.

Heads, groups and neurons of a draw have one law: their mean is compared, which saves draws.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from attncheck import AttentionLayer, Draws, simulate
from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention_map import attention_weights

SIZE = 50_000
BOUND = 6.0

WIDE = AttentionLayer(width=24, seq_len=3, num_heads=2, query_std=1.3, key_std=0.8, value_std=1.5, output_std=0.6)
LOW_RANK = WIDE.replace(width=16, head_dim=5, num_heads=3)
GROUPED = WIDE.replace(width=16, num_heads=4, num_kv_heads=2, activation="tanh", input_correlation=0.5)
LINEAR = AttentionLayer(width=32, seq_len=3, num_heads=2, attention_map="linear")


@functools.cache
def draws_of(layer: AttentionLayer) -> Draws:
    return simulate(layer, SIZE, seed=31, coordinates=2)


def assert_mean(values: FloatArray, expected: float, what: str) -> None:
    """Compare the mean of independent values, one or several of the same law per draw, with its expectation."""
    values = values.reshape(len(values), -1).mean(axis=1)
    error = values.std(ddof=1) / math.sqrt(len(values))
    mean = values.mean()
    assert abs(mean - expected) <= BOUND * error, f"{what}: {mean} is not {expected} ± {error}"


def rho(n: int, k: int) -> float:
    """Return ρ_k = Π_{l<k} (1 + 2l/n) = E (χ²_n/n)^k."""
    return math.prod(1 + 2 * m / n for m in range(k))


def sigma(layer: AttentionLayer) -> float:
    return layer.query_std * layer.key_std


def gram_of(draws: Draws) -> FloatArray:
    assert draws.input_gram is not None
    return draws.input_gram


PAIRS = [(0, 1), (2, 0), (0, 0), (2, 2)]


@pytest.mark.parametrize("layer", [WIDE, LOW_RANK], ids=AttentionLayer.describe)
@pytest.mark.parametrize(("i", "j"), PAIRS)
def test_score_moments(layer: AttentionLayer, i: int, j: int) -> None:
    """E P = 0, E P² = σ²ρ₂ off the diagonal and σ²ρ₂² on it, and so on for E P⁴ (ν in its kurtosis)."""
    n, nu = layer.width, layer.head_width
    p = draws_of(layer).scores[:, :, i, j] / sigma(layer)
    second = rho(n, 2) ** (2 if i == j else 1)
    fourth = 3 * (1 + 2 / nu) * rho(n, 4) * (rho(n, 4) if i == j else rho(n, 2) ** 2)
    assert_mean(p, 0.0, "E P")
    assert_mean(p**2, second, "E P²")
    assert_mean(p**4, fourth, "E P⁴")


@pytest.mark.parametrize("layer", [WIDE, LOW_RANK], ids=AttentionLayer.describe)
@pytest.mark.parametrize(("i", "j", "k"), [(0, 1, 0), (0, 1, 1), (1, 1, 1), (0, 1, 2), (1, 1, 2)])
def test_scores_and_input_coordinates_have_the_predicted_covariance(
    layer: AttentionLayer, i: int, j: int, k: int
) -> None:
    """Cov(P_ij², x_kc²) for a token in the score once, twice, or not at all."""
    n = layer.width
    draws = draws_of(layer)
    p = draws.scores[:, :, i, j] / sigma(layer)
    x = draws.inputs[:, k]
    second = rho(n, 2) ** (2 if i == j else 1)
    if k not in (i, j):
        # E P² x² = E‖h‖⁶/n³ off the diagonal; on it with the token's own length.
        expected = 4 / n * rho(n, 2) * (1 if i != j else rho(n, 2))
    elif i == j:
        expected = rho(n, 2) ** 2 * 4 / n * (2 + 4 / n)
    else:
        expected = 2 / n * rho(n, 3) + 4 / n * rho(n, 2)
    assert_mean((p**2 - second).mean(axis=1) * (x**2 - 1).mean(axis=1), expected, "Cov(P², x²)")


@pytest.mark.parametrize("layer", [WIDE, LOW_RANK, GROUPED], ids=AttentionLayer.describe)
def test_scores_given_the_inputs(layer: AttentionLayer) -> None:
    """Cov(P_ij, P_kl | G) = σ²G_ik G_jl, nothing across heads, and an excess kurtosis of 6/ν."""
    draws, variance = draws_of(layer), sigma(layer) ** 2
    G, P = gram_of(draws), draws.scores
    for (i, j), (k, m) in [((0, 1), (0, 1)), ((0, 1), (2, 1)), ((0, 0), (1, 1)), ((0, 1), (1, 0)), ((2, 0), (2, 1))]:
        excess = P[:, :, i, j] * P[:, :, k, m] - variance * (G[:, i, k] * G[:, j, m])[:, None]
        assert_mean(excess, 0.0, f"covariance of P{i}{j} and P{k}{m}")
        # Detects a covariance that is right only on average.
        assert_mean(excess * G[:, 0, 1, None], 0.0, "the same, weighed by G")
        assert_mean(P[:, 0, i, j] * P[:, 1, k, m], 0.0, "covariance across heads")
    z = P[:, :, 0, 1] / np.sqrt(variance * G[:, 0, 0] * G[:, 1, 1])[:, None]
    assert_mean(z**2, 1.0, "variance of a standardised score")
    assert_mean(z**4, 3 + 6 / layer.head_width, "kurtosis of a standardised score")


@pytest.mark.parametrize("layer", [GROUPED, GROUPED.replace(head_dim=3), WIDE], ids=AttentionLayer.describe)
def test_squares_of_scores_are_correlated_within_a_group_only(layer: AttentionLayer) -> None:
    """Cov(P_a,ij², P_b,kl² | G) = 2σ⁴ G_ii G_kk G_jl²/ν for heads a ≠ b that share W_K, else 0."""
    draws, variance = draws_of(layer), sigma(layer) ** 2
    G, P = gram_of(draws), draws.scores
    i, j, k, m = 0, 1, 2, 2
    given = 2 * variance**2 * G[:, i, i] * G[:, k, k] * G[:, j, m] ** 2 / layer.head_width
    first = P[:, 0, i, j] ** 2 - variance * G[:, i, i] * G[:, j, j]
    for other in range(1, layer.num_heads):
        second = P[:, other, k, m] ** 2 - variance * G[:, k, k] * G[:, m, m]
        together = other < layer.group_size
        assert_mean(first * second - together * given, 0.0, f"squares of heads 0 and {other}")


@pytest.mark.parametrize(
    "layer", [WIDE, LOW_RANK, GROUPED.replace(num_heads=2, num_kv_heads=1)], ids=AttentionLayer.describe
)
def test_output_moments_given_inputs_and_scores(layer: AttentionLayer) -> None:
    """E[y² | G, P] = ū, E[y y' | G, P] = 0 between neurons, and E y⁴ = 3E ū² + (6/(νH²)) Σ E u_a²."""
    draws, heads = draws_of(layer), layer.num_heads
    G = gram_of(draws)
    A = attention_weights(layer, draws.scores)
    u = (layer.value_std * layer.output_std) ** 2 * np.einsum("dhij,djk,dhik->dhi", A, G, A)
    for i in (0, 2):
        y, mean = draws.outputs[:, i], u[:, :, i].mean(axis=1)
        assert_mean(y**2 - mean[:, None], 0.0, "E y²")
        assert_mean(y[:, 0] * y[:, 1], 0.0, "E y y'")
        # Heads with shared values contribute u_a together, cross terms included.
        groups = A.reshape(SIZE, layer.kv_heads, layer.group_size, 3, 3)[:, :, :, i]
        cross = np.einsum("dgaj,djk,dgbk->dgab", groups, G, groups)
        shared = (layer.value_std * layer.output_std) ** 4 * (cross**2).sum(axis=(1, 2, 3))
        fourth = 3 * mean**2 + 6 / (layer.head_width * heads**2) * shared
        assert_mean(y**4 - fourth[:, None], 0.0, "E y⁴")
        # Two neurons share the values' Gram matrices: E y²y'² has a third of that.
        assert_mean(y[:, 0] ** 2 * y[:, 1] ** 2 - fourth / 3, 0.0, "E y²y'²")


@pytest.mark.parametrize("seq_len", [1, 2, 3])
def test_linear_attention(seq_len: int) -> None:
    """E y² = ρ₃(ρ₃ + (s-1)ρ₂(1+2/n) + (s-1)(s-2)/n): quadratic in s, so three lengths determine it."""
    layer = LINEAR.replace(seq_len=seq_len)
    n, s = layer.width, seq_len
    expected = rho(n, 3) * (rho(n, 3) + (s - 1) * rho(n, 2) * (1 + 2 / n) + (s - 1) * (s - 2) / n)
    y = draws_of(layer).outputs
    assert_mean(y, 0.0, "E y")
    assert_mean(y**2, expected, "E y²")


@pytest.mark.parametrize("layer", [WIDE, LOW_RANK, GROUPED], ids=AttentionLayer.describe)
def test_gram_matrices_are_wishart_given_the_inputs(layer: AttentionLayer) -> None:
    """E M_ij = σ²G_ij and Cov(M_ij, M_kl) = σ⁴(G_ik G_jl + G_il G_jk)/ν for M = K Kᵀ/ν and V Vᵀ/ν."""
    draws, nu = draws_of(layer), layer.head_width
    G = gram_of(draws)
    assert draws.key_gram is not None
    assert draws.value_gram is not None
    for M, std in ((draws.key_gram, layer.key_std), (draws.value_gram, layer.value_std)):
        for (i, j), (k, m) in [((0, 0), (0, 0)), ((0, 1), (0, 1)), ((0, 0), (1, 2))]:
            # Heads of a group share these: one head of each.
            one = M[:, :: layer.group_size, i, j] - std**2 * G[:, i, j, None]
            two = M[:, :: layer.group_size, k, m] - std**2 * G[:, k, m, None]
            given = std**4 * (G[:, i, k] * G[:, j, m] + G[:, i, m] * G[:, j, k]) / nu
            assert_mean(one, 0.0, f"E M{i}{j}")
            assert_mean(one * two - given[:, None], 0.0, f"covariance of M{i}{j} and M{k}{m}")
            assert_mean(one[:, -1] * two[:, 0], 0.0, "covariance across groups")
    keys, values = draws.key_gram[:, 0, 0, 1], draws.value_gram[:, 0, 0, 1]
    both = (keys - layer.key_std**2 * G[:, 0, 1]) * (values - layer.value_std**2 * G[:, 0, 1])
    assert_mean(both, 0.0, "covariance of keys and values")
