"""Duals of nonlinearities, declared functions, and kernels and tangent kernels of infinitely many heads."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.hermite_e import hermegauss
from scipy import special, stats

from attncheck import AttentionLayer, infinite_heads_kernel, infinite_heads_tangent
from attncheck._lib.arrays import FloatArray
from attncheck.layers import nonlinearity as nl
from attncheck.layers.kernel import Kernel, input_kernel, psd_root
from attncheck.theory.limits import heads, rows
from attncheck.theory.limits.covariance import mean_covariance
from attncheck.theory.limits.draw import draw_limit
from attncheck.theory.limits.heads import head_means, kernel_moment

COVARIANCES = [(1.0, 1.0, 0.97), (1.0, 2.3, 0.3), (0.2, 4.0, -0.7), (30.0, 30.0, 1.0), (0.5, 2.0, -1.0)]


@pytest.mark.parametrize("phi", [nl.tanh(), nl.sigmoid(), nl.gelu(), nl.erf(), nl.sin(5.0)], ids=str)
@pytest.mark.parametrize(("v1", "v2", "rho"), COVARIANCES)
def test_smooth_duals_are_the_integral(phi: nl.Nonlinearity, v1: float, v2: float, rho: float) -> None:
    """By the trapezoidal rule, which errs by rounding alone."""
    value, error = phi.dual(v1, v2, rho * np.sqrt(v1 * v2))
    z = np.arange(-9.0, 9.0, 0.03)
    density = 0.03 * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    other = phi(np.sqrt(v2) * (rho * z[:, None] + np.sqrt((1 - rho) * (1 + rho)) * z))
    expected = float((density * phi(np.sqrt(v1) * z)) @ other @ density)
    assert abs(float(value) - expected) <= float(error) + 1e-12 * abs(expected) + 1e-15
    assert float(error) <= 1e-12 * max(np.sqrt(v1 * v2), abs(expected))


@pytest.mark.parametrize(
    "phi", [nl.identity(), nl.gelu(), nl.erf(), nl.relu(), nl.tanh(), nl.sigmoid(), nl.clip(1.0)], ids=str
)
def test_dual_broadcasts_and_no_variance_is_a_constant(phi: nl.Nonlinearity) -> None:
    value, error = phi.dual([0.0, 0.0, 1.0], [0.0, 2.0, 0.0], 0.0)
    np.testing.assert_allclose(value, phi([0.0] * 3) ** 2, rtol=1e-13, atol=1e-14)  # its mean is φ(0), or φ(0) is 0
    assert np.all(error <= 1e-14)
    value, error = phi.dual([[1.0], [4.0]], [1.0, 2.0, 3.0], 0.25)
    expected = [[float(phi.dual(v, w, 0.25)[0]) for w in (1.0, 2.0, 3.0)] for v in (1.0, 4.0)]
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    assert error.shape == (2, 3)


# Declarations about a function are trusted

Function = Callable[[FloatArray], FloatArray]


def swish(x: FloatArray) -> FloatArray:
    return np.asarray(x * special.expit(x))


# A kink far out, oscillations, overflow inside, and values near the ends of double precision.
TRUE: dict[str, tuple[Function, int, bool]] = {
    "kink far out": (lambda x: np.abs(x - 12345.678), 1, False),
    "x² sin 1/x": (lambda x: x * x * np.sin(1 / np.where(x == 0, 1.0, x)), 2, False),
    "softplus that overflows": (lambda x: np.log1p(np.exp(x)), 1, False),
    "fast chirp": (lambda x: np.sin(x**8), 8, True),
    "x^64": (lambda x: x**64, 64, False),
    "zero": (lambda x: 0.0 * x, 1, True),
    "huge": (lambda x: 1.7e308 * np.tanh(x), 1, True),
    "single precision": (lambda x: np.tanh(x.astype(np.float32)).astype(np.float64), 1, True),
    "not by NumPy": (np.vectorize(lambda x: math.exp(-x) if x > 0 else math.exp(x)), 1, True),
}


@pytest.mark.parametrize("name", TRUE)
def test_a_true_declaration_is_believed(name: str) -> None:
    function, order, bounded = TRUE[name]
    phi = nl.declared(function, order=order, bounded=bounded, name=name)
    assert (phi.name, phi.order, phi.bounded) == (name, order, bounded)


@pytest.mark.parametrize(
    ("function", "path", "name"),
    [
        (np.tanh, "numpy:tanh", "tanh"),
        (special.erf, "scipy.special:erf", "erf"),
        (swish, f"{__name__}:swish", "swish"),
        (lambda x: x, "", "<lambda>"),
        (np.vectorize(math.tanh), "", ""),
    ],
)
def test_paths_and_names_are_those_of_the_function(function: Function, path: str, name: str) -> None:
    phi: Any = nl.declared(function, order=1, bounded=False)
    assert phi.path == path
    assert phi.name.endswith(name)


def test_declared_functions_are_values() -> None:
    phi = nl.declared(np.arctan, order=1, bounded=True)
    assert phi == nl.declared(np.arctan, order=1, bounded=True) == pickle.loads(pickle.dumps(phi))
    assert phi != nl.declared(np.tanh, order=1, bounded=True)
    np.testing.assert_array_equal(phi([[0.0, 1.0]]), np.arctan([[0.0, 1.0]]))


Dual = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


def of_absolute_value(v1: FloatArray, v2: FloatArray, c: FloatArray) -> FloatArray:
    """The four quadrants of (Z₁, Z₂), by symmetry two."""
    return 2.0 * (nl.relu().dual(v1, v2, c)[0] + nl.relu().dual(v1, v2, -c)[0])


def of_power(degree: int) -> Dual:
    """Isserlis' sum over pairings, k of them across Z₁ and Z₂."""

    def dual(v1: FloatArray, v2: FloatArray, c: FloatArray) -> FloatArray:
        total = np.zeros_like(c)
        for across in range(degree % 2, degree + 1, 2):
            within = (degree - across) // 2
            pairings = math.factorial(2 * within) // (2**within * math.factorial(within))
            count = math.comb(degree, across) ** 2 * math.factorial(across) * pairings**2
            total = total + count * v1**within * v2**within * c**across
        return total

    return dual


def of_gaussian(v1: FloatArray, v2: FloatArray, c: FloatArray) -> FloatArray:
    """Of exp(-x²/(2 s²)), s = 0.2: det(I + Σ/s²)^(-1/2)."""
    s = 0.2**2
    return np.asarray(s / np.sqrt((s + v1) * (s + v2) - c * c))


def known(phi: nl.Nonlinearity) -> Dual:
    return lambda v1, v2, c: phi.dual(v1, v2, c)[0]


#: Function, order, whether it is bounded, and closed form, by name.
KNOWN: dict[str, tuple[Function, int, bool, Dual]] = {
    "absolute value": (np.abs, 1, False, of_absolute_value),
    "relu": (lambda x: np.maximum(x, 0.0), 1, False, known(nl.relu())),
    "clip(0.7)": (lambda x: np.clip(x, -0.7, 0.7), 1, True, known(nl.clip(0.7))),
    "clip(3)": (lambda x: np.clip(x, -3.0, 3.0), 1, True, known(nl.clip(3.0))),
    "clip(0.01)": (lambda x: np.clip(x, -0.01, 0.01), 1, True, known(nl.clip(0.01))),
    "erf": (special.erf, 1, True, known(nl.erf())),
    "gaussian": (lambda x: np.exp(-0.5 * (x / 0.2) ** 2), 1, True, of_gaussian),
    "sin(20)": (lambda x: np.sin(20 * x), 1, True, known(nl.sin(20.0))),
    "x^3": (lambda x: x**3, 3, False, of_power(3)),
    "x^10": (lambda x: x**10, 10, False, of_power(10)),
}
#: Rounding of closed forms, relative to the value at perfect correlation.
_ROUNDING = 1e-13
EACH_KNOWN = pytest.mark.parametrize("name", KNOWN)


@EACH_KNOWN
@settings(max_examples=10)
@given(v1=st.floats(0.1, 10.0), v2=st.floats(0.1, 10.0), rho=st.sampled_from([-1.0, 0.0, 1.0]) | st.floats(-1.0, 1.0))
def test_the_error_of_quadrature_is_honest(name: str, v1: float, v2: float, rho: float) -> None:
    function, order, bounded, dual = KNOWN[name]
    first, second, c = np.array(v1), np.array(v2), np.array(rho * math.sqrt(v1 * v2))
    value, error = nl.declared(function, order=order, bounded=bounded).dual(first, second, c)
    rounding = _ROUNDING * float(dual(first, first, first) + dual(second, second, second))
    assert abs(float(value) - float(dual(first, second, c))) <= float(error) + rounding


@EACH_KNOWN
def test_the_error_of_quadrature_is_small_and_allows_for_kinks_that_nearly_coincide(name: str) -> None:
    function, order, bounded, dual = KNOWN[name]
    phi = nl.declared(function, order=order, bounded=bounded)
    # Correlations near ±1, of both signs in turn.
    c = np.array(
        [sign * math.sqrt(1 - gap**2) for sign, gap in zip([1, -1] * 4, np.geomspace(1e-7, 0.5, 8), strict=True)]
    )
    one = np.ones(8)
    (value, error), right = phi.dual(one, one, c), dual(one, one, c)
    largest = float(dual(one, one, one)[0])
    assert np.all(np.abs(value - right) <= error + _ROUNDING * largest)
    _, error = phi.dual(1.0, [1.0, 2.0], [1.0, -0.5])
    assert np.all(error <= 1e-3 * largest)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (np.hypot, nl.DeclaredMix),
        (lambda vector, *scores: vector, nl.DeclaredMix),
        (np.vectorize(lambda one, two: one * two), nl.DeclaredMix),
        (np.sin, nl.DeclaredFunction),
        (np.vectorize(math.sin), nl.DeclaredFunction),
        (lambda x, slope=0.1: slope * x, nl.DeclaredFunction),
    ],
)
def test_functions_of_several_arrays_are_mixes(function: Any, kind: Any) -> None:
    phi: Any = nl.declared(function, order=1, bounded=False)
    assert type(phi) is kind
    arrays = (np.array([0.3, -2.0]),) * (2 if kind is nl.DeclaredMix else 1)
    np.testing.assert_array_equal(phi(*arrays), function(*arrays))


# Kernels ------------------------------------------------------------------------------------------


@pytest.fixture
def fewer_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take fewer points: errors are larger, and still honest."""
    monkeypatch.setattr(heads, "_MOST", 2**19)
    monkeypatch.setattr(rows, "_POINTS", 2**11)


# Infinitely many heads, against quadrature, brute force, draws and closed forms -------------------


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
    ({"kernel": [[1.0, 0.2], [0.2, 2.0]], "std": 1e6}, {(0, 0): 1.5, (0, 1): 3.0 * _SAME + 0.4 * (0.5 - _SAME)}, 5e-4),
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


@pytest.mark.sampled(4)
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
