"""Draws of one output coordinate or score, exactly in law at finite width, without matrices.

Let G = X Xᵀ/n = F Fᵀ be the Gram matrix of the inputs, and ν the neurons per head. The first row of a head's scores has
the law of σ_Q σ_K √(G_11 χ²_ν/ν) F N, with independent standard normals N. Given these rows, and so the attention
weights α_a of each head, y^1 is Gaussian with variance σ_V² σ_O² H^{-1} Σ_a (α_aᵀ G α_a) χ²_{ν,a}/ν. In the limit G is
the kernel K, and the χ²_ν/ν are 1.

Linear inputs are ‖h‖/√n times normals, so G is a Wishart matrix times χ²_n/n, and F comes from a Bartlett factor. The
paper's clip at 100 changes this with a probability below 1e-100. Other inputs are drawn in full, as s × n numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_draws, refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import visible
from attncheck.layers.kernel import input_covariance, input_kernel, psd_root
from attncheck.layers.requirements import linear
from attncheck.simulators.collapsed import draw_inputs
from attncheck.simulators.linalg import bartlett, gram_root
from attncheck.theory.limits.rows import score_std

# Normals per block: 1 MiB.
_BLOCK = 2**17


def generator(sequence: np.random.SeedSequence) -> np.random.Generator:
    """Return a task's random generator, SFC64, which draws normals in a sixth less time than the default."""
    return np.random.Generator(np.random.SFC64(sequence))


def draw_outputs(layer: AttentionLayer, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw one coordinate of y^1 at finite width, shape (size,); heads must be independent given G.

    Examples
    --------
    >>> draw_outputs(AttentionLayer(width=16), 3, np.random.default_rng(0)).shape
    (3,)
    """
    _refuse_groups(layer)
    factor = layer.query_std * layer.key_std * layer.score_factor

    def block(count: int) -> FloatArray:
        root = _root(layer, count, rng)
        first = np.einsum("br,br->b", root[:, 0], root[:, 0])[:, None]
        lengths = np.sqrt(first * _stretch(layer, (count, layer.num_heads), rng))
        return _outputs(layer, root, factor * lengths, _stretch(layer, lengths.shape, rng), rng)

    drawn = layer.seq_len if _normal_inputs(layer) else layer.width
    return _in_blocks(size, layer.seq_len * (drawn + layer.num_heads), block)


def draw_limit(layer: AttentionLayer, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw one coordinate of y^1 at infinite width; see `draw_outputs`.

    Examples
    --------
    >>> draw_limit(AttentionLayer(width=16), 3, np.random.default_rng(0)).shape
    (3,)
    """
    kernel = input_kernel(layer.inputs).matrix
    root = psd_root(kernel)

    def block(count: int) -> FloatArray:
        lengths = np.full((count, layer.num_heads), score_std(layer) * np.sqrt(kernel[0, 0]))
        return _outputs(layer, root[None], lengths, np.ones_like(lengths), rng)

    return _in_blocks(size, layer.seq_len * layer.num_heads, block)


def draw_scores(layer: AttentionLayer, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw the score p_11 of one head at finite width: σ_Q σ_K G_11 √(χ²_ν/ν) N; see `draw_outputs`.

    Examples
    --------
    >>> draw_scores(AttentionLayer(width=16), 3, np.random.default_rng(0)).shape
    (3,)
    """
    alone = layer.replace(seq_len=1)
    factor = layer.query_std * layer.key_std * layer.score_factor

    def block(count: int) -> FloatArray:
        first = _root(alone, count, rng)[:, 0]
        squares = np.einsum("br,br->b", first, first)
        lengths = np.sqrt(_stretch(layer, (count,), rng))
        return np.asarray(factor * squares * lengths * rng.standard_normal(count))

    return _in_blocks(size, 1 if _normal_inputs(alone) else layer.width, block)


#: Functions that draw at finite width, by quantity.
DRAWN = {"outputs": draw_outputs, "scores": draw_scores}


def _normal_inputs(layer: AttentionLayer) -> bool:
    """Return whether inputs are normal given ‖h‖."""
    return linear(layer) and not layer.position_std


def _root(layer: AttentionLayer, count: int, rng: np.random.Generator) -> FloatArray:
    """Draw F with F Fᵀ = G, shape (count, seq_len, r)."""
    n = layer.width
    if not _normal_inputs(layer):
        inputs = draw_inputs(layer, count, rng)
        return gram_root(inputs @ inputs.swapaxes(-1, -2) / n)
    lengths = np.sqrt(rng.chisquare(n, size=(count, 1, 1))) / n
    root = psd_root(input_covariance(layer.inputs))
    return np.asarray(lengths * (root @ bartlett(rng, (count,), root.shape[1], n)))


def _stretch(layer: AttentionLayer, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """Draw |W x|²/(ν |x|²), which has the law of χ²_ν/ν: W has ν rows of i.i.d. N(0, 1) entries."""
    return np.asarray(rng.chisquare(layer.head_width, size=shape) / layer.head_width)


def _outputs(
    layer: AttentionLayer, root: FloatArray, lengths: FloatArray, values: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Draw one coordinate of y^1 for a block of draws, (draws,).

    `root` is F, (draws or 1, seq_len, r); `lengths`, (draws, heads), multiply the scores F N; `values`, (draws,
    heads), are the χ²_ν/ν of the values.
    """
    normals = rng.standard_normal((*lengths.shape, root.shape[-1]))
    weights = layer.map.weights(lengths[..., None] * (normals @ root.swapaxes(-1, -2)), visible(layer)[0])
    projected = weights @ root
    variance = np.einsum("bhr,bhr,bh->b", projected, projected, values)
    factor = layer.value_std * layer.output_std * layer.head_factor
    return np.asarray(factor * np.sqrt(variance) * rng.standard_normal(len(variance)))


def _in_blocks(size: int, entries: int, block: Callable[[int], FloatArray]) -> FloatArray:
    """Return `size` draws, made in blocks to bound memory."""
    size = check_draws("size", size, 1, "pass the number of draws, e.g. size=1000")
    step = max(1, _BLOCK // entries)
    return np.concatenate([block(min(step, size - start)) for start in range(0, size, step)])


def _refuse_groups(layer: AttentionLayer) -> None:
    if layer.group_size > 1:
        remedy = "leave num_kv_heads out, or draw with attncheck.simulate"
        refuse("num_kv_heads", layer.num_kv_heads, "makes heads depend on each other", remedy)
