"""Alternatives that checks must detect on a single case; pools detect smaller effects common to many cases."""

from __future__ import annotations

from typing import Any

from attncheck.checks.check import AlternativeOf

# Kolmogorov distance to detect, and the largest one to settle for if that takes too many draws.
_DISTANCE, _FAR = 0.07, 0.2
# The same for correlations and smooth components.
_CORRELATION, _STRONG = 0.14, 0.4
# Correlation to detect if each draw contributes many entries.
_ALONG = 0.07


def of_law(error: float = 0.0) -> AlternativeOf[Any]:
    """Return the alternative of a law at Kolmogorov distance 0.07 plus `error`, the error of the reference law.

    Examples
    --------
    >>> of_law().text
    'a law at Kolmogorov distance 0.07'
    """
    return AlternativeOf.of(f"a law at Kolmogorov distance {_DISTANCE:g}", _DISTANCE + error, coarsest=_FAR)


def of_correlation(where: str = "") -> AlternativeOf[Any]:
    """Return the alternative of a correlation of 0.14; `where` completes its text, e.g. "between heads".

    Examples
    --------
    >>> of_correlation("between heads").text
    'a correlation of 0.14 between heads'
    """
    return _correlation(_CORRELATION, where)


def of_direction(where: str = "") -> AlternativeOf[Any]:
    """Return the alternative of a correlation of 0.07, for checks with many entries per draw."""
    return _correlation(_ALONG, where)


def _correlation(size: float, where: str) -> AlternativeOf[Any]:
    return AlternativeOf.of(f"a correlation of {size:g} {where}".rstrip(), size, coarsest=_STRONG)


def of_std() -> AlternativeOf[Any]:
    """Return the alternative of a standard deviation off by 3%.

    Examples
    --------
    >>> of_std().text
    'a standard deviation off by 3% (variance ratio 1.0609)'
    """
    return AlternativeOf.of("a standard deviation off by 3% (variance ratio 1.0609)", 1.0609, coarsest=1.21)


def of_spread() -> AlternativeOf[Any]:
    """Return the alternative of a standard deviation off by 10%: a second smooth component of 0.14."""
    return AlternativeOf.of("a standard deviation off by about 10%", _CORRELATION, coarsest=_STRONG)


def of_kurtosis() -> AlternativeOf[Any]:
    """Return the alternative of a wrong kurtosis: a fourth smooth component of 0.14."""
    return AlternativeOf.of(f"a fourth component of {_CORRELATION:g}", _CORRELATION, coarsest=_STRONG)
