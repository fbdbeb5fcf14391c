"""The published experiments: layers, sizes and panels."""

from __future__ import annotations

import dataclasses
from typing import Literal

from attncheck.layers.attention import AttentionLayer

Of = Literal["outputs", "scores"]
Kind = Literal["width", "histogram", "low rank"]

WIDTHS = (16, 64, 256, 1024)
#: Widths at which divergences are computed exactly, also where they are too small for an estimate from samples.
EXACT_WIDTHS = (16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_000_000)
HEAD_DIM = 64
TRIALS = 10
#: Densities are evaluated at `GRID_POINTS` points from -`GRID_END` to `GRID_END`.
GRID_END, GRID_POINTS = 3.0, 181
#: Histograms have `BINS` bins from -`BIN_END` to `BIN_END`.
BIN_END, BINS = 4.0, 160


@dataclasses.dataclass(frozen=True)
class ExperimentCase:
    """One law to sample: that of outputs at the first position, or of scores p_11.

    If ``limit`` is True, the law at infinite width is sampled.
    """

    label: str
    layer: AttentionLayer
    of: Of = "outputs"
    limit: bool = False


@dataclasses.dataclass(frozen=True)
class ExactDistance:
    """A distance from the limit to compute.

    If ``curve`` is not empty, the difference of the densities is computed, too, with this label. If ``infinite`` is
    True, the distance is that of a layer of infinite width with heads of fixed width `head_dim`.
    """

    label: str
    layer: AttentionLayer
    of: Of = "outputs"
    curve: str = ""
    infinite: bool = False


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A figure of the paper: its published sizes, the cases to sample and the distances to compute."""

    name: str
    kind: Kind
    title: str
    draws: int
    configurations: tuple[ExperimentCase, ...]
    exact: tuple[ExactDistance, ...]
    trials: int = TRIALS

    def draws_at(self, scale: float) -> int:
        """Return the number of draws of one trial: `scale` times the published number, at least 200."""
        return max(200, round(self.draws * scale))


def _by_width(name: str, title: str, draws: int, layer: AttentionLayer) -> Experiment:
    """Return an experiment on one layer at several widths."""
    at = {n: layer.replace(width=n) for n in EXACT_WIDTHS}
    return Experiment(
        name=name,
        kind="width",
        title=title,
        draws=draws,
        configurations=(
            *(ExperimentCase(f"n = {n}", at[n]) for n in WIDTHS),
            ExperimentCase("limit", layer, limit=True),
        ),
        exact=tuple(ExactDistance("y", at[n], curve=f"n = {n}" if n in WIDTHS else "") for n in EXACT_WIDTHS),
    )


def _scalings_and_heads() -> Experiment:
    """Return Fig. 2: scores under both scalings, and outputs by number of heads."""
    root, over = (AttentionLayer(width=256, score_scaling=scaling) for scaling in ("1/sqrt(n)", "1/n"))
    heads = {heads: AttentionLayer(width=256, num_heads=heads) for heads in (1, 256)}
    configurations = (
        ExperimentCase("1/√n", root, of="scores"),
        ExperimentCase("1/n", over, of="scores"),
        *(ExperimentCase(f"H = {count}", layer) for count, layer in heads.items()),
    )
    return Experiment(
        name="fig2",
        kind="histogram",
        title="Scores under two scalings, and outputs of one and of many heads",
        draws=50_000,
        configurations=configurations,
        exact=tuple(ExactDistance(case.label, case.layer, case.of, curve=case.label) for case in configurations),
    )


def _low_rank() -> Experiment:
    """Return Fig. 3: heads of 64 neurons, at width n = 64 H."""
    series = {heads: AttentionLayer(width=HEAD_DIM * heads, num_heads=heads, head_dim=HEAD_DIM) for heads in (1, 4, 16)}
    return Experiment(
        name="fig3",
        kind="low rank",
        title="Low-rank heads of 64 neurons",
        draws=50_000,
        configurations=(
            *(ExperimentCase(f"H = {heads}", layer) for heads, layer in series.items()),
            *(ExperimentCase(f"limit, H = {heads}", layer, limit=True) for heads, layer in series.items()),
        ),
        exact=(
            *(
                ExactDistance(
                    f"H = {heads}", layer.replace(width=layer.width * factor), curve=f"H = {heads}" * (factor == 1)
                )
                for heads, layer in series.items()
                for factor in (1, 4, 16, 64, 256)
            ),
            *(ExactDistance(f"H = {heads}", layer, infinite=True) for heads, layer in series.items()),
        ),
    )


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        _by_width("fig1", "Standard attention, s = 4 and H = 2", 50_000, AttentionLayer(width=16)),
        _scalings_and_heads(),
        _low_rank(),
        _by_width("fig5", "ReLU inputs, s = 4 and H = 2", 100_000, AttentionLayer(width=16, activation="relu")),
    )
}
