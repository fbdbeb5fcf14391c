"""A check: one claim with its statistic, null, alternative and sample size."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError
from attncheck.checks.answers import DrawOn
from attncheck.checks.claims import NOT_EXPOSED, TWO_VALUES
from attncheck.checks.declared import NOTHING, AlternativeOf, Rejected
from attncheck.checks.derived import DERIVED
from attncheck.checks.reference import LITERAL_RATIO, LiteralReference, Reference
from attncheck.checks.sample import Sample
from attncheck.evidence.families import TwoSample
from attncheck.evidence.family import Family, Outcome
from attncheck.evidence.groups import Blocks
from attncheck.evidence.verdicts import expected
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts.mask import nested
from attncheck.layers.parts.scores import offset_count
from attncheck.layers.requirement import ANY, Requirement
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws

Kind = Literal["exact", "limit"]

#: Minimum number of draws for a test of a law if each draw gives one number.
FEWEST_NUMBERS = TwoSample.minimum_count

_Case = TypeVar("_Case")


class NotExaminedError(Exception):
    """Raised by a measure with the reason why its check does not apply to the subject."""


@contextlib.contextmanager
def refusals_not_examined() -> Iterator[None]:
    """Raise `NotExaminedError` if the subject refuses changed inputs in this context."""
    try:
        yield
    except InputError as error:
        if type(error) is not InputError:  # the subject was stopped
            raise
        raise NotExaminedError(f"the subject refuses changed inputs: {error}") from error


_Setting = TypeVar("_Setting", bound="BaseSetting[Any]")
_Sample = TypeVar("_Sample")
_Reference = TypeVar("_Reference")


@dataclasses.dataclass(frozen=True)
class BaseSetting(Generic[_Case]):
    """The layer or program under test, and what is known about the subject before sampling.

    `exposed` names the arrays that the subject returns, `coordinates` is the number of neurons that it returns, and
    `repeatable` tells whether it returns identical numbers for identically seeded generators. `draw_on` calls the
    subject on inputs that attncheck draws; it is None if the subject draws its own inputs.
    """

    case: _Case
    exposed: frozenset[str]
    coordinates: int = 1
    weights: WeightLaws = GAUSSIAN_LAWS
    repeatable: bool = True
    draw_on: DrawOn | None = dataclasses.field(default=None, compare=False, repr=False)
    #: Whether draws with non-Gaussian weights can be compared with draws by explicit random matrices.
    literal: ClassVar[bool] = False

    @property
    def description(self) -> Any:
        """The layer or program under test."""
        return self.case


class Setting(BaseSetting[AttentionLayer]):
    """The layer under test, and properties of the subject that are known before sampling."""

    literal: ClassVar[bool] = True

    @property
    def layer(self) -> AttentionLayer:
        """The layer under test."""
        return self.case

    @property
    def input_rank(self) -> int:
        """The rank of a draw's inputs (positions × width), almost surely."""
        directions = self.layer.width - (self.layer.norm == "layer")
        return 1 if self.layer.equal_inputs else min(self.layer.seq_len, directions)

    @property
    def head_rank(self) -> int:
        """The rank of one head's keys and values."""
        return min(self.input_rank, self.layer.head_width)

    @property
    def score_entries(self) -> int:
        """The number of independent entries in one head's whitened scores, per draw."""
        layer = self.layer
        mask = np.ones((layer.seq_len,) * 2, dtype=bool) if "masked scores" in self.exposed else layer.visible
        if layer.rotary_base is not None:  # each row of scores uses differently rotated keys
            of_rows = np.minimum(mask.sum(axis=1), layer.head_width).sum()
            return int(min(of_rows, self.input_rank * layer.head_width))
        if offsets := offset_count(layer, mask):
            return int(min(mask.sum(), self.input_rank * self.head_rank + offsets))
        if not nested(mask):
            of_rows = np.minimum(mask.sum(axis=1), self.head_rank).sum()
            of_columns = np.minimum(mask.sum(axis=0), self.input_rank).sum()
            return int(min(of_rows, of_columns, self.input_rank * self.head_rank))
        return int(mask[layer.seq_len - self.input_rank :, : self.head_rank].sum())

    @property
    def output_rank(self) -> int:
        """The rank of one neuron's output covariance, (positions, positions), given scores and values."""
        return min(self.layer.seq_len, self.layer.num_heads * self.head_rank)


def _always(setting: Any) -> str:
    return ""


@dataclasses.dataclass(frozen=True, eq=False)  # checks are keys: comparing and hashing all fields takes long
class CheckOf(Generic[_Setting, _Sample, _Reference]):
    """A statistic for a claim, with its test and sample size.

    Attributes
    ----------
    name : str
        Unique, ``property.statistic``.
    claim : str
        Key of `attncheck.checks.claims.CLAIMS`.
    kind : {"exact", "limit"}
        Whether the null holds exactly at finite width, or only up to a computed distance from the limit.
    needs : frozenset of str
        Arrays that the subject must return, and data that must be computable from them (`attncheck.checks.derived`).
        Scores satisfy the need of "attention".
    null : str
        Null hypothesis.
    alternative : Alternative
        Alternative that determines sample sizes.
    reads : str
        Description of the effect, displayed before its value.
    family : callable Setting -> Family
        Statistical family.
    measure : callable (Sample, Reference) -> tuple
        Function that computes the data for the family's test.
    hint : str
        Usual cause of a rejection.
    also : callable Setting -> str
        Further cause of a rejection in this setting, or an empty string.
    requires : Requirement
        Requirement on the layer or program.
    excluded : callable Setting -> str
        Reason not to run in this setting, or empty.
    draws_per_unit : int
        Number of draws that give one observation of the family.
    any_weights : bool
        Whether the null holds for weights of any symmetric law.
    calls : int
        Number of calls of the subject in a small sample of a calibration. A look has one call per 256 draws.
    compares : str
        Name of the reference functional that `measure` uses, or empty.
    stage : str
        Stage of the computation that the check tests (`attncheck.checks.declared`). It is empty if the check does not
        test a single stage.
    fewest_draws : int
        Minimum number of draws in a look. It is compared first, because `family` and `alternative` may be slow.
    rejects : Rejected
        Wrong simulators that the check must reject.
    """

    name: str
    claim: str
    needs: frozenset[str]
    null: str
    alternative: AlternativeOf[_Setting]
    reads: str
    family: Callable[[_Setting], Family]
    measure: Callable[[_Sample, _Reference], tuple[Any, ...]]
    kind: Kind = "exact"
    hint: str = ""
    also: Callable[[_Setting], str] = _always
    requires: Requirement[Any] = ANY
    excluded: Callable[[_Setting], str] = _always
    draws_per_unit: int = 1
    any_weights: bool = False
    calls: int = 1
    compares: str = ""
    fewest_draws: int = 1
    stage: str = ""
    rejects: Rejected = NOTHING

    @property
    def property_name(self) -> str:
        """The part of the name before the dot; checks of one property share a sample."""
        return self.name.partition(".")[0]

    def reason_not_examined(self, setting: _Setting) -> str:
        """Return why the check does not apply, or an empty string."""
        if missing := self.missing(setting.exposed):
            return NOT_EXPOSED + ", ".join(sorted(missing))
        reason = self.requires.reason(setting.description) or self.excluded(setting)
        derived = (DERIVED[name](setting.description, setting.exposed) for name in sorted(self.needs & DERIVED.keys()))
        return reason or next(filter(None, derived), "") or self._reason_of_weights(setting)

    def missing(self, exposed: frozenset[str]) -> frozenset[str]:
        """Return the names of the needed arrays that the subject does not expose."""
        missing = self.needs - exposed - DERIVED.keys()
        if "attention" in missing:  # scores determine the attention weights
            missing = missing - {"attention"} | ({"scores"} - exposed)
        return missing - {"masked scores"} if "scores" in missing else missing

    def _reason_of_weights(self, setting: _Setting) -> str:
        """Return why the check does not apply to the subject's weight laws, or an empty string."""
        if not self._compares_with_literal_draws(setting.weights):
            return ""
        null = self.family(setting)
        if null.holds_for_all:
            return "" if setting.weights.continuous else TWO_VALUES
        if setting.literal and null.comparable:
            return ""
        return f"the null holds for Gaussian weights, but the subject's are {setting.weights}"

    def _compares_with_literal_draws(self, laws: WeightLaws) -> bool:
        """Return whether the null is exact but holds for Gaussian weights only, while `laws` are not Gaussian.

        Most checks then compare the subject with draws by explicit matrices.
        """
        return self.kind == "exact" and not (self.any_weights or laws.gaussian)

    def family_on(self, setting: _Setting) -> Family:
        """Return the family of the test.

        For non-Gaussian weights, this may be a family that compares the subject with draws by explicit matrices.
        """
        null = self.family(setting)
        if not self._compares_with_literal_draws(setting.weights) or null.holds_for_all:
            return null
        if null.one_per_draw:
            return TwoSample(LITERAL_RATIO, unit=null.unit if isinstance(null, TwoSample) else 0.0)
        return Blocks(null, LITERAL_RATIO)

    def data(self, setting: _Setting, sample: _Sample, reference: _Reference) -> tuple[Any, ...]:
        """Return the arguments of the test of `family_on`, computed from a sample."""
        if (
            not self._compares_with_literal_draws(setting.weights)
            or self.compares
            or (null := self.family(setting)).holds_for_all
        ):
            return self.measure(sample, reference)
        literal: LiteralReference = cast("Any", reference)
        if null.one_per_draw:
            return self.measure(sample, reference)[0], self.measure(cast("Any", literal.sample), reference)[0]
        return self._effects(null, sample, literal), self._effects(null, literal.sample, literal)

    def _effects(self, null: Family, sample: Any, reference: LiteralReference) -> FloatArray:
        """Return the effect of each nonempty block of draws."""
        blocks = sample.blocks(reference.blocks[self.property_name])
        measured = (self.measure(block, cast("Any", reference)) for block in blocks)
        return np.array([null.effect(*data) for data in measured if all(np.sum(np.abs(part)) > 0 for part in data)])

    def hint_on(self, setting: _Setting) -> str:
        """Return the usual causes of a rejection in this setting."""
        return ", or ".join(filter(None, (self.hint, self.also(setting))))

    def size(self, setting: _Setting, level: float, power: float, cap: int) -> int | None:
        """Return the number of draws with which one look detects the alternative, or None if that is above `cap`."""
        return self._size(self.alternative.effect, setting, level, power, cap)

    def look_size(self, setting: _Setting, level: float, power: float, cap: int) -> int | None:
        """Return the number of draws in a look, at most `cap`, or None if no such look is sensitive enough.

        The number is that of `size`, if this is at most `cap`. Otherwise it is `cap`, rounded down to whole
        observations, if a look of this size detects the `coarsest` effect of the alternative.
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
        size = self.family_on(setting).size(effect(setting), level, power, most)
        return None if size is None else size * self.draws_per_unit

    def mde(self, setting: _Setting, size: int, level: float, power: float) -> float:
        """Return the smallest effect that one look of `size` draws detects with probability `power`."""
        return self.family_on(setting).mde(max(1, size // self.draws_per_unit), level, power)

    def meets(self, setting: _Setting, size: int, level: float, power: float) -> bool:
        """Return whether one look of `size` draws detects the alternative with probability `power`."""
        family, count = self.family_on(setting), max(1, size // self.draws_per_unit)
        return family.power(self.alternative.effect(setting), count, level) >= power - 1e-9

    def test(self, setting: _Setting, data: tuple[Any, ...]) -> Outcome:
        """Test the data from `measure`; the outcome has count 0 if there are too few data.

        Data can be fewer than planned because some draws contribute none, e.g. if all inputs are 0.
        """
        family = self.family_on(setting)
        no_trials = isinstance(data[-1], int) and data[-1] == 0
        if no_trials or any(np.size(part) < family.minimum_count for part in data):
            return family.nothing()
        return family.test(*data)

    def describe(self, outcome: Outcome) -> str:
        """Return the effect, its confidence interval and its expected value as text."""
        text = f"{self.reads} {outcome.effect:.4g} [{outcome.low:.4g}, {outcome.high:.4g}]"
        return f"{text}, {expected(outcome.null_effect, outcome.at_most)}"


def positions(setting: Setting) -> str:
    """Return a sentence on position vectors as a possible cause of a rejection; "" for a layer without them."""
    if not setting.layer.position_std:
        return ""
    return (
        "position_std, position_reach or the law of the position vectors e^i differs from the declared one: "
        "independent of h, drawn for each draw and neuron, correlated between positions only"
    )


Alternative = AlternativeOf[Setting]
Check = CheckOf[Setting, Sample, Reference]
#: A check of layers, or of programs.
AnyCheck = CheckOf[Any, Any, Any]
