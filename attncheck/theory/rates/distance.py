"""Distance of the law of an output or score at finite width from the limit."""

from __future__ import annotations

import math
from typing import Any

from attncheck._lib.errors import check_choice, check_draws, check_integer, check_position, refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.theory.rates.gap import METRICS
from attncheck.theory.rates.law import Distance, check_separate, gap_of
from attncheck.theory.rates.marginal import (
    FixedHeads,
    Marginal,
    OutputEntry,
    ScoreEntry,
    falls_as_inverse_width,
    vanishes,
)

REFERENCES: tuple[str, ...] = ("limit", "infinite width")


def distance(
    layer: AttentionLayer,
    metric: str = "ks",
    *,
    of: str = "outputs",
    position: int = 0,
    key: int | None = None,
    size: int | None = None,
    seed: int = 0,
    width: float | None = None,
    reference: str = "limit",
) -> Distance:
    """Return the distance between the law of an output or score at finite width and its limit (Corollary 2).

    The distance is computed rather than sampled, at any width (see `FiniteWidthLaw`).

    Parameters
    ----------
    layer : AttentionLayer
    metric : {"ks", "w1", "tv", "kl"}
        Kolmogorov, Wasserstein-1, total variation, or Kullback–Leibler divergence from the limit.
    of : {"outputs", "scores"}
        Whether to compare laws of one neuron of an output, or of a score.
    position : int
        Position of the output, or row of the score.
    key : int, optional
        Column of the score; by default the first position other than the row.
    size : int, optional
        Number of draws, at least 16; errors are proportional to 1/√size. By default 4096, or fewer for wide layers;
        errors of "ks" are then 1 to 3%. Errors hold from 512 draws on; with 128, strongly correlated inputs or large
        positions exceed them in 1 to 2% of cases.
    seed : int
        The same seed gives the same digits.
    width : float, optional
        Overrides the layer's width. ``math.inf`` gives the distance that remains at the layer's `head_dim`.
    reference : {"limit", "infinite width"}
        Law to measure the distance from. "infinite width" keeps the `head_dim`. Scores with ``score_scaling="1/n"``,
        and outputs if the map is also linear or relu, have the limit 0: "w1" decreases as n^{-1/2}, "ks" and "tv" do
        not decrease, and "kl" is infinite. Times √ν (ν = n or head_dim), such an output or score has the same law as
        with ``score_scaling="1/sqrt(n)"``.

    Returns
    -------
    Distance

    Raises
    ------
    InputError
        If an argument is invalid, the layer ties queries to keys, or one draw takes more
        than 512 MiB.

    Examples
    --------
    >>> result = distance(AttentionLayer(width=1024), "ks", size=256)
    >>> print(f"{1024 * result.value:.2f}/n")
    0.35/n
    """
    metric = check_choice("metric", metric, METRICS)
    of, reference = check_choice("of", of, ("outputs", "scores")), check_choice("reference", reference, REFERENCES)
    seed = check_integer("seed", seed, 0, "pass a whole number")
    if size is not None:
        size = check_draws("size", size, 16, "pass a number of draws, e.g. size=1024")
    marginal, infinite = marginal_of(layer, of, position, key, width)
    layer = marginal.layer
    chosen: Marginal = marginal
    if reference == "infinite width" and layer.head_dim is not None:
        if infinite:
            refuse("width", width, "has distance 0 from infinite width", 'pass a finite one, or reference="limit"')
        chosen = FixedHeads(marginal)
    gap = gap_of(chosen, size, seed, infinite)
    wide = math.inf if infinite else float(layer.width)
    if vanishes(layer, of) and chosen is marginal:
        return Distance(metric, *gap.from_zero(metric), *gap.leading_from_zero(metric), wide, gap.deviation.draws)
    leading = gap.leading(metric) if falls_as_inverse_width(layer) else (math.nan, math.nan)
    return Distance(metric, *gap.distance(metric), *leading, wide, gap.deviation.draws)


def marginal_of(
    layer: Any, of: str, position: int, key: int | None, width: float | None
) -> tuple[OutputEntry | ScoreEntry, bool]:
    """Return the output or score that the arguments describe, and whether the width is infinite."""
    layer = check_separate(layer)
    infinite = width == math.inf
    if infinite and layer.head_dim is None:
        problem = "makes the distance from the limit 0, because the layer has no head_dim"
        refuse("width", width, problem, "pass a layer with head_dim, or a finite width")
    if width is not None and not infinite:
        layer = layer.replace(width=width)
    position = check_position("position", position, layer.seq_len)
    if of == "outputs":
        if key is not None:
            refuse("key", key, "is for scores", 'leave it out, or pass of="scores"')
        return OutputEntry(layer, position), infinite
    if key is None:
        key = 0 if position > 0 or layer.seq_len == 1 else 1
    return ScoreEntry(layer, position, check_position("key", key, layer.seq_len)), infinite
