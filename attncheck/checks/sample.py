"""A subject's draws on one layer, with cached quantities that checks derive from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck._lib.errors import InputError, refuse
from attncheck.checks.turned import whiten_jointly
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
from attncheck.layers.attention_map import attention_weights, visible
from attncheck.layers.draws import Batch, Draws
from attncheck.layers.parts.mask import nested
from attncheck.layers.parts.scores import mean_offset, one_covariance

#: Fields that a subject may return; outputs are required.
FIELDS = ("outputs", "scores", "inputs", "input_gram", "key_gram", "value_gram")
#: Fields including the substitutes for key_gram and scores.
EVERY_FIELD = (*FIELDS, "keys", "attention")
#: Fields including those that only files may hold.
FILE_FIELDS = (*EVERY_FIELD, "score_entries")

# Names of the axes after the draws.
_AXES = {
    "outputs": "positions and neurons",
    "inputs": "positions and neurons, those of the outputs,",
    "scores": "heads and positions",
    "input_gram": "positions",
    "key_gram": "heads and positions",
    "value_gram": "heads and positions",
    "keys": "heads, positions and neurons of a head,",
    "attention": "heads and positions",
}
_GRAMS = ("input_gram", "key_gram", "value_gram")
#: Largest accepted magnitude; products of three such numbers do not overflow.
LARGEST = 1e100
# Tolerance for asymmetry and negative diagonals of Gram matrices, relative to the largest diagonal entry.
_ROUNDING = 1e-2
# Relative error of row sums and recomputed weights in half precision.
_HALF = 1e-2
# Limit beyond which a score is a placeholder, in units of a typical score. Even at width 1, where a score is a
# product of six normals, fewer than one in 1e8 lies below minus this limit; scores with a mask of -1e4 added do.
_FILLED = 1e3


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Arrays that a subject exposes for independent draws of a layer; shapes as in `attncheck.Draws`.

    Fields that the subject does not expose are None. If only single scores are known, ``score_entries`` maps (head, i,
    j) to arrays (draws,). Derived quantities are cached.
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
    score_entries: Mapping[tuple[int, int, int], FloatArray] | None = None

    @property
    def case(self) -> AttentionLayer:
        """The layer, under the name shared with programs."""
        return self.layer

    @classmethod
    def from_mapping(
        cls, layer: AttentionLayer, arrays: Mapping[str, Any], size: int, known: Sequence[str] = EVERY_FIELD
    ) -> Sample:
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
        known : sequence of str
            Allowed names.

        Raises
        ------
        InputError
            For unknown names, wrong shapes, values that are not finite or exceed 1e100, or invalid Gram matrices;
            −inf is accepted for masked scores.
        """
        if not isinstance(arrays, Mapping):
            remedy = "return its as_dict()" if isinstance(arrays, Batch) else "return {'outputs': ...}"
            refuse("subject", type(arrays).__name__, "must return a mapping of arrays", remedy)
        for name in arrays:
            if name not in known:
                refuse(f"subject[{name!r}]", "...", "is not a known field", "return some of " + ", ".join(EVERY_FIELD))
        given = {name: value for name, value in arrays.items() if value is not None}
        if "outputs" not in given:
            refuse("subject", sorted(given), "returned no outputs", "return {'outputs': array of (N, s, k)}")
        entries = given.pop("score_entries", None)
        found = {name: _as_array(name, value) for name, value in given.items()}
        coordinates = found["outputs"].shape[-1] if found["outputs"].ndim == 3 else 0
        if coordinates > layer.width:
            problem = f"has {coordinates} neurons, more than the width {layer.width}"
            refuse("subject['outputs'].shape", found["outputs"].shape, problem, "return fewer neurons")
        s, heads = layer.seq_len, layer.num_heads
        shapes = {
            "outputs": (size, s, coordinates),
            "inputs": (size, s, coordinates),
            "scores": (size, heads, s, s),
            "input_gram": (size, s, s),
            "key_gram": (size, heads, s, s),
            "value_gram": (size, heads, s, s),
            "keys": (size, heads, s, layer.head_width),
            "attention": (size, heads, s, s),
        }
        settled = {}
        for name, value in found.items():
            if value.shape != shapes[name] or 0 in value.shape:
                wanted = f"must be {shapes[name]}" if coordinates else f"must be ({size}, {s}, k) with k >= 1"
                remedy = "one row per draw" if value.shape[:1] != (size,) else f"{_AXES[name]} as in the layer"
                refuse(f"subject[{name!r}].shape", value.shape, wanted, f"{remedy}, see attncheck.Draws")
            with np.errstate(over="ignore"):  # a long double beyond float64 is rejected as infinite
                settled[name] = value.astype(np.float64)
            _check_values(layer, name, settled[name])
        return cls(layer, **with_scores(layer, with_keys(layer, settled)), score_entries=entries)

    def __len__(self) -> int:
        return len(self.outputs)

    def __getitem__(self, part: slice) -> Sample:
        """Return consecutive draws as a new sample."""
        return Sample(self.layer, **{name: value[part] for name, value in self.arrays.items()})

    def blocks(self, size: int) -> Sequence[Sample]:
        """Return disjoint blocks of `size` draws as samples, dropping the remainder."""
        if size not in self._blocks:
            whole = len(self) // size * size
            self._blocks[size] = [self[start : start + size] for start in range(0, whole, size)]
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
        """Names of the exposed arrays, with "masked scores" if scores behind the mask are finite too."""
        names = set(self.arrays)
        if self.scores is not None and np.isfinite(self.scores).all():
            names.add("masked scores")
        if self.score_entries is not None:
            names.add("score entries")
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
        return weights_of(self.layer, self)

    @cached_property
    def told_scores(self) -> FloatArray:
        """Scores, or attention weights if scores are not exposed; 0 if masked, (draws, heads, positions, positions)."""
        scores = self.need("attention") if self.scores is None else self.scores
        return np.where(visible(self.layer), scores, 0.0)

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

        They solve P = σ_Q F N Bᵀ for N, with F Fᵀ the Gram matrix of the inputs and B Bᵀ that of the keys. If masked
        scores are hidden, only visible entries are kept. Rotary layers, and masks other than the causal one that hide
        scores, need ``attncheck.checks.turned``.
        """
        if self._whitens_jointly:
            return self._jointly_whitened[0]
        scale = self.layer.query_std * self.layer.score_factor
        return self._whiten_scores(self.centred_scores / scale)

    @cached_property
    def tied_direction(self) -> Residual:
        """The whitened scores under W_Q = W_K, a function of inputs and keys alone."""
        if self._whitens_jointly:
            return self._jointly_whitened[1]
        return self._whiten_scores(self.need("key_gram"))

    @cached_property
    def _whitens_jointly(self) -> bool:
        return whitens_jointly(self.layer, self.exposed)

    @cached_property
    def _jointly_whitened(self) -> tuple[Residual, Residual]:
        seen = visible(self.layer) if self._hidden else np.ones((self.layer.seq_len,) * 2, dtype=bool)
        keys = self.need("key_gram" if self.layer.rotary_base is None else "keys")
        return whiten_jointly(self.layer, self.centred_scores, self.need("input_gram"), keys, seen, self.rounding)

    def _whiten_scores(self, matrices: FloatArray) -> Residual:
        """Whiten matrices of the shape of the scores by rows and columns."""
        seen = visible(self.layer) if self._hidden else np.True_
        left, right = self._row_whitener, self._column_whitener
        values = left.inverse_root.swapaxes(-1, -2) @ np.where(seen, matrices, 0.0) @ right.inverse_root
        return Residual(values, left.kept[..., :, None] & right.kept[..., None, :] & seen)

    # If masked scores are hidden, use triangular roots in P = σ_Q U N Lᵀ: U of the inputs, starting from the last
    # position, and L of the keys, from the first. P_ij then depends on N_kl with k ≥ i and l ≤ j only, so the visible
    # part of P depends on the visible part of N.
    @cached_property
    def _row_whitener(self) -> Whitener:
        if not self._hidden:
            return self._inputs_spectrum.spread(1)
        turned = triangular(self.need("input_gram")[:, ::-1, ::-1], self.rounding)
        return Whitener(turned.inverse_root[:, ::-1, ::-1], turned.kept[:, ::-1]).spread(1)

    @cached_property
    def _column_whitener(self) -> Whitener:
        keys = self.need("key_gram")
        return triangular(keys, self.rounding) if self._hidden else spectrum(keys, self.rounding)

    @cached_property
    def _hidden(self) -> bool:
        """Whether the subject hides masked scores."""
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
        kept = np.broadcast_to(side.kept[:, None], grams.shape[:-1])
        return bartlett_residual(grams, kept, self.layer.head_width, self.rounding * side.condition)

    def gram_energy(self, name: str) -> tuple[FloatArray, FloatArray]:
        """Return ν tr(whitened Gram) of keys or values and its degrees of freedom, per draw and group of heads."""
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
        rows = (np.abs(self.weights) @ lengths[..., None])[..., 0]
        longest = np.sqrt((rows**2).sum(axis=1)).max(axis=-1)
        scale = self.layer.output_std * self.layer.head_factor * longest
        return factor_whitener(self.output_factor, scale, self.rounding)

    @cached_property
    def output_residual(self) -> Residual:
        """Outputs whitened given inputs, scores and values: i.i.d. N(0, 1), (draws, positions, neurons)."""
        return self._output_whitener.whiten(self.outputs)

    @cached_property
    def head_directions(self) -> Residual:
        """Contribution of each head's values to the whitened outputs, (draws, positions, heads·positions).

        This is W = Σ_y^{-1/2} M with M from `output_factor`. Kept rows are orthonormal, so the heads' parts W_h W_hᵀ
        add up to the identity.
        """
        return self._output_whitener.whiten(self.output_factor)

    @cached_property
    def shift_direction(self) -> FloatArray:
        """Direction Σ_y^{-1/2} 1 of a constant added to the outputs, after whitening, (draws, positions, 1)."""
        shift: FloatArray = self._output_whitener.inverse_root.sum(axis=-2)[..., None]
        return shift

    @cached_property
    def variance_weights(self) -> FloatArray:
        """Weights λ of the conditional variance of outputs, (draws, positions, heads).

        Given inputs and scores, Var(y_i | inputs, scores, values) has the law of Σ_h λ_ih χ²_ν/ν. For a group of heads
        that share W_V, λ are the eigenvalues of the matrix of a_hᵀ G a_g over its heads h and g, where a_h is row i of
        the attention weights of head h.
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


def weights_of(layer: AttentionLayer, arrays: Arrays, heads: slice = slice(None)) -> FloatArray:
    """Return the attention weights (draws, heads, positions, positions), from the scores if these are exposed."""
    if arrays.scores is not None:
        return attention_weights(layer, arrays.scores[:, heads])
    assert arrays.attention is not None
    return arrays.attention[:, heads]


def whitens_jointly(layer: AttentionLayer, exposed: Collection[str]) -> bool:
    """Return whether all visible scores of a head are whitened at once, not by rows and columns."""
    hidden = "masked scores" not in exposed
    return one_covariance(layer) or (hidden and not nested(visible(layer)))


def with_scores(layer: AttentionLayer, given: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Return arrays with scores in place of attention weights, for linear and sigmoid attention.

    Softmax determines scores only up to a constant per row, and relu only positive ones, so those weights stay.

    Raises
    ------
    InputError
        For weights that do not fit the layer: nonzero behind the mask, softmax rows that do not add up to 1, or
        weights that disagree with given scores.

    Examples
    --------
    >>> layer = AttentionLayer(width=4, seq_len=2, num_heads=1, attention_map="sigmoid", mask="causal")
    >>> with_scores(layer, {"attention": np.array([[[[0.5, 0.0], [0.2, 0.5]]]])})["scores"].round(3)
    array([[[[ 0.693,   -inf],
             [-0.693,  0.693]]]])
    """
    if "attention" not in given:
        return given
    weights, seen = given["attention"], visible(layer)
    others = {name: value for name, value in given.items() if name != "attention"}
    remedy = f"return the weights of {layer.describe()!r}, before any dropout"
    _refuse_unless(not (weights[..., ~seen] != 0.0).any(), weights, "is not 0 behind the mask", remedy)
    if "scores" in given:
        off = np.abs(attention_weights(layer, given["scores"]) - weights).max()
        close = off <= _HALF * max(1.0, float(np.abs(weights).max()))
        _refuse_unless(
            bool(close), off, "is the largest difference from the weights computed from the given scores", remedy
        )
        return others
    scores = layer.map.scores_of(weights, seen)
    if scores is not None:
        return {**others, "scores": np.where(seen, scores, -np.inf)}
    if layer.map.traits.positive:
        _refuse_unless(not (weights < 0.0).any(), float(weights.min()), "is below 0", remedy)
    if layer.map.traits.sums_to_one:
        off = np.abs(weights.sum(axis=-1) - 1.0).max()
        _refuse_unless(bool(off <= _HALF), off, "is the largest error of row sums, which must be 1", remedy)
    return given


def with_keys(layer: AttentionLayer, given: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Return arrays with the key Grams computed from keys, keeping keys only for rotary layers."""
    if "keys" not in given:
        return given
    keys = given["keys"]
    gram = keys @ keys.swapaxes(-1, -2) / layer.head_width
    told = given.get("key_gram", gram)
    if np.abs(told - gram).max() > _HALF * np.abs(gram).max():
        refuse("subject['key_gram']", "...", "differs from K Kᵀ/ν of the given keys", "return keys alone")
    kept = {name: value for name, value in given.items() if name != "keys" or layer.rotary_base is not None}
    return {**kept, "key_gram": told}


def _refuse_unless(right: bool, value: object, problem: str, remedy: str) -> None:
    if not right:
        refuse("subject['attention']", value, problem, remedy)


def _as_array(name: str, value: Any) -> NDArray[Any]:
    """Return the value as a floating-point array, without a copy because its shape is not yet checked."""
    if np.ma.is_masked(value):
        refuse(f"subject[{name!r}]", "...", "is an array with masked entries", "return a plain array of numbers")
    try:
        array = np.asarray(value)
    except Exception as error:  # other libraries' tensors may raise anything
        problem = " ".join(f"is not an array ({error})".split())
        raise InputError(f"subject[{name!r}]: {problem}; return a numeric array") from None
    if array.dtype.kind != "f":
        refuse(f"subject[{name!r}].dtype", str(array.dtype), "must be floating-point numbers", "return a float array")
    return array


def _check_values(layer: AttentionLayer, name: str, value: FloatArray) -> None:
    """Reject invalid numbers, and set placeholders in masked scores to −inf in place."""
    hidden = ~visible(layer) if name == "scores" else np.zeros((), dtype=bool)
    if hidden.any() and _filled(layer, value, hidden):
        value[..., hidden] = -np.inf
    if not (np.abs(value) <= LARGEST).all():
        finite = np.isfinite(value)
        _refuse_where(~(finite | (np.isneginf(value) & hidden)), name, value, "is not finite")
        _refuse_where(finite & (np.abs(value) > LARGEST), name, value, f"is beyond {LARGEST:g}")
    if name in _GRAMS:
        _check_gram(name, value)


def _filled(layer: AttentionLayer, scores: FloatArray, hidden: BoolArray) -> bool:
    """Return whether masked entries hold placeholders: far too low, or all the same number."""
    behind = scores[..., hidden]
    clipped = layer.activation == "clip" and not layer.norm
    reach = min(layer.inputs.hidden_std, layer.clip) if clipped else layer.inputs.scale
    typical = layer.query_std * layer.key_std * layer.score_factor * reach**2
    if (behind < -_FILLED * max(1.0, typical)).all():
        return True
    if len(scores) == 1 or np.isposinf(behind.flat[0]) or not (behind == behind.flat[0]).all():
        return False
    if behind.flat[0] != 0.0:
        return True
    # A zero input makes zero scores, including its score with itself, which is never masked.
    nonzero = np.diagonal(scores, axis1=-2, axis2=-1) != 0.0
    return bool((nonzero[..., :, None] & nonzero[..., None, :] & hidden).any())


def _check_gram(name: str, grams: FloatArray) -> None:
    """Reject matrices that are not Gram matrices up to rounding."""
    diagonal = np.diagonal(grams, axis1=-2, axis2=-1)
    rounding = _ROUNDING * np.abs(diagonal).max(axis=-1)[..., None, None]
    if (diagonal < 0.0).any():
        lower = np.eye(grams.shape[-1], dtype=bool) & (grams < -rounding)
        _refuse_where(lower, name, grams, "is a negative number on the diagonal of a Gram matrix")
    mirrored = grams.swapaxes(-1, -2)
    if not (grams == mirrored).all():
        _refuse_where(
            np.abs(grams - mirrored) > rounding, name, grams, "differs from its mirror image in the Gram matrix"
        )


def _refuse_where(bad: BoolArray, name: str, value: FloatArray, problem: str) -> None:
    if bad.any():
        where = tuple(int(k) for k in np.argwhere(bad)[0])
        refuse(f"subject[{name!r}]{list(where)}", float(value[where]), problem, "mend the simulator")
