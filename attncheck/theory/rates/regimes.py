"""Predicted law of one output in each regime, and a neighbouring prediction that tests should reject."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from attncheck._lib.errors import check_choice, check_number, refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import input_kernel
from attncheck.layers.regimes import REGIMES
from attncheck.theory.limit import kept_limit
from attncheck.theory.limits.covariance import infinite_heads_kernel
from attncheck.theory.limits.mixture import ScaleMixture
from attncheck.theory.rates.marginal import FixedHeads, OutputEntry

# Points of comparison: t = std · sinh(u).
_POINTS, _REACH = 4000, 20.0


@dataclasses.dataclass(frozen=True)
class RegimePrediction:
    """Predicted law of one output in the limit of a regime.

    Attributes
    ----------
    regime : str
        Key in `attncheck.layers.regimes.REGIMES`.
    position : int
    order : float
        Exponent of the approach to the limit, in the width or in the number of heads.
    own, neighbour : ScaleMixture
        The prediction, and the neighbouring one that tests should reject.
    against : str
        Description of the neighbour.
    """

    regime: str
    position: int
    order: float
    own: ScaleMixture
    neighbour: ScaleMixture
    against: str

    @property
    def layer(self) -> AttentionLayer:
        """Layer of the regime."""
        return REGIMES[self.regime].layer

    @functools.cached_property
    def separation(self) -> float:
        """Kolmogorov distance of the two predictions."""
        return kolmogorov(self.own, self.neighbour)

    def draws(self, level: float = 1e-6, power: float = 0.99, distance: float = 0.0) -> int:
        """Return how many draws a Kolmogorov–Smirnov test of this level and power needs to reject the neighbour.

        Uses Massart's bound √(log(2/α)/(2N)) on the deviation of empirical laws. The sampled law may have a
        `distance` from its own prediction.

        Examples
        --------
        >>> found = prediction("linear attention")
        >>> round(found.separation, 3), found.draws()
        (0.062, 4854)
        """
        level = check_number("level", level, "pass a probability between 1e-300 and 1", minimum=1e-300, maximum=1.0)
        remedy = "pass a probability below 1, e.g. 0.99"
        power = check_number("power", power, remedy, minimum=0.0)
        if power >= 1.0:
            refuse("power", power, "must be less than 1", remedy)
        remedy = f"pass less than the separation, {self.separation:.3g}"
        moved = check_number("distance", distance, remedy, minimum=0.0, maximum=self.separation)
        if moved == self.separation:
            refuse("distance", distance, "is as large as the separation of the two predictions", remedy)
        return draws_needed(self.separation - moved, level, power)


def draws_needed(separation: float, level: float, power: float) -> int:
    """Return how many draws distinguish laws at this Kolmogorov distance."""
    spans = [math.sqrt(0.5 * math.log(2.0 / chance)) for chance in (level, 1.0 - power)]
    return math.ceil((sum(spans) / separation) ** 2)


def kolmogorov(one: ScaleMixture, other: ScaleMixture) -> float:
    """Return ``sup |F - F'|`` of two scale mixtures.

    Examples
    --------
    >>> narrow, wide = gaussian(1.0), gaussian(4.0)
    >>> round(kolmogorov(narrow, wide), 3)
    0.161
    """
    std = math.sqrt(max(one.mean(), other.mean())) or 1.0
    points = std * np.sinh(np.linspace(1e-4, math.asinh(_REACH), _POINTS))
    return float(np.abs(one.upper_tail(points) - other.upper_tail(points)).max())


def gaussian(variance: float) -> ScaleMixture:
    """Return the normal law as a scale mixture."""
    return ScaleMixture(np.array([variance]), np.ones(1), 0.0)


def _of(layer: AttentionLayer, position: int) -> ScaleMixture:
    return kept_limit(layer).mixture(position)


def _standard(layer: AttentionLayer, position: int) -> tuple[ScaleMixture, ScaleMixture]:
    own = _of(layer, position)
    return own, gaussian(own.mean())


def _many_heads(layer: AttentionLayer, position: int) -> tuple[ScaleMixture, ScaleMixture]:
    variance = float(infinite_heads_kernel(layer).matrix[position, position])
    return gaussian(variance), _of(layer.replace(num_heads=1), position)


def _tied(layer: AttentionLayer, position: int) -> tuple[ScaleMixture, ScaleMixture]:
    """Return the normal laws with variances in proportion to A K Aᵀ, for A = softmax(σ_Qσ_K K) and for A = 1/s."""
    kernel = input_kernel(layer.inputs).matrix
    weights = np.exp(layer.query_std * layer.key_std * kernel[position])
    weights /= weights.sum()
    scale = (layer.value_std * layer.output_std) ** 2
    return gaussian(scale * float(weights @ kernel @ weights)), gaussian(scale * float(kernel.mean()))


def _low_rank(layer: AttentionLayer, position: int) -> tuple[ScaleMixture, ScaleMixture]:
    return FixedHeads(OutputEntry(layer, position)).law(), _of(layer, position)


def _replaced(
    change: Callable[[AttentionLayer], AttentionLayer],
) -> Callable[[AttentionLayer, int], tuple[ScaleMixture, ScaleMixture]]:
    """Return a function that returns the limits of a layer and of its changed copy."""

    def laws(layer: AttentionLayer, position: int) -> tuple[ScaleMixture, ScaleMixture]:
        return _of(layer, position), _of(change(layer), position)

    return laws


def _thirds(layer: AttentionLayer) -> AttentionLayer:
    third = 3.0**-0.5
    names = ("input_std", "query_std", "key_std", "value_std", "output_std")
    return layer.replace(**{name: third * getattr(layer, name) for name in names})


def _without_mean(layer: AttentionLayer) -> AttentionLayer:
    """Return a layer with uncorrelated inputs of variance K_ii."""
    return layer.replace(activation="identity", input_std=math.sqrt(float(input_kernel(layer.inputs).matrix[0, 0])))


def _without_positions(layer: AttentionLayer) -> AttentionLayer:
    spread = math.hypot(layer.input_std, layer.position_std)
    return layer.replace(position_std=0.0, input_std=spread)


_LAWS: Mapping[str, tuple[int, str, Callable[[AttentionLayer, int], tuple[ScaleMixture, ScaleMixture]]]] = (
    MappingProxyType(
        {
            "standard": (0, "the Gaussian of the same variance", _standard),
            "causal": (1, "the limit without a mask", _replaced(lambda layer: layer.replace(mask="none"))),
            "one position": (
                0,
                "the score itself in place of its softmax",
                _replaced(lambda layer: layer.replace(attention_map="linear")),
            ),
            "1/n scaling": (
                0,
                "the limit with 1/√n",
                _replaced(lambda layer: layer.replace(score_scaling="1/sqrt(n)")),
            ),
            "low rank": (0, "the limit of large heads", _low_rank),
            "linear attention": (0, "the Gaussian of the same variance", _standard),
            "many heads": (0, "the limit of one head", _many_heads),
            "tied queries and keys": (0, "separate matrices: weights 1/s", _tied),
            "relu inputs": (0, "uncorrelated inputs of the same variance", _replaced(_without_mean)),
            "positions": (0, "inputs of the same variance without positions", _replaced(_without_positions)),
            "non-Gaussian weights": (0, "weights of a third of the variance", _replaced(_thirds)),
            "normalised inputs": (0, "layer norm", _replaced(lambda layer: layer.replace(norm="layer"))),
        }
    )
)


def prediction(regime: str) -> RegimePrediction:
    """Return the prediction of a regime, with the neighbouring one.

    Examples
    --------
    >>> found = prediction("low rank")
    >>> found.against, found.separation > 0.01
    ('the limit of large heads', True)
    """
    regime = check_choice("regime", regime, tuple(_LAWS))
    position, against, laws = _LAWS[regime]
    return RegimePrediction(regime, position, -1.0, *laws(REGIMES[regime].layer, position), against)
