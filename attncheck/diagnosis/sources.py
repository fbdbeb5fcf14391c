"""Sources of explanations of violated results, in the order in which a reader needs them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import msgspec

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.declared import DRAWS
from attncheck.checks.sample import Sample
from attncheck.diagnosis.candidates import Candidate
from attncheck.diagnosis.causes import MOST_CAUSES, diagnosed, first_stages, hints, most_informative, precedes
from attncheck.diagnosis.differences import SECOND_CALL, centred, read_off, repeated_neurons, rounded
from attncheck.diagnosis.effects import comparable, reproduces
from attncheck.diagnosis.estimates import dependent, exact_sample, not_normal, uneven
from attncheck.diagnosis.fit import LAYERS, FittedCause, draws_of, fitted
from attncheck.diagnosis.reproduction import answering, reproducing
from attncheck.diagnosis.responses import findings
from attncheck.diagnosis.unread import never_read, unused_fields, unused_text
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.features import features_of
from attncheck.records.explanation import Certainty, Explanation
from attncheck.records.schema import Result
from attncheck.records.tallies import Tally, layers_of
from attncheck.simulators.weights import WeightLaws
from attncheck.subject import Subject

# _DEVIATIONS is the maximum number of deviations in an explanation. If several causes fit, a sample is drawn that is
# _AGAIN times as large as the first one.
_DEVIATIONS, _AGAIN = 2, 4
_NUMBERS = re.compile(r"[-\d.]+")


@dataclasses.dataclass(frozen=True)
class Fits:
    """Texts of fitting causes, best first.

    Causes in `everywhere` fit the samples of all layers. If there are none, causes in `plainest` fit the sample of the
    plainest layer.
    """

    everywhere: tuple[str, ...] = ()
    plainest: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Deviations:
    """Exact deviations of a subject on a layer, and known causes.

    Causes in `matching` use positions like the subject, causes in `differing` do not.
    """

    layer: AttentionLayer | None = None
    explanations: tuple[Explanation, ...] = ()
    matching: tuple[Candidate, ...] = ()
    differing: tuple[Candidate, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Violations:
    """Results of a run with violations, and the data that can explain them: draws of a subject, or samples of files.

    Random streams are separate from those of the run. If a call of the subject fails, results are explained without its
    data.

    Attributes
    ----------
    results : tuple of Result
        All results of the run.
    seed : int
        The run seed.
    laws : WeightLaws
    subject : Subject, optional
    files : tuple of Sample
        Samples of violated layers, if there is no subject.
    """

    results: tuple[Result, ...]
    seed: int
    laws: WeightLaws
    subject: Subject | None = None
    files: tuple[Sample, ...] = ()

    @cached_property
    def tallies(self) -> dict[str, Tally]:
        """Counts of results by check."""
        return dict(most_informative(self.results))

    @cached_property
    def line(self) -> Explanation | None:
        """The first wrong line of a program, or None.

        The explanation is exact if a violated check compares single numbers, and estimated otherwise.
        """
        result = diagnosed(self.tallies)
        if result is None or "program" not in result.case or len(result.diagnosis) < 2:
            return None
        bad = (other for other in self.results if other.verdict == Verdict.VIOLATED and other.case == result.case)
        exact = any(other.check in ("netsor.functions", "netsor.copies") for other in bad)
        return Explanation(result.diagnosis[0], Certainty.EXACT if exact else Certainty.ESTIMATED)

    @cached_property
    def layers(self) -> list[AttentionLayer]:
        """Violated layers, plainest first, because causes are easiest to tell apart on plain layers.

        Plain layers have several positions and few features.
        """
        bad = layers_of(result for result in self.results if result.verdict == Verdict.VIOLATED)
        return sorted(bad, key=_plainness)[:LAYERS]

    @property
    def _callable(self) -> list[tuple[Subject, AttentionLayer]]:
        """The subject with each violated layer; empty for files."""
        return [(self.subject, layer) for layer in self.layers] if self.subject else []

    @cached_property
    def unread_fields(self) -> list[set[str]]:
        """The fields that the subject does not read, one set for each layer up to the first one on which it fails."""
        fields: list[set[str]] = []
        with own_arithmetic(), contextlib.suppress(InputError):
            for subject, layer in self._callable:
                rng = stream(self.seed, "unread", layer.key, role="diagnosis")
                fields.append(unused_fields(subject, layer, rng))
        return fields

    @cached_property
    def calls(self) -> tuple[list[Sample], list[Sample]]:
        """Samples of a first and of a second call of the subject, for each layer on which both succeed.

        All samples have the same arrays. Samples of files count as first calls.
        """
        first = [sample for sample in self.files if sample.exposed == self.files[0].exposed][:LAYERS]
        second: list[Sample] = []
        for subject, layer in self._callable:
            rng = stream(self.seed, "fit", layer.key, role="diagnosis")
            with own_arithmetic(), contextlib.suppress(InputError):
                exposed = first[0].exposed if first else frozenset(subject.probe(layer, rng).exposed)
                size = draws_of(layer, exposed)
                one, two = (subject.draw(layer, draws, rng) for draws in (size, min(size, SECOND_CALL)))
                if not first or one.exposed == first[0].exposed:
                    first.append(one)
                    second.append(two)
        return first, second

    @cached_property
    def samples(self) -> list[Sample]:
        """The samples of first calls, cut to the size that a fit needs."""
        return [sample[: draws_of(sample.layer, sample.exposed)] for sample in self.calls[0]]

    @cached_property
    def deviations(self) -> Deviations:
        """The exact deviations on the first layer that has any; an object without explanations if no layer has one."""
        deviations = Deviations()
        for subject, layer in self._callable if self._receives_inputs and not self.roundings else ():
            with own_arithmetic(), contextlib.suppress(InputError):
                observations = findings(subject, layer, stream(self.seed, "responses", layer.key, role="diagnosis"))
                if observations or deviations.layer is None:
                    on = f" (on {layer.describe()})" if len(self.layers) > 1 else ""
                    named = (msgspec.structs.replace(e, text=f"{e.text}{on}") for e in observations[:_DEVIATIONS])
                    matching, differing = reproducing(
                        subject, layer, stream(self.seed, "reproducing", layer.key, role="diagnosis")
                    )
                    deviations = Deviations(layer, tuple(named), tuple(matching), tuple(differing))
                if observations:
                    break
        return deviations

    @property
    def outputs_alone(self) -> bool:
        """Whether the subject returns neither scores nor attention weights."""
        return bool(self.samples) and not {"scores", "attention"} & self.samples[0].exposed

    @property
    def _receives_inputs(self) -> bool:
        """Whether attncheck gives the subject its inputs."""
        return self.subject is not None and self.subject.form == "inputs"

    @cached_property
    def repeats(self) -> str:
        """Text on dependent draws of one call, or different laws in two calls; empty if there is neither."""
        with own_arithmetic():
            return next(read_off(self.samples, self.calls[1], self.laws), "")

    @cached_property
    def roundings(self) -> list[str]:
        """Sentences on outputs and scores that are rounded to few decimals, which exact comparisons mistake."""
        return [*rounded(self.samples[0])] if self.samples and self.laws.continuous else []

    @cached_property
    def fits(self) -> Fits:
        """Causes whose simulated draws agree with the samples, and violate the checks in the same way.

        They are tested again on larger samples. A single cause is not, if the subject's answers to chosen inputs
        already confirm it.
        """
        several = [self.samples[:count] for count in sorted({1, len(self.samples)}, reverse=True) if self.samples]
        # If no cause fits all layers, fit the first one alone: it has the fewest features, while others may have
        # several faults.
        for samples in several:
            with own_arithmetic(), contextlib.suppress(InputError):  # the layer does not allow this candidate
                causes, _ = self.fitted(samples)
                # If a subject receives its inputs and returns scores, its answers tell causes apart too.
                sure = self._receives_inputs and not self.outputs_alone
                if len(causes) > (1 if sure else 0) and self.subject is not None:
                    with contextlib.suppress(InputError):
                        larger = [self._again(self.subject, sample) for sample in samples]
                        causes = self.fitted(larger, [cause.candidate for cause in causes])[0]
                texts = tuple(cause.candidate.words for cause in causes if self.reproduced(cause.candidate))
                if texts:
                    return Fits(everywhere=texts) if samples is several[0] else Fits(plainest=texts)
        return Fits()

    def _is_possible(self, candidate: Candidate) -> bool:
        """Return whether a candidate may be the cause, given the exact deviations of the subject.

        A candidate is impossible if it uses positions differently from the subject, or changes only the law of the
        weights although the subject deviates exactly.
        """
        deviations = self.deviations
        if deviations.explanations and candidate.of_weights:
            return False
        matching, differing = ({f.words for f in faults} for faults in (deviations.matching, deviations.differing))
        return candidate.words not in differing - matching

    @cached_property
    def comparable(self) -> list[Result]:
        """Results on the plainest layer, whose effects can be compared with those of candidates."""
        return comparable(self.samples[0], self.results, self.subject, self.seed)

    def reproduced(self, candidate: Candidate) -> bool:
        """Return whether a candidate has the subject's exact deviation and the effects of the violated checks."""
        sample = self.samples[0]
        if not self.deviates_alike(candidate):
            return False
        with own_arithmetic():
            return reproduces(candidate, sample, self.comparable, self.laws, self.seed)

    def deviates_alike(self, candidate: Candidate) -> bool:
        """Return whether a candidate has the first exact deviation of the subject; numbers in its text may differ.

        If the subject has no exact deviation, the candidate must have none. The result is True for a candidate that
        cannot be called with inputs.
        """
        ours, sample = self.deviations, self.samples[0]
        subject = answering(candidate, sample.exposed) if self._receives_inputs else None
        if subject is None:
            return True
        layer, theirs = ours.layer or sample.layer, list[Explanation]()
        with own_arithmetic(), contextlib.suppress(InputError):
            theirs = findings(subject, layer, stream(self.seed, "answers", layer.key, role="diagnosis"))
        if not (ours.explanations and theirs):
            return not (ours.explanations or theirs)
        first, other = (_NUMBERS.sub("", str(explanations[0])) for explanations in (ours.explanations, theirs))
        return first.startswith(other)  # the name of the layer may follow

    def fitted(
        self, samples: Sequence[Sample], among: Sequence[Candidate] = (), role: str = "fit"
    ) -> tuple[list[FittedCause], list[FittedCause]]:
        """Return the causes that fit samples, and those that do not; see `attncheck.diagnosis.fit.fitted`."""
        root = seed_sequence(self.seed, role, role="diagnosis/candidates")
        return fitted(samples, root, self.laws, self._receives_inputs, among, self._is_possible)

    def _again(self, subject: Subject, sample: Sample) -> Sample:
        rng = stream(self.seed, "fit again", sample.layer.key, role="diagnosis")
        return subject.draw(sample.layer, _AGAIN * len(sample), rng)


def explanations(violations: Violations) -> tuple[Explanation, ...]:
    """Return the explanations of violations, the most useful first.

    A source is skipped if an earlier explanation makes it unnecessary, and no explanation repeats the text of another.
    """
    chosen: list[Explanation] = []
    for certainty, source in _SOURCES:
        if not any(certainty in explanation.excluded for explanation in chosen):
            for explanation in source(violations):
                if not any(earlier.text in explanation.text for earlier in chosen):
                    chosen.append(explanation)
    return tuple(chosen[:MOST_CAUSES])


def _unused(violations: Violations, on_plainest: bool) -> Iterator[Explanation]:
    """Yield a sentence on the fields that the subject never reads, if any.

    If the plainest layer sets one of these fields, the sentence is yielded only with `on_plainest`, and otherwise only
    without it.
    """
    ignored = violations.unread_fields
    names = never_read(violations.layers[: len(ignored)], ignored)
    if names and bool(ignored[0] & names.keys()) == on_plainest:
        yield Explanation(unused_text(names), Certainty.OBSERVED)


def _reproduced(violations: Violations) -> Iterator[Explanation]:
    """Yield the known causes that use positions like the subject and whose draws fit the subject's.

    The cause is identified if there is only one that deviates exactly as the subject does.
    """
    deviations = violations.deviations
    causes, layer = deviations.matching if deviations.explanations else (), deviations.layer
    if violations.repeats:
        return
    if deviations.explanations and layer != violations.layers[0]:
        # A cause of all violations explains the deviation, which the plainest layer does not have, too.
        yield from _fitting(violations)
    if not causes:
        return
    for sample in violations.samples:
        with own_arithmetic(), contextlib.suppress(InputError):
            if sample.layer == layer:
                fits, _ = violations.fitted([sample], causes, "reproducing")
                if len(fits) == 1 and violations.deviates_alike(fits[0].candidate):
                    yield Explanation(fits[0].candidate.words, Certainty.IDENTIFIED)
                    return
    texts = {cause.words for cause in causes}
    yield from (Explanation(text, Certainty.FITTED) for text in violations.fits.everywhere if text in texts)


def _of_numbers(violations: Violations) -> Iterator[Explanation]:
    """Yield which arrays are rounded to few decimals, and whether outputs are centred or repeat."""
    texts = violations.roundings
    for sample in violations.samples[:1]:
        texts = [*texts, *centred(sample), *repeated_neurons(sample)]
    yield from (Explanation(text, Certainty.EXACT) for text in texts)


def _deviating(violations: Violations) -> Iterator[Explanation]:
    """Yield what the subject computes differently from its declaration."""
    yield from violations.deviations.explanations


def _of_lines(violations: Violations, certainty: Certainty) -> Iterator[Explanation]:
    """Yield the first wrong line of a program, if its explanation has this certainty."""
    if violations.line is not None and violations.line.certainty == certainty:
        yield violations.line


def _repeated(violations: Violations) -> Iterator[Explanation]:
    """Yield how draws depend on each other, or differ between calls, if they do."""
    if violations.repeats:
        yield Explanation(violations.repeats, Certainty.IDENTIFIED, DRAWS)


def _fitting(violations: Violations) -> Iterator[Explanation]:
    """Yield causes whose draws fit the subject's.

    If the subject returns outputs alone, the text of a cause asks to check it, because outputs may fit by chance.
    """
    note = " (fits the outputs; return scores to check it)" if violations.outputs_alone else ""
    yield from (Explanation(f"{text}{note}", Certainty.FITTED) for text in violations.fits.everywhere)


def _uneven(violations: Violations) -> Iterator[Explanation]:
    """Yield dependent scores, the first uneven scale of heads, positions or neurons, or outputs that are not normal.

    Differences that may follow from a violation at an earlier stage are skipped.
    """
    samples, laws = violations.calls[0], violations.laws
    root = seed_sequence(violations.seed, "uneven", role="diagnosis/reference")
    for sample in samples[:1] if violations.subject else ():
        with own_arithmetic(), contextlib.suppress(InputError):
            by_index = uneven(sample, partial(exact_sample, sample, root, laws), laws)
            observations = itertools.chain(dependent(sample), by_index, not_normal(sample, laws))
            on = f" (on {sample.layer.describe()})" if len(samples) > 1 else ""
            first = (finding for finding in observations if not precedes(violations.tallies, finding))
            for explanation in itertools.islice(first, 1):
                yield msgspec.structs.replace(explanation, text=f"{explanation.text}{on}")


def _first_stage(violations: Violations) -> Iterator[Explanation]:
    """Yield the first stage of the computation with violated checks."""
    yield from (Explanation(text, Certainty.ESTIMATED) for text in first_stages(violations.tallies))


def _fitting_plainest(violations: Violations) -> Iterator[Explanation]:
    """Yield causes that fit the plainest layer alone."""
    for text in violations.fits.plainest:
        where = f" (fits on {violations.samples[0].layer.describe()} only)"
        yield Explanation(f"{text}{where}", Certainty.FITTED)


def _hinted(violations: Violations) -> Iterator[Explanation]:
    """Yield the usual causes of the violated checks, unless a wrong line of a program is known."""
    yield from () if violations.line else hints(violations.tallies)


_Source = Callable[[Violations], Iterator[Explanation]]
# Sources of explanations, in order. A source is skipped if an earlier explanation excludes its kind of certainty.
_SOURCES: tuple[tuple[Certainty, _Source], ...] = (
    (Certainty.OBSERVED, partial(_unused, on_plainest=True)),
    (Certainty.EXACT, _of_numbers),
    (Certainty.IDENTIFIED, _reproduced),
    (Certainty.EXACT, _deviating),
    (Certainty.EXACT, partial(_of_lines, certainty=Certainty.EXACT)),
    (Certainty.FITTED, _repeated),
    (Certainty.FITTED, _fitting),
    (Certainty.ESTIMATED, _uneven),
    (Certainty.ESTIMATED, _first_stage),
    (Certainty.ESTIMATED, partial(_of_lines, certainty=Certainty.ESTIMATED)),
    (Certainty.FITTED, _fitting_plainest),
    (Certainty.OBSERVED, partial(_unused, on_plainest=False)),
    (Certainty.HINTED, _hinted),
)


def _plainness(layer: AttentionLayer) -> tuple[bool, bool, int, int, str]:
    return layer.seq_len == 1, layer.width < 4, len(features_of(layer)), layer.weight_entries, layer.key
