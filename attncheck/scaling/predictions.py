"""Predicted exponents of taps: standard parametrisation, maximal update (μP), or a user's table.

After an optimiser step, noise that decreases with the width n and constant parts add up to a size, so no single
exponent fits. The mean square is therefore fitted by a sum of powers of n. The share of the part that grows faster than
predicted must not exceed `SHARE`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_number, refuse
from attncheck.scaling.exponents import Estimates, errors_of, means
from attncheck.scaling.taps import EMBEDDING, KINDS, MODULE, NORM, OUTPUT, SCORES

#: Difference between neighbouring exponents in a fit, the middle one of which is the largest predicted exponent.
NEXT = 0.5
#: Measured quantities: size at initialisation, or change in a step.
INIT, CHANGE = "init", "change"
#: Maximum fraction of the mean square, at the largest width, that may be due to parts that grow faster than predicted.
SHARE = 0.3
_AT_MOST = "at most "
_REMEDY = (
    "pass 'standard', 'mup', or a table such as {'*.scores': -0.5, 'head': {'init': -0.5, 'change': 0}}: "
    "exponents, pairs from low to high, 'at most 0', or None"
)


def shares(logs: FloatArray | Sequence[FloatArray], widths: Sequence[int]) -> Estimates:
    """Estimate the share of each tap's mean square, at the largest width, that grows faster than predicted.

    `logs` has one array (seeds, taps) per width: logarithms of sizes that were divided by n^b, where n is the width and
    b the largest predicted exponent. Mean squares are fitted by a sum of three parts whose sizes are proportional to
    n^(-1/2), 1 and n^(1/2). The result is the share of the last part.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> n = np.array([64, 128, 256, 512, 1024])
    >>> noise = np.exp(0.05 * rng.standard_normal((5, 20, 1)))
    >>> mixed = np.sqrt(1 + 100 / n)[:, None, None] * noise
    >>> bool(abs(shares(np.log(mixed), n).values[0]) < 0.1)
    True
    >>> growing = mixed * np.sqrt(n / 64)[:, None, None]
    >>> bool(shares(np.log(growing), n).values[0] > 0.8)
    True
    """
    powers = np.array([-NEXT, 0.0, NEXT])
    centres = means(logs)
    n = np.asarray(widths, dtype=float)
    widest = int(np.argmax(n))
    # Dividing the terms (taps, widths, powers) by the observed mean squares gives all widths the same relative error.
    terms = (n / n[widest])[:, None] ** (2.0 * powers)
    columns = terms / np.exp(2.0 * (centres - centres[widest])).T[:, :, None]
    inverse = np.linalg.pinv(columns)
    amounts = inverse.sum(axis=2)
    total = amounts.sum(axis=1)
    values = amounts[:, -1] / total
    # Derivative of the share with respect to the relative error of each width's mean square.
    gradient = (inverse[:, -1] - values[:, None] * inverse.sum(axis=1)) / total[:, None]
    return Estimates(values, *errors_of(logs, 2.0 * gradient.T))


@dataclasses.dataclass(frozen=True)
class TapSeries:
    """Description of a measurement: the size of a tap (an intermediate value), or its change after `steps` steps.

    Attributes
    ----------
    name : str
        Name of the tap.
    what : str
        Class or function that computes the tap.
    kind : str
        One of ``attncheck.scaling.taps.KINDS``.
    grows : bool
        Whether the tap has more entries in a wider model.
    rescaled : bool
        Whether the model may later multiply the tap by a factor that depends on the width.
    note : str
        Remark for the reader.
    steps : int
        0 for the sizes at initialisation, else the number of optimiser steps.
    """

    name: str
    what: str
    kind: str
    grows: bool
    rescaled: bool = False
    note: str = ""
    steps: int = 0

    @property
    def key(self) -> str:
        """Tap name with the number of steps."""
        return f"{self.name} @{self.steps}"


@dataclasses.dataclass(frozen=True)
class ExponentPrediction:
    """Allowed exponents of a size.

    Attributes
    ----------
    low : float
        Smallest allowed exponent.
    high : float
        Largest allowed exponent.
    mixed : bool
        Whether the size is a sum of a part with exponent `low` and one with exponent `high`. Such a size violates
        `high` only if its exponent is larger and the share of parts that grow even faster exceeds `SHARE`.
    """

    low: float
    high: float
    mixed: bool = False

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"{_AT_MOST}{self.high:g}"
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


#: Function that returns the prediction for a tap's sizes at initialisation or changes after steps; None if it has none.
Expectation = Callable[[TapSeries], ExponentPrediction | None]

_CONSTANT = ExponentPrediction(0.0, 0.0)
_FALLS = ExponentPrediction(-NEXT, -NEXT)
# As scores decrease with the width, attention weights become more even, and outputs of attention decrease slightly.
_EVENS_OUT = ExponentPrediction(-NEXT, 0.0)
_NEARLY = ExponentPrediction(-0.5 * NEXT, 0.0)
_MIXED = ExponentPrediction(-NEXT, 0.0, mixed=True)


def standard(series: TapSeries) -> ExponentPrediction | None:
    """Standard parametrisation: variances 1/fan-in, scores divided by √head_dim, no predictions after steps."""
    if series.steps:
        return None
    return _rescaled(series) if series.rescaled else _CONSTANT


def mup(series: TapSeries) -> ExponentPrediction | None:
    """Maximal update parametrisation: scores divided by head_dim, readout variance 1/width², and changes of order 1."""
    if series.rescaled:
        return _rescaled(series)
    if series.steps:
        return _NEARLY if series.kind == EMBEDDING else _MIXED
    if series.kind in (SCORES, OUTPUT) and not series.grows:
        return _FALLS
    if series.kind in (EMBEDDING, NORM, SCORES):
        return _CONSTANT
    return _NEARLY if series.kind in (MODULE, OUTPUT) and series.grows else _EVENS_OUT


def _rescaled(series: TapSeries) -> ExponentPrediction | None:
    """Return the prediction for a tap that the model may later multiply by an unknown width-dependent factor.

    An embedding that shares its matrix with a readout is either constant, or it decreases as 1/√width and is later
    multiplied by √width. A readout has no prediction here, because its result is tested at the output of the model.
    """
    return ExponentPrediction(-NEXT, 0.0) if series.kind == EMBEDDING else None


#: Predictions by name.
PREDICTIONS: Mapping[str, Expectation] = {"standard": standard, "mup": mup}


def expectation(expect: Any) -> Expectation:
    """Return the predictions described by the `expect` option.

    Parameters
    ----------
    expect : str or mapping
        A name in `PREDICTIONS`, or a mapping from tap names, name patterns or kinds to values; the first match counts,
        and other taps have no prediction. A value is an exponent (number or text), a pair from low to high,
        ``"at most 0"``, a name in `PREDICTIONS`, or None. It applies to initialisation; a mapping with the keys
        "init" and "change" also predicts the changes after steps.

    Raises
    ------
    InputError
        If `expect` has another form.

    Examples
    --------
    >>> scores = TapSeries("blocks.0.attn.scores", "softmax", SCORES, grows=False)
    >>> print(expectation("mup")(scores))
    -0.5
    >>> table = expectation({"*.scores": "at most 0", "*": {"init": 0, "change": (-0.5, 0)}})
    >>> head = TapSeries("head", "Linear", OUTPUT, grows=False, steps=1)
    >>> print(table(scores), table(dataclasses.replace(scores, steps=1)), table(head), sep=", ")
    at most 0, None, -0.5 to 0
    """
    if isinstance(expect, str) and expect in PREDICTIONS:
        return PREDICTIONS[expect]
    if not isinstance(expect, Mapping) or not expect or not all(isinstance(key, str) for key in expect):
        refuse("expect", expect, "is not a prediction", _REMEDY)
    return _ExpectationTable({pattern: _entry(pattern, value) for pattern, value in expect.items()})


@dataclasses.dataclass(frozen=True)
class _ExpectationTable:
    """Predictions by name, pattern or kind; the first match counts."""

    entries: Mapping[str, Expectation]

    def __call__(self, series: TapSeries) -> ExponentPrediction | None:
        fitting = (entry for pattern, entry in self.entries.items() if _fits(pattern, series))
        return next((entry(series) for entry in fitting), None)


def check_all_fit(expected: Expectation, tap_series: Iterable[TapSeries]) -> None:
    """Raise `InputError` for a table entry that matches no tap."""
    if not isinstance(expected, _ExpectationTable):
        return
    names = list(dict.fromkeys(series.name for series in tap_series))
    for pattern in expected.entries:
        # A kind that matches no tap is no error, because a table may be used for several models.
        if pattern not in KINDS and not any(fnmatchcase(name, pattern) for name in names):
            close = get_close_matches(pattern.strip("*."), names, n=3, cutoff=0.4) or names[:3]
            refuse("expect", pattern, "matches no tap", f"use an existing name, such as {', '.join(close)}")


def _fits(pattern: str, series: TapSeries) -> bool:
    return pattern == series.kind if pattern in KINDS else fnmatchcase(series.name, pattern)


def _entry(pattern: str, value: Any) -> Expectation:
    """Return the prediction of one table entry."""
    if isinstance(value, str) and value in PREDICTIONS:
        return PREDICTIONS[value]
    moments = value if isinstance(value, Mapping) else {INIT: value}
    if not set(moments) <= {INIT, CHANGE}:
        refuse(f"expect[{pattern!r}]", value, "has keys other than 'init' and 'change'", _REMEDY)
    predictions = {moment: _prediction(pattern, entry) for moment, entry in moments.items()}
    return lambda series: predictions.get(CHANGE if series.steps else INIT)


def _prediction(pattern: str, value: Any) -> ExponentPrediction | None:
    field = f"expect[{pattern!r}]"
    if value is None:
        return None
    if isinstance(value, str):
        try:
            number = check_number(field, float(value.removeprefix(_AT_MOST)), _REMEDY)
        except ValueError:
            refuse(field, value, "is not an exponent", _REMEDY)
        return ExponentPrediction(-math.inf if value.startswith(_AT_MOST) else number, number)
    pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(pair) != 2:
        refuse(field, value, "is not a pair", _REMEDY)
    low, high = (check_number(field, exponent, _REMEDY) for exponent in pair)
    if low > high:
        refuse(field, value, "is in the wrong order", _REMEDY)
    return ExponentPrediction(low, high, mixed=low < high)
