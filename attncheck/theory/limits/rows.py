"""Law of one head's contribution u = αᵀKα to the conditional variance v = c Σ_a u_a, by quasi-Monte Carlo.

Here α is a row of attention weights in the limit, a function of Gaussian scores, and K the kernel of the inputs.
Standard normals z are drawn from a mixture of proposals and weighted by the balance heuristic. Half of the points are
plain standard normals, so weights are at most two; the other half covers the far tail of the output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy
from scipy import special

from attncheck._lib.arrays import BoolArray, FloatArray, slices
from attncheck._lib.errors import refuse
from attncheck._lib.memory import check_memory
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import psd_root
from attncheck.layers.parts.attention_map import Linear, Softmax
from attncheck.layers.parts.position_bias import mean_offset
from attncheck.layers.parts.qk_norm import score_kernel
from attncheck.layers.parts.rotary import pair_alignment, row_alignment
from attncheck.layers.parts.scores import has_offset, of_head, offset_covariance
from attncheck.theory.limits.mixture import ScaleMixture, condense

# Tails are accurate up to this number of standard deviations of the output.
_TAIL = 12.0
# Maximum dimension in which the proposals of `enlarged` are enough to cover all directions.
_FEW_DIMENSIONS = 6
_LONGEST_SHIFT = 12.0
#: Number of replicates: independently scrambled Sobol point sets, whose spread gives error estimates.
REPLICATES = 8
# Probability that the error exceeds its estimate if replicates are normal; with Sobol points, their tails are heavier.
_EXCEEDED = 1e-3
_POINTS = 2**14
_FEWEST_POINTS = 2**9
# Number of normals per replicate; in higher dimensions, a replicate therefore has fewer points.
_NORMALS = 2**18
# Maximum number of array entries per block, which is the number of points times seq_len.
_BLOCK = 2**20
_PILOT = 2**9
# Eigenvalues are considered equal within this relative tolerance.
_TOLERANCE = 1e-12
# Step, and range below and above 0, of the trapezoidal rule in log χ². If half the degrees of freedom exceed
# `_LOG_CHI_HALF`, step and range shrink like the standard deviation of log χ².
_LOG_CHI_STEP, _LOG_CHI_RANGE, _LOG_CHI_ABOVE, _LOG_CHI_HALF = 0.1, 50.0, 6.0, 25.0


@dataclasses.dataclass(frozen=True, eq=False)
class Proposal:
    """One component of the mixture law from which points are drawn for importance sampling.

    Its points are size · z + c, where z is standard normal, and c is one of the rows of `centres`, (k, r), which are
    equally likely. `share` is the component's share of all points.
    """

    share: float
    size: float
    centres: FloatArray

    def place(self, normals: FloatArray) -> FloatArray:
        """Map standard normals, (points, r), to points of the component.

        Each centre gets a contiguous run of normals, because contiguous runs of Sobol points are evenly spread.
        """
        which = np.arange(len(normals)) * len(self.centres) // len(normals)
        return np.asarray(self.size * normals + self.centres[which])

    def log_density(self, points: FloatArray) -> FloatArray:
        """Return the logarithm of the component's density at each point, relative to the standard normal density."""
        lengths = np.einsum("pr,pr->p", points, points)
        result = 0.5 * (1 - self.size**-2) * lengths - points.shape[1] * np.log(self.size)
        if not self.centres.any():
            return np.asarray(result)
        offsets = 0.5 * np.einsum("kr,kr->k", self.centres, self.centres)
        for part in slices(len(points), _BLOCK // len(self.centres)):
            logs = (points[part] @ self.centres.T - offsets) * self.size**-2
            top = logs.max(axis=1)
            result[part] += top + np.log(np.exp(logs - top[:, None]).mean(axis=1))
        return np.asarray(result)


def weigh(proposals: tuple[Proposal, ...], points: FloatArray) -> FloatArray:
    """Return the importance weights of points that were drawn from the proposals, by the balance heuristic."""
    logs = [np.log(proposal.share) + proposal.log_density(points) for proposal in proposals]
    # Divide by the largest density to prevent overflow in high dimensions.
    largest = np.maximum.reduce(logs)
    total = np.sum([np.exp(log - largest) for log in logs], axis=0)
    return np.asarray(np.exp(-largest) / total)


def enlarged(dimension: int) -> tuple[Proposal, ...]:
    """Return a standard normal proposal and two wider ones, with which the far tail of the output is integrated.

    Linear attention has the heaviest tail. For r = `dimension` normals z, the contribution of points of length |z| to
    the probability of an output beyond t is exp(-t²/(2|z|²) - |z|²/2) |z|^(r-2), which is largest where |z|⁴ -
    (r-2)|z|² = t². The points of the widest proposal have about this length for t = 12√r, which is twelve standard
    deviations of the output.
    """
    middle = 0.5 * dimension - 1.0
    square = middle + np.sqrt(middle**2 + _TAIL**2 * dimension)
    size, centre = float(np.sqrt(square / dimension)), np.zeros((1, dimension))
    return Proposal(0.5, 1.0, centre), Proposal(0.25, size**0.5, centre), Proposal(0.25, size, centre)


def towards_keys(
    root: FloatArray, variance: Callable[[FloatArray], FloatArray], mean_variance: float
) -> tuple[Proposal, ...]:
    """Return proposals of the normals z for softmax attention with scores ``root @ z``.

    The far tail of the output comes from scores with which softmax selects a single key. ``variance(scores)`` returns
    the conditional variance of the output, and `mean_variance` is its mean.
    """
    dimension = root.shape[1]
    plain, wider, widest = enlarged(dimension)
    if dimension <= _FEW_DIMENSIONS:
        return plain, wider, widest
    lengths = np.linalg.norm(root, axis=1)
    directions = root[lengths > 0] / lengths[lengths > 0, None]
    # Find the shift of z towards one key that maximises exp(-t²/2v) times the normal density; other keys are similar.
    shifts = np.linspace(0.0, _LONGEST_SHIFT, 121)
    along = variance(shifts[:, None] * (root @ directions[0]))
    best = np.argmin(_TAIL**2 * mean_variance / along + shifts**2)
    centres = shifts[best] * directions
    quarter = 0.125
    return (
        plain,
        dataclasses.replace(wider, share=quarter),
        dataclasses.replace(widest, share=quarter),
        Proposal(quarter, 1.0, 0.6 * centres),
        Proposal(quarter, 1.0, centres),
    )


#: An event that occurs in none of n independent draws has probability below `MISSED`/n, at confidence 1 - `_EXCEEDED`.
MISSED = float(-np.log(_EXCEEDED))


def error_of_mean(replicates: FloatArray, axis: int = 0) -> FloatArray:
    """Return an error estimate for the mean of replicates along an axis, by Student's law."""
    count = replicates.shape[axis]
    quantile = special.stdtrit(count - 1, 1.0 - 0.5 * _EXCEEDED)
    return np.asarray(quantile * replicates.std(axis=axis, ddof=1) / count**0.5)


def power_of_two(target: float, fewest: int, most: int) -> int:
    """Return the largest power of two that is at most `target`, which is first clipped to [`fewest`, `most`]."""
    return int(2 ** np.floor(np.log2(np.clip(target, fewest, most))))


def score_std(layer: AttentionLayer) -> float:
    """Return σ_Q σ_K, or 0 with "1/n" scaling, where limiting scores are constant.

    Raises InputError if scores grow with the width.
    """
    if layer.score_exponent < 0.5:
        remedy = "compare attncheck.simulate at several widths, or use 1/sqrt(n) or a lower power"
        refuse("score_scaling", layer.score_scaling, "makes scores grow with the width: no limit is computed", remedy)
    return layer.query_std * layer.key_std if layer.score_exponent == 0.5 else 0.0


def mean_scores(layer: AttentionLayer, kernel: FloatArray) -> FloatArray:
    """Return the mean limiting scores of each head, (H, s, s), or (1, s, s) if they are equal in all heads.

    They are σ_Qσ_K K if queries and keys are tied, and 0 otherwise, plus the mean of the biases added to scores.
    """
    tied = layer.query_std * layer.key_std * kernel if layer.tied_query_key else np.zeros_like(kernel)
    return np.asarray(tied + mean_offset(layer))


def row_root(layer: AttentionLayer, kernel: FloatArray, position: int) -> FloatArray:
    """Return F, (visible, r), such that F z with z ~ N(0, I) has the law of the visible scores of row `position`.

    The mean of the scores is left out. If a constant added to a row changes no weights, as for softmax, F may also omit
    the average of the scores over the row.
    """
    mask, kernel = layer.visible[position], score_kernel(layer, kernel)
    between = (kernel * row_alignment(layer))[np.ix_(mask, mask)]
    root = score_std(layer) * np.sqrt(kernel[position, position]) * psd_root(between)
    if layer.bias_std:
        columns = np.flatnonzero(mask)
        return psd_root(root @ root.T + offset_covariance(layer, np.full_like(columns, position), columns))
    if not layer.map.traits.shift_invariant:
        return np.asarray(root if score_std(layer) > 0 else root[:, :0])
    centred = root - root.mean(axis=0)
    vectors, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    retained = sizes > 1e-9 * np.linalg.norm(root)
    return np.asarray(vectors[:, retained] * sizes[retained])


def score_covariance(layer: AttentionLayer, kernel: FloatArray) -> FloatArray:
    """Return the covariance matrix of all scores of one head, taken row by row, (s², s²).

    Cov(p_ij, p_kl) is σ_Q²σ_K² K_ik K_jl, times a factor if positions are rotated, plus the covariance of any random
    bias.
    """
    kernel = score_kernel(layer, kernel)
    covariance = np.asarray(score_std(layer) ** 2 * np.kron(kernel, kernel), dtype=np.float64)
    if layer.rotary_base is not None:
        covariance *= pair_alignment(layer)
    every = np.indices((layer.seq_len, layer.seq_len)).reshape(2, -1)
    covariance += offset_covariance(layer, *every)
    return covariance


def root_of_scores(layer: AttentionLayer, kernel: FloatArray) -> FloatArray:
    """Return a root of `score_covariance`, (s², r), or raise `InputError` if it exceeds the default memory."""
    s = layer.seq_len
    check_memory("seq_len", s, "a covariance of all rotated scores", 4 * s**4, "pass a shorter sequence")
    return psd_root(score_covariance(layer, kernel))


def drawn_jointly(layer: AttentionLayer, kernel: FloatArray) -> bool:
    """Return whether a head's scores must be drawn jointly, because their covariance is not a Kronecker product.

    Rotary positions change the law of the scores only if positions are correlated.
    """
    if layer.bias_std:
        return True
    return layer.rotary_base is not None and bool(np.any(kernel[~np.eye(len(kernel), dtype=bool)]))


def normal_points(dimension: int, rng: np.random.Generator) -> Callable[[int], FloatArray]:
    """Return a function of `count` that returns the next points of a scrambled Sobol sequence, (count, dimension).

    The points are transformed to a standard normal law. In dimensions too high for Sobol sequences, they are random.
    """
    if dimension > scipy.stats.qmc.Sobol.MAXDIM:
        return lambda count: rng.standard_normal((count, dimension))
    sequence = scipy.stats.qmc.Sobol(dimension, scramble=True, bits=30, rng=rng)
    # Scrambled points are multiples of 2^-30, possibly 0, so shift them by half of that.
    return lambda count: np.asarray(special.ndtri(sequence.random(count) + 2.0**-31), dtype=np.float64)


def row_variance(layer: AttentionLayer, kernel_root: FloatArray, rows: FloatArray, mask: BoolArray) -> FloatArray:
    """Return αᵀKα for the attention weights α of each row of scores, (..., m).

    `kernel_root` is a root of K, (m, r), and `mask`, (m,), is True at visible positions.
    """
    projected = layer.map.weights(rows, mask) @ kernel_root
    return np.asarray(np.einsum("...r,...r->...", projected, projected))


def head_laws(
    layer: AttentionLayer, kernel: FloatArray, position: int, seed: int, head: int = 0
) -> tuple[ScaleMixture, ...]:
    """Return the law of αᵀKα for the attention weights α of a head at `position`, one law per replicate."""
    layer = of_head(layer, head)
    mask = layer.visible[position]
    kernel_root = psd_root(kernel[np.ix_(mask, mask)])
    root = row_root(layer, kernel, position)
    all_visible = np.ones(len(root), dtype=bool)
    means = mean_scores(layer, kernel)
    mean = means[0, position, mask]
    if root.shape[1] == 0:
        only = row_variance(layer, kernel_root, mean[None], all_visible)
        return (condense(only, np.ones(1)),) * REPLICATES

    def variance(scores: FloatArray) -> FloatArray:
        parts = slices(len(scores), _BLOCK // len(root))
        return np.concatenate([row_variance(layer, kernel_root, scores[part] + mean, all_visible) for part in parts])

    pilot, *streams = np.random.SeedSequence([seed, position]).spawn(1 + REPLICATES)
    proposals = enlarged(root.shape[1])
    if isinstance(layer.map, Softmax):
        normals = np.random.default_rng(pilot).standard_normal((_PILOT, root.shape[1]))
        proposals = towards_keys(root, variance, float(variance(normals @ root.T).mean()))

    def replicate(stream: np.random.SeedSequence) -> ScaleMixture:
        points = _points(proposals, root.shape[1], np.random.default_rng(stream))
        return condense(variance(points @ root.T), weigh(proposals, points))

    return tuple(replicate(stream) for stream in streams)


def chi_square_law(layer: AttentionLayer, kernel: FloatArray, position: int) -> ScaleMixture | None:
    """Return the law of Σ_a α_aᵀKα_a, a sum over heads with attention weights α_a, or None if it is no multiple of χ².

    For linear attention αᵀKα = zᵀ M z with r normals z. If all eigenvalues of M equal one m > 0, the sum is m χ²_{rH}.
    """
    root = row_root(layer, kernel, position)
    if layer.map != Linear() or layer.tied_query_key or has_offset(layer) or root.shape[1] == 0:
        return None
    mask = layer.visible[position]
    sizes = np.linalg.eigvalsh(root.T @ kernel[np.ix_(mask, mask)] @ root)
    if sizes[-1] - sizes[0] > _TOLERANCE * sizes[-1]:
        return None
    half = 0.5 * root.shape[1] * layer.num_heads
    steps = np.arange(-_LOG_CHI_RANGE / min(half, 1.0), _LOG_CHI_ABOVE, _LOG_CHI_STEP)
    logs = min(1.0, (_LOG_CHI_HALF / half) ** 0.5) * steps
    # Weights are relative to the weight of the mode; otherwise large exponents would cancel.
    weights = np.exp(half * (logs - np.expm1(logs)))
    used = weights > 1e-40
    return ScaleMixture(2.0 * half * sizes.mean() * np.exp(logs[used]), weights[used] / weights[used].sum(), 0.0)


def _points(proposals: tuple[Proposal, ...], dimension: int, rng: np.random.Generator) -> FloatArray:
    """Return the points of all proposals, (points, dimension).

    Each proposal gets a number of points in proportion to its share. All proposals transform the same normals.
    """
    count = max(_FEWEST_POINTS, min(_POINTS, 2 ** int(np.log2(_NORMALS // dimension or 1))))
    normals = normal_points(dimension, rng)(count)
    counts = [int(count * proposal.share / proposals[0].share) for proposal in proposals]
    parts = [proposal.place(normals[:n]) for proposal, n in zip(proposals, counts, strict=True)]
    return np.concatenate(parts)
