"""Likely causes of a violated run, from a fit to fresh draws of a few violated layers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.sample import Sample
from attncheck.diagnosis.candidates import Candidate
from attncheck.diagnosis.causes import TOLD, UNKNOWN, begins, hints, precedes, sharpest_first, telling
from attncheck.diagnosis.differences import OTHER_CALL, read_off
from attncheck.diagnosis.estimates import exact_sample, uneven
from attncheck.diagnosis.finding import Finding
from attncheck.diagnosis.fit import LAYERS, draws_of, fitted
from attncheck.diagnosis.responses import findings, reproducing
from attncheck.diagnosis.shrink import illustration
from attncheck.diagnosis.unread import never_read, unread, unread_text
from attncheck.evidence.plot_data import Plot
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import modules_of, read_case
from attncheck.layers.features import features_of
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.records.schema import Result, of_pool
from attncheck.runs.details import layers_of
from attncheck.runs.tasks import subject_here
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws
from attncheck.subject import Subject, SubjectName

# Maximum number of findings shown, and the size of the sample that is drawn if several causes fit, relative to the
# first sample.
_FOUND, _AGAIN = 2, 4


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """Likely causes of violations, best first, the plot of the first finding that has any, and a smaller layer."""

    causes: tuple[str, ...] = ()
    plot: Plot | None = None
    smaller: str = ""


@dataclasses.dataclass(frozen=True)
class DiagnosisTask:
    """A subject, which may be given by name, with the results of its run and the run seed."""

    subject: Subject | SubjectName
    results: tuple[Result, ...]
    seed: int

    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis, made in the process where this is called."""
        return diagnosis_of(subject_here(self.subject), self.results, self.seed)


def diagnosis_without_draws(results: Sequence[Result]) -> Diagnosis:
    """Return the causes that the violated checks alone suggest."""
    return Diagnosis(tuple(_causes([], results, 0, GAUSSIAN_LAWS)[1][:TOLD]))


def diagnosis_of(subject: Subject, results: Sequence[Result], seed: int) -> Diagnosis:
    """Diagnose violated results from fresh draws, whose random streams are separate from those of the run.

    Findings on what the subject computes differently from its declaration come first, then causes that fit. A text on
    fields that the subject does not read comes before all of these if the simplest layer sets such fields, else last.
    """
    layers = _telling(results)
    samples, later = _samples(subject, layers, seed)
    place, exact, known = _findings(subject, layers, seed)

    def again(sample: Sample) -> Sample:
        rng = stream(seed, "fit again", sample.layer.key, role="diagnosis")
        return subject.draw(sample.layer, _AGAIN * len(sample), rng)

    fitting = _alone(known, [sample for sample in samples if sample.layer == layers[place]], subject, seed)
    others: list[str] = []
    if not fitting:
        fitting, others = _causes(samples, results, seed, subject.weights, subject.form == "inputs", later, again)
    by_place = [] if exact else _uneven(samples, results, seed, subject.weights)
    # Findings on the simplest layer replace weaker explanations, and any finding the statement that nothing fits.
    weaker = [*map(str, by_place), *(cause for cause in others if not (exact and cause == UNKNOWN))]
    if fitting or (exact and not place):
        weaker = []
    named = [words for words in fitting if words in {candidate.words for candidate in known}]
    causes = list(dict.fromkeys([*named, *map(str, exact), *fitting, *weaker]))[:TOLD]
    ignored = _unread(subject, layers, seed)
    if names := never_read(layers[: len(ignored)], ignored):
        causes.insert(0 if ignored[0] & names.keys() else TOLD, unread_text(names))
    plot = next((finding.plot for finding in [*exact, *by_place]), None)
    return Diagnosis(tuple(causes), plot, _smaller(subject, results, seed))


def _samples(subject: Subject, layers: Sequence[AttentionLayer], seed: int) -> tuple[list[Sample], list[Sample]]:
    """Return samples of the layers on which the subject does not fail, and those of a second call."""
    samples: list[Sample] = []
    later: list[Sample] = []
    for layer in layers:
        rng = stream(seed, "fit", layer.key, role="diagnosis")
        with own_arithmetic(), contextlib.suppress(InputError):  # if the subject fails here, its verdict stays
            exposed = samples[0].exposed if samples else _exposed(subject, layer, rng)
            draws = draws_of(layer, exposed)
            one, other = (subject.draw(layer, size, rng) for size in (draws, min(draws, OTHER_CALL)))
            samples.append(one)
            later.append(other)
    return samples, later


def _smaller(subject: Subject, results: Sequence[Result], seed: int) -> str:
    """Return a case smaller than all violated ones that violates the leading check too, with its numbers."""
    first = sharpest_first(telling(results))[0]
    result = first.smallest or first.worst[0]
    if of_pool(result):
        return ""
    cost = Cost(result.affordable, result.level, result.power)
    with own_arithmetic(), contextlib.suppress(InputError):  # a function without a name is not in the record
        item = Item(result.property, read_case(result.case, trust=modules_of(result.case)))
        return illustration(item, result.check, subject, seed, cost)
    return ""


def _unread(subject: Subject, layers: Sequence[AttentionLayer], seed: int) -> list[set[str]]:
    """Return the fields that the subject does not read, for the first layers, up to one on which it fails."""
    found: list[set[str]] = []
    with own_arithmetic(), contextlib.suppress(InputError):
        for layer in layers:
            found.append(unread(subject, layer, stream(seed, "unread", layer.key, role="diagnosis")))
    return found


def _uneven(samples: Sequence[Sample], results: Sequence[Result], seed: int, laws: WeightLaws) -> list[Finding]:
    """Return the first finding on uneven scales or correlated draws, unless an earlier stage of the layer is wrong."""
    root = seed_sequence(seed, "uneven", role="diagnosis/reference")
    for sample in samples[:1]:
        with own_arithmetic(), contextlib.suppress(InputError):
            found = uneven(sample, partial(exact_sample, sample, root, laws), laws)
            on = f" (on {sample.layer.describe()})" if len(samples) > 1 else ""
            first = (each for each in found if not precedes(telling(results), each))
            return [dataclasses.replace(each, text=f"{each.text}{on}") for each in itertools.islice(first, 1)]
    return []


def _findings(
    subject: Subject, layers: Sequence[AttentionLayer], seed: int
) -> tuple[int, list[Finding], list[Candidate]]:
    """Return the index of the first layer with findings on what the subject computes differently, and the findings.

    The last item holds the known faults that reproduce its use of positions.
    """
    for place, layer in enumerate(layers):
        with own_arithmetic(), contextlib.suppress(InputError):
            if found := findings(subject, layer, stream(seed, "responses", layer.key, role="diagnosis")):
                on = f" (on {layer.describe()})" if len(layers) > 1 else ""
                told = [dataclasses.replace(each, text=f"{each.text}{on}") for each in found[:_FOUND]]
                known = reproducing(subject, layer, stream(seed, "reproducing", layer.key, role="diagnosis"))
                return place, told, known
    return 0, [], []


def _alone(known: Sequence[Candidate], samples: Sequence[Sample], subject: Subject, seed: int) -> list[str]:
    """Return the only known fault, unless a sample rejects it; one that fits the declaration does not show it."""
    root = seed_sequence(seed, "reproducing", role="diagnosis/candidates")
    with own_arithmetic(), contextlib.suppress(InputError):
        for sample in samples if len(known) == 1 else ():
            fits, misfits = fitted([_cut(sample)], root, subject.weights, subject.form == "inputs", known)
            return [] if misfits and not fits else [known[0].words]
    return []


def causes_of_samples(
    samples: Sequence[Sample],
    results: Sequence[Result],
    seed: int,
    laws: WeightLaws,
) -> list[str]:
    """Return likely causes of violations in samples: causes that fit, then causes suggested by the violated checks."""
    fitting, others = _causes(samples, results, seed, laws)
    return [*fitting, *others][:TOLD]


def _causes(
    samples: Sequence[Sample],
    results: Sequence[Result],
    seed: int,
    laws: WeightLaws,
    handed: bool = False,
    later: Sequence[Sample] = (),
    again: Callable[[Sample], Sample] | None = None,
) -> tuple[list[str], list[str]]:
    """Return the causes that fit all samples and, if there are none, weaker explanations, each list best first.

    `handed` tells whether attncheck draws the inputs; `later` are samples of the same layers from a second call;
    `again` returns a larger sample of a layer, which is drawn if several causes fit.
    """
    exposed = samples[0].exposed if samples else frozenset()
    places = [at for at, each in enumerate(samples) if each.exposed == exposed][:LAYERS]
    alike = [_cut(samples[at]) for at in places]
    with own_arithmetic():
        if read := next(read_off(alike, [later[at] for at in places if later], laws), ""):
            return [read], []
    root = seed_sequence(seed, "fit", role="diagnosis/candidates")
    tallies, tried = telling(results), False
    # Layers with more features may have several faults; the first one has the fewest features.
    for some in [alike, alike[:1]] if len(alike) > 1 else [alike] * bool(alike):
        with own_arithmetic(), contextlib.suppress(InputError):  # the layer does not allow this candidate
            fits, misfits = fitted(some, root, laws, handed)
            tried |= bool(misfits)
            with contextlib.suppress(InputError):  # the subject fails here
                if len(fits) > 1 and again is not None:
                    left = [cause.candidate for cause in fits]
                    fits = fitted([again(each) for each in some], root, laws, handed, left)[0] or fits
            words = [cause.candidate.words for cause in fits]
            if words and some == alike:
                return words, []
            if words:
                where = f" (fits on {some[0].layer.describe()} only)"
                return [], [*begins(tallies), *(f"{each}{where}" for each in words)]
    return [], [*(begins(tallies) or [UNKNOWN] * tried), *hints(tallies)]


def _cut(sample: Sample) -> Sample:
    return sample[: draws_of(sample.layer, sample.exposed)]


def _exposed(subject: Subject, layer: AttentionLayer, rng: np.random.Generator) -> frozenset[str]:
    return frozenset(subject.probe(layer, rng).exposed)


def _telling(results: Sequence[Result]) -> list[AttentionLayer]:
    """Return the violated layers on which causes are easiest to tell apart: several positions, few features."""
    bad = layers_of(each for each in results if each.verdict == Verdict.VIOLATED)
    return sorted(bad, key=_plainness)[:LAYERS]


def _plainness(layer: AttentionLayer) -> tuple[bool, bool, int, int, str]:
    return layer.seq_len == 1, layer.width < 4, len(features_of(layer)), layer.weight_entries, layer.key
