"""The gate: one exit code for a run, held against a baseline. It reads records and nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from pathlib import Path

from attncheck._lib.errors import InputError, check_number
from attncheck._lib.exit_codes import ExitCode
from attncheck.evidence.ledger import Finding, weightiest
from attncheck.gate.account import Account, Names, read_account
from attncheck.gate.judge import judge_against, judge_run, notes_on


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Whether a run may pass, and why not.

    Attributes
    ----------
    run : Account
    baseline : Account or None
    baseline_path : Path
    findings : tuple of Finding
        Every reason not to pass: completeness first, then verdicts, uniformity, drift and power.
    notes : tuple of str
        What is worth knowing and keeps nothing from passing.
    """

    run: Account
    baseline: Account | None
    baseline_path: Path
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Return the weightiest verdict of the findings: a violation stands whatever else happened."""
        return weightiest(self.findings)

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code that goes with the verdict."""
        return ExitCode.of(self.verdict)


def gate(run: Path, baseline: Path, false_alarm: float | None = None) -> Judgement:
    """Decide whether a run may pass.

    Parameters
    ----------
    run : Path
        The record of the run, by any number of workers.
    baseline : Path
        The record that it is held against; seed, profile and versions may differ. If there is none, the run
        does not pass, and becomes the candidate for one if nothing else is wrong with it.
    false_alarm : float, optional
        The chance that unchanged work is called drifted; the budget of the run by default.

    Returns
    -------
    Judgement

    Raises
    ------
    InputError
        If a record cannot be read, is of another schema, or was edited.
    """
    names = Names()
    if baseline.exists() and run.exists() and baseline.samefile(run):
        raise InputError(f"baseline={baseline}: is the record of the run itself; pass one that was kept from before")
    ours = read_account(run, names)
    level = ours.head.false_alarm if false_alarm is None else false_alarm
    remedy = "pass a chance, e.g. 1e-6"
    check_number("false_alarm", level, remedy, above=0.0, maximum=1.0)
    findings = [*judge_run(ours)]
    if not baseline.exists():
        findings.append(_without_baseline(run, baseline, findings))
        return Judgement(ours, None, baseline, _ordered(findings), ())
    theirs = read_account(baseline, names)
    findings += judge_against(ours, theirs, level)
    return Judgement(ours, theirs, baseline, _ordered(findings), tuple(notes_on(ours, theirs)))


def _ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    parts = ("completeness", "verdicts", "uniformity", "drift", "power")
    return tuple(sorted(findings, key=lambda finding: parts.index(finding.part)))


def _without_baseline(run: Path, baseline: Path, findings: list[Finding]) -> Finding:
    text = f"there is no baseline {baseline}"
    if findings:
        return Finding("completeness", "incomplete", f"{text}; this run cannot become one")
    candidate = baseline.with_name(f"{baseline.name}.candidate")
    _copy(run, candidate)
    return Finding("completeness", "incomplete", f"{text}; look at {candidate} and rename it to accept this run as one")


def _copy(source: Path, target: Path) -> None:
    """Copy a record; its new name appears with the last byte."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, partial)
        os.replace(partial, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        remedy = "choose another path for the baseline"
        raise InputError(f"baseline={target}: cannot be written ({error.strerror}); {remedy}") from None


__all__ = ["Finding", "Judgement", "gate"]
