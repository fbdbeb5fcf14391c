"""What a record says, compactly: a few numbers a result, so that a record of 10⁶ lines fits in memory."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from attncheck._lib.errors import InputError
from attncheck.evidence.ledger import Conclusion, Ledger
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.names import layer_name
from attncheck.records.conclusion import concluded, entry_of
from attncheck.records.schema import (
    Closing,
    Planned,
    Theory,
    combined_digest,
    of_pool,
    read_as,
    result_digest,
    sensible,
    theory_digest,
)
from attncheck.records.scope import Scope

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Results that are kept with their words, the most suspicious ones; all are counted.
MOST_KEPT = 1000
_NUMBERS = ("effect", "low", "high", "null_effect", "gap", "size", "power", "seconds")
_VERDICTS = [str(verdict) for verdict in Verdict]


class Head(msgspec.Struct, tag="manifest", tag_field="type"):
    """A manifest whose plan stays as bytes until it is read, one entry at a time."""

    schema: int
    versions: dict[str, str]
    seed: int
    profile: str
    false_alarm: float
    subject: str
    planned: list[msgspec.Raw]


class Line(msgspec.Struct, tag="result", tag_field="type"):
    """What the gate needs of a result."""

    id: str
    key: str
    unit: str
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
    gap: float | None
    combined: float
    continuous: bool
    text: str
    seconds: float

    @property
    def suspicion(self) -> tuple[float, float, str]:
        """Orders results, the most suspicious first."""
        return self.combined, min(self.p_values, default=1.0), self.id


class Names:
    """Numbers for the names of checks and units, the same in a run and in its baseline."""

    def __init__(self) -> None:
        self._checks: dict[str, int] = {}
        self._units: dict[str, int] = {}

    def key(self, check: str, unit: str) -> int:
        """Return the number that stands for a check on a unit of work."""
        first = self._checks.setdefault(check, len(self._checks))
        return first << 32 | self._units.setdefault(unit, len(self._units))

    def pairs(self, keys: IntArray) -> Iterator[tuple[str, str]]:
        """Iterate over the checks and units that keys stand for."""
        checks, units = list(self._checks), list(self._units)
        for key in keys.tolist():
            yield checks[key >> 32], units[key & 0xFFFFFFFF]


@dataclasses.dataclass(frozen=True)
class Account:
    """What a record says. Arrays over results are sorted by key.

    Attributes
    ----------
    path : Path
    head : Head
        The manifest, its plan emptied.
    closing : Closing or None
        None if the run did not finish.
    names : Names
        What the keys stand for.
    planned, keys : ndarray
        Keys of the planned results, each once, and of the reported ones.
    verdicts : ndarray
        Of each result, the place of its verdict in `Verdict`.
    numbers : dict of str to ndarray
        Of each result; NaN where it has none.
    why : ndarray
        Of each result, the place of its reason in `reasons`.
    reasons : list of str
    claims : dict of str to Counter
        How often each verdict was given on each claim.
    layers : dict of str to str
        The layer of each unit, in words.
    notable : list of Line
        Violated and inconclusive results, the most suspicious first, `MOST_KEPT` of each at most.
    refuted : list of Theory
        Violated statements of the theory.
    conclusion : Conclusion
        What the results come to: never better than what the run said at its end.
    pooled : dict of int to tuple of str
        The cases of each pool, by its key.
    scope : Scope
        How far the results on single cases reach.
    """

    path: Path
    head: Head
    closing: Closing | None
    names: Names
    planned: IntArray
    keys: IntArray
    verdicts: IntArray
    numbers: dict[str, FloatArray]
    why: IntArray
    reasons: list[str]
    claims: dict[str, Counter[str]]
    layers: dict[str, str]
    notable: list[Line]
    refuted: list[Theory]
    conclusion: Conclusion
    pooled: dict[int, tuple[str, ...]]
    scope: Scope

    @property
    def examined(self) -> BoolArray:
        """Of each result, whether it was examined."""
        return ~self.having(Verdict.NOT_EXAMINED)

    @property
    def examined_as_planned(self) -> int:
        """How many planned results were examined; pools are not planned one by one."""
        return int(np.isin(self.keys[self.examined], self.planned).sum())

    def having(self, verdict: str) -> BoolArray:
        """Of each result, whether it has this verdict."""
        return np.equal(self.verdicts, _VERDICTS.index(verdict))

    def common(self, other: Account) -> tuple[IntArray, IntArray]:
        """Return where in this and in the other account the results are that both have; pools, of the same cases."""
        keys, ours, theirs = np.intersect1d(self.keys, other.keys, return_indices=True)
        same = np.array([self.pooled.get(key) == other.pooled.get(key) for key in keys.tolist()], dtype=bool)
        return ours[same], theirs[same]


class _Gathering:
    """The results of a record, as they are read."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.keys = array("q")
        self.verdicts = array("b")
        self.why = array("l")
        self.numbers = {name: array("d") for name in _NUMBERS}
        self.reasons: dict[str, int] = {}
        self.claims: dict[str, Counter[str]] = {}
        self.layers: dict[str, str] = {}
        self.notable: dict[str, list[Line]] = {Verdict.VIOLATED: [], Verdict.INCONCLUSIVE: []}
        self.refuted: list[Theory] = []
        self.pooled: dict[int, tuple[str, ...]] = {}
        self.digests = bytearray()
        self.examined: Counter[str] = Counter()
        self.reported: Counter[str] = Counter()

    def take(self, line: Line) -> None:
        """Take one result."""
        self.keys.append(self.names.key(line.check, line.unit))
        if of_pool(line):
            self.pooled[self.keys[-1]] = tuple(line.case.get("of", ()))
        else:
            self.reported[line.check] += 1
            self.examined[line.check] += bool(line.p_values)
        self.verdicts.append(_VERDICTS.index(line.verdict))
        self.why.append(self.reasons.setdefault(line.reason, len(self.reasons)))
        for name, values in self.numbers.items():
            value = getattr(line, name)
            values.append(math.nan if value is None else value)
        self.claims.setdefault(line.claim, Counter())[line.verdict] += 1
        if line.unit not in self.layers:
            self.layers[line.unit] = _describe(line.case)
        if line.verdict in self.notable:
            self._keep(self.notable[line.verdict], line)
        self.digests += result_digest(line)

    def take_theory(self, line: Theory) -> None:
        """Take one statement of the theory, which has none of the numbers of a look."""
        self.keys.append(self.names.key(line.name, line.id))
        self.verdicts.append(_VERDICTS.index(line.verdict))
        self.why.append(self.reasons.setdefault(line.reason, len(self.reasons)))
        for name, values in self.numbers.items():
            values.append(line.seconds if name == "seconds" else math.nan)
        self.layers[line.id] = line.case
        if line.verdict == Verdict.VIOLATED:
            self.refuted.append(line)
        self.digests += theory_digest(line)

    def _keep(self, kept: list[Line], line: Line) -> None:
        kept.append(line)
        if len(kept) >= 2 * MOST_KEPT:
            kept[:] = worst(kept)


def worst(lines: Sequence[Line]) -> list[Line]:
    """Return the most suspicious results, `MOST_KEPT` at most."""
    return sorted(lines, key=lambda line: line.suspicion)[:MOST_KEPT]


def read_account(path: Path, names: Names) -> Account:
    """Read a record.

    Raises
    ------
    InputError
        If it cannot be read, was edited, or holds what no run writes.
    """
    lines = read_as(path, Head | Line | Theory | Closing)
    head: Head = next(lines)
    planned, ids = _planned(path, head, names)
    gathered, ledger, closing = _Gathering(names), Ledger(ids, head.seed), None
    for number, line in enumerate(lines, 2):
        if isinstance(line, Closing):
            closing = line
            continue
        with sensible(path, number):
            ledger.take(entry_of(line), planned=isinstance(line, Line) and of_pool(line))
            (gathered.take_theory if isinstance(line, Theory) else gathered.take)(line)
    _check_digest(path, closing, gathered.digests)
    gathered.digests = bytearray()
    scope = Scope.of(gathered.examined, gathered.reported)
    order = np.argsort(gathered.keys, kind="stable")
    return Account(
        path=path,
        head=head,
        closing=closing,
        names=names,
        planned=planned,
        keys=np.asarray(gathered.keys, dtype=np.int64)[order],
        verdicts=np.asarray(gathered.verdicts, dtype=np.int64)[order],
        # One by one, so that no more than one of them is there twice.
        numbers={name: np.asarray(gathered.numbers.pop(name))[order] for name in _NUMBERS},
        why=np.asarray(gathered.why, dtype=np.int64)[order],
        reasons=list(gathered.reasons),
        claims=gathered.claims,
        layers=gathered.layers,
        notable=[line for kept in gathered.notable.values() for line in worst(kept)],
        refuted=gathered.refuted,
        conclusion=concluded(ledger, head.false_alarm, closing, scope),
        pooled=gathered.pooled,
        scope=scope,
    )


def _planned(path: Path, head: Head, names: Names) -> tuple[IntArray, list[str]]:
    """Return the keys of the planned results, each once, and their ids."""
    decoder = msgspec.json.Decoder(Planned)
    keys, ids = array("q"), []
    for raw in head.planned:
        try:
            planned = decoder.decode(raw)
        except msgspec.DecodeError as error:
            raise InputError(f"record={path}: the plan is broken ({error}); make the record again") from None
        keys.append(names.key(planned.check, planned.unit))
        ids.append(planned.id)
    head.planned = []
    return np.unique(np.asarray(keys, dtype=np.int64)), ids


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
