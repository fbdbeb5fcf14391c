"""A sample's features, among which those of another sample are placed: their distance is about a chi-square."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from attncheck.checks.sample import Sample
from attncheck.diagnosis.features import features_of

FloatArray = NDArray[np.float64]

# Directions of the features with less than this share of the mean variance: what is left there is rounding.
_SHARE = 1e-4
# Steps to which features are rounded: in roundings of the sample's numbers, and against the feature's own size.
_ROUNDING, _STEP = 100.0, 1e-5


class _Feature:
    """One feature of a sample, and the normal score of each place among its values."""

    def __init__(self, values: FloatArray, rounding: float) -> None:
        # What is the same but for rounding counts as the same: its order would be that of the rounding.
        self._step = max(_ROUNDING * rounding, _STEP * float(np.quantile(np.abs(values), 0.9)))
        self._different, counts = np.unique(self._rounded(values), return_counts=True)
        upto = np.concatenate([[0], np.cumsum(counts)])
        # Below the first value, at it, between it and the second one, …: how many are smaller, and how many not larger.
        below_and_upto = 2.0 * np.repeat(upto, 2)[:-1]
        below_and_upto[1::2] = upto[:-1] + upto[1:]
        self._scores = special.ndtri((below_and_upto + 1.0) / (2.0 * len(values) + 2.0))
        self.sorted = np.repeat(self._different, counts)

    def _rounded(self, values: FloatArray) -> FloatArray:
        return np.asarray(np.round(values / self._step) * self._step)

    def scores(self, values: FloatArray) -> FloatArray:
        """Return the normal scores of the places of values; sorted ones are found the fastest."""
        rounded = self._rounded(values)
        after = np.searchsorted(self._different, rounded)
        equal = self._different[np.minimum(after, len(self._different) - 1)] == rounded
        return np.asarray(self._scores[2 * after + equal])


class Placed:
    """A sample's features, among which others are placed.

    Numbers are placed among those of the sample, so that heavy tails do no harm: under equality the mean and the spread
    of the normal scores of these places differ by chance only. Their squared distance, whitened, is about a
    chi-square.

    Attributes
    ----------
    sample : Sample
    dof : int
        Degrees of freedom of the chi-square.
    """

    def __init__(self, sample: Sample) -> None:
        self.sample, self.size = sample, len(sample)
        found = features_of(sample)
        # A feature that is one number in all draws is kept: another number elsewhere tells the most.
        self._features = {name: _Feature(values, sample.rounding) for name, values in found.items()}
        scores = np.stack([each.scores(found[name]) for name, each in self._features.items()], axis=1)
        own = np.concatenate([scores, scores * scores], axis=1)
        self._center = own.mean(axis=0)
        covariance = np.cov(own, rowvar=False) + 1e-6 * np.eye(own.shape[1])
        values, vectors = np.linalg.eigh(covariance)
        kept = values > _SHARE * values.mean()
        self.dof = int(kept.sum())
        self._whiten = vectors[:, kept] / np.sqrt(values[kept])

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return list(self._features)

    def feature(self, name: str) -> FloatArray:
        """Return the sample's own values of a feature, sorted."""
        return self._features[name].sorted

    def distance(self, other: Sample) -> float:
        """Return the squared distance of another sample: about a chi-square if it is of the same law."""
        found = features_of(other)
        scores = [each.scores(np.sort(found[name])) for name, each in self._features.items()]
        means = [*(each.mean() for each in scores), *((each * each).mean() for each in scores)]
        gap = (np.array(means) - self._center) @ self._whiten
        known = max(1, self.size - self.dof - 2) / self.size  # the covariance is an estimate, as in Hotelling's test
        return known * float(gap @ gap) * self.size * len(other) / (self.size + len(other))

    def p_value(self, other: Sample) -> float:
        """Return the chance of a distance as large as another sample's if it is of the same law."""
        return float(stats.chi2.sf(self.distance(other), self.dof))
