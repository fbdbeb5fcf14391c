"""Scale mixtures, condensed to two points a cell."""

from __future__ import annotations

import numpy as np
import pytest

from attncheck.limits.mixture import condense


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("gap", [0.0, 50.0, 120.0, 300.0])
def test_moments_are_kept_however_far_variances_lie_apart(gap: float) -> None:
    rng = np.random.default_rng(0)
    variances = 10.0 ** -np.concatenate([rng.uniform(0.0, 2.0, 10_000), rng.uniform(gap, gap + 1.0, 10_000)])
    mixture = condense(variances, np.ones(len(variances)))
    assert len(mixture.variances) < 0.2 * len(variances)
    assert np.isfinite(mixture.variances).all()
    for power in (1, 2, 3):
        assert mixture.weights @ mixture.variances**power == pytest.approx(np.mean(variances**power), rel=1e-12)
