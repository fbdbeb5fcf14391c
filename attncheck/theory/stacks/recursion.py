"""Conjectured limit of a stack: a recursion of random kernels.

Given the scores of layers 1 to l, the stream z^{(l+1)} is Gaussian with covariance

    C^{(l+1)} = S^{(l)} (+ C^{(l)} with residual),   S^{(l)} = (σ_V²σ_O²/H) Σ_a A_a K^{(l)} A_aᵀ,
    K^{(l)} = E[φ_l(z^{(l)}) φ_l(z^{(l)})ᵀ].

A_a are the attention weights of scores p^a = σ_Qσ_K F N_a Fᵀ, with a root F of K^{(l)} and standard normals N_a. A
pre-norm normalises K^{(l)} (see ``layers.norm``), and a post-norm C^{(l+1)}.

Hidden neurons of a perceptron are u ~ N(0, σ² K̂) before φ, where K̂ is the normalised covariance of the stream, and
its outputs are N(0, σ² E[φ(u)φ(u)ᵀ]). They add no further randomness.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.polynomial.hermite_e import hermevander
from scipy import special

from attncheck._lib.arrays import FloatArray, IndexArray, slices
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import StackDraws
from attncheck.layers.kernel import image_mean, input_covariance
from attncheck.layers.nonlinearity import Nonlinearity
from attncheck.layers.nonlinearity.covariances import correlation
from attncheck.layers.norm import centred, normalised_gram
from attncheck.layers.stack import AttentionStack
from attncheck.layers.stack_program import Perceptron
from attncheck.simulators.collapsed import HeadDraws, output_covariance
from attncheck.simulators.linalg import lower_root
from attncheck.theory.limits.rows import score_std

_EPS: Final = float(np.finfo(np.float64).eps)
# Clipping beyond this many standard deviations changes no digit.
_NEVER_CLIPPED: Final = 12.0
# Number of Hermite terms; largest point, step and maximum number of points of the quadrature. Since tanh(√v z) has
# poles at ±iπ/(2√v), a step h has the error exp(-π²/(h √v)), which is below rounding error up to h = 0.28/√v.
_TERMS, _RANGE, _STEP, _MOST_POINTS = 64, 13.0, 0.25, 4096
# Maximum number of array entries per block.
_BLOCK: Final = 2**20


def image_kernels(phi: Nonlinearity, covariances: FloatArray) -> tuple[FloatArray, float]:
    """Return E[φ(z_j)φ(z_k)], z ~ N(0, C), for C (..., s, s), and an error bound relative to the diagonals.

    tanh uses the Hermite expansion Σ_m a_m(C_jj) a_m(C_kk) ρ^m, a_m(v) = E[φ(√v Z) He_m(Z)]/√m!. The remainder is
    at most ``|ρ|^64`` times the square root of the product of both remainders in Parseval's identity.

    Examples
    --------
    >>> from attncheck.layers.nonlinearity import tanh
    >>> kernels, error = image_kernels(tanh(), np.array([[[1.0, 0.5], [0.5, 2.0]]]))
    >>> value, _ = tanh().dual(1.0, 2.0, 0.5)
    >>> bool(abs(kernels[0, 0, 1] - value) < 1e-6), error < 1e-5
    (True, True)
    """
    size = covariances.shape[-1]
    variances = np.diagonal(covariances, axis1=-2, axis2=-1)
    rows, columns = np.triu_indices(size)
    v1, v2, c = variances[..., rows], variances[..., columns], covariances[..., rows, columns]
    if phi.name == "tanh":
        upper, error = _hermite(phi, variances, rows, columns, c)
    elif phi.name == "clip":
        upper, error = _clipped(phi, v1, v2, c)
    else:
        upper, error = phi.dual(v1, v2, c)
    kernels = np.empty_like(covariances)
    kernels[..., rows, columns] = upper
    kernels[..., columns, rows] = upper
    squares = np.diagonal(kernels, axis1=-2, axis2=-1)
    scale = np.sqrt(squares[..., rows] * squares[..., columns])
    return kernels, float(np.max(np.divide(error, scale, out=np.zeros_like(scale), where=scale > 0), initial=0.0))


def _clipped(phi: Nonlinearity, v1: FloatArray, v2: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return E[φ(Z₁)φ(Z₂)] for clip, and an error bound.

    Where the variances are too small for any clipping, it is the covariance c.
    """
    near = _NEVER_CLIPPED**2 * np.maximum(v1, v2) > phi.parameters[0] ** 2
    value, error = c.copy(), _EPS * np.sqrt(v1 * v2)
    if near.any():
        value[near], error[near] = phi.dual(v1[near], v2[near], c[near])
    return value, error


def _hermite(
    phi: Nonlinearity, variances: FloatArray, rows: IndexArray, columns: IndexArray, c: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return E[φ(Z₁)φ(Z₂)] for tanh and an error bound, by Hermite expansions of φ at each of the `variances`.

    `rows` and `columns` are the positions of Z₁ and Z₂ in `variances`, and `c` contains their covariances.
    """
    flat = variances.reshape(-1, variances.shape[-1])
    value, error = np.empty((len(flat), len(rows))), np.empty((len(flat), len(rows)))
    root = float(np.sqrt(variances.max(initial=0.0)))
    count = int(min(_MOST_POINTS, 2 * _RANGE / min(_STEP, 0.28 / max(root, 1e-9)))) + 1
    nodes = np.linspace(-_RANGE, _RANGE, count)
    basis = _hermite_functions(nodes)
    for part in slices(len(flat), _BLOCK // (count * flat.shape[-1])):
        block = flat[part]
        images = phi(np.sqrt(block)[..., None] * nodes)
        # Leave out even terms, which are 0 for an odd function. With terms on axis 0, each is contiguous in memory.
        coefficients = np.ascontiguousarray(np.moveaxis(images @ basis[1::2].T, -1, 0))
        squares = (images**2) @ basis[0]
        rest = np.maximum(squares - (coefficients**2).sum(axis=0), 0.0)
        covariance = c.reshape(-1, len(rows))[part]
        rho, _ = correlation(block[:, rows], block[:, columns], covariance)
        total, square = np.zeros_like(rho), rho * rho
        for term in coefficients[::-1]:
            total *= square
            total += term[:, rows] * term[:, columns]
        total *= rho
        omitted = np.abs(rho) ** _TERMS * np.sqrt(rest[:, rows] * rest[:, columns])
        rounding = 64 * _EPS * np.sqrt(squares[:, rows] * squares[:, columns])
        # Diagonal entries need no expansion.
        same = rows == columns
        value[part] = np.where(same, squares[:, rows], total)
        error[part] = rounding + np.where(same, 0.0, omitted)
    return value.reshape(c.shape), error.reshape(c.shape)


def _hermite_functions(nodes: FloatArray) -> FloatArray:
    """Return normal weights at `nodes` times orthonormal Hermite polynomials, (terms, nodes)."""
    weights = np.exp(-0.5 * nodes**2)
    polynomials = hermevander(nodes, _TERMS - 1) / np.sqrt(special.factorial(np.arange(_TERMS)))
    return np.asarray(weights / weights.sum() * polynomials.T)


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One layer of the recursion, in arrays of shape (size, s, s) unless stated otherwise.

    Attributes
    ----------
    stream : ndarray
        C^{(l + 1)}, the covariance of the stream after the layer.
    parts : list of tuple of ndarray
        Covariance of the outputs of attention, and of those of the perceptron, if any; each with the lengths by which
        the post-norm then divides the stream, (size, s, 1).
    root : ndarray
        Lower triangular root F of the kernel after the norm.
    scores : ndarray, shape (size, num_heads, s, s)
    error : float
        Bound on a kernel's error, relative to its diagonal.
    """

    stream: FloatArray
    parts: list[tuple[FloatArray, FloatArray]]
    root: FloatArray
    scores: FloatArray
    error: float


def draw_normals(stack: AttentionStack, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw the standard normals N_a of each layer's scores, (size, depth, num_heads, s, s)."""
    return rng.standard_normal((size, stack.depth, stack.num_heads, stack.seq_len, stack.seq_len))


def recur(stack: AttentionStack, normals: FloatArray) -> Iterator[Step]:
    """Yield the limiting covariances layer by layer, given the standard normals that determine the scores.

    Examples
    --------
    >>> stack = AttentionStack(layer=AttentionLayer(width=8, seq_len=2, num_heads=1), depth=3)
    >>> steps = recur(stack, np.zeros((1, 3, 1, 2, 2)))  # equal weights: the average of two, then of equal ones
    >>> [step.stream[0, 0, 0].round(12).item() for step in steps]
    [0.5, 0.5, 0.5]
    """
    stream = np.broadcast_to(input_covariance(stack.layer), (len(normals), stack.seq_len, stack.seq_len))
    for k, layer in enumerate(stack.layers):
        kernel, means, error = _read(layer, stream)
        root = lower_root(normalised_gram(layer.norm, kernel, means))
        scores, _, values = _limit_heads(layer, normals[:, k]).of(layer, root)
        output = output_covariance(layer, scores, values)
        stream, scale = _normalised(stack, output + stream if stack.residual else output)
        parts = [(output, scale)]
        if stack.perceptron:
            output, worse = _perceive(stack.perceptron, layer, stream)
            stream, scale = _normalised(stack, output + stream if stack.residual else output)
            parts, error = [*parts, (output, scale)], max(error, worse)
        yield Step(stream, parts, root, scores, error)


def _normalised(stack: AttentionStack, stream: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the covariance of the stream after the post-norm, and the norm's divisors, (size, s, 1)."""
    if not stack.post_norm:
        return stream, np.ones((*stream.shape[:-1], 1))
    # Streams have mean 0, so layer norm equals RMS norm.
    scale = np.sqrt(np.diagonal(stream, axis1=-2, axis2=-1))
    normed = normalised_gram(stack.post_norm, stream, np.zeros_like(scale))
    return normed, np.where(scale > 0, scale, 1.0)[..., None]


def _perceive(perceptron: Perceptron, layer: AttentionLayer, stream: FloatArray) -> tuple[FloatArray, float]:
    """Return the covariance of a perceptron's outputs, and an error bound."""
    normed = normalised_gram(layer.norm, stream, np.zeros(stream.shape[:-1]))
    kernel, error = image_kernels(perceptron.phi, perceptron.std**2 * normed)
    return perceptron.std**2 * kernel, error


def _read(layer: AttentionLayer, stream: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Return the kernel E[φ(z)φ(z)ᵀ] for z ~ N(0, `stream`), the means E φ(z), and an error bound of the kernel.

    The means are 0 unless the layer has layer norm, which is the only norm that needs them.
    """
    phi = layer.phi
    kernel, error = image_kernels(phi, stream)
    diagonal = np.diagonal(kernel, axis1=-2, axis2=-1)
    if layer.norm is None:
        return kernel, np.zeros_like(diagonal), error
    means = np.zeros_like(diagonal)
    if layer.norm == "layer":
        means = image_mean(phi, np.diagonal(stream, axis1=-2, axis2=-1))
    variances = np.diagonal(centred(layer.norm, kernel, means), axis1=-2, axis2=-1)
    worse = np.divide(diagonal, variances, out=np.ones_like(diagonal), where=variances > 0).max(initial=1.0)
    return kernel, means, 2.0 * float(worse) * error


def _limit_heads(layer: AttentionLayer, normals: FloatArray) -> HeadDraws:
    """Return the limits of the factors T_K and T_V of a layer's heads, and the `normals` of the heads' scores."""
    size, _, s, _ = normals.shape
    factor = layer.head_width**0.5 * np.broadcast_to(np.eye(s), (size, layer.kv_heads, s, s))
    # With "1/n" scaling scores vanish, so the normals are 0; with tied queries and keys, they are not used.
    return HeadDraws(factor, factor, normals if score_std(layer) else np.zeros_like(normals))


def draw_limit_stack(stack: AttentionStack, size: int, coordinates: int, rng: np.random.Generator) -> StackDraws:
    """Draw from the conjectured limit of a stack.

    The coordinates of a draw have the same scores, and are independent given these scores.
    """
    steps = list(recur(stack, draw_normals(stack, size, rng)))
    shape = (size, stack.seq_len, coordinates)
    stream = lower_root(input_covariance(stack.layer)) @ rng.standard_normal(shape)
    streams = []
    for step in steps:
        streams.append(stream)
        for covariance, scale in step.parts:
            outputs = lower_root(covariance) @ rng.standard_normal(shape)
            stream = (stream + outputs if stack.residual else outputs) / scale
    scores, roots = (
        np.stack(arrays, axis=1) for arrays in zip(*((step.scores, step.root) for step in steps), strict=True)
    )
    grams = roots @ roots.swapaxes(-1, -2)
    return StackDraws(outputs=stream, scores=scores, streams=np.stack(streams, axis=1), grams=grams)


def limit_entries(stack: AttentionStack, coordinates: int) -> int:
    """Return a bound on the float64 entries in memory for one draw of the limit.

    It includes 128 s entries for the points of a Hermite expansion.
    """
    s, heads = stack.seq_len, stack.num_heads
    return stack.depth * (4 * heads * s**2 + 18 * s**2 + 3 * s * coordinates) + 8 * heads * s**2 + 128 * s
