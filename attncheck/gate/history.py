"""Histories: append-only files with the scores of each run, from which drift is detected."""

from __future__ import annotations

import dataclasses
import math
import os
import string
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError, refuse
from attncheck._lib.files import write_whole
from attncheck._lib.streams import digest
from attncheck._lib.text import counted
from attncheck._lib.version import __version__
from attncheck.checks.registry import check_named
from attncheck.evidence.detector import ALARM, CLIP, DriftState, begin, course
from attncheck.evidence.summaries import NormalScore, Summary, from_record
from attncheck.looks.pools import ALL
from attncheck.records.run_record import read_record
from attncheck.records.schema import Manifest, Result, case_key, decoded

_FORMAT = 1
_AGAIN = "pass a file written by attncheck gate --history"
# Significant digits of a score.
_DIGITS = 4
# Half of a check's weight belongs to its feature pools, and each of them gets 1/FEATURES of that half. There are fewer
# than FEATURES such pools, so a new one takes no weight from others.
FEATURES = 32


class HistoryHead(msgspec.Struct, frozen=True, tag="history", tag_field="type"):
    """The first line: subject and profile."""

    format: int
    subject: str
    profile: str


class PlannedChecks(msgspec.Struct, frozen=True, tag="plan", tag_field="type"):
    """Checks, by key and revision, that runs referring to ``plan`` have planned."""

    plan: str
    checks: list[str]


class RunEntry(msgspec.Struct, frozen=True, tag="run", tag_field="type"):
    """One run: commit ``key``, ``plan``, normal scores ``z`` by stream, and the ``one_sided`` streams."""

    key: str
    seed: int
    started: str
    plan: str
    z: dict[str, float]
    one_sided: list[str] = []


class Acceptance(msgspec.Struct, frozen=True, tag="accepted", tag_field="type"):
    """Acceptance of the state after the run ``after``; all streams restart with the next run."""

    after: str


_Line = HistoryHead | PlannedChecks | RunEntry | Acceptance


@dataclasses.dataclass(frozen=True)
class DriftedSeries:
    """A ``stream`` of scores, one score per run, whose mean has probably moved from 0.

    ``stream`` is named ``check@pool``. ``since`` is the run at which the mean most likely changed; ``runs`` counts the
    scores from there on, ``mean`` is their mean, and ``last`` the latest. ``evidence`` is the part of the history's
    total evidence of drift that comes from this stream.
    """

    stream: str
    since: str
    runs: int
    evidence: float
    mean: float
    last: float


@dataclasses.dataclass(frozen=True)
class History:
    """The runs of a subject with one profile, in order, with the keys of accepted runs and all plans."""

    subject: str
    profile: str
    entries: tuple[RunEntry, ...] = ()
    accepted: frozenset[str] = frozenset()
    plans: Mapping[str, PlannedChecks] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> History:
        """Read a history, or merge those of several branches.

        Several histories are merged by start time. Runs up to an acceptance in any of them no longer count, and of two
        runs of the same commit only the earlier one counts.

        Raises
        ------
        InputError
            If a file cannot be read, subjects differ, files disagree, two runs share draws, or one of several
            histories has an alarm, which the runs of others might hide.
        """
        first, *others = found = [_read(path) for path in paths]
        for path, each in zip(paths, found, strict=True):
            if others and each.course.alarm is not None:
                remedy = f"inspect it first with attncheck history {path}; --accept restarts it"
                refuse("history", str(path), "has an alarm, which runs of another branch could hide", remedy)
        for path, other in zip(paths[1:], others, strict=True):
            _check_same(path, other, str(paths[0]), first)
            first = first._united(other, path)
        return first

    def _united(self, other: History, path: Path) -> History:
        entries = {entry.key: entry for entry in self.entries}
        for entry in other.entries:
            known = entries.setdefault(entry.key, entry)
            if known != entry and known.started == entry.started:
                problem = f"disagrees with the others on {entry.key}"
                refuse("history", str(path), problem, "one of the history files was edited: restore the original")
            entries[entry.key] = min(known, entry, key=_order)
        _check_seeds(entries.values(), path)
        covered = {entry.key for each in (self, other) for entry in each.entries[: len(each.entries) - len(each.since)]}
        merged = sorted(entries.values(), key=lambda entry: (entry.key not in covered, *_order(entry)))
        last = frozenset([merged[len(covered) - 1].key] if covered else [])
        return dataclasses.replace(self, entries=tuple(merged), accepted=last, plans={**self.plans, **other.plans})

    @cached_property
    def since(self) -> tuple[RunEntry, ...]:
        """The runs since the last acceptance."""
        places = [place for place, entry in enumerate(self.entries) if entry.key in self.accepted]
        return self.entries[places[-1] + 1 :] if places else self.entries

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """All streams since the last acceptance, in order of appearance."""
        return tuple(dict.fromkeys(name for entry in self.since for name in sorted(entry.z)))

    @cached_property
    def scores(self) -> FloatArray:
        """The scores since the last acceptance, (runs, streams); NaN where missing."""
        return np.array([[entry.z.get(name, math.nan) for name in self.streams] for entry in self.since]).reshape(
            len(self.since), len(self.streams)
        )

    @cached_property
    def course(self) -> DriftState:
        """The evidence after each run since the last acceptance."""
        one_sided = np.array([name in self._one_sided for name in self.streams], bool)
        return course(self.scores, one_sided, self.shares)

    @cached_property
    def _one_sided(self) -> frozenset[str]:
        """Streams in which only large scores are evidence against the subject."""
        return frozenset(name for entry in self.since for name in entry.one_sided)

    @cached_property
    def shares(self) -> FloatArray:
        """The weight of each stream, (streams,), independent of the data.

        The checks of the first run share half of the total weight, those planned next a quarter, and so on. The pool
        of all cases has half of the weight of its check, and the pools of cases with a common feature share the other
        half. Weights do not change until acceptance.
        """
        checks: dict[str, float] = {}
        left = 1.0
        for plan in dict.fromkeys(entry.plan for entry in self.since):
            if new := [name for name in self.plans[plan].checks if name not in checks]:
                left /= 2.0
                checks |= dict.fromkeys(new, left / len(new))
        parts = (name.rpartition("@") for name in self.streams)
        return np.array([0.5 * checks[check] / (1 if pool == ALL else FEATURES) for check, _, pool in parts])

    @property
    def evidence(self) -> float:
        """The largest total evidence after any run, so that an alarm lasts until accepted."""
        return float(self.course.total.max(initial=0.0))

    def moved(self) -> list[DriftedSeries]:
        """Return the part of each stream after its estimated change point, in decreasing order of evidence."""
        if not self.since:
            return []
        at = self.course.alarm if self.course.alarm is not None else len(self.since) - 1
        found = []
        for place, name in enumerate(self.streams):
            there = np.flatnonzero(~np.isnan(self.scores[: at + 1, place]))
            if len(there):
                there = there[begin(self.scores[there, place], name in self._one_sided) :]
                seen, part = self.scores[there, place], float(self.course.evidence[at, place])
                key = self.since[there[0]].key
                found.append(DriftedSeries(name, key, len(seen), part, float(seen.mean()), float(seen[-1])))
        return sorted(found, key=lambda each: (-each.evidence, each.stream))

    def sentence(self) -> str:
        """Return the state of the history in one line."""
        what = f"{counted(len(self.since), 'run')} of {self.subject} with the profile {self.profile}"
        number = f"evidence {self.evidence:.3g}, alarm at {ALARM:,.0f}"
        if self.course.alarm is None:
            return f"QUIET: {what}; {number}"
        first = self.moved()[0]
        key = self.since[self.course.alarm].key
        return (
            f"ALARM: {what}; {number}, reached with {short_key(key)}; {first.stream} moves most, "
            f"by {first.mean:+.2f} standard deviations per run since {short_key(first.since)}"
        )


def entry_of(record: Path, key: str) -> tuple[Manifest, PlannedChecks, RunEntry]:
    """Return the history entry of a run, with the scores of its pools of exact checks.

    For a correct subject, scores are standard normal, or stochastically smaller if one-sided. Checks with a bias
    allowance or two-sided counts are excluded.
    """
    found = read_record(record)
    manifest = found.manifest
    if (made := manifest.versions.get("attncheck")) != __version__:
        problem = f"was made by attncheck {made}, and this is {__version__}, whose checks may differ"
        refuse("record", str(record), problem, "add it with the version that made it")
    summaries = {each.id: from_record(each.summary) for each in found.results if each.summary is not None}
    z: dict[str, float] = {}
    one_sided = []
    for pool in found.pools:
        if not pool.p_values:
            continue
        members = [summaries[f"{pool.check}@{each}"] for each in pool.case["of"]]
        if pool.kind != "exact" or not all(map(_calibrated, members)):
            continue
        name = f"{_known_by(pool.check)}@{case_key(pool)}"
        z[name] = round(_score(pool, members[0].one_sided), _DIGITS)
        one_sided += [name] * members[0].one_sided
    checks = sorted({_known_by(each.check) for each in manifest.planned if each.id != each.item})
    plan = PlannedChecks(digest(checks), checks)
    return manifest, plan, RunEntry(key, manifest.seed, manifest.started, plan.plan, z, one_sided)


def short_key(key: str) -> str:
    """Shorten the hash of a commit to twelve digits; return any other name unchanged.

    Examples
    --------
    >>> short_key("0123456789abcdef" * 3), short_key("2026-11-26T09:53:14+00:00")
    ('0123456789ab', '2026-11-26T09:53:14+00:00')
    """
    return key[:12] if len(key) >= 40 and set(key) <= set(string.hexdigits) else key


def _known_by(name: str) -> str:
    """Return a check's key, with its revision from the second revision on."""
    check = check_named(name)
    return check.key if check.revision == 1 else f"{check.key}#{check.revision}"


def _calibrated(summary: Summary) -> bool:
    return summary.bias == 0.0 if isinstance(summary, NormalScore) else summary.one_sided


def _score(pool: Result, one_sided: bool) -> float:
    """Return the normal score of a pool's first look."""
    p_value = max(pool.p_values[0], 1e-300)
    if one_sided:
        return float(np.clip(-special.ndtri(p_value), -CLIP, CLIP))
    sign = np.sign(pool.effects[0] - (pool.null_effect or 0.0))
    return float(np.clip(-sign * special.ndtri(p_value / 2.0), -CLIP, CLIP))


def add(path: Path, record: Path, key: str) -> tuple[History, str]:
    """Append a passing run to a history, created if missing; return the history and a note.

    Only the first run of a commit `key` counts. Raises `InputError` if subject or profile differ, or draws repeat.
    """
    manifest, plan, entry = entry_of(record, key)
    history = History.read([path]) if path.exists() else History(manifest.subject, manifest.profile)
    _check_same(path, history, "the run", manifest)
    if any(each.key == key for each in history.entries):
        return history, f"{short_key(key)} is already in the history: its first run counts"
    seeds = {0: "every run by default"} | {each.seed: short_key(each.key) for each in history.entries}
    if entry.seed in seeds:
        problem = f"is also the seed of {seeds[entry.seed]}: the same draws add no evidence"
        refuse("seed", entry.seed, problem, "run with --seed keyed, which differs for each commit, or --seed random")
    lines: list[_Line] = [] if history.entries else [HistoryHead(_FORMAT, history.subject, history.profile)]
    _append(path, [*lines, *([] if plan.plan in history.plans else [plan]), entry])
    plans = {**history.plans, plan.plan: plan}
    longer = dataclasses.replace(history, entries=(*history.entries, entry), plans=plans)
    new = set(plan.checks) - {name for each in history.plans.values() for name in each.checks}
    begun = f"; the streams of {counted(len(new), 'check')} start" if new and history.entries else ""
    return longer, f"run {len(longer.since):,} of the history{begun}"


def accept(path: Path) -> History:
    """Accept the state after the last run of the history at `path`, so that all streams restart with the next run."""
    history = History.read([path])
    if not history.entries:
        refuse("history", str(path), "has no runs", "there is nothing to accept")
    _append(path, [Acceptance(history.entries[-1].key)])
    return History.read([path])


def write(history: History, path: Path) -> Path:
    """Write a history to a new file."""
    opening = HistoryHead(_FORMAT, history.subject, history.profile)
    plans = [history.plans[name] for name in sorted(history.plans)]
    lines: list[_Line] = [opening, *plans, *history.entries, *map(Acceptance, sorted(history.accepted))]
    return write_whole(path, b"".join(map(_encoded, lines)))


def _check_same(path: Path, history: History, what: str, other: History | Manifest) -> None:
    for field in ("subject", "profile"):
        if getattr(history, field) != getattr(other, field):
            problem = f"is about the {field} {getattr(history, field)}, but {what} about {getattr(other, field)}"
            refuse("history", str(path), problem, f"keep a separate history for each {field}")


def _check_seeds(entries: Iterable[RunEntry], path: Path) -> None:
    seeds: dict[int, str] = {}
    for entry in entries:
        if (first := seeds.setdefault(entry.seed, entry.key)) != entry.key:
            both = f"{short_key(first)} and of {short_key(entry.key)}"
            problem = f"is the seed of {both} in {path}: the same draws add no evidence"
            refuse("seed", entry.seed, problem, "keep one of them, and run with --seed keyed")


def _order(entry: RunEntry) -> tuple[str, str]:
    return entry.started, entry.key


def _encoded(line: _Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _append(path: Path, lines: Iterable[_Line]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - 1))
            # An editor may have removed the final newline of the file.
            ended = file.read() in (b"", b"\n")
            try:
                file.write(b"".join([b"" if ended else b"\n", *map(_encoded, lines)]))
                file.flush()
            except OSError:  # e.g. the disk is full; the old content stays readable
                file.truncate(length)
                raise
    except OSError as error:
        problem = f"cannot be written ({error.strerror or error})"
        raise InputError(f"history={path}: {problem}; choose another path") from None


def _read(path: Path) -> History:
    try:
        if path.exists() and not path.is_file():
            refuse("history", str(path), "is not a file", _AGAIN)
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"history={path}: cannot be read ({error.strerror or error}); {_AGAIN}") from None
    decoder = msgspec.json.Decoder(_Line)
    lines: list[Any] = []
    for number, line in enumerate(raw := content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            lines.append(decoded(line, decoder))
        except msgspec.DecodeError as error:
            cut = number == len(raw) > 1 and not content.endswith(b"\n")
            remedy = "delete this incomplete line" if cut else _AGAIN
            raise InputError(f"history={path}: line {number} cannot be read ({error}); {remedy}") from None
    if not lines or not isinstance(lines[0], HistoryHead) or lines[0].format != _FORMAT:
        raise InputError(f"history={path}: is not a history of this version; {_AGAIN}")
    opening, *rest = lines
    if any(isinstance(each, HistoryHead) and each != opening for each in rest):
        raise InputError(f"history={path}: has lines of another history; {_AGAIN}")
    entries: dict[str, RunEntry] = {}
    for each in rest:
        if isinstance(each, RunEntry):
            entries.setdefault(each.key, each)
    _check_seeds(entries.values(), path)
    accepted = frozenset(each.after for each in rest if isinstance(each, Acceptance))
    plans = {each.plan: each for each in rest if isinstance(each, PlannedChecks)}
    if lost := sorted({entry.plan for entry in entries.values()} - set(plans)):
        raise InputError(f"history={path}: lacks the plan {lost[0]} of its runs; {_AGAIN}")
    for entry in entries.values():
        if odd := sorted({name.rpartition("@")[0] for name in entry.z} - set(plans[entry.plan].checks)):
            problem = f"has scores of {odd[0]}, which {short_key(entry.key)} did not plan"
            raise InputError(f"history={path}: {problem}; {_AGAIN}")
    return History(opening.subject, opening.profile, tuple(entries.values()), accepted, plans)
