"""The verdict of a run in one sentence, never better than the run's own."""

from __future__ import annotations

import dataclasses
import itertools

from attncheck._lib.text import chance, counted
from attncheck.diagnosis.causes import diagnosed
from attncheck.evidence.verdicts import Verdict
from attncheck.records.run_record import RunRecord
from attncheck.report.first import SubjectFinding, finding


@dataclasses.dataclass(frozen=True)
class Headline:
    """Verdict, sentence, extent and error budget of a run, and reasons why it is not a pass."""

    verdict: str
    sentence: str
    extent: str
    budget: str
    reasons: tuple[str, ...]


def headline(found: RunRecord) -> Headline:
    """Return the headline of a run."""
    conclusion, wrong = found.conclusion, finding(found)
    # If a cause is known, non-uniform p-values give no further information.
    told = (each for each in conclusion.findings if wrong is None or each.verdict != Verdict.VIOLATED)
    sentence = _sentence(found, conclusion.verdict, wrong)
    return Headline(conclusion.verdict, sentence, _extent(found), _budget(found), tuple(each.text for each in told))


def _sentence(found: RunRecord, verdict: str, wrong: SubjectFinding | None) -> str:
    subject = found.manifest.subject
    if verdict == "consistent":
        words = found.scope.words
        reach = f"{words.capitalize()}: " if words else ""
        return f"{reach}{subject} behaves as the theorem says, as far as {_extent(found)} can show."
    if verdict == "violated":
        if wrong is None:
            return f"{subject} departs from the theorem: the evidence as a whole is not uniform."
        estimated = diagnosed(found.tallies)
        number = estimated.diagnosis[0] if estimated else wrong.smallest.text
        after = f" {number[:1].upper()}{number[1:]}" if wrong.cause.endswith("?") else f"; {number}"
        if _quantity(number) in wrong.cause:
            after = ""
        return f"{subject} departs from the theorem: {wrong.cause}{after}."
    if verdict == "incomplete":
        why = found.closing.failed[0] if found.closing and found.closing.failed else ""
        return f"The run on {subject} is incomplete, which is not a pass{f': {why}' if why else ''}."
    return f"The run on {subject} is inconclusive, which is not a pass."


def _quantity(text: str) -> str:
    """Return the name of the estimated quantity: the text of a result up to its first digit."""
    return "".join(itertools.takewhile(lambda letter: not letter.isdigit(), text)).strip(" -")


def _extent(found: RunRecord) -> str:
    claims = len({tally.claim for tally in found.tallies.values() if tally.examined})
    return (
        f"{counted(found.examined, 'result')} on {counted(claims, 'claim')} and "
        f"{counted(len(found.space.layers), 'case')}"
    )


def _budget(found: RunRecord) -> str:
    false_alarm = chance(found.manifest.false_alarm)
    return (
        f"The probability of a violated verdict for a correct simulator, over the whole run, was set to "
        f"{false_alarm} before the run; one look at one check has level {chance(found.manifest.level)}."
    )
