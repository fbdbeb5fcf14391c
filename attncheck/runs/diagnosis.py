"""Diagnosis of a violated run, from fresh draws."""

from __future__ import annotations

from collections.abc import Sequence

from attncheck.diagnosis.sources import Violations, explanations
from attncheck.records.explanation import Explanation
from attncheck.records.schema import Result
from attncheck.runs.tasks import subject_here
from attncheck.subject import Subject, SubjectName


def explained(subject: Subject | SubjectName, results: Sequence[Result], seed: int) -> tuple[Explanation, ...]:
    """Return explanations of the violations of a run, best first, sought in the process where this is called."""
    subject = subject_here(subject)
    return explanations(Violations(tuple(results), seed, subject.weights, subject))
