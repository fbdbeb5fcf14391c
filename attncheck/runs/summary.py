"""Terminal summary of a run: verdict, cause and numbers, then a table of properties."""

from __future__ import annotations

import dataclasses
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from attncheck._lib.text import chance, counted, listed, span
from attncheck.checks.registered import modules_with
from attncheck.diagnosis.causes import diagnosed, hints, sharpest_first, telling
from attncheck.evidence.ledger import Conclusion
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.features import FEATURES, features_of
from attncheck.layers.names import layer_call, layer_name
from attncheck.records.schema import Result, case_key, of_pool, run_digest
from attncheck.records.scope import Scope
from attncheck.records.tallies import Tally
from attncheck.records.text import replay_command, unexamined
from attncheck.runs import details
from attncheck.runs.details import by_property, layers_of, of_cases
from attncheck.runs.run import Run

#: Last line on a consistent run.
NOT_PROVED = (
    "Not ruled out: smaller errors, and anything that no check examines; see 'What a green run proves, and what it "
    "does not' in the README."
)
# Number of diagnosis sentences and of minimum detectable effects shown.
_OBSERVED, _MDES = 3, 3
# Number of violated pools shown.
_POOLS = 3


def summarize(
    run: Run,
    results: Sequence[Result],
    conclusion: Conclusion,
    color: bool = False,
    verbose: bool = False,
    call: str = "",
    causes: Sequence[str] = (),
    smaller: str = "",
    failed: Sequence[str] = (),
) -> str:
    """Return the summary of a run; `call` repeats it without a record, and `failed` has the errors of the subject.

    `causes` and `smaller` are those of `attncheck.runs.causes.Diagnosis`.

    `verbose` lists the checks that were examined on no case; `color` adds escape codes.
    """
    single, pools = [each for each in results if not of_pool(each)], [each for each in results if of_pool(each)]
    parts = [
        verdict_sentence(run, results, conclusion),
        *_failures(failed),
        *_unrepeatable(single),
        *all_refused(run, single),
        *what_is_wrong(run, results, call, causes, smaller),
    ]
    if any(each.p_values for each in single):
        numbers = ("cases", "examined", "draws", "smallest p-value")
        parts += [table_text(("property", "verdict"), numbers, _rows(single), color), *together(pools)]
    parts += details.unseen(single) if verbose else not_examined(single)
    if conclusion.verdict == "consistent" and run.item_ids:
        parts += [*details.mdes(single, pools)[:_MDES], NOT_PROVED]
    if conclusion.complete and all(each.repeatable for each in results):
        parts.append(f"Digest of all digits: {run_digest(results)}")
    if run.record is not None:
        parts.append(f"Record: {run.record}")
    return "\n".join(parts)


def _failures(failed: Sequence[str]) -> list[str]:
    """Return a line with the first error of the subject, if any."""
    more = f" (and {len(failed) - 1} more like it)" if len(failed) > 1 else ""
    return [f"  {'failed:':9} {failed[0]}{more}"] if failed else []


def _unrepeatable(results: Sequence[Result]) -> list[str]:
    """Return a line on draws that the generator does not determine, if any."""
    cases = {case_key(each): each.case for each in results if not each.repeatable}
    if not cases:
        return []
    on = layer_name(next(iter(cases.values()))) + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")
    text = f"not reproducible: equal generators gave different digits on {on}; draw all random numbers from rng."
    return [f"  {'draws:':9} {text} This run has no digest."]


def what_is_wrong(
    run: Run, results: Sequence[Result], call: str = "", causes: Sequence[str] = (), smaller: str = ""
) -> list[str]:
    """Return lines on the likely cause, its numbers, the smallest violated layer and a command; empty if none is."""

    def repeated(id: str) -> str:
        modules = modules_with([id.partition(".")[0]])
        return replay_command(run.record, id, run.subject.name, modules) if run.record else call

    told = wrong_in(telling(results), repeated, causes, smaller, lambda claim: _only(results, claim))
    return [f"  {word + ':':9} {text}" for word, text in told]


def wrong_in(
    tallies: Mapping[str, Tally],
    repeated: Callable[[str], str],
    causes: Sequence[str] = (),
    smaller: str = "",
    only: Callable[[str], str] = lambda claim: "",
) -> list[tuple[str, str]]:
    """Return pairs of label and text on violated checks, starting with "cause".

    `repeated(id)` returns the command that repeats a result; `only(claim)` returns a text on the features that all
    layers violating the claim share and no others have. Without `causes`, the checks suggest some.
    """
    if not (found := sharpest_first(tallies)):
        return []
    leading = found[0]
    numbers, smallest = diagnosed(tallies), leading.smallest or leading.worst[0]
    again = repeated(smallest.id)
    alone = f"{leading.verdicts[Verdict.VIOLATED]} of {of_cases(leading.examined, leading.name)}{only(leading.claim)}"
    where = "several cases pooled, on none of them alone" if of_pool(smallest) else alone
    first = f"{leading.name} on {where}: {smallest.text}; p = {', '.join(map(chance, smallest.p_values))}"
    named = layer_name(smallest.case) + ", the smallest of them" * (leading.verdicts[Verdict.VIOLATED] > 1)
    return [
        *(("or" if place else "cause", words) for place, words in enumerate(causes or hints(tallies))),
        *(("observed", sentence) for sentence in (numbers.diagnosis if numbers else [])[:_OBSERVED]),
        ("first", first),
        ("cases" if of_pool(smallest) else "layer", named),
        *([("smaller", f"{smaller} (on fresh draws; not a verdict)")] if smaller else []),
        *([("replay", again)] if again else []),
    ]


def not_examined(results: Sequence[Result]) -> list[str]:
    """Return a line on arrays that would let more checks run if returned, and one on other results not examined."""
    return unexamined(Counter(result.reason for result in results if not result.p_values))


def together(pools: Sequence[Result]) -> list[str]:
    """Return a line on the pools, and one per violated pool."""
    examined = [each for each in pools if each.p_values]
    if not examined:
        return []
    counts = Counter(each.verdict for each in examined)
    why = {Verdict.EXPLAINED: " by violated cases"}
    told = ", ".join(f"{counts[verdict]:,} {verdict}{why.get(verdict, '')}" for verdict in Verdict if counts[verdict])
    smallest = min(examined, key=lambda each: each.p_values[0])
    lines = [
        f"Pooled: {counted(len(examined), 'check')} of several cases together, {told}; smallest p-value "
        f"{chance(smallest.p_values[0])} ({smallest.id})"
    ]
    return lines + [f"  {each.id}: {each.text}" for each in examined if each.verdict == Verdict.VIOLATED][:_POOLS]


def verdict_sentence(run: Run, results: Sequence[Result], conclusion: Conclusion) -> str:
    """Return the verdict with its scope and false-alarm budget, and reasons."""
    examined = [result for result in results if result.p_values and not of_pool(result)]
    pools = sum(bool(result.p_values) and of_pool(result) for result in results)
    claims = len({result.claim for result in examined})
    cases = len(set(map(case_key, examined)))
    planned = len(run.planned)
    bad = sum(result.verdict == Verdict.VIOLATED for result in results)
    text = (
        f"{Scope.of_results(results).beside(conclusion.verdict)}: {run.subject.name}, "
        f"{f'{bad:,} violated, ' if bad else ''}{len(examined):,} of {counted(planned, 'planned result')} examined on "
        f"{counted(claims, 'claim')} and {counted(cases, 'case')}"
        f"{f', plus {pools:,} pooled over cases' if pools else ''}; false-alarm probability set to "
        f"{run.budget.false_alarm:g} before the run."
    )
    # If results are violated, their cause is shown, and non-uniform p-values add no information.
    told = [each.text for each in conclusion.findings if not (bad and each.verdict == Verdict.VIOLATED)]
    return "\n".join([text, *(f"  {reason}" for reason in told)])


def all_refused(run: Run, results: Sequence[Result]) -> list[str]:
    """Return a line on the requested layers if the subject supports none of them."""
    layers = layers_of(results)
    # An interrupted run has not tried all layers.
    asked = bool(layers) and len(results) >= len(run.planned)
    if not asked or any(each.p_values for each in results) or not all(map(run.subject.reason_unsupported, layers)):
        return []
    plainest = min(layers, key=lambda layer: (len(features_of(layer)), -layer.weight_entries, layer.describe()))
    call = layer_call(plainest)
    refused = "the layer" if len(layers) == 1 else f"all {len(layers)} layers"
    return [
        f"{run.subject.name}.supports rejects {refused} requested: {_values(layers)}. "
        f"Extend it, e.g. to {call}, or pass supported layers to attncheck.check."
    ]


def _values(layers: Sequence[AttentionLayer]) -> str:
    """Return the non-default field values of layers.

    Examples
    --------
    >>> _values([AttentionLayer(width=8), AttentionLayer(width=16, mask="causal")])
    'width 8 to 16, mask none or causal'
    >>> _values([AttentionLayer(width=8), AttentionLayer(width=8, head_dim=2, head_scaling=False)])
    'width 8, head_dim None or 2, head_scaling True or False'
    """
    told = []
    for field in dataclasses.fields(AttentionLayer):
        values = list(dict.fromkeys(getattr(layer, field.name) for layer in layers))
        if values == [field.default]:
            continue
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        others = [str(value) for value in values if value not in numbers or isinstance(value, bool)]
        text = " or ".join([*others, *([span([min(numbers), max(numbers)])] if numbers else [])])
        told.append(f"{field.name} {text}")
    return ", ".join(told)


def _only(results: Sequence[Result], claim: str) -> str:
    """Return the features that all layers violating a claim share and no others have."""
    examined = [each for each in results if each.claim == claim and each.p_values]
    bad = layers_of(each for each in examined if each.verdict == Verdict.VIOLATED)
    good = [layer for layer in layers_of(examined) if layer not in bad]
    if not bad or not good:
        return ""
    shared = set.intersection(*(set(features_of(layer)) for layer in bad)).difference(*map(features_of, good))
    return f"; only with {listed(name for name in FEATURES if name in shared)}" if shared else ""


def _rows(results: Sequence[Result]) -> Iterator[tuple[str, ...]]:
    for name, group in by_property(results):
        examined = [result for result in group if result.p_values]
        if not examined:
            continue
        cases = {case_key(result) for result in group}
        draws = sum(max(result.size for result in group if case_key(result) == case) for case in cases)
        yield (
            name,
            str(Verdict.worst(result.verdict for result in group)),
            _of(len(set(map(case_key, examined))), len(cases)),
            _of(len(examined), len(group)),
            f"{draws:,}",
            chance(min(result.p_values[0] for result in examined)),
        )


def _of(part: int, whole: int) -> str:
    return f"{part}/{whole}" if part < whole else str(whole)


def table_text(words: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]], color: bool = False) -> str:
    """Return a table with columns of words, then columns of numbers."""
    table = Table(box=SIMPLE, pad_edge=False)
    for column in words:
        table.add_column(column, no_wrap=True)
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    written = io.StringIO()
    console = Console(file=written, width=180, force_terminal=color, legacy_windows=False, markup=False, emoji=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines() if line.strip())
