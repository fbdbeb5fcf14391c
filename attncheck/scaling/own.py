"""Layers of attncheck itself over widths: sampled as any model is, and held to exponents that are computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from attncheck.layers.attention import AttentionLayer
from attncheck.readings import simulate
from attncheck.scaling.exponents import slope_weights
from attncheck.scaling.predictions import INIT, Expectation, Place, Prediction
from attncheck.scaling.taps import MODULE, OUTPUT, SCORES, Tap
from attncheck.theory.rates.law import finite_width_law

#: Independent draws that make up what one seed of a tap is.
DRAWS = 256
# Replicates of the exact law: its variances are known to a part of 10⁴ then.
_REPLICATES = 256
_KINDS = {"inputs": MODULE, "scores": SCORES, "outputs": OUTPUT}


@dataclasses.dataclass(frozen=True)
class OwnModels:
    """Makes draws of a layer at any width.

    Parameters
    ----------
    layer : AttentionLayer
        Of some width.
    """

    layer: AttentionLayer

    def make(self, width: int, seed: int) -> OwnModel:
        """Return draws."""
        return OwnModel(self.layer.replace(width=width), seed)


@dataclasses.dataclass(frozen=True)
class OwnModel:
    """Draws of a layer."""

    layer: AttentionLayer
    seed: int

    def taps(self) -> Mapping[str, Tap]:
        """Return inputs, scores and outputs of all draws."""
        drawn = simulate(self.layer, DRAWS, self.seed, coordinates=1).as_dict()
        return {name: Tap(drawn[name], kind, "AttentionLayer") for name, kind in _KINDS.items()}

    def step(self) -> None:
        """Nothing is trained."""


def computed(layer: AttentionLayer, widths: Sequence[int]) -> Expectation:
    """Return the exponents of a layer, by its exact law at each width.

    Parameters
    ----------
    layer : AttentionLayer
    widths : sequence of int

    Examples
    --------
    >>> layer = AttentionLayer(width=64, seq_len=2, score_scaling="1/n")
    >>> expected = computed(layer, (64, 128, 256))
    >>> print(*(expected(Place(name, "", kind, True), "init") for name, kind in _KINDS.items()))
    0 -0.5 0
    """
    layers = [layer.replace(width=width) for width in widths]
    outputs = [_output_variance(each) for each in layers]
    sizes = {
        # Given the inputs their variance is that of products, and inputs are of one size but for the next order.
        "scores": [each.score_factor for each in layers],
        "outputs": [variance**0.5 for variance in outputs],
    }
    orders = {name: float(slope_weights(widths) @ np.log(each)) for name, each in sizes.items()}
    # In hundredths: orders beyond the next one are all that is left.
    held = {name: round(order, 2) + 0.0 for name, order in orders.items()}

    def expected(place: Place, moment: str) -> Prediction | None:
        order = held.get(place.name, 0.0)
        return Prediction(order, order) if moment == INIT else None

    return expected


def _output_variance(layer: AttentionLayer) -> float:
    """Return the variance of outputs, averaged over positions."""
    law = finite_width_law(layer, size=_REPLICATES)
    return float(np.mean([law.variance(position) for position in range(layer.seq_len)]))
