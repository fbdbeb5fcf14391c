"""Tasks that any process can run: to examine the test items of one case, or to explain violations."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError, foreign_traceback
from attncheck._lib.text import inert
from attncheck.checks.registered import load_checks
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.case import Case
from attncheck.looks.examine import run_items
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.looks.result import violated
from attncheck.records.explanation import Explanation
from attncheck.records.schema import Result
from attncheck.subject import StoppedCall, Subject, SubjectName
from attncheck.subject.guard import guarded


def explained(subject: Subject | SubjectName, results: Sequence[Result], seed: int) -> tuple[Explanation, ...]:
    """Return explanations of the violations of a run, best first; the subject is called in this process."""
    from attncheck.diagnosis.sources import Violations, explanations  # most runs have no violations

    subject = subject_here(subject)
    return explanations(Violations(tuple(results), seed, subject.weights, subject))


@dataclasses.dataclass(frozen=True)
class CaseTask:
    """Test items of one case, which are examined on the same draws.

    If the subject is given by name, it is imported where the task runs; so are the modules of registered checks.
    """

    subject: Subject | SubjectName
    seed: int
    items: tuple[Item, ...]
    cost: Cost
    explains: bool
    modules: tuple[str, ...] = ()

    @property
    def case(self) -> Case:
        """The case (layer or program) that all test items of the task share."""
        return self.items[0].case

    @property
    def entries(self) -> int:
        """Approximate cost of the task: the number of array entries that are drawn, plus those that checks read."""
        checks = sum(len(item.checks) for item in self.items)
        return self.cost.affordable * (self.case.weight_entries + checks * self.case.stored_entries)

    def results(self) -> list[Result]:
        """Return one result per check; raises InputError for an unusable subject."""
        load_checks(self.modules)
        subject = subject_here(self.subject)
        with own_arithmetic():
            results = run_items(self.items, subject, self.seed, self.cost)
            if self.explains and violated(results):
                results = self._explained(results, subject)
        return results

    def _explained(self, results: Sequence[Result], subject: Subject) -> list[Result]:
        """Add a diagnosis to violated results."""
        from attncheck.diagnosis.differences import diagnose  # most runs have no violations

        diagnosis: list[str] = []
        with contextlib.suppress(InputError):  # if the subject fails here, results have no diagnosis
            diagnosis = diagnose(self.items[0], subject, self.seed, results)
        violation = str(Verdict.VIOLATED)
        return [
            msgspec.structs.replace(result, diagnosis=diagnosis) if result.verdict == violation else result
            for result in results
        ]


class Examination(NamedTuple):
    """The results of a test item, or the error of the subject with its traceback.

    `stopped` is True if a call of the subject exceeded its time limit and was stopped, so that no further call is worth
    the time.
    """

    results: list[Result]
    unusable: str = ""
    traceback: str = ""
    stopped: bool = False

    @classmethod
    def failed(cls, error: InputError) -> Examination:
        """Return the examination for an error of the subject, without control characters in its texts."""
        traceback = "\n".join(map(inert, foreign_traceback(error).splitlines()))
        return cls([], inert(str(error)), traceback, isinstance(error, StoppedCall))


def examine(task: CaseTask) -> dict[str, Examination]:
    """Return the examination of each test item of a task, by id.

    If the task fails, each item is tried alone, unless a call was stopped. If every item succeeds alone, the failure is
    intermittent, and all items get the error of the task.
    """
    try:
        results = task.results()
    except InputError as error:
        one = Examination.failed(error)
        failed = dict.fromkeys((item.id for item in task.items), one)
        if len(task.items) == 1 or one.stopped:
            return failed
        alone = (dataclasses.replace(task, items=(item,)) for item in task.items)
        examinations = {id: examined for part in alone for id, examined in examine(part).items()}
        return examinations if any(examined.unusable for examined in examinations.values()) else failed
    return {item.id: Examination([result for result in results if result.item == item.id]) for item in task.items}


def subject_here(subject: Subject | SubjectName) -> Subject:
    """Return a subject for use in this process, imported if it is given by name."""
    return _named(subject) if isinstance(subject, SubjectName) else subject


@functools.lru_cache(maxsize=2)
def _named(name: SubjectName) -> Subject:
    """Return a subject by name; cached, because creating a subject may include an inspection."""
    with guarded(name.timeout):
        return Subject.of(name)
