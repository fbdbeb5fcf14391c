"""Tangent kernel with infinitely many heads, which is deterministic at infinite width (Hron et al. 2020).

With scores divided by √n it is the mean of the kernel with H heads,

    Θ^{ii}_{rr'} = E[2 σ_Q²σ_K² K_rr' c_rᵀ K c_r' + 2 σ_V²σ_O² A_r K A_r'ᵀ],

with the limiting weights A of a head, and the derivatives c of a neuron with respect to its scores, for normal values
with covariance σ_V²σ_O² K. It is 0 between neurons. With scores divided by n the first part, of W^Q and W^K, vanishes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_integer, refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import Kernel
from attncheck.layers.parts import refuse_parts
from attncheck.layers.parts.attention_map import Linear, Relu, Sigmoid
from attncheck.theory.limits import covariance
from attncheck.theory.limits.heads import head_means, kernel_moment, squares_of, summed
from attncheck.theory.limits.rows import score_std

# Relative rounding error of sums of products.
_ROUNDING = 1e-14


def infinite_heads_tangent(layer: AttentionLayer, *, scramble: int = 0) -> Kernel:
    """Return the deterministic tangent kernel with infinitely many heads (Hron et al. 2020).

    Θ_ik = 2κ_ik + 2σ_Q²σ_K²σ_V²σ_O² K_ik E tr(J_i K J_kᵀ K), with κ from `infinite_heads_kernel` and J_i the
    derivative of row i of the attention weights by its scores; Θ is 0 between neurons. Parameters are standard
    normals times their standard deviation over √fan-in.

    Parameters
    ----------
    layer, scramble
        As for `infinite_heads_kernel`.

    Returns
    -------
    Kernel
        `error` is the largest error of an entry.

    Raises
    ------
    InputError
        In the cases of `infinite_heads_kernel`; also with rotary positions, a position bias, or normalised queries and
        keys; for softmax with a window, cap, sink or user's mask; and for a user's map.

    Examples
    --------
    >>> infinite_heads_tangent(AttentionLayer(width=64, seq_len=2)).matrix.round(3)
    array([[1.57, 1.  ],
           [1.  , 1.57]])
    """
    seed = check_integer("scramble", scramble, 0, "pass a seed, e.g. 0")
    matrix = covariance.many_heads_inputs(layer)
    refuse_parts(layer, "tangent kernel")
    mean, error = mean_tangent(layer, matrix, seed)
    mean.setflags(write=False)
    return Kernel(mean, float(error.max()))


def mean_tangent(layer: AttentionLayer, kernel: FloatArray, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return the tangent kernel Θ with infinitely many heads, and its error, each of shape (s, s)."""
    std, factor = score_std(layer), 2.0 * covariance.output_factor(layer) * layer.num_heads
    if std > 0 and kernel.any() and covariance.plain_softmax(layer):
        values, slopes = head_means(layer, kernel, seed, (kernel_moment, _softmax_slopes))
    else:
        mean, error = covariance.mean_covariance(layer, kernel, seed)
        values = mean * 2.0 / factor, error * 2.0 / factor
        slopes = _mean_slopes(layer, kernel, seed)
    by_scores = factor * std**2 * kernel
    return factor * values[0] + by_scores * slopes[0], factor * values[1] + np.abs(by_scores) * slopes[1]


def _softmax_slopes(kernel: FloatArray) -> tuple[Callable[[FloatArray], FloatArray], float]:
    """Return the moment tr(J_i K J_kᵀ K) of softmax weights: a function that sums it over points, and its unit.

    J_i = diag(A_i) - A_i A_iᵀ is the derivative of row i of the attention weights A, and K is `kernel`.
    """
    of_squares = squares_of(lambda weights: weights, kernel**2)

    def total(weights: FloatArray) -> FloatArray:
        projected = weights @ kernel
        across = summed(weights, projected**2)
        both = projected @ weights.swapaxes(-1, -2)
        return np.asarray(of_squares(weights) - across - across.T + (both**2).sum(axis=0))

    return total, float(np.diagonal(kernel).max()) ** 2


def _sigmoid_slopes(kernel: FloatArray) -> tuple[Callable[[FloatArray], FloatArray], float]:
    """Return the moment tr(J_i K J_kᵀ K) of sigmoid weights: a function that sums it over points, and its unit.

    J_i = diag(A_i (1 - A_i)) is the derivative of row i of the attention weights A, and K is `kernel`.
    """
    return squares_of(lambda weights: weights * (1.0 - weights), kernel**2), float(np.diagonal(kernel).max()) ** 2


def _mean_slopes(layer: AttentionLayer, kernel: FloatArray, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return E tr(J_i K J_kᵀ K) and its error for elementwise maps.

    The derivative J_i of row i of the attention weights by its scores is then diagonal.
    """
    std, s, mask = score_std(layer), layer.seq_len, layer.visible.astype(float)
    squares = kernel**2
    # If the scores are constant or the values are 0, the result is 0.
    if std == 0 or not kernel.any():
        return np.zeros((s, s)), np.zeros((s, s))
    if not isinstance(layer.map, Sigmoid | Linear | Relu):
        problem = "has an attention map or a mask for which the mean is not known"
        drawn = "" if layer.map.traits.may_jump else ", or average draws of tangent_kernel at a large width"
        refuse("layer", layer.describe(), problem, f"leave it out{drawn}")
    if isinstance(layer.map, Sigmoid):
        return head_means(layer, kernel, seed, (_sigmoid_slopes,))[0]
    if isinstance(layer.map, Linear):
        mean = mask @ squares @ mask.T
        return mean, _ROUNDING * mean
    diagonal = np.diagonal(kernel)
    scale = np.sqrt(np.multiply.outer(diagonal, diagonal))
    corrs = np.clip(np.divide(kernel, scale, out=np.zeros_like(kernel), where=scale > 0), -1.0, 1.0)
    # The derivative of ReLU is a step, so the mean is P(p_ij > 0, p_kl > 0)/s², and 0 for a score that is always 0.
    quadrant = 0.25 + np.arcsin(np.einsum("ik,jl->ijkl", corrs, corrs)) / (2.0 * np.pi)
    varies = np.multiply.outer(scale > 0, scale > 0).swapaxes(1, 2) / s**2
    together = quadrant * varies
    mean = np.einsum("ij,kl,jl,ijkl->ik", mask, mask, squares, together, optimize=True)
    return mean, _ROUNDING * s * np.abs(mean)
