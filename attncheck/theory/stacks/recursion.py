"""The conjectured limit of a stack: a random kernel that each layer makes of the one before.

Given the scores of layers 1 to l, the stream z^{(l+1)} is Gaussian with the covariance

    C^{(l+1)} = S^{(l)} (+ C^{(l)} with residual),   S^{(l)} = (σ_V²σ_O²/H) Σ_a A_a K^{(l)} A_aᵀ,
    K^{(l)} = E[φ_l(z^{(l)}) φ_l(z^{(l)})ᵀ],

with A_a the attention weights of scores p^a that are Gaussian given K^{(l)}, Cov(p^a_ij, p^b_kl) =
δ_ab σ_Q²σ_K² K_ik K_jl, so that p^a = σ_Qσ_K F N_a Fᵀ for a root F of K^{(l)} and independent standard normals N_a.

What a norm makes of vectors is a function of averages over neurons, which are expectations in the limit. A norm before
attention replaces K^{(l)} by what it makes of it (``layers.norm``), and one after the sum does the same to C^{(l+1)}.

A perceptron of a position reads the stream after attention. Given all scores its hidden neurons are N(0, σ² K̂) before
φ, K̂ the stream's covariance as a norm makes it, and its outputs N(0, σ² E[φ(u)φ(u)ᵀ]): no further randomness.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

import attncheck.layers.nonlinearity as nonlinearity
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import hidden_covariance, image_mean, input_covariance
from attncheck.layers.norm import centred, normalised_gram
from attncheck.layers.stack import AttentionStack
from attncheck.layers.stack_program import Perceptron
from attncheck.simulators.collapsed import HeadDraws, output_covariance
from attncheck.simulators.linalg import lower_root
from attncheck.theory.stacks.kernels import image_kernels

FloatArray = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Deviations:
    """What finite width adds, to first order, to what a layer of the limit reads; each of mean 0 given all normals N.

    Attributes
    ----------
    root : ndarray, shape (size, s, s)
        The root of the Gram matrix becomes F (I + root).
    keys, values : ndarray, shape (size, kv_heads, s, s)
        T/√ν becomes I + keys, and I + values.
    read, image : ndarray, shape (size, s, s), or None
        The same as `root`, of what a perceptron reads and of its images.
    """

    root: FloatArray
    keys: FloatArray
    values: FloatArray
    read: FloatArray | None = None
    image: FloatArray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Recursion:
    """What the recursion made of its normals.

    Attributes
    ----------
    streams : ndarray, shape (size, depth + 1, s, s)
        C^{(l)}, that of the output last.
    outputs : ndarray, shape (size, depth, s, s)
        S^{(l)}.
    kernels : ndarray, shape (size, depth, s, s)
        E[φ_l(z) φ_l(z)ᵀ], which is K^{(l)} where nothing is normalised before attention.
    means : ndarray, shape (size, depth, s)
        E φ_l(z) with layer norm before attention, else 0.
    roots : ndarray, shape (size, depth, s, s)
        F, lower triangular roots of K^{(l)}.
    scales : ndarray, shape (size, depth, sums, s)
        What a norm after the sum divides the stream by, 1 without: after attention, and after the perceptron if there
        is one.
    scores : ndarray, shape (size, depth, num_heads, s, s)
        p of every layer.
    error : float
        Bound on the error of the entries of a kernel, relative to its diagonal.
    perceptrons : ndarray, shape (size, depth, s, s)
        The covariance of the outputs of each perceptron; 0 without.
    reads, images : ndarray, shape (size, depth, s, s)
        Lower triangular roots of what perceptrons read, and of E[φ(u)φ(u)ᵀ]; 0 without.
    """

    streams: FloatArray
    outputs: FloatArray
    kernels: FloatArray
    means: FloatArray
    roots: FloatArray
    scales: FloatArray
    scores: FloatArray
    error: float
    perceptrons: FloatArray
    reads: FloatArray
    images: FloatArray


def draw_normals(stack: AttentionStack, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw the N_a of every layer, (size, depth, num_heads, s, s)."""
    return rng.standard_normal((size, stack.depth, stack.num_heads, stack.seq_len, stack.seq_len))


def recur(
    stack: AttentionStack,
    normals: FloatArray,
    lengths: FloatArray | None = None,
    deviations: tuple[Deviations, ...] = (),
    share: float = 0.0,
    averaged: bool = False,
) -> Recursion:
    """Return the covariances of the limit's streams given the normals that make the scores.

    Parameters
    ----------
    stack : AttentionStack
        Its width plays no part.
    normals : ndarray, shape (size, depth, num_heads, s, s)
    lengths : ndarray, shape (size,), optional
        What finite width adds to the covariance of the h^i in the first stream, relative to it.
    deviations : tuple of Deviations, optional
        What it adds to each layer.
    share : float
        How much of both is put in.
    averaged : bool
        Give every draw the mean covariance of all draws to read, as if layers were Gaussian and forgot the scores
        before them. A wrong recursion from the second layer on: what the conjecture is to be told apart from.

    Returns
    -------
    Recursion

    Examples
    --------
    >>> stack = AttentionStack(layer=AttentionLayer(width=8, seq_len=2, num_heads=1), depth=3)
    >>> made = recur(stack, np.zeros((1, 3, 1, 2, 2)))
    >>> made.streams[0, :, 0, 0].round(12).tolist()  # equal weights: the average of two, then of equal ones
    [1.0, 0.5, 0.5, 0.5]
    """
    stream = np.broadcast_to(input_covariance(stack.layer.inputs), (len(normals), stack.seq_len, stack.seq_len))
    if lengths is not None:
        stream = stream + (share * lengths)[:, None, None] * hidden_covariance(stack.layer.inputs)
    names = ("streams", "outputs", "kernels", "means", "roots", "scales", "scores", "perceptrons", "reads", "images")
    found: dict[str, list[FloatArray]] = {name: [] for name in names}
    found["streams"].append(stream)
    largest = 0.0
    for k, layer in enumerate(stack.layers):
        if averaged:
            stream = np.broadcast_to(stream.mean(axis=0), stream.shape)
        kernel, means, error = _read(layer, stream)
        root = lower_root(normalised_gram(layer.norm, kernel, means))
        draws = _limit_heads(layer, normals[:, k], deviations[k] if deviations else None, share)
        made = _moved(root, deviations[k].root if deviations else None, share)
        scores, _, values = draws.of(layer, made)
        output = output_covariance(layer, scores, values)
        stream, scale = _normalised(stack, output + stream if stack.residual else output)
        scales, (perceptron, read, image) = [scale], np.zeros((3, *stream.shape))
        if stack.perceptron:
            given = deviations[k] if deviations else None
            perceptron, read, image, worse = _perceive(stack.perceptron, layer, stream, given, share)
            stream, scale = _normalised(stack, perceptron + stream if stack.residual else perceptron)
            scales, error = [*scales, scale], max(error, worse)
        largest = max(largest, error)
        made_of = (stream, output, kernel, means, root, np.stack(scales, axis=1), scores, perceptron, read, image)
        for name, value in zip(names, made_of, strict=True):
            found[name].append(value)
    return Recursion(**{name: np.stack(each, axis=1) for name, each in found.items()}, error=largest)


def _normalised(stack: AttentionStack, stream: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a covariance as a norm after the sum makes it, and what it divides by, (size, s)."""
    if not stack.post_norm:
        return stream, np.ones(stream.shape[:-1])
    # Streams have no mean, which is all that tells layer norm from RMS norm.
    scale = np.sqrt(np.diagonal(stream, axis1=-2, axis2=-1))
    return normalised_gram(stack.post_norm, stream, np.zeros_like(scale)), scale


def _perceive(
    perceptron: Perceptron, layer: AttentionLayer, stream: FloatArray, deviations: Deviations | None, share: float
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Return the covariance of a perceptron's outputs, the roots of what it reads and of its images, and a bound."""
    read = lower_root(normalised_gram(layer.norm, stream, np.zeros(stream.shape[:-1])))
    moved = _moved(read, None if deviations is None else deviations.read, share)
    kernel, error = image_kernels(perceptron.phi, perceptron.std**2 * (moved @ moved.swapaxes(-1, -2)))
    image = lower_root(kernel)
    moved = _moved(image, None if deviations is None else deviations.image, share)
    return perceptron.std**2 * (moved @ moved.swapaxes(-1, -2)), read, image, error


def _moved(root: FloatArray, deviation: FloatArray | None, share: float) -> FloatArray:
    """Return a root with a share of its deviation."""
    return root if deviation is None else root + share * (root @ deviation)


def _read(layer: AttentionLayer, stream: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Return E[φ(z)φ(z)ᵀ] and what E φ(z) layer norm takes off, of streams of given covariances, and a bound.

    The bound is on the error of the entries of what a layer reads, normalised or not, relative to its diagonal.
    """
    phi = nonlinearity.of_inputs(layer.inputs)
    kernel, error = image_kernels(phi, stream)
    own = np.diagonal(kernel, axis1=-2, axis2=-1)
    if layer.norm is None:
        return kernel, np.zeros_like(own), error
    means = np.zeros_like(own)
    if layer.norm == "layer":
        means = image_mean(phi, np.diagonal(stream, axis1=-2, axis2=-1))
    kept = np.diagonal(centred(layer.norm, kernel, means), axis1=-2, axis2=-1)
    worse = np.divide(own, kept, out=np.ones_like(own), where=kept > 0).max(initial=1.0)
    return kernel, means, 2.0 * float(worse) * error


def _limit_heads(layer: AttentionLayer, normals: FloatArray, deviations: Deviations | None, share: float) -> HeadDraws:
    """Return what is random in a layer's heads in the limit, or a little away from it."""
    size, _, s, _ = normals.shape
    wide = layer.head_width**0.5
    factor = np.broadcast_to(np.eye(s), (size, layer.kv_heads, s, s))
    keys, values = (
        (factor, factor)
        if deviations is None
        else (
            factor + share * deviations.keys,
            factor + share * deviations.values,
        )
    )
    # With "1/n" scaling the scores themselves are what finite width adds; tied ones are made of keys alone.
    return HeadDraws(wide * keys, wide * values, normals if layer.score_scaling == "1/sqrt(n)" else share * normals)
