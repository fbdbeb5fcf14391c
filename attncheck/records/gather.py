"""One pass over a record, line by line: what a report needs of it in bounded memory.

Whatever the number of lines, only counts and the most suspicious results of each check are kept. Nothing
depends on the order of the lines, so that the number of workers does not show in the page.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from attncheck.evidence.ledger import Conclusion, Ledger
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.names import layer_name
from attncheck.layers.program.features import FEATURES, features_of
from attncheck.records.bounded import LargestItems
from attncheck.records.conclusion import concluded, entry_of
from attncheck.records.schema import (
    Closing,
    Line,
    Manifest,
    Result,
    StatementResult,
    case_key,
    of_pool,
    read_as,
    sensible,
)
from attncheck.records.scope import Scope
from attncheck.records.words import detectable

#: Results that are kept of each check, the most suspicious ones.
KEPT = 24
_Number = TypeVar("_Number", int, float)
# Verdicts of examined results, the worst first.
_WORST = (Verdict.VIOLATED, Verdict.INCONCLUSIVE, Verdict.CONSISTENT)
# Distinct texts that are counted.
_DISTINCT = 500


class _Id(msgspec.Struct, frozen=True, gc=False):
    id: str


class _Manifest(Manifest, frozen=True, tag="manifest", tag_field="type"):
    """A manifest of which only the ids of planned results are decoded."""

    # Narrower than the field that it replaces: nothing here reads more of a planned result than its id.
    planned: list[_Id]  # type: ignore[assignment]


@dataclasses.dataclass(order=True)
class _ResultFields:
    key: tuple[float, float, float, str]
    result: Result = dataclasses.field(compare=False)


@dataclasses.dataclass
class Tally:
    """What is kept of the results of one check.

    Attributes
    ----------
    name, claim, kind : str
    verdicts : Counter
        How often each verdict was given.
    reasons : Counter
        Why results were not examined.
    draws : dict of int to int
        Draws of a look, by case.
    sizes : list of int
        The smallest and the largest look; empty if none was taken.
    mdes, alternatives : list of float
        The smallest and the largest detectable gap, and how far from what is declared these are.
    """

    name: str
    claim: str
    kind: str
    verdicts: Counter[str] = dataclasses.field(default_factory=Counter)
    reasons: Counter[str] = dataclasses.field(default_factory=Counter)
    draws: dict[int, int] = dataclasses.field(default_factory=dict)
    sizes: list[int] = dataclasses.field(default_factory=list)
    mdes: list[float] = dataclasses.field(default_factory=list)
    alternatives: list[float] = dataclasses.field(default_factory=list)
    hint: str = ""
    smallest: Result | None = None
    _worst: LargestItems[_ResultFields] = dataclasses.field(default_factory=lambda: LargestItems(KEPT))

    @property
    def examined(self) -> int:
        """How many results have a p-value."""
        return self.verdicts.total() - self.verdicts[Verdict.NOT_EXAMINED]

    @property
    def worst(self) -> list[Result]:
        """The kept examined results, the most suspicious first."""
        return [kept.result for kept in self._worst.items]

    def add(self, result: Result, case: int) -> None:
        """Count a result."""
        self.verdicts[result.verdict] += 1
        if not result.p_values:
            _count(self.reasons, result.reason or "no reason was given")
            return
        self.draws[case] = max(self.draws.get(case, 0), result.size)
        self.sizes = _range(self.sizes, result.size)
        if result.mde is not None:
            self.mdes = _range(self.mdes, result.mde)
        if (alternative := detectable(result)) is not None:
            self.alternatives = _range(self.alternatives, alternative)
        self.hint = max(self.hint, result.hint)
        if result.verdict == Verdict.VIOLATED:
            self.smallest = min(self.smallest or result, result, key=extent)
        self._worst.add(_ResultFields(suspicion(result), result))


@dataclasses.dataclass
class Space:
    """Which layers were visited, and on which of them something was violated.

    Attributes
    ----------
    values, violated_values : dict of str to Counter
        How often each value of each field occurs over distinct layers, all of them and those with a violation.
    shapes : Counter
        How often each (width, seq_len, num_heads) occurs.
    layers : dict of int to (float, str)
        How large each layer is, see `extent`, and its short name, by its key.
    violated : set of int
        Keys of layers.
    """

    values: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)
    violated_values: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)
    shapes: Counter[tuple[int, int, int]] = dataclasses.field(default_factory=Counter)
    layers: dict[int, tuple[float, str]] = dataclasses.field(default_factory=dict)
    violated: set[int] = dataclasses.field(default_factory=set)

    def add(self, layer: dict[str, Any], violated: bool) -> int:
        """Count a layer once; return its key."""
        key = _key(msgspec.json.encode(layer, order="sorted"))
        if key not in self.layers:
            self.layers[key] = _size(layer), layer_name(layer)
            _count_fields(self.values, _visited(layer))
            shape = tuple(layer.get(name) for name in ("width", "seq_len", "num_heads"))
            if all(isinstance(part, int) for part in shape):
                _count(self.shapes, shape)
        if violated and key not in self.violated:
            self.violated.add(key)
            _count_fields(self.violated_values, _visited(layer))
        return key


@dataclasses.dataclass
class RunData:
    """What a report knows of a run.

    Attributes
    ----------
    path : Path
    manifest : Manifest
    closing : Closing or None
        None if the run did not finish.
    tallies : dict of str to Tally
        By check, in the order of their names.
    space : Space
    claim_layers : dict of str to dict of int to str
        The worst verdict of a claim on each layer on which it was examined, by the layer's key.
    reported : int
        Results in the record.
    conclusion : Conclusion
        What they come to: never better than what the run said at its end.
    theory : list of StatementResult
        The statements of the theory, by id.
    pools : list of Result
        The results of cases together, by id.
    """

    path: Path
    manifest: Manifest
    closing: Closing | None = None
    tallies: dict[str, Tally] = dataclasses.field(default_factory=dict)
    space: Space = dataclasses.field(default_factory=Space)
    claim_layers: dict[str, dict[int, str]] = dataclasses.field(default_factory=dict)
    reported: int = 0
    conclusion: Conclusion = dataclasses.field(default_factory=Conclusion)
    theory: list[StatementResult] = dataclasses.field(default_factory=list)
    pools: list[Result] = dataclasses.field(default_factory=list)

    def count(self, verdict: str) -> int:
        """Return how many results have a verdict."""
        return sum(tally.verdicts[verdict] for tally in self.tallies.values()) + sum(
            pool.verdict == verdict for pool in self.pools
        )

    @property
    def examined(self) -> int:
        """How many results have a p-value."""
        return sum(tally.examined for tally in self.tallies.values())

    @property
    def scope(self) -> Scope:
        """How far the results on single cases reach."""
        tallies = self.tallies.items()
        return Scope.of({name: t.examined for name, t in tallies}, {name: t.verdicts.total() for name, t in tallies})


def gather(path: Path) -> RunData:
    """Read a record once.

    Raises
    ------
    InputError
        If the record cannot be read, or a line of it makes no sense.
    """
    lines = read_as(path, _Manifest | Result | StatementResult | Closing)
    manifest: _Manifest = next(lines)
    shard = manifest.shard
    planned = [*(each.id for each in manifest.planned), *manifest.statements]
    ledger = Ledger(planned if shard is None else (), manifest.seed)
    # The plan is the largest part of a long record, and the ledger holds what is needed of it.
    manifest.planned.clear()
    found = RunData(path, manifest)
    for number, line in enumerate(lines, 2):
        _take(found, ledger, number, line)
    found.conclusion = concluded(ledger, manifest.false_alarm, found.closing, found.scope, shard)
    found.tallies = dict(sorted(found.tallies.items()))
    found.theory.sort(key=lambda each: each.id)
    found.pools.sort(key=lambda each: each.id)
    return found


def tallied(results: Iterable[Result]) -> dict[str, Tally]:
    """Return what is kept of results that are at hand, by check."""
    tallies: dict[str, Tally] = {}
    for result in results:
        _tally(tallies, result)
    return tallies


def suspicion(result: Result) -> tuple[float, float, float, str]:
    """Return a key that is larger for more suspicious results; ties go by id."""
    return (float(result.verdict == Verdict.VIOLATED), -result.combined, -result.p_values[0], result.id)


def extent(result: Result) -> tuple[float, str]:
    """Return a key that is smaller for smaller layers and programs; ties go by id."""
    return _size(result.case), result.id


def worse(verdict: str, other: str) -> str:
    """Return the worse of two verdicts of examined results.

    Examples
    --------
    >>> worse("consistent", "inconclusive")
    'inconclusive'
    """
    return min(verdict, other, key=lambda each: (_WORST.index(each) if each in _WORST else len(_WORST), each))


def _size(case: dict[str, Any]) -> float:
    if "program" in case:
        lines = case["program"].get("lines", []) if isinstance(case["program"], dict) else []
        return float(len(lines))
    sizes = [case.get(name) for name in ("width", "seq_len", "num_heads")]
    return float(math.prod(size for size in sizes if isinstance(size, int | float)))


def _take(found: RunData, ledger: Ledger, number: int, line: Line) -> None:
    """Count a line of a record."""
    if isinstance(line, Closing):
        found.closing = line
    if not isinstance(line, Result | StatementResult):
        return
    with sensible(found.path, number):
        entry, pooled = entry_of(line), isinstance(line, Result) and of_pool(line)
    # Which pools there are follows from what was examined, and what a shard owes is known to itself.
    ledger.take(entry, planned=pooled or found.manifest.shard is not None)
    found.reported += not (pooled or isinstance(line, StatementResult))
    if isinstance(line, StatementResult):
        found.theory.append(line)
    elif pooled:
        found.pools.append(line)
    else:
        # A layer on which nothing was examined was not visited.
        if line.p_values:
            layer = found.space.add(line.case, line.verdict == Verdict.VIOLATED)
            verdicts = found.claim_layers.setdefault(line.claim, {})
            verdicts[layer] = worse(line.verdict, verdicts.get(layer, line.verdict))
        _tally(found.tallies, line)


def _tally(tallies: dict[str, Tally], result: Result) -> None:
    if result.check not in tallies:
        tallies[result.check] = Tally(result.check, result.claim, result.kind)
    tallies[result.check].add(result, _key(case_key(result).encode()))


def _count(counter: Counter[Any], value: Any) -> None:
    if value in counter or len(counter) < _DISTINCT:
        counter[value] += 1


def _visited(layer: dict[str, Any]) -> dict[str, Any]:
    """Return what of a layer, or of a program, is counted."""
    if "program" not in layer:
        return layer
    try:
        has = features_of(layer["program"])
        widths = ", ".join(str(width) for width in layer["widths"])
    except (KeyError, TypeError, AttributeError):
        return {"program": "not known to this version"}
    return {"program_widths": widths} | {f"program: {feature}": feature in has for feature in FEATURES}


def _count_fields(counters: dict[str, Counter[str]], layer: dict[str, Any]) -> None:
    """Count the values of a layer's fields, and what they say together."""
    heads, groups = layer.get("num_heads"), layer.get("num_kv_heads")
    together = {} if heads is None else {"more_than_one_head": heads != 1, "heads_in_groups": groups is not None}
    for name, value in (layer | together).items():
        _count(counters.setdefault(name, Counter()), _plain(value))


def _range(seen: list[_Number], value: _Number) -> list[_Number]:
    return [min(*seen, value), max(*seen, value)] if seen else [value, value]


def _plain(value: Any) -> str:
    """Return a layer's value as a person would write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "not set"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _key(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
