"""What the record of a run says, compactly: all its numbers, and the most suspicious results with their words."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attncheck._lib.errors import InputError
from attncheck.evidence.ledger import Conclusion, Ledger
from attncheck.evidence.verdicts import Verdict
from attncheck.gate.result_table import COMPARED, ColumnBuffer, IntArray, NameIndex, ResultTable
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.names import layer_name
from attncheck.records.baseline import BaselineManifest
from attncheck.records.conclusion import concluded, entry_of
from attncheck.records.schema import (
    Closing,
    PlannedResult,
    StatementResult,
    combined_digest,
    of_pool,
    read_as,
    result_digest,
    sensible,
    theory_digest,
)
from attncheck.records.scope import Scope

#: Results that are kept with their words, the most suspicious ones; all are counted.
MOST_KEPT = 1000


class _ManifestHead(BaselineManifest, frozen=True, kw_only=True, tag="manifest", tag_field="type"):
    """A manifest whose plan stays as bytes until it is read, one entry at a time."""

    planned: list[msgspec.Raw]
    statements: list[str] = msgspec.field(default_factory=list)


class ResultLine(msgspec.Struct, tag="result", tag_field="type"):
    """What the gate needs of a result."""

    id: str
    key: str
    item: str
    check: str
    claim: str
    case: dict[str, Any]
    verdict: str
    reason: str
    size: int
    level: float
    power: float
    p_values: list[float]
    effects: list[float]
    effect: float | None
    low: float | None
    high: float | None
    null_effect: float | None
    mde: float | None
    combined: float
    continuous: bool
    text: str
    seconds: float

    @property
    def suspicion(self) -> tuple[float, float, str]:
        """Orders results, the most suspicious first."""
        return self.combined, min(self.p_values, default=1.0), self.id


@dataclasses.dataclass(frozen=True)
class RecordTable(ResultTable):
    """What a record says.

    Attributes
    ----------
    planned : ndarray
        Keys of the planned results, each once; pools are not planned one by one.
    why : ndarray
        Of each result, the place of its reason in `reasons`.
    reasons : list of str
    claims : dict of str to Counter
        How often each verdict was given on each claim.
    layers : dict of str to str
        The layer of each unit, in words.
    notable : list of ResultLine
        Violated and inconclusive results, the most suspicious first, `MOST_KEPT` of each at most.
    refuted : list of StatementResult
        Failed statements of attncheck's own theory.
    statements : int
        How many there are.
    conclusion : Conclusion
        What the results come to: never better than what the run said at its end.
    scope : Scope
        How far the results on single cases reach.
    """

    planned: IntArray
    why: IntArray
    reasons: list[str]
    claims: dict[str, Counter[str]]
    layers: dict[str, str]
    notable: list[ResultLine]
    refuted: list[StatementResult]
    statements: int
    conclusion: Conclusion
    scope: Scope

    @property
    def examined_as_planned(self) -> int:
        """How many planned results were examined."""
        return int(np.isin(self.keys[self.examined], self.planned).sum())


class _ResultReader(ColumnBuffer):
    """The results of a record, as they are read."""

    def __init__(self, names: NameIndex) -> None:
        super().__init__(names, (*COMPARED, "seconds"))
        self.why = array("l")
        self.reasons: dict[str, int] = {}
        self.claims: dict[str, Counter[str]] = {}
        self.layers: dict[str, str] = {}
        self.notable: dict[str, list[ResultLine]] = {Verdict.VIOLATED: [], Verdict.INCONCLUSIVE: []}
        self.refuted: list[StatementResult] = []
        self.statements = 0
        self.digests = bytearray()
        self.seen: Counter[str] = Counter()
        self.reported: Counter[str] = Counter()

    def take(self, line: ResultLine) -> None:
        """Take one result."""
        pooled = of_pool(line)
        self.add(line, line.check, line.item, tuple(line.case["of"]) if pooled else ())
        if not pooled:
            self.reported[line.check] += 1
            self.seen[line.check] += bool(line.p_values)
        self.why.append(self.reasons.setdefault(line.reason, len(self.reasons)))
        self.claims.setdefault(line.claim, Counter())[line.verdict] += 1
        if line.item not in self.layers:
            self.layers[line.item] = _describe(line.case)
        if line.verdict in self.notable:
            self._keep(self.notable[line.verdict], line)
        self.digests += result_digest(line)

    def take_theory(self, line: StatementResult) -> None:
        """Take one statement of attncheck's own theory, which says nothing of the subject."""
        self.statements += 1
        if line.verdict == Verdict.VIOLATED:
            self.refuted.append(line)
        self.digests += theory_digest(line)

    def _keep(self, kept: list[ResultLine], line: ResultLine) -> None:
        kept.append(line)
        if len(kept) >= 2 * MOST_KEPT:
            kept[:] = worst(kept)


def worst(lines: Sequence[ResultLine]) -> list[ResultLine]:
    """Return the most suspicious results, `MOST_KEPT` at most."""
    return sorted(lines, key=lambda line: line.suspicion)[:MOST_KEPT]


def read_record_table(path: Path, names: NameIndex) -> RecordTable:
    """Read a record.

    Raises
    ------
    InputError
        If it cannot be read, was edited, or holds what no run writes.
    """
    lines = read_as(path, _ManifestHead | ResultLine | StatementResult | Closing)
    head: _ManifestHead = next(lines)
    planned, ids = _planned(path, head, names)
    gathered, closing = _ResultReader(names), None
    ledger = Ledger(ids if head.shard is None else (), head.seed)
    for number, line in enumerate(lines, 2):
        if isinstance(line, Closing):
            closing = line
            continue
        with sensible(path, number):
            own = head.shard is not None or (isinstance(line, ResultLine) and of_pool(line))
            ledger.take(entry_of(line), planned=own)
            (gathered.take_theory if isinstance(line, StatementResult) else gathered.take)(line)
    _check_digest(path, closing, gathered.digests)
    gathered.digests = bytearray()
    scope = Scope.of(gathered.seen, gathered.reported)
    order, columns = gathered.sorted()
    return RecordTable(
        path=path,
        head=head,
        closing=closing,
        planned=planned,
        why=np.asarray(gathered.why, dtype=np.int64)[order],
        reasons=list(gathered.reasons),
        claims=gathered.claims,
        layers=gathered.layers,
        notable=[line for kept in gathered.notable.values() for line in worst(kept)],
        refuted=gathered.refuted,
        statements=gathered.statements,
        conclusion=concluded(ledger, head.false_alarm, closing, scope, head.shard),
        scope=scope,
        **columns,
    )


def _planned(path: Path, head: _ManifestHead, names: NameIndex) -> tuple[IntArray, list[str]]:
    """Return the keys of the planned results, each once, and their ids."""
    decoder = msgspec.json.Decoder(PlannedResult)
    keys, ids = array("q"), []
    for raw in head.planned:
        try:
            planned = decoder.decode(raw)
        except msgspec.DecodeError as error:
            raise InputError(f"record={path}: the plan is broken ({error}); make the record again") from None
        keys.append(names.key(planned.check, planned.item))
        ids.append(planned.id)
    head.planned.clear()
    return np.unique(np.asarray(keys, dtype=np.int64)), [*ids, *head.statements]


def _check_digest(path: Path, closing: Closing | None, digests: bytearray) -> None:
    if closing is not None and closing.digest != combined_digest(digests):
        raise InputError(f"record={path}: its digest is not that of its results; make the record again")


def _describe(layer: dict[str, Any]) -> str:
    try:
        return (
            layer_name(layer) if "program" in layer or "pool" in layer else AttentionLayer.from_dict(layer).describe()
        )
    except InputError:
        return "a layer that this version does not know"
