"""Estimates of scales and means with normal intervals, compared with the declaration or between heads or positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks import declared
from attncheck.checks.derived import MOST_POSITIONS
from attncheck.checks.reference import LiteralReference
from attncheck.checks.sample import Sample, whitens_jointly
from attncheck.evidence import plot_data
from attncheck.layers.parts import refusing
from attncheck.layers.parts.scores import given_inputs
from attncheck.methods import simulate
from attncheck.records.explanation import Certainty, Explanation
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws

# Names of estimates that other modules refer to.
SCORES, SCORES_GIVEN = "score variance", "score variance given inputs and keys"
KEYS, VALUES = "key variance", "value variance"
OUTPUTS, OUTPUTS_GIVEN = "output variance", "output variance given scores and values"
INPUTS = "mean square of the inputs"
_SELF_SCORES = "mean score of a position with itself"
#: Half the width of a 99.9% interval, in standard errors; twice as far is beyond chance.
QUANTILE = 3.29
# Numbers of digits to display: more digits are tried if rounding moves the declared value across an end of the
# interval.
_DIGITS = (3, 4, 5, 6)
# If position vectors correlate positions, pairs of positions up to this distance are compared.
_STEPS = 3
# Fewest neurons whose outputs are compared with each other.
_NEURONS = 4
# Most lines of estimates in a message.
_MOST_LINES = 8
_STAGES = {
    KEYS: declared.KEYS,
    SCORES: declared.SCORES,
    SCORES_GIVEN: declared.SCORES,
    VALUES: declared.VALUES,
    OUTPUTS: declared.IN_OUTPUTS,
}


@dataclasses.dataclass(frozen=True)
class Observation:
    """An estimate with a 99.9% interval and the declared value.

    Attributes
    ----------
    ratio : bool
        Whether values are relative to the declared value, which is then 1.
    positive : bool
        Whether the estimate is a mean of nonnegative numbers.
    source : str
        Where the declared value comes from, if it is not the same for all samples.
    """

    name: str
    value: float
    low: float
    high: float
    declared: float
    ratio: bool = False
    positive: bool = False
    source: str = ""

    @property
    def differs(self) -> bool:
        """Whether the interval excludes the declared value.

        It is False if the interval of a `positive` estimate extends to negative values.
        """
        wide = self.positive and self.low <= 0.0 < self.high
        return not self.holds(self.declared) and not wide

    @property
    def beyond_chance(self) -> bool:
        """Whether the declared value is more than 6.6 standard errors away: twice the half-width of the interval."""
        return abs(self.value - self.declared) > self.high - self.low

    def holds(self, value: float) -> bool:
        """Return whether a value lies in the interval."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        for digits in _DIGITS:
            value, low, high, declared = (
                f"{number:#.{digits}g}".rstrip(".") for number in (self.value, self.low, self.high, self.declared)
            )
            if self.differs == (not float(low) <= float(declared) <= float(high)):
                break
        suffix = " times the declared" if self.ratio else f", declared {declared}"
        return f"{self.name} {value} [{low}, {high}]{suffix}{self.source and f' {self.source}'}"


def exact_sample(sample: Sample, seed: np.random.SeedSequence, laws: WeightLaws = GAUSSIAN_LAWS) -> Sample:
    """Return a sample of the exact law.

    It has outputs, scores and input Gram matrices. For `laws` that are not Gaussian, it has the arrays of `sample`.
    """
    if not laws.gaussian:
        return LiteralReference(sample.layer, len(sample), 1, seed, laws=laws, like=sample, blocks={}).sample
    exact = simulate(sample.layer, 4 * len(sample), seed)
    return Sample(sample.layer, exact.outputs, scores=exact.scores, input_gram=exact.input_gram)


def estimates(
    sample: Sample, reference: Callable[[], Sample], laws: WeightLaws = GAUSSIAN_LAWS
) -> Iterator[Observation]:
    """Yield estimates from the arrays of a sample, each with the declared value, the most specific first.

    `reference` returns an `exact_sample`.
    """
    if sample.input_gram is not None:
        yield from _input_estimates(sample, reference)
    if sample.scores is not None:
        yield from score_estimates(sample, reference, laws)
    for name, squares, dof in whitened_squares(sample, laws):
        if dof.any():
            yield mean_of(name, squares.sum(axis=1) / float(dof.sum(axis=1).mean()), 1.0, ratio=True)
    yield _compared(OUTPUTS, mean_square(sample.outputs), mean_square(reference().outputs))
    yield mean_of("mean of the outputs", sample.outputs.mean(axis=(1, 2)), 0.0)


def _input_estimates(sample: Sample, reference: Callable[[], Sample]) -> Iterator[Observation]:
    grams = [source.need("input_gram") for source in (sample, reference())]
    s = sample.layer.seq_len
    ours, theirs = (np.trace(gram, axis1=1, axis2=2) / s for gram in grams)
    yield _compared(INPUTS, ours, theirs)
    if s > 1:
        off_diagonal = ~np.eye(s, dtype=bool)
        yield _compared(
            "mean product of inputs at two positions", *(gram[:, off_diagonal].mean(axis=1) for gram in grams)
        )
    for steps in range(1, min(s, 1 + _STEPS)) if sample.layer.position_std else ():
        name = f"mean product of inputs at positions {steps} apart (position_std, position_reach)"
        yield _compared(name, *(np.diagonal(gram, steps, axis1=1, axis2=2).mean(axis=1) for gram in grams))


def score_estimates(
    sample: Sample, reference: Callable[[], Sample], laws: WeightLaws = GAUSSIAN_LAWS
) -> Iterator[Observation]:
    """Yield estimates from the scores, with a reference sample of the exact law."""
    layer, scores, mask = sample.layer, sample.need("scores"), sample.layer.visible
    biased = not {"query", "key"}.isdisjoint(laws.biased)
    if "input_gram" in sample.exposed and given_inputs(layer) and not biased:
        diagonal = np.diagonal(sample.need("input_gram"), axis1=1, axis2=2)
        std = layer.query_std * layer.key_std * layer.score_factor
        declared = np.asarray(std**2 * diagonal[:, None, :, None] * diagonal[:, None, None, :])
        yield from _score_variance(scores[..., mask] ** 2, declared[..., mask])
    else:
        ours, theirs = (mean_square(source.need("scores")[..., mask]) for source in (sample, reference()))
        yield _compared(SCORES, ours, theirs)
    if layer.tied_query_key:  # if they are not tied, this mean is 0, even with biases
        yield _compared(_SELF_SCORES, _returned_scores(sample), _returned_scores(reference()))
    else:
        yield mean_of(_SELF_SCORES, _returned_scores(sample), 0.0)


def _score_variance(squares: FloatArray, declared: FloatArray) -> Iterator[Observation]:
    """Yield comparisons of squared scores with their declared variances given the inputs.

    The first one compares the mean of the squares with the mean of the variances. If these agree, the second one
    compares each square with its variance.
    """
    ours, theirs = (_per_draw(array) for array in (squares, declared))
    value, unit = float(ours.mean()), float(theirs.mean())
    residual = ours - (value / unit if unit else 1.0) * theirs
    half = QUANTILE * float(residual.std()) / len(residual) ** 0.5
    variance = _around(SCORES, value, half, unit, positive=True, source="given the drawn inputs")
    yield variance
    if not variance.differs:
        ratio = np.divide(squares, declared, out=np.ones_like(squares), where=declared > 0)
        yield mean_of("score variance entry by entry", _per_draw(ratio), 1.0, ratio=True)


def _returned_scores(sample: Sample) -> FloatArray:
    """Return the mean score of a position with itself in each draw, over positions and heads."""
    return np.asarray(np.diagonal(sample.need("scores"), axis1=2, axis2=3).mean(axis=(1, 2)))


def mean_square(values: FloatArray) -> FloatArray:
    """Return the mean square of each draw."""
    return _per_draw(values**2)


def _per_draw(values: FloatArray) -> FloatArray:
    """Return the mean of each draw."""
    return np.asarray(values.reshape(len(values), -1).mean(axis=1))


def _around(name: str, value: float, half: float, declared: float, **fields: Any) -> Observation:
    return Observation(name, value, value - half, value + half, declared, **fields)


def mean_of(name: str, values: FloatArray, declared: float, ratio: bool = False) -> Observation:
    """Return the mean of independent values, (draws,), with its interval."""
    half, positive = QUANTILE * float(values.std()) / len(values) ** 0.5, bool((values >= 0.0).all())
    return _around(name, float(values.mean()), half, declared, ratio=ratio, positive=positive)


def _compared(name: str, ours: FloatArray, theirs: FloatArray) -> Observation:
    """Compare the mean of `ours` with the mean of `theirs`, which are draws of the exact law.

    The interval includes the errors of both means.
    """
    half = QUANTILE * float(np.hypot(ours.std() / len(ours) ** 0.5, theirs.std() / len(theirs) ** 0.5))
    mean, positive, source = float(ours.mean()), bool((ours >= 0.0).all()), "by draws of the exact law"
    return _around(name, mean, half, float(theirs.mean()), positive=positive, source=source)


def whitened_squares(sample: Sample, laws: WeightLaws) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Yield the name, sums of whitened squares and degrees of freedom of each observable matrix.

    Both arrays have an axis of draws and one of heads or groups of heads, which has length 1 for W_O. Matrices that
    have biases are left out.
    """
    exposed, layer, biased = sample.exposed, sample.layer, laws.biased
    is_rotary = layer.rotary_base is not None
    scored = {"input_gram", "keys" if is_rotary else "key_gram", "scores"} <= exposed
    too_long = whitens_jointly(layer, exposed) and layer.seq_len > MOST_POSITIONS
    if scored and "query" not in biased and not (layer.tied_query_key or refusing(layer, "normal scores") or too_long):
        yield SCORES_GIVEN, *sample.whitened_scores.squares(2)
    if {"input_gram", "key_gram"} <= exposed and "key" not in biased:
        yield KEYS, *sample.gram_energy("key")
    if {"input_gram", "value_gram"} <= exposed and "value" not in biased:
        yield VALUES, *sample.gram_energy("value")
    if "value_gram" in exposed and exposed & {"scores", "attention"} and "output" not in biased:
        squares, dof = sample.output_residual.squares()
        yield OUTPUTS_GIVEN, squares[:, None], dof[:, None]


def uneven(sample: Sample, reference: Callable[[], Sample], laws: WeightLaws = GAUSSIAN_LAWS) -> Iterator[Explanation]:
    """Yield an explanation for each quantity whose scale differs between heads, positions or neurons.

    Scales are estimated relative to the declared ones. They differ if two 99.9% intervals do not overlap.

    Parameters
    ----------
    sample : Sample
    reference : callable
        Returns a sample of the exact law.
    laws : WeightLaws
        Laws of the weights.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> from attncheck.methods import simulate
    >>> layer = AttentionLayer(width=8, seq_len=3, num_heads=2)
    >>> one, exact = (simulate(layer, 2000, seed).outputs for seed in range(2))
    >>> one[:, 2] *= 2.0
    >>> [explanation] = uneven(Sample(layer, one), lambda: Sample(layer, exact))
    >>> explanation.text.partition(":")[0]
    'output variance by position'
    """
    by_head = [triple for triple in whitened_squares(sample, laws) if triple[1].shape[1] > 1 and triple[2].any()]
    for name, squares, dof in by_head:
        yield from _ratios(name, "head", squares, dof)
    whitened = any(name == SCORES_GIVEN for name, _, _ in by_head)
    exact = reference()
    declared = _squares(exact)
    for (name, of), squares in _squares(sample).items():
        if not (whitened and (name, of) == (SCORES, "head")):
            yield from _ratios(name, of, squares, declared[name, of])
    neurons, expected = (sample.outputs**2).mean(axis=1), (exact.outputs**2).mean(axis=(1, 2))
    yield from _ratios(
        OUTPUTS, "neuron", neurons, np.broadcast_to(expected[:, None], (len(expected), neurons.shape[1]))
    )


def dependent(sample: Sample) -> Iterator[Explanation]:
    """Yield an explanation if scores of positions with themselves have a mean other than 0, which is declared.

    Nothing is yielded if queries are tied to keys.
    """
    if sample.scores is not None and not sample.layer.tied_query_key:
        mean = mean_of(_SELF_SCORES, _returned_scores(sample), 0.0)
        if mean.differs and mean.beyond_chance:
            causes = "W_Q and W_K depend on each other or have means other than 0, or numbers are added to the scores"
            yield Explanation(f"{mean}: {causes}", Certainty.ESTIMATED, declared.SCORES)


def not_normal(sample: Sample, laws: WeightLaws) -> Iterator[Explanation]:
    """Yield an explanation if the outputs of a draw's neurons are not normal, although W_O is.

    Given the values, the outputs y_1, …, y_k of k neurons are independent normals of one variance, so that the mean of
    Σ y⁴/(Σ y²)² is 3/(k + 2).
    """
    squares = sample.outputs[:, -1] ** 2
    squares, neurons = squares[squares.any(axis=1)], sample.coordinates
    if neurons >= _NEURONS and laws.output == "gaussian" and len(squares):
        ratios = (neurons + 2) / 3 * (squares**2).sum(axis=1) / squares.sum(axis=1) ** 2
        mean = mean_of("fourth moment of a draw's outputs over neurons", ratios, 1.0, ratio=True)
        if mean.differs and mean.beyond_chance:
            yield Explanation(f"{mean}: is W_O not Gaussian?", Certainty.ESTIMATED, declared.GIVEN_SCORES)


def _squares(sample: Sample) -> dict[tuple[str, str], FloatArray]:
    """Return mean squares of the visible scores and of the outputs, each for every head or position.

    Keys are the name of the quantity and the kind of index ("head", "position", …); arrays are (draws, indices).
    """
    mean_squares = {(OUTPUTS, "position"): (sample.outputs**2).mean(axis=2)}
    if sample.scores is not None:
        squares = np.where(sample.layer.visible, sample.scores, 0.0) ** 2
        axes = {"head": (2, 3), "position of the query": (1, 3), "position of the key": (1, 2)}
        mean_squares |= {(SCORES, of): squares.mean(axis=axis) for of, axis in axes.items()}
    return mean_squares


def _ratios(name: str, of: str, ours: FloatArray, exact: FloatArray) -> Iterator[Explanation]:
    """Yield an explanation if the ratio of the means of `ours` and `exact`, (draws, indices), depends on the index.

    `of` says what the indices are, e.g. heads. Indices at which the exact law is 0 are left out, e.g. keys that no
    query sees.
    """
    indices = np.flatnonzero(exact.any(axis=0))
    means, declared = (array[:, indices].mean(axis=0) for array in (ours, exact))
    errors = [array[:, indices].std(axis=0) / len(array) ** 0.5 for array in (ours, exact)]
    values = means / declared
    half = QUANTILE * np.hypot(errors[0], values * errors[1]) / declared
    if indices.size < 2 or (values - half).max() <= (values + half).min():
        return
    listing = ", ".join(f"{value:.3g}" for value in values[:_MOST_LINES]) + ", …" * (indices.size > _MOST_LINES)
    plot = plot_data.profile(
        indices, values, half, 1.0, of, f"{name[:1].upper()}{name[1:]} divided by the declared one"
    )
    text = f"{name} by {of}: {listing} times the declared"
    yield Explanation(text, Certainty.ESTIMATED, _STAGES[name], plot)
