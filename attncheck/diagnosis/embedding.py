"""Rank-based squared distance between samples, approximately chi-square if their laws agree."""

from __future__ import annotations

import numpy as np
import scipy
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck.checks.sample import Sample
from attncheck.diagnosis.statistics import features_of

# A direction of the whitened distance is dropped as a rounding error if its variance, divided by the mean variance of
# all directions, is below this.
_SHARE = 1e-4
# Features are rounded to multiples of _ROUNDING times the rounding unit of the sample or, if that is larger, of _STEP
# times their typical size.
_ROUNDING, _STEP = 100.0, 1e-5


class SampleEmbedding:
    """Features of a sample, with a distance to other samples.

    Each value of a feature in the other sample is replaced by the normal score of its rank among the values in this
    sample, so that heavy tails do no harm. The means and mean squares of these scores are compared by a whitened
    distance. If both samples have the same law, the squared distance is approximately chi-square with `dof` degrees of
    freedom.
    """

    def __init__(self, sample: Sample) -> None:
        self.sample, self.size = sample, len(sample)
        features = features_of(sample)
        # Keep constant features: a different value in another sample is the strongest sign of a difference.
        self.names = list(features)
        values = np.stack(list(features.values()))
        # Values that are equal up to rounding must tie: otherwise rounding would decide their order.
        sizes = np.quantile(np.abs(values), 0.9, axis=1, keepdims=True)
        self._steps = np.maximum(_ROUNDING * sample.rounding, _STEP * sizes)
        self._sorted = np.sort(self._rounded(values), axis=1)
        scores = self._scores(values)
        moments = np.concatenate([scores, scores * scores])
        self._center = moments.mean(axis=1)
        covariance = np.cov(moments) + 1e-6 * np.eye(len(moments))
        values, vectors = np.linalg.eigh(covariance)
        retained = values > _SHARE * values.mean()
        self.dof = int(retained.sum())
        self._whiten = vectors[:, retained] / np.sqrt(values[retained])

    def _rounded(self, values: FloatArray) -> FloatArray:
        return np.asarray(np.round(values / self._steps) * self._steps)

    def _scores(self, values: FloatArray) -> FloatArray:
        """Return normal scores of values, (features, draws), by their ranks in this sample; sorted ones are fastest."""
        rows = zip(self._sorted, self._rounded(values), strict=True)
        # The number of smaller values plus the number of smaller or equal ones: twice the middle rank.
        ranks = np.stack([row.searchsorted(value) + row.searchsorted(value, "right") for row, value in rows])
        return np.asarray(special.ndtri((ranks + 1.0) / (2.0 * self.size + 2.0)))

    def feature(self, name: str) -> FloatArray:
        """Return the sample's values of a feature, sorted."""
        return np.asarray(self._sorted[self.names.index(name)])

    def distance(self, sample: Sample) -> float:
        """Return the squared distance to another sample; it is about chi-square if both samples have the same law."""
        features = features_of(sample)
        scores = self._scores(np.sort([features[name] for name in self.names], axis=1))
        means = np.concatenate([scores.mean(axis=1), np.einsum("fn,fn->f", scores, scores) / len(sample)])
        gap = (means - self._center) @ self._whiten
        known = (
            max(1, self.size - self.dof - 2) / self.size
        )  # the factor corrects for the estimated covariance, as in Hotelling's test
        return known * float(gap @ gap) * self.size * len(sample) / (self.size + len(sample))

    def p_value(self, sample: Sample) -> float:
        """Return the p-value of the null that both samples have the same law."""
        return float(scipy.stats.chi2.sf(self.distance(sample), self.dof))
