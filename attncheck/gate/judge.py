"""What may keep a run from passing: gaps, violations, p-values that are not uniform, drift, lost power."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from attncheck.evidence.budget import Budget
from attncheck.evidence.distances import Uniform
from attncheck.evidence.verdicts import Verdict
from attncheck.gate import drift
from attncheck.gate.account import Account, IntArray

# Names that a sentence lists.
_LISTED = 3


@dataclasses.dataclass(frozen=True)
class Finding:
    """One reason not to pass.

    Attributes
    ----------
    part : {"completeness", "verdicts", "uniformity", "drift", "power"}
    verdict : {"violated", "incomplete", "inconclusive"}
        What it makes of the run.
    text : str
        A sentence.
    """

    part: str
    verdict: str
    text: str


def judge_run(run: Account) -> Iterator[Finding]:
    """Iterate over what is wrong with a run, whatever the baseline: completeness first."""
    for text in _gaps(run):
        yield Finding("completeness", "incomplete", text)
    for line_verdict in (Verdict.VIOLATED, Verdict.INCONCLUSIVE):
        number = int(run.having(line_verdict).sum())
        if number:
            ids = [line.id for line in run.notable if line.verdict == line_verdict]
            ids += [line.id for line in run.refuted if line.verdict == line_verdict]
            yield Finding("verdicts", str(line_verdict), f"{_number(number, 'result')} {line_verdict}: {_list(ids)}")
    if not run.examined.any():
        yield Finding("verdicts", "inconclusive", "nothing was examined")
    elif doubt := run.scope.doubt():
        yield Finding("verdicts", "inconclusive", doubt)
    yield from _uniformity(run)


def judge_closing(run: Account, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Iterate over what the run itself concluded and the findings do not say."""
    stated = "consistent" if run.closing is None else run.closing.verdict
    if run.closing is not None and stated not in ("consistent", *(finding.verdict for finding in findings)):
        verdict = stated if stated in ("violated", "incomplete", "inconclusive") else "incomplete"
        yield Finding("verdicts", verdict, f"the run ended {stated}: {'; '.join(run.closing.reasons) or 'no reason'}")


def judge_against(run: Account, baseline: Account, false_alarm: float) -> Iterator[Finding]:
    """Iterate over what a run lacks or shows that its baseline did not."""
    for text in _missing(run, baseline):
        yield Finding("completeness", "incomplete", text)
    for check, changes in drift.by_check(drift.moved(run, baseline, false_alarm)).items():
        first = changes[0]
        yield Finding(
            "drift",
            "violated",
            f"{check}: the effect moved from {first.before:.4g} to {first.now:.4g} (p = {first.p_value:.2g}) on "
            f"{_layers(run, changes)}",
        )
    for check, changes in drift.by_check(drift.weaker(run, baseline)).items():
        yield Finding("power", "incomplete", f"{check}: {_loss(changes[0])} on {_layers(run, changes)}")


def notes_on(run: Account, baseline: Account) -> Iterator[str]:
    """Iterate over differences from the baseline that keep nothing from passing."""
    for name in ("seed", "profile", "false_alarm"):
        before, now = getattr(baseline.head, name), getattr(run.head, name)
        if before != now:
            yield f"{name.replace('_', ' ')} is {now}, {before} in the baseline"
    versions = sorted(
        f"{name} {run.head.versions.get(name, 'missing')} ({version} in the baseline)"
        for name, version in baseline.head.versions.items()
        if run.head.versions.get(name) != version
    )
    if versions:
        yield "versions differ: " + ", ".join(versions)
    new = sorted(_checks(run) - _checks(baseline))
    if new:
        yield f"not in the baseline: {_list(new)}; make a new baseline to hold on to it"
    if baseline.having(Verdict.VIOLATED).any():
        yield "the baseline has violated results; their effects were not compared"


def _gaps(run: Account) -> Iterator[str]:
    if run.closing is None:
        yield "there is no closing line: the run was killed before it ended, or is still going on"
    keys, counts = np.unique(run.keys, return_counts=True)
    kinds = {
        "planned and not reported (skipped or crashed)": np.setdiff1d(run.planned, keys),
        "reported more than once": keys[counts > 1],
        # Which pools there are follows from what was examined.
        "reported without a plan": np.setdiff1d(keys, [*run.planned, *run.pooled]),
    }
    for what, found in kinds.items():
        if found.size:
            yield f"{_number(found.size, 'result')} {what}: {_by_unit(run, found)}"
    if run.closing is not None and run.closing.reported != run.keys.size:
        yield f"the closing line speaks of {run.closing.reported} results, there are {run.keys.size}"


def _missing(run: Account, baseline: Account) -> Iterator[str]:
    if run.head.subject != baseline.head.subject:
        yield f"{run.head.subject} was examined, the baseline is of {baseline.head.subject}"
    if baseline.closing is None:
        yield "the baseline is of a run that did not end; make a new one"
    ours, theirs = _units(run), _units(baseline)
    for name, before in sorted(theirs.items()):
        now = ours[name]
        if not now:
            yield f"the property {name} was not planned; the baseline has it on {_number(before, 'layer')}"
        elif now < before:
            yield f"the property {name} was planned on {_number(now, 'layer')}, on {before} in the baseline"
    gone = sorted(check for check in _checks(baseline) - _checks(run) if ours[check.partition(".")[0]])
    if gone:
        yield f"{_number(len(gone), 'check')} of the baseline not planned: {_list(gone)}"
    lost = drift.unexamined(run, baseline)
    for reason, number in Counter(reason for _, _, reason in lost).items():
        names = sorted({check for check, _, why in lost if why == reason})
        yield f"{_number(number, 'result')} no longer examined ({reason or 'no reason given'}): {_list(names)}"


def _uniformity(run: Account) -> Iterator[Finding]:
    if not run.first_looks:
        return
    test = Uniform().test(list(run.first_looks.values()))
    level = Budget(run.head.false_alarm).ledger_level
    if test.p_value < level:
        yield Finding(
            "uniformity",
            "violated",
            f"the first-look p-values of {test.count} units are not uniform: distance {test.effect:.3g}, "
            f"p = {test.p_value:.2g} below {level:.2g}",
        )


def _units(account: Account) -> Counter[str]:
    """Return how many layers each property was planned on."""
    units = {unit for _, unit in account.names.pairs(account.planned)}
    return Counter(unit.partition("@")[0] for unit in units)


def _checks(account: Account) -> set[str]:
    return {check for check, _ in account.names.pairs(account.planned)}


def _loss(change: drift.Change) -> str:
    now = "nothing" if math.isnan(change.now) else f"{change.now:.4g}"
    return f"{change.what} was {change.before:.4g} and is {now}"


def _layers(run: Account, changes: Sequence[drift.Change]) -> str:
    return _list([run.layers[change.unit] for change in changes])


def _by_unit(run: Account, keys: IntArray) -> str:
    units = dict.fromkeys(unit for _, unit in run.names.pairs(keys))
    return f"{_number(len(units), 'unit')} of work, {_list(units)}"


def _list(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return ", ".join(found[:_LISTED]) + more


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
