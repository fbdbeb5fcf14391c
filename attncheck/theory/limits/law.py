"""Limit law of an attention layer: normal given a random covariance (Theorem 1, Example 1)."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from attncheck._lib.arrays import FloatArray, slices
from attncheck._lib.errors import check_draws, check_integer, refuse
from attncheck._lib.kept import kept
from attncheck._lib.memory import check_memory
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import Kernel, input_kernel
from attncheck.layers.parts.attention_map import Linear, Relu
from attncheck.layers.parts.scores import has_offset, heads_differ
from attncheck.theory.limits import covariance, rows
from attncheck.theory.limits.draw import draw_limit
from attncheck.theory.limits.mixture import ScaleMixture, pool
from attncheck.theory.limits.symmetric import MixtureLaw

# Maximum number of entries of a block of sampled scores.
_BLOCK = 2**18


@dataclasses.dataclass(frozen=True)
class LimitLaw(MixtureLaw):
    """Hierarchical law of (y^1, …, y^s) at infinite width.

    Given the limiting scores p°, y is N(0, S(p°)) with S = (σ_V²σ_O²/H) Σ_a A^a K A^{aT}, and p° is Gaussian with
    Cov(p^a_ij, p^b_kl) = δ_ab σ_Q²σ_K² K_ik K_jl (Theorem 1, Example 1). The output y^i of one position is a scale
    mixture of normals, with distribution function F(t) = E Φ(t/√v), v = S_ii. With "1/n" scaling (scores 0) or tied
    queries and keys (scores σ_Qσ_K K), y is Gaussian.

    The law of v is integrated over scrambled Sobol points and cached. Methods named ``…_error`` return errors
    that are exceeded with probability 0.1%. Tails keep their relative accuracy to twelve standard deviations.

    Parameters
    ----------
    layer : AttentionLayer
    scramble : int
        Scrambling seed.

    Examples
    --------
    Linear attention with two positions and one head has Laplace outputs:

    >>> law = LimitLaw(AttentionLayer(width=64, seq_len=2, num_heads=1, attention_map="linear"))
    >>> law.cdf([-1.0, 0.0, 1.0]).round(4)
    array([0.1839, 0.5   , 0.8161])
    """

    # In trials on many layers, the largest error due to representing the law of v by few points was 6e-7, for sums over
    # heads of sigmoid attention with scores of standard deviation ten.
    _condensing: ClassVar[float] = 1e-6

    layer: AttentionLayer
    scramble: int = 0

    def __post_init__(self) -> None:
        rows.score_std(self.layer)  # refuses scores that grow with the width
        object.__setattr__(self, "scramble", check_integer("scramble", self.scramble, 0, "pass a seed, e.g. 0"))

    @property
    def _what(self) -> str:
        return f"limit of {self.layer.describe()}"

    @functools.cached_property
    def kernel(self) -> Kernel:
        """K_jk = E[Z^{x^j} Z^{x^k}] of the inputs."""
        return input_kernel(self.layer)

    def atom(self, position: int = 0) -> float:
        """Return P(y^position = 0): with ReLU attention, the probability that no visible score is positive."""
        return self.mixture(position).atom

    def atom_error(self, position: int = 0) -> float:
        """Return an error estimate of `atom`."""
        return self._spread(lambda law: law.atom, position)

    def covariance(self) -> FloatArray:
        """Return E[y yᵀ], (seq_len, seq_len), the mean covariance given the scores.

        With head scaling it does not depend on the number of heads.
        """
        return self._mean_covariance[0].copy()

    def covariance_error(self) -> FloatArray:
        """Return error estimates of `covariance`, shape (seq_len, seq_len)."""
        return self._mean_covariance[1].copy()

    def score_covariance(self) -> FloatArray:
        """Return Cov(vec p^a) = σ_Q²σ_K² K ⊗ K of one head, row by row.

        With rotary positions of base b, Cov(p_ij, p_kl) has the factor c(d) = (Ci(d) - Ci(d/b)) / log b with
        d = (j - i) - (l - k), which is the mean of cos(d θ) over the angles θ of rotation per position.

        Returns
        -------
        ndarray, shape (seq_len², seq_len²)
            Zero with "1/n" scaling.

        Raises
        ------
        InputError
            If the matrix takes more than 512 MiB.
        """
        s = self.layer.seq_len
        check_memory("seq_len", s, "a covariance of all scores", s**4, "compute the entries you need from `kernel`")
        return rows.score_covariance(self.layer, self.kernel.matrix)

    def conditional_covariance(self, scores: ArrayLike) -> FloatArray:
        """Return S(p), the covariance of (y^1, …, y^s) given the scores.

        Parameters
        ----------
        scores : array_like, shape (..., num_heads, seq_len, seq_len)
            After scaling, before masking.

        Returns
        -------
        ndarray, shape (..., seq_len, seq_len)

        Raises
        ------
        InputError
            If the shape does not fit the layer, or an entry is not finite.
        """
        layer = self.layer
        shape = (layer.num_heads, layer.seq_len, layer.seq_len)
        try:
            array = np.asarray(scores, dtype=np.float64)
        except (TypeError, ValueError):
            refuse("scores", scores, "must be numbers", "pass an array of shape (..., num_heads, seq_len, seq_len)")
        if array.shape[-3:] != shape:
            refuse("scores.shape", array.shape, f"must end with {shape}", "pass the scores of all heads")
        if not np.all(np.isfinite(array)):
            refuse("scores", scores, "must be finite", "remove NaN and infinite entries")
        return covariance.conditional_covariance(layer, self.kernel.matrix, array)

    def sample(self, size: int, seed: int = 0, coordinates: int = 1) -> FloatArray:
        """Draw outputs; the coordinates of a draw have the same scores, and are independent given these scores.

        Parameters
        ----------
        size : int
            Number of independent draws.
        seed : int
            The same seed gives the same digits.
        coordinates : int
            Neurons per draw.

        Returns
        -------
        ndarray, shape (size, seq_len, coordinates)

        Raises
        ------
        InputError
            If `size` or `coordinates` is below 1, `seed` is negative, or the draws exceed memory.
        """
        size = check_draws("size", size, 1, "pass the number of draws, e.g. size=1000")
        coordinates = check_integer("coordinates", coordinates, 1, "pass how many neurons to draw")
        rng = np.random.default_rng(check_integer("seed", seed, 0, "pass a whole number, e.g. seed=0"))
        layer = self.layer
        block = _BLOCK // (layer.num_heads * layer.seq_len * (layer.seq_len + coordinates))
        try:
            result = np.empty((size, layer.seq_len, coordinates))
        except (MemoryError, ValueError):
            refuse("size", size, "is more draws than memory holds at once", "draw fewer, or several parts")
        for part in slices(size, block):
            result[part] = draw_limit(layer, len(result[part]), coordinates, rng).outputs
        return result

    @functools.cached_property
    def _mean_covariance(self) -> tuple[FloatArray, FloatArray]:
        return covariance.mean_covariance(self.layer, self.kernel.matrix, self.scramble)

    @kept
    def _head_laws(self, position: int, head: int) -> tuple[ScaleMixture, ...]:
        return rows.head_laws(self.layer, self.kernel.matrix, position, self.scramble, head)

    @property
    def _positions(self) -> int:
        return self.layer.seq_len

    @kept
    def _law(self, position: int, part: int | None) -> ScaleMixture:
        exact = rows.chi_square_law(self.layer, self.kernel.matrix, position)  # v is a multiple of χ²
        if exact:
            return exact.scaled(covariance.output_factor(self.layer))
        return self._sum_heads(position, pool if part is None else operator.itemgetter(part))

    def _sum_heads(self, position: int, pick: Callable[[tuple[ScaleMixture, ...]], ScaleMixture]) -> ScaleMixture:
        """Return the law of v, which is a sum over heads.

        `pick` selects or computes one law from the replicates of the law of a head.
        """
        heads = self.layer.num_heads
        if heads_differ(self.layer):
            laws = (pick(self._head_laws(position, head)) for head in range(heads))
            total = functools.reduce(ScaleMixture.plus, laws)
        else:
            total = pick(self._head_laws(position, 0)).times(heads)
        return total.scaled(covariance.output_factor(self.layer))

    def _singular(self, position: int) -> bool:
        """Return whether the density at 0 is infinite.

        This is so if, with positive probability, v is a multiple of a single squared score.
        """
        if rows.score_std(self.layer) == 0 or has_offset(self.layer):
            return False
        if self.layer.map == Linear():
            root = rows.row_root(self.layer, self.kernel.matrix, position)
            return bool(self.layer.num_heads * root.shape[1] == 1)
        return isinstance(self.layer.map, Relu)
