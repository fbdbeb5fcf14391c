"""Which of what may be wrong makes a simulator what it is: candidates are simulated and held beside its draws."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from attncheck._lib.errors import InputError
from attncheck.checks.sample import FIELDS, Sample
from attncheck.diagnosis.candidates import Candidate, Draw, candidates, named, right, scaled_by
from attncheck.diagnosis.embedding import SampleEmbedding
from attncheck.diagnosis.statistics import features_of
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import visible
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws

FloatArray = NDArray[np.float64]

#: Layers that are looked at together.
LAYERS = 3
# Draws of a sample that are looked at, more where outputs alone tell little each.
_DRAWS, _OF_OUTPUTS = 4_000, 12_000
# Draws of each candidate round by round, and the nearest ones that are left after it.
_ROUNDS = ((300, 48), (1_500, 6))
# Chance that the true cause is not among those whose distance is taken once more, on so many times the sample's draws:
# most of its error is the sample's own then, and the same for all of them.
_LEFT_OUT, _MORE = 1e-6, 2
# Entries of a sample's arrays, and of the weights that it stands for.
_ENTRIES, _WEIGHTS = 2**21, 50_000_000
# Chance that the true cause is refused: one in a thousand red runs says "none that is known" for no reason.
_REFUSED = 1e-3
# Matrices whose scales are that of the scores together.
_OF_SCORES = ("query_std", "key_std")
# Beginning and end of the features that tell the scale of a matrix best, those first that take more to be exposed.
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
# How far the logarithm of a candidate's scale may be from the sample's, whose own error is a few percent.
_NEAR = 0.25


@dataclasses.dataclass(frozen=True)
class FittedCause:
    """What a candidate's fit comes to.

    Attributes
    ----------
    candidate : Candidate
    distance : float
        Squared, over all layers.
    p_value : float
        Chance of a distance as large if the candidate is what is wrong.
    cost : float
        What is added to the distance before candidates are ranked: log N for each fitted number, as in Schwarz'
        criterion, and 2 log k where one of k values of a field is read.
    """

    candidate: Candidate
    distance: float
    p_value: float
    cost: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether the candidate is not refused."""
        return self.p_value > _REFUSED


def draws_of(layer: AttentionLayer, exposed: frozenset[str]) -> int:
    """Return how many draws of a layer tell causes apart, as far as they are cheap."""
    wanted = _DRAWS if "scores" in exposed else _OF_OUTPUTS
    return max(256, min(wanted, _ENTRIES // layer.stored_entries, _WEIGHTS // layer.weight_entries))


@dataclasses.dataclass(frozen=True)
class _FittedScale:
    """A factor of a standard deviation, the error of its logarithm, and that logarithm layer by layer."""

    factor: float
    error: float
    gaps: tuple[float, ...]


def fitted(
    samples: Sequence[Sample],
    seed: np.random.SeedSequence,
    laws: WeightLaws = GAUSSIAN_LAWS,
    handed: bool = False,
) -> tuple[list[FittedCause], list[FittedCause]]:
    """Return the causes that samples fit, the best first, and those that were tried and do not, the nearest first.

    Neither where the samples are as they should be: what is wrong does not show in so few draws, or in no feature.

    Parameters
    ----------
    samples : sequence of Sample
        Of violated layers, one of each.
    seed : numpy.random.SeedSequence
    laws : WeightLaws
        Of the weights, as they are declared.
    handed : bool
        Whether the inputs are attncheck's own.
    """
    placed = [SampleEmbedding(_two_neurons(sample)) for sample in samples]
    layers, exposed = [sample.layer for sample in samples], samples[0].exposed
    *rounds, whole, again, own = seed.spawn(len(_ROUNDS) + 3)
    if _cause(placed, Candidate("right", "nothing is wrong", right(laws)), again, _MORE).p_value > _REFUSED:
        return [], []
    scales = _scales(placed, laws, own)
    left = [each for each in candidates(layers, exposed, laws, handed) if _may_be(each, scales)]
    for (draws, most), root in zip(_ROUNDS, rounds, strict=True):
        left = _nearest(placed, left, root, draws, most)
    causes = [_cause(placed, candidate, whole, 1) for candidate in [*left, _own_scale(scales, exposed, laws)]]
    near = [cause for cause in causes if cause.p_value > _LEFT_OUT]
    if len(near) > 1 or not any(cause.fits for cause in near):
        causes = [_cause(placed, each.candidate, again, _MORE) if each in near else each for each in causes]
    causes.sort(key=lambda cause: (cause.distance + cause.cost, cause.candidate.name))
    return _distinct([cause for cause in causes if cause.fits]), [cause for cause in causes if not cause.fits]


def _two_neurons(sample: Sample) -> Sample:
    """Return a sample with two neurons at most: candidates have no more."""
    few = {name: values[..., :2] for name in ("outputs", "inputs") if (values := getattr(sample, name)) is not None}
    arrays = {name: values for name in FIELDS if (values := getattr(sample, name)) is not None}
    return Sample(sample.layer, **{**arrays, **few})


def _distinct(fits: Sequence[FittedCause]) -> list[FittedCause]:
    """Return causes of different laws: of those that draw the same numbers the one that is told first."""
    found: list[FittedCause] = []
    for cause in sorted(fits, key=lambda each: (round(each.distance, 3), each.candidate.rank, each.candidate.name)):
        if not found or abs(cause.distance - found[-1].distance) > 1e-2:
            found.append(cause)
    found.sort(key=lambda each: (each.distance + each.cost, each.candidate.name))
    # A fitted factor says again what a known one before it does.
    known = next((at for at, each in enumerate(found) if each.candidate.scales), len(found))
    return _by_field([each for at, each in enumerate(found) if at < known or not each.candidate.free])


def _by_field(fits: Sequence[FittedCause]) -> list[FittedCause]:
    """Return causes with one for each field: other values of it that fit are told with the nearest one.

    Several values of one field may not be told apart, as odd activations under a norm. By themselves they would leave
    no room for another field.
    """
    of_field: dict[str, list[FittedCause]] = {}
    for cause in fits:
        of_field.setdefault(cause.candidate.field or cause.candidate.name, []).append(cause)
    found = []
    for first, *others in of_field.values():
        words = " or ".join([first.candidate.words, *(each.candidate.value for each in others)])
        told = dataclasses.replace(first.candidate, words=words)
        found.append(dataclasses.replace(first, candidate=told))
    return found


def _cause(
    placed: Sequence[SampleEmbedding], candidate: Candidate, seed: np.random.SeedSequence, more: int
) -> FittedCause:
    """Return what a candidate comes to on so many times the sample's draws."""
    distance, dof = _distance(placed, candidate, seed, more)
    cost = candidate.free * float(np.log(min(each.size for each in placed))) + 2.0 * float(np.log(candidate.choices))
    return FittedCause(candidate, distance, float(scipy.stats.chi2.sf(distance, dof)), cost)


def _nearest(
    placed: Sequence[SampleEmbedding], tried: Sequence[Candidate], seed: np.random.SeedSequence, draws: int, most: int
) -> list[Candidate]:
    """Return the candidates of the least distances over all layers, the nearest first, on at most so many draws.

    Layers only add to a distance: what is far on the first ones is not drawn on the others.
    """
    reached = [(0.0, at, 0) for at in range(len(tried))]  # a heap: how far, which candidate, on how many layers
    found: list[Candidate] = []
    while reached and len(found) < most:
        distance, at, layers = reached[0]
        if layers == len(placed):
            heapq.heappop(reached)
            found.append(tried[at])
        else:
            each = placed[layers]
            distance += _distance_on(layers, each, tried[at], seed, min(draws, each.size))
            heapq.heapreplace(reached, (distance, at, layers + 1))
    return found


def _distance(
    placed: Sequence[SampleEmbedding], candidate: Candidate, seed: np.random.SeedSequence, more: int
) -> tuple[float, int]:
    """Return the squared distance of a candidate over all layers, and its degrees of freedom.

    It is drawn `more` times as often as the sample.
    """
    distances = (_distance_on(at, each, candidate, seed, more * each.size) for at, each in enumerate(placed))
    return sum(distances), sum(each.dof for each in placed)


def _distance_on(
    at: int, placed: SampleEmbedding, candidate: Candidate, seed: np.random.SeedSequence, size: int
) -> float:
    """Return the squared distance of a candidate on one layer; infinite where it cannot be drawn."""
    rng = np.random.default_rng([at, *seed.generate_state(4)])
    try:
        return placed.distance(_alike(candidate.draw(placed.sample.layer, size, rng), placed.sample))
    except InputError:
        return np.inf


def _alike(arrays: Mapping[str, FloatArray], sample: Sample) -> Sample:
    """Return a candidate's draws with what the subject exposes, as it exposes it."""
    kept: dict[str, Any] = {name: arrays[name] for name in FIELDS if name in sample.exposed and name in arrays}
    for name in ("outputs", "inputs"):
        if name in kept:
            kept[name] = kept[name][..., : sample.coordinates]
    if "scores" in kept and "masked scores" not in sample.exposed:
        kept["scores"] = np.where(visible(sample.layer), kept["scores"], -np.inf)
    return Sample(sample.layer, **kept)


def _scales(
    placed: Sequence[SampleEmbedding], laws: WeightLaws, seed: np.random.SeedSequence
) -> dict[str, _FittedScale]:
    """Return by how much the standard deviations of a sample differ from the declared ones, as far as it shows them.

    Matrices whose own numbers are not exposed are taken to be right: another one has their factor then.
    """
    found: dict[str, _FittedScale] = {}
    for field in ("key_std", "query_std", "value_std", "output_std"):
        sizes = next((of for of in _SIZES[field] if any(_is(name, of) for name in placed[0].names)), None)
        if sizes is not None:
            factors = {name: scale.factor for name, scale in found.items()}
            found[field] = _scale(placed, sizes, right(laws, scaled_by(factors)), seed)
    return found


def _may_be(candidate: Candidate, scales: Mapping[str, _FittedScale]) -> bool:
    """Return whether a candidate's scores are about as large as the sample's: it is not worth a try otherwise."""
    if not candidate.scales or "query_std" not in scales:
        return True
    wanted = sum(np.log(candidate.scales[field]) for field in _OF_SCORES if field in candidate.scales)
    seen = sum(np.array(scales[field].gaps) for field in _OF_SCORES if field in scales)
    return bool((np.abs(wanted - seen) < _NEAR).all())


def _own_scale(scales: Mapping[str, _FittedScale], exposed: frozenset[str], laws: WeightLaws) -> Candidate:
    """Return the candidate whose scales are those that the sample has, whatever they are."""
    # What differs by chance is left as it is.
    factors = {field: each.factor for field, each in scales.items() if abs(np.log(each.factor)) > 3.0 * each.error}
    parts = [f"{named((field,), exposed)}: {factor:.2f} times" for field, factor in factors.items()]
    words = f"{'; '.join(parts)} the declared standard deviation"
    return Candidate("scale", words, right(laws, scaled_by(factors)), free=max(1, len(factors)))


def _is(name: str, sizes: tuple[str, str]) -> bool:
    return name.startswith(sizes[0]) and name.endswith(sizes[1])


def _scale(
    placed: Sequence[SampleEmbedding], sizes: tuple[str, str], draw: Draw, seed: np.random.SeedSequence
) -> _FittedScale:
    """Return the factor by which a sample's sizes differ from a simulator's."""
    of_layers, variances = [], []
    for number, each in enumerate(placed):
        rng = np.random.default_rng([number, *seed.generate_state(4)])
        theirs = features_of(_alike(draw(each.sample.layer, each.size, rng), each.sample))
        pairs = [(each.feature(name), theirs[name]) for name in each.names if _is(name, sizes)]
        of_layers.append(0.5 * float(np.mean([ours.mean() - others.mean() for ours, others in pairs])))
        # Sizes of one layer are not independent: no more than the best one is known.
        variances.append(min(0.25 * sum(float(one.var()) / len(one) for one in pair) for pair in pairs) + 1e-12)
    weights = 1.0 / np.array(variances)
    return _FittedScale(
        float(np.exp(weights @ of_layers / weights.sum())), float(weights.sum() ** -0.5), tuple(of_layers)
    )
