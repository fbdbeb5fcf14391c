"""Repeated draws and differences between calls, detected before fitting causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attncheck.checks.sample import Sample
from attncheck.diagnosis.embedding import SampleEmbedding
from attncheck.simulators.weights import WeightLaws

#: Maximum draws from a second call of a layer.
OTHER_CALL = 2_000
# Minimum draws of a second call: a distance needs many more draws than features.
_FEWEST = 1_000
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
    gaps = [SampleEmbedding(first.first(len(second))).p_value(second) for first, second in pairs]
    if gaps and min(gaps) * len(gaps) < _APART:
        yield "two calls have different distributions: do all draws of one call share their weights?"


def _repeats(sample: Sample) -> Iterator[str]:
    """Yield a message if draws repeat exactly."""
    rows = sample.outputs.reshape(len(sample), -1)
    rows = rows[rows.any(axis=1)]  # draws of zeros are reported as a separate cause
    different = len(np.unique(rows, axis=0))
    if len(rows) - different > _AGAIN * len(rows):
        yield f"draws repeat exactly: only {different:,} of {len(rows):,} in one call are distinct"
