"""Base class of statistical families: minimum detectable effect and sample size by inversion of the power."""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_integer, check_number, refuse, validate
from attncheck.evidence.summaries import Summary

if TYPE_CHECKING:
    from attncheck.evidence.plot_data import Plot

#: Coverage of the intervals of effects.
CONFIDENCE = 0.99
#: Tail probability on each side of these intervals.
TAIL = 0.5 * (1.0 - CONFIDENCE)
#: Half the width of these intervals, in standard errors of a normal statistic.
QUANTILE = float(special.ndtri(0.5 + 0.5 * CONFIDENCE))
#: Remedy in messages about an invalid size.
DRAWS = "pass a number of draws, e.g. size=1000"
#: Default cap of `Family.size`.
DRAWS_CAP = 10_000_000


@dataclass(frozen=True)
class Outcome:
    """Result of one test on one sample, in plain Python numbers.

    Parameters
    ----------
    p_value : float
        Chance under the null of a statistic at least as extreme.
    effect, low, high : float
        Observed effect and its 99% interval, in the family's unit.
    null_effect : float
        Effect under the null, or the largest effect that the null allows if `at_most`.
    count : int
        Independent values used.
    plot : Plot or None
        See `attncheck.evidence.plot_data`.
    at_most : bool
        Whether the null allows everything up to `null_effect`.
    summary : Summary or None
        Summary for pooling.
    reason : str
        Why there are no data, if known.

    Examples
    --------
    >>> Outcome(p_value=np.float64(0.5), effect=1.0, low=0.9, high=1.1, null_effect=1.0, count=100).p_value
    0.5
    """

    p_value: float
    effect: float
    low: float
    high: float
    null_effect: float
    count: int
    plot: Plot | None = dataclasses.field(default=None, compare=False, repr=False)
    at_most: bool = False
    summary: Summary | None = dataclasses.field(default=None, compare=False, repr=False)
    reason: str = ""

    def __post_init__(self) -> None:
        remedy = "build outcomes from finite statistics"
        # pytest-xdist cannot transfer NumPy scalars.
        validate(self, "p_value", check_number, remedy, minimum=0.0, maximum=1.0)
        for name in ("effect", "low", "high", "null_effect"):
            validate(self, name, check_number, remedy)
        validate(self, "count", check_integer, 0, "count independent values")


def added(one: tuple[Any, ...], two: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the elementwise sums of two tuples."""
    return tuple(first + second for first, second in zip(one, two, strict=True))


class CondensedData:
    """Data of any number of draws, condensed to a fixed number of values.

    Parameters
    ----------
    reduce : callable
        Maps the arguments of ``Family.test`` to the condensed values.
    conclude : callable
        Maps condensed values to the outcome.
    merge : callable
        Combines the condensed values of two sets of draws, in this order.

    Examples
    --------
    >>> from attncheck.evidence.families import Scale
    >>> family = Scale(dof=2)
    >>> family.condensed([3.0, 1.0]).add([2.0]).outcome() == family.test([3.0, 1.0, 2.0])
    True
    """

    def __init__(
        self,
        reduce: Callable[..., tuple[Any, ...]],
        conclude: Callable[..., Outcome],
        merge: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]] = added,
    ) -> None:
        self._reduce, self._conclude, self._merge = reduce, conclude, merge
        self._numbers: tuple[Any, ...] = ()

    def add(self, *data: Any) -> Self:
        """Add the data of further draws; no array may be empty."""
        new = self._reduce(*data)
        self._numbers = self._merge(self._numbers, new) if self._numbers else new
        return self

    def outcome(self) -> Outcome:
        """Return the outcome for all data."""
        return self._conclude(*self._numbers)


class Family(ABC):
    """Base class of statistics with a known null law: test, minimum detectable effect and sample size.

    Sizes count draws, each of which may hold several values. Alternatives are true effects, in the unit of
    ``Outcome.effect``. In `mde` and `size`, both the alternative and its counterpart on the other side of the null, if
    there is one, must be detected: 1/r for a ratio r, −m for a component m.
    """

    #: Fewest independent values for a p-value.
    minimum_count: ClassVar[int] = 1
    #: Whether very small p-values are valid: they are exact or too large, never too small.
    tail_exact: ClassVar[bool] = False
    #: Whether the statistic compares draws of different blocks, so that no block can stand for the whole sample.
    across_blocks: ClassVar[bool] = False

    @property
    @abstractmethod
    def null_effect(self) -> float:
        """Effect under the null."""

    @property
    def continuous(self) -> bool:
        """Whether p-values are uniform under the null, as the ledger's uniformity test requires."""
        return True

    @property
    def comparable(self) -> bool:
        """Whether a rank test may compare effects on blocks of a sample with effects on blocks of reference draws."""
        return False

    @property
    def one_per_draw(self) -> bool:
        """Whether each draw gives one number."""
        return False

    @property
    def holds_for_all(self) -> bool:
        """Whether the null holds for draws of any continuous law."""
        return False

    def plannable(self, effect: float) -> float:
        """Return the number nearest to `effect` that `power` accepts as an alternative."""
        return effect

    def test(self, *data: Any) -> Outcome:
        """Return the outcome for one sample; the docstring of each family's `condensed` describes the arguments `data`.

        The count of the outcome is 0 if there are too few values.
        """
        return self.condensed(*data).outcome()

    def effect(self, *data: Any) -> float:
        """Return the effect that `test` finds, also for data too small for a p-value."""
        return self.test(*data).effect

    @abstractmethod
    def condensed(self, *data: Any) -> CondensedData:
        """Return condensed data, to which more data can be added; `data` are arguments of `test`.

        Sums are exact up to rounding. P-values of distances are never smaller than for the full data. Ranks are those
        among cells of equal frequency in `data`, so these should contain many draws, and whole calls.
        """

    def nothing(self) -> Outcome:
        """Return the outcome for too few data to test."""
        return Outcome(1.0, self.null_effect, self.null_effect, self.null_effect, self.null_effect, 0)

    @abstractmethod
    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the chance that ``p_value < level`` in `size` draws when the true effect is `alternative`."""

    def mde(self, size: int, level: float, power: float) -> float:
        """Return the smallest effect above the null detected with chance `power` (above `level`), or ``math.inf``."""
        count = check_integer("size", size, 1, "pass a number of draws")
        return _smallest_mde(self, count, level, check_power(power, level))

    def size(self, alternative: float, level: float, power: float, cap: int = DRAWS_CAP) -> int | None:
        """Return the smallest number of draws that detects `alternative` with chance `power`; None if above `cap`.

        For discrete statistics, whose power is not monotone in size, fewer draws may suffice.
        """
        target = check_power(power, level)
        check_integer("cap", cap, 1, "pass the maximum number of draws to plan")
        self.power(alternative, 1, level)  # validates `alternative`
        return _smallest_size(self, alternative, level, target, cap)

    @property
    @abstractmethod
    def _farthest(self) -> float:
        """Largest alternative that `mde` considers."""

    def _mirrored(self, alternative: float) -> tuple[float, ...]:
        """Return the alternative, and its counterpart on the other side of the null if there is one."""
        return (alternative,)

    def _detects(self, alternative: float, size: int, level: float, target: float) -> bool:
        return all(self.power(effect, size, level) >= target for effect in self._mirrored(alternative))


# Cached, because the checks of many layers repeat these searches.
@functools.lru_cache(maxsize=4096)
def _smallest_mde(family: Family, size: int, level: float, target: float) -> float:
    return smallest_real(
        lambda effect: family._detects(effect, size, level, target), family.null_effect, family._farthest
    )


@functools.lru_cache(maxsize=4096)
def _smallest_size(family: Family, alternative: float, level: float, target: float, cap: int) -> int | None:
    return smallest_integer(lambda draws: family._detects(alternative, draws, level, target), cap)


def smallest_real(passes: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest number in (low, high] for which a monotone predicate is true, or ``math.inf``.

    Examples
    --------
    >>> round(smallest_real(lambda x: x * x >= 2, 0.0, 10.0), 6)
    1.414214
    """
    if not passes(high):
        return math.inf
    start = low
    while high - low > 1e-9 * (high - start):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def smallest_integer(passes: Callable[[int], bool], cap: int) -> int | None:
    """Return the smallest number in 1..cap for which a monotone predicate is true, or None.

    Examples
    --------
    >>> smallest_integer(lambda n: n * n >= 50, 100), smallest_integer(lambda n: n * n >= 50, 5)
    (8, None)
    """
    low, high = 0, 1
    while not passes(high):
        if high >= cap:
            return None
        low, high = high, min(2 * high, cap)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def normal_power(mean: float, level: float) -> float:
    """Return the two-sided power of a normal statistic of mean `mean` and variance 1."""
    critical = -float(special.ndtri(0.5 * check_level(level)))
    return float(special.ndtr(mean - critical) + special.ndtr(-mean - critical))


def check_level(level: Any) -> float:
    """Return `level` as a float inside (0, 1), or raise `InputError`."""
    return inside_unit("level", level, "pass a significance level, e.g. level=5e-4")


def check_power(power: Any, level: Any) -> float:
    """Return `power` as a float inside (level, 1), or raise `InputError`."""
    target = inside_unit("power", power, "pass a chance of detection, e.g. power=0.99")
    if target <= check_level(level):
        refuse("power", power, f"must exceed the level {level:g}", "pass a chance such as power=0.99")
    return target


def inside_unit(field: str, value: Any, remedy: str) -> float:
    """Return `value` as a number inside (0, 1), or raise an `InputError` that names `field` and `remedy`."""
    number = check_number(field, value, remedy, above=0.0)
    if number >= 1.0:
        refuse(field, value, "must be less than 1", remedy)
    return number


def finite_array(field: str, value: ArrayLike) -> FloatArray:
    """Return `value` as a float64 array; raise `InputError` unless it is real, finite and non-empty.

    Examples
    --------
    >>> finite_array("noise", [1, 2])
    array([1., 2.])
    """
    raw = np.asarray(value)
    if raw.dtype.kind not in "fiub":
        refuse(field, raw.dtype.name, "must hold real numbers", "pass a numeric array")
    if raw.size == 0:
        refuse(field, raw.shape, "must not be empty", "pass at least one draw")
    array = raw.astype(np.float64, copy=False)
    if not np.isfinite(array).all():
        bad = array[~np.isfinite(array)].flat[0]
        refuse(field, float(bad), "must be finite", "fix the simulator that returned NaN or infinity")
    return array


def unit_array(field: str, value: ArrayLike) -> FloatArray:
    """Return `value` as a flat float64 array of numbers in [0, 1].

    Numbers up to 1e-9 outside of this range are clipped.
    """
    array = finite_array(field, value).ravel()
    outside = array[(array < -1e-9) | (array > 1.0 + 1e-9)]
    if outside.size:
        refuse(field, float(outside[0]), "must lie in [0, 1]", "pass probability integral transforms")
    return np.clip(array, 0.0, 1.0)


def check_count(field: str, count: int, minimum: int) -> int:
    """Return `count`, or raise `InputError` if it is below `minimum`."""
    if count < minimum:
        refuse(field, count, f"must be at least {minimum} independent values", "pass more draws: `size` says how many")
    return count
