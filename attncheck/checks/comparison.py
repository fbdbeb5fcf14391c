"""Exactness checks: compare functionals of a draw with their exact law at the same width."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck.checks.check import FEWEST_NUMBERS, Alternative, CheckOf, Setting, positions
from attncheck.checks.claims import ONE_NEURON
from attncheck.checks.declared import DRAWS, GIVEN_SCORES, INPUTS, OUTPUTS, SCORES, AlternativeOf, Rejected
from attncheck.checks.functionals import FUNCTIONALS, NEURONS, Functional, FunctionalOf
from attncheck.checks.laws import affordable_draws
from attncheck.checks.reference import RATIO, ReferenceOf
from attncheck.evidence.exchange import Calls
from attncheck.evidence.families import TwoSample
from attncheck.layers import regimes
from attncheck.layers.attention import AttentionLayer
from attncheck.methods import drawn_blocks

(_ENERGY,) = (functional for functional in FUNCTIONALS if functional.name == "output_energy")
_INPUTS_AND_GRAM = frozenset({"inputs", "input_gram"})
# A draw is cheap if its explicit weight matrices and its scores have at most these numbers of entries.
_CHEAP_WEIGHTS, _CHEAP_SCORES = 4_000, 64
# Number of draws from which `gaussian_distance` is computed.
_DISTANCE_DRAWS = 10_000


def _sides(functional: Functional) -> frozenset[str]:
    """Return which of inputs, scores and outputs a functional uses."""
    names = {"masked scores": "scores", "attention": "scores", "input_gram": "inputs"}
    return frozenset(names.get(need, need) for need in functional.needs)


def _claim(functional: Functional) -> str:
    sides = _sides(functional)
    # Inputs and a Gram matrix may both have the right law, although the matrix is not that of the inputs.
    return next(iter(sides)) if len(sides) == 1 and functional.needs != _INPUTS_AND_GRAM else "joint"


_STAGES = {
    frozenset({"inputs"}): INPUTS,
    frozenset({"scores"}): SCORES,
    frozenset({"outputs"}): OUTPUTS,
    frozenset({"inputs", "scores"}): SCORES,
    frozenset({"inputs", "outputs"}): OUTPUTS,
    frozenset({"scores", "outputs"}): GIVEN_SCORES,
}
_HINTS = {
    frozenset({"inputs"}): "the activation, the scale or the correlation of the inputs differs from the declared one",
    frozenset({"scores"}): "W_Q, W_K, the score scaling or the inputs of the scores differ from the declared ones",
    frozenset({"outputs"}): "a weight, the attention map, the mask or H^{-1/2} differs from the declared one",
    _INPUTS_AND_GRAM: "inputs and input_gram do not belong to the same draws, or to the same positions",
    frozenset(
        {"inputs", "scores"}
    ): "the scores do not belong to these inputs: W_Q, W_K, the scaling or the inputs are wrong",
    frozenset({"inputs", "outputs"}): "the outputs do not belong to these inputs, or have the wrong law",
    frozenset({"scores", "outputs"}): (
        "the outputs do not follow from these scores: the attention map, its temperature, axis or mask, W_V, W_O or "
        "H^{-1/2} is wrong"
    ),
}


def _also(functional: Functional, setting: Setting) -> str:
    """Return a sentence on position vectors as a possible cause of a rejection, or an empty string.

    It is empty if the subject exposes its inputs, but the functional does not use them: then the checks of the inputs
    report wrong position vectors.
    """
    has_inputs = bool(setting.exposed & {"inputs", "input_gram"})
    return positions(setting) if "inputs" in _sides(functional) or not has_inputs else ""


def _distance(setting: Setting) -> float:
    """Return the Kolmogorov distance that the check must detect, which is smaller if draws are cheap."""
    layer = setting.layer
    cheap = layer.weight_entries <= _CHEAP_WEIGHTS and layer.num_heads * layer.seq_len**2 <= _CHEAP_SCORES
    return 0.045 if cheap else 0.07


_DISTANT = Alternative(
    "a law at Kolmogorov distance 0.045 (0.07 where draws are expensive)", _distance, lambda setting: 0.2
)


def compared(functional: FunctionalOf[Any, Any], **fields: Any) -> CheckOf[Any, Any, Any]:
    """Return the check that a functional has the same law on the subject's draws as on reference draws.

    `described` maps a sample to the functional's arguments; `fields` are the other fields of the check.
    """

    def measure(sample: Any, reference: ReferenceOf[Any]) -> tuple[FloatArray, FloatArray]:
        return functional.compute(sample), reference.functionals[functional.name]

    fields = {"rejects": functional.rejects} | fields
    return CheckOf(
        needs=functional.needs | {"outputs"},
        reads=f"Kolmogorov distance of {functional.text} from the exact law:",
        family=lambda setting: TwoSample(RATIO, unit=functional.unit),
        measure=measure,
        requires=functional.requires,
        excluded=lambda setting: "" if functional.neurons <= setting.coordinates else ONE_NEURON,
        compares=functional.name,
        fewest_draws=FEWEST_NUMBERS,
        **fields,
    )


def of_call(sizes: Callable[[Any], FloatArray]) -> Callable[[Any, Any], tuple[FloatArray, IntArray]]:
    """Return a measure that maps a sample to the sizes of its draws and the number of draws per call.

    `sizes` maps a sample to one size per draw.
    """
    return lambda sample, reference: (sizes(sample), np.array(sample.calls))


def between_calls(
    quantity: str, sizes: Callable[[Any], FloatArray], calls: int, **fields: Any
) -> CheckOf[Any, Any, Any]:
    """Return the check that draws from different calls of the subject differ no more than draws from one call.

    `quantity` names what `sizes` measures, `sizes` maps a sample to one number per draw, `calls` is the number of calls
    in a look, and `fields` are the other fields of the check.
    """
    return CheckOf(
        null="draws from different calls of the simulator differ no more than draws from one call",
        alternative=AlternativeOf.of("5% of the variance of the sizes' ranks between calls", 0.05, coarsest=0.3),
        reads=f"share of the variance of the {quantity}' sizes between calls:",
        family=lambda setting: Calls(calls),
        measure=of_call(sizes),
        calls=calls,
        hint="weights are drawn once for all draws of a call; each draw needs its own",
        any_weights=True,
        stage=DRAWS,
        **fields,
    )


@functools.lru_cache(maxsize=256)
def gaussian_distance(layer: AttentionLayer, neurons: int) -> float:
    """Return the Kolmogorov distance of log Σ y² between the outputs y and Gaussian outputs of equal covariance.

    The sum runs over positions and `neurons` neurons. Both laws are sampled, and an allowance for the sampling error is
    subtracted from the distance.
    """
    rng = np.random.default_rng(0)
    size = affordable_draws(layer, _DISTANCE_DRAWS)
    drawn = drawn_blocks(layer, size, seed=1, coordinates=neurons, grams=frozenset())
    exact = np.concatenate([draws.outputs for draws in drawn])
    covariance = np.tensordot(exact, exact, axes=((0, 2), (0, 2))) / (size * neurons)
    ridge = 1e-12 * np.trace(covariance) / layer.seq_len
    if ridge == 0.0:
        return 0.0
    root = np.linalg.cholesky(covariance + ridge * np.eye(layer.seq_len))
    matched = root @ rng.standard_normal(exact.shape)
    ours, theirs = (np.sort((y**2).sum(axis=(1, 2))) for y in (exact, matched))
    points = np.concatenate([ours, theirs])
    mde = np.searchsorted(ours, points, "right") - np.searchsorted(theirs, points, "right")
    noise = 0.6 * math.sqrt(2 / len(exact))
    return max(0.0, float(np.abs(mde).max()) / len(exact) - noise)


CHECKS = (
    *(
        compared(
            functional,
            name=f"exactness.{functional.name}",
            claim=_claim(functional),
            null=f"{functional.text} has the law given by the exact method at the same width",
            alternative=_DISTANT,
            hint=_HINTS.get(functional.needs) or _HINTS[_sides(functional)],
            also=functools.partial(_also, functional),
            stage=_STAGES[_sides(functional)],
        )
        for functional in FUNCTIONALS
    ),
    compared(
        _ENERGY,
        name="non_gaussianity.output_energy",
        rejects=Rejected.of("missing_head_scaling", on=regimes.STANDARD),
        claim="non_gaussianity",
        null="log Σ y² has the exact law at the width, not that of a Gaussian of the same covariance",
        alternative=Alternative(
            "a Gaussian law of equal covariance in place of the exact law",
            lambda setting: gaussian_distance(setting.layer, min(setting.coordinates, NEURONS)),
        ),
        hint="the outputs are Gaussian, as with infinitely many heads or scores scaled by 1/n",
    ),
)
