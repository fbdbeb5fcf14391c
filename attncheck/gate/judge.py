"""Reasons not to pass a run: its own results, and losses compared with its baseline."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from attncheck._lib.names import grouped
from attncheck._lib.text import chance, counted, first_few
from attncheck.checks.claims import NOT_EXPOSED
from attncheck.evidence.ledger import Finding
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.names import layer_name
from attncheck.records import drift
from attncheck.records.run_record import RunRecord
from attncheck.records.schema import Result, of_pool

_RENEW = "make a new one with --write-baseline"
# Settings that determine the sizes of looks.
_SETTINGS = ("profile", "false_alarm")


def judge_run(run: RunRecord) -> Iterator[Finding]:
    """Iterate over the findings in a run's own record, before a comparison with its baseline."""
    yield from run.conclusion.findings
    if run.closing is not None and run.closing.failed:
        yield Finding("completeness", "incomplete", run.closing.failed[0])


def judge_against(run: RunRecord, baseline: RunRecord, false_alarm: float) -> Iterator[Finding]:
    """Iterate over findings from a comparison with the baseline: missing results, drift, and lost sensitivity."""
    for text in _missing(run, baseline):
        yield Finding("completeness", "incomplete", text)
    for check, changes in grouped(
        drift.changed_results(run, baseline, false_alarm), lambda change: change.result.check
    ).items():
        first = changes[0]
        effects = f"from {first.before:.4g} to {first.now:.4g} (p = {chance(first.p_value)})"
        yield Finding("drift", "violated", f"{check}: the effect moved {effects} on {_layers(changes)}")
    if _comparable(run, baseline):
        yield from _weaker(run, baseline)


def _weaker(run: RunRecord, baseline: RunRecord) -> Iterator[Finding]:
    """Iterate over findings on losses of sensitivity; checks with the same loss share a finding."""
    by_loss: dict[str, list[drift.Change]] = defaultdict(list)
    for changes in grouped(drift.weaker(run, baseline), lambda change: change.result.check).values():
        by_loss[_loss(changes[0])] += changes
    for loss, changes in by_loss.items():
        checks = first_few(dict.fromkeys(change.result.check for change in changes))
        items = {change.result.item: change for change in changes}
        yield Finding("power", "incomplete", f"{checks}: {loss} on {_layers(list(items.values()))}")


def notes_on(run: RunRecord, baseline: RunRecord) -> Iterator[str]:
    """Iterate over differences from the baseline that do not affect the verdict."""
    for name in ("seed", "min_examined"):
        before, now = getattr(baseline.manifest, name), getattr(run.manifest, name)
        if before != now:
            yield f"{name.replace('_', ' ')} is {now}, {before} in the baseline"
    versions = sorted(
        f"{name} {run.manifest.versions.get(name, 'missing')} ({version} in the baseline)"
        for name, version in baseline.manifest.versions.items()
        if run.manifest.versions.get(name) != version
    )
    if versions:
        yield "versions differ: " + ", ".join(versions)
    examined = {result.check for result in run.results if result.verdict != Verdict.NOT_EXAMINED}
    new = sorted(examined - {result.check for result in _single(baseline)})
    if new:
        yield f"not in the baseline: {first_few(new)}; {_RENEW} to keep it"
    if baseline.count(Verdict.VIOLATED):
        yield "the baseline has violated results; their effects were not compared"


def _missing(run: RunRecord, baseline: RunRecord) -> Iterator[str]:
    if run.manifest.subject != baseline.manifest.subject:
        yield f"{run.manifest.subject} was examined, the baseline is of {baseline.manifest.subject}"
    if baseline.closing is None or baseline.closing.verdict == "incomplete":
        yield f"baseline={baseline.path}: belongs to an unfinished or incomplete run; {_RENEW}"
    if _comparable(run, baseline):
        yield from _missing_layers(run, baseline)
        yield from _missing_results(run, baseline)
    for name in _SETTINGS:
        now, before = getattr(run.manifest, name), getattr(baseline.manifest, name)
        if now != before:
            remedy = f"run with --{name.replace('_', '-')} {before}, or {_RENEW}"
            yield f"{name}={now}: the baseline has the {name.replace('_', ' ')} {before}; {remedy}"


def _single(baseline: RunRecord) -> list[Result]:
    """Return the examined results of a baseline on single cases."""
    return [result for result in baseline.examined_by_id.values() if not of_pool(result)]


def _comparable(run: RunRecord, baseline: RunRecord) -> bool:
    """Return whether both runs have the same settings, and so the same cases and sample sizes."""
    return all(getattr(run.manifest, name) == getattr(baseline.manifest, name) for name in _SETTINGS)


def _missing_layers(run: RunRecord, baseline: RunRecord) -> Iterator[str]:
    """Iterate over texts on properties that are planned on fewer cases than in the baseline.

    Properties with the same numbers of cases share a text.
    """
    planned, examined = set(run.planned.values()), {result.item for result in _single(baseline)}
    fixed = set(baseline.manifest.fixed)
    required = {item for item in examined if item.partition("@")[2] in fixed}
    now, before, lasting, retained = map(_by_property, (planned, examined, required, required & planned))
    problems: dict[str, list[str]] = defaultdict(list)
    for name, number in sorted(before.items()):
        if not now[name]:
            problems[f"not planned; the baseline examined {counted(number, 'layer')}"].append(name)
        elif retained[name] < lasting[name]:
            problems[f"planned on {retained[name]} of the {lasting[name]} fixed layers of the baseline"].append(name)
        elif now[name] < number:
            problems[f"planned on {counted(now[name], 'layer')}, the baseline examined {number}"].append(name)
    for problem, names in problems.items():
        yield f"{'property' if len(names) == 1 else 'properties'} {first_few(names)}: {problem}"


def _missing_results(run: RunRecord, baseline: RunRecord) -> Iterator[str]:
    planned_counts = _by_property(set(run.planned.values()))
    gone = {result.check for result in _single(baseline)} - {id.partition("@")[0] for id in run.planned}
    names = sorted(check for check in gone if planned_counts[check.partition(".")[0]])
    if names:
        yield f"{counted(len(names), 'check')} of the baseline not planned: {first_few(names)}"
    lost: dict[str, list[str]] = defaultdict(list)
    fields: set[str] = set()
    for result in drift.unexamined(run, baseline):
        unexposed = result.reason.startswith(NOT_EXPOSED)
        fields.update(result.reason.removeprefix(NOT_EXPOSED).split(", ") if unexposed else ())
        lost[NOT_EXPOSED if unexposed else result.reason].append(result.check)
    for reason, checks in sorted(lost.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        why = reason + ", ".join(sorted(fields)) if reason == NOT_EXPOSED else reason or "no reason given"
        yield f"{counted(len(checks), 'result')} no longer examined ({why}): {first_few(dict.fromkeys(checks))}"


def _by_property(items: Iterable[str]) -> Counter[str]:
    return Counter(item.partition("@")[0] for item in items)


def _loss(change: drift.Change) -> str:
    now = "nothing" if math.isnan(change.now) else f"{change.now:.4g}"
    return f"{change.what} was {change.before:.4g} and is {now}"


def _layers(changes: Sequence[drift.Change]) -> str:
    return first_few(dict.fromkeys(layer_name(change.result.case) for change in changes))
