"""A subject's draws on one layer, with cached quantities that checks derive from them.

All visible scores of a head are whitened jointly if their covariance is not a Kronecker product. Given inputs and keys,
P_ij = ν^{-1/2} q^i · R_{j-i} k^j is Gaussian with covariance σ_Q² G_ik ⟨R_{j-i} k^j, R_{l-k} k^l⟩/ν, where R is the
rotation of rotary positions or the identity. Without rotation it is σ_Q² G_ik B_jl, with B the keys' Gram matrix, but
the entries that a window mask leaves visible are not a product of rows and columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray, IntArray, slices
from attncheck._lib.errors import InputError
from attncheck.checks.returned import EVERY_FIELD, validated
from attncheck.checks.whitening import (
    Residual,
    Spectrum,
    Whitener,
    bartlett_residual,
    factor_whitener,
    gram_factor,
    precision,
    spectrum,
    triangular,
)
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Draws
from attncheck.layers.parts.mask import nested
from attncheck.layers.parts.position_bias import mean_offset
from attncheck.layers.parts.rotary import rotated_by
from attncheck.layers.parts.scores import offset_covariance, one_covariance

# Maximum number of covariance entries that are in memory at a time.
_ENTRIES = 2**21


def whiten_jointly(
    layer: AttentionLayer, scores: FloatArray, gram: FloatArray, keys: FloatArray, mask: BoolArray, eps: float
) -> tuple[Residual, Residual]:
    """Whiten all scores of a head at once, given inputs and keys.

    The second result holds, in the same shape, the whitened scores that W_Q = W_K would give. For s positions, `gram`
    (draws, s, s) is the inputs' Gram matrix, `mask` (s, s) marks the scores to whiten, and `eps` is the rounding unit.
    With rotary positions, `keys` holds the keys of each head before rotation, (draws, heads, s, head width). Without
    them, it holds the keys' Gram matrices, (draws, heads, s, s).
    """
    whitened, directions = np.zeros((2, *scores.shape))
    retained = np.zeros(scores.shape, dtype=bool)
    rows, columns = np.nonzero(mask)
    group_keys = keys[:, :: layer.group_size]
    scale = layer.query_std * layer.score_factor
    per_draw = group_keys.shape[1] * len(rows) * (4 * len(rows) + 2 * group_keys.shape[-1])
    added = offset_covariance(layer, rows, columns) / scale**2
    products = _plain_products if layer.rotary_base is None else _rotated_products
    for part in slices(len(scores), _ENTRIES // per_draw):
        covariance, tied = products(layer, group_keys[part], rows, columns)
        covariance = covariance * gram[part][:, None][..., rows[:, None], rows] + added
        whitener = triangular(covariance, eps)
        root = np.repeat(whitener.inverse_root.swapaxes(-1, -2), layer.group_size, axis=1)
        tied = np.repeat(tied, layer.group_size, axis=1)
        whitened[part][:, :, rows, columns] = (root @ (scores[part][:, :, rows, columns] / scale)[..., None])[..., 0]
        directions[part][:, :, rows, columns] = (root @ tied[..., None])[..., 0]
        retained[part][:, :, rows, columns] = np.repeat(whitener.kept, layer.group_size, axis=1)
    return Residual(whitened, retained), Residual(directions, retained)


def _plain_products(
    layer: AttentionLayer, grams: FloatArray, rows: IntArray, columns: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return two arrays of products of keys, divided by the head width ν.

    `rows` and `columns` are the positions i and j of each visible score (i, j), and k^j is the key at position j. The
    first array holds ⟨k^j, k^m⟩/ν for each pair of visible scores (i, j) and (l, m), the second one ⟨k^i, k^j⟩/ν for
    each visible score.
    """
    return grams[:, :, columns[:, None], columns], grams[:, :, rows, columns]


def _rotated_products(
    layer: AttentionLayer, keys: FloatArray, rows: IntArray, columns: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return the products of `_plain_products` with rotated keys.

    R_{j-i} k^j replaces k^j, and R_{m-l} k^m replaces k^m, where R_t rotates by t positions. The key k^i is not
    rotated.
    """
    rotated = rotated_by(layer, keys[:, :, columns], columns - rows)
    covariance = rotated @ rotated.swapaxes(-1, -2) / layer.head_width
    return covariance, (rotated * keys[:, :, rows]).sum(axis=-1) / layer.head_width


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Arrays that a subject exposes for independent draws of a layer; shapes as in `attncheck.Draws`.

    Fields that the subject does not expose are None. Derived quantities are cached. `calls` are the numbers of draws
    per call of the subject.
    """

    layer: AttentionLayer
    outputs: FloatArray
    scores: FloatArray | None = None
    inputs: FloatArray | None = None
    input_gram: FloatArray | None = None
    key_gram: FloatArray | None = None
    value_gram: FloatArray | None = None
    keys: FloatArray | None = None
    attention: FloatArray | None = None
    calls: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.calls:
            object.__setattr__(self, "calls", (len(self.outputs),))

    @property
    def case(self) -> AttentionLayer:
        """The layer; programs' samples have a field of this name too."""
        return self.layer

    @classmethod
    def from_mapping(cls, layer: AttentionLayer, arrays: Mapping[str, Any], size: int) -> Sample:
        """Validate the arrays returned by a subject.

        Masked scores become −inf if they are placeholders: one constant, or only values below −1,000 times a
        typical score, such as −1e9 or P − 1e4.

        Parameters
        ----------
        layer : AttentionLayer
        arrays : mapping of str to array_like
            Arrays by name, at least ``outputs``.
        size : int
            Requested number of draws.

        Raises
        ------
        InputError
            For unknown names, wrong shapes, values that are not finite or exceed 1e100, or invalid Gram matrices;
            −inf is accepted for masked scores.
        """
        return cls(layer, **validated(layer, arrays, size))

    def __len__(self) -> int:
        return len(self.outputs)

    def __getitem__(self, part: slice) -> Sample:
        """Return consecutive draws as a new sample."""
        return Sample(self.layer, **{name: value[part] for name, value in self.arrays.items()})

    def joined(self, others: Sequence[Sample]) -> Sample:
        """Return one sample of the draws of this sample and of others that expose the same arrays."""
        parts = (self, *others)
        arrays: dict[str, Any] = {name: np.concatenate([part.need(name) for part in parts]) for name in self.arrays}
        return Sample(self.layer, **arrays, calls=sum((part.calls for part in parts), ()))

    def blocks(self, size: int) -> Sequence[Sample]:
        """Return disjoint blocks of `size` draws as samples, dropping the remainder."""
        if size not in self._blocks:
            stop = len(self) // size * size
            self._blocks[size] = [self[start : start + size] for start in range(0, stop, size)]
        return self._blocks[size]

    @cached_property
    def _blocks(self) -> dict[int, Sequence[Sample]]:
        return {}

    @property
    def coordinates(self) -> int:
        """The number of returned neurons."""
        return int(self.outputs.shape[-1])

    @property
    def arrays(self) -> dict[str, Any]:
        """The exposed arrays by name."""
        return {name: value for name in EVERY_FIELD if (value := getattr(self, name)) is not None}

    @property
    def exposed(self) -> frozenset[str]:
        """Names of the exposed arrays, with "masked scores" if scores are finite at masked positions too."""
        names = set(self.arrays)
        if self.scores is not None and np.isfinite(self.scores).all():
            names.add("masked scores")
        return frozenset(names)

    def need(self, name: str) -> FloatArray:
        """Return an exposed array, or raise `InputError` if it is missing."""
        value: FloatArray | None = getattr(self, name)
        if value is None:
            raise InputError(f"{name}: is not exposed by the subject; return it, or leave out the checks that need it")
        return value

    @cached_property
    def rounding(self) -> float:
        """The coarsest rounding unit among the exposed arrays."""
        return max(map(precision, self.arrays.values()))

    @cached_property
    def weights(self) -> FloatArray:
        """Attention weights, (draws, heads, positions, positions)."""
        return self.need("attention") if self.scores is None else self.layer.attention_weights(self.scores)

    @cached_property
    def told_scores(self) -> FloatArray:
        """The returned scores, or attention weights if the subject returns no scores; masked entries are 0.

        The shape is (draws, heads, positions, positions).
        """
        scores = self.need("attention") if self.scores is None else self.scores
        return np.where(self.layer.visible, scores, 0.0)

    @property
    def centred_scores(self) -> FloatArray:
        """Scores minus the mean of the biases added to them, (draws, heads, positions, positions)."""
        scores, mean = self.need("scores"), mean_offset(self.layer)
        return scores - mean if mean.any() else scores

    @cached_property
    def _inputs_spectrum(self) -> Spectrum:
        return spectrum(self.need("input_gram"), self.rounding)

    @cached_property
    def whitened_scores(self) -> Residual:
        """Whitened scores, i.i.d. N(0, 1) given inputs and keys, (draws, heads, positions, positions).

        They are the solution N of P = σ_Q F N Bᵀ, where P are the scores, F Fᵀ is the Gram matrix of the inputs, and B
        Bᵀ that of the keys. If masked scores are hidden, only visible entries are retained. Rotary layers, and masks
        other than the causal one that hide scores, are described in the docstring of ``attncheck.checks.sample``.
        """
        if self._whitens_jointly:
            return self._jointly_whitened[0]
        scale = self.layer.query_std * self.layer.score_factor
        return self._whiten_scores(self.centred_scores / scale)

    @cached_property
    def tied_direction(self) -> Residual:
        """The whitened scores that the layer would have with W_Q = W_K, a function of inputs and keys alone."""
        if self._whitens_jointly:
            return self._jointly_whitened[1]
        return self._whiten_scores(self.need("key_gram"))

    @cached_property
    def _whitens_jointly(self) -> bool:
        return whitens_jointly(self.layer, self.exposed)

    @cached_property
    def _jointly_whitened(self) -> tuple[Residual, Residual]:
        mask = self.layer.visible if self._hidden else np.ones((self.layer.seq_len,) * 2, dtype=bool)
        keys = self.need("key_gram" if self.layer.rotary_base is None else "keys")
        return whiten_jointly(self.layer, self.centred_scores, self.need("input_gram"), keys, mask, self.rounding)

    def _whiten_scores(self, matrices: FloatArray) -> Residual:
        """Whiten matrices of the shape of the scores by rows and columns."""
        mask = self.layer.visible if self._hidden else np.True_
        rows, columns = self._row_whitener, self._column_whitener
        values = rows.inverse_root.swapaxes(-1, -2) @ np.where(mask, matrices, 0.0) @ columns.inverse_root
        return Residual(values, rows.kept[..., :, None] & columns.kept[..., None, :] & mask)

    # If masked scores are hidden, solve P = σ_Q U N Lᵀ for N with triangular roots of the Gram matrices: an upper one U
    # for the inputs, and a lower one L for the keys. P_ij then depends only on N_kl with k ≥ i and l ≤ j, so the
    # visible part of P depends only on the visible part of N.
    @cached_property
    def _row_whitener(self) -> Whitener:
        if not self._hidden:
            return self._inputs_spectrum.spread(1)
        whitener = triangular(self.need("input_gram")[:, ::-1, ::-1], self.rounding)
        return Whitener(whitener.inverse_root[:, ::-1, ::-1], whitener.kept[:, ::-1]).spread(1)

    @cached_property
    def _column_whitener(self) -> Whitener:
        keys = self.need("key_gram")
        return triangular(keys, self.rounding) if self._hidden else spectrum(keys, self.rounding)

    @cached_property
    def _hidden(self) -> bool:
        """Whether the subject hides masked scores, by returning −inf or placeholders for them."""
        return "masked scores" not in self.exposed

    @cached_property
    def input_whitened_scores(self) -> Residual:
        """Scores whitened by the inputs only, (draws, heads, positions, positions).

        Their law depends only on the rank of the inputs and the head width.
        """
        scale = self.layer.query_std * self.layer.key_std * self.layer.score_factor
        side = self._inputs_spectrum.spread(1)
        values = side.inverse_root.swapaxes(-1, -2) @ (self.centred_scores / scale) @ side.inverse_root
        return Residual(values, side.kept[..., :, None] & side.kept[..., None, :])

    @cached_property
    def key_factors(self) -> Residual:
        """Bartlett factors of the key Grams as standard normals, (draws, kv_heads, positions, positions)."""
        return self._factors("key")

    @cached_property
    def value_factors(self) -> Residual:
        """Bartlett factors of the value Grams as standard normals, (draws, kv_heads, positions, positions)."""
        return self._factors("value")

    def _whitened_grams(self, name: str) -> FloatArray:
        side = self._inputs_spectrum.spread(1).inverse_root
        one_per_group = self.need(f"{name}_gram")[:, :: self.layer.group_size]
        factor: float = self.layer.head_width / getattr(self.layer, f"{name}_std") ** 2
        return factor * (side.swapaxes(-1, -2) @ one_per_group @ side)

    def _factors(self, name: str) -> Residual:
        side, grams = self._inputs_spectrum, self._whitened_grams(name)
        retained = np.broadcast_to(side.kept[:, None], grams.shape[:-1])
        return bartlett_residual(grams, retained, self.layer.head_width, self.rounding * side.condition)

    def gram_energy(self, name: str) -> tuple[FloatArray, FloatArray]:
        """Return the sum of squares of whitened keys or values, and its number of degrees of freedom.

        The sum is ν times the trace of the whitened Gram matrix, with ν the head width. Both arrays are (draws, groups
        of heads). `name` is "key" or "value".
        """
        # A matrix that is not a Gram matrix of these inputs may have a negative energy.
        energy = np.maximum(np.trace(self._whitened_grams(name), axis1=-2, axis2=-1), 0.0)
        rank = self._inputs_spectrum.kept.sum(axis=-1)[:, None]
        return energy, np.broadcast_to(rank * float(self.layer.head_width), energy.shape)

    @cached_property
    def output_factor(self) -> FloatArray:
        """Factor M of Σ_y = M Mᵀ, (draws, positions, heads·positions).

        Σ_y is the covariance of one neuron's outputs given scores and values.
        """
        blocks = self.weights @ gram_factor(self.need("value_gram"), self.rounding)
        size, heads, s, _ = blocks.shape
        scale = self.layer.output_std * self.layer.head_factor
        return scale * blocks.transpose(0, 2, 1, 3).reshape(size, s, heads * s)

    @cached_property
    def _output_whitener(self) -> Whitener:
        """Σ_y^{-1/2}, with Σ_y the covariance of one neuron's outputs given scores and values."""
        lengths = np.sqrt(np.diagonal(self.need("value_gram"), axis1=-2, axis2=-1))
        bounds = (np.abs(self.weights) @ lengths[..., None])[..., 0]
        longest = np.sqrt((bounds**2).sum(axis=1)).max(axis=-1)
        scale = self.layer.output_std * self.layer.head_factor * longest
        return factor_whitener(self.output_factor, scale, self.rounding)

    @cached_property
    def output_residual(self) -> Residual:
        """Outputs whitened given inputs, scores and values: i.i.d. N(0, 1), (draws, positions, neurons)."""
        return self._output_whitener.whiten(self.outputs)

    @cached_property
    def head_directions(self) -> Residual:
        """Contribution of each head's values to the whitened outputs, (draws, positions, heads·positions).

        This is W = Σ_y^{-1/2} M with M from `output_factor`. The rows of W that are not dropped as rounding errors are
        orthonormal. On these rows, the parts W_h W_hᵀ of the heads h add up to the identity.
        """
        return self._output_whitener.whiten(self.output_factor)

    @cached_property
    def shift_direction(self) -> FloatArray:
        """Direction that a constant added to the outputs has after whitening, (draws, positions, 1).

        It is Σ_y^{-1/2} times a vector of ones, with Σ_y as in `output_factor`.
        """
        shift: FloatArray = self._output_whitener.inverse_root.sum(axis=-2)[..., None]
        return shift

    @cached_property
    def variance_weights(self) -> FloatArray:
        """Weights λ of the conditional variance of outputs, (draws, positions, heads).

        Given inputs and scores, the variance of the output y_i at position i, conditional on the values too, has the
        law of Σ_h λ_ih χ²_ν/ν, with ν the head width. For a group of heads that share W_V, λ are the eigenvalues of the
        matrix of a_hᵀ G a_g over its heads h and g. Here a_h is row i of the attention weights of head h, and G is the
        inputs' Gram matrix.
        """
        layer, gram = self.layer, self.need("input_gram")
        scale = (layer.value_std * layer.output_std * layer.head_factor) ** 2
        rows = self.weights.transpose(0, 2, 1, 3)
        size, s = rows.shape[:2]
        grouped = rows.reshape(size, s, layer.kv_heads, layer.group_size, s)
        mixed = grouped @ gram[:, None, None] @ grouped.swapaxes(-1, -2)
        values = mixed[..., 0] if layer.group_size == 1 else np.linalg.eigvalsh(mixed)
        return scale * np.maximum(values.reshape(size, s, layer.num_heads), 0.0)


#: Draws of a layer by a method or by a subject.
Arrays = Draws | Sample


def whitens_jointly(layer: AttentionLayer, exposed: Collection[str]) -> bool:
    """Return whether all visible scores of a head are whitened at once, instead of by rows and by columns."""
    hidden = "masked scores" not in exposed
    return one_covariance(layer) or (hidden and not nested(layer.visible))
