"""The verdict of a run in a sentence: recomputed from its results, and never better than the run's own."""

from __future__ import annotations

import dataclasses

from attncheck._lib.words import chance, counted, number
from attncheck.checks.claims import CLAIMS
from attncheck.diagnosis.causes import violated
from attncheck.evidence.budget import Budget
from attncheck.evidence.verdicts import Verdict
from attncheck.records.gather import Gathered
from attncheck.records.scope import Scope

#: Overall verdicts, the worst first.
ORDER = ("violated", "incomplete", "inconclusive", "consistent")


@dataclasses.dataclass(frozen=True)
class Headline:
    """What a reader should know first.

    Attributes
    ----------
    verdict : str
        One of `ORDER`.
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
    reasons = _reasons(found)
    verdict = next((name for name in ORDER if reasons.get(name)), "consistent")
    if found.closing is not None and found.closing.verdict in ORDER:
        verdict = min(verdict, found.closing.verdict, key=ORDER.index)
    own = [reason for name in ORDER for reason in reasons.get(name, [])]
    told = own or (list(found.closing.reasons) if found.closing is not None else [])
    return Headline(verdict, _sentence(found, verdict), _budget(found), tuple(told))


def unseen_claims(found: Gathered) -> list[str]:
    """Return the names of claims that no result of the run examined."""
    seen = {tally.claim for tally in found.tallies.values() if tally.examined}
    return [name for name in CLAIMS if name not in seen]


def scope_of(found: Gathered) -> Scope:
    """Return how far a run reaches."""
    tallies = found.tallies.items()
    return Scope.of({name: t.examined for name, t in tallies}, {name: t.verdicts.total() for name, t in tallies})


def _reasons(found: Gathered) -> dict[str, list[str]]:
    """Return why a run is not consistent, by the verdict that follows."""
    return {
        "violated": [*_violations(found), *_not_uniform(found)],
        "incomplete": _gaps(found),
        "inconclusive": _doubts(found),
    }


def _violations(found: Gathered) -> list[str]:
    refuted = [each.id for each in found.theory if each.verdict == Verdict.VIOLATED]
    theory = [f"{counted(len(refuted), 'statement')} of the theory violated: {', '.join(refuted[:6])}"] * bool(refuted)
    pools = [pool.id for pool in found.pools if pool.verdict == Verdict.VIOLATED]
    named = f"{', '.join(pools[:6])}{', …' if len(pools) > 6 else ''}"
    theory = [f"{counted(len(pools), 'pool')} of configurations violated: {named}"] * bool(pools) + theory
    names = [tally.name for tally in violated(found.tallies)]
    count = found.count(Verdict.VIOLATED) - len(pools)
    if not count:
        return theory
    shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
    return [f"{counted(count, 'result')} of {counted(len(names), 'check')} violated: {shown}", *theory]


def _not_uniform(found: Gathered) -> list[str]:
    test, level = found.uniformity, Budget(found.manifest.false_alarm).ledger_level
    if test is None or test.p_value >= level:
        return []
    return [
        f"the first-look p-values of {counted(test.count, 'unit')} are not uniform: distance {number(test.effect)}, "
        f"p = {chance(test.p_value)}, below {chance(level)}"
    ]


def _gaps(found: Gathered) -> list[str]:
    reasons = [] if found.closing is not None else ["the record has no closing line: the run did not finish"]
    for count, noun, key in (
        (found.missing, "planned result", "missing"),
        (found.duplicated, "repeated result", "duplicated"),
        (found.unplanned, "unplanned result", "unplanned"),
    ):
        if count:
            names = found.named[key][:5]
            lost = "missing: " if key == "missing" else ""
            reasons.append(f"{counted(count, noun)}, {lost}{', '.join(names)}{', …' if count > len(names) else ''}")
    return reasons


def _doubts(found: Gathered) -> list[str]:
    if not found.examined:
        return ["nothing was examined"]
    count, doubt = found.count(Verdict.INCONCLUSIVE), scope_of(found).doubt()
    apart = f"{counted(count, 'result')} inconclusive: the looks disagree and no fresh draws can be had"
    return [*([apart] * bool(count)), *([doubt] * bool(doubt))]


def _sentence(found: Gathered, verdict: str) -> str:
    claims = len({tally.claim for tally in found.tallies.values() if tally.examined})
    extent = (
        f"{counted(found.examined, 'result')} on {counted(claims, 'claim')} and "
        f"{counted(len(set().union(*found.claim_layers.values())), 'configuration')}"
    )
    subject = found.manifest.subject
    if verdict == "consistent":
        words = scope_of(found).words
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
