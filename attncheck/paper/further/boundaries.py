"""Boundaries of the theorem: programs on either side of each assumption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.nonlinearity import tanh
from attncheck.layers.program import Program
from attncheck.paper.charts import Arrays, Chart, ChartPlan, FurtherFigure, Measure, along, at_end, order
from attncheck.paper.statement import PaperStatement
from attncheck.subject import programs
from attncheck.theory.rates.distance import distance
from attncheck.theory.rates.law import default_size

_WIDTHS = (16, 64, 256, 1024)
_DRAWS, _FEWEST = 8000, 400
# Indices among the vectors of `with_output`.
_QUERY, _OUTPUT = 3, -1
# Quadrature nodes for E tanh² of a standard normal.
_NODES = 60


def with_score(*, tied: bool) -> Program:
    """Return the program of a position's score with itself, with one or two matrices.

    Examples
    --------
    >>> print(with_score(tied=True).coverage().worst)
    p1: violates Assumption 1 (b) (Q is on both sides; give the score two matrices)
    """
    program = Program()
    x = program.nonlin(tanh(), program.matmul(program.weight("W"), program.initial("h")))
    query = program.weight("Q")
    key = query if tied else program.weight("K")
    program.score(program.matmul(query, x), program.matmul(key, x))
    return program


def with_output(*, shared: bool) -> Program:
    """Return the program of a value times a score, with values from the matrix of the keys or a separate matrix.

    Examples
    --------
    >>> print(with_output(shared=False).coverage().worst)
    y1: Theorem 1, Corollary 2
    """
    program = Program()
    key = program.weight("K")
    x = program.nonlin(tanh(), program.matmul(program.weight("W"), program.initial("h")))
    q, k = program.matmul(program.weight("Q"), x), program.matmul(key, x)
    value = program.matmul(key if shared else program.weight("V"), x)
    p = program.score(q, k)
    program.output(np.multiply, [value], [p])
    return program


def mean_score(seed: int, scale: float, *, tied: bool) -> Arrays:
    """Return the sampled mean of a score at several widths."""
    drawn = [programs(with_score(tied=tied), n, _size(scale), np.random.default_rng([seed, n])) for n in _WIDTHS]
    return _means([each["scores"][:, 0] for each in drawn])


def mean_average(seed: int, scale: float, *, shared: bool) -> Arrays:
    """Return the sampled mean over neurons of queries times outputs at several widths."""
    drawn = [programs(with_output(shared=shared), n, _size(scale), np.random.default_rng([seed, n])) for n in _WIDTHS]
    return _means([each["gram"][:, _QUERY, _OUTPUT] for each in drawn])


def predicted(seed: int, scale: float, *, power: float, kernel_power: int) -> Arrays:
    """Return n^power K^kernel_power, the predicted leading order in n, with K = E tanh² of a standard normal."""
    del seed, scale
    kernel = _kernel() ** kernel_power
    return along(_WIDTHS, [n**power * kernel for n in _WIDTHS])


def divergences(seed: int, scale: float, *, activation: Literal["erf", "identity", "relu"]) -> Arrays:
    """Return KL(finite ‖ limit) of outputs at several widths."""
    layers = [AttentionLayer(width=n, activation=activation) for n in _WIDTHS]
    sizes = [max(_FEWEST, round(0.5 * scale * default_size(layer))) for layer in layers]
    found = [distance(layer, "kl", size=size, seed=seed) for layer, size in zip(layers, sizes, strict=True)]
    return along(_WIDTHS, [each.value for each in found], [each.error for each in found])


def _size(scale: float) -> int:
    return max(_FEWEST, round(scale * _DRAWS))


def _means(samples: Sequence[np.ndarray]) -> Arrays:
    """Return means of samples with errors of four standard errors."""
    errors = [4.0 * float(each.std(ddof=1)) / len(each) ** 0.5 for each in samples]
    return along(_WIDTHS, [float(each.mean()) for each in samples], errors)


def _kernel() -> float:
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return float(np.tanh(nodes) ** 2 @ weights / weights.sum())


def _read(charts: Sequence[Chart]) -> list[PaperStatement]:
    scores, averages, boundedness = (chart.series for chart in charts)
    return [
        PaperStatement(
            "Assumption 1 (b): a score with one matrix on both sides has no limit",
            f"mean √n K = {scores[2].value[-1]:.3g} at {_WIDTHS[-1]:,}, with two matrices 0",
            f"one matrix: {at_end(scores[0])}; two: {at_end(scores[1])}",
        ),
        PaperStatement(
            "Assumption 1 (a): values made by the keys' matrix change averages at order n^−½, but no limit",
            f"mean K² n^−½ = {averages[2].value[-1]:.3g} at {_WIDTHS[-1]:,}, with another matrix 0",
            f"one matrix: {at_end(averages[0])}; two: {at_end(averages[1])}",
        ),
        PaperStatement(
            "boundedness: not needed in the cases tried",
            "order −2 for each, as for the bounded erf",
            "; ".join(f"{each.label}: {at_end(each)}, order {order(each):.2f}" for each in boundedness),
        ),
    ]


BOUNDARIES = FurtherFigure(
    name="boundaries",
    title="Boundaries of the theorem",
    setting=("Programs of one score of x = tanh(W h) with itself; layers of 4 positions, 2 full heads and softmax."),
    plans=(
        ChartPlan(
            "Assumption 1 (b), one matrix on both sides of a score",
            "Mean of the score of a position with itself",
            "width n",
            "mean score",
            (
                Measure("one matrix", mean_score, (("tied", True),)),
                Measure("two matrices", mean_score, (("tied", False),)),
                Measure("√n K", predicted, (("power", 0.5), ("kernel_power", 1)), law=True),
            ),
            yscale="linear",
        ),
        ChartPlan(
            "Assumption 1 (a), values by the matrix of the keys",
            "Mean of the average over neurons of queries times outputs",
            "width n",
            "mean average",
            (
                Measure("one matrix", mean_average, (("shared", True),)),
                Measure("two matrices", mean_average, (("shared", False),)),
                Measure("K²/√n", predicted, (("power", -0.5), ("kernel_power", 2)), law=True),
            ),
            yscale="linear",
        ),
        ChartPlan(
            "boundedness of the inputs' function",
            "Computed divergence of outputs from their limit",
            "width n",
            "KL(finite ‖ limit)",
            tuple(
                Measure(activation, divergences, (("activation", activation),))
                for activation in ("erf", "identity", "relu")
            ),
        ),
    ),
    read=_read,
)
