"""The limit law against closed forms, independent integration and its own draws."""

from __future__ import annotations

import functools
import importlib
import pickle
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import attention_weights
from attncheck.layers.kernel import input_kernel
from attncheck.layers.stack import AttentionStack
from attncheck.theory.limit import cached_limit, limit
from attncheck.theory.limits.draw import draw_limit
from attncheck.theory.limits.law import LimitLaw
from attncheck.theory.stacks.law import StackLaw
from tests.simulators.cases import PARTS, ROTARY

# E Σ A² of a row of four standard normal scores.
_MEAN_SQUARE = 0.39197144357569863


def layer(**fields: Any) -> AttentionLayer:
    return AttentionLayer.from_dict({"width": 16, **fields})


@functools.cache
def paper_law() -> LimitLaw:
    return limit(layer())


def ks_test(values: FloatArray, cdf: Any) -> float:
    return float(stats.ks_1samp(values, cdf).pvalue)


def linear_pdf(t: FloatArray, s: int, heads: int) -> FloatArray:
    order, x = (s * heads - 1) / 2, np.abs(t) * np.sqrt(heads)
    logs = order * np.log(x / 2) + np.log(special.kve(order, x)) - x - special.gammaln(s * heads / 2)
    return np.asarray(np.exp(logs) * np.sqrt(heads / np.pi))


def integrated_softmax_variance(s: int, heads: int) -> tuple[FloatArray, FloatArray]:
    """Return values and probabilities of v for K = I, by a product rule on score differences.

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
    return (alpha**2).sum(axis=(1, 2)) / heads, probability


@pytest.mark.parametrize(("s", "heads"), [(1, 1), (4, 2), (3, 5), (12, 4)])
def test_linear_attention_to_twelve_standard_deviations(s: int, heads: int) -> None:
    law = limit(layer(seq_len=s, num_heads=heads, attention_map="linear"))
    t = np.array([0.1, 1.0, 4.0, 8.0, 12.0]) * np.sqrt(s)
    np.testing.assert_allclose(law.pdf(t), linear_pdf(t, s, heads), rtol=0.01)
    np.testing.assert_allclose(law.pdf(t[:2]), linear_pdf(t[:2], s, heads), rtol=2e-4)
    assert law.excess_kurtosis() == pytest.approx(6 / (s * heads), rel=2e-3)
    assert law.covariance()[0, 0] == pytest.approx(s, rel=2e-3)


@pytest.mark.parametrize(("s", "heads"), [(2, 1), (2, 2), (3, 1)])
def test_softmax_to_twelve_standard_deviations(s: int, heads: int) -> None:
    law = limit(layer(seq_len=s, num_heads=heads))
    v, probability = integrated_softmax_variance(s, heads)
    t = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0]) * np.sqrt(probability @ v)
    tail = np.array([probability @ special.ndtr(-x / np.sqrt(v)) for x in t])
    density = np.array([probability @ (np.exp(-x * x / (2 * v)) / np.sqrt(2 * np.pi * v)) for x in t])
    np.testing.assert_allclose(law.sf(t), tail, rtol=0.01)
    np.testing.assert_allclose(law.pdf(t), density, rtol=0.01)
    assert np.abs(law.sf(t) - tail).max() <= law.cdf_error(t).max() <= 1e-5
    mean = probability @ v
    assert law.excess_kurtosis() == pytest.approx(3 * (probability @ (v - mean) ** 2) / mean**2, rel=1e-3)


@pytest.mark.sampled
@pytest.mark.parametrize("heads", [1, 2, 16])
def test_the_papers_set_up(heads: int) -> None:
    law = limit(layer(num_heads=heads))
    assert law.variance() == pytest.approx(0.39197, abs=1e-5)
    # For K = I the variance is E Σ A² of one row: ∫ z s E[e^{2p - z e^p}] (E e^{-z e^p})^{s - 1} dz, s = 4.
    assert abs(law.covariance()[0, 0] - _MEAN_SQUARE) <= law.covariance_error()[0, 0]
    assert law.covariance()[0, 1] == pytest.approx(0.25, abs=1e-4)
    assert law.excess_kurtosis() * heads == pytest.approx(0.2434, abs=5e-4)
    t = np.linspace(-3, 3, 601)
    distance = np.abs(law.cdf(t) - stats.norm.cdf(t / np.sqrt(law.variance()))).max()
    # 0.0056/H is the first term in 1/H (kurtosis/24 · max |He₃ φ|): 15% off at H = 1.
    assert distance == pytest.approx({1: 0.004745, 2: 0.002568, 16: 0.0003453}[heads], rel=2e-3)


def test_long_sequences() -> None:
    law = limit(layer(seq_len=512, num_heads=1))
    # s E[v] → e; the next term, by those of the means of e^z and e^2z, is -(2e² - 3e + 1)/s of that.
    first = 2 * np.e**2 - 3 * np.e + 1
    assert 512 * law.variance() == pytest.approx(np.e * (1 - first / 512), abs=0.005)


_KEPT = AttentionLayer(width=48, seq_len=3, num_heads=3)


@pytest.mark.parametrize(
    "layer",
    [
        _KEPT.replace(mask="causal", head_dim=4, activation="relu", position_std=0.5),
        _KEPT.replace(tied_query_key=True, score_scaling="1/n", input_correlation=0.5),
        _KEPT.replace(attention_map="linear"),
        _KEPT.replace(attention_map="sigmoid", score_scaling="1/n", num_heads=1),
    ],
    ids=lambda layer: layer.describe(),
)
def test_a_limit_that_is_kept_is_that_of_every_width(layer: AttentionLayer) -> None:
    kept = cached_limit(layer)
    assert kept is cached_limit(layer.replace(width=7))
    ours, theirs = (law.mixture(2) for law in (kept, limit(layer)))
    np.testing.assert_array_equal(ours.variances, theirs.variances)
    np.testing.assert_array_equal(ours.weights, theirs.weights)
    head = limit(layer.replace(num_heads=1)).mixture(2)
    whole = head.scaled(1.0 / layer.num_heads).times(layer.num_heads)
    assert whole.mean() == pytest.approx(ours.mean(), rel=1e-3)
    assert whole.variance() == pytest.approx(ours.variance(), rel=1e-2, abs=1e-12)


def test_shapes_and_ends() -> None:
    law = paper_law()
    for shape in ((), (0,), (2, 3, 4)):
        for method in (law.cdf, law.sf, law.pdf, law.cdf_error, law.pdf_error):
            assert np.shape(method(np.full(shape, 0.3))) == shape
    ends = [-np.inf, np.inf]
    assert [law.cdf(ends).tolist(), law.sf(ends).tolist()] == [[0.0, 1.0], [1.0, 0.0]]
    assert not law.pdf(ends).any()


@pytest.mark.parametrize(("s", "heads"), [(1, 1), (3, 1), (2, 2)])
def test_relu_has_an_atom(s: int, heads: int) -> None:
    law = limit(layer(seq_len=s, num_heads=heads, attention_map="relu"))
    atom = 2.0 ** -(s * heads)
    assert law.atom() == pytest.approx(atom, abs=1e-3)
    jump = law.cdf(0.0) - law.cdf(-1e-12)
    assert jump == pytest.approx(law.atom(), abs=1e-6)
    assert law.sf(0.0) + law.cdf(0.0) == pytest.approx(1.0)
    assert law.pdf(0.0) == np.inf
    assert law.pdf_error(0.0) == 0.0


GAUSSIAN = [
    ({"seq_len": 1, "num_heads": 3}, 0, 1.0),
    ({"score_scaling": "1/n"}, 2, 0.25),
    ({"score_scaling": "1/n", "mask": "causal"}, 2, 1 / 3),
    ({"score_scaling": "1/n", "attention_map": "sigmoid"}, 0, 4 / 25),
    ({"mask": "causal", "value_std": 2.0, "output_std": 0.5}, 0, 1.0),
    ({"input_correlation": 1.0, "head_scaling": False, "num_heads": 3}, 1, 3.0),
]


@pytest.mark.parametrize(("fields", "position", "variance"), GAUSSIAN)
def test_gaussian_cases(fields: dict[str, Any], position: int, variance: float) -> None:
    law = limit(layer(**fields))
    t = np.linspace(-12, 12, 49) * np.sqrt(variance)
    np.testing.assert_allclose(law.cdf(t, position), stats.norm.cdf(t, scale=np.sqrt(variance)), rtol=1e-9)
    np.testing.assert_allclose(law.pdf(t, position), stats.norm.pdf(t, scale=np.sqrt(variance)), rtol=1e-9)
    assert law.excess_kurtosis(position) == pytest.approx(0.0, abs=1e-12)
    assert law.covariance()[position, position] == pytest.approx(variance, rel=1e-9)
    assert law.atom(position) == 0.0


def test_vanishing_scores_with_no_output() -> None:
    for attention_map in ("linear", "relu"):
        law = limit(layer(score_scaling="1/n", attention_map=attention_map))
        assert law.atom() == 1.0
        np.testing.assert_array_equal(law.cdf([-1.0, 0.0, 1.0]), [0.0, 1.0, 1.0])
        np.testing.assert_array_equal(law.pdf([-1.0, 0.0, 1.0]), 0.0)
        assert law.excess_kurtosis() == 0.0
        assert not law.sample(5).any()


VARIED: list[dict[str, Any]] = [
    {},
    {"mask": "causal", "seq_len": 5, "query_std": 2.0},
    {"seq_len": 7, "num_heads": 1},
    {"attention_map": "sigmoid", "input_correlation": 0.3, "activation": "tanh"},
    {"attention_map": "relu", "activation": "relu", "num_heads": 1},
    {"attention_map": "linear", "mask": "causal", "input_correlation": 1.0, "value_std": 0.5},
    {"seq_len": 3, "num_heads": 4, "num_kv_heads": 2, "head_dim": 3, "activation": "erf", "input_std": 1.7},
    {"seq_len": 3, "activation": "relu", "query_std": 1.5, "norm": "rms"},
    {"seq_len": 3, "activation": "relu", "query_std": 1.5, "norm": "layer"},
]


LAWS = [*(layer(**fields) for fields in VARIED), *PARTS.values(), *ROTARY.values()]


@pytest.mark.sampled
@pytest.mark.parametrize("layer", LAWS, ids=AttentionLayer.describe)
def test_the_law_is_that_of_draws(layer: AttentionLayer) -> None:
    law, size = limit(layer), 20_000
    draws = draw_limit(law.layer, size, 1, np.random.default_rng(11))
    y = draws.outputs[:, :, 0]
    for position in (0, layer.seq_len - 1):
        continuous = y[y[:, position] != 0.0, position]
        # Interpolation between 4,000 points errs by less than 1e-4, a fiftieth of the test's resolution.
        grid = np.linspace(continuous.min(), continuous.max(), 4_000)
        atom = law.atom(position)
        cdf = (law.cdf(grid, position) - atom * (grid > 0.0)) / (1.0 - atom)
        assert ks_test(continuous, lambda t, grid=grid, cdf=cdf: np.interp(t, grid, cdf)) > 1e-6
        assert abs(np.mean(y[:, position] == 0.0) - atom) < 6.0 * size**-0.5
    pairs: list[tuple[FloatArray, FloatArray, Any]] = [(y, law.covariance(), law.covariance_error())]
    if not layer.bias_slopes:
        pairs.append((draws.scores[:, 0].reshape(size, -1), law.score_covariance(), 0.0))
    for values, covariance, error in pairs:
        products = values[:, :, None] * values[:, None, :]
        standard = products.std(axis=0) / np.sqrt(size)
        assert (np.abs(products.mean(axis=0) - covariance) < 6.0 * standard + error + 1e-12).all()


@pytest.mark.parametrize("fields", VARIED, ids=str)
def test_normal_given_the_scores(fields: dict[str, Any]) -> None:
    law = limit(layer(**fields))
    draws = draw_limit(law.layer, 50, 400, np.random.default_rng(3))
    given = law.conditional_covariance(draws.scores)
    attention = attention_weights(law.layer, draws.scores)
    kernel = input_kernel(law.layer.inputs).matrix
    factor = (law.layer.value_std * law.layer.output_std * law.layer.head_factor) ** 2
    expected = factor * (attention @ kernel @ attention.swapaxes(-1, -2)).sum(axis=1)
    np.testing.assert_allclose(given, expected, atol=1e-12)


def test_heads_that_share_keys_have_the_same_limit() -> None:
    t = np.linspace(-2, 2, 9)
    grouped = limit(layer(num_heads=4, num_kv_heads=1, head_dim=8)).cdf(t)
    np.testing.assert_array_equal(grouped, limit(layer(num_heads=4)).cdf(t))


def test_the_law_is_a_value() -> None:
    law = limit(layer())
    law.cdf(0.0)
    assert law == limit(layer())
    assert hash(law) == hash(limit(layer()))
    assert pickle.loads(pickle.dumps(law)).cdf(0.4) == law.cdf(0.4)
    assert law.sample(2, coordinates=3).shape == (2, 4, 3)
    np.testing.assert_array_equal(law.sample(5, seed=4), law.sample(5, seed=4))
    assert not np.array_equal(law.sample(5, seed=4), law.sample(5, seed=5))
    assert repr(law) == f"LimitLaw(layer={layer()!r}, scramble=0)"


def test_positions_are_whole_numbers_of_any_kind() -> None:
    for law in (
        limit(layer()),
        StackLaw(AttentionStack(layer=layer(), depth=1), draws=64),
        ac.finite_width_law(layer(), 16),
    ):
        for method in (law.cdf, law.sf, law.pdf, law.cdf_error, law.pdf_error):
            # Zero-dimensional integers pass `operator.index`, as in slices.
            assert method(1.0, np.array(1)) == method(1.0, np.int8(1)) == method(1.0, 1)  # type: ignore[arg-type]


def test_public_name_works_before_and_after_submodules_are_imported() -> None:
    importlib.import_module("attncheck.layers.kernel")
    for _ in range(2):
        assert ac.limit(layer()) == limit(layer())
