"""Assertions about random draws, within one budget of false alarms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_integer, check_number, refuse
from attncheck._lib.streams import stream
from attncheck._lib.text import chance, counted, number
from attncheck.evidence.distances import Uniform
from attncheck.evidence.exchange import Trend
from attncheck.evidence.families import Scale
from attncheck.evidence.family import Family, Outcome, check_power, finite_array
from attncheck.evidence.looks import examine, per_look_power
from attncheck.evidence.verdicts import Verdict

#: Most draws planned for one look; a fourth look takes eight times as many.
MOST_DRAWS = 2_000_000
# Number of draws to test whether a callable returns equal draws for equal generators.
_TRIAL = 16
# pytest shows the line of the test, not the frames of this module.
__tracebackhide__ = True

Draw = Callable[[np.random.Generator, int], Any]


class Statistic(NamedTuple):
    """Statistic of an assertion.

    `family` is its statistical family, `data` computes the data of the family, `alternative` is the smallest effect to
    detect, and `shown` converts effects to the user's unit.
    """

    family: Family
    data: Callable[..., tuple[Any, ...]]
    alternative: float
    shown: Callable[[float], float]


@dataclass(frozen=True)
class Assertion:
    """Result of one assertion.

    Parameters
    ----------
    message : str
        Verdict, observed effect and expected value.
    violated : bool
    alpha : float
        Part of the budget spent on this assertion.
    draws : int
        Draws used, in all looks.

    Examples
    --------
    >>> Assertion("consistent: standard deviation 1.01, expected 1", False, 5e-7, 400).draws
    400
    """

    message: str
    violated: bool
    alpha: float
    draws: int


class Evidence:
    """Assertions about random draws that share one budget of false alarms.

    The k-th assertion gets alpha/(k(k + 1)), so that any number of them keeps the budget. If draws come from a
    callable, a suspicious look is repeated on fresh draws. Draws given as arrays are tested once.

    Parameters
    ----------
    seed : int
        Key of the random streams.
    alpha : float
        Largest chance that any assertion fails although all are true, in (0, 1).
    power : float
        Smallest chance of detecting a deviation of the stated effect.
    name : str
        Name of the test, also a key of the streams.
    replay : str
        Line that repeats the test; by default, the call that makes this object.

    Raises
    ------
    InputError
        If an argument is out of range, or draws are of wrong shape, not finite, all equal, or differ between calls
        with equal generators.
    AssertionError
        If an assertion is violated.

    Examples
    --------
    >>> import scipy
    >>> evidence = Evidence(seed=0)
    >>> evidence.assert_law(lambda rng, size: rng.standard_normal(size), scipy.stats.norm(), effect=0.05)
    >>> evidence.assert_scale(lambda rng, size: 0.02 * rng.standard_normal(size), std=0.02, effect=0.05)
    >>> evidence.summary()
    '2 assertions, none violated (chance of any false alarm at most 1e-06)'
    """

    def __init__(
        self, seed: int = 0, alpha: float = 1e-6, power: float = 0.99, name: str = "", replay: str = ""
    ) -> None:
        self.seed = check_integer("seed", seed, 0, "pass a whole number of at least 0")
        self.alpha = check_number("alpha", alpha, "pass the budget, e.g. 1e-6", above=0.0)
        self.power = check_power(power, self.alpha)
        self.name = name
        self._replay = replay or f"Evidence(seed={seed}, alpha={alpha!r}, power={power!r}, name={name!r})"
        self.assertions: list[Assertion] = []

    def assert_law(self, draw: Draw | ArrayLike, law: Any, effect: float) -> None:
        """Assert that independent draws follow a continuous law, by the Kolmogorov distance.

        Parameters
        ----------
        draw : callable (rng, size) -> array of shape (size,), or array of shape (draws,)
        law : frozen continuous distribution of SciPy, or its distribution function
        effect : float
            Smallest distance between distribution functions to be found, in (0, 1).
        """
        if hasattr(getattr(law, "dist", law), "pmf"):
            refuse("law", law, "is discrete", "pass a continuous law")
        cdf = getattr(law, "cdf", law)
        if not callable(cdf):
            refuse("law", law, "has no distribution function", "pass e.g. scipy.stats.norm()")
        distance = check_number("effect", effect, "pass a distance, e.g. effect=0.02", above=0.0, maximum=1.0)

        def uniform(values: FloatArray) -> tuple[FloatArray]:
            try:
                probabilities = np.asarray(cdf(values), dtype=np.float64)
            except (TypeError, ValueError) as error:
                refuse("law", law, f"fails on an array of draws ({error})", "pass e.g. scipy.stats.norm(loc, scale)")
            if probabilities.shape != values.shape:
                refuse("law", law, f"maps shape {values.shape} to {probabilities.shape}", "pass a vectorised function")
            return (probabilities,)

        statistic = Statistic(Uniform(), uniform, distance, float)
        self._assert(draw, {"distance from the law": statistic})

    def assert_scale(self, draw: Draw | ArrayLike, std: float, effect: float) -> None:
        """Assert the standard deviation of independent normal draws of mean 0, by a chi-square test.

        The draws must be normal: draws with heavier tails fail too often. For another law, use `assert_law` with that
        law at its expected scale.

        Parameters
        ----------
        draw : callable (rng, size) -> array of shape (size,), or array of shape (draws,)
        std : float
            Expected standard deviation.
        effect : float
            Smallest relative error of `std` to be found, e.g. 0.02.
        """
        sigma = check_number("std", std, "pass a standard deviation, e.g. std=0.02", above=0.0)
        ratio = 1.0 + check_number("effect", effect, "pass a relative error, e.g. effect=0.02", above=0.0)

        def squares(values: FloatArray) -> tuple[FloatArray]:
            return ((values / sigma) ** 2,)

        statistic = Statistic(Scale(dof=1), squares, ratio**2, lambda variance: sigma * variance**0.5)
        self._assert(draw, {"standard deviation": statistic})

    def assert_independent(self, draw: Draw | tuple[ArrayLike, ArrayLike], effect: float) -> None:
        """Assert that x and y are independent, given independent draws of pairs (x, y), by permutation tests.

        The tests are valid for any laws. They correlate the ranks of values, and the ranks of distances from the
        median; dependence that shows in neither correlation is not found.

        Parameters
        ----------
        draw : callable (rng, size) -> two arrays of shape (size,), or two arrays of shape (draws,)
        effect : float
            Smallest correlation of normal scores with ranks to be found, in (0, 1).
        """
        least = check_number("effect", effect, "pass a correlation, e.g. effect=0.05", above=0.0, maximum=1.0)
        statistics = {
            "rank correlation": Statistic(Trend(), _by_partner, least, float),
            "rank correlation of distances from the median": Statistic(Trend(), _sizes_by_partner, least, float),
        }
        self._assert(draw, statistics, columns=2)

    def assert_statistic(
        self,
        draw: Draw | ArrayLike,
        family: Family,
        measure: Callable[[FloatArray], tuple[Any, ...]],
        alternative: float,
        reads: str,
    ) -> None:
        """Assert the null of a family for a custom statistic.

        Parameters
        ----------
        draw : callable (rng, size) -> array of shape (size,), or array of shape (draws,)
        family : Family
            E.g. ``attncheck.evidence.Count(probability)``.
        measure : callable
            Maps the draws to the arguments of ``family.test``.
        alternative : float
            Effect to be found, in the unit of the family.
        reads : str
            Description of the effect.

        Examples
        --------
        >>> from attncheck.evidence import Count, Evidence
        >>> def rolls(rng, size):
        ...     return rng.integers(1, 7, size).astype(float)
        >>> def sixes(values):
        ...     return int((values == 6).sum()), len(values)
        >>> evidence = Evidence()
        >>> evidence.assert_statistic(rolls, Count(1 / 6, tail="two-sided"), sixes, 1 / 5, "share of sixes")
        """
        self._assert(draw, {reads: Statistic(family, measure, alternative, float)})

    def assert_p_values(self, measure: Callable[[int], tuple[Mapping[str, float], Mapping[str, float]]]) -> None:
        """Assert that true nulls hold and wrong ones are rejected, by p-values computed from random numbers.

        A suspicious look is repeated with other seeds, at the same size. The chance that any true null is violated is
        at most the budget of the assertion. Wrong nulls must be rejected at the same level in the last look; how often
        that fails depends on their power alone.

        Parameters
        ----------
        measure : callable (seed) -> two mappings
            Maps a seed to the p-values of nulls that hold, by name, and to those of wrong nulls, by name. All random
            numbers must depend on the seed, because equal ones would give equal p-values in each look.

        Raises
        ------
        AssertionError
            If a true null is violated, or if a wrong null is not rejected.
        InputError
            If a p-value is not between 0 and 1, there is none, or names differ between seeds.

        Examples
        --------
        >>> import scipy
        >>> def means(seed):
        ...     draws = np.random.default_rng(seed).standard_normal(1000)
        ...     return {"mean 0": scipy.stats.ttest_1samp(draws, 0.0).pvalue}, {
        ...         "mean 1/2": scipy.stats.ttest_1samp(draws, 0.5).pvalue
        ...     }
        >>> evidence = Evidence()
        >>> evidence.assert_p_values(means)
        >>> evidence.assertions[0].message
        'consistent: mean 0'
        """
        index = len(self.assertions) + 1
        alpha = self.alpha / (index * (index + 1))

        wrong: Mapping[str, float] = {}

        def measured(look: int) -> dict[str, Outcome]:
            nonlocal wrong
            seed = int(stream(self.seed, self.name, index, look=look).integers(2**63))
            correct, wrong = measure(seed)
            for name, p_value in (*correct.items(), *wrong.items()):
                check_number("p_value", p_value, f"return a chance for {name}", minimum=0.0, maximum=1.0)
            if not correct and not wrong:
                refuse("measure", measure, "returned no p-value", "return p-values of true nulls, by name")
            return {name: Outcome(p, p, 0.0, 1.0, 1.0, 1) for name, p in correct.items()}

        def evaluate(look: int, factor: int, names: tuple[str, ...]) -> dict[str, Outcome]:
            outcomes = first if look == 1 else measured(look)
            if outcomes.keys() != first.keys():
                refuse("measure", measure, "names other nulls with another seed", "return the same names for all seeds")
            return {name: outcomes[name] for name in names}

        first = measured(1)
        level = (0.5 * alpha / max(1, len(first))) ** (1.0 / 3.0)
        trails = examine(evaluate, first, level)
        problems = [
            f"{name}: p = {', '.join(map(chance, trail.p_values))}"
            for name, trail in trails.items()
            if trail.verdict is not Verdict.CONSISTENT
        ]
        problems += [f"not rejected: {name} (p = {chance(p)})" for name, p in wrong.items() if p >= level]
        message = f"{'violated' if problems else 'consistent'}: {'; '.join(problems or first)}"
        self.assertions.append(Assertion(message, bool(problems), alpha, 0))
        if problems:
            raise AssertionError(
                f"{message}\nassertion {index}, level {level:.2g} per look\nrepeat with {self._replay}"
            )

    def summary(self) -> str:
        """Return the number of assertions, the violated ones, and the budget as text."""
        violated = [str(index) for index, assertion in enumerate(self.assertions, 1) if assertion.violated]
        verdict = f"violated: {', '.join(violated)}" if violated else "none violated"
        count = counted(len(self.assertions), "assertion")
        return f"{count}, {verdict} (chance of any false alarm at most {self.alpha:.2g})"

    def _assert(self, draw: Any, statistics: Mapping[str, Statistic], columns: int = 1) -> None:
        index = len(self.assertions) + 1
        alpha = self.alpha / (index * (index + 1))
        samples, used = () if callable(draw) else _checked(draw, None, columns), 0

        def evaluate(look: int, factor: int, names: tuple[str, ...]) -> dict[str, Outcome]:
            nonlocal used
            used += size * factor
            rng = stream(self.seed, self.name, index, look=look)
            data = samples or _checked(draw(rng, size * factor), size * factor, columns)
            outcomes = {name: statistics[name].family.test(*statistics[name].data(*data)) for name in names}
            if not all(outcome.count for outcome in outcomes.values()):
                refuse("measure", size * factor, "draws give too few values for a test", "measure more values a draw")
            return outcomes

        if samples:
            level, size = alpha / len(statistics), samples[0].size
            needed = _planned(statistics, level, self.power)
            if size < needed:
                refuse("draw", size, "draws are too few to find this effect", f"pass at least {needed:,}")
            lasts = evaluate(1, 1, tuple(statistics))
        else:
            level = (0.5 * alpha / len(statistics)) ** (1.0 / 3.0)
            continuous = all(isinstance(statistic.family, Uniform) for statistic in statistics.values())
            _check_repeats(draw, stream(self.seed, self.name, index, role="trial"), columns, continuous)
            size = _planned(statistics, level, per_look_power(self.power))
            lasts = {name: trail.last for name, trail in examine(evaluate, statistics, level).items()}
        name, last = min(lasts.items(), key=lambda pair: pair[1].p_value)
        violated = last.p_value < level
        message = _message(name, statistics[name], last, violated)
        self.assertions.append(Assertion(message, violated, alpha, used))
        if violated:
            raise AssertionError(
                f"{message} (chance of a false alarm at most {alpha:.2g})\n"
                f"assertion {index}: p = {chance(last.p_value)} in the last look, level {level:.2g} per look, "
                f"{counted(used, 'draw')}\nrepeat with {self._replay}"
            )


def _message(name: str, statistic: Statistic, outcome: Outcome, violated: bool) -> str:
    effect, low, high, null = (
        number(statistic.shown(value)) for value in (outcome.effect, outcome.low, outcome.high, outcome.null_effect)
    )
    return f"{'violated' if violated else 'consistent'}: {name} {effect} [{low}, {high}], expected {null}"


def _planned(statistics: Mapping[str, Statistic], level: float, power: float) -> int:
    """Return the number of draws with which one look detects the alternatives of all statistics."""
    sizes = [s.family.size(s.alternative, level, power, MOST_DRAWS) for s in statistics.values()]
    if None in sizes:
        effects = [s.alternative for s in statistics.values()]
        refuse("effect", effects[0], f"needs more than {MOST_DRAWS:,} draws per look", "pass a larger effect")
    return max(_TRIAL, *filter(None, sizes))


def _checked(drawn: Any, size: int | None, columns: int) -> tuple[FloatArray, ...]:
    """Return the columns of draws as arrays of equal length, or refuse invalid draws."""
    if columns > 1 and (not isinstance(drawn, tuple) or len(drawn) != columns):
        refuse("draw", type(drawn).__name__, "must give x and y", "return a tuple of two arrays")
    arrays = tuple(finite_array("draw", column) for column in (drawn if columns > 1 else (drawn,)))
    expected = (arrays[0].size if size is None else size,)
    for array in arrays:
        if array.shape != expected:
            refuse("draw", array.shape, f"must have the shape {expected}", "return one number per draw")
        if array.size > 1 and np.ptp(array) == 0.0:
            refuse("draw", float(array[0]), "is the value of all draws", "return random numbers")
    return arrays


def _check_repeats(draw: Draw, rng: np.random.Generator, columns: int, continuous: bool) -> None:
    """Refuse a callable whose draws differ between equal generators, or are equal for different ones.

    Draws of a `continuous` law are refused, too, if at most half of the draws of a call are distinct.
    """
    state = rng.bit_generator.state
    first = _checked(draw(rng, _TRIAL), _TRIAL, columns)
    rng.bit_generator.state = state
    again, other = (_checked(draw(rng, _TRIAL), _TRIAL, columns) for _ in range(2))
    remedy = "take all random numbers from rng"
    if not all(map(np.array_equal, first, again)):
        refuse("draw", draw, "differs between calls with equal generators", remedy)
    if all(map(np.array_equal, again, other)):
        refuse("draw", draw, "returns the same numbers for two generators", remedy)
    if continuous and (distinct := len(np.unique(first[0]))) <= _TRIAL // 2:
        problem = f"repeats numbers: only {distinct} of {_TRIAL} in one call are distinct"
        refuse("draw", draw, problem, "return independent draws")


def _by_partner(x: FloatArray, y: FloatArray) -> tuple[FloatArray, list[int]]:
    """Return x sorted by y, and the number of values: the data of a `Trend` test of a single call."""
    return x[np.argsort(y, kind="stable")], [x.size]


def _sizes_by_partner(x: FloatArray, y: FloatArray) -> tuple[FloatArray, list[int]]:
    return _by_partner(np.abs(x - np.median(x)), np.abs(y - np.median(y)))
