"""A run: what it examines, at which level, and what it comes to. Front ends (pytest, the command line) use this."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError, check_choice, check_number, check_whole, refuse
from attncheck._lib.imports import source_of
from attncheck.checks.registry import EVERY_PROPERTY, checks_of, property_key
from attncheck.evidence.budget import Budget
from attncheck.evidence.ledger import Conclusion
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case
from attncheck.looks.domains import LAYERS, PROGRAMS, domain_of
from attncheck.looks.examples import draw_examples
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.looks.pools import Map, examine_pools, fresh, most_pools, pools_of
from attncheck.looks.profiles import Profile, profile_named
from attncheck.looks.result import violated
from attncheck.looks.substitutes import substitute
from attncheck.records.conclusion import ledger_of
from attncheck.records.manifest import manifest_of
from attncheck.records.schema import Manifest, PlannedResult, Result, StatementResult, case_key, of_pool
from attncheck.records.scope import Scope
from attncheck.runs.resumed import ResumedRun, earlier_of
from attncheck.runs.shards import Shard
from attncheck.runs.tasks import CaseTask
from attncheck.subject import DEFAULT_SUBJECT, Subject


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run examines and how; `settled` fixes its level once the units are known.

    Attributes
    ----------
    subject : Subject
    seed : int
    profile : Profile
    budget : Budget
    record : Path or None
        Where the record goes.
    draws : int or None
        With the thorough profile: about what the first looks of the whole run take.
    item_ids : tuple of str
        The planned units; empty until `settled`.
    theory : bool
        Whether statements of attncheck's own theory are examined beside the subject.
    theory_ids : tuple of str
        The planned ones.
    explains : bool
        Whether violated results are diagnosed and shown on a smaller layer: most of the time of a violated run.
    min_examined : int or None
        Examined results below which the run is inconclusive; see `attncheck.records.scope` for the default.
    only : tuple of str
        The properties that are examined; all if empty.
    earlier : ResumedRun
        What an interrupted run has left.
    shard : Shard or None
        The part of a run that this is; None for the whole.
    part : frozenset of str
        The units and statements of the shard.
    """

    subject: Subject
    seed: int
    profile: Profile
    budget: Budget
    record: Path | None = None
    draws: int | None = None
    item_ids: tuple[str, ...] = ()
    theory: bool = False
    theory_ids: tuple[str, ...] = ()
    explains: bool = True
    min_examined: int | None = None
    only: tuple[str, ...] = ()
    earlier: ResumedRun = dataclasses.field(default_factory=ResumedRun, compare=False)
    shard: Shard | None = None
    part: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        *,
        subject: Any,
        seed: Any,
        profile: str,
        false_alarm: Any,
        record: Path | None,
        draws: Any = None,
        min_examined: Any = None,
        only: Iterable[str] = (),
        theory: bool = False,
        resume: Path | None = None,
        shard: str | None = None,
    ) -> Run:
        """Build a run from what a person typed.

        Raises
        ------
        InputError
            Naming the option, its value and the remedy.
        """
        settled = profile_named(profile)
        if draws is not None and settled.draws is None:
            refuse("draws", draws, f"has no effect with the profile {profile}", "use the profile thorough")
        most = settled.draws if draws is None else check_whole("draws", _typed(draws, _count), 1, "pass e.g. 1e6")
        fewest = "pass the examined results that a pass takes, e.g. 100"
        least = None if min_examined is None else check_whole("min_examined", _typed(min_examined, int), 0, fewest)
        chance = check_number("false_alarm", _typed(false_alarm, float), "pass a chance such as 1e-6", above=0.0)
        examined = Subject.of(DEFAULT_SUBJECT if subject is None else subject)
        for name in only:
            kind = domain_of(check_choice("only", name, EVERY_PROPERTY)).kind
            if not examined.simulates(kind):
                refuse("only", name, f"is about {kind}s, and {examined.name} simulates none", "name another property")
        if shard is not None and min_examined is not None:
            refuse("min_examined", min_examined, "is of the whole run, and this is a shard", "pass it to merge")
        run = cls(
            subject=examined,
            seed=check_whole("seed", _typed(seed, int), 0, "pass a whole number, or random"),
            profile=settled,
            budget=Budget(chance),
            record=record,
            draws=most,
            min_examined=least,
            only=tuple(only),
            theory=theory,
            shard=None if shard is None else Shard.read(shard),
        )
        if resume is None:
            return run
        fields = {
            "seed": run.seed,
            "profile": profile,
            "false_alarm": chance,
            "subject": run.subject.name,
            "source": source_of(run.subject.name),
        }
        return dataclasses.replace(run, earlier=earlier_of(resume, fields))

    def settled(self, item_ids: Sequence[str], theory_ids: Sequence[str] = (), part: Iterable[str] = ()) -> Run:
        """Return the run with its planned units, which fix the level of a look, and statements of the theory.

        All of them are planned in a shard too; `part` has those that are its own.
        """
        items, theory = tuple(dict.fromkeys(item_ids)), tuple(dict.fromkeys(theory_ids))
        return dataclasses.replace(self, item_ids=items, theory_ids=theory, part=frozenset(part))

    def owes(self, item: str) -> bool:
        """Return whether a planned unit or statement is this run's, and no other shard's."""
        return self.shard is None or item in self.part

    @property
    def owed(self) -> list[PlannedResult]:
        """The planned results on single cases that are this run's, and no other shard's."""
        return [planned for planned in self.planned if self.owes(planned.item)]

    @property
    def level(self) -> float:
        """The level of one look, from the budget and the number of results that looks decide on: cases and pools."""
        return self.budget.level(max(1, len(self.planned) + self.most_pools))

    @property
    def planned(self) -> list[PlannedResult]:
        """Every result on single cases of the subject, those of other shards too."""
        found = []
        for item in self.item_ids:
            name, _, layer = item.partition("@")
            found += [PlannedResult(f"{check.name}@{layer}", item, check.name) for check in checks_of(name)]
        return found

    @property
    def fixed_cases(self) -> list[Case]:
        """The planned cases that are visited whatever the seed."""
        layers = self.subject.layers or [*self.profile.layers, *self._substitutes(self.profile.layers)]
        programs = [case for name in PROGRAMS.properties for case in PROGRAMS.fixed(name, self.profile)]
        planned = {item.partition("@")[2] for item in self.item_ids}
        return [case for case in (*layers, *programs) if case.key in planned]

    @property
    def most_pools(self) -> int:
        """How many pools there can be: of every property that is examined on several cases."""
        counts = Counter(item.partition("@")[0] for item in self.item_ids)
        return most_pools(name for name, count in counts.items() if count > 1)

    def header(self) -> str:
        """Return one line on what is examined and how."""
        return (
            f"attncheck: subject {self.subject.name}, seed {self.seed}, profile {self.profile.name}, "
            f"false-alarm budget {self.budget.false_alarm:g}{f', shard {self.shard}' if self.shard else ''}"
        )

    def items(self, name: str, strategy: Any) -> list[Item]:
        """Return the units of a property: anchors, then layers or programs drawn from a strategy before the run.

        A subject of layers alone has no units of programs, and one of programs none of layers. A subject that says
        which layers it is meets these alone. Of any other, layers that it does not support stay in the plan, as not
        examined, and others stand in for them.
        """
        profile, domain = self.profile, domain_of(name)
        if (self.only and name not in self.only) or not self.subject.simulates(domain.kind):
            return []
        if domain is LAYERS and self.subject.layers:
            return self.items_on(name, self.subject.layers)
        drawn = draw_examples(strategy, domain.examples(profile), self.seed, property_key(name))
        cases = [*domain.fixed(name, profile), *drawn]
        return self.items_on(name, [*cases, *self._substitutes(cases)])

    def _substitutes(self, cases: Iterable[Case]) -> Iterator[AttentionLayer]:
        """Yield what is examined beside the layers that the subject does not support."""
        layers = [case for case in cases if isinstance(case, AttentionLayer)]
        with contextlib.suppress(InputError):  # a declaration that fails is told of with the first result
            for layer in layers:
                if self.subject.reason_unsupported(layer):
                    instead = substitute(layer, lambda each: not self.subject.reason_unsupported(each))
                    yield from () if instead is None else (instead,)

    def drawn(self, strategy: Any, key: str) -> list[Any]:
        """Return the run's layers or stacks from a strategy for a test of its own, keyed by what they are for."""
        return draw_examples(strategy, self.profile.drawn, self.seed, key)

    def items_on(self, name: str, cases: Iterable[Case]) -> list[Item]:
        """Return the units of a property on given cases, each once."""
        checks_of(name)
        distinct = list(dict.fromkeys(cases))
        for case in distinct:
            if sum(case.key == other.key for other in distinct) > 1:
                remedy = "give the functions names in a module, or examine one program at a time"
                refuse("layer", case.describe(), "differs from another program in a function without a name", remedy)
        return [Item(name, case) for case in distinct]

    def affordable(self, case: Case) -> int:
        """Return the draws that one look on `case` may take.

        A budget of draws is shared out evenly over the cases, whatever a draw costs: what a limit on cost
        leaves with the lowest power, the wide layers, gains the most.
        """
        cases = {item.partition("@")[2] for item in self.item_ids}
        share = 0 if self.draws is None else self.draws // max(1, len(cases))
        return max(share, self.profile.affordable(case))

    def costs(self, items: Sequence[Item]) -> dict[str, float]:
        """Return about what units cost, by the keys of their cases, before the whole plan is known.

        The entries of all matrices that a look draws, and once for each check those that it measures: all checks on
        what every property visits.
        """
        share = 0 if self.draws is None else self.draws // max(1, len(items) * len(EVERY_PROPERTY))
        return {item.case.key: self._cost_of(item, max(share, self.profile.affordable(item.case))) for item in items}

    def _cost_of(self, item: Item, draws: int) -> float:
        domain = domain_of(item.property_name)
        common = item.case in (self.subject.layers or domain.fixed(item.property_name, self.profile))
        names = domain.properties if common else (item.property_name,)
        checks = sum(len(checks_of(name)) for name in names)
        return float(draws * (item.case.weight_entries + checks * item.case.stored_entries))

    def examine(self, items: Iterable[Item]) -> list[Result]:
        """Return the results of units, case by case, from this process.

        Raises
        ------
        InputError
            If the subject cannot be called or returns something that cannot be used.
        """
        return [result for task in self.tasks(items, self.subject) for result in task.results()]

    def tasks(self, items: Iterable[Item], subject: Subject | str) -> list[CaseTask]:
        """Return units by their cases, with all that their results depend on.

        A subject that is named is imported where it is used.
        """
        cases: dict[str, list[Item]] = {}
        for item in items:
            cases.setdefault(item.case.key, []).append(item)
        return [
            CaseTask(subject, self.seed, tuple(of_case), self.look_cost(of_case[0].case), self.explains)
            for of_case in cases.values()
        ]

    def look_cost(self, case: Case) -> Cost:
        """Return what the looks at a case may take."""
        return Cost(self.affordable(case), self.level, self.profile.power)

    def kept(self, item: Item) -> list[Result]:
        """Return the results of a unit that an interrupted run has left, if it has."""
        results, cost = self.earlier.items.get(item.id, []), self.look_cost(item.case)
        same = results and (results[0].level, results[0].affordable) == (cost.level, cost.affordable)
        return results if same else []

    def beside(self, item: Item) -> list[Item]:
        """Return a unit and those on the same case that are planned here too."""
        names = (id.partition("@")[0] for id in self.item_ids if id.endswith(f"@{item.case.key}") and self.owes(id))
        return [Item(name, item.case) for name in dict.fromkeys([item.property_name, *names])]

    def pool(
        self, results: Sequence[Result], each: Map | None = None, cases: Mapping[str, Case] | None = None
    ) -> tuple[list[Result], list[str]]:
        """Return the results of the pools, once those of all cases are there, and why pools have none.

        A shard has no pools: they are of the whole run.

        Parameters
        ----------
        results : sequence of Result
            Of single cases.
        each : callable, optional
            Applies a function to further looks, as `map` does, and imports the subject; this process by default.
        cases : mapping of str to Case, optional
            Cases by key, where they are at hand.
        """
        if self.shard is not None:
            return [], []
        subject = self.subject if each is None else self.subject.name
        bad = [case_key(result) for result in violated(results)]
        with own_arithmetic():
            return examine_pools(pools_of(results), bad, fresh(subject, self.seed, each or map, cases), self.level)

    def conclude(self, results: Sequence[Result], theory: Sequence[StatementResult] = ()) -> Conclusion:
        """Return what results, and statements of attncheck's own theory, come to, against the plan."""
        planned = [each.id for each in self.owed] + [each for each in self.theory_ids if self.owes(each)]
        planned += self._owed_pools(results)
        with own_arithmetic():
            conclusion = ledger_of(planned, self.seed, [*results, *theory]).conclude(self.budget)
        if self.shard is not None:
            return conclusion.of_part()
        return conclusion.unless(Scope.of_results(results).doubt(self.min_examined))

    def _owed_pools(self, results: Sequence[Result]) -> list[str]:
        """Return the pools that results make; where single cases are missing, no more than there are."""
        single = [result for result in results if not of_pool(result)]
        if self.shard is None and {planned.id for planned in self.planned} <= {result.id for result in single}:
            return [pool.id for pool in pools_of(single)]
        return [result.id for result in results if of_pool(result)]

    def manifest(self) -> Manifest:
        """Return the first line of the record."""
        return manifest_of(
            seed=self.seed,
            profile=self.profile.name,
            false_alarm=self.budget.false_alarm,
            level=self.level,
            subject=self.subject.name,
            planned=self.planned,
            statements=self.theory_ids,
            fixed=[case.key for case in self.fixed_cases],
            shard=None if self.shard is None else (self.shard.number, self.shard.of),
            draws=self.draws,
        )


def _count(text: str) -> int | float:
    """Read a count as people write large ones, 1000000 or 1e6."""
    number = float(text)
    return int(number) if number.is_integer() else number


def _typed(value: Any, kind: Callable[[str], Any]) -> Any:
    """Return what a person typed as a number where it is one; the check that follows refuses the rest."""
    try:
        # Python reads 1_0 as 10.
        return kind(value) if isinstance(value, str) and "_" not in value else value
    except ValueError:
        return value
