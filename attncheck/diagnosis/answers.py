"""Answers of a subject and of a correct simulator to given inputs, with the same weights in every call."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.checks.sample import Sample
from attncheck.diagnosis.finding import AFTER, OUTPUTS
from attncheck.faults.literal import LiteralSimulator, Projections, projections
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import visible
from attncheck.layers.norm import normalised
from attncheck.subject import Subject

# Numbers differ if their distance exceeds both this many rounding units and this share of the largest number.
_UNITS, _CHANGE = 200.0, 1e-6
# Bits of single precision that half precision lacks.
_LOW_BITS = np.uint32(2**13 - 1)
# Largest score at inputs scaled by `Pair.small`.
_SMALL = 3e-4


@dataclasses.dataclass(frozen=True)
class Answer:
    """Outputs (draws, positions, neurons), and scores (draws, heads, positions, positions) if exposed.

    Masked scores are 0.
    """

    outputs: FloatArray
    scores: FloatArray | None
    rounding: float

    @property
    def coarse(self) -> bool:
        """Whether outputs or scores are numbers of half precision, 10 bits or fewer."""
        arrays = [each.astype(np.float32) for each in (self.outputs, self.scores) if each is not None and each.any()]
        return any(not (each.view(np.uint32) & _LOW_BITS).any() for each in arrays)

    def changes(self, other: Answer) -> tuple[BoolArray, BoolArray]:
        """Return which outputs, (draws, positions), and scores, (draws, heads, s, s), differ from another answer's."""
        of_outputs = differ(self.outputs, other.outputs, self.rounding)
        of_scores = np.zeros((len(of_outputs), 0, 0, 0), dtype=np.bool_)
        if self.scores is not None and other.scores is not None:
            of_scores = differ(self.scores, other.scores, self.rounding)
        return np.logical_or.reduce(of_outputs, axis=-1), of_scores


def differ(one: FloatArray, other: FloatArray, rounding: float) -> BoolArray:
    """Return where two arrays differ by more than rounding."""
    largest = max(float(np.abs(one).max(initial=0.0)), 1e-300)
    return np.asarray(np.abs(one - other) > max(_UNITS * rounding, _CHANGE) * largest, dtype=np.bool_)


Respond = Callable[[FloatArray], Answer]
_Read = TypeVar("_Read")


@dataclasses.dataclass(frozen=True)
class Pair:
    """The subject and a correct simulator of one layer, with two independent inputs (draws, positions, width).

    `continuous` tells whether the subject's weights have continuous laws, so that equal answers are no coincidence.
    """

    layer: AttentionLayer
    subject: Respond
    right: Respond
    inputs: FloatArray
    fresh: FloatArray
    continuous: bool

    @property
    def both(self) -> tuple[Respond, Respond]:
        """The subject and the correct simulator."""
        return self.subject, self.right

    @cached_property
    def usual(self) -> tuple[Answer, Answer]:
        """Answers of the subject and of the correct simulator to the inputs."""
        return self.subject(self.inputs), self.right(self.inputs)

    def each(self, read: Callable[[Respond, Answer], _Read]) -> tuple[_Read, _Read]:
        """Return the results of `read` for the subject and the correct simulator, given their answers to the inputs."""
        ours, right = (read(respond, usual) for respond, usual in zip(self.both, self.usual, strict=True))
        return ours, right

    def fresh_at(self, part: Any) -> FloatArray:
        """Return the inputs with those at an index replaced by fresh ones."""
        changed = self.inputs.copy()
        changed[part] = self.fresh[part]
        return changed

    @property
    def known(self) -> bool:
        """Whether the subject returns scores."""
        return self.usual[0].scores is not None

    @property
    def stage_of_outputs(self) -> str:
        """The stage of a finding on outputs alone: after the scores, if the subject returns scores."""
        return AFTER if self.known else OUTPUTS

    @cached_property
    def small(self) -> float:
        """A factor for the inputs that makes all scores small, apart from a declared bias by distance."""
        usual, zero = self.usual[1].scores, self.right(np.zeros_like(self.inputs)).scores
        assert usual is not None
        assert zero is not None
        return float((_SMALL / max(float(np.abs(usual - zero).max()), 1e-300)) ** 0.5)


def subject_answers(subject: Subject, layer: AttentionLayer, rng: np.random.Generator) -> Respond:
    """Return a function of inputs (draws, positions, width) that calls the subject with equal generators."""

    def respond(inputs: FloatArray) -> Answer:
        return _answer(layer, subject.draw_on(layer, inputs, copy.deepcopy(rng)))

    return respond


def right_answers(layer: AttentionLayer, rng: np.random.Generator) -> Respond:
    """Return a function of inputs that calls a correct simulator of the layer with equal generators."""

    def respond(inputs: FloatArray) -> Answer:
        generator = copy.deepcopy(rng)
        arrays = LiteralSimulator().after(layer, projected(layer, inputs, generator), generator)
        return _answer(layer, Sample(layer, arrays["outputs"], scores=arrays["scores"]))

    return respond


def projected(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Projections:
    """Project given inputs to queries, keys and values by explicit random matrices."""
    seen = normalised(layer.norm, inputs)

    def project(matrices: int, std: float) -> FloatArray:
        weights = rng.standard_normal((len(seen), matrices, layer.width, layer.head_width))
        return np.asarray(std * layer.width**-0.5 * (seen[:, None] @ weights))

    return projections(layer, seen, project)


def _answer(layer: AttentionLayer, sample: Sample) -> Answer:
    scores = None if sample.scores is None else np.where(visible(layer), sample.scores, 0.0)
    return Answer(sample.outputs, scores, sample.rounding)
