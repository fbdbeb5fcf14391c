"""The conjectured limit of a stack: a random kernel that each layer makes of the one before.

Given the scores of layers 1 to l, the stream z^{(l+1)} is Gaussian with the covariance

    C^{(l+1)} = S^{(l)} (+ C^{(l)} with residual),   S^{(l)} = (σ_V²σ_O²/H) Σ_a A_a K^{(l)} A_aᵀ,
    K^{(l)} = E[φ_l(z^{(l)}) φ_l(z^{(l)})ᵀ],

with A_a the attention weights of scores p^a that are Gaussian given K^{(l)}, Cov(p^a_ij, p^b_kl) =
δ_ab σ_Q²σ_K² K_ik K_jl, so that p^a = σ_Qσ_K F N_a Fᵀ for a root F of K^{(l)} and independent standard normals N_a.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

import attncheck.layers.nonlinearity as nonlinearity
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import hidden_covariance, input_covariance
from attncheck.layers.stack import AttentionStack
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
    """

    root: FloatArray
    keys: FloatArray
    values: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Recursion:
    """What the recursion made of its normals.

    Attributes
    ----------
    streams : ndarray, shape (size, depth + 1, s, s)
        C^{(l)}, that of the output last.
    outputs : ndarray, shape (size, depth, s, s)
        S^{(l)}.
    roots : ndarray, shape (size, depth, s, s)
        F, lower triangular roots of K^{(l)}.
    scores : ndarray, shape (size, depth, num_heads, s, s)
        p of every layer.
    error : float
        Bound on the error of the entries of a kernel, relative to its diagonal.
    """

    streams: FloatArray
    outputs: FloatArray
    roots: FloatArray
    scores: FloatArray
    error: float


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
    stream = np.broadcast_to(input_covariance(stack.layer), (len(normals), stack.seq_len, stack.seq_len))
    if lengths is not None:
        stream = stream + (share * lengths)[:, None, None] * hidden_covariance(stack.layer)
    found: dict[str, list[FloatArray]] = {name: [] for name in ("streams", "outputs", "roots", "scores")}
    found["streams"].append(stream)
    largest = 0.0
    for k, layer in enumerate(stack.layers):
        if averaged:
            stream = np.broadcast_to(stream.mean(axis=0), stream.shape)
        kernel, error = image_kernels(nonlinearity.from_layer(layer), stream)
        root = lower_root(kernel)
        draws = _limit_heads(layer, normals[:, k], deviations[k] if deviations else None, share)
        made = root + share * (root @ deviations[k].root) if deviations else root
        scores, _, values = draws.of(layer, made)
        output = output_covariance(layer, scores, values)
        stream = output + stream if stack.residual else output
        largest = max(largest, error)
        for name, value in (("streams", stream), ("outputs", output), ("roots", root), ("scores", scores)):
            found[name].append(value)
    return Recursion(**{name: np.stack(each, axis=1) for name, each in found.items()}, error=largest)


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
