"""Output covariance across positions: S given the scores, and its mean."""

from __future__ import annotations

import itertools

import numpy as np

import attncheck.layers.nonlinearity as nonlinearity
from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_integer, refuse
from attncheck.layers.attention import AttentionLayer, check_layer
from attncheck.layers.kernel import Kernel, input_kernel, psd_root
from attncheck.layers.parts import refuse_parts
from attncheck.layers.parts.attention_map import Linear, Relu, Softmax
from attncheck.layers.parts.mask import plain_mask
from attncheck.layers.parts.qk_norm import score_kernel
from attncheck.layers.parts.rotary import pair_alignment
from attncheck.layers.parts.scores import has_offset, heads_differ
from attncheck.theory.limits import rows
from attncheck.theory.limits.heads import head_means, kernel_moment
from attncheck.theory.limits.rows import score_std

# Relative rounding error of sums of products.
_ROUNDING = 1e-14


def output_factor(layer: AttentionLayer) -> float:
    """Return the factor by which output covariances multiply Σ_a A_a K A_aᵀ.

    The sum is over heads a with attention weights A_a, and K is the kernel of the inputs. The factor is (σ_V σ_O)²,
    divided by H if the layer has head scaling.
    """
    return (layer.value_std * layer.output_std * layer.head_factor) ** 2


def conditional_covariance(layer: AttentionLayer, kernel: FloatArray, scores: FloatArray) -> FloatArray:
    """Return the output covariance S = (σ_V² σ_O²/H) Σ_a A_a K A_aᵀ given scores (..., H, s, s) (Example 1).

    A_a are the attention weights of head a for these scores, and K is the `kernel` of the inputs.
    """
    projected = layer.attention_weights(scores) @ psd_root(kernel)
    grams = projected @ projected.swapaxes(-1, -2)
    return np.asarray(output_factor(layer) * grams.sum(axis=-3))


def mean_covariance(layer: AttentionLayer, kernel: FloatArray, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return E[S], the mean of the covariance S of the outputs given the scores, and its error, each of shape (s, s).

    Linear and ReLU attention have closed forms; other maps use the points of `head_means`.
    """
    factor = output_factor(layer) * layer.num_heads
    mean, error = _one_head(layer, kernel, seed)
    return factor * mean, factor * error


def infinite_heads_kernel(layer: AttentionLayer, *, scramble: int = 0) -> Kernel:
    """Return the covariance of the Gaussian outputs with infinitely many heads.

    κ_ik = σ_V²σ_O² Σ_jl E[A_ij A_kl] K_jl, A the attention weights of scores G with
    Cov(G_ij, G_kl) = σ_Q²σ_K² K_ik K_jl (Hron et al. 2020, scores divided by √n). With H heads, κ is the mean of
    the random covariance S.

    Parameters
    ----------
    layer : AttentionLayer
        Its number of heads is ignored.
    scramble : int
        Seed of the integration points; the same seed gives the same digits.

    Returns
    -------
    Kernel
        `error` is the largest error of an entry: rounding for linear and ReLU attention, else an error that is
        exceeded with probability 0.1%. It is at most 1e-4 σ_V²σ_O² times the largest entry of K, unless large scores or
        long sequences need too many points: under a causal mask it is about 7e-4 at 32 positions and 4e-3 at 64.

    Raises
    ------
    InputError
        Without head scaling, where no limit exists.

    Examples
    --------
    >>> infinite_heads_kernel(AttentionLayer(width=64, seq_len=2)).matrix.round(4)
    array([[0.6368, 0.5   ],
           [0.5   , 0.6368]])
    """
    seed = check_integer("scramble", scramble, 0, "pass a seed, e.g. 0")
    mean, error = mean_covariance(layer, many_heads_inputs(layer), seed)
    mean.setflags(write=False)
    return Kernel(mean, float(error.max()))


def many_heads_inputs(layer: AttentionLayer) -> FloatArray:
    """Return the kernel K of a layer's inputs; raise `InputError` if the layer has no limit for H → ∞."""
    check_layer(layer)
    if not layer.head_scaling:
        refuse("layer.head_scaling", False, "leaves no limit for infinitely many heads", "use head_scaling=True")
    if heads_differ(layer):
        refuse_parts(layer, "law of one head")
    return input_kernel(layer).matrix


def _one_head(layer: AttentionLayer, kernel: FloatArray, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return the mean of E[A K Aᵀ] over heads, with A the attention weights of a head, and its error."""
    std, s = score_std(layer), layer.seq_len
    if not kernel.any():
        return np.zeros((s, s)), np.zeros((s, s))
    if std == 0 and not layer.bias_std:
        weights = layer.attention_weights(rows.mean_scores(layer, kernel))
        mean = (weights @ kernel @ weights.swapaxes(-1, -2)).mean(axis=0)
        return mean, _ROUNDING * np.abs(mean)
    is_joint = rows.drawn_jointly(layer, kernel)
    plain = not has_offset(layer) and score_kernel(layer, kernel) is kernel
    if not (plain and isinstance(layer.map, Linear | Relu)):
        return head_means(layer, kernel, seed, (kernel_moment,))[0]
    function, divisor = (nonlinearity.identity(), 1) if isinstance(layer.map, Linear) else (nonlinearity.relu(), s)
    mask = layer.visible
    variances = std**2 * np.multiply.outer(np.diagonal(kernel), np.diagonal(kernel))
    mean = np.empty((s, s))
    aligned = pair_alignment(layer).reshape((s,) * 4) if is_joint else None
    for i, k in itertools.combinations_with_replacement(range(s), 2):
        pair_mask, covariances = np.outer(mask[i], mask[k]), std**2 * kernel[i, k] * kernel
        if aligned is not None:
            covariances = covariances * aligned[i, :, k]
        products = function.dual(variances[i][:, None], variances[k], covariances)[0] / divisor**2
        mean[i, k] = mean[k, i] = (products * kernel)[pair_mask].sum()
    scale = np.sqrt(np.outer(np.diagonal(mean), np.diagonal(mean)))
    return mean, _ROUNDING * s * scale


def plain_softmax(layer: AttentionLayer) -> bool:
    """Return whether attention is softmax without a sink or cap, and the mask is none or causal, without a window."""
    return layer.map == Softmax() and plain_mask(layer)
