"""Rates: distances at several widths, and the order and constants fitted to them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_choice, check_integer, check_integers, refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.theory.rates.deviation import REPLICATES, expands
from attncheck.theory.rates.distance import distance, marginal_of
from attncheck.theory.rates.gap import ERRORS, METRICS
from attncheck.theory.rates.law import Distance, check_inputs, check_separate
from attncheck.theory.rates.marginal import falls_as_inverse_width, vanishes

#: Default widths.
WIDTHS = (64, 128, 256, 512, 1024, 2048)
# Minimum number of widths, and number of draws per width that determines the order to ±0.02.
_FEWEST_WIDTHS, _DRAWS = 4, 512
# Minimum error of the logarithm of a distance, which allows for terms that the fit omits.
_LEAST_ERROR = 1e-6
# Two-sided 99% quantile of Student's law, with as many degrees of freedom as the repetitions at three widths give. In
# simulations, the intervals cover the true value in 99.1% of cases with four widths, and in 99.2% with six.
_QUANTILE = float(special.stdtrit(3 * (REPLICATES - 1), 0.995))


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
    """Rate at which a distance to the limit decreases with the width.

    Attributes
    ----------
    metric : str
    distances : tuple of Distance
        In the order of the widths.
    order : Estimate
        p of the fit log D = a + p log n + e/n to the distances D at widths n.
    predicted : float
        Predicted order: -1, or -2 for "kl"; -1/2 for a limit of 0.
    constant : Estimate
        c of the fit D = (c + d/n) n^predicted.
    curvature : Estimate
        d of the same fit.
    leading : float
        c according to the expansion in 1/n at the largest width; NaN if unknown, see `Distance`.
    leading_error : float
        Error of `leading`.
    gap : Distance or None
        For a layer with a head_dim, the distance between the law at infinite width and the limit; `distances` are then
        distances from the law at infinite width.
    """

    metric: str
    distances: tuple[Distance, ...]
    order: Estimate
    predicted: float
    constant: Estimate
    curvature: Estimate
    leading: float
    leading_error: float
    gap: Distance | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths."""
        return tuple(int(d.width) for d in self.distances)

    def __str__(self) -> str:
        stays = "" if self.gap is None else f", plus a remaining distance of {self.gap.value:.4g}"
        return f"{self.metric}: order {self.order} (predicted {self.predicted:g}), constant {self.constant}{stays}"


def rate(
    layer: AttentionLayer,
    widths: Sequence[int] | None = None,
    metric: str = "ks",
    *,
    of: str = "outputs",
    position: int = 0,
    key: int | None = None,
    size: int | None = None,
    seed: int = 0,
) -> Rate:
    """Return the rate at which the distance to the limit decreases with the width.

    May take minutes; a terminal shows the progress.

    Parameters
    ----------
    layer : AttentionLayer
        Of any width. With a `head_dim`, distances are measured from the law at infinite width with that head_dim,
        and the attribute ``gap`` of the result is the distance of that law from the limit.
    widths : sequence of int, optional
        At least four widths, by default `WIDTHS`.
    metric, of, position, key
        As for `distance`. From a limit of 0 only "w1" decreases.
    size : int, optional
        Draws at each width. By default 512 where ``leading`` is known, so that the order is within about ±0.02 (±0.05
        for "kl") and the constant within 1% (3%); otherwise as for `distance`. Intervals hold from 512 draws on.
    seed : int
        Each width has independent draws.

    Returns
    -------
    Rate

    Raises
    ------
    InputError
        If an argument is invalid, the layer ties queries to keys, or a distance is not significantly above 0.

    Examples
    --------
    >>> result = rate(AttentionLayer(width=64), widths=(64, 128, 256, 512), of="scores", size=256)
    >>> abs(result.order.value + 1) < 0.1, abs(result.leading - 0.74) < 0.01
    (True, True)
    """
    metric = check_choice("metric", metric, METRICS)
    layer = check_separate(layer)
    predicted = 0.5 - layer.score_exponent if _to_zero(layer, metric, of) else None
    if predicted is None and not falls_as_inverse_width(layer):
        problem = "makes distances decrease as a power other than 1/n"
        refuse("score_scaling", layer.score_scaling, problem, "compare distances at several widths")
    if size is None and expands(marginal_of(layer, of, position, key, None)[0]):
        size = _DRAWS
    widths = WIDTHS if widths is None else widths
    chosen = check_integers("widths", widths, 1, "pass whole numbers, e.g. (64, 128, 256, 512)")
    if len(chosen) < _FEWEST_WIDTHS:
        refuse("widths", chosen, "are fewer than four different widths", f"pass e.g. {WIDTHS}")
    check_inputs("widths", layer.replace(width=chosen[-1]))
    arguments: dict[str, Any] = {"of": of, "position": position, "key": key, "size": size}
    low_rank = layer.head_dim is not None
    arguments["reference"] = "infinite width" if low_rank else "limit"
    seeds = np.random.SeedSequence(check_integer("seed", seed, 0, "pass a whole number")).generate_state(len(chosen))
    from attncheck._lib.progress import counted_off

    distances = tuple(
        distance(layer, metric, **arguments, seed=int(width_seed), width=width)
        for width, width_seed in counted_off(list(zip(chosen, seeds, strict=True)), "widths")
    )
    arguments["reference"] = "limit"
    gap = distance(layer, metric, **arguments, seed=seed, width=math.inf) if low_rank else None
    return dataclasses.replace(fit(metric, distances, predicted), gap=gap)


def _to_zero(layer: AttentionLayer, metric: str, of: str) -> bool:
    """Return whether the limit is 0, and raise `InputError` if the metric then does not decrease."""
    if layer.head_dim is not None or not vanishes(layer, of):
        return False
    if metric != "w1":
        problem = "does not decrease with the width, because the limit is 0"
        refuse("metric", metric, problem, 'pass metric="w1", or a layer with score_scaling="1/sqrt(n)"')
    return True


def fit(metric: str, distances: Sequence[Distance], predicted: float | None = None) -> Rate:
    """Return the rate fitted to distances by weighted least squares, in powers of 1/n."""
    widths = np.array([d.width for d in distances])
    values = np.array([d.value for d in distances])
    errors = np.array([d.error for d in distances]) / ERRORS
    for d in distances:
        if not d.value > d.error:
            refuse("size", d.draws, f"is too few draws: {d} is not significantly above 0", "pass a larger size")
    if predicted is None:
        predicted = -2.0 if metric == "kl" else -1.0
    ones = np.ones(len(widths))
    columns = np.stack([ones, np.log(widths), 1 / widths], axis=1)
    relative = np.maximum(errors / values, _LEAST_ERROR)
    # Widen the errors by the size of the terms that the fit omits, which is about the square of its term in 1/n.
    bend = _estimates(columns, np.log(values), relative)[2].value
    relative = np.hypot(relative, 0.5 * (bend / widths) ** 2)
    order = _estimates(columns, np.log(values), relative)[1]
    scaled = values * widths**-predicted
    constant, curvature = _estimates(np.stack([ones, 1 / widths], axis=1), scaled, relative * scaled)
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


def _estimates(columns: FloatArray, values: FloatArray, errors: FloatArray) -> list[Estimate]:
    """Return the coefficients of a weighted least-squares fit, with intervals that are widened if the fit is poor."""
    from statsmodels.regression.linear_model import WLS  # slow to import

    fit = WLS(values, columns, weights=errors**-2.0).fit()
    misfit = fit.ssr / max(1.0, fit.df_resid)
    spread = _QUANTILE * math.sqrt(max(1.0, misfit)) * np.sqrt(np.diagonal(fit.normalized_cov_params))
    return [
        Estimate(float(value), float(value - half), float(value + half))
        for value, half in zip(fit.params, spread, strict=True)
    ]
