"""Cases in the gate's outputs: one per property and layer, and one per part of the judgement."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from attncheck._lib.text import chance
from attncheck.evidence.ledger import weightiest
from attncheck.evidence.verdicts import Verdict
from attncheck.gate import Judgement
from attncheck.layers.names import layer_name
from attncheck.records.run_record import RunRecord
from attncheck.records.schema import Result, StatementResult
from attncheck.records.text import replay_command

#: Results listed per verdict; all are counted.
MOST_LISTED = 1000

PARTS = {
    "completeness": "results planned and reported, and not fewer than in the baseline",
    "verdicts": "violated and inconclusive results",
    "uniformity": "first-look p-values are uniform",
    "theory": "attncheck's own statements hold",
    "drift": "effects agree with the baseline within errors",
    "power": "minimum detectable effects and sizes are no worse than the baseline's",
    "history": "no drift over runs",
}


@dataclasses.dataclass(frozen=True)
class GateCase:
    """One case: property and layer, or ``gate`` and a part of the judgement.

    ``outcome`` is "passed", "failed", "error" or "skipped"; ``verdict`` is its consequence for the run.
    """

    group: str
    name: str
    outcome: str
    message: str = ""
    details: str = ""
    seconds: float = 0.0
    verdict: str = ""


def cases(judgement: Judgement) -> Iterator[GateCase]:
    """Iterate over all cases in an order independent of the workers."""
    yield from _parts(judgement)
    yield from _items(judgement.run, judgement.cause)


def sentence(judgement: Judgement) -> str:
    """Return the verdict in a sentence."""
    run = judgement.run
    done = sum(run.by_id[id].verdict != Verdict.NOT_EXAMINED for id in run.planned if id in run.by_id)
    against = "" if judgement.baseline is None else f", compared with {judgement.baseline_path}"
    verdict = run.scope.beside("consistent" if judgement.first else judgement.verdict)
    return (
        f"{verdict}{', NO BASELINE YET' * judgement.first}: {run.manifest.subject}, {done:,} of {len(run.planned):,} "
        f"planned results examined, false-alarm budget {run.manifest.false_alarm:g}{against}."
    )


def describe(line: Result) -> str:
    """Return the observation behind a violated or inconclusive result."""
    if not line.p_values:
        return line.reason
    looks = ", ".join(map(chance, line.p_values))
    return f"{line.text}; p = {looks} on {line.size} draws per look"


def _parts(judgement: Judgement) -> Iterator[GateCase]:
    for part, what in PARTS.items():
        found = [finding for finding in judgement.findings if finding.part == part]
        texts, name = [finding.text for finding in found], f"{part}: {what}"
        if part == "verdicts" and judgement.wrong:
            texts = [*texts, *(f"{word}: {text}" for word, text in judgement.wrong)]
        if part == "theory":
            texts = [*texts, *(f"{each.id}: {each.reason}" for each in refuted(judgement.run))]
        if found:
            message = _caused(texts[0], judgement.cause if part == "verdicts" else "")
            yield GateCase("gate", name, "failed", message, "\n".join(texts), verdict=weightiest(found))
        elif part in ("drift", "power") and judgement.baseline is None:
            yield GateCase("gate", name, "skipped", "there is no baseline")
        elif part == "history" and not judgement.remembered:
            yield GateCase("gate", name, "skipped", "no history is kept, or the run was not added to it")
        else:
            yield GateCase("gate", name, "passed")


def notable(run: RunRecord) -> list[Result]:
    """Return up to `MOST_LISTED` violated, then inconclusive results, the most suspicious first."""
    found = []
    for verdict in (Verdict.VIOLATED, Verdict.INCONCLUSIVE):
        having = [result for result in run.every if result.verdict == verdict]
        found += sorted(having, key=lambda each: (each.combined, min(each.p_values, default=1.0), each.id))[
            :MOST_LISTED
        ]
    return found


def refuted(run: RunRecord) -> list[StatementResult]:
    """Return the failed statements of attncheck's own theory."""
    return [each for each in run.theory if each.verdict == Verdict.VIOLATED]


def _items(run: RunRecord, cause: str) -> Iterator[GateCase]:
    # The planned pools follow from the results.
    planned = Counter((run.planned | {pool.id: pool.item for pool in run.pools}).values())
    reported: dict[str, list[Result]] = {item: [] for item in planned}
    for result in run.every:
        reported.setdefault(result.item, []).append(result)
    pooled = {pool.item for pool in run.pools}
    texts: dict[str, list[str]] = defaultdict(list)
    for result in notable(run):
        command = replay_command(run.path, result.id, run.manifest.subject, run.manifest.checks)
        texts[result.item].append(f"{result.check}: {describe(result)}\n  {command}")
    for item, results in sorted(reported.items()):
        group, _, case = item.partition("@")
        layer = layer_name(results[0].case) if results else ""
        name = layer if layer.endswith(f" {case}") else f"{layer} {case}".strip()
        outcome, message, verdict = _outcome(planned[item], results)
        message = _caused(message, cause if verdict == Verdict.VIOLATED else "")
        # Every result has the time of its item. Every pool has the time of all pools, which is divided among them.
        took = max((each.seconds for each in results), default=0.0) / (len(pooled) if item in pooled else 1)
        yield GateCase(group, name, outcome, message, "\n".join(texts.get(item, ())), took, verdict)


def _outcome(planned: int, results: Sequence[Result]) -> tuple[str, str, str]:
    counts = Counter(each.verdict for each in results)
    examined = len(results) - counts[Verdict.NOT_EXAMINED]
    for verdict in (Verdict.VIOLATED, Verdict.INCONCLUSIVE):
        if counts[verdict]:
            return "failed", f"{counts[verdict]} of {examined} examined results are {verdict}", str(verdict)
    if planned != len(results):
        return "error", f"{planned} results were planned, {len(results)} were reported", "incomplete"
    return ("passed", "", "") if examined else ("skipped", "nothing was examined", "")


def _caused(message: str, cause: str) -> str:
    return f"{message}; cause: {cause}" if cause else message
