"""Diagnosis of a violated run, from fresh draws."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError
from attncheck.diagnosis.causes import sharpest_first, telling
from attncheck.diagnosis.shrink import illustration
from attncheck.diagnosis.sources import Violations, explanations
from attncheck.layers.case import modules_of, read_case
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.records.explanation import Explanation
from attncheck.records.schema import Result, of_pool
from attncheck.runs.tasks import subject_here
from attncheck.subject import Subject, SubjectName


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """Explanations of violations, best first, and a case smaller than all violated ones."""

    explanations: tuple[Explanation, ...] = ()
    smaller: str = ""


@dataclasses.dataclass(frozen=True)
class DiagnosisTask:
    """A subject, which may be given by name, with the results of its run and the run seed."""

    subject: Subject | SubjectName
    results: tuple[Result, ...]
    seed: int

    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis, made in the process where this is called."""
        subject = subject_here(self.subject)
        violations = Violations(self.results, self.seed, subject.weights, subject)
        return Diagnosis(explanations(violations), _smaller(subject, self.results, self.seed))


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
