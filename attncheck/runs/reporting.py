"""A run while it goes on: results are written down as they come in, and concluded at the end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor
from typing import Any

import msgspec

from attncheck._lib.errors import InputError, refuse
from attncheck._lib.processes import spread
from attncheck._lib.words import printable
from attncheck.diagnosis.messages import explain
from attncheck.evidence.ledger import Conclusion, Finding
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.case import Case
from attncheck.records.schema import Closing, Manifest, Result, Theory, run_digest
from attncheck.records.writer import Writer
from attncheck.runs.causes import causes_of
from attncheck.runs.run import Run
from attncheck.runs.summary import summarize

# Errors of a subject that a record keeps, and how much of each.
_FAILURES, _LONGEST = 20, 400


class RunReport:
    """Takes results as they come in, in any order, writes them down at once, and concludes.

    Where the record can no longer be written, the run goes on, its record ends there, and `failure` says why.

    Parameters
    ----------
    run : Run
    manifest : Manifest, optional
        The first line, where the results were made before.
    """

    def __init__(self, run: Run, manifest: Manifest | None = None) -> None:
        self.run = run
        self.failure = ""
        self.causes: list[str] = []
        self._failed: set[str] = set()
        self.results: list[Result] = []
        self.theory: list[Theory] = []
        self.conclusion: Conclusion | None = None
        self._started = time.perf_counter()
        if run.record is None:
            refuse("record", None, "is missing", "pass the path that the record goes to")
        self._writer = Writer(run.record)
        self._writer.write(manifest or run.manifest())

    def take(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Take the results of one unit."""
        for fields in results:
            result = msgspec.convert(fields, Result)
            self.results.append(result)
            self._write(result)

    def take_theory(self, fields: Mapping[str, Any]) -> None:
        """Take one statement of the theory."""
        statement = msgspec.convert(fields, Theory)
        self.theory.append(statement)
        self._write(statement)

    def take_failure(self, message: str) -> None:
        """Take what was wrong with the subject where a unit has no results; the record says it at its end."""
        if message:
            self._failed.add(printable(message, _LONGEST))

    @property
    def failed(self) -> list[str]:
        """What was wrong where results are missing, each once."""
        return sorted(self._failed)

    def pool(
        self, processes: int, cases: Mapping[str, Case] | None = None
    ) -> tuple[list[tuple[dict[str, Any], str]], list[str]]:
        """Examine the pools and take their results, but for violated ones: return these, each with its message.

        What was wrong with further looks comes second: the pools concerned have no results.

        Parameters
        ----------
        processes : int
            How many processes share further looks; 1 for this one.
        cases : mapping of str to Case, optional
            Cases by key, where they are at hand.
        """
        try:
            with spread(processes) as each:
                pools, failed = self.run.pool(self.results, each, cases)
        except BrokenExecutor:
            problem = "a process died in a further look at pools; mend the simulator"
            return [], [f"subject={self.run.subject.name}: {problem}"]
        bad = [result for result in pools if result.verdict == Verdict.VIOLATED]
        self.take([msgspec.to_builtins(result) for result in pools if result not in bad])
        told = [
            (msgspec.to_builtins(result), explain([result], self.run.record, subject=self.run.subject.name))
            for result in bad
        ]
        return told, failed

    def finish(self, *more: Finding) -> bool:
        """Conclude, write the closing line, and return whether the run is consistent and written down.

        `more` is why it is no pass beside what its results say.
        """
        found = self.run.conclude(self.results, self.theory)
        self.conclusion = dataclasses.replace(found, findings=(*found.findings, *more))
        if self.run.explains:
            self.causes = causes_of(self.run.subject, self.results, self.run.seed)
        closing = Closing(
            digest=run_digest([*self.results, *self.theory]),
            verdict=self.conclusion.verdict,
            reasons=list(self.conclusion.reasons),
            reported=len(self.results) + len(self.theory),
            seconds=time.perf_counter() - self._started,
            causes=self.causes,
            failed=self.failed[:_FAILURES],
        )
        self._write(closing)
        self._writer.close()
        return self.conclusion.verdict == "consistent" and not self.failure

    def summary(self, color: bool = False, verbose: bool = False) -> str:
        """Return what the run comes to, for a terminal."""
        if self.conclusion is None:
            return ""
        text = summarize(self.run, self.results, self.conclusion, color, self.theory, verbose, causes=self.causes)
        return f"{text}\n{self.failure}" if self.failure else text

    def _write(self, line: Result | Theory | Closing) -> None:
        if self.failure:
            return
        try:
            self._writer.write(line)
        except InputError as error:
            self.failure = str(error)
