"""Rates: distances at several widths, and the order and constants that they follow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from attncheck.attention import AttentionLayer
from attncheck.errors import check_choice, check_whole, refuse
from attncheck.rates.gap import ERRORS, METRICS
from attncheck.rates.law import Distance, check_separate, distance

FloatArray = NDArray[np.float64]

#: Widths at which a rate is measured where none are given.
WIDTHS = (64, 128, 256, 512, 1024, 2048)
# Two-sided 99%.
_QUANTILE = float(special.ndtri(0.995))


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its 99% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclasses.dataclass(frozen=True)
class Rate:
    """How a distance to the limit falls with the width.

    Attributes
    ----------
    metric : str
    distances : tuple of Distance
        In the order of the widths.
    order : Estimate
        The exponent p of the fit log D = a + p log n + e/n, in which e takes up the curvature.
    predicted : float
        -1, and -2 for "kl".
    constant, curvature : Estimate
        c and d of the fit D = (c + d/n) n^predicted.
    leading, leading_error : float
        c by the expansion in 1/n, at the largest width; no fit enters.
    """

    metric: str
    distances: tuple[Distance, ...]
    order: Estimate
    predicted: float
    constant: Estimate
    curvature: Estimate
    leading: float
    leading_error: float

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths."""
        return tuple(int(each.width) for each in self.distances)

    def __str__(self) -> str:
        return f"{self.metric}: order {self.order} (predicted {self.predicted:g}), constant {self.constant}"


def rate(
    layer: AttentionLayer,
    widths: Sequence[int] = WIDTHS,
    metric: str = "ks",
    *,
    of: str = "outputs",
    position: int = 0,
    key: int | None = None,
    size: int | None = None,
    seed: int = 0,
) -> Rate:
    """Return how the distance to the limit falls with the width, with its curvature and intervals.

    Parameters
    ----------
    layer : AttentionLayer
        At any width; without a `head_dim`, at which a gap stays (see `distance`).
    widths : sequence of int
        At least four different ones.
    metric, of, position, key, size, seed
        As for `distance`; every width has draws of its own.

    Returns
    -------
    Rate

    Raises
    ------
    InputError
        If an argument is unknown or out of range, the layer ties queries to keys, or a distance is not told apart
        from 0.

    Examples
    --------
    >>> found = rate(AttentionLayer(width=64), widths=(64, 128, 256, 512), of="scores", size=256)
    >>> abs(found.order.value + 1) < 0.1, abs(found.leading - 0.74) < 0.01
    (True, True)
    """
    metric = check_choice("metric", metric, METRICS)
    layer = check_separate(layer)
    if layer.head_dim is not None:
        remedy = "leave head_dim out, or see attncheck.distance(layer, width=math.inf)"
        refuse("head_dim", layer.head_dim, "leaves a gap at every width", remedy)
    chosen = sorted(
        {check_whole("widths", width, 1, "pass whole numbers, e.g. (64, 128, 256, 512)") for width in widths}
    )
    if len(chosen) < 4:
        refuse("widths", list(widths), "are fewer than four different ones", "pass e.g. (64, 128, 256, 512)")
    seeds = np.random.SeedSequence(check_whole("seed", seed, 0, "pass a whole number")).generate_state(len(chosen))
    distances = tuple(
        distance(layer, metric, of=of, position=position, key=key, size=size, seed=int(own), width=width)
        for width, own in zip(chosen, seeds, strict=True)
    )
    return fit(metric, distances)


def fit(metric: str, distances: Sequence[Distance]) -> Rate:
    """Return the rate that distances at several widths follow, by weighted least squares."""
    widths = np.array([each.width for each in distances])
    values = np.array([each.value for each in distances])
    errors = np.array([each.error for each in distances]) / ERRORS
    for each in distances:
        if not each.value > each.error:
            refuse("size", each.draws, f"is too few: {each} is not told apart from 0", "pass a larger size")
    predicted = -2.0 if metric == "kl" else -1.0
    ones = np.ones(len(widths))
    order = _least_squares(np.stack([ones, np.log(widths), 1 / widths], axis=1), np.log(values), errors / values)[1]
    scaled = values * widths**-predicted
    constant, curvature = _least_squares(np.stack([ones, 1 / widths], axis=1), scaled, errors * widths**-predicted)
    widest = distances[int(np.argmax(widths))]
    scale = widest.width**-predicted
    return Rate(
        metric,
        tuple(distances),
        order,
        predicted,
        constant,
        curvature,
        widest.leading * scale,
        widest.leading_error * scale,
    )


def _least_squares(columns: FloatArray, values: FloatArray, errors: FloatArray) -> list[Estimate]:
    """Return the coefficients of a weighted fit; where it fits worse than the errors say, intervals are wider."""
    weighted, target = columns / errors[:, None], values / errors
    found = np.linalg.lstsq(weighted, target, rcond=None)[0]
    covariance = np.linalg.pinv(weighted.T @ weighted)
    misfit = float(((target - weighted @ found) ** 2).sum()) / max(1, len(values) - columns.shape[1])
    spread = _QUANTILE * math.sqrt(max(1.0, misfit)) * np.sqrt(np.diagonal(covariance))
    return [
        Estimate(float(value), float(value - half), float(value + half))
        for value, half in zip(found, spread, strict=True)
    ]
