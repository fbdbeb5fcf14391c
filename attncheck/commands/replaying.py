"""`attncheck replay`: repeat one result of a record, digit for digit."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError, naming, refuse
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.imports import is_within
from attncheck._lib.text import chance
from attncheck.checks.registered import load_checks
from attncheck.checks.registry import all_properties
from attncheck.faults import FAULTS
from attncheck.layers.case import read_case
from attncheck.layers.names import layer_name
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.looks.pools import repeat_pool
from attncheck.records.manifest import installed_versions, this_machine
from attncheck.records.schema import Manifest, Result, line_digest, of_pool
from attncheck.records.text import BUILTIN_SUBJECTS
from attncheck.runs.parts import read_run
from attncheck.subject import Subject


def replay_result(record: Path, id: str, subject: str | None = None, trust: Sequence[str] = ()) -> int:
    """Repeat a result, and print the recorded and the new result, for `attncheck replay`."""
    manifest, recorded = find_result(record, id)
    load_checks(name for name in manifest.checks if is_within(name, trust))
    if recorded.property not in all_properties():
        remedy = "replay with the version of the record"
        if manifest.checks:
            remedy = f"if you trust the record and its checks, pass --trust {' --trust '.join(manifest.checks)}"
        refuse("property", recorded.property, "is not known here", remedy)
    named = manifest.subject if subject is None else subject
    if ":" not in named:
        refuse("subject", named, "cannot draw again", "run attncheck check on the samples, or pass --subject")
    if subject is None and not _trusted(named, trust):
        module = named.partition(":")[0]
        remedy = f"if you trust the record and the module, pass --trust {module}, or --subject {named}"
        refuse("subject", named, "is code named by the record and was not imported", remedy)
    repeated = repeat(recorded, Subject.of(named), manifest.seed, trust, record)
    for line in _comparison(manifest, recorded, repeated, named):
        print(line)
    return ExitCode.of(repeated.verdict)


def _trusted(subject: str, trust: Sequence[str]) -> bool:
    """Return whether a recorded subject is attncheck's own or in a trusted module."""
    module, _, name = subject.partition(":")
    simulators, faults = BUILTIN_SUBJECTS
    known = {simulators: ("direct", "matrix_free", "collapsed", "programs"), faults: tuple(FAULTS)}
    return name in known.get(module, ()) or is_within(module, trust)


def repeat(
    recorded: Result, subject: Subject, seed: int, trust: Sequence[str] = (), record: Path | None = None
) -> Result:
    """Repeat a recorded result on the same draws.

    `trust` lists modules from which functions of a program may be imported. `record` is the record with the result; the
    result of a pool can be repeated only with it, because it has the results of the pooled cases.
    """
    if record is not None and of_pool(recorded):
        return repeat_pool(recorded, read_run(record).part_of(recorded.id).results, subject, seed, trust)
    with naming(record):
        item = Item(recorded.property, read_case(recorded.case, trust))
    cost = Cost(recorded.affordable, recorded.level, recorded.power)
    with own_arithmetic():
        results = run_item(item, subject, seed, cost)
    for result in results:
        if result.check == recorded.check:
            return result
    refuse("check", recorded.check, "does not exist in this version", "replay with the version of the record")


def find_result(record: Path, id: str) -> tuple[Manifest, Result]:
    """Return a record's manifest and the result with this id; raise `InputError` with close matches if missing."""
    run = read_run(record)
    result = run.by_id.get(id)
    if result is not None:
        return run.manifest, result
    planned = [*run.planned, *(pool.id for pool in run.pools)]
    if id in planned:
        remedy = "make the record again"
        raise InputError(f"id={id}: was planned but not reached by the run in {record}; {remedy}")
    close = difflib.get_close_matches(id, planned, n=3, cutoff=0.5) or planned[:3]
    raise InputError(f"id={id}: is not in {record}; pass an id of the record, such as {', '.join(close)}")


def _comparison(manifest: Manifest, recorded: Result, repeated: Result, subject: str) -> Iterator[str]:
    yield f"{recorded.id} on {layer_name(recorded.case)}, seed {manifest.seed}"
    yield f"  recorded: {_line(recorded)}"
    yield f"  repeated: {_line(repeated)}"
    if line_digest(recorded) == line_digest(repeated):
        yield "The digits agree."
        return
    changed = _changed(manifest, subject)
    yield "The digits differ" + (
        f": {'; '.join(changed)}." if changed else ", with the same versions, arithmetic and subject name."
    )
    if not changed:
        yield "The subject has changed since, or does not draw all random numbers from its generator."


def _line(result: Result) -> str:
    if not result.p_values:
        return f"{result.verdict} ({result.reason})"
    looks = ", ".join(f"{p:.17g}" if p else chance(p) for p in result.p_values)
    effects = ", ".join(f"{effect:.17g}" for effect in result.effects)
    return f"{result.verdict}; {result.text}; {result.size} draws per look; effects {effects}; p = {looks}"


def _changed(manifest: Manifest, subject: str) -> list[str]:
    """Return texts on differences between a record's environment and the present one, with its `subject`."""
    changed = [] if subject == manifest.subject else [f"the subject was {manifest.subject}, now {subject}"]
    installed, machine = installed_versions(), this_machine()
    versions = [
        f"{name} was {version}, now {installed.get(name, 'not installed')}"
        for name, version in sorted(manifest.versions.items())
        if installed.get(name) != version
    ]
    elsewhere = [
        f"{name} was {manifest.machine[name]}, now {machine[name]}"
        for name in ("system", "arithmetic")
        if manifest.machine.get(name, machine[name]) != machine[name]
    ]
    return changed + versions + elsewhere
