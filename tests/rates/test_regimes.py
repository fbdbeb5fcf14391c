"""Regimes' predictions as laws, and the draws that distinguish them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

import attncheck as ac
from attncheck.layers.regimes import REGIMES
from attncheck.theory.rates.regimes import draws_needed, gaussian, kolmogorov, prediction


# `properties/theory/test_regimes.py` rejects every regime's neighbour.
def test_predictions_say_how_many_draws_tell_them_apart() -> None:
    for name in ("linear attention", "tied queries and keys"):
        found = prediction(name)
        assert found.separation > 0.002, name
        assert found.layer == REGIMES[name].layer
        assert found.draws() < found.draws(level=1e-9) < found.draws(level=1e-9, distance=0.5 * found.separation)


def test_the_distance_of_two_normal_laws_is_the_closed_form() -> None:
    # The densities of N(0, 1) and N(0, 4) cross at t² = 8 log(2)/3.
    t = math.sqrt(8.0 * math.log(2.0) / 3.0)
    expected = special.ndtr(t) - special.ndtr(t / 2.0)
    assert kolmogorov(gaussian(1.0), gaussian(4.0)) == pytest.approx(expected, rel=1e-5)
    assert kolmogorov(gaussian(2.0), gaussian(2.0)) == 0.0


def test_as_many_draws_reject_as_often_as_they_say() -> None:
    separation, level, power = kolmogorov(gaussian(1.0), gaussian(2.0)), 1e-3, 0.9
    size, rng = draws_needed(separation, level, power), np.random.default_rng(0)
    rejected = sum(
        stats.ks_1samp(rng.standard_normal(size), stats.norm(scale=2**0.5).cdf).pvalue < level for _ in range(200)
    )
    # 90% of 200 or more: fewer than 158 has a chance below 1e-5.
    assert rejected >= 158
    few = sum(
        stats.ks_1samp(rng.standard_normal(size // 5), stats.norm(scale=2**0.5).cdf).pvalue < level for _ in range(200)
    )
    assert few < 158


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ac.InputError, match="regime"):
        prediction("hyperbolic")
    found = prediction("linear attention")
    wrong: list[tuple[str, object]] = [("distance", 0.5), ("level", 0.0), ("level", math.nan), ("level", None)]
    wrong += [("power", value) for value in (1.0, 2.0, -0.1, "x", None, math.nan)]
    for field, value in wrong:
        with pytest.raises(ac.InputError, match=f"^{field}="):
            # Wrong type on purpose.
            found.draws(**{field: value})  # type: ignore[arg-type]
