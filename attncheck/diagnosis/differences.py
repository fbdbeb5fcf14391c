"""What is wrong, in words and numbers: estimates that a person can compare with the declaration.

A diagnosis explains a verdict and is none: its intervals are the usual normal ones, on a fresh sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.errors import InputError
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.sample import Sample
from attncheck.diagnosis.estimates import (
    INPUTS,
    KEYS,
    OUTPUTS,
    OUTPUTS_GIVEN,
    SCORES,
    SCORES_GIVEN,
    VALUES,
    Observed,
    agree,
    by_head,
    estimates,
    mean_square,
    score_estimates,
)
from attncheck.diagnosis.laws import fitting_laws, passes
from attncheck.evidence.exchange import Calls
from attncheck.layers.attention import ACTIVATIONS, ATTENTION_MAPS, DEFAULT_CLIP, MASKS, SCORE_SCALINGS, AttentionLayer
from attncheck.layers.attention_map import visible
from attncheck.layers.case import ProgramCase
from attncheck.looks.unit import Unit
from attncheck.readings import simulate
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws
from attncheck.subject import Subject

FloatArray = NDArray[np.float64]

_SIZE = 4_000
# Entries of a diagnosis' largest array.
_ENTRIES = 2**21
# Calls that are compared with each other, their draws, and the level of the comparison.
_CALLS, _CALL_DRAWS, _CALLS_LEVEL = 24, 60, 1e-6
#: What a simulator may have read otherwise than declared.
_READINGS: dict[str, tuple[Any, ...]] = {
    "score_scaling": SCORE_SCALINGS,
    "attention_map": ATTENTION_MAPS,
    "mask": MASKS,
    "head_scaling": (True, False),
    "head_dim": (None,),
    "activation": ACTIVATIONS,
    "position_std": (0.0,),
    "tied_query_key": (True, False),
    "rotary_base": (None,),
}
# What else the variance of a matrix' entries may be, over 1/fan-in, who makes it so, and in which matrices.
_INITIALISATIONS = (
    (1 / 3, "nn.Linear's default, uniform within ±1/√(fan-in)", ("W_Q", "W_K", "W_V", "W_O")),
    (1 / 2, "Xavier's for matrices packed in one, as in nn.MultiheadAttention", ("W_Q", "W_K", "W_V")),
    (2.0, "He's (Kaiming's) for relu", ("W_Q", "W_K", "W_V", "W_O")),
)
# Estimates of one matrix.
_MATRICES = {SCORES_GIVEN: "W_Q", KEYS: "W_K", VALUES: "W_V", OUTPUTS_GIVEN: "W_O"}
# A Gram matrix by its estimate, that of what is given it, and that of the whole, which does not depend on it.
_GRAMS = {
    "key_gram": (KEYS, SCORES_GIVEN, SCORES, "K Kᵀ/ν"),
    "value_gram": (VALUES, OUTPUTS_GIVEN, OUTPUTS, "V Vᵀ/ν"),
}
# Heads whose numbers are told one by one.
_MOST_HEADS = 8
# What has to change with a field.
_WITH: dict[str, dict[str, Any]] = {
    "activation": {"clip": DEFAULT_CLIP},
    "position_std": {"position_reach": 1.0},
}


def diagnose(unit: Unit, subject: Subject, seed: int) -> list[str]:
    """Return the estimates that differ from the declaration, each a sentence.

    Parameters
    ----------
    unit : Unit
        Where something was violated.
    subject : Subject
    seed : int
        The run seed; the sample has a stream of its own.
    """
    layer = unit.case
    if isinstance(layer, ProgramCase):
        return []  # the checks of programs name what differs themselves
    size = max(64, min(_SIZE, _ENTRIES // layer.stored_entries, 100_000_000 // layer.weight_entries))
    key = unit.stream_key
    sample = subject.draw(layer, size, stream(seed, *key, role="diagnosis"))
    root = seed_sequence(seed, *key, role="diagnosis/reference")
    found = differences(sample, root, subject.weights, subject.form == "inputs")
    return [*_calls(layer, subject, stream(seed, *key, role="diagnosis/calls")), *found]


def differences(
    sample: Sample, seed: np.random.SeedSequence, laws: WeightLaws = GAUSSIAN_LAWS, handed: bool = False
) -> list[str]:
    """Return the estimates from a sample that differ from the declaration, and what they would fit, as sentences.

    Parameters
    ----------
    sample : Sample
    seed : numpy.random.SeedSequence
        For draws of the exact law to compare with, four times as many.
    laws : WeightLaws
        Of the weights, as they are declared.
    handed : bool
        Whether the inputs are attncheck's own.
    """
    found = {estimate.name: estimate for estimate in estimates(sample, seed) if estimate.differs}
    observed = [*map(str, found.values()), *_heads(sample)]
    if not found:
        return [*observed, *fitting_laws(sample, seed, laws, handed)]
    fits = [*_root_scaling(sample, seed), *_fitting(sample, seed, laws), *_scaled_grams(sample.layer, found)]
    # Inputs whose Gram matrix has a factor make all matrices seem to have its inverse.
    if not fits and not any(_cancel(found, INPUTS, given) for given in (KEYS, VALUES)):
        fits = [*_initialised(sample, found)]
    return [*observed, *fits]


def _calls(layer: AttentionLayer, subject: Subject, rng: np.random.Generator) -> Iterator[str]:
    """Say if calls of the subject differ by more than draws of one call do, as where draws share their weights."""
    size = max(8, min(_CALL_DRAWS, 1_000_000 // layer.weight_entries))
    calls = [subject.draw(layer, size, rng) for _ in range(_CALLS)]
    sizes = [[mean_square(call.outputs) for call in calls]]
    if all(call.scores is not None for call in calls):
        sizes.append([mean_square(np.where(visible(layer), call.need("scores"), 0.0)) for call in calls])
    outcomes = [Calls(_CALLS).test(np.concatenate(each), [len(call) for call in calls]) for each in sizes]
    if all(outcome.p_value > _CALLS_LEVEL for outcome in outcomes):
        return
    yield "calls of the simulator differ by more than the draws of one call do; each draw needs weights of its own"


def _heads(sample: Sample) -> Iterator[str]:
    """Say which matrix has a scale in each head, where these differ: one number for all of them would be none."""
    for name, heads in by_head(sample).items():
        if max(head.low for head in heads) > min(head.high for head in heads):
            told = ", ".join(f"{head.value:.3g}" for head in heads[:_MOST_HEADS])
            yield f"{name} by head: {told}{', …' * (len(heads) > _MOST_HEADS)} times the declared"


def _scaled_grams(layer: AttentionLayer, found: Mapping[str, Observed]) -> Iterator[str]:
    """Say which Gram matrix has a wrong factor: what is taken from it has none, and what is given it the inverse."""
    for name, (gram, given, whole, formula) in _GRAMS.items():
        if whole not in found and _cancel(found, gram, given):
            yield f"{name} fits {found[gram].value:.3g} {formula}, ν = {layer.head_width}: the {whole} is right"


def _cancel(found: Mapping[str, Observed], one: str, other: str) -> bool:
    """Return whether two estimates are off by factors that are inverse to each other."""
    if not {one, other} <= set(found):
        return False
    first, second = found[one], found[other]
    unit = first.declared * second.declared
    return first.low * second.low <= unit <= first.high * second.high


def _initialised(sample: Sample, found: Mapping[str, Observed]) -> Iterator[str]:
    """Say which matrices have the variance of a usual initialisation in all heads, where the layer declares another.

    W_K or W_V must be among them: scores and outputs have scalings of their own.
    """
    layer, heads = sample.layer, by_head(sample)
    stds = {"W_Q": layer.query_std, "W_K": layer.key_std, "W_V": layer.value_std, "W_O": layer.output_std}
    for variance, whose, matrices in _INITIALISATIONS:
        fits = [
            matrix
            for name, matrix in _MATRICES.items()
            if name in found
            and matrix in matrices
            and all(each.holds(variance / stds[matrix] ** 2) for each in (found[name], *heads.get(name, ())))
        ]
        if {"W_K", "W_V"} & set(fits):
            yield f"{', '.join(fits)} fit {whose}"


def _fitting(sample: Sample, seed: np.random.SeedSequence, laws: WeightLaws) -> Iterator[str]:
    """Yield what the layer would have to declare, in one field, for estimates and checks to agree with it."""
    for field, value in _readings(sample.layer):
        try:
            layer = sample.layer.replace(**{field: value, **_WITH.get(field, {})})
        except InputError:  # no such layer
            continue
        masked = sample.scores is not None and not np.isfinite(sample.scores[..., visible(layer)]).all()
        if layer == sample.layer or masked:
            continue
        read = dataclasses.replace(sample, layer=layer)
        if agree(read, seed) and passes(read, seed, laws):
            yield f"all of it fits a layer with {field}={value!r}"


def _readings(layer: AttentionLayer) -> Iterator[tuple[str, Any]]:
    """Yield fields with what a simulator may have read in them."""
    yield from ((field, value) for field, values in _READINGS.items() for value in values)
    if layer.position_std:
        # Left at its default, or an exponent that is off by a factor of 2 or 4.
        factors = (0.5, 0.5**0.5, 2.0**0.5, 2.0)
        reaches = dict.fromkeys((1.0, *(round(factor * layer.position_reach, 4) for factor in factors)))
        yield from (("position_reach", reach) for reach in reaches)


def _root_scaling(sample: Sample, seed: np.random.SeedSequence) -> Iterator[str]:
    """Say if tied scores are divided by √ν: no layer declares that, as it has no limit."""
    layer = sample.layer
    if not layer.tied_query_key or sample.scores is None or layer.head_width == 1:
        return
    exact = simulate(layer, 4 * len(sample), seed)
    reference = Sample(layer, exact.outputs, scores=exact.scores)
    read = dataclasses.replace(sample, scores=sample.scores * layer.head_width**-0.5)
    off, mended = (
        any(estimate.differs for estimate in score_estimates(each, lambda: reference)) for each in (sample, read)
    )
    if off and not mended:
        yield "scores fit 1/√n: they are divided by the root of what score_scaling='1/n' divides tied ones by"
