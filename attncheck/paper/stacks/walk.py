"""A stack of finite width beside its conjectured limit, layer by layer, on the same normals.

Stack and limit differ by deviations of order n^{-1/2}. The finite stream has a *twin*: a stream with the law of the
limit, whose Gram matrices have deviations of mean exactly 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from scipy import special

import attncheck.layers.nonlinearity as nonlinearity
from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.norm import normalised, normalised_change, with_ones
from attncheck.layers.stack import AttentionStack
from attncheck.layers.stack_program import Perceptron
from attncheck.simulators.collapsed import draw_heads, draw_hidden, draw_positions, output_covariance
from attncheck.simulators.linalg import lower_root
from attncheck.simulators.stacks import perceptron_covariance
from attncheck.theory.stacks.recursion import Deviations, Recursion, draw_normals, recur

# Share of the deviations to add and subtract for a derivative.
_SHARE = 1e-3
# Number of neurons to average over in a residual stream.
NEURONS = 64


@dataclasses.dataclass(frozen=True, eq=False)
class WalkResult:
    """A stack and its limit on the same normals.

    `more` and `less` are streams of the limit with a small share of the deviations added or subtracted.
    """

    limit: Recursion
    layers: list[LayerPass]
    grams: list[tuple[FloatArray, FloatArray]]
    more: FloatArray
    less: FloatArray

    @classmethod
    def draw(
        cls, stack: AttentionStack, size: int, position: int, rng: np.random.Generator, with_grams: bool = False
    ) -> WalkResult:
        """Draw the stack and its limit."""
        normals = draw_normals(stack, size, rng)
        limit = recur(stack, normals)
        walk = Walk(stack, normals, limit, position, rng, with_grams)
        layers = list(walk)
        deviations = tuple(layer.deviations for layer in layers)
        more, less = (recur(stack, normals, walk.lengths, deviations, share).streams for share in (_SHARE, -_SHARE))
        return cls(limit, layers, walk.grams, more, less)

    def slope(self, more: FloatArray, less: FloatArray) -> FloatArray:
        """Return the derivative with respect to the share of the deviations, from values at `more` and `less`."""
        return np.asarray((more - less) / (2.0 * _SHARE))


@dataclasses.dataclass(frozen=True, eq=False)
class LayerPass:
    """Output of one layer at finite width, and its limit.

    Attributes
    ----------
    variance, limit : ndarray, shape (size,)
        Conditional variances of the output.
    stream, limit_stream : ndarray, shape (size, m), or None
        With a residual, the stream before the sum, and its twin.
    limit_total : ndarray, shape (size,)
        Variance of the limit's next stream.
    """

    variance: FloatArray
    limit: FloatArray
    stream: FloatArray | None
    limit_stream: FloatArray | None
    limit_total: FloatArray
    deviations: Deviations

    def probabilities(self, t: FloatArray) -> FloatArray:
        """Return P(next stream ≤ t), (size, points).

        With a residual, this is an average over neurons, and the twin's average is subtracted as a control.
        """
        if self.stream is None or self.limit_stream is None:
            return np.asarray(special.ndtr(ratio_of(t, self.variance)))
        ours, theirs = (
            special.ndtr(ratio_of(t - z[..., None], v[:, None])).mean(axis=1)
            for z, v in ((self.stream, self.variance), (self.limit_stream, self.limit))
        )
        return np.asarray(ours - theirs + special.ndtr(ratio_of(t, self.limit_total)))


class Walk:
    """Iterator over the layers at finite width, on the normals of the limit.

    `lengths`, (size,), are relative deviations of the covariance of the h^i from its limit. `grams` collects, if
    requested, pairs of Gram matrices (size, s, s) of stream and twin.
    """

    def __init__(
        self,
        stack: AttentionStack,
        normals: FloatArray,
        limit: Recursion,
        position: int,
        rng: np.random.Generator,
        with_grams: bool = False,
    ) -> None:
        self._stack, self._normals, self._limit, self._position, self._rng = stack, normals, limit, position, rng
        hidden, lengths = draw_hidden(stack.layer, len(normals), rng)
        hidden *= stack.layer.input_std
        positions = draw_positions(stack.layer, len(normals), rng)
        # The stream at finite width and its twin, which has the law of the limit.
        self._stream, self._twin = hidden * lengths[:, None, None] + positions, hidden + positions
        self.lengths: FloatArray = lengths**2 - 1.0
        self.grams: list[tuple[FloatArray, FloatArray]] = []
        self._with_grams = with_grams

    def __iter__(self) -> Iterator[LayerPass]:
        stack, limit, place = self._stack, self._limit, self._position
        for k, layer in enumerate(stack.layers):
            covariance, deviations = self._attend(k, layer)
            limits, some = limit.outputs[:, k], slice(0, NEURONS)
            if stack.perceptron:
                self._add(covariance, limits, limit.scales[:, k, 0])
                covariance, deviations = self._perceive(k, layer, stack.perceptron, deviations)
                limits = limit.perceptrons[:, k]
            yield LayerPass(
                variance=covariance[:, place, place],
                limit=limits[:, place, place],
                stream=self._stream[:, place, some] if stack.residual else None,
                limit_stream=self._twin[:, place, some] if stack.residual else None,
                limit_total=limit.streams[:, k + 1, place, place],
                deviations=deviations,
            )
            self._add(covariance, limits, limit.scales[:, k, -1])
            if self._with_grams:
                self.grams.append((gram_of(self._stream), gram_of(self._twin)))

    def _add(self, covariance: FloatArray, limits: FloatArray, scales: FloatArray) -> None:
        """Move to the next stream and twin, given the covariances of the outputs."""
        noise = self._rng.standard_normal(self._stream.shape)
        outputs, twins = (lower_root(each) @ noise for each in (covariance, limits))
        residual = self._stack.residual
        self._stream = normalised(self._stack.post_norm, self._stream + outputs if residual else outputs)
        self._twin = (self._twin + twins if residual else twins) / np.where(scales > 0, scales, 1.0)[..., None]

    def _attend(self, k: int, layer: AttentionLayer) -> tuple[FloatArray, Deviations]:
        """Return the conditional covariance of a layer's outputs, and the layer's deviations from the limit."""
        phi, s, nu = nonlinearity.of_inputs(layer.inputs), layer.seq_len, layer.head_width
        gram = gram_of(normalised(layer.norm, phi(self._stream)))
        twin = _twin_gram(layer, phi(self._twin), self._limit.kernels[:, k], self._limit.means[:, k])
        heads = draw_heads(layer, len(gram), s, self._rng)
        heads = dataclasses.replace(heads, scores=self._normals[:, k, ..., : heads.scores.shape[-1]])
        scores, _, values = heads.of(layer, lower_root(gram))
        keys, own = (_factor_deviation(each, nu) for each in (heads.keys, heads.values))
        deviations = Deviations(_root_deviation(self._limit.roots[:, k], twin), keys, own)
        return output_covariance(layer, scores, values), deviations

    def _perceive(
        self, k: int, layer: AttentionLayer, perceptron: Perceptron, deviations: Deviations
    ) -> tuple[FloatArray, Deviations]:
        """Return the conditional covariance of a perceptron's outputs, and deviations with the perceptron's added."""
        limit, scales = self._limit, self._limit.scales[:, k, 0]
        between = limit.outputs[:, k] + (limit.streams[:, k] if self._stack.residual else 0.0)
        between = between / (scales[:, :, None] * scales[:, None, :])
        twin = _twin_gram(layer, self._twin, between, np.zeros_like(scales))
        root = lower_root(gram_of(normalised(layer.norm, self._stream)))
        normals = self._rng.standard_normal((*scales.shape, perceptron.neurons))
        ours, theirs = (perceptron_covariance(perceptron, each, normals) for each in (root, limit.reads[:, k]))
        read = _root_deviation(limit.reads[:, k], twin)
        image = _root_deviation(limit.images[:, k], theirs / perceptron.std**2)
        return ours, dataclasses.replace(deviations, read=read, image=image)


def gram_of(vectors: FloatArray) -> FloatArray:
    """Return the Gram matrices X Xᵀ/n of vectors (..., s, n)."""
    return np.asarray(vectors @ vectors.swapaxes(-1, -2) / vectors.shape[-1])


def _twin_gram(layer: AttentionLayer, vectors: FloatArray, kernel: FloatArray, means: FloatArray) -> FloatArray:
    """Return the twin's Gram matrix, normalised to first order at `kernel` and `means`."""
    if layer.norm is None:
        return gram_of(vectors)
    return normalised_change(layer.norm, kernel, means, gram_of(with_ones("layer", vectors)))


def ratio_of(t: FloatArray, variance: FloatArray) -> FloatArray:
    """Return t/√v with a last axis for t; infinite where only v is 0, and 0 where both are 0."""
    root = np.sqrt(variance)[..., None]
    if (root > 0).all():
        return np.asarray(t / root)
    t, root = np.broadcast_arrays(t, root)
    return np.divide(t, root, out=np.where(t == 0, 0.0, np.copysign(np.inf, t)), where=root > 0)


def _factor_deviation(factors: FloatArray, nu: int) -> FloatArray:
    """Return (T - E T)/√ν of Bartlett factors, (size, heads, s, s)."""
    s, columns = factors.shape[-2:]
    dof = nu - np.arange(columns)
    mean = np.sqrt(2.0) * np.exp(special.gammaln(0.5 * (dof + 1)) - special.gammaln(0.5 * dof))
    result = np.zeros((*factors.shape[:-1], s))
    result[..., :columns] = factors * nu**-0.5
    diagonal = np.arange(columns)
    result[..., diagonal, diagonal] -= mean * nu**-0.5
    return result


def _root_deviation(root: FloatArray, gram: FloatArray) -> FloatArray:
    """Return a lower triangular Δ such that F (I + Δ) is a root of `gram`, to first order in `gram` - F Fᵀ.

    F is `root`.
    """
    size = root.shape[-1]
    alive = np.diagonal(root, axis1=-2, axis2=-1) > 0
    unit = np.where(alive, 0.0, 1.0)[..., None] * np.eye(size)
    half = np.linalg.solve(root + unit, gram)
    white = np.linalg.solve(root + unit, half.swapaxes(-1, -2)) - np.eye(size)
    white *= alive[..., :, None] & alive[..., None, :]
    return np.asarray(np.tril(white, -1) + 0.5 * white * np.eye(size))
