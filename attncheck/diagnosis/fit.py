"""Fit of candidate causes: simulate each candidate and compare its draws with the sample."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError
from attncheck.checks.returned import FIELDS
from attncheck.checks.sample import Sample
from attncheck.diagnosis.candidates import NEURONS, Candidate, Draw, candidates, correct_draw, named, scaled_by
from attncheck.diagnosis.embedding import SampleEmbedding
from attncheck.diagnosis.statistics import features_of
from attncheck.layers.attention import AttentionLayer
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws

#: Maximum number of layers fitted together.
LAYERS = 4
# Number of draws of a sample: for a subject that returns scores, and for one that returns outputs only.
_DRAWS, _OF_OUTPUTS = 4_000, 12_000
# For each round, the number of draws per candidate, and the number of nearest candidates that enter the next round.
_ROUNDS = ((300, 128), (1_500, 32), (6_000, 8))
# A candidate is dropped if its distance exceeds that of the nearest one by more than this many standard deviations of
# the difference.
_SPREADS = 6.0
# _EXCLUSION_RISK is the probability of excluding the true cause from a second fit. That fit has _MORE times as many
# draws as the sample: most of the error is then the sample's, which is the same for all candidates.
_EXCLUSION_RISK, _MORE = 1e-6, 2
# Maximum number of entries of the sample's arrays, and of the weights of its draws.
_ENTRIES, _WEIGHTS = 2**21, 50_000_000
# Probability of rejecting the true cause after all layers (_REFUSED), and before all layers are compared (_REFUTED).
_REFUSED, _REFUTED = 1e-3, 1e-12
# Fields of the standard deviations that determine the scale of the scores.
_OF_SCORES = ("query_std", "key_std")
# For each standard deviation, the features that measure it best, as prefix and suffix of their names. The first ones
# need more returned arrays.
_SIZES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "key_std": (("size of key Gram of head", "over inputs"), ("size of key Gram of head", "")),
    "query_std": (("size of scores given keys", ""), ("size of scores", "size of scores")),
    "value_std": (("size of value Gram of head", "over inputs"), ("size of value Gram of head", "")),
    "output_std": (
        ("size of outputs at", "given values"),
        ("size of outputs at", "over their attention"),
        ("size of outputs", "size of outputs"),
    ),
}
# A candidate is possible if its log scale differs from the fitted one by at most this. The fit has an error of a few
# percent.
_NEAR = 0.25


@dataclasses.dataclass(frozen=True)
class FittedCause:
    """A candidate with the result of its fit.

    `distance` is the sum of squared distances over all layers. The penalty `cost`, used for ranking, is log N per
    fitted parameter for N draws (Schwarz criterion), plus 2 log k if k values of the changed field were tried.
    """

    candidate: Candidate
    distance: float
    p_value: float
    cost: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether the candidate is not rejected."""
        return self.p_value > _REFUSED


def draws_of(layer: AttentionLayer, exposed: frozenset[str]) -> int:
    """Return the number of draws to fit causes, within the cost limits."""
    draws = _DRAWS if "scores" in exposed else _OF_OUTPUTS
    return max(256, min(draws, _ENTRIES // layer.stored_entries, _WEIGHTS // layer.weight_entries))


@dataclasses.dataclass(frozen=True)
class _FittedScale:
    """A fitted factor of a standard deviation, with the standard error `error` of its logarithm.

    `gaps` are the logarithms of the factors that are fitted on each layer alone.
    """

    factor: float
    error: float
    gaps: tuple[float, ...]


def fitted(
    samples: Sequence[Sample],
    seed: np.random.SeedSequence,
    laws: WeightLaws = GAUSSIAN_LAWS,
    receives_inputs: bool = False,
    among: Sequence[Candidate] = (),
    possible: Callable[[Candidate], bool] = lambda candidate: True,
) -> tuple[list[FittedCause], list[FittedCause]]:
    """Return fitting causes, best first, and rejected ones, nearest first, from one sample per violated layer.

    If there are candidates in `among`, only these are tried, otherwise all those that are `possible`. In the second
    case, both lists are empty if the samples fit the declaration, because then the fault does not show in these draws
    or features.
    """
    embeddings = [SampleEmbedding(_few_neurons(sample)) for sample in samples]
    layers, exposed = [sample.layer for sample in samples], samples[0].exposed
    *rounds, full_seed, again, scale_seed = seed.spawn(len(_ROUNDS) + 3)
    nothing = Candidate("right", "nothing is wrong", correct_draw(laws))
    if not among and _cause(embeddings, nothing, again, _MORE).p_value > _REFUSED:
        return [], []
    scales = _scales(embeddings, laws, scale_seed)
    known = filter(possible, candidates(layers, exposed, laws, receives_inputs))
    remaining = list(among) or [candidate for candidate in known if _may_be(candidate, scales)]
    for (draws, most), root in zip(_ROUNDS, rounds, strict=True):
        remaining = _nearest(embeddings, remaining, root, draws, most) if len(remaining) > 1 else remaining
    scale_candidates = [] if among else [_fitted_scale(scales, exposed, laws)]
    causes = [_cause(embeddings, candidate, full_seed, 1) for candidate in [*remaining, *scale_candidates]]
    near = [cause for cause in causes if cause.p_value > _EXCLUSION_RISK]
    if len(near) > 1 or not any(cause.fits for cause in near):
        causes = [_cause(embeddings, c.candidate, again, _MORE) if c in near else c for c in causes]
    causes.sort(key=lambda cause: (cause.distance + cause.cost, cause.candidate.name))
    return _distinct([cause for cause in causes if cause.fits]), [cause for cause in causes if not cause.fits]


def _few_neurons(sample: Sample) -> Sample:
    """Return a sample with no more neurons than draws of candidates."""
    arrays = {name: values for name, values in sample.arrays.items() if name in FIELDS}
    few = {name: arrays[name][..., :NEURONS] for name in ("outputs", "inputs") if name in arrays}
    return Sample(sample.layer, **(arrays | few))


def _distinct(fits: Sequence[FittedCause]) -> list[FittedCause]:
    """Return one cause for each law: the one whose candidate has the lowest rank."""
    causes: list[FittedCause] = []
    for cause in sorted(fits, key=lambda fit: (round(fit.distance, 3), fit.candidate.rank, fit.candidate.name)):
        if not causes or abs(cause.distance - causes[-1].distance) > 1e-2:
            causes.append(cause)
    causes.sort(key=lambda fit: (fit.distance + fit.cost, fit.candidate.name))
    # Leave out the candidate with fitted factors if a candidate with known factors precedes it.
    known = next((at for at, fit in enumerate(causes) if fit.candidate.scales), len(causes))
    return _by_field([fit for at, fit in enumerate(causes) if at < known or not fit.candidate.free])


def _by_field(fits: Sequence[FittedCause]) -> list[FittedCause]:
    """Return the best cause for each field, to leave room for other fields.

    The message of a cause lists the other values of its field that fit.
    """
    of_field: dict[str, list[FittedCause]] = {}
    for cause in fits:
        of_field.setdefault(cause.candidate.field or cause.candidate.name, []).append(cause)
    causes = []
    for first, *rest in of_field.values():
        text = " or ".join([first.candidate.words, *(fit.candidate.value for fit in rest)])
        candidate = dataclasses.replace(first.candidate, words=text)
        causes.append(dataclasses.replace(first, candidate=candidate))
    return causes


def _cause(
    embeddings: Sequence[SampleEmbedding], candidate: Candidate, seed: np.random.SeedSequence, more: int
) -> FittedCause:
    """Return the fit of a candidate to the samples of all layers.

    On each layer, `more` times as many draws of the candidate are taken as the sample has. Layers are compared one
    after another, until the sum of squared distances rejects the candidate.
    """
    distance, dof = 0.0, sum(sample.dof for sample in embeddings)
    farthest = float(scipy.stats.chi2.isf(_REFUTED, dof))
    for at, sample in enumerate(embeddings):
        if distance < farthest:
            distance += _distance_on(at, sample, candidate, seed, more * sample.size)
    size = min(sample.size for sample in embeddings)
    cost = candidate.free * float(np.log(size)) + 2.0 * float(np.log(candidate.choices))
    return FittedCause(candidate, distance, float(scipy.stats.chi2.sf(distance, dof)), cost)


def _nearest(
    embeddings: Sequence[SampleEmbedding],
    tried: Sequence[Candidate],
    seed: np.random.SeedSequence,
    draws: int,
    most: int,
) -> list[Candidate]:
    """Return at most `most` of the candidates in `tried`, nearest first.

    Candidates that are much farther away than the nearest one are left out: the squared distance of the true cause is
    about chi-square, so it is not much larger than the smallest distance. At most `draws` draws of a candidate are
    taken on each layer. Candidates that are far away on the first layers are not drawn on the others.
    """
    reached = [(0.0, at, 0) for at in range(len(tried))]  # a heap of (distance, candidate, number of layers fitted)
    margin, farthest = _SPREADS * 2.0 * sum(embedding.dof for embedding in embeddings) ** 0.5, np.inf
    nearest: list[Candidate] = []
    while reached and len(nearest) < most and reached[0][0] <= farthest:
        distance, at, layers = reached[0]
        if layers == len(embeddings):
            heapq.heappop(reached)
            nearest.append(tried[at])
            farthest = min(farthest, distance + margin)
        else:
            embedding = embeddings[layers]
            distance += _distance_on(layers, embedding, tried[at], seed, min(draws, embedding.size))
            heapq.heapreplace(reached, (distance, at, layers + 1))
    return nearest


def _distance_on(
    at: int, embedding: SampleEmbedding, candidate: Candidate, seed: np.random.SeedSequence, size: int
) -> float:
    """Return a candidate's squared distance on one layer; infinite if it cannot be drawn.

    `at` is the index of the layer, and `size` the number of draws.
    """
    rng = np.random.default_rng([at, *seed.generate_state(4)])
    try:
        return embedding.distance(
            _with_same_arrays(candidate.draw(embedding.sample.layer, size, rng), embedding.sample)
        )
    except InputError:
        return np.inf


def _with_same_arrays(arrays: Mapping[str, FloatArray], sample: Sample) -> Sample:
    """Return a candidate's draws with the arrays that the sample has, and no others."""
    fields: dict[str, Any] = {name: arrays[name] for name in FIELDS if name in sample.exposed and name in arrays}
    for name in ("outputs", "inputs"):
        if name in fields:
            fields[name] = fields[name][..., : sample.coordinates]
    if "scores" in fields and "masked scores" not in sample.exposed:
        fields["scores"] = np.where(sample.layer.visible, fields["scores"], -np.inf)
    return Sample(sample.layer, **fields)


def _scales(
    embeddings: Sequence[SampleEmbedding], laws: WeightLaws, seed: np.random.SeedSequence
) -> dict[str, _FittedScale]:
    """Return the fitted factor of each standard deviation that the samples can show; the others count as correct."""
    scales: dict[str, _FittedScale] = {}
    for field in ("key_std", "query_std", "value_std", "output_std"):
        sizes = next((of for of in _SIZES[field] if any(_is(name, of) for name in embeddings[0].names)), None)
        if sizes is not None:
            factors = {name: scale.factor for name, scale in scales.items()}
            scales[field] = _scale(embeddings, sizes, correct_draw(laws, scaled_by(factors)), seed)
    return scales


def _may_be(candidate: Candidate, scales: Mapping[str, _FittedScale]) -> bool:
    """Return whether the score scale of a candidate is near the fitted one; True if either is not known."""
    if not candidate.scales or "query_std" not in scales:
        return True
    expected = sum(np.log(candidate.scales[field]) for field in _OF_SCORES if field in candidate.scales)
    observed = sum(np.array(scales[field].gaps) for field in _OF_SCORES if field in scales)
    return bool((np.abs(expected - observed) < _NEAR).all())


def _fitted_scale(scales: Mapping[str, _FittedScale], exposed: frozenset[str], laws: WeightLaws) -> Candidate:
    """Return the candidate whose standard deviations are multiplied by the fitted factors."""
    # Leave out factors that differ from 1 by no more than chance explains.
    factors = {field: scale.factor for field, scale in scales.items() if abs(np.log(scale.factor)) > 3.0 * scale.error}
    parts = [f"{named((field,), exposed)}: {factor:.2f} times" for field, factor in factors.items()]
    text = f"{'; '.join(parts)} the declared standard deviation"
    return Candidate("scale", text, correct_draw(laws, scaled_by(factors)), free=max(1, len(factors)))


def _is(name: str, sizes: tuple[str, str]) -> bool:
    return name.startswith(sizes[0]) and name.endswith(sizes[1])


def _scale(
    embeddings: Sequence[SampleEmbedding], sizes: tuple[str, str], draw: Draw, seed: np.random.SeedSequence
) -> _FittedScale:
    """Return the factor by which a standard deviation in the samples differs from that of a simulator.

    `draw` is the simulator. `sizes`, a prefix and a suffix of names, selects the features that measure the standard
    deviation.
    """
    log_ratios, variances = [], []
    for number, embedding in enumerate(embeddings):
        rng = np.random.default_rng([number, *seed.generate_state(4)])
        simulated = features_of(_with_same_arrays(draw(embedding.sample.layer, embedding.size, rng), embedding.sample))
        pairs = [(embedding.feature(name), simulated[name]) for name in embedding.names if _is(name, sizes)]
        log_ratios.append(0.5 * float(np.mean([ours.mean() - reference.mean() for ours, reference in pairs])))
        # Sizes in one layer are dependent, so use the error of the most accurate one.
        variances.append(min(0.25 * sum(float(one.var()) / len(one) for one in pair) for pair in pairs) + 1e-12)
    weights = 1.0 / np.array(variances)
    return _FittedScale(
        float(np.exp(weights @ log_ratios / weights.sum())), float(weights.sum() ** -0.5), tuple(log_ratios)
    )
