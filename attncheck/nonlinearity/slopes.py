"""The steepest pairs of a function at all magnitudes: what a search for witnesses looks at."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Function = Callable[[FloatArray], FloatArray]

# Shells 2^k ≤ |x| ≤ 2^{k+1}: all that matter to Gaussian variables, then one in ten, up to 2e307.
_EXPONENTS: Final = (*range(21), *range(30, 1021, 10))
# Cusps are looked for where Gaussian variables go.
_CUSP_SHELLS: Final = 21
# Panels on each side of a shell, and on [-1, 1].
_PANELS, _INNER_PANELS = 32, 256
# Differences of φ below this part of the largest |φ| so far are left alone: rounding may have made them.
_DIFFERENCE: Final = 2.0**-20
# So are pairs closer than this part of |x|, and those next to zero that are closer than the smallest numbers.
_GAP: Final = 2.0**-44
_SMALLEST_GAP: Final = 2.0**-1000
# A slope is still growing if the last ten halvings raised it by a quarter; the first four only find the place.
_HALVINGS, _FIRST, _GROWTH = 10, 4, np.log2(1.25)


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """The steepest pairs found in each panel.

    Attributes
    ----------
    x, y : ndarray
    change : ndarray
        |φ(x) - φ(y)|.
    slope : ndarray
        The binary logarithm of |φ(x) - φ(y)| / |x - y|; -inf where no difference could be told from rounding.
    shell : ndarray of int
        Which panels belong together: -1 is [-1, 1], k ≥ 0 has the entries of `exponents[k]`.
    growing : ndarray of bool
        Whether the slope was still growing when rounding stopped the search: a jump, an infinite slope,
        or an oscillation too fast for double precision there.
    exponents : ndarray of int
        Shells on which φ is finite.
    largest : ndarray
        The point of the largest |φ| in each shell, that of [-1, 1] first.
    heights : ndarray
        |φ| there.
    """

    x: FloatArray
    y: FloatArray
    change: FloatArray
    slope: FloatArray
    shell: NDArray[np.int64]
    growing: NDArray[np.bool_]
    exponents: NDArray[np.int64]
    largest: FloatArray
    heights: FloatArray


def evaluate(function: Function, x: FloatArray) -> FloatArray:
    """Return φ(x), with NaN where it overflows in a way that raises.

    Examples
    --------
    >>> evaluate(np.vectorize(__import__("math").exp), np.array([1e3]))
    array([nan])
    """
    with np.errstate(all="ignore"):
        try:
            return np.asarray(function(x.copy()), dtype=np.float64)
        except (ArithmeticError, ValueError):
            return np.full(x.shape, np.nan)


def steepest_pairs(function: Function) -> Pairs:
    """Look for the steepest pair in panels at all magnitudes at which φ is finite.

    Each panel is halved again and again, towards the half across which φ changes more, which is never less steep
    than the whole; and, up to 2^21, once more towards where φ bends most. A jump makes the slope double each time,
    a smooth function lets it settle.

    Parameters
    ----------
    function : callable
        φ, vectorised.

    Returns
    -------
    Pairs

    Examples
    --------
    >>> pairs = steepest_pairs(np.sign)
    >>> x, y = pairs.x[pairs.growing], pairs.y[pairs.growing]
    >>> float(np.abs(x - y).max()) < 1e-300
    True
    """
    edges = [np.linspace(-1.0, 1.0, _INNER_PANELS + 1)]
    values = [evaluate(function, edges[0])]
    exponents = []
    for exponent in _EXPONENTS:
        side = np.ldexp(np.linspace(1.0, 2.0, _PANELS + 1), exponent)
        shell = np.concatenate([-side[::-1], side])
        found = evaluate(function, shell)
        if not np.all(np.isfinite(found)):
            break
        edges.append(shell)
        values.append(found)
        exponents.append(exponent)
    heights = [np.abs(part) for part in values]
    floor = _DIFFERENCE * np.maximum.accumulate([part.max() for part in heights])
    starts = [_panels(*part) for part in zip(edges, values, strict=True)]
    shells = np.repeat(np.arange(len(starts)) - 1, [len(start.low) for start in starts])
    panels = _Panels(*(np.concatenate(part) for part in zip(*starts, strict=True)))
    near = shells < _CUSP_SHELLS
    steep = _Descent(function, _steeper_halves, panels, floor[shells + 1])
    bent = _Descent(function, _most_bent_halves, panels.only(near), floor[shells[near] + 1])
    return Pairs(
        np.concatenate([steep.x, bent.x]),
        np.concatenate([steep.y, bent.y]),
        np.concatenate([steep.change, bent.change]),
        np.concatenate([steep.slope, bent.slope]),
        np.concatenate([shells, shells[near]]),
        np.concatenate([steep.growing, bent.growing]),
        np.array(exponents, dtype=np.int64),
        np.array([part[np.argmax(height)] for part, height in zip(edges, heights, strict=True)]),
        np.array([height.max() for height in heights]),
    )


class _Panels(NamedTuple):
    """Intervals, and φ at both ends."""

    low: FloatArray
    high: FloatArray
    at_low: FloatArray
    at_high: FloatArray

    def only(self, chosen: NDArray[np.bool_]) -> _Panels:
        return _Panels(*(part[chosen] for part in self))

    def steeper(self, other: _Panels) -> _Panels:
        """Return, of each panel here and its like in `other`, that across which φ changes more."""
        here = _half_change(self.at_low, self.at_high) >= _half_change(other.at_low, other.at_high)
        return self.where(here, other)

    def where(self, here: NDArray[np.bool_], other: _Panels) -> _Panels:
        return _Panels(*(np.where(here, mine, its) for mine, its in zip(self, other, strict=True)))


def _steeper_halves(function: Function, panels: _Panels) -> tuple[_Panels, _Panels]:
    """Return where to go on, and the pairs to look at: that half of each panel across which φ changes more."""
    low, high, at_low, at_high = panels
    middle = low + 0.5 * (high - low)
    at_middle = evaluate(function, middle)
    half = _Panels(low, middle, at_low, at_middle).steeper(_Panels(middle, high, at_middle, at_high))
    return half, half


def _most_bent_halves(function: Function, panels: _Panels) -> tuple[_Panels, _Panels]:
    """Return where to go on, a half around the largest second difference, and the steeper half of that.

    It finds the tip of a cusp, from which the steeper half may lead away.
    """
    each = np.arange(len(panels.low))
    x = panels.low + np.linspace(0.0, 1.0, 9)[:, None] * (panels.high - panels.low)
    inner = evaluate(function, x[1:-1].ravel()).reshape(7, -1)
    at = np.concatenate([panels.at_low[None], inner, panels.at_high[None]])
    with np.errstate(invalid="ignore"):
        bends = np.abs(0.25 * at[:-2] - 0.5 * at[1:-1] + 0.25 * at[2:])
    # Two eighths on each side: a cusp in the last eighth may bend the points next to it less than those before.
    first = np.clip(np.argmax(bends, axis=0) - 1, 0, 4)
    (x0, f0), (x1, f1), (x2, f2) = ((x[first + k, each], at[first + k, each]) for k in (0, 2, 4))
    return _Panels(x0, x2, f0, f2), _Panels(x0, x1, f0, f1).steeper(_Panels(x1, x2, f1, f2))


def _panels(edges: FloatArray, values: FloatArray) -> _Panels:
    """Return the panels between edges; [-a, a] between the two sides of a shell is none."""
    panel = np.ones(len(edges) - 1, dtype=bool)
    if len(edges) != _INNER_PANELS + 1:
        panel[_PANELS] = False
    return _Panels(edges[:-1][panel], edges[1:][panel], values[:-1][panel], values[1:][panel])


def _half_change(one: FloatArray, other: FloatArray) -> FloatArray:
    """Return half the difference: the whole may be beyond the largest number."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(0.5 * one - 0.5 * other))


_Step = Callable[[Function, _Panels], tuple[_Panels, _Panels]]


class _Descent:
    """Halves panels until rounding would show, and keeps the last pair of each."""

    def __init__(self, function: Function, step: _Step, panels: _Panels, floor: FloatArray) -> None:
        count = len(panels.low)
        self.x, self.y = panels.low.copy(), panels.high.copy()
        self.change = np.zeros(count)
        self.slope = np.full(count, -np.inf)
        self._levels = np.zeros(count, dtype=np.int64)
        # The slopes of the last levels, level by level in turn.
        self._trail = np.full((_HALVINGS + 1, count), np.inf)
        active = np.arange(count)
        # At once, because a panel with a cusp in its middle has the same value at both ends.
        panels, pairs = step(function, panels)
        while len(active):
            half, gap = _half_change(pairs.at_low, pairs.at_high), pairs.high - pairs.low
            limit = np.maximum(_GAP * np.maximum(np.abs(pairs.low), np.abs(pairs.high)), _SMALLEST_GAP)
            told = np.isfinite(half) & (half > 0.5 * floor[active]) & (gap >= limit)
            active, panels = active[told], panels.only(told)
            self._record(active, pairs.only(told), half[told], gap[told])
            panels, pairs = step(function, panels)

    @property
    def growing(self) -> NDArray[np.bool_]:
        """Where the slope grew to the end."""
        earlier = self._trail[(self._levels - 1 - _HALVINGS) % (_HALVINGS + 1), np.arange(len(self.x))]
        return np.asarray((self._levels > _FIRST + _HALVINGS) & (self.slope > earlier + _GROWTH))

    def _record(self, active: NDArray[np.int64], pairs: _Panels, half: FloatArray, gap: FloatArray) -> None:
        slope = 1 + np.log2(half) - np.log2(gap)
        self.x[active], self.y[active], self.slope[active] = pairs.low, pairs.high, slope
        self.change[active] = 2 * np.minimum(half, 0.5 * np.finfo(np.float64).max)
        self._trail[self._levels[active] % (_HALVINGS + 1), active] = slope
        self._levels[active] += 1
