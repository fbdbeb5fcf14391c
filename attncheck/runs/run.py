"""A run: its settings, items and conclusion, for all front ends."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError, check_choice, check_integer, check_number, refuse
from attncheck._lib.imports import is_within
from attncheck._lib.names import grouped
from attncheck._lib.workers import Workers
from attncheck.checks.registered import load_checks, modules_with, registrations
from attncheck.checks.registry import EVERY_PROPERTY, all_properties, checks_of
from attncheck.evidence.ledger import Conclusion
from attncheck.evidence.looks import ROOM, Budget
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case
from attncheck.looks.domains import LAYERS, PROGRAMS, domain_of
from attncheck.looks.examples import draw_examples, layers_with_parts, random_layers
from attncheck.looks.item import Item
from attncheck.looks.pools import examine_pools, fresh, most_pools, pools_of
from attncheck.looks.profiles import Profile, profile_named
from attncheck.looks.result import violated
from attncheck.looks.substitutes import substitute
from attncheck.records.manifest import environment_fields
from attncheck.records.run_record import ledger_of
from attncheck.records.schema import Manifest, PlannedResult, Result, case_key, of_pool
from attncheck.records.scope import Scope
from attncheck.runs.options import RunOptions, count, typed
from attncheck.runs.tasks import CaseTask
from attncheck.subject import DEFAULT_SUBJECT, Subject


@dataclasses.dataclass(frozen=True)
class Run:
    """Settings of a run and its planned test items, whose results do not depend on each other.

    Attributes
    ----------
    subject : Subject
    seed : int
    profile : Profile
    budget : Budget
    record : Path or None
    draws : int or None
        With the profile thorough, number of draws that a look may always take, whatever their cost.
    item_ids : tuple of str
        The planned test items; empty until `planning`.
    explains : bool
        Whether to diagnose and illustrate violated results (slow).
    min_examined : int or None
        Number of examined results below which the run is inconclusive; default in `attncheck.records.scope`.
    only : tuple of str
        The properties to examine; all if empty.
    checks : tuple of str
        Modules whose registered checks are examined too.
    """

    subject: Subject
    seed: int
    profile: Profile
    budget: Budget
    record: Path | None = None
    draws: int | None = None
    item_ids: tuple[str, ...] = ()
    explains: bool = True
    min_examined: int | None = None
    only: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: RunOptions) -> Run:
        """Build a run from options; raises InputError naming option, value and remedy."""
        load_checks(options.checks)
        profile, draws, least = profile_named(options.profile), options.draws, options.min_examined
        if draws is not None:
            if not profile.fewest_draws:
                refuse("draws", draws, f"has no effect with the profile {profile.name}", "use the profile thorough")
            draws = check_integer("draws", typed(draws, count), 1, "pass e.g. 1e4")
            profile = dataclasses.replace(profile, fewest_draws=draws)
        if least is not None:
            fewest = "pass the number of results that must be examined, e.g. 100"
            least = check_integer("min_examined", typed(least, int), 0, fewest)
        chance = typed(options.false_alarm, float)
        budget = Budget(check_number("false_alarm", chance, "pass a chance such as 1e-6", above=0.0))
        subject = Subject.of(DEFAULT_SUBJECT if options.subject is None else options.subject)
        if options.timeout is not None:
            limit = check_number("timeout", typed(options.timeout, float), "pass seconds", above=0.0)
            subject = dataclasses.replace(subject, timeout=limit)
        only = [name for text in options.only for name in text.split(",")]
        for name in only:
            kind = domain_of(check_choice("only", name, all_properties())).kind
            if not subject.simulates(kind):
                refuse("only", name, f"needs {kind}s, which {subject.name} does not simulate", "name another property")
        return cls(
            subject=subject,
            seed=check_integer("seed", typed(options.seed, int), 0, "pass a whole number, or random"),
            profile=profile,
            budget=budget,
            record=options.record,
            draws=draws,
            min_examined=least,
            only=tuple(only),
            checks=tuple(options.checks),
        )

    def planning(self, item_ids: Iterable[str]) -> Run:
        """Return the run with its planned test items; raises InputError if these are too many for the budget."""
        run = dataclasses.replace(self, item_ids=tuple(dict.fromkeys(item_ids)))
        counts = Counter(item.partition("@")[0] for item in run.item_ids)
        number = len(run.planned) + most_pools(name for name, count in counts.items() if count > 1)
        if number > ROOM:
            problem = f"are more results, pools included, than the {ROOM:,} that the false-alarm budget allows"
            refuse("plan", f"{number:,}", problem, "examine fewer layers, or select properties with the option only")
        return run

    @property
    def planned(self) -> list[PlannedResult]:
        """All planned results on single cases, without pools."""
        results = []
        for item in self.item_ids:
            name, _, layer = item.partition("@")
            results += [PlannedResult(f"{check.name}@{layer}", item, check.name) for check in checks_of(name)]
        return results

    @functools.cached_property
    def fixed_cases(self) -> list[Case]:
        """Planned cases that do not depend on the seed."""
        layers = self.subject.layers or [*self.profile.layers, *self._substitutes(self.profile.layers)]
        programs = [case for name in PROGRAMS.properties for case in PROGRAMS.fixed(name, self.profile)]
        planned = {item.partition("@")[2] for item in self.item_ids}
        return [case for case in (*layers, *programs) if case.key in planned]

    @property
    def planned_layers(self) -> list[AttentionLayer]:
        """The planned layers: the fixed ones, and the random ones on which all properties are tested."""
        planned = {item.partition("@")[2] for item in self.item_ids}
        cases = [*self.fixed_cases, *random_layers(self.profile.examples, self.seed, self.profile.layers)]
        return [case for case in cases if isinstance(case, AttentionLayer) and case.key in planned]

    def header(self) -> str:
        """Return one line on subject, seed, profile and budget."""
        return (
            f"attncheck: subject {self.subject.name}, seed {self.seed}, profile {self.profile.name}, "
            f"false-alarm budget {self.budget.false_alarm:g}"
        )

    @property
    def registered(self) -> list[str]:
        """The registered properties that are listed in `only`, or defined in a module listed in `checks`."""
        names = {registration.check.property_name: registration for registration in registrations()}
        return [name for name, one in names.items() if name in self.only or is_within(one.module, self.checks)]

    @property
    def all_items(self) -> list[Item]:
        """Return the test items of attncheck's own properties and of the registered properties of the run.

        Raises
        ------
        InputError
            If there is nothing to examine.
        """
        names = (*EVERY_PROPERTY, *self.registered)
        items = [item for name in names for item in self.items(name)]
        if not items:
            problem = f"leaves nothing to examine of {self.subject.name}"
            refuse("only", list(self.only), problem, "choose other properties")
        return list(dict.fromkeys(items))

    def items(self, name: str, strategy: Any = None) -> list[Item]:
        """Return the test items of a property, on fixed cases and on random cases.

        All properties are tested on the same random cases, except if there is a hypothesis strategy, from which the
        cases of this property are drawn. A subject that comes with its own layers is tested on these only. Layers that
        the subject does not support stay in the plan as not examined, and substitutes for them are added.
        """
        profile, domain = self.profile, domain_of(name)
        if (self.only and name not in self.only) or not self.subject.simulates(domain.kind):
            return []
        if domain is LAYERS and self.subject.layers:
            return self.items_on(name, self.subject.layers)
        if strategy is None:
            drawn = [*domain.random(name, profile, self.seed), *(self._with_parts() if domain is LAYERS else ())]
        else:
            count = profile.examples if domain is LAYERS else profile.program_examples
            drawn = draw_examples(strategy, count, self.seed, name)
        cases = [*domain.fixed(name, profile), *drawn]
        return self.items_on(name, [*cases, *self._substitutes(cases)])

    def _with_parts(self) -> list[AttentionLayer]:
        """Return the random layers with an optional part, such as a window, that the subject declares to support."""
        if not (self.profile.parts and self.subject.declares_support):
            return []
        with contextlib.suppress(InputError):  # a failing declaration is reported with the first result
            return [layer for layer in layers_with_parts(self.seed) if not self.subject.reason_unsupported(layer)]
        return []

    def _substitutes(self, cases: Iterable[Case]) -> Iterator[AttentionLayer]:
        """Yield substitutes for layers that the subject does not support."""
        layers = [case for case in cases if isinstance(case, AttentionLayer)]
        with contextlib.suppress(InputError):  # a failing declaration is reported with the first result
            for layer in layers:
                if self.subject.reason_unsupported(layer):
                    instead = substitute(layer, lambda candidate: not self.subject.reason_unsupported(candidate))
                    yield from () if instead is None else (instead,)

    def items_on(self, name: str, cases: Iterable[Case]) -> list[Item]:
        """Return the test items of a property on the distinct cases among `cases`.

        Raises InputError for different programs that cannot be told apart.
        """
        checks_of(name)
        distinct = list(dict.fromkeys(cases))
        for case in distinct:
            if sum(case.key == second.key for second in distinct) > 1:
                remedy = "give the functions names in a module, or examine one program at a time"
                problem = "is a program that differs from another one only in a function without a name"
                refuse("layer", case.describe(), problem, remedy)
        return [Item(name, case) for case in distinct]

    def tasks(self, items: Iterable[Item], travels: bool = False) -> list[CaseTask]:
        """Return test items as one task per case; with `travels`, the tasks can be sent to other processes."""
        subject = self.subject.sent if travels else self.subject
        return [
            CaseTask(
                subject,
                self.seed,
                tuple(of_case),
                self.profile.cost(of_case[0].case, self.budget),
                self.explains,
                modules_with(item.property_name for item in of_case),
            )
            for of_case in grouped(items, lambda item: item.case.key).values()
        ]

    def examine(self, items: Iterable[Item]) -> list[Result]:
        """Examine test items in this process and return their results; raises InputError for an unusable subject."""
        return [result for task in self.tasks(items) for result in task.results()]

    def pool(
        self, results: Sequence[Result], workers: Workers, cases: Mapping[str, Case] | None = None
    ) -> tuple[list[Result], list[str]]:
        """Examine pools of results; return the results of the pools, and the errors of further looks.

        Further looks are taken by `workers`. `cases`, by key, replaces the cases stored in the results.
        """
        subject = self.subject.sent if workers.travels else self.subject
        bad = [case_key(result) for result in violated(results)]
        with own_arithmetic():
            later = fresh(subject, self.seed, workers, cases)
            return examine_pools(pools_of(results), bad, later, self.budget.level())

    def conclude(self, results: Sequence[Result]) -> Conclusion:
        """Return the conclusion from the results, given the planned test items."""
        planned = [*(result.id for result in self.planned), *self._planned_pools(results)]
        with own_arithmetic():
            conclusion = ledger_of(planned, self.seed, results).conclude(self.budget)
        return conclusion.unless(Scope.of_results(results).doubt(self.min_examined))

    def _planned_pools(self, results: Sequence[Result]) -> list[str]:
        """Return the ids of all pools if all planned results on single cases are present, else of the pools so far."""
        single = [result for result in results if not of_pool(result)]
        if {planned.id for planned in self.planned} <= {result.id for result in single}:
            return [pool.id for pool in pools_of(single)]
        return [result.id for result in results if of_pool(result)]

    def manifest(self) -> Manifest:
        """Return the first line of the record."""
        planned = self.planned
        return Manifest(
            seed=self.seed,
            profile=self.profile.name,
            false_alarm=self.budget.false_alarm,
            level=self.budget.level(),
            subject=self.subject.name,
            planned=planned,
            fixed=sorted({case.key for case in self.fixed_cases}),
            draws=self.draws,
            min_examined=self.min_examined,
            **environment_fields(self.subject.name, planned),
        )
