"""The gate: an exit code for a run, computed from records."""

from __future__ import annotations

import dataclasses
import gzip
import shlex
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from attncheck._lib.errors import InputError, check_number
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.files import write_file
from attncheck.evidence.ledger import Finding, weightiest
from attncheck.gate.judge import judge_against, judge_run, notes_on
from attncheck.records.run_record import RunRecord
from attncheck.records.schema import GZIP
from attncheck.runs.parts import paths_of, read_run
from attncheck.runs.view import RunView


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Whether a run passes, and why not.

    ``findings`` are the reasons why the run does not pass, grouped by the part of the judgement that they belong to,
    such as completeness or drift. ``notes`` do not affect the verdict.
    """

    run: RunRecord
    baseline: RunRecord | None
    baseline_path: Path
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @cached_property
    def view(self) -> RunView:
        """The run, with the texts shown to people."""
        return RunView(self.run)

    @property
    def verdict(self) -> str:
        """Return the most severe verdict of the findings."""
        return weightiest(self.findings)

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of the verdict."""
        return ExitCode.of(self.verdict)


def gate(
    run: Path | Iterable[Path], baseline: Path, false_alarm: float | None = None, *, write: bool = False
) -> Judgement:
    """Decide whether a run may pass.

    Parameters
    ----------
    run : Path or iterable of Path
        The record of the run, or records of its parts.
    baseline : Path
        A committed record (``.jsonl`` or ``.jsonl.gz``). If missing, the run does not pass.
    false_alarm : float, optional
        Probability of reporting drift if nothing changed; by default the run's budget.
    write : bool
        Make the run the new baseline if it is clean.

    Raises
    ------
    InputError
        If a record cannot be read, has another schema, or was edited.
    """
    paths = paths_of(run)
    if any(baseline.exists() and path.exists() and baseline.samefile(path) for path in paths):
        raise InputError(f"baseline={baseline}: is the record of the run itself; pass an earlier one")
    ours = read_run(paths)
    level = ours.manifest.false_alarm if false_alarm is None else false_alarm
    remedy = "pass a probability, e.g. 1e-6"
    check_number("false_alarm", level, remedy, above=0.0, maximum=1.0)
    findings, theirs = [*judge_run(ours)], None
    if write or not baseline.exists():
        more, notes = _written(paths, baseline, write, wrong=bool(findings))
    else:
        theirs = read_run(baseline, "baseline")
        if not theirs.examined_by_id:
            raise InputError(f"baseline={baseline}: has no examined result; make the baseline again")
        more, notes = tuple(judge_against(ours, theirs, level)), tuple(notes_on(ours, theirs))
    parts = ("completeness", "verdicts", "uniformity", "drift", "power")
    ordered = sorted([*findings, *more], key=lambda finding: parts.index(finding.part))
    return Judgement(ours, theirs, baseline, tuple(ordered), notes)


def _written(
    paths: Sequence[Path], baseline: Path, accepted: bool, wrong: bool
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Write the run as the baseline if the user asked for that (`accepted`), unless it has findings (`wrong`).

    Return findings and notes.
    """
    text = "this run cannot become a baseline"
    if accepted and not wrong:
        content = b"".join(map(_content_of, paths))
        write_file(baseline, gzip.compress(content, mtime=0) if ".gz" in baseline.suffixes else content, "baseline")
        return (), (f"{baseline} is now the baseline",)
    if not wrong:
        command = ["attncheck", "gate", *map(str, paths), "--baseline", str(baseline), "--write-baseline"]
        text = f"accept this run with: {shlex.join(command)}"
    missing = "" if baseline.exists() else f"there is no baseline {baseline} yet; "
    return (Finding("completeness", "incomplete", missing + text),), ()


def _content_of(path: Path) -> bytes:
    """Return the complete lines of a record."""
    content = path.read_bytes()
    lines = gzip.decompress(content) if content.startswith(GZIP) else content
    return lines[: lines.rfind(b"\n") + 1]


__all__ = ["Finding", "Judgement", "gate"]
