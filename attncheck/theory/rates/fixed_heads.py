"""Heads of fixed size: the law at finite width compared with that at infinite width.

At infinite width keys and values of a head still fluctuate, by one χ²_ν/ν each, drawn with the score
normals.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.theory.limits.mixture import ScaleMixture, condense
from attncheck.theory.limits.rows import scrambled_normals
from attncheck.theory.rates.drivers import Drivers, Fluctuations
from attncheck.theory.rates.marginal import OutputEntry, ScoreEntry

# Number of points for the law at infinite width, array entries per block, and seed.
_POINTS, _ENTRIES, _SEED = 2**16, 2**22, 0


@dataclasses.dataclass(frozen=True)
class FixedHeads:
    """Output or score of a layer with a head_dim, where the random χ² factors of heads count as score normals."""

    marginal: OutputEntry | ScoreEntry

    def __post_init__(self) -> None:
        layer = self.marginal.layer
        if layer.group_size > 1:
            problem = "with a head_dim is only supported for the distance from the limit"
            refuse("num_kv_heads", layer.num_kv_heads, problem, 'leave it out, or use distance(reference="limit")')

    @functools.cached_property
    def _heads(self) -> int:
        return len(self.marginal.fluctuations(infinite=True).limits.keys[0, 0])

    @property
    def normals(self) -> int:
        """Number of score normals, plus two per head."""
        return self.marginal.normals + 2 * self._heads

    @property
    def kinked(self) -> bool:
        """Whether the conditional variance has kinks as a function of the Gram matrices."""
        return self.marginal.kinked

    def fluctuations(self, infinite: bool) -> Fluctuations:
        """Return the law of the Gram matrix G."""
        return dataclasses.replace(self.marginal.fluctuations(infinite), still_heads=True)

    def variances(self, drivers: Drivers, normals: FloatArray, *, limit: bool = False) -> FloatArray:
        """Return conditional variances, (draws, points), with scores scaled for this head_dim."""
        half = 0.5 * self.marginal.layer.head_width
        upper = special.ndtr(-normals[:, self.marginal.normals :])
        factors = np.asarray(special.gammainccinv(half, upper) / half, dtype=np.float64)
        keys, values = factors[None, :, : self._heads], factors[None, :, self._heads :]
        return self.marginal.variances(Drivers(drivers.gram, keys, values), normals[:, : self.marginal.normals])

    @functools.cached_property
    def _law(self) -> ScaleMixture:
        points = scrambled_normals(self.normals, _POINTS, np.random.default_rng(_SEED))
        limits, step = self.fluctuations(infinite=True).limits, max(1, _ENTRIES // self.normals)
        parts = [self.variances(limits, points[start : start + step])[0] for start in range(0, len(points), step)]
        return condense(np.concatenate(parts), np.ones(len(points)))

    def law(self) -> ScaleMixture:
        """Return the law at infinite width."""
        return self._law
