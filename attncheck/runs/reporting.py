"""Report of a run in progress: writes results as they arrive and concludes at the end."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping

from attncheck._lib.errors import InputError, refuse
from attncheck._lib.text import printable
from attncheck._lib.workers import LostTask, Workers
from attncheck.diagnosis.messages import explain
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.case import Case
from attncheck.records.explanation import Explanation
from attncheck.records.run_record import RunRecord, closing_of, record_of
from attncheck.records.schema import Closing, Result
from attncheck.records.writer import Writer
from attncheck.runs.run import Run
from attncheck.runs.summary import summarize
from attncheck.runs.tasks import Examination, explained
from attncheck.runs.view import RunView

# Maximum number of errors in a record, and maximum length of each.
_FAILURES, _LONGEST = 20, 400


class RunReport:
    """Collector of a run's results, which writes each result to the record at once, and concludes.

    If writing fails, the run continues without its record, and `failure` says why. If the subject is unusable,
    `refused` holds its error, and `traceback` tells where it failed first.
    """

    def __init__(self, run: Run, refused: Examination | None = None) -> None:
        self.run = run
        self.refused = refused
        self.failure = self.traceback = ""
        self.explanations: tuple[Explanation, ...] = ()
        self._failed: set[str] = set()
        self.results: list[Result] = []
        self.record: RunRecord | None = None
        self._started = time.perf_counter()
        if run.record is None:
            refuse("record", None, "is missing", "pass the path of the record")
        self._writer = Writer(run.record)
        self._manifest = run.manifest()
        self._writer.write(self._manifest)
        self.take((), refused.unusable if refused else "")

    def take(self, results: Iterable[Result], *failures: str) -> None:
        """Add results to the report and its record; `failures` are errors of test items that have no results."""
        for result in results:
            self.results.append(result)
            self._write(result)
        self._failed |= {printable(failure, _LONGEST) for failure in failures if failure}

    @property
    def failed(self) -> list[str]:
        """The distinct errors, sorted."""
        return sorted(self._failed)

    def pool(self, workers: Workers, cases: Mapping[str, Case] | None = None) -> tuple[list[Result], list[str]]:
        """Examine pools, and add the results that are not violated to the report.

        Return the violated results, and the errors of the subject in further looks.
        """
        pools, failed = self.run.pool(self.results, workers, cases)
        bad = [result for result in pools if result.verdict == Verdict.VIOLATED]
        self.take([result for result in pools if result not in bad])
        return bad, failed

    def diagnose(self, workers: Workers) -> None:
        """Find causes of violated results.

        If `workers` are other processes, a crash of the subject does not end this process.
        """
        if not self.run.explains or not any(result.verdict == Verdict.VIOLATED for result in self.results):
            return
        subject = self.run.subject
        search = functools.partial(explained, results=tuple(self.results), seed=self.run.seed)
        (outcome,) = workers.results(search, [subject.sent if workers.travels else subject])
        if isinstance(outcome, LostTask):
            from attncheck.diagnosis.sources import Violations, explanations

            problem = f"during the search for a cause, {outcome.reason}; {outcome.remedy}"
            self.take((), f"subject={subject.name}: {problem}")
            outcome = explanations(Violations(tuple(self.results), self.run.seed, subject.weights))
        self.explanations = outcome

    def message(self, result: Result) -> str:
        """Return the explanation of a violated result."""
        return explain([result], self.run.record, subject=self.run.subject.name)

    def finish(self) -> bool:
        """Conclude, write the closing line, and return whether the run passed."""
        conclusion = self.run.conclude(self.results)
        closing = closing_of(
            conclusion,
            self.results,
            seconds=time.perf_counter() - self._started,
            explanations=list(self.explanations),
            failed=self.failed[:_FAILURES],
        )
        self._write(closing)
        self._writer.close()
        self.record = record_of(self.run.record, [self._manifest, *self.results, closing])
        return conclusion.verdict == "consistent" and not self.failure

    def summary(self, color: bool = False, verbose: bool = False) -> str:
        """Return the summary for a terminal."""
        if self.record is None:
            return ""
        if self.refused is not None:
            error = f"ERROR: {self.refused.unusable}. Nothing was examined."
            return "\n".join(filter(None, (error, self.refused.traceback, self.failure)))
        return "\n".join(filter(None, (summarize(RunView(self.record), color, verbose), self.failure)))

    def _write(self, line: Result | Closing) -> None:
        if self.failure:
            return
        try:
            self._writer.write(line)
        except InputError as error:
            self.failure = str(error)
