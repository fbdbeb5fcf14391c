"""The verdict of a run in a sentence: recomputed from its results, and never better than the run's own."""

from __future__ import annotations

import dataclasses

from attncheck._lib.words import chance, counted
from attncheck.checks.claims import CLAIMS
from attncheck.evidence.verdicts import Verdict
from attncheck.records.gather import Gathered


@dataclasses.dataclass(frozen=True)
class Headline:
    """What a reader should know first.

    Attributes
    ----------
    verdict : str
        "violated", "incomplete", "inconclusive" or "consistent".
    sentence : str
    budget : str
        What the verdict may be wrong by.
    reasons : tuple of str
        Why it is not a pass.
    """

    verdict: str
    sentence: str
    budget: str
    reasons: tuple[str, ...]


def headline(found: Gathered) -> Headline:
    """Return the verdict on a run."""
    conclusion = found.conclusion
    return Headline(conclusion.verdict, _sentence(found, conclusion.verdict), _budget(found), conclusion.reasons)


def unseen_claims(found: Gathered) -> list[str]:
    """Return the names of claims that no result of the run examined."""
    seen = {tally.claim for tally in found.tallies.values() if tally.examined}
    return [name for name in CLAIMS if name not in seen]


def _sentence(found: Gathered, verdict: str) -> str:
    claims = len({tally.claim for tally in found.tallies.values() if tally.examined})
    extent = (
        f"{counted(found.examined, 'result')} on {counted(claims, 'claim')} and "
        f"{counted(len(set().union(*found.claim_layers.values())), 'configuration')}"
    )
    subject = found.manifest.subject
    if verdict == "consistent":
        words = found.scope.words
        reach = f"{words.capitalize()}: " if words else ""
        return f"{reach}{subject} behaves as the theorem says, as far as {extent} can show."
    if verdict == "violated":
        return f"{subject} departs from the theorem: {extent} were examined, and {_what(found)}."
    if verdict == "incomplete":
        return f"The run on {subject} is incomplete, which is not a pass: {extent} were examined of what was planned."
    return f"The run on {subject} settles nothing, which is not a pass: {extent} were examined."


def _what(found: Gathered) -> str:
    count = found.count(Verdict.VIOLATED)
    if count:
        return f"{count:,} {'is' if count == 1 else 'are'} violated"
    if any(each.verdict == Verdict.VIOLATED for each in found.theory):
        return "a statement of attncheck's own theory does not hold"
    return "the evidence as a whole is not uniform"


def _budget(found: Gathered) -> str:
    false_alarm = chance(found.manifest.false_alarm)
    return (
        f"The chance that a right simulator is called violated anywhere in this run was set to {false_alarm} before "
        f"the run; one look at one check has level {chance(found.manifest.level)}."
    )
