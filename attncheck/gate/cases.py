"""What the gate's outputs have in common: one case per property and layer, and one per part of the judgement."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from attncheck._lib.words import chance
from attncheck.evidence.ledger import weightiest
from attncheck.evidence.verdicts import Verdict
from attncheck.gate import Judgement
from attncheck.gate.record_table import RecordTable, ResultLine
from attncheck.gate.result_table import IntArray
from attncheck.records.words import replay_command

PARTS = {
    "completeness": "planned, reported, and no less than the baseline",
    "verdicts": "violated and inconclusive results",
    "uniformity": "first-look p-values are uniform",
    "theory": "attncheck's own statements hold",
    "drift": "effects are those of the baseline, within the errors of both",
    "power": "minimum detectable effects and sizes are no worse than the baseline's",
    "history": "nothing moves over runs",
}


@dataclasses.dataclass(frozen=True)
class GateCase:
    """One thing that can pass or not.

    Attributes
    ----------
    group, name : str
        The property and the layer, or ``gate`` and the part of the judgement.
    outcome : {"passed", "failed", "error", "skipped"}
    message : str
        In one line.
    details : str
    seconds : float
    verdict : str
        What it makes of the run, where it does not pass.
    """

    group: str
    name: str
    outcome: str
    message: str = ""
    details: str = ""
    seconds: float = 0.0
    verdict: str = ""


def cases(judgement: Judgement) -> Iterator[GateCase]:
    """Iterate over all cases, in an order that does not depend on the workers."""
    yield from _parts(judgement)
    yield from _items(judgement.run, judgement.cause)


def sentence(judgement: Judgement) -> str:
    """Return the verdict in a sentence."""
    run = judgement.run
    against = "" if judgement.baseline is None else f", held against {judgement.baseline_path}"
    return (
        f"{run.scope.beside(judgement.verdict)}: {run.head.subject}, {run.examined_as_planned} of {run.planned.size} "
        f"planned results examined, false-alarm budget {run.head.false_alarm:g}{against}."
    )


def describe(line: ResultLine) -> str:
    """Return what a violated or inconclusive result saw."""
    if not line.p_values:
        return line.reason
    looks = ", ".join(map(chance, line.p_values))
    return f"{line.text}; p = {looks} on {line.size} draws a look"


def _parts(judgement: Judgement) -> Iterator[GateCase]:
    for part, what in PARTS.items():
        found = [finding for finding in judgement.findings if finding.part == part]
        texts, name = [finding.text for finding in found], f"{part}: {what}"
        if part == "verdicts" and judgement.wrong:
            texts = [*texts, *(f"{word}: {text}" for word, text in judgement.wrong)]
        if part == "theory":
            texts = [*texts, *(f"{each.id}: {each.reason}" for each in judgement.run.refuted)]
        if found:
            message = _caused(texts[0], judgement.cause if part == "verdicts" else "")
            yield GateCase("gate", name, "failed", message, "\n".join(texts), verdict=weightiest(found))
        elif part in ("drift", "power") and judgement.baseline is None:
            yield GateCase("gate", name, "skipped", "there is no baseline")
        elif part == "history" and not judgement.remembered:
            yield GateCase("gate", name, "skipped", "no history is kept, or the run is not added to it")
        else:
            yield GateCase("gate", name, "passed")


def _items(run: RecordTable, cause: str) -> Iterator[GateCase]:
    counts = {
        # Which pools there are follows from what was examined.
        "planned": _counts(run, np.union1d(run.planned, np.array([*run.pooled], dtype=np.int64))),
        "reported": _counts(run, run.keys),
        "examined": _counts(run, run.keys[run.examined]),
        **{str(each): _counts(run, run.keys[run.having(each)]) for each in (Verdict.VIOLATED, Verdict.INCONCLUSIVE)},
    }
    notable: dict[str, list[str]] = defaultdict(list)
    for line in run.notable:
        command = replay_command(run.path, line.id, run.head.subject)
        notable[line.item].append(f"{line.check}: {describe(line)}\n  {command}")
    seconds = _seconds(run)
    for item in sorted({*counts["planned"], *counts["reported"]}):
        group, _, case = item.partition("@")
        layer = run.layers.get(item, "")
        name = layer if layer.endswith(f" {case}") else f"{layer} {case}".strip()
        outcome, message, verdict = _outcome({name: count[item] for name, count in counts.items()})
        message = _caused(message, cause if verdict == Verdict.VIOLATED else "")
        yield GateCase(group, name, outcome, message, "\n".join(notable.get(item, ())), seconds.get(item, 0.0), verdict)


def _outcome(number: dict[str, int]) -> tuple[str, str, str]:
    for verdict in (Verdict.VIOLATED, Verdict.INCONCLUSIVE):
        if number[verdict]:
            return "failed", f"{number[verdict]} of {number['examined']} examined results are {verdict}", str(verdict)
    if number["planned"] != number["reported"]:
        return "error", f"{number['planned']} results were planned, {number['reported']} were reported", "incomplete"
    return ("passed", "", "") if number["examined"] else ("skipped", "nothing was examined", "")


def _caused(message: str, cause: str) -> str:
    return f"{message}; cause: {cause}" if cause else message


def _counts(run: RecordTable, keys: IntArray) -> Counter[str]:
    """Return how many of the keys each unit has."""
    return Counter(item for _, item in run.names.pairs(keys))


def _seconds(run: RecordTable) -> dict[str, float]:
    """Return the seconds of each unit: its results share their draws and say the same, and pools say those of all."""
    most: dict[str, float] = {}
    for (_, item), seconds in zip(run.names.pairs(run.keys), run.numbers["seconds"].tolist(), strict=True):
        most[item] = max(most.get(item, 0.0), seconds)
    pools = run.names.items(np.array([*run.pooled], dtype=np.int64))
    return most | {item: most[item] / len(pools) for item in pools}
