"""Tails and quantiles at finite width: errors hold if finite, and are infinite beyond the draws."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy import special

import attncheck as ac
from attncheck._lib.arrays import FloatArray

SINGLE = ac.AttentionLayer(width=16, seq_len=1, num_heads=1, activation="identity")
# Spacing of the logarithm.
_SPACING = 1 / 200


def _tail(width: int, t: FloatArray) -> FloatArray:
    """Return P(y > t) with one position and head: v is a product of three χ²_n/n, ‖h‖², ‖Wh‖²/‖h‖² and the value's."""
    half = width / 2
    logs = _SPACING * np.arange(-30 / _SPACING, 6 / _SPACING)
    density = np.exp(half * (math.log(half) + logs - np.exp(logs)) - special.gammaln(half))
    product = np.convolve(np.convolve(density, density), density) * _SPACING**3
    roots = np.exp(0.5 * (3 * logs[0] + _SPACING * np.arange(len(product))))
    assert product.sum() == pytest.approx(1.0, abs=1e-9)
    return np.asarray(special.ndtr(-t[:, None] / roots) @ product)


def test_errors_of_tails_hold_or_are_infinite() -> None:
    t, far = np.array([0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0]), 0
    for width, size, seeds in ((16, 256, 7), (16, 2048, 1), (64, 256, 7)):
        exact = _tail(width, t)
        for seed in range(seeds):
            law = ac.finite_width_law(SINGLE.replace(width=width), size=size, seed=seed)
            error = np.asarray(law.cdf_error(t))
            # Four standard errors of eight repetitions: beyond 1.75 times as much with a chance of 2e-4.
            assert np.all(np.abs(law.sf(t) - exact) < 1.75 * error)
            assert np.all(error[:2] < 0.05 * exact[:2])
            np.testing.assert_array_equal(law.cdf_error(-t), error)
            far += int(np.abs(law.sf(t) - exact)[1] > 1.9 / 4 * error[1])
    # Beyond 1.9 standard errors with a chance of 0.1: more than 6 of 15 with 4e-4. With half the errors, this or a
    # bound above would fail half the time.
    assert far <= 6


def test_errors_are_infinite_where_too_few_draws_reach() -> None:
    few, many = (ac.finite_width_law(SINGLE, size=size) for size in (64, 1024))
    assert few.cdf_error(8.0) == few.pdf_error(8.0) == many.cdf_error(8.0) == math.inf
    assert few.cdf_error(3.0) == math.inf > many.cdf_error(3.0)
    assert few.cdf_error([1.0, 8.0]).tolist() == [pytest.approx(few.cdf_error(1.0)), math.inf]
    # Beyond everything both laws are 1: nothing to estimate.
    assert few.cdf_error(math.inf) == few.pdf_error(-math.inf) == 0.0
    # With one neuron the density is infinite at 0.
    narrow = ac.finite_width_law(SINGLE.replace(width=1), size=1024)
    assert narrow.pdf_error(0.0) == math.inf > narrow.pdf_error(1.0)
    singular = ac.finite_width_law(ac.AttentionLayer(width=64, seq_len=1, num_heads=1, attention_map="linear"), size=16)
    assert singular.pdf(0.0) == singular.pdf_error(0.0) == math.inf


@pytest.mark.parametrize("law", [ac.finite_width_law(SINGLE, size=16), ac.limit(SINGLE)], ids=["width", "limit"])
def test_memory_does_not_grow_with_t(law: Any) -> None:
    law.cdf(0.0)
    tracemalloc.start()
    law.cdf(np.linspace(-2, 2, 10_000))
    law.pdf_error(np.linspace(-2, 2, 10_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**26
