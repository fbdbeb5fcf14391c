"""Infinitely many heads: kernel and tangent kernel against quadrature, brute force, draws and closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy import stats

from attncheck import AttentionLayer, infinite_heads_kernel, infinite_heads_tangent
from attncheck._lib.arrays import FloatArray
from attncheck.layers.kernel import Kernel, input_kernel, psd_root
from attncheck.theory.limits.covariance import mean_covariance
from attncheck.theory.limits.draw import draw_limit
from attncheck.theory.limits.heads import head_means, kernel_moment


def smooth(s: int) -> FloatArray:
    """A kernel of decaying correlations and unequal variances up to one."""
    distance = np.subtract.outer(np.arange(s), np.arange(s))
    stds = np.sqrt(np.random.default_rng(1).uniform(0.6, 1.0, s))
    return np.asarray((0.6 * np.exp(-(distance**2) / 8) + 0.4 * np.eye(s)) * np.outer(stds, stds))


def of_kernel(
    kernel: Any, std: float = 1.0, value_std: float = 1.0, attention_map: Any = "softmax", mask: Any = "none"
) -> Kernel:
    """The kernel of infinitely many heads, for K instead of the inputs of a layer."""
    layer = AttentionLayer(
        width=1,
        seq_len=len(kernel),
        num_heads=1,
        query_std=std,
        output_std=value_std,
        attention_map=attention_map,
        mask=mask,
    )
    mean, error = mean_covariance(layer, np.array(kernel), 0)
    return Kernel(mean, float(error.max()))


def softmax_means(kernel: FloatArray, std: float, *, causal: bool, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return E[A K Aᵀ] of softmax, and its error."""
    mask = "causal" if causal else "none"
    layer = AttentionLayer(width=1, seq_len=len(kernel), num_heads=1, query_std=std, mask=mask)
    return head_means(layer, kernel, seed, (kernel_moment,))[0]


def of_rank_one(values: FloatArray, std: float) -> FloatArray:
    """K = f fᵀ: row i of the scores is std f_i z f, one standard normal z for all rows; Gauss–Hermite quadrature."""
    nodes, probabilities = hermegauss(120)
    scores = std * np.multiply.outer(np.outer(nodes, values), values)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    seen = (weights / weights.sum(axis=-1, keepdims=True)) @ values
    return np.asarray((seen * (probabilities / probabilities.sum())[:, None]).T @ seen)


def drawn_of_rank_one(case: int) -> tuple[FloatArray, float]:
    """Values near 0 or far from it, at any scale, with moderate to large σ_Q σ_K."""
    rng = np.random.default_rng([20, case])
    s, offset, unit = int(rng.integers(4, 26)), (case % 3) * rng.uniform(0.0, 3.0), 10.0 ** rng.uniform(-3.0, 3.0)
    values = rng.standard_normal(s) * rng.choice([1.0, 0.1]) + offset
    deviation = rng.choice([0.1, 0.3, 0.7, 1.0, 1.3, 1.4, 1.8])
    std = deviation / (np.abs(values).max() * np.abs(values - values.mean()).max())
    return unit**0.5 * values, float(std / unit)


# fmt: off
HARD = np.array([
    -1.164, -1.013, -0.588, 0.695, -0.163, 0.109, -1.539, -0.522, -0.163, 0.15, -0.785, 0.202, -0.01, 0.584,
    0.053, 1.446, -0.002, -0.882, -2.05, -0.696, 0.728, -0.464, 2.76, -3.357, 0.158, -0.31, 0.835,
])
# fmt: on
FOUND = {
    "unequal": (HARD, 0.1339),
    "normal": (np.random.default_rng(0).standard_normal(20) / 2.33, 1.4),
    "of one sign": (np.linspace(0.2, 1.0, 20), 3.518),
    "far from zero": (10.0 + 0.05 * np.random.default_rng(0).standard_normal(20), 1.0),
    "symmetric": (np.r_[np.linspace(0.5, 1.0, 10), -np.linspace(0.5, 1.0, 10)], 1.0),
}


@pytest.mark.sampled
@pytest.mark.usefixtures("fewer_points")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", [*FOUND, *range(9)])
def test_errors_cover_the_exact_integral_of_rank_one(case: int | str) -> None:
    """Errors are four standard errors of 16 scramblings.

    Entries of a rank-one kernel share one normal and err together: by Student's law, three errors are exceeded in any
    of 14 cases with probability below 1e-6.
    """
    values, std = FOUND[case] if isinstance(case, str) else drawn_of_rank_one(case)
    found = of_kernel(np.outer(values, values), std)
    exact = of_rank_one(values, std)
    assert found.error < 0.013 * np.abs(exact).max()
    assert np.abs(found.matrix - exact).max() <= 3.0 * found.error
    assert np.abs(found.matrix - of_rank_one(values, 1.5 * std)).max() > 3.0 * found.error


# For such large scores weights are one-hot, given by signs of normals with known orthants.
_SAME = 0.25 + np.arcsin(0.2 / 2**0.5) / (2 * np.pi)
# Scores of the first of two very unequal rows are 0 and standard normal.
_NODES = np.linspace(-9.0, 9.0, 601)
_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()
_UNEQUAL = 1e30 * _WEIGHTS @ (1.0 + np.exp(-_NODES)) ** -2.0
_UNEQUAL_SIGMOID = 1e30 * _WEIGHTS @ (1.0 + np.exp(np.log(2.0) - _NODES)) ** -2.0
CLOSED: list[tuple[dict[str, Any], dict[tuple[int, int], float], float]] = [
    (
        {"kernel": [[1.0, 0.2], [0.2, 2.0]], "std": 1e6},
        {(0, 0): 1.5, (0, 1): 3.0 * _SAME + 0.4 * (0.5 - _SAME)},
        5e-4,
    ),
    ({"kernel": np.diag([1e-30, 1e30])}, {(0, 0): _UNEQUAL}, 2e-4),
    ({"kernel": np.diag([1e-30, 1e30]), "attention_map": "sigmoid"}, {(0, 0): _UNEQUAL_SIGMOID}, 2e-4),
    *(
        ({"kernel": np.zeros((s, s)), "attention_map": name}, {(0, 0): 0.0, (s - 1, 0): 0.0}, 0.0)
        for name, s in (("softmax", 1), ("softmax", 3), ("linear", 3), ("sigmoid", 3))
    ),
    ({"kernel": np.eye(6)}, {(i, j): 1 / 6 for i in range(6) for j in range(6) if i != j}, 1e-3),
    # The mean of the squared logistic function of N(0, 1).
    ({"kernel": np.diag([0.0, 1.0]), "mask": "causal"}, {(0, 0): 0.0, (0, 1): 0.0, (1, 1): 1e-30 * _UNEQUAL}, 1e-3),
    ({"kernel": np.diag([1.0, 0.0, 1.0])}, {(1, 1): 2 / 9}, 1e-3),
    ({"kernel": np.diag([1.0, 0.0, 1.0]), "mask": "causal"}, {(0, 0): 1.0}, 1e-3),
]


@pytest.mark.parametrize(("arguments", "entries", "error"), CLOSED)
def test_closed_forms(arguments: dict[str, Any], entries: dict[tuple[int, int], float], error: float) -> None:
    """Within the stated error, which is small."""
    kernel = of_kernel(**arguments)
    assert kernel.error <= error * np.abs(kernel.matrix).max()
    for entry, value in entries.items():
        assert abs(kernel.matrix[entry] - value) <= kernel.error + 1e-9 * value


def halves(i: Any, j: Any) -> Any:
    """Positions see those of their half, which depends on their number."""
    middle = (i.max() + 1) // 2
    return (i < middle) == (j < middle)


def test_a_mask_of_ones_own_is_not_asked_about_fewer_positions() -> None:
    kernel = smooth(4)
    layer = AttentionLayer(width=1, seq_len=4, num_heads=1, mask=halves)
    ((found, error),) = head_means(layer, kernel, 0, (kernel_moment,))
    expected, of_expected = softmax_means(kernel[:2, :2], 1.0, causal=False, seed=1)
    assert (np.abs(found[:2, :2] - expected) <= 2.0 * np.hypot(error[:2, :2], of_expected)).all()
    assert np.abs(found[:2, :2] - kernel[:2, :2]).max() > 0.01


# The tangent kernel

BASE: dict[str, Any] = {
    "width": 64,
    "seq_len": 3,
    "query_std": 1.3,
    "key_std": 0.8,
    "value_std": 1.2,
    "input_correlation": 0.3,
}
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "causal": {"mask": "causal", "query_std": 4.0},
    "relu": {"attention_map": "relu", "mask": "causal"},
    "linear": {"attention_map": "linear", "mask": "causal"},
    "sigmoid": {"attention_map": "sigmoid", "activation": "relu"},
    "grouped": {"num_kv_heads": 1},
    "positions": {"position_std": 0.7},
}
_LEVEL = 1e-7


@pytest.mark.sampled
@pytest.mark.usefixtures("fewer_points")
@pytest.mark.parametrize("kind", list(KINDS))
def test_it_is_the_mean_over_scores_and_values(kind: str) -> None:
    """By draws of the scores of one head, and of a neuron's values."""
    layer, size = AttentionLayer(**{**BASE, **KINDS[kind]}).replace(num_heads=1, num_kv_heads=None), 60_000
    kernel, rng = input_kernel(layer).matrix, np.random.default_rng(11)
    scores = draw_limit(layer, size, 0, rng).scores[:, 0]
    values = layer.value_std * layer.output_std * rng.standard_normal((size, 3)) @ psd_root(kernel).T
    weights, slopes = layer.attention_weights(scores), layer.map.slopes(scores, layer.visible, values)
    of_values = 2.0 * (layer.value_std * layer.output_std) ** 2 * weights @ kernel @ weights.swapaxes(-1, -2)
    of_scores = 2.0 * (layer.query_std * layer.key_std) ** 2 * kernel * (slopes @ kernel @ slopes.swapaxes(-1, -2))
    found, sample = infinite_heads_tangent(layer), of_values + of_scores
    allowed = stats.norm.isf(_LEVEL / 2.0) * sample.std(axis=0) / size**0.5 + found.error
    # Rounding error of a mean of many equal numbers.
    assert (np.abs(sample.mean(axis=0) - found.matrix) <= allowed + 1e-10).all()
    # Five percent off would show.
    assert (allowed < 0.05 * np.abs(found.matrix).max()).all() or kind in ("relu", "linear")


@pytest.mark.usefixtures("fewer_points")
def test_scores_divided_by_n_leave_twice_the_kernel() -> None:
    layer = AttentionLayer(**BASE)
    divided = layer.replace(score_scaling="1/n")
    twice = 2.0 * infinite_heads_kernel(divided).matrix
    np.testing.assert_allclose(infinite_heads_tangent(divided).matrix, twice, rtol=1e-12)
    assert not np.allclose(infinite_heads_tangent(layer).matrix, 2.0 * infinite_heads_kernel(layer).matrix, rtol=0.05)
