"""Declarations of a check: stage of the computation, alternative, and wrong simulators that it must reject.

A check must detect its alternative on a single case; pools detect smaller effects common to many cases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from attncheck.layers.attention import AttentionLayer

DRAWS, INPUTS, KEYS, SCORES, VALUES = "draws", "inputs", "keys", "scores", "values"
WEIGHTS_OR_VALUES, AFTER = "attention weights or values", "after the scores"
GIVEN_SCORES, OUTPUTS, IN_OUTPUTS = "outputs given scores", "outputs", "seen in the outputs"
#: The stages of the computation, in order.
STAGES = (
    DRAWS,
    INPUTS,
    KEYS,
    SCORES,
    VALUES,
    WEIGHTS_OR_VALUES,
    AFTER,
    GIVEN_SCORES,
    OUTPUTS,
    IN_OUTPUTS,
)
_Setting = TypeVar("_Setting")
# Kolmogorov distance to detect, and the larger distance that is enough if the first one needs too many draws.
_DISTANCE, _FAR = 0.07, 0.2
# Correlation to detect, and the larger correlation that is enough if the first one needs too many draws.
_CORRELATION, _STRONG = 0.14, 0.4
# Correlation to detect if each draw contributes many entries.
_ALONG = 0.07


@dataclasses.dataclass(frozen=True)
class Rejected:
    """Wrong simulators that a check must reject.

    Attributes
    ----------
    faults : tuple of str or callable
        Names in `attncheck.faults` (of programs: in `attncheck.faults.programs`), or functions.
    layer : AttentionLayer or None
        A layer on which the check rejects the first fault within some thousands of draws.

    Examples
    --------
    >>> Rejected.of("matrix_std_5", "fresh_matrices").faults
    ('matrix_std_5', 'fresh_matrices')
    """

    faults: tuple[str | Callable[..., object], ...] = ()
    layer: AttentionLayer | None = None

    @classmethod
    def of(cls, *faults: str | Callable[..., object], on: AttentionLayer | None = None) -> Self:
        """Return a `Rejected` with these faults; the check must reject the first one on the layer `on`."""
        return cls(faults, on)


#: No wrong simulators.
NOTHING = Rejected()


@dataclasses.dataclass(frozen=True)
class AlternativeOf(Generic[_Setting]):
    """The alternative that a check must detect.

    Attributes
    ----------
    text : str
        Description.
    effect : callable Setting -> float
        Effect in the unit of the check's family.
    coarsest : callable Setting -> float, optional
        Larger effect that a look may detect instead if `effect` needs too many draws. None: no larger effect is enough.
    """

    text: str
    effect: Callable[[_Setting], float]
    coarsest: Callable[[_Setting], float] | None = None

    @classmethod
    def of(cls, text: str, effect: float, coarsest: float | None = None) -> Self:
        """Return an alternative with the same effect in every setting."""
        return cls(text, lambda setting: effect, None if coarsest is None else lambda setting: coarsest)


def of_law(error: float = 0.0) -> AlternativeOf[Any]:
    """Return the alternative that a law is wrong by a Kolmogorov distance of 0.07.

    The effect to detect is this distance plus `error`, the error of the reference law.

    Examples
    --------
    >>> of_law().text
    'a law at Kolmogorov distance 0.07'
    """
    return AlternativeOf.of(f"a law at Kolmogorov distance {_DISTANCE:g}", _DISTANCE + error, coarsest=_FAR)


def of_correlation(where: str = "", size: float = _CORRELATION) -> AlternativeOf[Any]:
    """Return the alternative that a correlation is `size`, by default 0.14.

    `where` completes the description of the alternative, e.g. "between heads".

    Examples
    --------
    >>> of_correlation("between heads").text
    'a correlation of 0.14 between heads'
    """
    return AlternativeOf.of(f"a correlation of {size:g} {where}".rstrip(), size, coarsest=_STRONG)


def of_direction(where: str = "") -> AlternativeOf[Any]:
    """Return the alternative that a correlation is 0.07, for checks with many entries per draw.

    `where` is the argument of `of_correlation`.
    """
    return of_correlation(where, _ALONG)


def of_std() -> AlternativeOf[Any]:
    """Return the alternative that a standard deviation is off by 3%.

    Examples
    --------
    >>> of_std().text
    'a standard deviation off by 3% (variance ratio 1.0609)'
    """
    return AlternativeOf.of("a standard deviation off by 3% (variance ratio 1.0609)", 1.0609, coarsest=1.21)
