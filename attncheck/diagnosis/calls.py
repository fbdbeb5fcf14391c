"""Repeated draws and differences between calls, detected before fitting causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import scipy

from attncheck.checks.sample import Sample
from attncheck.diagnosis.statistics import features_of
from attncheck.simulators.weights import WeightLaws

#: Maximum draws from a second call of a layer.
OTHER_CALL = 2_000
# Minimum draws of a second call.
_FEWEST = 1_000
# Endings of features that are relative to a median of the sample, and so not independent between draws.
_CENTRED = (" by head", " by overlap", " by attention", " along a call")
# Share of repeated draws reported as a cause; 12,000 single-precision numbers have about ten repeats by chance.
_AGAIN = 0.01
# False-alarm probability when comparing two calls.
_APART = 1e-6


def read_off(samples: Sequence[Sample], later: Sequence[Sample], laws: WeightLaws) -> Iterator[str]:
    """Yield causes found by comparing draws within one call, and with a second call of each layer if available."""
    if laws.gaussian:
        for sample in samples:
            yield from _repeats(sample)
    pairs = [pair for pair in zip(samples, later, strict=False) if len(pair[1]) >= _FEWEST]
    gaps = [gap for first, second in pairs for gap in _gaps(first[: len(second)], second)]
    if gaps and min(gaps) * len(gaps) < _APART:
        yield "two calls have different distributions: do all draws of one call share their weights?"


def _gaps(one: Sample, other: Sample) -> Iterator[float]:
    """Yield the p-value of a Kolmogorov–Smirnov test for each feature, valid for any law of the draws."""
    first, second = features_of(one), features_of(other)
    for name, values in first.items():
        if not name.endswith(_CENTRED):
            yield float(scipy.stats.ks_2samp(values, second[name], method="asymp").pvalue)


def _repeats(sample: Sample) -> Iterator[str]:
    """Yield a message if draws repeat exactly."""
    rows = sample.outputs.reshape(len(sample), -1)
    rows = rows[rows.any(axis=1)]  # draws of zeros are reported as a separate cause
    different = len(np.unique(rows, axis=0))
    if len(rows) - different > _AGAIN * len(rows):
        yield f"draws repeat exactly: only {different:,} of {len(rows):,} in one call are distinct"
