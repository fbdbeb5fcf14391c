"""Pairs x, y that refute what is declared of a function: its pseudo-Lipschitz order, or that it is bounded."""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
from numpy.typing import NDArray

from attncheck.nonlinearity.slopes import Function, Pairs, steepest_pairs

FloatArray = NDArray[np.float64]

# How much steeper than all slopes that settled a growing one must be, and is where there is a jump for certain.
_STEEPER, _FAR_STEEPER = np.log2(1.5), np.log2(16.0)
# What the last quarter of the magnitudes, in powers of two, may add to the largest ratio and to the largest |φ|.
_LAST_QUARTER: Final = 0.75
_RATIO_GROWTH: Final = np.log2(1.2)
_HEIGHT_GROWTH: Final = 1.1
# Fewer shells show no growth.
_FEWEST_SHELLS: Final = 4


@dataclasses.dataclass(frozen=True)
class Witness:
    """A pair that refutes a declaration.

    Attributes
    ----------
    field : str
        ``order`` or ``bounded``.
    x, y : float
        The pair.
    problem : str
        What it shows, with numbers: the left side against the right.
    remedy : str
    """

    field: str
    x: float
    y: float
    problem: str
    remedy: str


def find_witness(function: Function, order: int, bounded: bool) -> Witness | None:
    """Look for a pair that refutes a declared order or bound, without drawing anything.

    The declaration is that ``|φ(x) - φ(y)| ≤ c |x - y| (1 + |x|^(d-1) + |y|^(d-1))`` for *some* c, which no pair alone
    can refute. What refutes it is a ratio of the two sides that keeps growing:

    - as x and y come closer, for as long as rounding allows, beyond all ratios elsewhere: a jump, as of ``sign``, or
      an infinite slope, as of the square root at zero;
    - as x and y get larger, over the last quarter of the magnitudes (as powers of two) at which φ is finite: x² of
      order one, the exponential of any order, sin x² of order one.

    A bound is refuted if φ keeps growing over the last quarter of the magnitudes, by a tenth: x, ``log(1 + |x|)``.

    It does not find jumps smaller than 1e-6 of the largest value of φ up to there, spikes between the points it starts
    from (every 1/128 on [-1, 1], 64 in each of the powers of two), oscillations that quicken towards a point, slopes
    that grow slower than those of ``|x|^0.8`` at zero, and growth slower than a power of the logarithm, as of
    ``log log |x|``. It refuses a smooth function wrongly if φ bends sharply within less than 1e-10 of a point,
    relative to it, or is computed with fewer than seven digits.

    Parameters
    ----------
    function : callable
        φ, vectorised, and finite up to 256 on either side.
    order : int
        d.
    bounded : bool
        False declares nothing.

    Returns
    -------
    Witness or None

    Examples
    --------
    >>> find_witness(np.tanh, order=1, bounded=True) is None
    True
    >>> find_witness(np.abs, order=1, bounded=True).problem
    'is false: |φ| = 2.24712e+307 at y = -2.247...e+307, against at most 1.2129e+229 = |φ(x)| up to x = -1.212...e+229'
    >>> find_witness(np.sign, order=1, bounded=True).field
    'order'
    """
    pairs = steepest_pairs(function)
    ratio = pairs.slope - _log_weight(pairs, order)
    settled = _settled_shells(pairs)
    # Before the first shell with something that grows there are no oscillations too fast to be followed.
    plain = np.where(pairs.shell <= settled, ratio, -np.inf)
    return (
        _near(pairs, plain, order, _FAR_STEEPER)
        or _far(pairs, ratio, order, settled)
        or _near(pairs, ratio, order, _STEEPER)
        or (_unbounded(pairs) if bounded else None)
    )


def _settled_shells(pairs: Pairs) -> int:
    """Return how many shells there are before the first in which a slope is still growing."""
    unsettled = pairs.shell[pairs.growing & (pairs.shell >= 0)]
    return int(unsettled.min()) if len(unsettled) else len(pairs.exponents)


def _log_weight(pairs: Pairs, order: int) -> FloatArray:
    """Return log₂(1 + |x|^(d-1) + |y|^(d-1)), which may itself be beyond the largest number."""
    if order == 1:
        return np.full(len(pairs.x), np.log2(3.0))
    # A zero, to which no power of two belongs, adds nothing.
    powers = [(order - 1) * np.log2(np.maximum(np.abs(z), 2.0**-1000)) for z in (pairs.x, pairs.y)]
    return np.asarray(np.logaddexp2(0.0, np.logaddexp2(*powers)))


def _near(pairs: Pairs, ratio: FloatArray, order: int, steeper: float) -> Witness | None:
    """Return a pair whose ratio grows as it comes closer, beyond all ratios that settled."""
    elsewhere = np.max(ratio, where=~pairs.growing, initial=-np.inf)
    # An oscillation too fast to be followed at large x grows too, but only up to what it reached at smaller x.
    suspects = np.flatnonzero(pairs.growing & (ratio > elsewhere + steeper))
    if not len(suspects):
        return None
    worst = int(suspects[np.argmax(ratio[suspects])])
    found = f"{_sides(pairs, ratio, worst, order)}, and grows as x and y come closer"
    return _witness(pairs, worst, found, "no order allows a jump or an infinite slope: smooth φ there")


def _far(pairs: Pairs, ratio: FloatArray, order: int, shells: int) -> Witness | None:
    """Return a pair whose ratio grows with the magnitude."""
    if shells < _FEWEST_SHELLS:
        return None
    # -1 for [-1, 1], which is shell -1.
    exponents = np.append(pairs.exponents, -1)[pairs.shell]
    known = pairs.shell < shells
    late = known & (exponents > _LAST_QUARTER * pairs.exponents[shells - 1])
    before = np.max(ratio, where=known & ~late, initial=-np.inf)
    worst = int(np.argmax(np.where(late, ratio, -np.inf)))
    if not ratio[worst] > before + _RATIO_GROWTH:
        return None
    found = f"{_sides(pairs, ratio, worst, order)}, against at most {_power(before)} at smaller x and y"
    return _witness(pairs, worst, found, "declare the order of its growth, or clip it")


def _unbounded(pairs: Pairs) -> Witness | None:
    """Return the largest |φ| of the last quarter of the magnitudes, and that of all before, if it is no more."""
    exponents = np.concatenate([[-1], pairs.exponents])
    late = exponents > _LAST_QUARTER * exponents[-1]
    before = int(np.argmax(np.where(late, -np.inf, pairs.heights)))
    worst = int(np.argmax(np.where(late, pairs.heights, -np.inf)))
    low, high = float(pairs.heights[before]), float(pairs.heights[worst])
    if not high > _HEIGHT_GROWTH * low:
        return None
    x, y = float(pairs.largest[before]), float(pairs.largest[worst])
    problem = f"is false: |φ| = {high:g} at y = {y!r}, against at most {low:g} = |φ(x)| up to x = {x!r}"
    return Witness("bounded", x, y, problem, "declare bounded=False, or clip it")


def _sides(pairs: Pairs, ratio: FloatArray, index: int, order: int) -> str:
    x, y, change = float(pairs.x[index]), float(pairs.y[index]), float(pairs.change[index])
    right = _power(float(np.log2(change) - ratio[index]))
    weight = f"|x - y|(1 + |x|^{order - 1} + |y|^{order - 1})"
    return (
        f"is false: at x = {x!r}, y = {y!r}, |φ(x) - φ(y)| = {change:g} against {weight} = {right}, "
        f"a ratio of {_power(float(ratio[index]))}"
    )


def _witness(pairs: Pairs, index: int, problem: str, remedy: str) -> Witness:
    return Witness("order", float(pairs.x[index]), float(pairs.y[index]), problem, remedy)


def _power(logarithm: float) -> str:
    """Write 2^logarithm in decimals, whether or not a double can hold it."""
    if not np.isfinite(logarithm):
        return "0"
    exponent, rest = divmod(logarithm * np.log10(2.0), 1.0)
    return f"{10.0 ** (exponent + rest):g}" if abs(exponent) < 300 else f"{10.0**rest:g}e{int(exponent):+d}"
