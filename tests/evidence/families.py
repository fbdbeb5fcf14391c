"""Every family, with draws of a chosen effect."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.evidence.exchange import Calls, Extremes, Repeats, Trend
from attncheck.evidence.families import Association, Count, Family, Outcome, Scale, Smooth, TwoSample, Uniform
from attncheck.evidence.groups import Blocks, EqualVariances, LargestAssociation, WithinGroups
from attncheck.evidence.normal import Order
from attncheck.evidence.pools import Pool

Data = tuple[Any, ...]
Draw = Callable[[np.random.Generator, int, float], Data]


def bounds(trials: int, chance: float) -> tuple[int, int]:
    """Return the fewest and most events, exceeded either way with chance at most 1e-7.

    With some 100 such counts noise fails the suite with chance below 1e-5 for any seed.
    """
    return int(stats.binom.ppf(5e-8, trials, chance)), int(stats.binom.isf(5e-8, trials, chance))


def pool_of(*outcomes: Outcome) -> Pool:
    return Pool({str(k): outcome.summary for k, outcome in enumerate(outcomes) if outcome.summary is not None})


#: Draws per call.
CALL = 100
WIDTHS = np.array([32.0, 128.0, 512.0])


class FastCalls(Calls):
    """Calls without the interval, which takes nearly all the time and affects neither p-values nor summaries."""

    @staticmethod
    def _noncentrality(statistic: float, freedom: int, tail: float) -> float:
        return 0.0


@dataclass(frozen=True)
class Case:
    """A family, its data with a true effect, and where to examine it.

    `exact`: null p-values are uniform, not only valid; `normal`: so are those of pools. `bound`: power is a bound.
    """

    family: Family
    draw: Draw
    size: int  # draws under the null
    alternatives: tuple[tuple[float, int], ...] = ()  # true effects, with numbers of draws
    exact: bool = True
    normal: bool = True
    bound: bool = False

    def outcomes(self, name: str, effect: float, size: int, replications: int) -> list[Outcome]:
        """Return the outcomes of independent samples with a true effect."""
        rng = stream(0, "tests", name, effect, size)
        return [self.family.test(*self.draw(rng, size, effect)) for _ in range(replications)]


def squares(rng: np.random.Generator, size: int, ratio: float) -> Data:
    """Some without degrees of freedom."""
    dof = rng.integers(0, 17, size=size)
    dof[: size // 2] = 16 - dof[size - size // 2 :]
    return 2.0 * ratio * rng.standard_gamma(dof / 2), dof


def pairs(rng: np.random.Generator, size: int, correlation: float) -> Data:
    """The scale of the weight does not matter."""
    weight = rng.standard_t(8, size=(size, 4))
    noise = math.sqrt(1.0 - correlation**2) * rng.standard_normal((size, 4))
    return noise + correlation * weight / math.sqrt(8 / 6), 1e200 * weight


def dependent_pairs(rng: np.random.Generator, size: int, correlation: float) -> Data:
    """Shared weights, mostly zero, as behind a mask."""
    weight = np.cumsum(rng.standard_cauchy((size, 4)), axis=0) * (rng.random((size, 4)) < 0.2)
    return rng.standard_normal((size, 4)), weight


def grouped_pairs(rng: np.random.Generator, size: int, correlation: float) -> Data:
    group, weight = rng.integers(2, size=size), rng.standard_normal(size)
    noise = math.sqrt(1.0 - correlation**2) * rng.standard_normal(size)
    return noise + correlation * weight + group, weight + 3.0 * group, group


def columns(rng: np.random.Generator, size: int, correlation: float) -> Data:
    """Columns with shared weights, at most one of them tied."""
    weight = np.repeat(rng.standard_t(8, size=(4 * size, 1)) / math.sqrt(8 / 6), 10, axis=1)
    noise = rng.standard_normal((4 * size, 10))
    noise[:, 7] = math.sqrt(1.0 - correlation**2) * noise[:, 7] + correlation * weight[:, 7]
    return noise, weight


def atom(rng: np.random.Generator, size: int, distance: float) -> FloatArray:
    """Return uniform values with the mass of an interval of length `distance` moved to its left end.

    One atom in the middle is the hardest case at that distance from uniform.
    """
    values, start = rng.random(size), 0.5 * (1.0 - distance)
    return np.where((values > start) & (values <= start + distance), start, values)


def units(rng: np.random.Generator, size: int, distance: float) -> Data:
    return (atom(rng, size, distance),)


def two_samples(rng: np.random.Generator, size: int, distance: float) -> Data:
    return atom(rng, size, distance), rng.random(3 * size)


def two_logarithms(rng: np.random.Generator, size: int, distance: float) -> Data:
    return np.log(rng.chisquare(2, size)), np.log(rng.chisquare(2, 3 * size))


def two_rounded(rng: np.random.Generator, size: int, distance: float) -> Data:
    ours, theirs = (np.round(rng.standard_normal(count), 1) for count in (size, 3 * size))
    return ours.astype(np.float32), theirs


def two_heavy_tails(rng: np.random.Generator, size: int, ratio: float) -> Data:
    return rng.standard_t(2, size), rng.standard_t(2, 3 * size)


def component(order: int) -> Draw:
    def draw(rng: np.random.Generator, size: int, mean: float) -> Data:
        # Rejection sampling of the density 1 + mean·φ_k, whose component is `mean`.
        top = 1.0 + abs(mean) * math.sqrt(2 * order + 1)
        values, heights = rng.random(2 * size), top * rng.random(2 * size)
        shape = math.sqrt(2 * order + 1) * np.polynomial.legendre.legval(2 * values - 1, [0] * order + [1])
        return (values[heights < 1.0 + mean * shape][:size],)

    return draw


def events(per_draw: int) -> Draw:
    return lambda rng, size, chance: (int(rng.binomial(size * per_draw, chance)), size * per_draw)


def marks(rng: np.random.Generator, size: int, share: float) -> Data:
    values = rng.integers(2**63, size=size, dtype=np.uint64)
    return (np.where(rng.random(size) < share, values[::-1], values),)


def calls(rng: np.random.Generator, size: int, share: float) -> Data:
    """Sixteen calls, and a share of the variance between them."""
    shifts = rng.permutation(np.linspace(-1.0, 1.0, 16))
    values = share**0.5 * shifts[:, None] / shifts.std() + (1.0 - share) ** 0.5 * rng.standard_normal((16, size // 16))
    return np.exp(values.ravel()), np.full(16, size // 16)


def trend(length: int) -> Draw:
    """Calls of a length, with a correlation of values and their order."""

    def draw(rng: np.random.Generator, size: int, correlation: float) -> Data:
        order = np.tile(np.linspace(-1.0, 1.0, length), size // length) * math.sqrt(3.0)
        noise = math.sqrt(1.0 - correlation**2) * rng.standard_normal(len(order))
        return correlation * order + noise, np.full(size // length, length)

    return draw


def sides(rng: np.random.Generator, size: int, share: float) -> Data:
    largest = np.where(rng.random((size, 1)) < share, 4.0, rng.random((size, 1)))
    return np.hstack([largest, rng.random((size, 1))]), np.full(size // CALL, CALL)


def variances(groups: int, dof: float) -> Draw:
    def draw(rng: np.random.Generator, size: int, ratio: float) -> Data:
        scales = np.r_[ratio, np.ones(groups - 1)]
        return rng.chisquare(dof, (size, groups)) * scales, np.full((size, groups), dof)

    return draw


def logarithms(rng: np.random.Generator, size: int, order: float) -> Data:
    return np.log(np.abs(rng.standard_normal((size, 3)))) + order * np.log(WIDTHS), WIDTHS


CASES = {
    "scale": Case(Scale(8), squares, 10, ((1.4, 60), (1 / 1.4, 60), (1.1, 800))),
    "association": Case(Association(4), pairs, 25, ((0.1, 400), (-0.1, 300), (0.03, 4000))),
    "association, dependent": Case(Association(4), dependent_pairs, 25),
    "association in groups": Case(WithinGroups(), grouped_pairs, 25, ((0.2, 500),)),
    "largest of 10": Case(
        LargestAssociation(4, 10), columns, 25, ((0.2, 125), (-0.2, 160)), exact=False, normal=False, bound=True
    ),
    "uniform": Case(Uniform(), units, 200, ((0.1, 900), (0.1, 700), (0.4, 60)), bound=True),
    "uniform, allowance": Case(
        Uniform(0.02), units, 500, ((0.08, 2000), (0.12, 800)), exact=False, normal=False, bound=True
    ),
    "smooth 1": Case(Smooth(1), component(1), 500, ((0.1, 2000), (-0.1, 1500))),
    "smooth 2": Case(Smooth(2), component(2), 500, ((0.08, 3000), (-0.08, 2500))),
    "smooth 3": Case(Smooth(3), component(3), 500, ((0.1, 2000),)),
    "smooth 4": Case(Smooth(4), component(4), 500, ((0.05, 6000), (-0.05, 8000))),
    "two samples": Case(TwoSample(3), two_samples, 40, ((0.1, 1200), (0.3, 120)), exact=False, bound=True),
    "two logarithms": Case(TwoSample(3, unit=1.0), two_logarithms, 40, exact=False),
    "two rounded": Case(TwoSample(3, unit=10.0), two_rounded, 40, exact=False, normal=False),
    "count, upper": Case(
        Count(0.002, per_draw=2), events(2), 700, ((0.01, 700), (0.006, 2000)), exact=False, normal=False
    ),
    "count, two-sided": Case(
        Count(0.3, tail="two-sided"), events(1), 50, ((0.4, 400), (0.2, 300), (0.35, 2000)), exact=False, normal=False
    ),
    "repeats": Case(Repeats(), marks, 50, exact=False, normal=False),
    "calls": Case(FastCalls(16), calls, 960, normal=False),
    "trend": Case(Trend(), trend(CALL), 200, ((0.25, 200), (-0.25, 200))),
    "trend of pairs": Case(Trend(), trend(2), 120),
    "extremes": Case(Extremes(), sides, 100, ((0.002, 4000), (0.02, 500)), exact=False, normal=False),
    "two variances": Case(EqualVariances(2, 5), variances(2, 5.0), 5),
    "variances": Case(
        EqualVariances(4, 16),
        variances(4, 16.0),
        5,
        ((1.21, 131), (1 / 1.21, 131)),
        exact=False,
        normal=False,
        bound=True,
    ),
    "order": Case(Order(-0.5), logarithms, 200, ((-0.4, 400), (-0.6, 400))),
    "blocks": Case(Blocks(Scale(4), 3), two_heavy_tails, 8, exact=False, normal=False),
}
