"""A run: what it examines, at which level, and what it comes to. Front ends (pytest, the command line) use this."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from threadpoolctl import threadpool_limits

import attncheck
from attncheck.attention import AttentionLayer
from attncheck.checks.claims import CLAIMS
from attncheck.checks.registry import checks_of
from attncheck.diagnosis import diagnose
from attncheck.errors import check_number, check_whole, refuse
from attncheck.evidence.budget import Budget
from attncheck.evidence.ledger import Conclusion, conclude
from attncheck.evidence.verdicts import Verdict
from attncheck.examples import draw_examples
from attncheck.profiles import ANCHORS, Profile, profile_named
from attncheck.records import SCHEMA, Closing, Manifest, Planned, Result, Writer, run_digest
from attncheck.shrink import shrink
from attncheck.subject import DEFAULT_SUBJECT, Subject
from attncheck.unit import Cost, Unit, run_unit, violated

# Violated checks of one unit that a message shows.
_SHOWN = 6
_VERSIONED = ("attncheck", "numpy", "scipy", "hypothesis", "pytest", "statsmodels")


@dataclasses.dataclass
class Run:
    """What a run examines and how; `settle` fixes its level once the units are known.

    Attributes
    ----------
    subject : Subject
    seed : int
    profile : Profile
    budget : Budget
    record : Path
        Where the record goes.
    unit_ids : tuple of str
        The planned units, known after `settle`.
    """

    subject: Subject
    seed: int
    profile: Profile
    budget: Budget
    record: Path
    unit_ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, *, subject: Any, seed: Any, profile: str, false_alarm: Any, draws: Any = None, record: Path) -> Run:
        """Build a run from what a person typed.

        Raises
        ------
        InputError
            Naming the option, its value and the remedy.
        """
        settled = profile_named(profile)
        if draws is not None:
            if settled.name != "thorough":
                refuse(
                    "draws",
                    draws,
                    f"has no effect with profile {profile!r}",
                    "add --attncheck-profile thorough",
                )
            settled = settled.with_draws(check_whole("draws", _whole(draws), 1, "pass a number of draws, e.g. 1000000"))
        number = check_number(
            "false_alarm",
            false_alarm if not isinstance(false_alarm, str) else _float(false_alarm),
            "pass a chance such as 1e-6",
            above=0.0,
        )
        return cls(
            subject=Subject.of(subject or DEFAULT_SUBJECT),
            seed=check_whole("seed", _whole(seed), 0, "pass a whole number, or random"),
            profile=settled,
            budget=Budget(number),
            record=record,
        )

    @property
    def settled(self) -> bool:
        """Whether the units, and with them the level, are known."""
        return bool(self.unit_ids)

    @property
    def level(self) -> float:
        """The level of one look, from the budget and the number of planned results."""
        return self.budget.level(len(self.planned))

    @property
    def planned(self) -> list[Planned]:
        """Every result that the run owes."""
        owed = []
        for unit in self.unit_ids:
            name, _, layer = unit.partition("@")
            owed += [Planned(f"{check.name}@{layer}", unit, check.name) for check in checks_of(name)]
        return owed

    def header(self) -> str:
        """Return one line on what is examined and how."""
        return (
            f"attncheck: subject {self.subject.name}, seed {self.seed}, profile {self.profile.name}, "
            f"false-alarm budget {self.budget.false_alarm:g}"
        )

    def units(self, name: str, strategy: Any) -> list[Unit]:
        """Return the units of a property: anchors, then layers drawn from a strategy before the run."""
        checks_of(name)
        drawn = draw_examples(strategy, self.profile.examples, self.seed, name)
        layers = dict.fromkeys([*ANCHORS[: self.profile.anchors], *drawn])
        return [Unit(name, layer) for layer in layers]

    def settle(self, unit_ids: Sequence[str]) -> None:
        """Fix what is planned."""
        self.unit_ids = tuple(dict.fromkeys(unit_ids))

    def examine(self, name: str, layer: AttentionLayer) -> tuple[list[dict[str, Any]], str]:
        """Examine a property on a layer; return its results as built-in types, and a message if violated."""
        unit = Unit(name, layer)
        cost = Cost(self.profile.affordable(layer), self.level, self.profile.power)
        # Workers share the machine's cores: one BLAS thread each.
        with threadpool_limits(1):
            results = run_unit(unit, self.subject, self.seed, cost)
            if violated(results):
                results = self._explained(unit, results, cost)
        return [msgspec.to_builtins(result) for result in results], explain(results, self.record)

    def _explained(self, unit: Unit, results: Sequence[Result], cost: Cost) -> list[Result]:
        """Add to violated results what a person needs: numbers, and a smaller layer for the worst."""
        worst = violated(results)[0]
        smaller = shrink(unit, worst.check, self.subject, self.seed, cost)
        illustration = "" if smaller is None else smaller.describe()
        diagnosis = diagnose(unit, self.subject, self.seed)
        return [
            msgspec.structs.replace(result, diagnosis=diagnosis, illustration=illustration)
            if result.verdict == Verdict.VIOLATED
            else result
            for result in results
        ]

    def open_report(self) -> RunReport:
        """Open the record and write its manifest."""
        return RunReport(self)

    def manifest(self) -> Manifest:
        """Return the first line of the record."""
        return Manifest(
            schema=SCHEMA,
            versions={name: _version(name) for name in _VERSIONED},
            seed=self.seed,
            profile=self.profile.name,
            false_alarm=self.budget.false_alarm,
            level=self.level,
            subject=self.subject.name,
            planned=self.planned,
            machine={
                "python": platform.python_version(),
                "system": f"{platform.system()} {platform.machine()}",
                "cores": str(os.cpu_count()),
            },
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )


class RunReport:
    """Takes results as they come in, in any order, writes them down at once, and concludes."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.results: list[Result] = []
        self.conclusion: Conclusion | None = None
        self._started = time.perf_counter()
        self._writer = Writer(run.record)
        self._writer.write(run.manifest())

    def take(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Take the results of one unit."""
        for fields in results:
            result = msgspec.convert(fields, Result)
            self.results.append(result)
            self._writer.write(result)

    def finish(self) -> bool:
        """Conclude, write the closing line, and return whether the run is consistent."""
        records = [msgspec.to_builtins(result) for result in self.results]
        self.conclusion = conclude([p.id for p in self.run.planned], records, self.run.budget, self.run.seed)
        closing = Closing(
            digest=run_digest(self.results),
            verdict=self.conclusion.verdict,
            reasons=list(self.conclusion.reasons),
            reported=len(self.results),
            seconds=time.perf_counter() - self._started,
        )
        self._writer.write(closing)
        self._writer.close()
        return self.conclusion.verdict == "consistent"

    def summary(self, color: bool = False) -> str:
        """Return the verdict and the table of properties, for a terminal."""
        from attncheck.summary import summarize

        if self.conclusion is None:
            return ""
        return summarize(self.run, self.results, self.conclusion, color)


def explain(results: Sequence[Result], record: Path) -> str:
    """Return what a person needs to know of a unit's violated results, the worst first; empty if none is."""
    bad = violated(results)
    if not bad:
        return ""
    worst = bad[0]
    claim = CLAIMS[worst.claim]
    shown = bad[:_SHOWN]
    width = max(len(result.check) for result in shown)
    examined = sum(bool(result.p_values) for result in results)
    lines = [
        f"VIOLATED: {claim.statement} ({claim.source})",
        f"  layer:    {AttentionLayer.from_dict(worst.layer).describe()}",
        *(f"  observed: {sentence}" for sentence in worst.diagnosis),
        *(f"  likely:   {hint}" for hint in dict.fromkeys(result.hint for result in shown)),
        f"  {len(bad)} of {examined} checks are violated at level {worst.level:.2g}:",
        *(f"    {result.check:{width}}  {result.text}; {_looks(result)}" for result in shown),
    ]
    if len(bad) > len(shown):
        lines.append(f"    and {len(bad) - len(shown)} more")
    if worst.illustration:
        lines.append(f"  smaller:  {worst.illustration} (an illustration on fresh draws, not a verdict)")
    lines.append(f"  replay:   attncheck replay {record} {worst.id}")
    return "\n".join(lines)


def _looks(result: Result) -> str:
    looks = ", ".join(f"{p:.2g}" for p in result.p_values)
    return f"p = {looks} on {result.size} draws a look"


def _version(name: str) -> str:
    try:
        return attncheck.__version__ if name == "attncheck" else importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _whole(value: Any) -> Any:
    """Return a typed number as an int where it is one; the check that follows refuses the rest."""
    try:
        return int(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _float(value: str) -> Any:
    try:
        return float(value)
    except ValueError:
        return value
