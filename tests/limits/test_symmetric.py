"""Names and quantiles of output laws, and stated errors against exact laws."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attncheck import AttentionLayer, AttentionStack, finite_width_law, limit
from attncheck.layers.attention_map import visible
from attncheck.layers.kernel import input_kernel
from attncheck.theory.limits.covariance import output_factor
from attncheck.theory.limits.rows import row_root
from attncheck.theory.limits.symmetric import SymmetricLaw

LAYER = AttentionLayer(width=16, seq_len=3, mask="causal")
LAWS: dict[str, Callable[[], SymmetricLaw]] = {
    "limit": lambda: limit(LAYER),
    "limit, atom at 0": lambda: limit(LAYER.replace(attention_map="relu", num_heads=1)),
    "limit, many heads": lambda: limit(LAYER.replace(attention_map="sigmoid", num_heads=32, head_dim=4)),
    "stack": lambda: limit(AttentionStack(layer=LAYER, depth=2)),
    "width": lambda: finite_width_law(LAYER, size=128),
    "width, linear": lambda: finite_width_law(LAYER.replace(attention_map="linear"), size=128),
    "width, limit 0": lambda: finite_width_law(LAYER.replace(attention_map="linear", score_scaling="1/n"), size=128),
}
POINTS = np.array([0.0, 1e-3, 0.3, 1.0, 2.5, 6.0, np.inf])


@functools.cache
def law_of(name: str) -> SymmetricLaw:
    return LAWS[name]()


@pytest.mark.parametrize("name", LAWS)
def test_a_law_says_what_it_is_of(name: str) -> None:
    law = law_of(name)
    std = float(np.sqrt(law.variance()))
    assert f"{std:.4g}, excess kurtosis {law.excess_kurtosis():.3g}" in str(law)
    assert name != "limit" or f"{2.0 * float(law.sf(3.0 * std)):.2g} (normal: 0.0027)" in str(law)
    assert str(law).split()[0] == ("law" if name.startswith("width") else "limit")
    assert ("(conjecture)" in str(law)) == (name == "stack")


# Of laws with `ppf`, which all of these have.
QUANTILES: dict[str, Callable[[], Any]] = {
    **LAWS,
    "limit, one score": lambda: limit(AttentionLayer(width=16, seq_len=1, num_heads=1, attention_map="linear")),
    "limit 0": lambda: limit(AttentionLayer(width=16, attention_map="linear", score_scaling="1/n")),
    "width, one score": lambda: finite_width_law(AttentionLayer(width=16, seq_len=1, num_heads=1), size=256),
    "width, atom at 0": lambda: finite_width_law(LAYER.replace(attention_map="relu", num_heads=1), size=256),
}


@pytest.mark.parametrize("name", QUANTILES)
def test_quantiles_are_where_the_law_reaches_them(name: str) -> None:
    law, position, of_draws = QUANTILES[name](), 2 * (name in LAWS), name.startswith("width")
    tails = 10.0 ** -(np.arange(5.0, 0.0, -0.5) if of_draws else np.arange(300.0, 0.0, -7.0))
    highest = 1 - 1e-3 if of_draws else 1 - 2**-53
    q = np.sort(np.append(tails, [0.25, 0.3, 0.49, 0.5 - 1e-9, 0.5, 0.51, 0.75, highest]))
    t = law.ppf(q, position)
    # At 0 the law jumps from one tail to the other; without an atom both are 1/2 but for rounding.
    over = np.minimum(q, 1 - q) >= law.sf(0.0, position) - 1e-15
    assert over[q == 0.5].all()
    np.testing.assert_allclose(t[over], 0.0, atol=1e-15)
    below, above = ~over & (q < 0.5), ~over & (q > 0.5)
    rtol = 1e-9 if of_draws else 1e-11
    np.testing.assert_allclose(law.cdf(t[below], position), q[below], rtol=rtol)
    np.testing.assert_allclose(law.sf(t[above], position), 1 - q[above], rtol=rtol)
    assert np.all(np.diff(t[np.isfinite(law.cdf_error(t, position))]) >= 0)
    np.testing.assert_array_equal(law.ppf([0.0, 1.0], position), [-np.inf, np.inf])
    for shape in ((), (0,), (2, 0), (2, 3)):
        assert np.shape(law.ppf(np.full(shape, 0.2))) == shape


# Chance that a count of right laws fails.
_COUNTS = 1e-7
# Errors are at least four standard errors of eight repetitions; right laws rarely err by this multiple of them.
_PROMISED, _FAR = 2.0 * float(stats.t.sf(4.0, 7)), 10.0


def most(comparisons: int) -> int:
    """Return how many of these comparisons may exceed their stated errors.

    Of 20 at most 4 may: errors stated four times too small are seen with a chance of 88%, six times with 99.7%.
    """
    return int(stats.binom.isf(_COUNTS, comparisons, _PROMISED))


def linear_cdf(layer: AttentionLayer, position: int, t: float) -> float:
    """Return the cdf for linear attention, with characteristic function Π(1 + τ² m_j)^{-H/2}."""
    kernel = input_kernel(layer.inputs).matrix
    root, seen = row_root(layer, kernel, position), visible(layer)[position]
    m = output_factor(layer) * np.linalg.eigvalsh(root.T @ kernel[np.ix_(seen, seen)] @ root)
    unit = np.sqrt(layer.num_heads * m.sum())
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(0.0, 200.0, 1_001)
    half = 0.5 * np.diff(edges)[:, None]
    tau = edges[:-1, None] + half * (1.0 + nodes)
    of_tau = np.exp(-0.5 * layer.num_heads * np.log1p(tau[..., None] ** 2 * m / unit**2).sum(axis=-1))
    return float(0.5 + (half * weights * np.sin(tau * t / unit) / tau * of_tau).sum() / np.pi)


@pytest.mark.usefixtures("fewer_points")
def test_distribution_functions_are_off_by_more_than_stated_as_seldom_as_promised() -> None:
    rng, size, found = np.random.default_rng(4), 20, []
    for _ in range(size):
        heads = int(rng.choice((2, 4)))
        # With equal positions, or one, the law is a χ², known to rounding.
        fields: dict[str, Any] = {"seq_len": 2, "attention_map": "linear", "activation": "identity"}
        fields |= {"input_correlation": float(rng.choice((0.5, 0.999))), "query_std": 10.0 ** rng.uniform(-1.5, 1.5)}
        layer = AttentionLayer(width=64, num_heads=heads, **fields)
        law, position = limit(layer), int(rng.integers(2))
        t = float(rng.uniform(0.1, 3.0) * np.sqrt(law.variance(position)))
        found.append((abs(law.cdf(t, position) - linear_cdf(layer, position, t)), law.cdf_error(t, position)))
    assert sum(off > stated for off, stated in found) <= most(size)
    assert max(off / stated for off, stated in found) <= _FAR
    assert np.median([off / stated for off, stated in found]) > 0.01
