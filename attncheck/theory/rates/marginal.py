"""Outputs and scores as mixtures of normals, with their conditional variances.

Let G = F Fᵀ be the Gram matrix of the inputs, T_K and T_V the Bartlett factors of a head's keys and values, and ν = n
or head_dim. Row i of the scores P of a head is σ_Qσ_K √G_ii N (F T_K/√ν)ᵀ, with a row N of normals. Given P, y_i has
variance c Σ_a |A_a F T_V/√ν|², with row A_a of the attention weights of head a.

Scores divided by n, and outputs of homogeneous maps of such scores, are 0 in the limit. In every draw they are ν^{-1/2}
times those of the same layer with 1/√n, so √ν times them has the limit of that layer, and its distance from the limit.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Self

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray, slices
from attncheck._lib.errors import refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.norm import normalised_with_ones
from attncheck.theory.limits.covariance import output_factor
from attncheck.theory.limits.mixture import ScaleMixture, condense
from attncheck.theory.limits.rows import normal_points, score_std
from attncheck.theory.rates.drivers import Drivers, Fluctuations, symmetric_root

# Maximum number of score entries per block.
_BLOCK = 2**20


def score_scale(layer: AttentionLayer, *, limit: bool) -> float:
    """Return the standard deviation of scores for inputs whose Gram matrix is I.

    If `limit` is True, scores are scaled as in the limit, and otherwise as at the layer's width.
    """
    return score_std(layer) if limit else layer.query_std * layer.key_std * layer.score_factor


@dataclasses.dataclass(frozen=True)
class _Entry:
    """An output or score of a layer."""

    layer: AttentionLayer

    def widened(self, factor: int) -> Self:
        """Return the same output or score at `factor` times the width and head_dim."""
        layer = self.layer
        head_dim = None if layer.head_dim is None else factor * layer.head_dim
        return dataclasses.replace(self, layer=layer.replace(width=factor * layer.width, head_dim=head_dim))


@dataclasses.dataclass(frozen=True)
class OutputEntry(_Entry):
    """One neuron of the output at a position."""

    position: int

    @functools.cached_property
    def _seen(self) -> tuple[int, ...]:
        """Visible positions."""
        return tuple(int(j) for j in np.flatnonzero(self.layer.visible[self.position]))

    @property
    def _shared(self) -> bool:
        return self.layer.group_size > 1

    @property
    def normals(self) -> int:
        """Number of standard normals from which scores are computed: one per head and visible position."""
        return self.layer.num_heads * len(self._seen)

    @property
    def kinked(self) -> bool:
        """Whether the variance has kinks as a function of the Gram matrices.

        There are kinks if attention weights may jump, and with ReLU attention to several positions. With one visible
        position there is no kink, because the sign of its score does not depend on the Gram matrices.
        """
        traits = self.layer.map.traits
        return traits.may_jump or (traits.may_vanish and len(self._seen) > 1)

    def fluctuations(self, infinite: bool) -> Fluctuations:
        """Return the law of the Gram matrix G of the inputs, and of the keys and values of each group of heads."""
        return Fluctuations(self.layer, self._seen, self._shared, self.layer.kv_heads, infinite)

    def variances(self, draws: Drivers, normals: FloatArray, *, limit: bool = False) -> FloatArray:
        """Return the variances of the output given scores and values, (draws, points).

        They are multiples of Σ_a |w_a R_a|², with w_a the attention weights of head a, and R_a R_aᵀ the Gram matrix of
        its values. `normals`, (points, self.normals), determine the scores.
        """
        rows = normals.reshape(len(normals), self.layer.num_heads, len(self._seen))
        # An array of length 1 is used for all draws.
        size = max(len(draws.gram), len(draws.keys), len(draws.values))
        scale, parts = score_scale(self.layer, limit=limit), slices(size, _BLOCK // normals.size)
        return np.concatenate([self._block(draws[part], rows, scale) for part in parts])

    def _block(self, draws: Drivers, rows: FloatArray, scale: float) -> FloatArray:
        layer, index = self.layer, self._seen.index(self.position)
        gram = normalised_with_ones(layer.norm, draws.gram)
        root = symmetric_root(gram)
        scales = scale * np.sqrt(gram[:, index, index])
        if self._shared:
            keys = root[:, None] @ symmetric_root(draws.keys)
            values = root[:, None] @ symmetric_root(draws.values)
            by_group = rows.reshape(len(rows), layer.kv_heads, layer.group_size, -1).swapaxes(0, 1)
            together = by_group.reshape(layer.kv_heads, -1, by_group.shape[-1])
            scores = scales[:, None, None, None] * (together @ keys.swapaxes(-1, -2))
            squares = self._squares(scores, values)
            shape = (len(squares), layer.kv_heads, len(rows), layer.group_size)
            return np.asarray(output_factor(layer) * squares.reshape(shape).sum(axis=(1, 3)))
        rotated = rows.reshape(1, -1, rows.shape[-1]) @ root.swapaxes(-1, -2)
        per_head = rotated.reshape(len(rotated), *rows.shape)
        per_head = (scales[:, None, None] * np.sqrt(draws.keys))[..., None] * per_head
        squares = self._squares(per_head.reshape(len(per_head), -1, per_head.shape[-1]), root)
        summed = (draws.values * squares.reshape(per_head.shape[:-1])).sum(axis=-1)
        return np.asarray(output_factor(layer) * summed)

    def _squares(self, scores: FloatArray, values: FloatArray) -> FloatArray:
        """Return |a B|² for each row of scores, with a its attention weights and B Bᵀ the Gram matrix of the values."""
        weights = self.layer.map.weights(scores, np.ones(len(self._seen), dtype=bool))
        projected = weights @ values
        return np.asarray(np.einsum("...r,...r->...", projected, projected))

    def law(self) -> ScaleMixture:
        """Return the law of the output at infinite width."""
        from attncheck.theory.limit import cached_limit

        return cached_limit(self.layer).mixture(self.position)


@dataclasses.dataclass(frozen=True)
class ScoreEntry(_Entry):
    """One score p_ij of one head."""

    row: int
    column: int

    @property
    def normals(self) -> int:
        """Number of normals that determine the variance of a score: 0, since the Gram matrices determine it."""
        return 0

    @property
    def kinked(self) -> bool:
        """False, since the variance is smooth in the Gram matrices."""
        return False

    def fluctuations(self, infinite: bool) -> Fluctuations:
        """Return the law of the Gram matrix G of the inputs, and of the length of the key."""
        positions = tuple(sorted({self.row, self.column}))
        return Fluctuations(self.layer, positions, shared=False, groups=1, infinite=infinite)

    def variances(self, draws: Drivers, normals: FloatArray, *, limit: bool = False) -> FloatArray:
        """Return the conditional variances σ² G_ii G_jj χ²_ν/ν of the score, (draws, 1)."""
        lengths = np.diagonal(normalised_with_ones(self.layer.norm, draws.gram), axis1=-2, axis2=-1)
        scale = score_scale(self.layer, limit=limit) ** 2
        return np.asarray(scale * (lengths[:, :1] * lengths[:, -1:]) * draws.keys[:, :, 0])

    def law(self) -> ScaleMixture:
        """Return the normal law of the score at infinite width."""
        limits = self.fluctuations(infinite=True).limits
        return condense(self.variances(limits, np.zeros((1, 0)), limit=True)[0], np.ones(1))


def vanishes(layer: AttentionLayer, of: str = "outputs") -> bool:
    """Return whether outputs, or scores, are 0 in the limit.

    Examples
    --------
    >>> layer = AttentionLayer(width=8, score_scaling="1/n")
    >>> vanishes(layer), vanishes(layer, "scores"), vanishes(layer.replace(attention_map="linear"))
    (False, True, True)
    """
    if layer.score_exponent == 0.5 or layer.tied_query_key:
        return False
    return of == "scores" or layer.map.traits.homogeneous


def falls_as_inverse_width(layer: AttentionLayer) -> bool:
    """Return whether squared scores at finite width differ from their limits by O(1/n)."""
    return layer.score_exponent == 0.5 or layer.score_exponent >= 1.0


def restored(layer: AttentionLayer) -> AttentionLayer:
    """Return the layer with 1/√n scaling."""
    return layer.replace(score_scaling="1/sqrt(n)")


# For the law at infinite width: number of points, array entries per block, and seed.
_POINTS, _ENTRIES, _SEED = 2**16, 2**22, 0


@dataclasses.dataclass(frozen=True)
class FixedHeads:
    """Output or score of a layer with a fixed head_dim, for comparison with infinite width at the same head_dim.

    At infinite width, keys and values of a head still have random factors √(χ²_ν/ν), with ν = head_dim. These factors
    are computed from two more normals per head, which follow the normals of the scores.
    """

    marginal: OutputEntry | ScoreEntry

    def __post_init__(self) -> None:
        layer = self.marginal.layer
        if layer.group_size > 1:
            problem = "can be combined with head_dim only for the distance from the limit"
            refuse("num_kv_heads", layer.num_kv_heads, problem, 'leave it out, or use distance(reference="limit")')

    @property
    def layer(self) -> AttentionLayer:
        """The layer."""
        return self.marginal.layer

    def widened(self, factor: int) -> Self:
        """Return the same output or score at `factor` times the width, with the same head_dim."""
        layer = self.marginal.layer
        return dataclasses.replace(
            self, marginal=dataclasses.replace(self.marginal, layer=layer.replace(width=factor * layer.width))
        )

    @functools.cached_property
    def _heads(self) -> int:
        return len(self.marginal.fluctuations(infinite=True).limits.keys[0, 0])

    @property
    def normals(self) -> int:
        """Number of normals that determine the scores, plus two per head for the factors of keys and values."""
        return self.marginal.normals + 2 * self._heads

    @property
    def kinked(self) -> bool:
        """Whether the conditional variance has kinks as a function of the Gram matrices."""
        return self.marginal.kinked

    def fluctuations(self, infinite: bool) -> Fluctuations:
        """Return the law of the Gram matrix G of the inputs; normals determine the factors of keys and values."""
        return dataclasses.replace(self.marginal.fluctuations(infinite), still_heads=True)

    def variances(self, draws: Drivers, normals: FloatArray, *, limit: bool = False) -> FloatArray:
        """Return conditional variances, (draws, points), with scores scaled for this head_dim."""
        half = 0.5 * self.marginal.layer.head_width
        upper = special.ndtr(-normals[:, self.marginal.normals :])
        factors = np.asarray(special.gammainccinv(half, upper) / half, dtype=np.float64)
        keys, values = factors[None, :, : self._heads], factors[None, :, self._heads :]
        return self.marginal.variances(Drivers(draws.gram, keys, values), normals[:, : self.marginal.normals])

    @functools.cached_property
    def _law(self) -> ScaleMixture:
        points = normal_points(self.normals, np.random.default_rng(_SEED))(_POINTS)
        limits, parts = self.fluctuations(infinite=True).limits, slices(len(points), _ENTRIES // self.normals)
        variances = np.concatenate([self.variances(limits, points[part])[0] for part in parts])
        return condense(variances, np.ones(len(points)))

    def law(self) -> ScaleMixture:
        """Return the law at infinite width."""
        return self._law


#: One output or score. It is normal given its variance, which depends on Gram matrices and on the normals of scores.
Marginal = OutputEntry | ScoreEntry | FixedHeads
