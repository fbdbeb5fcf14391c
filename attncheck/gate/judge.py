"""What may keep a run from passing: what it comes to by itself, and what it lacks beside its baseline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from attncheck.evidence.ledger import Finding
from attncheck.evidence.verdicts import Verdict
from attncheck.gate import drift
from attncheck.gate.account import Account, IntArray

# Names that a sentence lists.
_LISTED = 3


def judge_run(run: Account) -> Iterator[Finding]:
    """Iterate over what is wrong with a run, whatever the baseline."""
    yield from run.conclusion.findings
    if run.closing is not None and run.closing.reported != run.keys.size:
        text = f"the closing line speaks of {run.closing.reported} results, there are {run.keys.size}"
        yield Finding("completeness", "incomplete", text)


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


def _missing(run: Account, baseline: Account) -> Iterator[str]:
    if run.head.subject != baseline.head.subject:
        yield f"{run.head.subject} was examined, the baseline is of {baseline.head.subject}"
    if baseline.closing is None:
        yield "the baseline is of a run that did not end; make a new one"
    ours, theirs, examined = _units(run, run.planned), _units(baseline, baseline.planned), _examined_units(baseline)
    for name, before in sorted(theirs.items()):
        # How many layers stand in for those that a subject refuses is another number for another seed.
        owed = before if run.head.seed == baseline.head.seed else examined[name]
        if not ours[name]:
            yield f"the property {name} was not planned; the baseline has it on {_number(before, 'layer')}"
        elif ours[name] < owed:
            yield f"the property {name} was planned on {_number(ours[name], 'layer')}, on {owed} in the baseline"
    gone = sorted(check for check in _checks(baseline) - _checks(run) if ours[check.partition(".")[0]])
    if gone:
        yield f"{_number(len(gone), 'check')} of the baseline not planned: {_list(gone)}"
    lost = drift.unexamined(run, baseline)
    for reason, number in Counter(reason for _, _, reason in lost).items():
        names = sorted({check for check, _, why in lost if why == reason})
        yield f"{_number(number, 'result')} no longer examined ({reason or 'no reason given'}): {_list(names)}"


def _units(account: Account, keys: IntArray) -> Counter[str]:
    """Return on how many layers each property is among results."""
    units = {unit for _, unit in account.names.pairs(keys)}
    return Counter(unit.partition("@")[0] for unit in units)


def _examined_units(account: Account) -> Counter[str]:
    """Return on how many layers anything of each property was examined."""
    return _units(account, np.intersect1d(account.keys[account.examined], account.planned))


def _checks(account: Account) -> set[str]:
    return {check for check, _ in account.names.pairs(account.planned)}


def _loss(change: drift.Change) -> str:
    now = "nothing" if math.isnan(change.now) else f"{change.now:.4g}"
    return f"{change.what} was {change.before:.4g} and is {now}"


def _layers(run: Account, changes: Sequence[drift.Change]) -> str:
    return _list([run.layers[change.unit] for change in changes])


def _list(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return ", ".join(found[:_LISTED]) + more


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
