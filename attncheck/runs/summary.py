"""What a terminal shows at the end of a run: the verdict first, a table of properties, and what it could have seen."""

from __future__ import annotations

import dataclasses
import io
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from attncheck._lib.words import chance, counted, gap_text, span
from attncheck.checks.registry import PROGRAM_PROPERTIES, checks_of
from attncheck.diagnosis.causes import causes
from attncheck.evidence.ledger import Conclusion
from attncheck.evidence.verdicts import Verdict
from attncheck.evidence.words import expected
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.features import FEATURES, features_of
from attncheck.layers.names import layer_call
from attncheck.layers.program import features as program_features
from attncheck.looks.pools import ALL
from attncheck.records.gather import tallied
from attncheck.records.schema import Result, Theory, case_key, of_pool, run_digest
from attncheck.records.scope import Scope
from attncheck.records.words import reads, replay_command, telling
from attncheck.runs.run import Run

#: The checks that a summary tells the detectable gaps of: of each claim the first one that was examined.
MAIN_CHECKS = (
    "scores.scale",
    "exactness.score_energy",
    "conditional.scale",
    "outputs.law",
    "exactness.output_energy",
    "exactness.output_given_scores",
    "non_gaussianity.output_energy",
    "outputs.limit",
    "program_scores.scale",
    "theorem1.order",
    "corollary2.output_size",
)

#: What ends the summary of a consistent run.
NOT_PROVED = (
    "Not ruled out: smaller errors than these, and what no check looks at; see `attncheck power`, and in the README "
    "'What a green run proves, and what it does not'."
)
# Likely causes that a summary names.
_CAUSES = 3
# Violated pools that it shows.
_POOLS = 8


def summarize(
    run: Run, results: Sequence[Result], conclusion: Conclusion, color: bool = False, theory: Sequence[Theory] = ()
) -> str:
    """Return the verdict in a sentence, the table, and what was not examined.

    Parameters
    ----------
    run : Run
    results : sequence of Result
    conclusion : Conclusion
    color : bool
        Whether the terminal understands escape codes.
    theory : sequence of Theory
        Statements of the theory that the run examined besides.
    """
    single, pools = [each for each in results if not of_pool(each)], [each for each in results if of_pool(each)]
    parts = [verdict_sentence(run, results, conclusion), *all_refused(run, single), *usual_causes(single)]
    if results:
        parts += [render_table(_table(single), color), *together(pools), *skipped(single)]
        parts += [*detectable(single, pools), *unseen(single)]
    parts += [*visited_layers(single), *visited_programs(single), *of_theory(run, theory)]
    if conclusion.uniformity is not None:
        test = conclusion.uniformity
        parts.append(
            f"First-look p-values of {counted(test.count, 'unit')} against uniform: distance {test.effect:.3f}, "
            f"p = {chance(test.p_value)}"
        )
    if conclusion.verdict == "consistent":
        parts.append(NOT_PROVED)
    parts.append(f"Digest of all digits: {run_digest([*results, *theory])}")
    if run.record is not None:
        parts.append(f"Record: {run.record}")
    return "\n".join(parts)


def of_theory(run: Run, theory: Sequence[Theory]) -> list[str]:
    """Return a line on the statements of the theory, if there are any, and one for each that does not hold."""
    if not theory:
        return []
    refuted = [each for each in theory if each.verdict == Verdict.VIOLATED]
    seconds = sum(each.seconds for each in theory)
    told = f"Theory, without the subject: {len(theory) - len(refuted)} of {counted(len(theory), 'statement')} hold"
    lines = [f"{told}, {seconds:.0f} seconds of all workers."]
    for each in refuted:
        again = f"; repeat it: {replay_command(run.record, each.id, '')}" if run.record else ""
        lines.append(f"  {each.id} ({each.case}): {each.reason}{again}")
    return lines


def together(pools: Sequence[Result]) -> list[str]:
    """Return a line on what all configurations say together, if they were pooled, and one for each violated pool."""
    examined = [each for each in pools if each.p_values]
    if not examined:
        return []
    counts = Counter(each.verdict for each in examined)
    told = ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in Verdict if counts[verdict])
    smallest = min(examined, key=lambda each: each.p_values[0])
    lines = [
        f"Together: {counted(len(examined), 'pool')} of configurations, {told}; smallest first p "
        f"{chance(smallest.p_values[0])} ({smallest.id})"
    ]
    return lines + [f"  {each.id}: {each.text}" for each in examined if each.verdict == Verdict.VIOLATED][:_POOLS]


def visited_layers(results: Iterable[Result]) -> list[str]:
    """Return a line on how many of the examined layers have what a layer may have, if there are any."""
    examined = [result.case for result in results if result.p_values and "program" not in result.case]
    layers = [AttentionLayer.from_dict(fields) for fields in {str(fields): fields for fields in examined}.values()]
    counts = Counter(feature for layer in layers for feature in features_of(layer))
    shares = ", ".join(f"{feature} {counts[feature]}" for feature in FEATURES)
    return [f"Layers visited: {len(layers)}; {shares}"] if layers else []


def visited_programs(results: Iterable[Result]) -> list[str]:
    """Return a line on how much of the theorem's generality the examined programs make use of, if there are any."""
    examined = [result.case for result in results if result.p_values and "program" in result.case]
    programs = {str(layer["program"]): layer["program"] for layer in examined}
    counts = Counter(feature for program in programs.values() for feature in program_features.features_of(program))
    if not programs:
        return []
    shares = ", ".join(f"{feature} {counts[feature]}" for feature in program_features.FEATURES)
    return [f"Programs visited: {len(programs)}; {shares}"]


def verdict_sentence(run: Run, results: Sequence[Result], conclusion: Conclusion) -> str:
    """Return the verdict with its false-alarm budget, and the reasons where it is not a pass."""
    examined = [result for result in results if result.p_values and not of_pool(result)]
    pools = sum(bool(result.p_values) and of_pool(result) for result in results)
    claims = len({result.claim for result in examined})
    cases = len({str(result.case) for result in examined})
    text = (
        f"{Scope.of_results(results).beside(conclusion.verdict)}: {run.subject.name}, {len(examined):,} of "
        f"{counted(len(run.planned), 'planned result')} examined, on {counted(claims, 'claim')} and "
        f"{counted(cases, 'configuration')}{f', and {pools:,} of them together' if pools else ''}; the chance of a "
        f"false alarm was set to {run.budget.false_alarm:g} before the run."
    )
    return "\n".join([text, *(f"  {reason}" for reason in conclusion.reasons)])


def all_refused(run: Run, results: Sequence[Result]) -> list[str]:
    """Return a line on what was asked for and what to widen, where the subject supports none of the layers."""
    fields = {str(result.case): result.case for result in results if "program" not in result.case}
    layers = [AttentionLayer.from_dict(each) for each in fields.values()]
    if not layers or any(result.p_values for result in results) or not all(map(run.subject.reason_unsupported, layers)):
        return []
    plainest = min(layers, key=lambda layer: (len(features_of(layer)), -layer.weight_entries, layer.describe()))
    call = layer_call(plainest)
    refused = "the layer" if len(layers) == 1 else f"all {len(layers)} layers"
    return [
        f"{run.subject.name}.supports refuses {refused} that it was asked for: {_values(layers)}. "
        f"Widen it, to {call} for example, or pass layers that it supports to attncheck.check."
    ]


def _values(layers: Sequence[AttentionLayer]) -> str:
    """Return the values of the fields of layers, where they are not the defaults.

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


def usual_causes(results: Sequence[Result]) -> list[str]:
    """Return what usually causes the violations, as the report has it; empty where nothing is violated."""
    found = causes(tallied(results))[:_CAUSES]
    lines = [
        f"  {place}. {cause.hint or 'no cause is on file'} ({cause.leading.name} is violated on "
        f"{cause.leading.verdicts[Verdict.VIOLATED]} of "
        f"{_cases(cause.leading.examined, cause.leading.name)}{_only(results, cause.leading.claim)})"
        for place, cause in enumerate(found, 1)
    ]
    return ["What usually causes this, the most telling first:", *lines] if lines else []


def _cases(count: int, check: str) -> str:
    """Return a count of what a check or property is about, layers or programs."""
    return counted(count, "program" if check.partition(".")[0] in PROGRAM_PROPERTIES else "layer")


def _only(results: Sequence[Result], claim: str) -> str:
    """Return the features that all layers have on which a claim is violated, and none has on which it is not."""
    examined = [each for each in results if each.claim == claim and each.p_values and "program" not in each.case]
    bad = {str(each.case): each.case for each in examined if each.verdict == Verdict.VIOLATED}
    good = {str(each.case): each.case for each in examined if str(each.case) not in bad}
    if not bad or not good:
        return ""
    of_bad, of_good = (
        [set(features_of(AttentionLayer.from_dict(layer))) for layer in layers.values()] for layers in (bad, good)
    )
    shared = set.intersection(*of_bad).difference(*of_good)
    return f"; only with {' and '.join(name for name in FEATURES if name in shared)}" if shared else ""


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    for column in ("property", "verdict"):
        table.add_column(column, no_wrap=True)
    for column in ("configurations", "examined", "draws", "smallest first p", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, group in _by_property(results):
        examined = [result for result in group if result.p_values]
        layers = {str(result.case): result for result in group}
        draws = sum(max(r.size for r in group if str(r.case) == layer) for layer in layers)
        smallest = chance(min(result.p_values[0] for result in examined)) if examined else "-"
        seconds = sum(max(r.seconds for r in group if str(r.case) == layer) for layer in layers)
        table.add_row(
            name,
            _verdict(group),
            _of(len({str(result.case) for result in examined}), len(layers)),
            _of(len(examined), len(group)),
            f"{draws:,}",
            smallest,
            f"{seconds:.1f}",
        )
    return table


def skipped(results: Sequence[Result]) -> list[str]:
    """Return the layers and programs on which nothing of a property was examined, counted by reason, if there are any.

    Where the checks of a property have several reasons on one layer, the most telling one counts.
    """
    told = []
    for name, group in _by_property(results):
        seen = {result.unit for result in group if result.p_values}
        reasons: dict[str, Counter[str]] = {}
        for result in group:
            if result.unit not in seen:
                reasons.setdefault(result.unit, Counter())[result.reason] += 1
        counts = Counter(telling(of_unit) for of_unit in reasons.values()).most_common()
        if counts:
            told += [f"  {name} on {_cases(count, name)}: {reason}" for reason, count in counts]
    return ["Skipped, nothing to examine:", *told] if told else []


def _of(part: int, whole: int) -> str:
    return f"{part}/{whole}" if part < whole else str(whole)


def _verdict(group: Iterable[Result]) -> str:
    """Return the worst verdict of a group."""
    found = {result.verdict for result in group}
    order = (Verdict.VIOLATED, Verdict.INCONCLUSIVE, Verdict.CONSISTENT, Verdict.NOT_EXAMINED)
    return next(str(verdict) for verdict in order if verdict in found)


def _by_property(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    names = sorted({result.property for result in results})
    return [(name, [result for result in results if result.property == name]) for name in names]


def detectable(results: Sequence[Result], pools: Sequence[Result] = ()) -> list[str]:
    """Return the detectable gaps of the main checks: of all cases together, of the median one and of the worst."""
    groups: dict[str, list[Result]] = {}
    for check in MAIN_CHECKS:
        group = [r for r in results if r.check == check and r.p_values and r.gap is not None]
        if group:
            groups.setdefault(group[0].claim, group)
    if not groups:
        return []
    power = min(result.power for result in results)
    common = {each.check: each for each in pools if each.p_values and case_key(each) == ALL}
    lines = [
        line
        for claim, group in groups.items()
        for line in (f"  {claim:16} {_gap_sentence(group)}", *_common_gap(common.get(group[0].check)))
    ]
    return [f"The smallest effect that this run had a chance of {power:.0%} to call violated:", *lines]


def _common_gap(pool: Result | None) -> list[str]:
    """Return the gap of all cases together, where they were pooled."""
    if pool is None or pool.gap is None:
        return []
    return [f"  {'':16} {gap_text(pool.gap)} on all together, {expected(pool)}: {reads(pool)}"]


def _gap_sentence(group: Sequence[Result]) -> str:
    ranked = sorted(group, key=lambda result: result.gap or 0.0)
    middle, worst = ranked[(len(ranked) - 1) // 2], ranked[-1]
    gaps = list(dict.fromkeys([gap_text(middle.gap), gap_text(worst.gap)]))
    told = " at the median, ".join(gaps) + (" at the worst of" if len(gaps) > 1 else " on")
    return f"{told} {_cases(len(group), middle.check)}, {expected(middle)}: {reads(middle)}"


def unseen(results: Sequence[Result], heading: str = "Not examined on any layer:") -> list[str]:
    """Return what no layer examined, grouped by the most telling reason, under a heading; whole properties in short."""
    by_reason: dict[str, list[str]] = {}
    for check in sorted({result.check for result in results}):
        group = [result for result in results if result.check == check]
        if any(result.p_values for result in group):
            continue
        by_reason.setdefault(telling(Counter(result.reason for result in group)), []).append(check)
    lines = [f"  {reason}: {', '.join(_in_short(checks))}" for reason, checks in by_reason.items()]
    return [heading, *lines] if lines else []


def _in_short(checks: Sequence[str]) -> list[str]:
    """Return names of checks, with those of a whole property as one.

    Examples
    --------
    >>> _in_short(["fact1.order", "netsor.scale", "theorem1.order", "theorem1.scores"])
    ['fact1.order', 'netsor.scale', 'theorem1 (2 checks)']
    """
    names: list[str] = []
    for name in dict.fromkeys(check.partition(".")[0] for check in checks):
        own = [check for check in checks if check.startswith(f"{name}.")]
        whole = len(own) > 1 and len(own) == len(checks_of(name))
        names += [f"{name} ({counted(len(own), 'check')})"] if whole else own
    return names


def render_table(table: Table, color: bool = False) -> str:
    """Return a table as text."""
    console = Console(file=io.StringIO(), width=180, force_terminal=color, legacy_windows=False)
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.rstrip()
