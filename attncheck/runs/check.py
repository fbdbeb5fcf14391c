"""`attncheck.check`: the properties as a function call, for notebooks and other test suites."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attncheck._lib.errors import InputError, check_integer, refuse
from attncheck._lib.progress import counted_off
from attncheck._lib.workers import InProcess
from attncheck.checks.registry import EVERY_PROPERTY
from attncheck.evidence.ledger import Conclusion
from attncheck.evidence.looks import Budget
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import EXACT_WIDTHS
from attncheck.layers.names import layer_call
from attncheck.layers.program import Program
from attncheck.layers.stack import AttentionStack
from attncheck.looks.domains import PROGRAMS, case_of, domain_of
from attncheck.looks.item import Item
from attncheck.records.explanation import Explanation
from attncheck.records.run_record import closing_of, record_of
from attncheck.records.schema import Result
from attncheck.records.scope import Scope
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.runs.summary import labelled, summarize
from attncheck.runs.tasks import explained
from attncheck.runs.view import RunView

# Maximum number of displayed lines on the parts of a program that the theorem does not cover.
_NOTES = 6


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """Results and conclusion of `check`.

    Attributes
    ----------
    run : Run
    results : tuple of Result
        One per check and layer.
    conclusion : Conclusion
        Verdict over all results, with reasons.
    coverage : tuple of str
        Program lines not covered by the theorem, with the violated clause of Assumption 1 and a remedy.
    call : str
        The call that reproduces the report; empty for programs.
    pools : tuple of Result
        Results pooled over several layers.
    """

    run: Run
    results: tuple[Result, ...]
    conclusion: Conclusion
    coverage: tuple[str, ...] = ()
    call: str = ""
    pools: tuple[Result, ...] = ()

    @functools.cached_property
    def explanations(self) -> tuple[Explanation, ...]:
        """Likely causes of the violations, found by new draws when first accessed."""
        wrong = self.run.explains and self.violated
        results = (*self.results, *self.pools)
        return explained(self.run.subject, results, self.run.seed) if wrong else ()

    @functools.cached_property
    def view(self) -> RunView:
        """View of the report, for display."""
        results = [*self.results, *self.pools]
        closing = closing_of(self.conclusion, results, 0.0, explanations=list(self.explanations))
        return RunView(record_of(None, [self.run.manifest(), *results, closing]), self.call)

    @property
    def causes(self) -> tuple[str, ...]:
        """Likely causes of violations as text, most likely first."""
        return tuple(map(str, self.explanations))

    @property
    def verdict(self) -> str:
        """One of "consistent", "violated" and "inconclusive"."""
        return self.conclusion.verdict

    @property
    def violated(self) -> tuple[Result, ...]:
        """Violated results: first of single layers, then of pools."""
        return tuple(result for result in (*self.results, *self.pools) if result.verdict == "violated")

    def require(self, min_examined: int | None = None) -> None:
        """Raise AssertionError unless the verdict is consistent.

        Parameters
        ----------
        min_examined : int, optional
            Minimum number of examined results for a pass.

        Examples
        --------
        >>> layer = AttentionLayer(width=8, seq_len=2, num_heads=1)
        >>> report = check("attncheck.subject:collapsed", layer, properties=["scores"], profile="smoke")
        >>> report.require(min_examined=10)
        >>> report.require(min_examined=1000)
        Traceback (most recent call last):
        ...
        AssertionError: 10 results were examined, 1,000 are required
        """
        __tracebackhide__ = True  # makes pytest show the caller's line
        fewest = None
        if min_examined is not None:
            fewest = check_integer("min_examined", min_examined, 0, "pass the number of results that must be examined")
        conclusion = self.conclusion.unless(Scope.of_results(self.results).doubt(fewest))
        if conclusion.verdict != "consistent":
            raise AssertionError("\n".join([*conclusion.reasons, *labelled(self.view.lines)]))

    def __str__(self) -> str:
        notes = [f"  {line}" for line in self.coverage[:_NOTES]]
        notes += [f"  and {len(self.coverage) - _NOTES} more lines"] * (len(self.coverage) > _NOTES)
        uncovered = ["\n".join(["Not proved by the paper:", *notes])] if notes else []
        return "\n\n".join([summarize(self.view), *uncovered])


def check(
    subject: Any,
    layer: AttentionLayer | Program | Iterable[AttentionLayer | Program],
    *,
    width: int = EXACT_WIDTHS[0],
    properties: str | Iterable[str] = EVERY_PROPERTY,
    seed: int = 0,
    profile: str = "default",
    false_alarm: float = 1e-6,
) -> CheckReport:
    """Test a simulator against the theorem on one or several layers or programs.

    Parameters
    ----------
    subject : callable or str
        ``subject(layer, size, rng)`` or ``subject(layer, inputs, rng)`` returning a mapping of arrays, or its name
        ``module:callable``; see `attncheck.subject.Subject`. For programs ``subject(program, width, size, rng)``, or
        "attncheck.subject:direct" for attncheck's own simulator.
    layer : AttentionLayer, Program, or iterable of them
    width : int
        Width at which exact properties of programs are tested; properties on rates are tested at widths of their own.
    properties : str or iterable of str
        Names of properties, which may be registered ones; by default all of attncheck's own properties.
    seed : int
        The run seed, which determines all random numbers.
    profile : {"smoke", "default", "thorough"}
        Cost limit of a look.
    false_alarm : float
        Probability that a correct simulator has any violated result in this call.

    Returns
    -------
    CheckReport
        Print it, inspect its ``results``, or call ``require()``.

    Raises
    ------
    InputError
        If the subject cannot be called or returns unusable arrays.

    Notes
    -----
    If standard error is a terminal, a progress bar is shown. BLAS is limited to one thread during the call, for the
    whole process. For a subject given by name, the current folder is added to ``sys.path``.

    Examples
    --------
    >>> from attncheck import AttentionLayer
    >>> layer = AttentionLayer(width=8, seq_len=2, num_heads=1)
    >>> report = check("attncheck.subject:collapsed", layer, properties=["scores"], profile="smoke")
    >>> report.verdict
    'consistent'
    >>> from attncheck.programs import recurrent
    >>> check("attncheck.subject:direct", recurrent(2), properties=["netsor"], profile="smoke").verdict
    'consistent'
    """
    layers, names = _listed(layer), list(dict.fromkeys(_listed(properties)))
    for case in layers:
        if isinstance(case, AttentionStack):
            refuse("layer", case, "is a stack, whose limit is a conjecture", "examine its layers, e.g. stack.layer")
        if not isinstance(case, AttentionLayer | Program):
            remedy = "pass attncheck.AttentionLayer(width=...), or an attncheck.Program and width=..."
            refuse("layer", case, "is not an AttentionLayer or a Program", remedy)
    exact_width = check_integer("width", width, 1, "pass the number of neurons, e.g. width=16")
    options = RunOptions(subject=subject, seed=seed, profile=profile, false_alarm=false_alarm, timeout=None)
    run = Run.of(options)
    items = [item for name in names for item in _items(run, name, layers, exact_width)]
    if not items:
        field, value = ("properties", names) if layers else ("layer", layers)
        refuse(field, value, "leaves nothing to examine", "pass at least one layer and one property")
    run = run.planning(item.id for item in items)
    tasks = run.tasks(items)
    single = [result for task in counted_off(tasks, "examining") for result in task.results()]
    pools, failed = run.pool(single, InProcess(), {item.case.key: item.case for item in items})
    if failed:
        raise InputError(failed[0])
    written = [case for case in layers if isinstance(case, Program)]
    notes = (str(line) for program in written for line in program.coverage().lines if not line.statement.proved)
    call = "" if written else _call(subject, layers, names, run)
    conclusion = run.conclude([*single, *pools])
    return CheckReport(run, tuple(single), conclusion, tuple(dict.fromkeys(notes)), call, tuple(pools))


def _call(subject: Any, layers: Sequence[AttentionLayer], names: Sequence[str], run: Run) -> str:
    """Return the call of `check` that reproduces a run on layers."""
    name = getattr(subject, "__qualname__", "subject")
    arguments = [
        repr(subject) if isinstance(subject, str) else name if name.isidentifier() else "subject",
        _one_or_list([layer_call(layer) for layer in layers]),
        *([] if set(names) == set(EVERY_PROPERTY) else [f"properties={names!r}"]),
        f"seed={run.seed}",
        f"profile={run.profile.name!r}",
        *([] if run.budget == Budget() else [f"false_alarm={run.budget.false_alarm!r}"]),
    ]
    return f"attncheck.check({', '.join(arguments)})"


def _one_or_list(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _items(run: Run, name: str, layers: Iterable[AttentionLayer | Program], width: int) -> list[Item]:
    """Return the test items of a property on those layers or programs to which it applies."""
    of_kind = [case for case in layers if isinstance(case, Program) == (domain_of(name) is PROGRAMS)]
    return run.items_on(name, [case_of(name, case, width) for case in of_kind])


def _listed(value: Any) -> list[Any]:
    """Return an iterable as a list, and a single object as a list of one."""
    single = isinstance(value, str | AttentionLayer | Program | Mapping) or not isinstance(value, Iterable)
    return [value] if single else list(value)
