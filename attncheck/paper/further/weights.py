"""Weight laws and the law of an output."""

from __future__ import annotations

from collections.abc import Sequence

from attncheck.layers.attention import AttentionLayer
from attncheck.paper.charts import Arrays, Chart, ChartPlan, FurtherFigure, Measure, along, at_end, order
from attncheck.paper.statement import PaperStatement
from attncheck.theory.rates.distance import distance
from attncheck.theory.rates.one_position import output_kurtosis

_WIDTHS = (4, 16, 64, 256, 1024)
_SAMPLED_WIDTHS = (8, 16, 32, 64)
_DRAWS, _FEWEST = 2048, 256
_SLOTS = {"h": "initial", "W": "inputs", "W_V": "value", "W_O": "output"}


def kurtosis(seed: int, scale: float, *, slot: str, head_dim: int | None) -> Arrays:
    """Return the exact decrease of an output's excess kurtosis if `slot` has entries ±σ instead of normal entries."""
    del seed, scale
    layers = [
        AttentionLayer(width=n, seq_len=1, num_heads=1, head_dim=head_dim, activation="identity") for n in _WIDTHS
    ]
    return along(_WIDTHS, [output_kurtosis(layer) - _with_signs(layer, slot) for layer in layers])


def _with_signs(layer: AttentionLayer, slot: str) -> float:
    if slot == "initial":
        return output_kurtosis(layer, initial="rademacher")
    return output_kurtosis(layer, {slot: "rademacher"})


def distances(seed: int, scale: float, *, law: str) -> Arrays:
    """Return Kolmogorov distances of outputs from their limit under a weight law."""
    layers = [AttentionLayer(width=n) for n in _SAMPLED_WIDTHS]
    size = max(_FEWEST, round(scale * _DRAWS))
    found = [distance(layer, "ks", size=size, seed=seed, weights=law) for layer in layers]
    return along(_SAMPLED_WIDTHS, [each.value for each in found], [each.error for each in found])


def _read(charts: Sequence[Chart]) -> list[PaperStatement]:
    full, narrow, laws = (chart.series for chart in charts)
    return [
        PaperStatement(
            "with full heads the limit of an output depends on no law of a matrix or of h",
            "order −1 for h and W_O, −2 for W and W_V",
            "; ".join(f"{each.label}: {at_end(each)}, order {order(each):.2f}" for each in full),
        ),
        PaperStatement(
            "with heads of two neurons the limit depends on the law of W_O",
            "3, the excess kurtosis of Laplace's law",
            "; ".join(f"{each.label}: {at_end(each)}" for each in narrow),
        ),
        PaperStatement(
            "outputs with weights of any law approach one limit",
            "order −1",
            "; ".join(f"{each.label}: {at_end(each)}, order {order(each):.2f}" for each in laws),
        ),
    ]


def _slots(head_dim: int | None) -> tuple[Measure, ...]:
    return tuple(
        Measure(label, kurtosis, (("slot", slot), ("head_dim", head_dim)), law=False) for label, slot in _SLOTS.items()
    )


_IN_ONE = "Random signs in one matrix or in h, one position, exact"
_LOWERED = "excess kurtosis, normal − signs"
WEIGHTS = FurtherFigure(
    name="weights",
    title="Laws of weights, in one matrix at a time",
    setting=(
        "First two plots: random signs in one matrix or in h, the others normal; one position and head, linear inputs. "
        "Last plot: one law for all weights; 4 positions, 2 full heads, softmax. All standard deviations are 1."
    ),
    plans=(
        ChartPlan("full heads", _IN_ONE, "width n", _LOWERED, _slots(None)),
        ChartPlan("heads of two neurons", _IN_ONE, "width n", _LOWERED, _slots(2)),
        ChartPlan(
            "four positions, two heads",
            "Kolmogorov distance of outputs from their limit, by the law of all weights",
            "width n",
            "Kolmogorov distance",
            tuple(
                Measure(label, distances, (("law", law),))
                for label, law in (
                    ("normal", "gaussian"),
                    ("uniform", "uniform"),
                    ("signs", "rademacher"),
                    ("Student's, 5", "student5"),
                )
            ),
        ),
    ),
    read=_read,
)
