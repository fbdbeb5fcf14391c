"""Comparison of a candidate cause with a subject by the effects of violated checks."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError
from attncheck.checks.sample import Sample
from attncheck.checks.structure import CHECKS as EXACT
from attncheck.diagnosis.candidates import NEURONS, Candidate
from attncheck.diagnosis.causes import sharpness
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.records.schema import Result, case_key
from attncheck.simulators.weights import WeightLaws
from attncheck.subject import Subject

# Maximum number of violated checks whose effects are compared.
_MOST = 2
# Two effects differ beyond chance if their distance exceeds this many half-widths of the 99% interval of their
# difference, which are 4.5 standard errors.
_DISTINCT = 1.75
# Smallest p-value of a t-test with which the effects of two series of looks count as equal. The test is needed because
# intervals of effects hold for the declared law, and are too narrow for effects with heavy tails.
_UNLIKELY = 0.01
_EXACT = {check.name for check in EXACT}


def _sharpest(layer: AttentionLayer, results: Iterable[Result]) -> list[Result]:
    """Return the violated results with the largest effects on a layer.

    Exact checks are left out, because they need the subject's own inputs.
    """
    violated = [
        result
        for result in results
        if result.verdict == Verdict.VIOLATED and case_key(result) == layer.key and result.check not in _EXACT
    ]
    return sorted(violated, key=lambda result: (-sharpness(result), result.id))[:_MOST]


def comparable(sample: Sample, results: Sequence[Result], subject: Subject | None, seed: int) -> list[Result]:
    """Return results with large effects on the layer of `sample` that can be compared with those of candidates.

    Most effects depend on the number of neurons. A subject that returns more neurons than candidates is therefore
    examined anew, on as many as they have. Of a file, whose `subject` is None, ratios of variances are preferred, as
    they do not depend on it.
    """
    layer, largest = sample.layer, _sharpest(sample.layer, results)
    if sample.coordinates <= NEURONS:
        return largest
    if subject is None:
        return _sharpest(layer, [result for result in results if result.null_effect == 1.0]) or largest
    draw = subject.call

    def call(*arguments: Any) -> Mapping[str, Any]:
        arrays = draw(*arguments)
        few = {name: np.asarray(arrays[name])[..., :NEURONS] for name in ("outputs", "inputs") if name in arrays}
        return {**arrays, **few}

    reduced = dataclasses.replace(subject, call=call)
    return [_examined(result, layer, reduced, seed, role="two neurons") for result in largest]


def reproduces(
    candidate: Candidate,
    sample: Sample,
    results: Iterable[Result],
    laws: WeightLaws,
    seed: int,
) -> bool:
    """Return whether fresh draws of a candidate have the same effects as the subject's on the layer of `sample`.

    Parameters
    ----------
    candidate : Candidate
    sample : Sample
        Draws of the subject.
    results : iterable of Result
        Results of the subject, whose effects are compared.
    laws : WeightLaws
        Declared laws of the weights.
    seed : int
        Seed of the candidate's draws.
    """
    exposed = sample.exposed

    def call(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Mapping[str, FloatArray]:
        arrays = dict(candidate.draw(layer, size, rng))
        if "attention" in exposed:
            arrays["attention"] = layer.attention_weights(arrays["scores"])
        drawn = {name: array for name, array in arrays.items() if name in exposed}
        if "scores" in drawn and "masked scores" not in exposed:
            drawn["scores"] = np.where(layer.visible, drawn["scores"], -np.inf)
        return drawn

    subject = Subject(candidate.name, call, "size", weights=laws)
    return all(_same_effect(result, sample.layer, subject, seed) for result in results)


def _same_effect(result: Result, layer: AttentionLayer, subject: Subject, seed: int) -> bool:
    """Return whether the effect of a check on fresh draws of a subject agrees with the effect in `result`.

    The errors of both effects are taken into account.
    """
    with contextlib.suppress(InputError):  # if the check refuses the draws, they differ from the subject's
        outcome = _examined(result, layer, subject, seed, role="effects")
        intervals = [(estimate.effect, estimate.low, estimate.high) for estimate in (result, outcome)]
        numbers = [number for interval in intervals for number in interval if number is not None]
        if len(numbers) < 6 or not all(map(math.isfinite, numbers)):
            return outcome.verdict == result.verdict
        (effect, low, high), (second, lower, higher) = (numbers[:3], numbers[3:])
        within = abs(effect - second) <= _DISTINCT * math.hypot(0.5 * (high - low), 0.5 * (higher - lower))
        return within or _vary_as_much(result.effects, outcome.effects)
    return False


def _examined(result: Result, layer: AttentionLayer, subject: Subject, seed: int, role: str) -> Result:
    """Return the result of the same check on a layer for another subject, on the random streams of a role."""
    cost = Cost(result.affordable, result.level, result.power)
    (outcome,) = run_item(Item(result.property, layer, role=role, only=result.check), subject, seed, cost)
    return outcome


def _vary_as_much(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether the mean effects of two series of looks are equal up to the spread in both series (t-test).

    Examples
    --------
    >>> _vary_as_much([8.2, 18.2, 17.8], [8.9, 23.6, 11.9]), _vary_as_much([1.0, 1.0, 1.0], [0.5, 0.6, 0.5])
    (True, False)
    """
    sizes = np.array([len(ours), len(theirs)])
    dof = int(sizes.sum()) - 2
    if dof < 1:
        return False
    variance = float(sizes @ [np.var(ours), np.var(theirs)]) / dof
    farthest = float(scipy.stats.t.isf(0.5 * _UNLIKELY, dof)) * math.sqrt(variance * float((1.0 / sizes).sum()))
    return bool(abs(np.mean(ours) - np.mean(theirs)) <= farthest)
