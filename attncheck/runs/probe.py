"""Probe calls before a run: they reject a subject that fails on all probed cases, or whose `supports` fails."""

from __future__ import annotations

from collections.abc import Sequence

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError
from attncheck._lib.streams import stream
from attncheck._lib.workers import LostTask, Workers
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case
from attncheck.runs.run import Run
from attncheck.runs.tasks import Examination, subject_here
from attncheck.subject import Subject, SubjectName

_Probe = tuple[Subject | SubjectName, int, Case]


def refusal(run: Run, workers: Workers) -> Examination | None:
    """Return the first failure if the subject fails on all of up to three planned cases, or if a call is stopped.

    It is also a failure if the subject's declaration of supported layers fails on a planned layer.
    """
    first = None
    subject = run.subject.sent if workers.travels else run.subject
    if run.subject.declares_support:
        (outcome,) = workers.results(declared, [(subject, run.planned_layers)])
        if not isinstance(outcome, LostTask) and outcome.unusable:
            return outcome
    for case in _probed(run):
        (outcome,) = workers.results(probe, [(subject, run.seed, case)])
        if isinstance(outcome, LostTask):
            problem = f"during a probe call on {case.describe()}, {outcome.reason}; {outcome.remedy}"
            outcome = Examination([], f"subject={run.subject.name}: {problem}", stopped=outcome.hung)
        if not outcome.unusable:
            return None
        first = first or outcome
        if outcome.stopped:
            break
    return first


def _probed(run: Run) -> list[Case]:
    """Return three fixed cases that the subject supports: the first, the cheapest and the most expensive one."""
    cases = [case for case in run.fixed_cases if not _declines(run.subject, case)]
    by_cost = sorted(cases, key=lambda case: case.weight_entries)
    return list(dict.fromkeys([*cases[:1], *by_cost[:1], *by_cost[-1:]]))


def _declines(subject: Subject, case: Case) -> bool:
    """Return whether a subject declares a case unsupported; False if the declaration raises an error."""
    try:
        return bool(subject.reason_unsupported(case))
    except InputError:
        return False


def declared(task: tuple[Subject | SubjectName, Sequence[AttentionLayer]]) -> Examination:
    """Ask a subject which of the layers it supports, and return the first error, if there is one."""
    named, layers = task
    try:
        with own_arithmetic():
            subject = subject_here(named)
            for layer in layers:
                subject.reason_unsupported(layer)
    except InputError as error:
        examination = Examination.failed(error)
        text = examination.unusable.replace(f"subject={named.name}:", f"{named.name}.supports:", 1)
        return examination._replace(unusable=text)
    return Examination([])


def probe(task: _Probe) -> Examination:
    """Call the subject on a case, as a test item does before its draws are planned; return the error if it fails."""
    named, seed, case = task
    try:
        with own_arithmetic():
            subject = subject_here(named)
            if not subject.reason_unsupported(case):
                subject.probe(case, stream(seed, "probe", case.key))
    except InputError as error:
        return Examination.failed(error)
    return Examination([])
