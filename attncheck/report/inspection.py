"""HTML page of an inspection: the printed output, and pictures of attention weights and matrices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from attncheck._lib.errors import InputError
from attncheck._lib.files import write_whole
from attncheck.evidence.plot_data import positions
from attncheck.evidence.verdicts import Verdict
from attncheck.frameworks.result import Inspection
from attncheck.models.result import ModelInspection
from attncheck.report.page import encoded, fill
from attncheck.report.results import paint_discs
from attncheck.report.svg import MUTED, SERIES, Drawing, draw

# Maximum numbers of positions in a picture, and of layers with pictures.
_POSITIONS, _LAYERS = 12, 4
# Bins of a histogram of entries, up to this multiple of the largest standard deviation.
_BINS, _WIDEST = 48, 3.5


def render_inspection(
    found: Inspection | ModelInspection, name: str, out: Path, unexpected: Sequence[str] = ()
) -> Path:
    """Write a self-contained page on a layer or model made by `name`.

    `unexpected` are sentences on unmet expectations.
    """
    lines = [("not as expected", text) for text in unexpected] + found.told
    unread = Verdict.INCONCLUSIVE if found.not_examined else Verdict.CONSISTENT
    verdict = Verdict.VIOLATED if found.blamed or unexpected else unread
    first = next(iter([*found.blamed, *unexpected]), found.verdict)
    shown = {"verdict": verdict, "sentence": first, "drawn": [*_pictures(found.layers)]}
    page = fill("inspection.html.j2", "Inspection", found=found, name=name, lines=lines, **shown)
    return write_whole(out, encoded(page))


def _pictures(layers: Mapping[str, Inspection]) -> Iterator[Drawing]:
    """Yield pictures of the first layers, starting with layers with errors; pictures that fail are left out."""
    for title, layer in sorted(layers.items(), key=lambda each: not each[1].blamed)[:_LAYERS]:
        of = f" of {title}" if title else ""
        with contextlib.suppress(InputError):
            yield attention_picture(layer, of)
            yield matrices_picture(layer, of)


def attention_picture(layer: Inspection, of: str = "") -> Drawing:
    """Draw which position attends to which, by the mean attention weights of a newly made module.

    Raises
    ------
    InputError
        If the module fails.
    """
    weights = layer.mean_weights(_POSITIONS)

    def paint(axes: Axes) -> None:
        paint_discs(axes, positions(weights, weights, "key", told))
        axes.set(xlabel="position of the key", ylabel="position of the query")

    hidden = int((weights == 0.0).sum())
    told = "Mean attention weights" + of
    alt = f"{told} as areas of discs by positions of query and key: {hidden} of {weights.size} are 0."
    caption = f"{told}, over heads and random inputs, as areas"
    return draw(paint, alt, caption, width=330, height=330, margins=(52, 10, 48, 8))


def matrices_picture(layer: Inspection, of: str = "") -> Drawing:
    """Draw histograms of the entries of a newly made module's matrices, times √fan-in.

    Raises
    ------
    InputError
        If the module fails.
    """
    entries = layer.entries()
    largest = max((float(each.std()) for each in entries.values()), default=1.0)
    edges = np.linspace(-_WIDEST * largest, _WIDEST * largest, _BINS + 1)

    def paint(axes: Axes) -> None:
        for color, (name, values) in zip(SERIES, entries.items(), strict=False):
            axes.stairs(np.histogram(values, edges, density=True)[0], edges, color=color, linewidth=1.4, label=name)
        axes.axvline(0.0, color=MUTED, linewidth=0.6)
        axes.set(xlabel="entry · √fan-in", ylabel="density", yticks=[], xlim=(edges[0], edges[-1]))
        axes.legend(loc="upper right", fontsize=10.5, frameon=False, handlelength=1.2)

    stds = "; ".join(f"{name}: standard deviation {values.std():.3g}" for name, values in entries.items())
    alt = f"Histograms of matrix entries{of}, times √fan-in. {stds}."
    return draw(paint, alt, f"Entries of the matrices{of}, times √fan-in", margins=(40, 12, 48, 10))
