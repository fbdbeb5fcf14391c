"""What the gate's outputs have in common: one case per property and layer, and one per part of the judgement."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator

from attncheck._lib.words import chance
from attncheck.evidence.verdicts import Verdict
from attncheck.gate import Judgement
from attncheck.gate.account import Account, Line
from attncheck.gate.book import IntArray

PARTS = {
    "completeness": "planned, reported, and no less than the baseline",
    "verdicts": "violated and inconclusive results",
    "uniformity": "first-look p-values are uniform",
    "drift": "effects are those of the baseline, within the errors of both",
    "power": "gaps and sizes are no worse than the baseline's",
}


@dataclasses.dataclass(frozen=True)
class Case:
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
    """

    group: str
    name: str
    outcome: str
    message: str = ""
    details: str = ""
    seconds: float = 0.0


def cases(judgement: Judgement) -> Iterator[Case]:
    """Iterate over all cases, in an order that does not depend on the workers."""
    yield from _parts(judgement)
    yield from _units(judgement.run)


def sentence(judgement: Judgement) -> str:
    """Return the verdict in a sentence."""
    run = judgement.run
    against = "" if judgement.baseline is None else f", held against {judgement.baseline_path}"
    return (
        f"{run.scope.beside(judgement.verdict)}: {run.head.subject}, {run.examined_as_planned} of {run.planned.size} "
        f"planned results examined, false-alarm budget {run.head.false_alarm:g}{against}."
    )


def describe(line: Line) -> str:
    """Return what a violated or inconclusive result saw."""
    if not line.p_values:
        return line.reason
    looks = ", ".join(map(chance, line.p_values))
    return f"{line.text}; p = {looks} on {line.size} draws a look"


def _parts(judgement: Judgement) -> Iterator[Case]:
    for part, what in PARTS.items():
        texts = [finding.text for finding in judgement.findings if finding.part == part]
        name = f"{part}: {what}"
        if texts:
            yield Case("gate", name, "failed", texts[0], "\n".join(texts))
        elif part in ("drift", "power") and judgement.baseline is None:
            yield Case("gate", name, "skipped", "there is no baseline")
        else:
            yield Case("gate", name, "passed")


def _units(run: Account) -> Iterator[Case]:
    counts = {
        "planned": _counts(run, run.planned),
        "reported": _counts(run, run.keys),
        "examined": _counts(run, run.keys[run.examined]),
        **{str(each): _counts(run, run.keys[run.having(each)]) for each in (Verdict.VIOLATED, Verdict.INCONCLUSIVE)},
    }
    notable: dict[str, list[str]] = defaultdict(list)
    for line in run.notable:
        notable[line.unit].append(f"{line.id}: {describe(line)}")
    for refuted in run.refuted:
        notable[refuted.id].append(refuted.reason)
    seconds = _seconds(run)
    for unit in sorted({*counts["planned"], *counts["reported"]}):
        group, _, digest = unit.partition("@")
        name = f"{run.layers.get(unit, '')} {digest}".strip()
        outcome, message = _outcome({name: count[unit] for name, count in counts.items()})
        yield Case(group, name, outcome, message, "\n".join(notable.get(unit, ())), seconds.get(unit, 0.0))


def _outcome(number: dict[str, int]) -> tuple[str, str]:
    for verdict in (Verdict.VIOLATED, Verdict.INCONCLUSIVE):
        if number[verdict]:
            return "failed", f"{number[verdict]} of {number['examined']} examined results are {verdict}"
    if number["planned"] != number["reported"]:
        return "error", f"{number['planned']} results were planned, {number['reported']} were reported"
    return ("passed", "") if number["examined"] else ("skipped", "nothing was examined")


def _counts(run: Account, keys: IntArray) -> Counter[str]:
    """Return how many of the keys each unit has."""
    return Counter(unit for _, unit in run.names.pairs(keys))


def _seconds(run: Account) -> dict[str, float]:
    """Return the seconds of each unit: its results share their draws and say the same."""
    most: dict[str, float] = {}
    for (_, unit), seconds in zip(run.names.pairs(run.keys), run.numbers["seconds"].tolist(), strict=True):
        most[unit] = max(most.get(unit, 0.0), seconds)
    return most
