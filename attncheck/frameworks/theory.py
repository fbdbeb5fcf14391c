"""Predictions of the theorem for an inspected layer."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import attention_weights, visible
from attncheck.layers.parts import refusing
from attncheck.layers.parts.scores import heads_differ, of_head
from attncheck.theory.limit import limit
from attncheck.theory.limits.draw import draw_limit
from attncheck.theory.limits.rows import score_std
from attncheck.theory.rates.distance import distance
from attncheck.theory.rates.law import Distance, finite_width_law

_DRAWS = 256
_ENTROPIES = 2**14


@dataclasses.dataclass(frozen=True)
class LayerTheory:
    """Predictions for independent inputs of unit variance and normal weights.

    Attributes
    ----------
    layer : AttentionLayer
    score_variance : float
        Limit variance of a score between two different positions; σ_Q²σ_K² for scores divided by √head_dim.
    temperature : float
        Temperature of the softmax if scores are scaled to unit variance: one over the standard deviation of scores.
    entropy, most_entropy : float
        Limit entropy of the last position's attention weights in nats, and that of equal weights.
    excess_kurtosis : float
        Limit excess kurtosis of an output of the last position.
    excess_kurtosis_here, excess_kurtosis_error : float or None
        Excess kurtosis of that output at the layer's width, and its error; None for layers with parts such as rotary
        positions.
    distance : Distance or None
        Distance of the law of that output from its limit; None for the same layers.
    """

    layer: AttentionLayer
    score_variance: float
    temperature: float
    entropy: float
    most_entropy: float
    excess_kurtosis: float
    excess_kurtosis_here: float | None = None
    excess_kurtosis_error: float | None = None
    distance: Distance | None = None

    @property
    def score_variance_here(self) -> float:
        """Score variance at this width; for scores times 1/head_dim, only the limit is 0."""
        between = self.layer.query_std**2 * self.layer.key_std**2
        return between / self.layer.head_width if self.layer.score_scaling == "1/n" else between

    @property
    def temperature_here(self) -> float:
        """`temperature` at this width."""
        return _temperature(self.score_variance_here**0.5)

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the layer as built-in types."""
        found = dataclasses.asdict(self)
        del found["layer"]
        return {**found, "score_variance_here": self.score_variance_here, "temperature_here": self.temperature_here}

    def __str__(self) -> str:
        scores = f"score variance {self.score_variance:.3g}, so softmax at temperature {self.temperature:.3g}"
        limit_only = ""
        if self.layer.score_scaling == "1/n":
            here = f"{self.score_variance_here:.3g} at width {self.layer.width}"
            scores = f"score variance {here}, so softmax at temperature {self.temperature_here:.3g}; 0 in the limit"
            limit_only = " in the limit"
        seen = "attends to" if self.layer.mask == "none" else "at the end attends to"
        kurtosis = f"excess kurtosis of an output {self.excess_kurtosis:.3g} in the limit"
        parts = [part.name for part in refusing(self.layer, "finite-width law")]
        rest = [f"{kurtosis}; {', '.join(parts)}: nothing is computed at width {self.layer.width}"]
        if self.distance is not None:
            error = f"± {self.excess_kurtosis_error:.1g}"
            if self.excess_kurtosis_error == math.inf:
                error = "(no error estimate for heads so narrow)"
            number = f"{self.excess_kurtosis_here:.3g} {error} at width {self.layer.width}"
            rest = [f"{kurtosis}, {number}", f"distance from the limit: {self.distance}"]
        return "\n".join(
            [
                scores,
                f"a position {seen} {math.exp(self.entropy):.2f} of {math.exp(self.most_entropy):.0f} positions "
                f"(entropy {self.entropy:.3f} nats){limit_only}",
                *rest,
            ]
        )


def theory_of(layer: AttentionLayer) -> LayerTheory:
    """Return the predictions for a layer.

    Examples
    --------
    >>> found = theory_of(AttentionLayer(width=64, num_heads=4, head_dim=16, query_std=0.5**0.5, key_std=0.5**0.5))
    >>> round(found.score_variance, 9), round(found.temperature, 9)
    (0.25, 2.0)
    """
    last = layer.seq_len - 1
    spread = score_std(layer)
    in_limit = LayerTheory(
        layer,
        spread**2,
        _temperature(spread),
        _entropy(layer),
        math.log(int(visible(layer)[-1].sum())),
        limit(layer).excess_kurtosis(last),
    )
    if refusing(layer, "finite-width law"):
        return in_limit
    here = finite_width_law(layer, size=_DRAWS)
    return dataclasses.replace(
        in_limit,
        excess_kurtosis_here=here.excess_kurtosis(last),
        excess_kurtosis_error=here.excess_kurtosis_error(last),
        distance=distance(layer, position=last, size=_DRAWS),
    )


def _temperature(spread: float) -> float:
    return 1 / spread if spread else math.inf


def _entropy(layer: AttentionLayer) -> float:
    """Return the limit entropy of the last position's attention weights, normalised if positive; a mean over heads."""
    some = layer if heads_differ(layer) else of_head(layer, 0)
    scores = draw_limit(some, _ENTROPIES, 0, np.random.default_rng(0)).scores
    weights = attention_weights(some, scores)[..., -1, :]
    if layer.map.traits.positive and not layer.map.traits.sums_to_one:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return float(special.entr(weights).sum(axis=-1).mean())
