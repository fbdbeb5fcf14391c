"""A check: one claim, its statistic and null, the departure it must catch, and the draws this takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import numpy as np

from attncheck.checks.claims import NOT_EXPOSED
from attncheck.checks.reference import Reference
from attncheck.checks.sample import Sample
from attncheck.evidence.families import Scale, TwoSample
from attncheck.evidence.family import Family, Outcome
from attncheck.evidence.words import expected
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import visible
from attncheck.layers.requirement import ANY, Requirement
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws

Kind = Literal["exact", "limit"]

#: Draws below which no law of one number per draw shows.
FEWEST_NUMBERS = TwoSample.minimum_count

# What is known before any draw, a sample, and the draws that it is compared with: a layer's, or a program's.
_Setting = TypeVar("_Setting", bound="BaseSetting")
_Sample = TypeVar("_Sample")
_Reference = TypeVar("_Reference")


class BaseSetting(Protocol):
    """What settings of layers and of programs have in common."""

    @property
    def exposed(self) -> frozenset[str]:
        """What the subject exposes."""
        ...

    @property
    def weights(self) -> WeightLaws:
        """The laws of its weights."""
        ...

    @property
    def description(self) -> Any:
        """The layer or the program that is examined."""
        ...


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is known before any draw: the layer, what the subject exposes, how many neurons, its weights' laws."""

    layer: AttentionLayer
    exposed: frozenset[str]
    coordinates: int = 1
    weights: WeightLaws = GAUSSIAN_LAWS

    @property
    def case(self) -> AttentionLayer:
        """The layer, by the name that it shares with programs: what is examined."""
        return self.layer

    @property
    def description(self) -> AttentionLayer:
        """The layer, by another name that it shares with programs: what requirements are of."""
        return self.layer

    @property
    def input_rank(self) -> int:
        """The rank that X has with probability one, or nearly so."""
        directions = self.layer.width - (self.layer.norm == "layer")
        return 1 if self.layer.inputs.equal else min(self.layer.seq_len, directions)

    @property
    def head_rank(self) -> int:
        """The rank of the keys, and of the values, of one head."""
        return min(self.input_rank, self.layer.head_width)

    @property
    def score_entries(self) -> int:
        """The whitened entries of one head's scores: of all scores, or of those that the mask lets see."""
        layer = self.layer
        seen = np.ones((layer.seq_len,) * 2, dtype=bool) if "masked scores" in self.exposed else visible(layer)
        if layer.rotary_base is not None:  # each row has turned keys of its own
            of_rows = np.minimum(seen.sum(axis=1), layer.head_width).sum()
            return int(min(of_rows, self.input_rank * layer.head_width))
        return int(seen[layer.seq_len - self.input_rank :, : self.head_rank].sum())

    @property
    def output_rank(self) -> int:
        """The rank of the outputs' conditional covariance."""
        return min(self.layer.seq_len, self.layer.num_heads * self.head_rank)


@dataclasses.dataclass(frozen=True)
class AlternativeOf(Generic[_Setting]):
    """What a check must catch.

    Attributes
    ----------
    text : str
        In words.
    effect : callable Setting -> float
        As an effect in the unit of the check's family.
    coarsest : callable Setting -> float, optional
        The effect that is still worth a look where `effect` takes more draws than can be afforded; None
        where only `effect` itself is.
    """

    text: str
    effect: Callable[[_Setting], float]
    coarsest: Callable[[_Setting], float] | None = None

    @classmethod
    def of(cls, text: str, effect: float, coarsest: float | None = None) -> Self:
        """Return a departure that is the same everywhere."""
        return cls(text, lambda setting: effect, None if coarsest is None else lambda setting: coarsest)


def _always(setting: Any) -> str:
    return ""


@dataclasses.dataclass(frozen=True)
class CheckOf(Generic[_Setting, _Sample, _Reference]):
    """One statistic on one claim: assertion, detectable gap and sample size from the same object.

    Attributes
    ----------
    name : str
        Unique, ``property.statistic``.
    key : str
        What the check is known by in streams, records and digests; it never changes and is not shown. By default the
        name: a check that is renamed keeps its first name here.
    claim : str
        Key of `attncheck.checks.claims.CLAIMS`.
    kind : {"exact", "limit"}
        Whether the null holds exactly at finite width, or up to a computed distance from the limit.
    needs : frozenset of str
        What the subject must expose.
    null : str
        The null hypothesis, in words.
    alternative : Alternative
        What the check must catch where it is planned.
    reads : str
        What the effect is, in words; shown before its value.
    family : callable Setting -> Family
        The statistical family, which knows p-value, power, size and gap.
    measure : callable (Sample, Reference) -> tuple
        The data that the family's test takes.
    hint : str
        What usually causes such a departure.
    also : callable Setting -> str
        What else may cause it in this setting; empty where nothing does.
    requires : Requirement
        What it asks of a layer, or of a program.
    excluded : callable Setting -> str
        Why it says nothing in this setting though the layer would do; empty where it does.
    draws_per_unit : int
        Draws that make one of the family's, where the statistic pairs draws up.
    any_weights : bool
        Whether the null holds for weights of any symmetric law, though it is exact.
    plot : callable Sample -> dict, optional
        What a report shows of a look in place of the family's own picture; see `attncheck.evidence.plot_data`.
    calls : int
        Calls of the subject that it compares at least: small samples of calibration have as many, most looks more.
    compares : str
        Name of the reference's functional that `measure` takes; empty where it takes none.
    literal : bool
        Whether weights of other laws are held to literal draws of these; see ``attncheck.checks.literal``.
    of_weights : bool
        Whether scores are taken by their attention weights alone, so that these will do.
    fewest_draws : int
        Draws in a look below which nothing shows: asked first, as `family` and `alternative` may take laws to compute.
    revision : int
        Grows by one where the statistic becomes another one: its course over runs begins again.
    """

    name: str
    claim: str
    kind: Kind
    needs: frozenset[str]
    null: str
    alternative: AlternativeOf[_Setting]
    reads: str
    family: Callable[[_Setting], Family]
    measure: Callable[[_Sample, _Reference], tuple[Any, ...]]
    hint: str = ""
    also: Callable[[_Setting], str] = _always
    requires: Requirement[Any] = ANY
    excluded: Callable[[_Setting], str] = _always
    draws_per_unit: int = 1
    any_weights: bool = False
    plot: Callable[[_Sample], dict[str, Any]] | None = None
    calls: int = 1
    compares: str = ""
    fewest_draws: int = 1
    revision: int = 1
    key: str = ""
    literal: bool = False
    of_weights: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.name)

    @property
    def property_name(self) -> str:
        """The group of checks that share a sample: the part of the name before the dot."""
        return self.name.partition(".")[0]

    def reason_not_examined(self, setting: _Setting) -> str:
        """Return why the check cannot say anything in this setting, or an empty string."""
        told = {"scores"} if self.of_weights and "attention" in setting.exposed else frozenset()
        missing = sorted(self.needs - setting.exposed - told)
        if "scores" in missing and "masked scores" in missing:
            missing.remove("masked scores")
        if missing:
            return NOT_EXPOSED + ", ".join(missing)
        if not setting.weights.gaussian and self.kind == "exact" and not (self.any_weights or self.literal):
            return f"exact for Gaussian weights, and the subject's are {setting.weights}"
        return self.requires.reason(setting.description) or self.excluded(setting)

    def hint_on(self, setting: _Setting) -> str:
        """Return what usually causes a departure in this setting."""
        return ", or ".join(filter(None, (self.hint, self.also(setting))))

    def size(self, setting: _Setting, level: float, power: float, cap: int) -> int | None:
        """Return the draws in which one look catches the departure, or None if more than `cap`."""
        return self._size(self.alternative.effect, setting, level, power, cap)

    def look_size(self, setting: _Setting, level: float, power: float, cap: int) -> int | None:
        """Return the draws that a look of at most `cap` draws should take, or None if it is not worth taking.

        That is `size`; or, where it exceeds `cap`, all of `cap` if they catch the coarsest departure.
        """
        size = self.size(setting, level, power, cap)
        if size is not None or self.alternative.coarsest is None:
            return size
        coarse = self._size(self.alternative.coarsest, setting, level, power, cap)
        return None if coarse is None else max(1, cap // self.draws_per_unit) * self.draws_per_unit

    def _size(
        self, effect: Callable[[_Setting], float], setting: _Setting, level: float, power: float, cap: int
    ) -> int | None:
        most = max(1, cap // self.draws_per_unit)
        size = self.family(setting).size(effect(setting), level, power, most)
        return None if size is None else size * self.draws_per_unit

    def mde(self, setting: _Setting, size: int, level: float, power: float) -> float:
        """Return the smallest effect that one look of `size` draws detects with chance `power`."""
        return self.family(setting).mde(max(1, size // self.draws_per_unit), level, power)

    def meets(self, setting: _Setting, size: int, level: float, power: float) -> bool:
        """Return whether one look of `size` draws detects the departure that the check states with chance `power`."""
        family, count = self.family(setting), max(1, size // self.draws_per_unit)
        return family.power(self.alternative.effect(setting), count, level) >= power - 1e-9

    def test(self, setting: _Setting, data: tuple[Any, ...]) -> Outcome:
        """Return the outcome on what `measure` gave; an outcome of count 0 where that is too little for a test.

        A draw may hold nothing, as where all inputs are 0, so that there may be less than was planned.
        """
        family = self.family(setting)
        no_trials = isinstance(data[-1], int) and data[-1] == 0
        no_freedom = isinstance(family, Scale) and np.sum(data[-1]) < 1
        if no_trials or no_freedom or any(np.size(part) < family.minimum_count for part in data):
            null = family.null_effect
            return Outcome(1.0, null, null, null, null, 0)
        return family.test(*data)

    def describe(self, outcome: Outcome) -> str:
        """Return the effect in words and numbers."""
        text = f"{self.reads} {outcome.effect:.4g} [{outcome.low:.4g}, {outcome.high:.4g}]"
        return f"{text}, {expected(outcome)}"


def positions(setting: Setting) -> str:
    """Return what may be wrong with inputs of a layer with positions only."""
    if not setting.layer.position_std:
        return ""
    return (
        "position_std, position_reach or the law of the e^i is not the declared one: fresh in every draw and "
        "neuron, correlated over positions only, whatever the length of h"
    )


Alternative = AlternativeOf[Setting]
Check = CheckOf[Setting, Sample, Reference]
#: A check of layers, or of programs.
AnyCheck = CheckOf[Any, Any, Any]


def by_weights(check: Check) -> Check:
    """Return a check that will do with attention weights where it takes scores to know the outputs' covariance."""
    given = {"scores", "value_gram"} <= check.needs or check.needs == {"outputs", "scores", "input_gram"}
    return dataclasses.replace(check, of_weights=True) if given and "key_gram" not in check.needs else check
