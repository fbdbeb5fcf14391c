"""Draws are exact in law: two-sample tests against the collapsed and the literal method.

Each comparison has level 1e-5: a right sampler fails less than once in 2,000 seeds.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import attncheck as ac
from attncheck._lib.errors import InputError
from attncheck._lib.streams import seed_sequence
from attncheck.methods import Method
from attncheck.paper import draw

FloatArray = NDArray[np.float64]
Layer = ac.AttentionLayer

LEVEL = 1e-5
DRAWS = 60_000
LAYERS = {
    "paper's, n = 16": Layer(width=16),
    "fewer neurons than positions": Layer(width=2, seq_len=4),
    "ReLU": Layer(width=4, activation="relu"),
    "low rank": Layer(width=12, num_heads=3, head_dim=4),
    "one position": Layer(width=3, seq_len=1, num_heads=1),
    "many heads": Layer(width=6, num_heads=16),
    "scores over n": Layer(width=4, query_std=2.0, key_std=1.5, score_scaling="1/n"),
    "other scales": Layer(width=5, query_std=1.7, value_std=0.5, output_std=3.0, input_std=0.8, head_scaling=False),
    "correlated inputs": Layer(width=4, input_correlation=0.6),
    "equal inputs": Layer(width=4, input_correlation=1.0),
    "positions": Layer(width=4, position_std=0.7),
    "linear attention": Layer(width=4, attention_map="linear"),
    "causal": Layer(width=4, mask="causal"),
}


def drawn(layer: Layer, *key: str, of: str = "outputs", size: int = DRAWS) -> FloatArray:
    rng = draw.generator(seed_sequence(0, "paper's draws", layer.to_dict(), of, *key))
    return {"outputs": draw.draw_outputs, "scores": draw.draw_scores, "limit": draw.draw_limit}[of](layer, size, rng)


# One sample per layer serves all its comparisons; their levels still add up.
@functools.cache
def _numbers(layer: Layer, method: Method, size: int) -> dict[str, FloatArray]:
    draws = ac.simulate(layer, size, seed=seed_sequence(0, "readings", layer.to_dict(), method), method=method)
    return {"outputs": draws.outputs[:, 0, 0].copy(), "scores": draws.scores[:, 0, 0, 0].copy()}


def read(layer: Layer, of: str, method: Method = "collapsed", size: int = DRAWS) -> FloatArray:
    return _numbers(layer, method, size)[of]


def least_p(ours: FloatArray, theirs: FloatArray) -> float:
    """Return the smaller p-value of two tests, for location and shape, and for size; twice it is a level."""
    pairs = ((ours, theirs), (np.abs(ours), np.abs(theirs)))
    return 2 * min(float(stats.ks_2samp(a, b, method="asymp").pvalue) for a, b in pairs)


@pytest.mark.sampled
@pytest.mark.parametrize("of", ["outputs", "scores"])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=list(LAYERS))
def test_draws_have_the_law_of_the_collapsed_reading(layer: Layer, of: str) -> None:
    assert least_p(drawn(layer, of=of), read(layer, of)) > LEVEL


@pytest.mark.parametrize("name", ["paper's, n = 16", "ReLU", "low rank"])
def test_draws_have_the_law_of_literal_matrices(name: str) -> None:
    layer = LAYERS[name]
    assert least_p(drawn(layer, "literal"), read(layer, "outputs", "direct", 20_000)) > LEVEL


@pytest.mark.sampled
@pytest.mark.parametrize("layer", LAYERS.values(), ids=list(LAYERS))
def test_limit_draws_have_the_limit_law(layer: Layer) -> None:
    law = ac.limit(layer)
    assert stats.kstest(law.cdf(drawn(layer, of="limit")), "uniform", method="asymp").pvalue > LEVEL


@pytest.mark.parametrize("name", ["ReLU", "low rank", "fewer neurons than positions"])
def test_comparison_sees_the_limit_in_place_of_the_width(name: str) -> None:
    layer = LAYERS[name]
    assert least_p(drawn(layer, of="limit"), read(layer, "outputs")) < LEVEL


def test_comparison_sees_values_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LAYERS["low rank"]
    monkeypatch.setattr(draw, "_stretch", lambda layer, shape, rng: np.ones(shape))
    assert least_p(drawn(layer), read(layer, "outputs")) < LEVEL


def test_comparison_sees_scores_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LAYERS["low rank"]
    monkeypatch.setattr(draw, "_stretch", lambda layer, shape, rng: np.ones(shape))
    assert least_p(drawn(layer, of="scores"), read(layer, "scores")) < LEVEL


@pytest.mark.parametrize("of", ["outputs", "scores", "limit"])
def test_same_stream_gives_the_same_digits(of: str) -> None:
    layer = LAYERS["paper's, n = 16"]
    np.testing.assert_array_equal(drawn(layer, of=of, size=5000), drawn(layer, of=of, size=5000))
    assert not np.array_equal(drawn(layer, of=of, size=10), drawn(layer, "other", of=of, size=10))


def test_draws_of_wide_layers_come_one_by_one() -> None:
    assert np.isfinite(drawn(Layer(width=60_000), size=3)).all()


def test_shared_keys_are_refused() -> None:
    with pytest.raises(InputError, match="num_kv_heads=1: makes heads depend"):
        drawn(Layer(width=8, num_kv_heads=1))


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(InputError, match="size="):
        drawn(Layer(width=8), size=size)
