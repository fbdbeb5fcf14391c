"""Answers of a subject and of a correct simulator to given inputs, with the same weights in every call."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck._lib.errors import refuse
from attncheck.checks.sample import Sample
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.norm import normalised
from attncheck.simulators.collapsed import draw_images
from attncheck.simulators.literal import LiteralSimulator, Projections, by_matrices

# Two numbers count as different if they differ by more than _UNITS rounding units times the largest number, and by more
# than _CHANGE times the largest number.
_UNITS, _CHANGE = 200.0, 1e-6
# Bits of single precision that half precision lacks.
_LOW_BITS = np.uint32(2**13 - 1)
# Largest `Pair.nonlinearity` that rounding explains if the subject computes in single precision.
_PRECISE = 1e-4
#: Smallest difference, relative to the largest number, that rounding in a half-precision kernel does not explain.
CLEAR = 1e-2
# Largest score if the inputs are multiplied by `Pair.small`.
_SMALL = 3e-4


@dataclasses.dataclass(frozen=True)
class Answer:
    """The outputs of one call, and its scores if the subject exposes them.

    Outputs are (draws, positions, neurons), scores (draws, heads, positions, positions). Masked scores are set to 0.
    """

    outputs: FloatArray
    scores: FloatArray | None
    rounding: float

    @property
    def coarse(self) -> bool:
        """Whether all outputs, or all scores, have half precision or less: at most 10 bits after the leading one."""
        arrays = [a.astype(np.float32) for a in (self.outputs, self.scores) if a is not None and a.any()]
        return any(not (a.view(np.uint32) & _LOW_BITS).any() for a in arrays)

    def changes(self, answer: Answer, tolerance: float = 0.0) -> tuple[BoolArray, BoolArray]:
        """Return which outputs and which scores differ from those of another answer.

        The results are (draws, positions) and (draws, heads, positions, positions). The second one is empty unless both
        answers have scores. `tolerance` is that of `differ`.
        """
        of_outputs = differ(self.outputs, answer.outputs, self.rounding, tolerance)
        of_scores = np.zeros((len(of_outputs), 0, 0, 0), dtype=np.bool_)
        if self.scores is not None and answer.scores is not None:
            of_scores = differ(self.scores, answer.scores, self.rounding, tolerance)
        return np.logical_or.reduce(of_outputs, axis=-1), of_scores

    @property
    def flat(self) -> FloatArray:
        """All outputs and scores of each draw in one row, (draws, numbers)."""
        arrays = (array.reshape(len(array), -1) for array in (self.outputs, self.scores) if array is not None)
        return np.concatenate([*arrays], axis=1)

    def permuted(self, order: NDArray[np.intp]) -> Answer:
        """Return the answer with its positions in another order."""
        scores = None if self.scores is None else self.scores[..., order, :][..., order]
        return Answer(self.outputs[:, order], scores, self.rounding)


def differ(one: FloatArray, two: FloatArray, rounding: float, tolerance: float = 0.0) -> BoolArray:
    """Return where two arrays differ.

    The difference, relative to the largest absolute number in the array `one`, must exceed `_CHANGE`, `_UNITS` times
    the rounding unit `rounding`, and `tolerance`.
    """
    largest = max(float(np.abs(one).max(initial=0.0)), 1e-300)
    return np.asarray(np.abs(one - two) > max(_UNITS * rounding, _CHANGE, tolerance) * largest, dtype=np.bool_)


Respond = Callable[[FloatArray], Answer]
#: Callable (layer, inputs, rng) that draws a sample of a layer on given inputs.
DrawOn = Callable[[AttentionLayer, FloatArray, np.random.Generator], Sample]
RIGHT = LiteralSimulator()
_Read = TypeVar("_Read")


@dataclasses.dataclass(frozen=True)
class Pair:
    """The subject and a correct simulator of one layer, with two independent inputs.

    `inputs` and `fresh` have the shape (draws, positions, width). `continuous` tells whether the subject's weights have
    continuous laws, so that equal answers are no coincidence.
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
        """Call `read` for the subject and for the correct simulator, and return both results.

        The arguments of `read` are a simulator and its answer to `inputs`.
        """
        ours, theirs = (read(respond, baseline) for respond, baseline in zip(self.both, self.usual, strict=True))
        return ours, theirs

    def fresh_at(self, part: Any) -> FloatArray:
        """Return a copy of `inputs` whose entries at index `part` are replaced by those of `fresh`."""
        changed = self.inputs.copy()
        changed[part] = self.fresh[part]
        return changed

    @property
    def known(self) -> bool:
        """Whether the scores of the subject are known, because it returns them."""
        return self.usual[0].scores is not None

    @cached_property
    def reason_inexact(self) -> str:
        """Why answers cannot be compared exactly, or an empty string."""
        if self.usual[0].coarse:
            return "outputs or scores are numbers of half precision"
        again = self.subject(self.inputs)
        return "equal calls give unequal digits" if any(map(np.any, self.usual[0].changes(again))) else ""

    @cached_property
    def nonlinearity(self) -> float:
        """Smallest relative deviation of an output or a score from an affine function of the first position's input.

        The inputs at other positions are set to 0 or, if scores are exposed, left unchanged. If the weights do not
        depend on inputs, the deviation is only rounding error: a score of two positions is affine in each of their
        inputs, and outputs at positions with input 0 are affine in the only input that is not 0.
        """
        zeros = np.zeros_like(self.inputs)
        return min(self._nonlinearity(zeros), self._nonlinearity(self.inputs) if self.known else np.inf)

    def _nonlinearity(self, background: FloatArray) -> float:
        """Return the nonlinearity in the first position's input; the other positions have the inputs `background`."""
        one, two, factor = self.inputs[:, 0], self.fresh[:, 0], 1.0
        if self.layer.norm:  # a norm divides the sum of orthogonal vectors of equal lengths by √2
            vectors = np.stack([one, two], axis=-1)
            basis = np.linalg.qr(vectors - vectors.mean(axis=1, keepdims=True))[0]
            one, two = np.moveaxis(basis, -1, 0) if self.layer.width > 2 else (one, two)
            factor = 2.0**0.5
        answers = []
        for vector in (one, two, one + two, 0.0 * one):
            inputs = background.copy()
            inputs[:, 0] = vector
            answers.append(self.subject(inputs).flat)
        first, second, both, none = answers
        rest = np.abs(factor * both - first - second + (2.0 - factor) * none).sum(axis=0)
        effect = np.abs(first - none).sum(axis=0)
        large = effect > CLEAR * np.abs(first).sum(axis=0).max()
        return float((rest[large] / effect[large]).min(initial=np.inf))

    @property
    def tolerance(self) -> float:
        """Relative difference up to which two numbers may differ only by rounding within the subject."""
        return 0.0 if self.nonlinearity < _PRECISE else CLEAR

    @cached_property
    def small(self) -> float:
        """Factor on the inputs that makes all scores small, apart from biases added to the scores."""
        scores, zero = self.usual[1].scores, self.right(np.zeros_like(self.inputs)).scores
        assert scores is not None
        assert zero is not None
        return float((_SMALL / max(float(np.abs(scores - zero).max()), 1e-300)) ** 0.5)


def pair_of(
    draw_on: DrawOn, layer: AttentionLayer, size: int, rng: np.random.Generator, continuous: bool = True
) -> Pair:
    """Pair the subject with a correct simulator of the layer, on two random inputs of `size` draws each.

    `draw_on` calls the subject; `continuous` is the field of `Pair`. The inputs differ between positions, even if the
    layer declares equal positions.
    """
    unequal = layer.replace(input_correlation=0.0) if layer.equal_inputs else layer
    inputs, fresh = (draw_images(unequal, size, rng) for _ in range(2))
    weights, reference = rng.spawn(2)
    pair = answers(draw_on, layer, weights), answers(drawn_on, layer, reference)
    return Pair(layer, *pair, inputs, fresh, continuous)


def answers(draw_on: DrawOn, layer: AttentionLayer, rng: np.random.Generator) -> Respond:
    """Return a function that calls a simulator on given inputs, (draws, positions, width).

    `draw_on` is the simulator. Each call passes it a new copy of `rng`, so all calls use the same random numbers.
    """
    shapes: list[tuple[int, ...]] = []

    def respond(inputs: FloatArray) -> Answer:
        sample = draw_on(layer, inputs, copy.deepcopy(rng))
        shapes.append(sample.outputs.shape)
        if shapes[-1] != shapes[0]:
            problem = f"was {shapes[0]} for other inputs of the same shape"
            refuse("subject['outputs'].shape", shapes[-1], problem, "return arrays of one shape")
        scores = None if sample.scores is None else np.where(layer.visible, sample.scores, 0.0)
        return Answer(sample.outputs, scores, sample.rounding)

    return respond


def drawn_on(
    layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator, simulator: LiteralSimulator = RIGHT
) -> Sample:
    """Draw a sample on given inputs by explicit random matrices; `simulator` is correct by default."""
    arrays = simulator.after(layer, projected(layer, inputs, rng), rng)
    return Sample(layer, arrays["outputs"], scores=arrays["scores"])


def projected(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Projections:
    """Project given inputs to queries, keys and values by explicit random matrices."""
    vectors = normalised(layer.norm, inputs)
    return by_matrices(layer, vectors, lambda shape: rng.standard_normal((len(vectors), *shape)))
