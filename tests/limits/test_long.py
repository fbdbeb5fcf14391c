"""Long sequences: the inverse participation ratio by quadrature, by draws, and in both limits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from attncheck import AttentionLayer, InputError, condensed, distance_from_uniform, inverse_participation, simulate
from attncheck.layers.attention_map import attention_weights
from attncheck.layers.kernel import input_covariance

_LEVEL = 1e-7


@pytest.mark.parametrize(("s", "std"), [(2, 1.0), (3, 0.2), (8, 3.0), (40, 1.0), (40, 12.0)])
def test_it_is_the_mean_of_draws(s: int, std: float) -> None:
    size = 100_000
    scores = std * np.random.default_rng([s, int(10 * std)]).standard_normal((size, s))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    sample = (weights**2).sum(axis=1) / weights.sum(axis=1) ** 2
    allowed = stats.norm.isf(_LEVEL / 2.0) * sample.std() / size**0.5
    assert abs(sample.mean() - inverse_participation(s, std)) < allowed
    assert allowed < 0.02


@pytest.mark.parametrize("std", [0.05, 1.0, 7.0, 100.0])
def test_two_positions_are_a_logistic_of_their_difference(std: float) -> None:
    """Σ A² = (1 + tanh²(d/2))/2 with d of variance 2σ²: a one-dimensional integral."""

    def integrand(z: float) -> float:
        return 0.5 * (1.0 + math.tanh(0.5 * math.sqrt(2.0) * std * z) ** 2) * float(stats.norm.pdf(z))

    expected = 2.0 * integrate.quad(integrand, 0.0, 40.0, points=[0.01, 0.1, 1.0, 5.0], epsabs=1e-13, limit=400)[0]
    assert inverse_participation(2, std) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("std", [0.5, 1.0, 2.0])
def test_long_sequences_have_their_limit(std: float) -> None:
    off = [s * inverse_participation(s, std) / math.exp(std**2) - 1.0 for s in (10**5, 10**7, 10**9)]
    assert abs(off[0]) > abs(off[1]) > abs(off[2])
    # The next order is 1/s.
    assert off[2] / off[1] == pytest.approx(0.01, rel=0.1)


def test_attention_condenses_beyond_the_root_of_two() -> None:
    """The next order falls slowly: as a power of s times a root of ln s, or as 1/ln s."""

    def at(b: float, exponent: int) -> float:
        s = 10**exponent
        return inverse_participation(s, b * math.sqrt(math.log(s)))

    assert at(0.5, 30) < 1e-20
    assert at(1.0, 30) < 1e-4
    gaps = [at(2.0, exponent) - condensed(2.0) for exponent in (6, 12, 48)]
    assert all(many < few for few, many in itertools.pairwise(gaps))
    assert 0.0 < gaps[-1] < 0.015
    assert condensed(math.sqrt(2.0)) == condensed(0.0) == 0.0


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": "causal", "input_correlation": 0.4},
    "correlated": {"input_correlation": 0.6, "query_std": 2.0},
    "relu": {"activation": "relu", "query_std": 2.0, "input_correlation": 0.3},
    "divided by n": {"score_scaling": "1/n"},
    "one position": {"seq_len": 1},
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_distance_from_uniform_is_that_of_draws(kind: str) -> None:
    layer = AttentionLayer(**{"width": 64, "seq_len": 6, "num_heads": 1, **KINDS[kind]})
    size = 40_000
    weights = attention_weights(layer, simulate(layer, size, seed=3, method="limit").scores[:, 0])
    uniform = attention_weights(layer, np.zeros((layer.seq_len, layer.seq_len)))
    sample = ((weights - uniform) ** 2).sum(axis=(1, 2))
    allowed = stats.norm.isf(_LEVEL / 2.0) * sample.std() / size**0.5 + 1e-9
    assert abs(sample.mean() - distance_from_uniform(layer)) < allowed


@pytest.mark.sampled
@pytest.mark.parametrize("nu", [1, 2, 5, 64])
@pytest.mark.parametrize("kind", ["plain", "causal", "divided by n"])
def test_heads_of_a_fixed_size_have_scores_that_are_normal_given_a_query(nu: int, kind: str) -> None:
    layer = AttentionLayer(width=64, seq_len=5, num_heads=1, head_dim=nu, query_std=1.5, **KINDS[kind])
    rng, size = np.random.default_rng(nu), 40_000
    root = np.linalg.cholesky(input_covariance(layer.inputs))
    queries, keys = (root @ rng.standard_normal((size, layer.seq_len, nu)) for _ in range(2))
    scores = 1.5 * queries @ keys.swapaxes(1, 2) / (nu if layer.score_scaling == "1/n" else nu**0.5)
    uniform = attention_weights(layer, np.zeros((layer.seq_len, layer.seq_len)))
    sample = ((attention_weights(layer, scores) - uniform) ** 2).sum(axis=(1, 2))
    allowed = stats.norm.isf(_LEVEL / 2.0) * sample.std() / size**0.5
    assert abs(sample.mean() - distance_from_uniform(layer)) < allowed
    # Scores that are normal for every query would be rejected.
    full = distance_from_uniform(layer.replace(head_dim=None))
    assert nu == 64 or abs(sample.mean() - full) > allowed


def test_long_sequences_of_heads_of_a_fixed_size_have_their_limit() -> None:
    layer = AttentionLayer(width=64, seq_len=10**7, num_heads=1)
    for nu in (32, 128, 12_288):
        limit = (1.0 - 2.0 / nu) ** (-nu / 2.0) - 1.0
        assert distance_from_uniform(layer.replace(head_dim=nu)) == pytest.approx(limit, rel=1e-4)
    assert distance_from_uniform(layer.replace(head_dim=10**7)) == pytest.approx(distance_from_uniform(layer), rel=1e-6)


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_tied_queries_and_keys_are_not_uniform(mask: Any) -> None:
    """Scores tend to σ_Qσ_K K, so each position prefers itself. At width n the mean is off by order 1/n."""
    layer = AttentionLayer(
        width=4096, seq_len=4, num_heads=1, mask=mask, score_scaling="1/n", tied_query_key=True, activation="relu"
    )
    weights = attention_weights(layer, simulate(layer, 2_000, seed=1).scores[:, 0])
    uniform = attention_weights(layer, np.zeros((4, 4)))
    sample = ((weights - uniform) ** 2).sum(axis=(1, 2))
    computed = distance_from_uniform(layer)
    assert computed > 0.02
    assert sample.mean() == pytest.approx(computed, abs=20.0 / 4096 * computed + 6.0 * sample.std() / 2_000**0.5)
    assert distance_from_uniform(layer.replace(query_std=1e3, key_std=1e3)) == pytest.approx(
        sum(1.0 - 1.0 / m for m in ((1, 2, 3, 4) if mask == "causal" else (4, 4, 4, 4)))
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: inverse_participation(0, 1.0), "seq_len=0"),
        (lambda: inverse_participation(10**101, 1.0), "exceeds 1e\\+100"),
        (lambda: inverse_participation(4, -1.0), "score_std=-1.0"),
        (lambda: inverse_participation(4, 101.0), "score_std=101.0"),
        (lambda: condensed(-1.0), "b=-1.0"),
        (lambda: distance_from_uniform("layer"), "is not an AttentionLayer"),  # type: ignore[arg-type]
        (lambda: distance_from_uniform(AttentionLayer(width=8, position_std=1.0)), "layer.position_std=1.0"),
        (lambda: distance_from_uniform(AttentionLayer(width=8, attention_map="relu")), "layer.attention_map"),
        (lambda: distance_from_uniform(AttentionLayer(width=8, head_dim=4, rotary_base=1e4)), "layer.rotary_base"),
        (
            lambda: distance_from_uniform(
                AttentionLayer(width=8, head_dim=4, score_scaling="1/n", tied_query_key=True)
            ),
            "layer.head_dim=4",
        ),
    ],
)
def test_bad_arguments_are_refused(call: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()
