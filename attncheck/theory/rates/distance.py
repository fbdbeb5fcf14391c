"""Distance of a law at finite width from the limit: outputs and scores of layers, sums of scores of programs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.errors import check_choice, check_draws, check_number, check_position, check_whole, refuse
from attncheck._lib.memory import check_memory
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.program import Program, Score
from attncheck.layers.program.extent import entries_of
from attncheck.simulators.weights import GAUSSIAN, WeightLaws
from attncheck.theory.rates.deviation import REPLICATES
from attncheck.theory.rates.gap import METRICS, Gap
from attncheck.theory.rates.law import Distance, check_inputs, check_separate, gap_of
from attncheck.theory.rates.marginal import FixedHeads, OutputEntry, ScoreEntry, restored, vanishes
from attncheck.theory.rates.quadratic import METRICS as METRICS_BY_FREQUENCIES
from attncheck.theory.rates.quadratic import ScoreSum
from attncheck.theory.rates.weights import SumEntry, check_literal, kept_mde

REFERENCES: tuple[str, ...] = ("limit", "infinite width", "scaled limit")
# Number of vector coordinates in all default draws of a program, and bounds on the number of draws.
_COORDINATES, _FEWEST_DRAWS, _MOST_DRAWS = 2**25, 64, 2048
# Minimum width: narrower programs have characteristic functions that decay too slowly.
_NARROWEST = 8


def distance(
    layer: AttentionLayer | Program,
    metric: str = "ks",
    *,
    of: str = "outputs",
    position: int = 0,
    key: int | None = None,
    size: int | None = None,
    seed: int = 0,
    width: float | None = None,
    reference: str = "limit",
    projection: Sequence[float] | None = None,
    weights: str | Mapping[str, str] | WeightLaws = GAUSSIAN,
) -> Distance:
    """Return the distance between the law of an output or score at finite width and its limit (Corollary 2).

    The distance is computed rather than sampled, at any width (see `FiniteWidthLaw`).

    Parameters
    ----------
    layer : AttentionLayer or Program
        A program needs ``of="scores"`` and a width, and gives the law of a sum of its scores.
    metric : {"ks", "w1", "tv", "kl"}
        Kolmogorov, Wasserstein-1, total variation, or (for layers) Kullback–Leibler divergence from the limit.
    of : {"outputs", "scores"}
    position : int
        Position of the output, or row of the score.
    key : int, optional
        Column of the score; by default the first position other than the row.
    size : int, optional
        Number of draws, at least 16; errors decrease as its root. By default 4096, fewer for wide layers and
        literal matrices: with normal weights the error of "ks" is then 1 to 3%. Errors hold from 512 draws on; with
        128, strongly correlated inputs or large positions exceed them in 1 to 2% of cases.
    seed : int
        The same seed gives the same digits.
    width : float, optional
        Overrides the layer's. ``math.inf`` with a `head_dim` gives the distance that remains.
    reference : {"limit", "infinite width", "scaled limit"}
        Law to measure the distance from. "infinite width" keeps the `head_dim`. "scaled limit" is for numbers whose
        limit is 0: scores with ``score_scaling="1/n"``, and outputs if the map is also linear or relu. It compares
        √ν times the number (ν = n or head_dim) with the limit under 1/√n. From the limit 0 itself "w1" decreases as
        n^{-1/2}, "ks" and "tv" do not decrease, and "kl" is infinite.
    projection : sequence of float, optional
        Weights of a program's scores, by default 1; the largest from 1e-12 to 1e12 in size.
    weights : str, mapping or WeightLaws
        As for `finite_width_law`.

    Returns
    -------
    Distance

    Raises
    ------
    InputError
        If an argument is invalid, the layer ties queries to keys, or one draw exceeds
        `attncheck._lib.memory.DEFAULT_MEMORY`.

    Examples
    --------
    >>> found = distance(AttentionLayer(width=1024), "ks", size=256)
    >>> print(f"{1024 * found.value:.2f}/n")
    0.35/n
    """
    metric = check_choice("metric", metric, METRICS)
    of, reference = check_choice("of", of, ("outputs", "scores")), check_choice("reference", reference, REFERENCES)
    seed = check_whole("seed", seed, 0, "pass a whole number")
    if size is not None:
        size = check_draws("size", size, 16, "pass a number of draws, e.g. size=1024")
    if isinstance(layer, Program):
        _check_left_out(position=(position, 0), key=(key, None), reference=(reference, "limit"))
        _check_left_out(weights=(weights, GAUSSIAN))
        return _of_program(score_sum(layer, of, projection), metric, width, size, seed)
    if projection is not None:
        refuse("projection", projection, "is for programs", "leave it out, or pass position and key")
    marginal, infinite = marginal_of(layer, of, position, key, width)
    if reference == "scaled limit":
        marginal = dataclasses.replace(marginal, layer=check_scaled(marginal.layer, of))
    layer = marginal.layer
    laws = WeightLaws.of(weights)
    if not laws.gaussian:
        _check_finite(width, reference, layer, str(laws))
        return of_sum(SumEntry(marginal, laws), metric, size, seed)
    chosen: OutputEntry | ScoreEntry | FixedHeads = marginal
    if reference == "infinite width" and layer.head_dim is not None:
        if infinite:
            refuse("width", width, "has distance 0 from infinite width", 'pass a finite one, or reference="limit"')
        chosen = FixedHeads(marginal)
    gap = gap_of(chosen, layer, size, seed, infinite)
    wide = math.inf if infinite else float(layer.width)
    return _stated(metric, gap, gap, wide, vanishes(layer, of) and chosen is marginal)


def _stated(metric: str, gap: Gap, expanded: Gap, width: float, to_zero: bool) -> Distance:
    """Return a distance from the limit, or from 0, with the leading term of `expanded`."""
    if to_zero:
        return Distance(metric, *gap.from_zero(metric), *gap.leading_from_zero(metric), width, gap.deviation.draws)
    return Distance(metric, *gap.distance(metric), *expanded.leading(metric), width, gap.deviation.draws)


def check_scaled(layer: AttentionLayer, of: str) -> AttentionLayer:
    """Return the 1/√n version of a layer whose scores or outputs vanish in the limit, or raise `InputError`."""
    if not vanishes(layer, of):
        remedy = 'leave it out, or pass a layer with score_scaling="1/n", and of="scores" or a linear or relu map'
        refuse("reference", "scaled limit", "is only for scores or outputs whose limit is 0", remedy)
    return restored(layer)


def check_drawn(field: str, layer: AttentionLayer | Program, width: int, literal: bool = False) -> None:
    """Raise `InputError` if one draw exceeds `attncheck._lib.memory.DEFAULT_MEMORY`."""
    if isinstance(layer, Program):
        entries = entries_of(layer, width)
        held = entries.lines + entries.bases
        check_memory(field, width, "one draw of the program's vectors", held, "pass a smaller width")
        return
    layer = layer.replace(width=width)
    check_inputs(field, layer)
    if literal:
        check_literal(field, layer)


def score_sum(program: Program, of: str, projection: Any) -> ScoreSum:
    """Return the sum of a program's scores with the coefficients `projection`; refuse any `of` but "scores"."""
    if of != "scores":
        refuse("of", of, "is not available for programs", 'pass of="scores"')
    count = sum(isinstance(node, Score) for node in program.lines())
    given = [1.0] * count if projection is None else projection
    try:
        listed = None if isinstance(given, str) else list(given)
    except TypeError:
        listed = None
    if listed is None:
        refuse("projection", given, "is not a list of numbers", "pass one for each score, e.g. projection=(1, 1)")
    return ScoreSum(program, tuple(check_number("projection", each, "pass numbers") for each in listed))


def _check_left_out(**arguments: tuple[Any, Any]) -> None:
    """Raise `InputError` for arguments that only layers have, unless they are at their defaults."""
    for field, (given, usual) in arguments.items():
        if given is not usual and (not isinstance(given, int | str) or given != usual):
            remedy = "leave it out: projection defines the sum of scores"
            refuse(field, given, "is for layers, not for programs", remedy)


def _of_program(total: ScoreSum, metric: str, width: float | None, size: int | None, seed: int) -> Distance:
    metric = check_choice("metric", metric, METRICS_BY_FREQUENCIES)
    if width is None:
        refuse("width", width, "is missing: a program has none", "pass width=...")
    n = check_whole("width", width, _NARROWEST, f"pass a width of {_NARROWEST} or more")
    check_drawn("width", total.program, n)
    draws = max(_FEWEST_DRAWS, min(_MOST_DRAWS, _COORDINATES // (n * total.entries))) if size is None else size
    each = max(2, -(-draws // REPLICATES))
    check_memory("size", draws, "the Gram matrices of the draws", each * total.entries**2, "pass fewer draws")
    gap = total.gap(n, each, np.random.SeedSequence(seed).spawn(REPLICATES))
    leading = total.leading(n)
    first = math.nan if leading is None else leading.distance(metric)[0]
    return Distance(metric, *gap.distance(metric), first, 0.0, float(n), each * REPLICATES)


def _check_finite(width: float | None, reference: str, layer: AttentionLayer, weights: str) -> None:
    """Raise `InputError` if infinite width with a head_dim is asked for, where the law depends on the weights' law."""
    remedy = 'pass reference="limit" and a finite width, or weights="gaussian"'
    for field, value, meant in (
        ("width", width, width == math.inf),
        ("reference", reference, reference == "infinite width" and layer.head_dim is not None),
    ):
        if meant:
            refuse(field, value, f"is not available for weights {weights} of a layer with head_dim", remedy)


def of_sum(entry: SumEntry, metric: str, size: int | None, seed: int) -> Distance:
    """Return the distance of an output or score with non-normal weights."""
    of = "scores" if isinstance(entry.marginal, ScoreEntry) else "outputs"
    gap = kept_mde(entry, size, seed)
    to_zero = vanishes(entry.layer, of)
    return _stated(metric, gap, gap if to_zero else _leading(entry, seed), float(entry.layer.width), to_zero)


@functools.lru_cache(maxsize=32)
def _leading(entry: SumEntry, seed: int) -> Gap:
    """Return the first term of the expansion in 1/n, cached."""
    gaussian = gap_of(entry.marginal, entry.layer, _FEWEST_DRAWS, seed, False)
    return dataclasses.replace(gaussian, deviation=entry.leading(gaussian.deviation, seed))


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
