"""The tangent kernel at initialisation, at finite width and in the limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attncheck.layers.attention import AttentionLayer
from attncheck.methods import tangent_kernel
from attncheck.paper.charts import Arrays, Chart, ChartPlan, FurtherFigure, Measure, along, at_end, order
from attncheck.paper.statement import PaperStatement

_WIDTHS = (8, 64, 512, 2048)
_HEADS = (1, 2, 4, 8, 16)
#: Draws at a width, and in the limit, where they are cheaper.
_DRAWS, _LIMIT_DRAWS, _FEWEST, _BATCHES = 8_000, 32_000, 800, 8


def by_width(seed: int, scale: float, *, scaling: Literal["1/sqrt(n)", "1/n"], neuron: int) -> Arrays:
    """Return the standard deviation of Θ^{1i}_{11} over the mean of Θ^{11}_{11} at several widths, i = `neuron` + 1."""
    layer = AttentionLayer(width=16, score_scaling=scaling)
    spreads = [_spread(layer.replace(width=n), seed, scale, neuron, "collapsed") for n in _WIDTHS]
    return along(_WIDTHS, *zip(*spreads, strict=True))


def limit_by_width(seed: int, scale: float, *, neuron: int) -> Arrays:
    """Return the number of `by_width` at infinite width, at both ends of the axis."""
    value, error = _spread(AttentionLayer(width=16), seed, scale, neuron, "limit")
    return along((_WIDTHS[0], _WIDTHS[-1]), (value, value), (error, error))


def by_heads(seed: int, scale: float, *, neuron: int) -> Arrays:
    """Return the number of `by_width` at infinite width for several numbers of heads."""
    layer = AttentionLayer(width=16)
    spreads = [_spread(layer.replace(num_heads=heads), seed, scale, neuron, "limit") for heads in _HEADS]
    return along(_HEADS, *zip(*spreads, strict=True))


def _spread(
    layer: AttentionLayer, seed: int, scale: float, neuron: int, method: Literal["collapsed", "limit"]
) -> tuple[float, float]:
    """Return the number of `by_width` for one layer, and four of its standard errors, estimated from batches."""
    size = max(_FEWEST, round(scale * (_LIMIT_DRAWS if method == "limit" else _DRAWS)))
    kernel = tangent_kernel(layer, size, seed, method, coordinates=2).kernel[:, 0, :, 0, 0]
    parts = [_ratio(part, neuron) for part in np.array_split(kernel, _BATCHES)]
    return _ratio(kernel, neuron), 4.0 * float(np.std(parts, ddof=1)) / _BATCHES**0.5


def _ratio(kernel: NDArray[np.float64], neuron: int) -> float:
    return float(kernel[:, neuron].std() / kernel[:, 0].mean())


def _read(charts: Sequence[Chart]) -> list[PaperStatement]:
    one, two, heads = (chart.series for chart in charts)
    return [
        PaperStatement(
            "with scores over √n the kernel stays random at infinite width",
            f"relative standard deviation {one[2].value[0]:.3f} ± {one[2].error[0]:.1g} for 2 heads",
            at_end(one[0]),
        ),
        PaperStatement(
            "W_Q and W_K couple different neurons",
            f"{two[2].value[0]:.3f} ± {two[2].error[0]:.1g} of the mean for 2 heads",
            at_end(two[0]),
        ),
        PaperStatement(
            "with scores over n the kernel becomes constant, and couples no neurons",
            "0, with order −1/2",
            "; ".join(f"{each.label}: {at_end(each)}, order {order(each):.2f}" for each in (one[1], two[1])),
        ),
        PaperStatement(
            "with infinitely many heads it becomes constant",
            "0, with order −1/2 in the heads",
            "; ".join(f"{each.label}: {at_end(each)} heads, order {order(each):.2f}" for each in heads),
        ),
    ]


def _widths(neuron: int) -> tuple[Measure, ...]:
    return (
        Measure("over √n", by_width, (("scaling", "1/sqrt(n)"), ("neuron", neuron))),
        Measure("over n", by_width, (("scaling", "1/n"), ("neuron", neuron))),
        Measure("limit over √n", limit_by_width, (("neuron", neuron),), law=True),
    )


_SPREAD = "standard deviation / mean of Θ¹¹"
TANGENT = FurtherFigure(
    name="tangent",
    title="The tangent kernel at initialisation",
    setting=(
        "Layers of 4 positions with full heads, 2 where no number is given, softmax and independent normal "
        "inputs; all standard deviations are 1."
    ),
    plans=(
        ChartPlan("one neuron, by width", "Spread of Θ¹¹ for 2 heads", "width n", _SPREAD, _widths(0)),
        ChartPlan("between two neurons, by width", "Spread of Θ¹² for 2 heads", "width n", _SPREAD, _widths(1)),
        ChartPlan(
            "infinite width, by heads",
            "Spread of Θ¹¹ and Θ¹² in the limit",
            "heads H",
            _SPREAD,
            (
                Measure("one neuron", by_heads, (("neuron", 0),), law=True),
                Measure("two neurons", by_heads, (("neuron", 1),), law=True),
            ),
        ),
    ),
    read=_read,
)
