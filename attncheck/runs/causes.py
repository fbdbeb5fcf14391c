"""What is most likely wrong in a violated run: a fit to fresh draws of a few violated layers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.sample import Sample
from attncheck.diagnosis.fit import LAYERS, draws_of, fitted, told
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.attention import AttentionLayer
from attncheck.records.schema import Result
from attncheck.simulators.weights import WeightLaws
from attncheck.subject import Subject


def causes_of(subject: Subject, results: Iterable[Result], seed: int) -> list[str]:
    """Return what is most likely wrong with a subject, in sentences, the first first.

    Nothing where no single layer is violated, or where the subject fails. Streams are the diagnosis' own: no digit of
    a run depends on it.

    Parameters
    ----------
    subject : Subject
    results : iterable of Result
    seed : int
        The run seed.
    """
    samples: list[Sample] = []
    for layer in _telling(results):
        rng = stream(seed, "fit", layer.key, role="diagnosis")
        try:
            with own_arithmetic():
                samples.append(subject.draw(layer, draws_of(layer, _exposed(samples)), rng))
        except InputError:  # a subject that now and then fails keeps its verdict
            continue
    return causes_of_samples(samples, seed, subject.weights)


def causes_of_samples(samples: Sequence[Sample], seed: int, laws: WeightLaws) -> list[str]:
    """Return what is most likely wrong with samples of violated layers."""
    exposed = samples[0].exposed if samples else frozenset()
    alike = [_cut(each) for each in samples if each.exposed == exposed and each.score_entries is None][:LAYERS]
    if not alike:
        return []
    with own_arithmetic(), contextlib.suppress(InputError):  # a candidate that cannot be drawn there
        return told(*fitted(alike, seed_sequence(seed, "fit", role="diagnosis/candidates"), laws))
    return []


def _cut(sample: Sample) -> Sample:
    return sample.first(draws_of(sample.layer, sample.exposed))


def _telling(results: Iterable[Result]) -> list[AttentionLayer]:
    """Return violated layers that tell causes apart at a small cost: several positions and heads, few entries."""
    bad = {str(each.case): each.case for each in results if each.verdict == Verdict.VIOLATED}
    layers = [AttentionLayer.from_dict(case) for case in bad.values() if "program" not in case and "pool" not in case]
    ordered = sorted(layers, key=lambda each: (each.seq_len == 1, each.width < 4, each.weight_entries, each.key))
    return ordered[:LAYERS]


def _exposed(samples: Sequence[Sample]) -> frozenset[str]:
    return samples[0].exposed if samples else frozenset({"outputs", "scores"})
