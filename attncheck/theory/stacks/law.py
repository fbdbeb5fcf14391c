"""Conjectured law of a stack's outputs at infinite width."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from attncheck._lib.arrays import FloatArray, slices
from attncheck._lib.errors import check_draws, check_integer, refuse
from attncheck._lib.kept import kept
from attncheck._lib.memory import check_memory
from attncheck._lib.streams import stream
from attncheck.layers.stack import AttentionStack
from attncheck.theory.limits.mixture import ScaleMixture, condense
from attncheck.theory.limits.rows import REPLICATES, score_std
from attncheck.theory.limits.symmetric import MixtureLaw
from attncheck.theory.stacks.recursion import draw_normals, recur

# Maximum number of array entries per block.
_BLOCK = 2**20


@dataclasses.dataclass(frozen=True)
class StackLaw(MixtureLaw):
    """Conjectured law of a stack's output (z^1, …, z^s) at infinite width.

    Given the scores of all layers the output is N(0, C), with a random C that is computed layer by layer. The output
    z^i of one position is a scale mixture of normals, with distribution function F(t) = E Φ(t/√v), v = C_ii, where
    the expectation is an average over `draws`. For one layer this is `LimitLaw`; for more layers it is unproved. Every
    ``…_error`` is exceeded with probability 0.1%.

    Parameters
    ----------
    stack : AttentionStack
        With a head_dim, both width and head_dim go to infinity.
    draws : int
        Draws of the recursion, at least 16.
    seed : int
        The same seed gives the same digits.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> law = StackLaw(AttentionStack(layer=AttentionLayer(width=64), depth=2, residual=True))
    >>> bool(law.cdf(0.0) == 0.5), law.variance() > 1.0
    (True, True)
    """

    stack: AttentionStack
    draws: int = 2**16
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.stack, AttentionStack):
            refuse("stack", self.stack, "is not an AttentionStack", "pass attncheck.AttentionStack(layer=..., depth=2)")
        score_std(self.stack.layer)  # refuses scores that grow with the width
        for field, least in (("draws", 16), ("seed", 0)):
            check = check_draws if field == "draws" else check_integer
            remedy = f"pass a whole number of at least {least}"
            object.__setattr__(self, field, check(field, getattr(self, field), least, remedy))

    @functools.cached_property
    def conditional_variances(self) -> FloatArray:
        """Draws of the conditional variances v of all positions, shape (draws, seq_len)."""
        return self._drawn[0]

    @property
    def kernel_error(self) -> float:
        """Error bound of the entries of all kernels, relative to their diagonals."""
        return self._drawn[1]

    @functools.cached_property
    def _drawn(self) -> tuple[FloatArray, float]:
        stack, rng = self.stack, stream(self.seed, "stack law")
        s = stack.seq_len
        entries = stack.depth * (4 * stack.num_heads + 10) * s**2 + 128 * s
        check_memory("seq_len", s, "a draw of the recursion", entries, "pass a shorter sequence")
        check_memory("draws", self.draws, "conditional variances", self.draws * s, "pass fewer draws")
        variances, largest = np.empty((self.draws, s)), 0.0
        for part in slices(self.draws, _BLOCK // entries):
            for step in recur(stack, draw_normals(stack, len(variances[part]), rng)):
                largest = max(largest, step.error)
            variances[part] = np.diagonal(step.stream, axis1=-2, axis2=-1)
        variances.setflags(write=False)
        return variances, largest

    @property
    def _positions(self) -> int:
        return self.stack.seq_len

    @kept
    def _law(self, position: int, part: int | None) -> ScaleMixture:
        v = self.conditional_variances[:, position]
        v = v if part is None else np.array_split(v, REPLICATES)[part]
        return condense(v, np.ones(len(v)))

    @property
    def _what(self) -> str:
        return f"limit of {self.stack.describe()}"
