"""What is read off draws before a cause is fitted: some come again, or one call differs from another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attncheck.checks.sample import Sample
from attncheck.diagnosis.embedding import SampleEmbedding
from attncheck.simulators.weights import WeightLaws

#: Draws of a second call of a layer, at most.
OTHER_CALL = 2_000
# Fewer tell nothing: a distance takes many more of them than there are features.
_FEWEST = 1_000
# Share of draws that come again for which that is the cause; of 12,000 numbers of single precision ten do by chance.
_AGAIN = 0.01
# Chance that two calls of one law are told apart.
_APART = 1e-6


def read_off(samples: Sequence[Sample], later: Sequence[Sample], laws: WeightLaws) -> Iterator[str]:
    """Yield what draws of a call have in common.

    Parameters
    ----------
    samples : sequence of Sample
        Of violated layers, each from one call.
    later : sequence of Sample
        Of the same layers, each from another call; empty where there is none, as of files.
    laws : WeightLaws
        Of the weights: outputs of Gaussian ones never come again but for rounding.
    """
    if laws.gaussian:
        for sample in samples:
            yield from _repeats(sample)
    pairs = [pair for pair in zip(samples, later, strict=False) if len(pair[1]) >= _FEWEST]
    gaps = [SampleEmbedding(first.first(len(second))).p_value(second) for first, second in pairs]
    if gaps and min(gaps) * len(gaps) < _APART:
        yield "one call differs from another: do all draws of a call share their weights?"


def _repeats(sample: Sample) -> Iterator[str]:
    """Say how many draws come again, to the digit."""
    rows = sample.outputs.reshape(len(sample), -1)
    rows = rows[rows.any(axis=1)]  # zeros have a cause of their own
    different = len(np.unique(rows, axis=0))
    if len(rows) - different > _AGAIN * len(rows):
        yield f"draws come again: {different:,} of {len(rows):,} in a call are different, to the digit"
