"""What one case must show by itself, in one set of numbers.

What all cases have in common is not looked for here: their pool sees a fraction of these numbers, so that no case has
to take the draws that it alone would need.
"""

from __future__ import annotations

from typing import Any

from attncheck.checks.check import AlternativeOf

# A Kolmogorov distance, a correlation, and a component of a law: each with the coarsest that is worth a look.
_DISTANCE, _FAR = 0.07, 0.2
_CORRELATION, _STRONG = 0.14, 0.4
# Where one number a draw counts many entries: a correlation along one direction.
_ALONG = 0.07


def of_law(error: float = 0.0) -> AlternativeOf[Any]:
    """Return a law at a Kolmogorov distance, beyond the error of the law that it is compared with.

    Examples
    --------
    >>> of_law().text
    'a law at Kolmogorov distance 0.07'
    """
    return AlternativeOf.of(f"a law at Kolmogorov distance {_DISTANCE:g}", _DISTANCE + error, coarsest=_FAR)


def of_correlation(where: str = "") -> AlternativeOf[Any]:
    """Return a correlation.

    Examples
    --------
    >>> of_correlation("between heads").text
    'a correlation of 0.14 between heads'
    """
    return _correlation(_CORRELATION, where)


def of_direction(where: str = "") -> AlternativeOf[Any]:
    """Return a correlation of many entries a draw with one direction: half of that between single numbers."""
    return _correlation(_ALONG, where)


def _correlation(size: float, where: str) -> AlternativeOf[Any]:
    return AlternativeOf.of(f"a correlation of {size:g} {where}".rstrip(), size, coarsest=_STRONG)


def of_std() -> AlternativeOf[Any]:
    """Return a standard deviation that is wrong by 3%, as a ratio of variances.

    Examples
    --------
    >>> of_std().text
    'a standard deviation off by 3% (variance ratio 1.0609)'
    """
    return AlternativeOf.of("a standard deviation off by 3% (variance ratio 1.0609)", 1.0609, coarsest=1.21)


def of_spread() -> AlternativeOf[Any]:
    """Return a standard deviation of single numbers that is wrong by 10%, as a component of their law."""
    return AlternativeOf.of("a standard deviation off by about 10%", _CORRELATION, coarsest=_STRONG)


def of_kurtosis() -> AlternativeOf[Any]:
    """Return a fourth component of the law of single numbers."""
    return AlternativeOf.of(f"a fourth component of {_CORRELATION:g}", _CORRELATION, coarsest=_STRONG)
