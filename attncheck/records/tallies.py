"""Results grouped by check, and the cases that they cover."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from attncheck._lib.errors import InputError
from attncheck._lib.names import grouped
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.names import layer_name
from attncheck.layers.program.features import FEATURES, features_of
from attncheck.records.schema import Result, case_key, of_layer

#: Maximum number of most suspicious results that are displayed per check.
RETAINED = 24


@dataclasses.dataclass(frozen=True, eq=False)
class Tally:
    """The results of one check, at least one."""

    name: str
    claim: str
    kind: str
    results: tuple[Result, ...]

    @cached_property
    def verdicts(self) -> Counter[str]:
        """Number of results by verdict."""
        return Counter(result.verdict for result in self.results)

    @cached_property
    def reasons(self) -> Counter[str]:
        """Number of results that were not examined, by reason."""
        return Counter(result.reason or "no reason was given" for result in self.results if not result.p_values)

    @property
    def examined(self) -> int:
        """Number of examined results."""
        return len(self.results) - self.verdicts[Verdict.NOT_EXAMINED]

    @cached_property
    def worst(self) -> list[Result]:
        """Up to `RETAINED` results with a p-value, the most suspicious first."""
        return sorted(self._looked_at, key=suspicion, reverse=True)[:RETAINED]

    @cached_property
    def smallest(self) -> Result | None:
        """The violated result on the smallest case; None without violations."""
        return min((result for result in self.results if result.verdict == Verdict.VIOLATED), key=extent, default=None)

    @cached_property
    def draws(self) -> dict[str, int]:
        """Draws of one look, by case."""
        sizes: dict[str, int] = {}
        for result in self._looked_at:
            sizes[case_key(result)] = max(sizes.get(case_key(result), 0), result.size)
        return sizes

    @cached_property
    def sizes(self) -> list[int]:
        """Smallest and largest number of draws in a look; empty without looks."""
        return _range([result.size for result in self._looked_at])

    @cached_property
    def mdes(self) -> list[float]:
        """The smallest and largest minimum detectable effect; empty if there is none."""
        return _range([result.mde for result in self._looked_at if result.mde is not None])

    @cached_property
    def hint(self) -> str:
        """The likely cause of a violation."""
        return max((result.hint for result in self._looked_at), default="")

    @cached_property
    def _looked_at(self) -> list[Result]:
        return [result for result in self.results if result.p_values]


def tallied(results: Iterable[Result]) -> dict[str, Tally]:
    """Return results by check, in order of first appearance."""
    by_check = grouped(results, lambda result: result.check)
    return {name: Tally(name, of[0].claim, of[0].kind, tuple(of)) for name, of in by_check.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Space:
    """The cases that were examined.

    Attributes
    ----------
    cases : mapping of str to dict
        Cases as built-in types, by key.
    violated : frozenset of str
        Keys of the cases with a violation.
    """

    cases: Mapping[str, dict[str, Any]]
    violated: frozenset[str]

    @classmethod
    def of(cls, results: Iterable[Result]) -> Space:
        """Return the cases of results with a p-value."""
        examined = [result for result in results if result.p_values]
        bad = frozenset(case_key(r) for r in examined if r.verdict == Verdict.VIOLATED)
        return cls({case_key(r): r.case for r in examined}, bad)

    @cached_property
    def layers(self) -> dict[str, tuple[float, str]]:
        """Size (as in `extent`) and short name of each case, by key."""
        return {key: (_size(case), layer_name(case)) for key, case in self.cases.items()}

    @cached_property
    def values(self) -> dict[str, Counter[str]]:
        """Number of cases with each value of each field."""
        return _counted(self.cases.values())


def suspicion(result: Result) -> tuple[float, float, float, str]:
    """Return a sort key that is larger for more suspicious results; ties are ordered by id."""
    return (float(result.verdict == Verdict.VIOLATED), -result.combined, -result.p_values[0], result.id)


def extent(result: Result) -> tuple[float, str]:
    """Return a sort key that is larger for larger cases; ties are ordered by id."""
    return _size(result.case), result.id


def _size(case: dict[str, Any]) -> float:
    if "program" in case:
        lines = case["program"].get("lines", []) if isinstance(case["program"], dict) else []
        return float(len(lines))
    sizes = [case.get(name) for name in ("width", "seq_len", "num_heads")]
    return float(math.prod(size for size in sizes if isinstance(size, int | float)))


def _fields(case: dict[str, Any]) -> dict[str, Any]:
    """Return those fields of a case of which the values are counted."""
    if "program" not in case:
        heads, groups = case.get("num_heads"), case.get("num_kv_heads")
        together = {} if heads is None else {"more_than_one_head": heads != 1, "heads_in_groups": groups is not None}
        return case | together
    try:
        has = features_of(case["program"])
        widths = ", ".join(str(width) for width in case["widths"])
    except (KeyError, TypeError, AttributeError):
        return {"program": "not known to this version"}
    return {"program_widths": widths} | {f"program: {feature}": feature in has for feature in FEATURES}


def _counted(cases: Iterable[dict[str, Any]]) -> dict[str, Counter[str]]:
    counters: dict[str, Counter[str]] = {}
    for case in cases:
        for name, value in _fields(case).items():
            counters.setdefault(name, Counter())[_plain(value)] += 1
    return counters


def _range(values: list[Any]) -> list[Any]:
    return [min(values), max(values)] if values else []


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "not set"
    return f"{value:g}" if isinstance(value, float) else str(value)


def layers_of(results: Iterable[Result]) -> list[AttentionLayer]:
    """Return the distinct attention layers of results, in order; functions that they name are not imported.

    Layers that this version cannot read are left out.
    """
    cases = {case_key(result): result.case for result in results if of_layer(result)}
    layers = []
    for fields in cases.values():
        with contextlib.suppress(InputError):
            layers.append(AttentionLayer.from_dict(fields, trust=None))
    return layers
