"""Diagnosis of a violated run, from fresh draws."""

from __future__ import annotations

import dataclasses

from attncheck.diagnosis.sources import Violations, explanations
from attncheck.records.explanation import Explanation
from attncheck.records.schema import Result
from attncheck.runs.tasks import subject_here
from attncheck.subject import Subject, SubjectName


@dataclasses.dataclass(frozen=True)
class DiagnosisTask:
    """A subject, which may be given by name, with the results of its run and the run seed."""

    subject: Subject | SubjectName
    results: tuple[Result, ...]
    seed: int

    def explanations(self) -> tuple[Explanation, ...]:
        """Return explanations of the violations, best first, sought in the process where this is called."""
        subject = subject_here(self.subject)
        return explanations(Violations(self.results, self.seed, subject.weights, subject))
