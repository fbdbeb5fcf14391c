"""Estimates that differ from the declaration, repeated draws, and differences between two calls.

They explain a verdict without changing it, with normal intervals from a fresh sample.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import scipy

from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.declared import DRAWS
from attncheck.checks.draws import half_precision
from attncheck.checks.sample import Sample
from attncheck.diagnosis.causes import stage_of
from attncheck.diagnosis.estimates import estimates, exact_sample, uneven
from attncheck.diagnosis.lines import wrong_functions, wrong_laws, wrong_sizes
from attncheck.diagnosis.statistics import features_of
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.requirements import LINEAR_INPUTS
from attncheck.looks.item import Item
from attncheck.looks.result import violated
from attncheck.methods import simulate
from attncheck.records.schema import Result
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws
from attncheck.subject import Subject

_SIZE = 4_000
# Fewest different numbers of an array that are examined for rounding, the steps to which they may be rounded, and the
# relative rounding error of single precision.
_NUMBERS, _STEPS, _SINGLE = 30, (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5), 2e-7
# Maximum number of entries of an array in a diagnosis.
_ENTRIES = 2**21
#: Maximum draws from a second call of a layer.
SECOND_CALL = 2_000
# Minimum draws of a second call.
_FEWEST = 1_000
# Endings of the names of features that are relative to a median of the sample, and so are not independent between
# draws.
_CENTRED = (" by head", " by overlap", " by attention", " along a call")
# Repeats are reported if at least this share of draws repeats. In 12,000 single-precision numbers, about ten repeat by
# chance.
_AGAIN = 0.01
# False-alarm probability when comparing two calls.
_DISTINCT = 1e-6


def diagnose(unit: Item, subject: Subject, seed: int, results: Sequence[Result]) -> list[str]:
    """Return messages on how a violated layer or program differs from its declaration, from fresh draws.

    `unit` is the test item. For a program, the messages name its lines; the last message is the text of the most
    informative of `results`.
    """
    case = unit.case
    size = max(64, min(_SIZE, _ENTRIES // case.stored_entries, 100_000_000 // case.weight_entries))
    rng, root = stream(seed, case.key, role="diagnosis"), seed_sequence(seed, case.key, role="diagnosis/reference")
    if isinstance(case, AttentionLayer):
        return differences(subject.draw(case, size, rng), root, subject.weights)
    sample, bad = subject.draw(case, size, rng), violated(results)
    lines = wrong_functions(sample)
    # Means over the draws of one call say nothing if the draws depend on each other.
    if not lines and not any(stage_of(result.check) == DRAWS for result in bad):
        lines = wrong_laws(sample)
        if not lines and subject.weights.gaussian and "gram" not in sample.exposed:
            exact = simulate(case.program.at(case.width), size, root, coordinates=sample.coordinates)
            lines = wrong_sizes(sample, exact)
    return [*lines[:1], bad[0].text]


def differences(sample: Sample, seed: np.random.SeedSequence, laws: WeightLaws = GAUSSIAN_LAWS) -> list[str]:
    """Return a message for each estimate that differs from the declared value by more than chance explains."""

    @functools.cache
    def reference() -> Sample:
        return exact_sample(sample, seed, laws)

    every = estimates(sample, reference, laws)
    by_name = {finding.name: finding for finding in every if finding.differs and finding.beyond_chance}
    messages = [finding.text for finding in uneven(sample, reference, laws)]
    return [*map(str, by_name.values()), *messages]


def rounded(sample: Sample) -> Iterator[str]:
    """Yield a sentence for each of outputs and scores whose numbers all have few decimals, or half precision.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> layer = AttentionLayer(width=8, seq_len=3, num_heads=2)
    >>> numbers = np.random.default_rng(0).standard_normal((50, 3, 1))
    >>> list(rounded(Sample(layer, numbers.round(2)))), list(rounded(Sample(layer, numbers)))
    (['all outputs are multiples of 0.01: are they rounded?'], [])
    >>> list(rounded(Sample(layer, numbers.astype(np.float16).astype(np.float64))))
    ['the outputs are rounded to float16']
    """
    for name in ("outputs", "scores"):
        values = getattr(sample, name)
        numbers = np.unique(values[np.isfinite(values)]) if values is not None else np.zeros(0)
        for step in _STEPS:
            # Of larger numbers, single precision does not show whether they are multiples.
            small = numbers[np.abs(numbers) < 0.1 * step / _SINGLE]
            is_multiple = np.abs(small - np.round(small / step) * step) <= _SINGLE * np.abs(small)
            if len(small) >= _NUMBERS and is_multiple.all():
                yield f"all {name} are multiples of {step:g}: are they rounded?"
                break
        else:
            if len(numbers) >= _NUMBERS and half_precision(numbers).all():
                yield f"the {name} are rounded to float16"


def repeated_neurons(sample: Sample) -> Iterator[str]:
    """Yield a sentence if two neurons have the same outputs in all draws.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> outputs = np.random.default_rng(0).standard_normal((50, 3, 8))
    >>> outputs[..., 5] = outputs[..., 1]
    >>> list(repeated_neurons(Sample(AttentionLayer(width=8, seq_len=3, num_heads=2), outputs)))
    ['outputs of neurons 1 and 5 are the same in all draws']
    """
    columns = sample.outputs.reshape(-1, sample.coordinates)
    _, first, of = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    first = first[of.ravel()]
    twins = np.flatnonzero((first != np.arange(len(first))) & columns.any(axis=0))
    if twins.size:
        yield f"outputs of neurons {first[twins[0]]} and {twins[0]} are the same in all draws"


def centred(sample: Sample) -> Iterator[str]:
    """Yield a sentence if a sample has the outputs of all neurons, and they add up to 0 at each position.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> outputs = np.random.default_rng(0).standard_normal((50, 3, 8))
    >>> layer = AttentionLayer(width=8, seq_len=3, num_heads=2)
    >>> centred_outputs = outputs - outputs.mean(axis=-1, keepdims=True)
    >>> list(centred(Sample(layer, centred_outputs))), list(centred(Sample(layer, outputs)))
    (['the outputs of all neurons add up to 0 at each position: are they centred?'], [])
    """
    y, width = sample.outputs, sample.layer.width
    if y.shape[-1] == width > 2 and y.any() and np.abs(y.sum(axis=-1)).max() <= width * _SINGLE * np.abs(y).max():
        yield "the outputs of all neurons add up to 0 at each position: are they centred?"


def read_off(samples: Sequence[Sample], later: Sequence[Sample], laws: WeightLaws) -> Iterator[str]:
    """Yield causes that show in comparisons of the draws of one call, or of two calls with the same layer.

    `samples` come from the first call for each layer, and `later` from the second one. Second calls may be missing.
    """
    if laws.gaussian:
        for sample in samples:
            yield from _repeats(sample)
    pairs = [pair for pair in zip(samples, later, strict=False) if len(pair[1]) >= _FEWEST]
    gaps = [gap for first, second in pairs for gap in _gaps(first[: len(second)], second)]
    if gaps and min(gaps) * len(gaps) < _DISTINCT:
        yield "two calls have different distributions; do all draws of one call share their weights or inputs?"


def _gaps(one: Sample, two: Sample) -> Iterator[float]:
    """Yield the p-value of a two-sample Kolmogorov–Smirnov test for each feature of two samples.

    It is valid for any law of the draws. Features that are relative to a median of their sample are left out.
    """
    first, second = features_of(one), features_of(two)
    for name, values in first.items():
        if not name.endswith(_CENTRED):
            yield float(scipy.stats.ks_2samp(values, second[name], method="asymp").pvalue)


def _repeats(sample: Sample) -> Iterator[str]:
    """Yield a message if draws, or their inputs, repeat exactly."""
    arrays = {"draws": sample.outputs}
    if sample.input_gram is not None and not LINEAR_INPUTS.reason(sample.layer):
        arrays["inputs"] = sample.input_gram
    for name, array in arrays.items():
        rows = array.reshape(len(sample), -1)
        rows = rows[rows.any(axis=1)]  # draws of zeros are reported as a separate cause
        different = len(np.unique(rows, axis=0))
        if len(rows) - different > _AGAIN * len(rows):
            yield f"only {different:,} of {len(rows):,} {name} in one call are distinct"
