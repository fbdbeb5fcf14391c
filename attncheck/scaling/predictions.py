"""What is predicted of each tap: the standard parametrisation, maximal update (μP), or a table of one's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from attncheck._lib.errors import check_number, refuse
from attncheck.scaling.orders import NEXT
from attncheck.scaling.taps import EMBEDDING, KINDS, MODULE, NORM, OUTPUT, SCORES

#: What is measured of a tap: its size when a model is made, or how far a step moves it.
INIT, CHANGE = "init", "change"
#: Part of a mean square at the widest width that may be of an order beyond those predicted.
SHARE = 0.3
_AT_MOST = "at most "
_REMEDY = (
    "pass 'standard', 'mup', or a table such as {'*.scores': -0.5, 'head': {'init': -0.5, 'change': 0}}: "
    "exponents, pairs from low to high, 'at most 0', or None"
)


@dataclasses.dataclass(frozen=True)
class TapSeries:
    """A tap as all widths have it.

    Attributes
    ----------
    name, what : str
        Its name, and what makes it, such as the name of a class.
    kind : str
        One of ``attncheck.scaling.taps.KINDS``.
    grows : bool
        Whether it has more entries in a wider model.
    again : bool
        Whether a module makes it that had run before.
    """

    name: str
    what: str
    kind: str
    grows: bool
    again: bool = False


@dataclasses.dataclass(frozen=True)
class ExponentPrediction:
    """The exponents that a size may have.

    Attributes
    ----------
    low, high : float
        The least and the largest.
    mixed : bool
        Whether parts of both orders are mixed. Growth is then told by the share of the next order, which must not be
        more than `SHARE`, and by an exponent above `high`.
    """

    low: float
    high: float
    mixed: bool = False

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"{_AT_MOST}{self.high:g}"
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


#: Says what is predicted of a tap, None where nothing is.
Expectation = Callable[[TapSeries, str], ExponentPrediction | None]

_CONSTANT = ExponentPrediction(0.0, 0.0)
_FALLS = ExponentPrediction(-NEXT, -NEXT)
# Weights of attention even out as scores fall, and what they make of values falls a little.
_EVENS_OUT = ExponentPrediction(-NEXT, 0.0)
_NEARLY = ExponentPrediction(-0.5 * NEXT, 0.0)
_MIXED = ExponentPrediction(-NEXT, 0.0, mixed=True)


def standard(place: TapSeries, moment: str) -> ExponentPrediction | None:
    """Standard parametrisation: variances of 1/fan-in, scores over √d. After a step no order is sure."""
    return _CONSTANT if moment == INIT else None


def mup(place: TapSeries, moment: str) -> ExponentPrediction | None:
    """Maximal update: scores over d, a readout of variance 1/n², and changes that neither vanish nor grow."""
    if moment == CHANGE:
        return _NEARLY if place.kind == EMBEDDING else _MIXED
    if place.kind in (SCORES, OUTPUT):
        return {(SCORES, False): _FALLS, (OUTPUT, False): _FALLS, (SCORES, True): _CONSTANT}.get(
            (place.kind, place.grows), _NEARLY
        )
    if place.kind in (EMBEDDING, NORM):
        return _CONSTANT
    return _NEARLY if place.kind == MODULE and place.grows else _EVENS_OUT


#: Predictions by name.
PREDICTIONS: Mapping[str, Expectation] = {"standard": standard, "mup": mup}


def expectation(expect: Any) -> Expectation:
    """Return what is expected, as a person writes it.

    Parameters
    ----------
    expect : str or mapping
        A name of `PREDICTIONS`; or what is expected by name, by a pattern of names or by kind, the first that fits. Of
        what fits none, nothing is expected. A value is an exponent, also as text, a pair of the least and the largest,
        ``"at most 0"``, a name of `PREDICTIONS` or None; it is that of initialisation. A mapping of "init" and
        "change" has both.

    Raises
    ------
    InputError
        If it is none of these.

    Examples
    --------
    >>> scores = TapSeries("blocks.0.attn.scores", "softmax", SCORES, grows=False)
    >>> print(expectation("mup")(scores, "init"))
    -0.5
    >>> table = expectation({"*.scores": "at most 0", "*": {"init": 0, "change": (-0.5, 0)}})
    >>> head = TapSeries("head", "Linear", OUTPUT, grows=False)
    >>> print(table(scores, "init"), table(scores, "change"), table(head, "change"), sep=", ")
    at most 0, None, -0.5 to 0
    """
    if isinstance(expect, str) and expect in PREDICTIONS:
        return PREDICTIONS[expect]
    if not isinstance(expect, Mapping) or not expect or not all(isinstance(key, str) for key in expect):
        refuse("expect", expect, "is no prediction", _REMEDY)
    return _ExpectationTable({pattern: _entry(pattern, value) for pattern, value in expect.items()})


@dataclasses.dataclass(frozen=True)
class _ExpectationTable:
    """What is expected by name, pattern or kind: the first line that fits counts."""

    entries: Mapping[str, Expectation]

    def __call__(self, place: TapSeries, moment: str) -> ExponentPrediction | None:
        fitting = (entry for pattern, entry in self.entries.items() if _fits(pattern, place))
        found = next(fitting, None)
        return None if found is None else found(place, moment)


def check_all_fit(expected: Expectation, places: Iterable[TapSeries]) -> None:
    """Refuse a table with a line that is of no tap: a name that is mistyped predicts nothing.

    Raises
    ------
    InputError
        With the first such line, and taps that there are.
    """
    if not isinstance(expected, _ExpectationTable):
        return
    known = list(dict.fromkeys(places))
    for pattern in expected.entries:
        # What a line of kinds is of depends on the model: a table may serve several.
        if pattern not in KINDS and not any(_fits(pattern, place) for place in known):
            names = [place.name for place in known]
            close = get_close_matches(pattern.strip("*."), names, n=3, cutoff=0.4) or names[:3]
            refuse("expect", pattern, "is the name of no tap", f"name one that there is, such as {', '.join(close)}")


def _fits(pattern: str, place: TapSeries) -> bool:
    return pattern == place.kind if pattern in KINDS else fnmatchcase(place.name, pattern)


def _entry(pattern: str, value: Any) -> Expectation:
    """Return what one line of a table says."""
    if isinstance(value, str) and value in PREDICTIONS:
        return PREDICTIONS[value]
    moments = value if isinstance(value, Mapping) else {INIT: value}
    if not set(moments) <= {INIT, CHANGE}:
        refuse(f"expect[{pattern!r}]", value, "names what is not measured", _REMEDY)
    held = {moment: _prediction(pattern, each) for moment, each in moments.items()}
    return lambda place, moment: held.get(moment)


def _prediction(pattern: str, value: Any) -> ExponentPrediction | None:
    field = f"expect[{pattern!r}]"
    if value is None:
        return None
    if isinstance(value, str):
        try:
            number = check_number(field, float(value.removeprefix(_AT_MOST)), _REMEDY)
        except ValueError:
            refuse(field, value, "is no exponent", _REMEDY)
        return ExponentPrediction(-math.inf if value.startswith(_AT_MOST) else number, number)
    pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(pair) != 2:
        refuse(field, value, "is no pair", _REMEDY)
    low, high = (check_number(field, each, _REMEDY) for each in pair)
    if low > high:
        refuse(field, value, "is in the wrong order", _REMEDY)
    return ExponentPrediction(low, high, mixed=low < high)
