"""Known causes that answer like a subject: candidates called on the same inputs, and compared exactly."""

from __future__ import annotations

import contextlib

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError
from attncheck.checks.answers import Answer, DrawOn, Pair, Respond, answers, drawn_on, pair_of
from attncheck.checks.structure import permutation
from attncheck.diagnosis.candidates import Candidate, Draw, candidates
from attncheck.diagnosis.positions import dependence, displacement
from attncheck.diagnosis.weights import common_weights
from attncheck.faults.fault import MisreadLayer
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts.scores import small_with_inputs
from attncheck.simulators.literal import LiteralSimulator, independent
from attncheck.subject import Subject

# Number of draws of an answer, and maximum number of positions of a layer.
_DRAWS, _MOST = 12, 16
# Numbers are equal if they differ by less than this.
_SHARE = 1e-3


def reproducing(
    subject: Subject, layer: AttentionLayer, rng: np.random.Generator
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the known causes that use positions like the subject, and those that do not.

    The comparison covers which inputs change which outputs and scores, whether outputs and scores are permuted with the
    inputs, and the attention weights where scores are 0. Causes that change only the law of the weights are left out.
    Both lists are empty if the subject refuses the inputs.
    """
    matching: list[Candidate] = []
    differing: list[Candidate] = []
    pair = pair_of(subject.draw_on, layer, _DRAWS, rng)
    with contextlib.suppress(InputError):
        ours, exposed = _uses(pair, pair.subject), frozenset({"scores"} if pair.known else ())
        for candidate in candidates([layer], exposed) if layer.seq_len <= _MOST else ():
            call = None if candidate.of_weights else _on_inputs(candidate.draw)
            if call is not None:
                with contextlib.suppress(InputError):  # the layer does not allow this candidate
                    agrees = _allclose(ours, _uses(pair, answers(call, layer, rng)))
                    (matching if agrees else differing).append(candidate)
    return matching, differing


def answering(candidate: Candidate, exposed: frozenset[str]) -> Subject | None:
    """Return a candidate as a subject that receives its inputs and returns the `exposed` arrays.

    Return None if the candidate cannot receive inputs.
    """
    on_inputs = _on_inputs(candidate.draw)
    if on_inputs is None:
        return None

    def call(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
        drawn = on_inputs(layer, inputs, rng)
        return {name: array for name, array in drawn.arrays.items() if name in exposed and array is not None}

    return Subject(candidate.name, call, "inputs")


def _on_inputs(draw: Draw) -> DrawOn | None:
    """Return a candidate's simulator as a function of its inputs, or None if it changes the projections."""
    changes = draw.changes if isinstance(draw, MisreadLayer) else lambda layer: {}
    simulator = LiteralSimulator() if isinstance(draw, MisreadLayer) else draw
    if not isinstance(simulator, LiteralSimulator) or simulator.project is not independent:
        return None
    return lambda layer, inputs, rng: drawn_on(layer.replace(**changes(layer)), inputs, rng, simulator)


def _uses(pair: Pair, respond: Respond) -> FloatArray:
    """Return in one array how the answers use positions.

    The array holds which outputs and scores change with which input, which of them are not permuted like the inputs,
    and the attention weights at scores of 0. Scores are included only if the subject returns them.
    """

    def exposed(inputs: FloatArray) -> Answer:
        answer = respond(inputs)
        return answer if pair.known else Answer(answer.outputs, None, answer.rounding)

    before, order = exposed(pair.inputs), permutation(pair.layer.seq_len)
    uses = [*dependence(pair, exposed, before), *displacement(pair, order, exposed, before)]
    weights = common_weights(exposed, pair) if small_with_inputs(pair.layer) else None
    weights = np.zeros(1) if weights is None else weights / max(float(np.abs(weights).max()), 1e-300)
    return np.concatenate([*(array.ravel() for array in uses), weights.ravel()])


def _allclose(one: FloatArray, two: FloatArray) -> bool:
    return one.shape == two.shape and np.allclose(one, two, atol=_SHARE)
