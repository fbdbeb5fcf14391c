"""Norms: distance from the limit, and positions in deep stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.stack import AttentionStack
from attncheck.paper.charts import Arrays, Chart, ChartPlan, FurtherFigure, Measure, along, at_end, order, told
from attncheck.paper.stacks.positions import positions_by_depth
from attncheck.paper.statement import PaperStatement
from attncheck.theory.rates.distance import distance
from attncheck.theory.rates.law import default_size

_WIDTHS = (16, 64, 256, 1024)
_DEPTH, _DRAWS, _FEWEST = 12, 2000, 256

_PLAIN = AttentionLayer(width=16, activation="identity")
#: Encoder blocks by label.
BLOCKS = {
    "no norm": AttentionStack(layer=_PLAIN, depth=_DEPTH, residual=True, mlp="gelu"),
    "norm before": AttentionStack(layer=_PLAIN.replace(norm="layer"), depth=_DEPTH, residual=True, mlp="gelu"),
    "norm after": AttentionStack(layer=_PLAIN, depth=_DEPTH, residual=True, post_norm="layer", mlp="gelu"),
    "critical": AttentionStack(layer=_PLAIN, depth=_DEPTH, mlp="relu", mlp_std=2**0.25),
    "exploding": AttentionStack(layer=_PLAIN, depth=_DEPTH, mlp="relu", mlp_std=1.5),
}


def distances(seed: int, scale: float, *, norm: Literal["rms", "layer"] | None) -> Arrays:
    """Return Kolmogorov distances of a ReLU layer's outputs from their limit."""
    layers = [AttentionLayer(width=n, activation="relu", norm=norm) for n in _WIDTHS]
    sizes = [max(_FEWEST, round(0.5 * scale * default_size(layer))) for layer in layers]
    found = [distance(layer, "ks", size=size, seed=seed) for layer, size in zip(layers, sizes, strict=True)]
    return along(_WIDTHS, [each.value for each in found], [each.error for each in found])


def by_depth(seed: int, scale: float, *, block: str, what: Literal["variance", "correlation"]) -> Arrays:
    """Return the variance or correlation of positions after each block, in the limit of large width."""
    found = positions_by_depth(BLOCKS[block], size=max(_FEWEST, round(scale * _DRAWS)), seed=seed)
    value, error = getattr(found, what), getattr(found, f"{what}_error")
    return along(range(len(value)), value.tolist(), (4.0 * error).tolist())


def _read(charts: Sequence[Chart]) -> list[PaperStatement]:
    layers, variance, correlation = (chart.series for chart in charts)
    rows = [
        PaperStatement(
            "a layer with a norm is nearer to its limit at the same width",
            "order −1 in n, with or without a norm",
            "; ".join(f"{each.label}: {at_end(each)}, order {order(each):.2f}" for each in layers),
        ),
        *(
            PaperStatement(
                f"{one.label}: {said}",
                "a conjecture for two layers and more",
                f"variance {told(one, 4)} and {at_end(one)} blocks; correlation {told(other, 4)} and {at_end(other)}",
            )
            for one, other, said in zip(variance, correlation, _SAID, strict=True)
        ),
    ]
    return rows


_SAID = (
    "the variance explodes, and positions become equal",
    "the variance grows by a constant per block, and positions slowly become similar",
    "the variance stays, and positions become equal",
    "attention averages positions, and the perceptron keeps the remaining variance",
    "attention averages positions, and the perceptron multiplies the variance",
)


def _blocks(what: str) -> tuple[Measure, ...]:
    return tuple(Measure(block, by_depth, (("block", block), ("what", what)), law=True) for block in BLOCKS)


NORMS = FurtherFigure(
    name="norms",
    title="Norms in layers and blocks",
    setting=(
        "Layers of 4 positions with 2 full heads, softmax and relu inputs. Blocks have linear inputs, and a perceptron "
        "with four times as many hidden neurons. The first three blocks have gelu, residuals and layer norm if any; "
        "critical and exploding blocks have relu, no residuals, and matrices of σ = 2^¼ and 1.5."
    ),
    plans=(
        ChartPlan(
            "one layer, ReLU inputs",
            "Kolmogorov distance of outputs from their limit",
            "width n",
            "Kolmogorov distance",
            tuple(
                Measure(label, distances, (("norm", norm),))
                for label, norm in (("no norm", None), ("RMS norm", "rms"), ("layer norm", "layer"))
            ),
        ),
        ChartPlan(
            "variance of a position",
            "In the limit, after each block of attention and perceptron",
            "blocks",
            "variance",
            _blocks("variance"),
            xscale="linear",
        ),
        ChartPlan(
            "correlation of positions",
            "In the limit, after each block of attention and perceptron",
            "blocks",
            "correlation",
            _blocks("correlation"),
            xscale="linear",
            yscale="linear",
        ),
    ),
    read=_read,
)
