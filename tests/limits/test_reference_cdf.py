"""The limit's cdf of the paper's layer against quasi-Monte Carlo over the theorem's formula."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import special
from scipy.stats import qmc

import attncheck as ac
from attncheck._lib.arrays import FloatArray


def layer_of(heads: int) -> ac.AttentionLayer:
    return ac.AttentionLayer(width=64, seq_len=4, num_heads=heads)


def reference_cdf(t: FloatArray, points: int, scrambles: int = 8) -> tuple[FloatArray, float]:
    """Return the limit's cdf of the paper's layer, and four standard errors at the worst point.

    Independent of attncheck's code, from the theorem: K = I, so that a row of scores is standard normal, and y given
    the scores has variance (|A^1_i|² + |A^2_i|²)/2. Integrates over all eight scores.
    """
    replicates = np.stack([replicate_cdf(t, points, [20250600846, k]) for k in range(scrambles)])
    standard = replicates.std(axis=0, ddof=1) / np.sqrt(scrambles)
    return replicates.mean(axis=0), float(4 * standard.max())


def replicate_cdf(t: FloatArray, points: int, seed: Sequence[int]) -> FloatArray:
    """Return the average of Φ(t/√v) over one set of scrambled Sobol points."""
    sobol = qmc.Sobol(8, scramble=True, bits=30, rng=np.random.default_rng(seed))
    scores = special.ndtri(sobol.random(points) + 2.0**-31).reshape(points, 2, 4)
    variances = (special.softmax(scores, axis=-1) ** 2).sum(axis=(1, 2)) / 2
    total = np.zeros(t.shape)
    for part in np.array_split(variances**-0.5, max(1, points // 1024)):
        total += special.ndtr(np.multiply.outer(t, part)).sum(axis=1)
    return np.asarray(total / points)


def limit_error(t: FloatArray, points: int) -> tuple[float, float]:
    """Return the largest error of the limit's cdf, and the reference's own error."""
    # By symmetry half of the reference is enough.
    negative = t[t <= 0]
    half, error = reference_cdf(negative, points)
    law = ac.limit(layer_of(2))
    lower = np.abs(law.cdf(negative) - half).max()
    upper = np.abs(law.cdf(-negative) - (1 - half)).max()
    return float(max(lower, upper)), error


def test_limit_cdf_is_accurate() -> None:
    error, uncertainty = limit_error(np.linspace(-4, 4, 401), 2**16)
    assert uncertainty <= 5e-6
    assert error <= 1e-5


def test_reference_sees_a_wrong_limit() -> None:
    t = np.linspace(-4, 0, 41)
    reference, uncertainty = reference_cdf(t, 2**10)
    one_head = ac.limit(layer_of(1)).cdf(t)
    assert np.abs(one_head - reference).max() > 10 * uncertainty
