"""The pictures that records may carry, as types; what is malformed or of a newer kind is no picture."""

from __future__ import annotations

from typing import Any

import msgspec

# What an axis can hold.
_LARGEST = 1e12


class Cdf(msgspec.Struct, frozen=True, tag="cdf", tag_field="kind"):
    """Observed less declared distribution function at evenly spaced quantiles, with a simultaneous band."""

    difference: list[float]
    band: float
    count: int
    allowance: float = 0.0

    @property
    def limit(self) -> float:
        """The largest difference that is no surprise."""
        return self.band + self.allowance


class Residuals(msgspec.Struct, frozen=True, tag="residuals", tag_field="kind"):
    """Shares of whitened residuals in equal bins from -widest to widest."""

    shares: list[float]
    widest: float
    count: int


class Covariances(msgspec.Struct, frozen=True, tag="covariances", tag_field="kind"):
    """Predicted and observed covariances, and the standard errors of their differences."""

    predicted: list[float]
    observed: list[float]
    error: list[float]
    count: int


class RatePicture(msgspec.Struct, frozen=True, tag="rate", tag_field="kind"):
    """A distance at several widths, and the slope of its logarithm with an interval."""

    widths: list[float]
    distances: list[float]
    errors: list[float]
    slope: float
    low: float
    high: float


Picture = Cdf | Residuals | Covariances | RatePicture


def read_picture(raw: dict[str, Any] | None) -> Picture | None:
    """Return a record's picture, or None where there is none that can be drawn.

    Examples
    --------
    >>> read_picture({"kind": "cdf", "difference": [0.0], "band": 0.1, "count": 10}).limit
    0.1
    >>> read_picture({"kind": "hologram"}) is None
    True
    """
    if raw is None:
        return None
    try:
        picture = msgspec.convert(raw, Picture)
    except msgspec.ValidationError:
        return None
    return picture if _drawable(picture) else None


def _drawable(picture: Picture) -> bool:
    """Return whether there is something to draw: lists of one length, and numbers that axes can hold."""
    values = msgspec.structs.astuple(picture)
    columns = [value for value in values if isinstance(value, list)]
    numbers = [*(value for value in values if not isinstance(value, list)), *(x for column in columns for x in column)]
    return bool(columns[0]) and len({len(column) for column in columns}) == 1 and max(map(abs, numbers)) < _LARGEST
