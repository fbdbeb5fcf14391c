"""``attncheck check``: a verdict on files of samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attncheck._lib.errors import refuse
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.streams import seed_sequence
from attncheck._lib.text import chance, counted, mde_text
from attncheck.checks.sample import Sample
from attncheck.diagnosis.differences import differences
from attncheck.diagnosis.sources import Violations, explanations
from attncheck.evidence.ledger import Conclusion
from attncheck.evidence.looks import Budget
from attncheck.evidence.verdicts import Verdict, allowed
from attncheck.layers.attention import AttentionLayer
from attncheck.records.explanation import Explanation
from attncheck.records.manifest import environment_fields
from attncheck.records.run_record import closing_of, ledger_of, record_of
from attncheck.records.schema import Line, Manifest, PlannedResult, Result, case_key, of_pool
from attncheck.records.scope import Scope
from attncheck.records.writer import Writer
from attncheck.runs.samples.examine import BLOCKS, examine_samples
from attncheck.runs.samples.files import Samples, read_samples
from attncheck.runs.summary import labelled, table_text, unexamined_lines
from attncheck.runs.view import EXPLAINING, RunView
from attncheck.simulators.weights import GAUSSIAN, WeightLaws

# Draws used for a diagnosis.
_DIAGNOSED = 4_000


def check_files(
    layers: Sequence[Path],
    samples: Sequence[Path],
    record: Path | None = None,
    *,
    weights: str = GAUSSIAN,
    seed: int = 0,
    false_alarm: float = 1e-6,
    trust: Sequence[str] = (),
) -> tuple[ExitCode, str]:
    """Examine files of samples, each with a TOML file that describes its layer.

    Return the exit code and the text to print. `trust` names modules whose functions a layer may use.
    """
    if len(layers) != len(samples):
        problem = f"are {counted(len(layers), 'layer')} for {counted(len(samples), 'file')}"
        refuse("layer", [str(path) for path in layers], problem, "pass one --layer per --samples")
    budget, laws = Budget(false_alarm), WeightLaws.read(weights)
    described = [AttentionLayer.from_toml(path, trust) for path in layers]
    files = [read_samples(path, layer) for layer, path in zip(described, samples, strict=True)]
    single, pools = examine_samples(files, seed=seed, false_alarm=false_alarm, laws=laws)
    bad = {case_key(result) for result in single if result.verdict == Verdict.VIOLATED}
    wrong = tuple(file.sample for file in files if file.sample.layer.key in bad)
    violations = Violations((*single, *pools), seed, laws, files=wrong)
    lines = _lines_of(files, [*single, *pools], budget, seed, explanations(violations))
    if record is not None:
        _write(record, lines)
    view = RunView(record_of(record, lines))
    return ExitCode.of(view.verdict), _summary(view, files, _observed(wrong, seed, laws))


def conclude_files(results: Sequence[Result], budget: Budget, seed: int) -> Conclusion:
    """Return the conclusion on files of samples; it is inconclusive if too few checks of laws could run."""
    conclusion = ledger_of([result.id for result in results], seed, results).conclude(budget)
    reason = Scope.of_results(results).doubt()
    return conclusion.unless(reason and f"no file has enough draws and arrays: {reason}")


def _lines_of(
    files: Sequence[Samples], results: Sequence[Result], budget: Budget, seed: int, causes: Sequence[Explanation]
) -> list[Line]:
    """Return the lines of the record."""
    planned = [PlannedResult(result.id, result.item, result.check) for result in results if not of_pool(result)]
    source = ", ".join(file.source for file in files)
    manifest = Manifest(
        seed=seed,
        profile="samples",
        false_alarm=budget.false_alarm,
        level=min((result.level for result in results), default=budget.false_alarm),
        subject=source,
        planned=planned,
        fixed=sorted(set(map(case_key, results))),
        **environment_fields(source, planned),
    )
    seconds = max((result.seconds for result in results), default=0.0)
    closing = closing_of(conclude_files(results, budget, seed), results, seconds, explanations=list(causes))
    return [manifest, *results, closing]


def _write(path: Path, lines: Sequence[Line]) -> None:
    writer = Writer(path)
    for line in lines:
        writer.write(line)
    writer.close()


def _summary(view: RunView, files: Sequence[Samples], observed: Sequence[str]) -> str:
    lines = [
        view.sentence,
        *(f"  {reason}" for reason in view.reasons),
        *labelled(pair for pair in view.lines if pair[0] in EXPLAINING),
        *labelled(("observed", sentence) for sentence in observed),
        f"A file has no fresh draws: {BLOCKS} disjoint blocks serve as looks. If blocks are too small for a check, the "
        "whole file is its only look.",
        *view.pooled,
    ]
    for file in files:
        of_file = [result for result in view.run.results if case_key(result) == file.sample.layer.key]
        lines += _table_of(file, of_file)
    return "\n".join(lines + unexamined_lines(view.unexamined_checks, "Not examined:"))


def _table_of(file: Samples, results: Sequence[Result]) -> list[str]:
    """Return the table of one file's checks."""
    head = f"{file.source}: {len(file):,} draws of {file.sample.layer.describe()}"
    examined = [result for result in results if result.p_values]
    rows = map(_row, sorted(examined, key=lambda result: (result.combined, min(result.p_values))))
    numbers = ("effect [99%]", "expected", "detectable", "draws", "p per look")
    table = [table_text(("check", "verdict"), numbers, rows)] if examined else []
    return [head, *table, *(f"  {r.check}: {r.reason}" for r in results if r.verdict == Verdict.INCONCLUSIVE)]


def _observed(wrong: Sequence[Sample], seed: int, laws: WeightLaws) -> list[str]:
    """Return messages on the observed differences in the first of the samples with a violation."""
    if not wrong:
        return []
    root = seed_sequence(seed, "samples", wrong[0].layer.key, role="diagnosis")
    return differences(wrong[0][:_DIAGNOSED], root, laws)


def _row(result: Result) -> tuple[str, ...]:
    return (
        result.check,
        result.verdict,
        f"{result.effect:.3g} [{result.low:.3g}, {result.high:.3g}]",
        allowed(result.null_effect, result.at_most),
        mde_text(result.mde),
        f"{result.size:,}",
        ", ".join(map(chance, result.p_values)),
    )
