"""``attncheck check``: a file of samples in, a verdict out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.box import SIMPLE
from rich.table import Table

from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.streams import seed_sequence
from attncheck._lib.words import chance, gap_text
from attncheck.diagnosis.differences import differences
from attncheck.diagnosis.messages import likely
from attncheck.evidence.budget import Budget
from attncheck.evidence.ledger import Conclusion, conclude
from attncheck.evidence.verdicts import Verdict
from attncheck.evidence.words import allowed
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.unit import violated
from attncheck.records.manifest import manifest_of
from attncheck.records.schema import Closing, Planned, Result, Writer, run_digest
from attncheck.records.scope import Scope
from attncheck.runs.samples.examine import BLOCKS, examine_samples
from attncheck.runs.samples.files import Samples, read_samples
from attncheck.runs.summary import render_table, unseen
from attncheck.simulators.weights import GAUSSIAN, WeightLaws

# Draws that a description in numbers is made from.
_DIAGNOSED = 4_000


def check_file(
    layer_path: Path,
    samples_path: Path,
    record: Path | None = None,
    *,
    weights: str = GAUSSIAN,
    seed: int = 0,
    false_alarm: float = 1e-6,
) -> tuple[ExitCode, str]:
    """Examine a file of samples; return the exit code and what to print.

    Parameters
    ----------
    layer_path : Path
        A TOML file with a ``[layer]`` table.
    samples_path : Path
        See `attncheck.runs.samples.files.read_samples`.
    record : Path, optional
        Where a run record goes.
    weights : str
        The laws of the weights, as `attncheck.simulators.weights.WeightLaws.read` has them.
    seed : int
        Keys the reference draws.
    false_alarm : float
        Chance that samples of a right simulator give a violated verdict.

    Raises
    ------
    InputError
        If a file cannot be used.
    """
    budget, laws = Budget(false_alarm), WeightLaws.read(weights)
    samples = read_samples(samples_path, AttentionLayer.from_toml(layer_path))
    results = examine_samples(samples, seed=seed, false_alarm=false_alarm, laws=laws)
    conclusion = conclude_file(results, budget, seed)
    if record is not None:
        _write(record, samples, results, conclusion, budget, seed)
    observed = _observed(samples, conclusion, seed, laws)
    return ExitCode.of(conclusion.verdict), _summary(samples, results, conclusion, budget, observed)


def conclude_file(results: Sequence[Result], budget: Budget, seed: int) -> Conclusion:
    """Return what a file comes to: inconclusive where little beside signs, digits and repeats could be examined."""
    conclusion = conclude([r.id for r in results], [msgspec.to_builtins(r) for r in results], budget, seed)
    doubt = Scope.of_results(results).doubt()
    return conclusion.unless(doubt and f"the file is too small, or holds too little: {doubt}")


def _write(
    path: Path, samples: Samples, results: Sequence[Result], conclusion: Conclusion, budget: Budget, seed: int
) -> None:
    writer = Writer(path)
    planned = [Planned(result.id, result.unit, result.check) for result in results]
    level = min((result.level for result in results), default=budget.false_alarm)
    writer.write(
        manifest_of(
            seed=seed,
            profile="samples",
            false_alarm=budget.false_alarm,
            level=level,
            subject=samples.source,
            planned=planned,
        )
    )
    for result in results:
        writer.write(result)
    seconds = max((result.seconds for result in results), default=0.0)
    digest = run_digest(results)
    writer.write(Closing(digest, conclusion.verdict, list(conclusion.reasons), len(results), seconds))
    writer.close()


def _summary(
    samples: Samples, results: Sequence[Result], conclusion: Conclusion, budget: Budget, observed: Sequence[str]
) -> str:
    examined = [result for result in results if result.p_values]
    lines = [
        f"{Scope.of_results(results).beside(conclusion.verdict)}: {samples.source}, {len(samples):,} draws of "
        f"{samples.sample.layer.describe()}, "
        f"{len(examined)} of {len(results)} checks examined; the chance of a false alarm was set to "
        f"{budget.false_alarm:g} beforehand.",
        *(f"  {reason}" for reason in conclusion.reasons),
        *(f"  observed: {sentence}" for sentence in observed),
        *(f"  likely:   {hint}" for hint in likely(violated(results), observed)),
        f"A file has no fresh draws: {BLOCKS} disjoint blocks are the looks, or the whole file at once where these "
        "are too small.",
    ]
    if examined:
        lines.append(render_table(_table(examined)))
    lines += [f"  {r.check}: {r.reason}" for r in results if r.verdict == Verdict.INCONCLUSIVE]
    return "\n".join(lines + unseen(results, "Not examined:"))


def _observed(samples: Samples, conclusion: Conclusion, seed: int, laws: WeightLaws) -> list[str]:
    """Return in words and numbers what differs, where something is violated."""
    if conclusion.verdict != "violated":
        return []
    sample = samples.sample.first(_DIAGNOSED)
    return differences(sample, seed_sequence(seed, "samples", sample.layer.key, role="diagnosis"), laws)


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    for column in ("check", "verdict"):
        table.add_column(column, no_wrap=True)
    for column in ("effect [99%]", "expected", "would see", "draws", "p of the looks"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in sorted(results, key=lambda result: (result.combined, min(result.p_values))):
        table.add_row(
            result.check,
            result.verdict,
            f"{result.effect:.3g} [{result.low:.3g}, {result.high:.3g}]",
            allowed(result),
            gap_text(result.gap),
            f"{result.size:,}",
            ", ".join(map(chance, result.p_values)),
        )
    return table
