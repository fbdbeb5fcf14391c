"""Checks that the draws of a call are independent, exchangeable, continuously distributed and of full precision."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special

from attncheck._lib.arrays import BoolArray, FloatArray, IntArray
from attncheck.checks.answers import Answer
from attncheck.checks.check import Alternative, Check, Setting, refusals_not_examined
from attncheck.checks.claims import NO_INPUTS, NOT_EXPOSED, TWO_VALUES
from attncheck.checks.comparison import between_calls, of_call
from attncheck.checks.declared import DRAWS, GIVEN_SCORES, OUTPUTS, SCORES, Rejected, of_correlation, of_direction
from attncheck.checks.matrices import KEY, QUERY, VALUE, HeadMatrix, hashes
from attncheck.checks.reference import PER_TWIN, Reference
from attncheck.checks.sample import Sample
from attncheck.checks.whitening import chi_square_scores
from attncheck.evidence.exchange import Extremes, Repeats, Trend
from attncheck.evidence.families import Association, Count
from attncheck.evidence.groups import WithinGroups
from attncheck.layers import regimes
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.requirement import ANY
from attncheck.layers.requirements import LINEAR_INPUTS, OfLayer, linear

_OUTPUTS = frozenset({"outputs"})
#: Number of calls for which looks that compare calls are planned; short looks have fewer.
CALLS = 16
# Number of calls that reveals a matrix shared by all draws of a call.
_FEW_CALLS = 4
# Single float32 numbers may be equal by chance. So only draws with at least _NUMBERS distinct numbers are compared, or
# runs of _RUN draws of which at least _NUMBERS are nonzero: if these are equal, it is no coincidence.
_RUN, _NUMBERS = 6, 3
# Maximum number of neurons whose products are compared, which bounds the memory.
_NEURONS = 32
# Probability that a float32 number lies on the float16 grid.
_HALF_GRID = 2.0**-13
# Smallest normal float32; numbers below have fewer digits.
_TINY = float(np.finfo(np.float32).tiny)


def _output_sizes(sample: Sample) -> FloatArray:
    return np.asarray((sample.outputs**2).sum(axis=(1, 2)))


def _signs(sample: Sample, reference: Reference) -> tuple[int, int]:
    """Return how many disjoint pairs of neighbouring draws agree in sign, and the number of pairs."""
    sums = np.sign(sample.outputs.sum(axis=(1, 2)))
    pairs = sums[: len(sums) // 2 * 2].reshape(-1, 2)
    pairs = pairs[(pairs != 0).all(axis=1)]
    return int((pairs[:, 0] == pairs[:, 1]).sum()), len(pairs)


def _marks_of(field: str) -> Callable[[Sample, Reference], tuple[NDArray[np.uint64]]]:
    """Return a measure that hashes each draw of the array `field`; masked scores are ignored."""

    def measure(sample: Sample, reference: Reference) -> tuple[NDArray[np.uint64]]:
        values = sample.need(field)
        entries = np.where(sample.layer.visible, values, 0.0) if field == "scores" else values
        return (marks(entries.reshape(len(sample), -1)),)

    return measure


def marks(numbers: FloatArray) -> NDArray[np.uint64]:
    """Return hashes of the draws of an array (draws, numbers).

    Draws with fewer than `_NUMBERS` distinct numbers are left out. If these are at least half of all draws, runs of
    `_RUN` consecutive draws are hashed instead of single draws. Signs are ignored, and in single draws the order of the
    numbers too, so that mirrored or permuted draws have equal hashes.
    """
    values = np.abs(numbers)
    ordered = np.sort(values, axis=1)
    rich = _distinct(ordered) >= _NUMBERS
    if 2 * int(rich.sum()) > len(values):
        return hashes(ordered[rich])
    if len(values) < _RUN:
        return np.empty(0, dtype=np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view
    nonzero = windows((values != 0.0).any(axis=1), _RUN).sum(axis=1)
    runs = windows(values, _RUN, axis=0).reshape(len(nonzero), -1)
    return hashes(runs[nonzero >= _NUMBERS])


def _distinct(ordered: FloatArray) -> IntArray:
    """Count the distinct nonzero numbers of each sorted row, up to rounding."""
    # Rounding in float32 makes differences of 1e-6; independent numbers seldom differ by less than 1e-3.
    steps = np.diff(ordered, axis=1, prepend=0.0)
    return np.asarray((steps > 1e-3 * ordered[:, -1:]).sum(axis=1))


def _neighbours(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
    """Return the output sizes of the first and the second draw of each pair of neighbouring draws.

    Sizes are replaced by normal scores of their ranks, in two arrays (pairs,). The first array is scaled so that, if
    pairs are random, the sum of products has the variance that `Association` assumes.
    """
    size = _output_sizes(sample)
    pairs = size[: len(size) // 2 * 2].reshape(-1, 2)
    scores = special.ndtri((scipy.stats.rankdata(pairs, axis=0) - 0.5) / max(1, len(pairs)))
    scores -= scores.mean(axis=0) if len(scores) else 0.0
    squares = float((scores[:, 0] ** 2).sum())
    scale = math.sqrt((len(scores) - 1) / squares) if squares > 0.0 else 0.0
    return scale * scores[:, 0], scores[:, 1]


def _weight_distance(of: HeadMatrix, layer: AttentionLayer) -> Check:
    """Return the check that neighbouring draws do not share the matrix `of` (W_Q, W_K or W_V).

    On `layer`, the check must reject a simulator that reuses weights.
    """

    def pair(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return the sizes of whitened scores, keys or values in pairs of neighbouring draws, head by head.

        The matrix `of` determines which of the three it is. The first two arrays hold the sizes in the first and in the
        second draw of each pair, as normal scores; the third array holds the index of the head, or of the group of
        heads that share the matrix. `WithinGroups` later subtracts the mean of each head, because a wrong scale of one
        head is no dependence.
        """
        energy, dof = of.energy(sample)
        scores = chi_square_scores(np.maximum(dof, 1.0), energy)
        # Pair the first two of every three draws, so that pairs begin at both even and odd draws.
        first = np.arange(0, len(scores) - 2, 3)
        valid = (dof[first] > 0) & (dof[first + 1] > 0)
        return scores[first][valid], scores[first + 1][valid], np.nonzero(valid)[1]

    return Check(
        name=f"draws.{of.images}",
        rejects=Rejected.of("stale_weights", on=layer),
        claim="draws",
        needs=of.needs,
        null=f"sizes of the whitened {of.images} of neighbouring draws are independent",
        alternative=of_correlation(),
        reads=f"standardised covariance of the sizes of the whitened {of.images} of neighbouring draws:",
        family=lambda setting: WithinGroups(of.count(setting)),
        draws_per_unit=3,
        measure=pair,
        calls=_FEW_CALLS,
        hint=f"neighbouring draws, or all draws of a call, share {of.name}; each draw needs its own",
        requires=of.requires,
        stage=of.stage,
    )


def _sides(sample: Sample) -> FloatArray:
    """Return each draw's largest output and its negated smallest output, (draws, 2).

    Tiny numbers become 0. All numbers become 0 if most of them have half precision.
    """
    flat = sample.outputs.reshape(len(sample), -1)
    sides = np.stack([flat.max(axis=1), -flat.min(axis=1)], axis=1)
    sides[np.abs(sides) < _TINY] = 0.0
    nonzero = sides[sides != 0.0]
    if 2 * int(half_precision(nonzero).sum()) > nonzero.size:
        # Half-precision numbers may be equal by chance.
        sides[:] = 0.0
    return sides


def _few_values(setting: Setting) -> str:
    """Return the reason to exclude a layer whose draws may coincide by chance, or an empty string.

    Such a layer has two-valued weights and inputs that saturate.
    """
    if setting.weights.continuous or linear(setting.layer):
        return ""
    return "two-valued weights and saturating inputs may repeat numbers by chance"


_of_any_weights = functools.partial(Check, claim="draws", needs=_OUTPUTS, any_weights=True, stage=DRAWS)


_ONE_IN_A_HUNDRED = Alternative.of("one repeated draw in a hundred", 0.01)


def _repeats(
    name: str, fault: str, field: str = "outputs", requires: OfLayer = ANY, alternative: Alternative = _ONE_IN_A_HUNDRED
) -> Check:
    quantity = field.replace("_gram", " Gram matrices")
    return _of_any_weights(
        name=name,
        rejects=Rejected.of(fault, on=regimes.STANDARD),
        needs=_OUTPUTS | {field},
        null=f"no two draws have equal {quantity}; of single numbers, sequences of {_RUN} draws are compared",
        alternative=alternative,
        reads=f"share of draws whose {quantity} occurred before:",
        family=lambda setting: Repeats(),
        measure=_marks_of(field),
        hint="random streams repeat, e.g. every chunk starts from the same seed, or draws share their matrices",
        requires=requires,
        excluded=_few_values,
    )


def _seeds(
    quantity: str, matrices: str, squares: Callable[[list[Answer]], FloatArray], array: str = "outputs"
) -> Check:
    """Return the check that draw i of a call does not resemble draw i of a call with another generator.

    `squares` maps the answers to equal inputs in all draws to numbers that depend on the `matrices`, (draws, …).
    """

    def reason(setting: Setting) -> str:
        if not setting.draw_on:
            return NO_INPUTS
        return "" if array in setting.exposed else NOT_EXPOSED + array

    def measure(sample: Sample, reference: Reference) -> tuple[int, int]:
        """Count disjoint pairs of draws, and those of which each draw resembles the other call's draw of its index."""
        with refusals_not_examined():
            one, two = (values[::2] - values[1::2] for values in map(squares, reference.twins))
        agreement = np.sign((one * two).reshape(len(one), -1).sum(axis=1))
        return int((agreement > 0).sum()), int(np.abs(agreement).sum())

    return _of_any_weights(
        name=f"draws.seeds_{quantity}",
        rejects=Rejected.of("reseeded", on=regimes.LOW_RANK),
        null=f"{quantity} of draw i in two calls with equal inputs are no more alike than those of draws i and j",
        alternative=Alternative.of("more alike in three of four pairs of draws", 0.75, coarsest=0.9),
        reads=f"share of pairs of draws whose {quantity} in two calls are more alike at equal than at exchanged index:",
        family=lambda setting: Count(0.5),
        draws_per_unit=2 * PER_TWIN,
        measure=measure,
        hint=f"{matrices} drawn from a generator that is seeded anew in each call",
        excluded=reason,
    )


def _all_outputs(twin: list[Answer]) -> FloatArray:
    """Return the outputs for all inputs, (draws, positions of all inputs, neurons)."""
    return np.concatenate([answer.outputs for answer in twin], axis=1)


def _squares_of_values(twin: list[Answer]) -> FloatArray:
    """Return the outputs' products summed over neurons: given the values, this estimates the values' own products."""
    outputs = _all_outputs(twin)
    return outputs @ outputs.swapaxes(1, 2)


def _squares_of_neurons(twin: list[Answer]) -> FloatArray:
    """Return inner products of the first output neurons over positions; they estimate those of columns of W_O."""
    outputs = _all_outputs(twin)[..., :_NEURONS]
    return outputs.swapaxes(1, 2) @ outputs


def _squares_of_scores(twin: list[Answer]) -> FloatArray:
    """Return the scores' products summed over keys, then those summed over queries, for each head and input."""
    scores = np.stack([answer.scores for answer in twin if answer.scores is not None], axis=1)
    turned = scores.swapaxes(-1, -2)
    return np.concatenate([scores @ turned, turned @ scores], axis=1)


def _on_half_grid(field: str) -> Callable[[Sample, Reference], tuple[int, int]]:
    def count(sample: Sample, reference: Reference) -> tuple[int, int]:
        values = sample.need(field)
        # One number per draw, because numbers of one draw may be functions of each other.
        values = values.reshape(len(values), -1)[:, 0]
        values = values[np.isfinite(values) & (values != 0.0)]
        return int(half_precision(values).sum()), len(values)

    return count


def half_precision(values: FloatArray) -> BoolArray:
    """Return which numbers lie on the float16 grid.

    Examples
    --------
    >>> half_precision(np.array([0.5, 0.1])).tolist()
    [True, False]
    """
    with np.errstate(over="ignore"):
        return np.asarray(values.astype(np.float16).astype(np.float64) == values)


def _precision(field: str, layer: AttentionLayer) -> Check:
    return _of_any_weights(
        name=f"draws.precision_{field}",
        rejects=Rejected.of(f"half_precision_{field}", on=layer),
        needs=frozenset({"outputs", field}),
        null=f"{field} have at least single precision: at most 1 number in 2^13 lies on the float16 grid",
        alternative=Alternative.of("every tenth number on the float16 grid", 0.1),
        reads=f"share of {field} on the float16 grid:",
        family=lambda setting: Count(_HALF_GRID),
        measure=_on_half_grid(field),
        hint=f"{field} were rounded to half precision",
        excluded=_few_values,
    )


def _trend(name: str, quantity: str, sizes: Callable[[Sample], FloatArray], **fields: Any) -> Check:
    """Return the check that the sizes of draws have no trend within a call.

    `sizes` gives one size per draw, `quantity` says in messages what the sizes measure, and `fields` are the other
    fields of the check.
    """
    return _of_any_weights(
        name=name,
        null=f"sizes of {quantity} have no trend within a call",
        reads=f"correlation between the ranks of the sizes of {quantity} and the draws' places in a call:",
        family=lambda setting: Trend(),
        measure=of_call(sizes),
        hint=f"{quantity} grow or shrink within a call: state carries over between draws",
        **fields,
    )


CHECKS = (
    _of_any_weights(
        name="draws.signs",
        rejects=Rejected.of("by_sign", on=regimes.STANDARD),
        null="neighbouring draws agree in sign half of the time",
        alternative=Alternative.of("agreement in 60% of the pairs", 0.6, coarsest=0.85),
        reads="share of neighbouring draws of equal sign:",
        family=lambda setting: Count(0.5, tail="two-sided"),
        draws_per_unit=2,
        measure=_signs,
        hint="draws depend on their neighbours: weights or random numbers are reused",
    ),
    _of_any_weights(
        name="exactness.neighbours",
        rejects=Rejected.of("by_size", on=regimes.STANDARD),
        null="sizes of neighbouring draws have uncorrelated ranks",
        alternative=Alternative.of("a correlation of 0.1", 0.1, coarsest=0.4),
        reads="correlation of the sizes of neighbouring draws:",
        family=lambda setting: Association(),
        draws_per_unit=2,
        measure=_neighbours,
        hint="draws depend on their neighbours: inputs or weights are reused",
    ),
    between_calls(
        "outputs",
        _output_sizes,
        CALLS,
        name="draws.calls",
        claim="draws",
        needs=_OUTPUTS,
        rejects=Rejected.of("scale_per_call", on=regimes.STANDARD),
    ),
    _weight_distance(QUERY, regimes.ONE_POSITION),
    _weight_distance(KEY, regimes.NARROW),
    _weight_distance(VALUE, regimes.NARROW),
    _repeats("draws.repeats", "copied_draws"),
    _repeats("draws.repeats_inputs", "inputs_again", "input_gram", LINEAR_INPUTS),
    _repeats("draws.repeats_scores", "halves_alike", "scores"),
    _repeats("draws.repeats_keys", "halves_alike", "key_gram"),
    _repeats("draws.repeats_values", "halves_alike", "value_gram"),
    _repeats(
        "exactness.repeats",
        "copied_draws",
        alternative=Alternative.of("one repeated draw in a thousand", 0.001, coarsest=0.01),
    ),
    _seeds("values", "W_V is", _squares_of_values),
    _seeds("outputs", "W_O is", _squares_of_neurons),
    _seeds("scores", "W_Q or W_K is", _squares_of_scores, "scores"),
    _precision("outputs", regimes.STANDARD),
    _precision("scores", regimes.LINEAR),
    _of_any_weights(
        name="exactness.extremes",
        rejects=Rejected.of("clipped_outputs", on=regimes.STANDARD),
        null="the largest and the smallest output of a call occur in one draw only, as their law is continuous",
        alternative=Alternative.of("one draw in 500 with an output at a bound", 0.002, coarsest=0.02),
        reads="share of draws that tie with another draw at the largest or the smallest output:",
        family=lambda setting: Extremes(),
        measure=of_call(_sides),
        hint="the outputs are clipped, or saturate in a number format",
        stage=OUTPUTS,
        excluded=lambda setting: "" if setting.weights.continuous else TWO_VALUES,
    ),
    _trend(
        "exactness.trend",
        "outputs",
        _output_sizes,
        alternative=of_direction(),
        rejects=Rejected.of("by_size", on=regimes.STANDARD),
    ),
    _trend(
        "conditional.trend",
        "whitened outputs",
        lambda sample: sample.output_residual.mean_square(),
        needs=_OUTPUTS | {"attention", "value_gram"},
        alternative=of_correlation(),
        rejects=Rejected.of("by_size", on=regimes.STANDARD),
        stage=GIVEN_SCORES,
    ),
    _trend(
        "scores.trend",
        "whitened scores",
        lambda sample: sample.whitened_scores.mean_square(),
        needs=_OUTPUTS | QUERY.needs,
        alternative=of_correlation(),
        rejects=Rejected.of("fading_scores", on=regimes.NARROW),
        stage=SCORES,
    ),
)
