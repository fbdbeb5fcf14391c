"""Merge the records of all shards, and take further looks that a merged record still needs."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from attncheck._lib.errors import InputError, naming, refuse
from attncheck._lib.executors import TaskExecutor
from attncheck._lib.imports import source_of
from attncheck._lib.streams import digest
from attncheck._lib.text import counted, listed
from attncheck.checks.registered import is_in, registrations
from attncheck.checks.registry import EVERY_PROPERTY, PROGRAM_PROPERTIES, PROPERTIES
from attncheck.evidence.budget import Budget
from attncheck.evidence.ledger import Finding
from attncheck.layers.case import Case, read_case
from attncheck.looks.profiles import profile_named
from attncheck.records.manifest import installed_versions
from attncheck.records.run_record import RunRecord
from attncheck.records.schema import Manifest, Result, StatementResult, case_key
from attncheck.runs.causes import Diagnosis
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run
from attncheck.subject import DEFAULT_SUBJECT, Subject

#: Why a merged run with suspicious pools is incomplete.
OWED = "further looks at suspicious pools are owed: attncheck run --owed takes them"
# Manifest fields that records of one run share.
_SAME = (
    *("subject", "source", "seed", "profile", "false_alarm", "draws", "versions"),
    *("planned", "statements", "level", "fixed"),
)
# Manifest fields that are too long for a message.
_LONG = ("planned", "statements", "level", "fixed")
# Number of missing shards listed.
_TOLD = 8


def lacking(parts: Sequence[RunRecord]) -> list[str]:
    """Return messages on missing, duplicate, foreign or unfinished shards; empty if the records make up one run."""
    whole = [f"{part.path} is not the record of a shard; omit it" for part in parts if not part.shard_name]
    shards = [part for part in parts if part.shard_name]
    others = [*whole, *_foreign(shards)]
    return others or [*_doubled(shards), *_missing(shards), *_broken(shards)]


def _foreign(parts: Sequence[RunRecord]) -> Iterable[str]:
    """Yield a message for each record of a different run, with the first field that differs from most records."""
    told: set[Path] = set()
    for field in ("shards", *_SAME):
        values = [_value(part.manifest, field) for part in parts]
        usual = max(values, key=values.count, default=None)
        for part, own in zip(parts, values, strict=True):
            if own != usual and part.path not in told:
                told.add(part.path)
                name = field.replace("_", " ")
                differs = "a different plan" if field in _LONG else f"{name} {own}, the others {usual}"
                if field == "source":
                    differs = f"a different file of {part.manifest.subject.partition(':')[0]}"
                yield f"{part.path} belongs to another run: it has {differs}"


def _value(manifest: Manifest, field: str) -> Any:
    if field == "shards":
        return manifest.shard[1] if manifest.shard else 0
    value = getattr(manifest, field)
    if field == "planned":
        return digest(sorted(each.id for each in value))
    return sorted(value) if field == "statements" else value


def _doubled(parts: Sequence[RunRecord]) -> Iterable[str]:
    for name, count in Counter(part.shard_name for part in parts).items():
        if count > 1:
            paths = listed(str(part.path) for part in parts if part.shard_name == name)
            yield f"shard {name} appears {count} times, in {paths}; pass one of them"


def _missing(parts: Sequence[RunRecord]) -> Iterable[str]:
    there, of = {part.shard_name for part in parts}, max((_value(part.manifest, "shards") for part in parts), default=0)
    gone = [name for name in (f"{number}/{of}" for number in range(1, of + 1)) if name not in there]
    if gone:
        are = "is missing; run it" if len(gone) == 1 else "are missing; run each"
        more = len(gone) - _TOLD
        told = listed(gone) if more <= 0 else f"{', '.join(gone[:_TOLD])} and {counted(more, 'other')}"
        yield f"shard {told} {are}: {_command(parts[0].manifest)} --shard {gone[0]}"


def _broken(parts: Sequence[RunRecord]) -> Iterable[str]:
    for part in parts:
        if part.closing is None:
            again = f"{_command(part.manifest)} --shard {part.shard_name} --resume {part.path} --record {part.path}"
            yield f"shard {part.shard_name} did not finish ({part.path} has no closing line); resume it: {again}"


def _command(manifest: Manifest) -> str:
    """Return the command that runs a shard, with all non-default options."""
    given = {
        "profile": (manifest.profile, "default"),
        "subject": (manifest.subject, DEFAULT_SUBJECT),
        "seed": (manifest.seed, 0),
        "false-alarm": (manifest.false_alarm, Budget().false_alarm),
        "draws": (manifest.draws, profile_named(manifest.profile).draws),
    }
    options = [f"--{name} {shlex.quote(str(value))}" for name, (value, usual) in given.items() if value != usual]
    names = dict.fromkeys(each.item.partition("@")[0] for each in manifest.planned)
    every = set(names) in (set(EVERY_PROPERTY), set(PROPERTIES), set(PROGRAM_PROPERTIES))
    only = [] if every else [f"--only {name}" for name in names]
    checks = [f"--checks {name}" for name in manifest.checks]
    return " ".join(["attncheck run", *options, *only, *checks, *(["--theory"] if manifest.statements else [])])


def merged(parts: Sequence[RunRecord], out: Path, min_examined: int | None = None) -> RunReport:
    """Write the record of the run that shards make up, and return its report, without further looks at pools."""
    for part in parts:
        cases_of(part)
    ordered = sorted(parts, key=lambda part: part.manifest.shard or (0, 0))
    manifest = msgspec.structs.replace(
        ordered[0].manifest,
        shard=None,
        machine=_machines([part.manifest.machine for part in ordered]),
        started=min(part.manifest.started for part in ordered),
    )
    subject = Subject(manifest.subject, _absent, "size")
    run = dataclasses.replace(planned_by(manifest, subject, out), explains=False, min_examined=min_examined)
    report = RunReport(run, manifest)
    for part in ordered:
        _hand_over(part, report)
    pools, owed = run.pool(report.results, lambda look, looks: [OWED for _ in looks])
    report.take(pools, *owed)
    report.diagnosis = _diagnosis(ordered)
    report.finish(*(Finding("completeness", "incomplete", text) for text in owed))
    return report


def with_looks_taken(
    part: RunRecord, subject: Subject, executor: TaskExecutor | None = None, min_examined: int | None = None
) -> tuple[RunReport, list[str]]:
    """Take the further looks that a run still needs; return the report and messages on violated pools."""
    path, manifest = str(part.path), part.manifest
    if part.shard_name:
        refuse("owed", path, f"is the record of shard {part.shard_name} only", "merge all shards with attncheck merge")
    if subject.name != manifest.subject:
        refuse("owed", path, f"is of the subject {manifest.subject}, not {subject.name}", "pass --subject")
    if manifest.source and manifest.source != source_of(subject.name):
        refuse("owed", path, f"was made before the file of {subject.name} changed", "repeat the run")
    run = dataclasses.replace(planned_by(manifest, subject, part.path), min_examined=min_examined)
    there = {each.id for each in part.results} | {each.id for each in part.theory}
    if gone := [id for id in (*(each.id for each in manifest.planned), *manifest.statements) if id not in there]:
        refuse("owed", path, f"lacks {len(gone):,} results, e.g. {gone[0]}", "complete it with --resume")
    known = cases_of(part, trust=(subject.name.partition(":")[0],))
    report = RunReport(run, manifest)
    _hand_over(part, report)
    violated, failed = report.pool(executor, known)
    report.take(violated, *failed)
    report.diagnose(executor)
    report.finish()
    return report, list(map(report.message, violated))


def cases_of(part: RunRecord, trust: Sequence[str] | None = None) -> dict[str, Case]:
    """Return the cases of a record by key; raises InputError for an invalid case or a wrong key.

    If `trust` is None, nothing is imported, and programs are omitted because their functions may not exist here.
    """
    found: dict[str, Case] = {}
    distinct = {(case_key(each), str(each.case)): each.case for each in part.results}
    for (key, _), fields in distinct.items():
        if trust is None and "program" in fields:
            continue
        with naming(part.path):
            found[key] = read_case(fields, trust)
        if found[key].key != key:
            refuse("record", str(part.path), f"has a different case under the key {key}", "repeat the run")
    return found


def planned_by(manifest: Manifest, subject: Subject, record: Path) -> Run:
    """Return the run of a manifest, without results; raises InputError if the installed versions differ."""
    installed = installed_versions()
    others = [f"{name} {version}" for name, version in manifest.versions.items() if installed.get(name) != version]
    if others:
        refuse("record", str(record), f"was made with {listed(others)}; others are installed", "install these")
    absent = [name for name in manifest.checks if not any(is_in(each, [name]) for each in registrations())]
    if absent:
        remedy = f"install their package, or pass --checks {absent[0]}"
        refuse("record", str(record), f"has results of checks in {listed(absent)}, which are not loaded", remedy)
    items = [planned.item for planned in manifest.planned]
    profile, budget = profile_named(manifest.profile), Budget(manifest.false_alarm)
    run = Run(subject, manifest.seed, profile, budget, record, manifest.draws).settled(items, manifest.statements)
    ids = {planned.id for planned in run.planned}
    if run.level != manifest.level or ids != {planned.id for planned in manifest.planned}:
        refuse("record", str(record), "has a different plan from the one that this version makes", "repeat the run")
    return run


def _hand_over(part: RunRecord, report: RunReport) -> None:
    """Add the results of a shard's record to a report, each with the floating-point arithmetic of its shard."""
    rounded = part.manifest.machine.get("arithmetic", "")
    lines: list[Result | StatementResult] = [*part.results, *part.theory]
    failed = [text for text in (part.closing.failed if part.closing else ()) if text != OWED]
    named = [each if each.arithmetic else msgspec.structs.replace(each, arithmetic=rounded) for each in lines]
    report.take(named, *failed)
    report.printed = (part.closing.printed if part.closing else ()) or report.printed


def _absent(layer: Any, size: int, rng: Any) -> NoReturn:
    raise InputError("subject: is not available while records are merged; use the record only")


def _machines(machines: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the fields of machines, joining differing values."""
    fields = dict.fromkeys(name for machine in machines for name in machine)
    return {name: " | ".join(dict.fromkeys(machine.get(name, "") for machine in machines)) for name in fields}


def _diagnosis(parts: Sequence[RunRecord]) -> Diagnosis:
    """Return the diagnosis whose first cause most violated shards found."""
    closings = (part.closing for part in parts)
    found = [Diagnosis(tuple(each.causes), each.plot) for each in closings if each and each.causes]
    first = Counter(each.causes[0] for each in found)
    return max(found, key=lambda each: first[each.causes[0]], default=Diagnosis())
