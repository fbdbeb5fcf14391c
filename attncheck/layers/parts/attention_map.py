"""Attention maps: weights from rows of scores."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck._lib.errors import refuse
from attncheck.layers.parts import named_function

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer


# Rows of scores with fewer entries than this are reduced column by column, which is faster.
_SHORT = 8
# Number of positions and of rows of the scores on which a user's map is tried, and relative tolerance of the results.
_TRIED, _ROWS, _TOLERANCE = 5, 8, 1e-9


@dataclasses.dataclass(frozen=True)
class Traits:
    """Mathematical properties of an attention map.

    Attributes
    ----------
    sums_to_one : bool
        Whether the weights of a row are probabilities.
    shift_invariant : bool
        Whether a constant added to a row of scores changes nothing.
    bounded : bool
        Whether weights are bounded.
    homogeneous : bool
        Whether A(c P) = c A(P) for c > 0.
    positive : bool
        Whether weights are at least 0.
    may_vanish : bool
        Whether all weights of a row can be exactly 0.
    may_jump : bool
        Whether weights may be discontinuous.
    """

    sums_to_one: bool = False
    shift_invariant: bool = False
    bounded: bool = False
    homogeneous: bool = False
    positive: bool = False
    may_vanish: bool = False
    may_jump: bool = False


class AttentionMap(abc.ABC):
    """Weights A from rows of scores P."""

    @property
    @abc.abstractmethod
    def traits(self) -> Traits:
        """The map's mathematical properties."""

    @abc.abstractmethod
    def weights(self, scores: FloatArray, mask: BoolArray) -> FloatArray:
        """Return weights (..., s) for scores (..., s), 0 where `mask` is False."""

    @abc.abstractmethod
    def slopes(self, scores: FloatArray, mask: BoolArray, values: FloatArray) -> FloatArray:
        """Return the derivatives of Σ_j A_rj u_j with respect to the scores P_rl, in an array (..., s, s).

        A are the weights of the scores P, and `values`, (..., s), are u. The last axes are r and l.
        """

    def scores_of(self, weights: FloatArray, mask: BoolArray) -> FloatArray | None:
        """Return visible scores from weights, or None if weights do not determine them."""
        return None


@dataclasses.dataclass(frozen=True)
class Softmax(AttentionMap):
    """Row-wise softmax, with exp(`sink`) added to the denominator unless `sink` is None.

    With one sink per head, scores are (..., H, rows, s).
    """

    sink: float | tuple[float, ...] | None = None

    @property
    def traits(self) -> Traits:
        """The map's mathematical properties."""
        return Traits(sums_to_one=self.sink is None, shift_invariant=self.sink is None, bounded=True, positive=True)

    def weights(self, scores: FloatArray, mask: BoolArray) -> FloatArray:
        """Return weights for scores (..., s)."""
        shifted = np.where(mask, scores, -np.inf)
        largest = _over_rows(np.maximum, shifted)
        if self.sink is None:
            shifted -= largest
            np.exp(shifted, out=shifted)
            shifted /= _over_rows(np.add, shifted)
            return shifted
        sink = np.reshape(self.sink, (-1, 1, 1)) if isinstance(self.sink, tuple) else self.sink
        largest = np.maximum(largest, sink)
        shifted = np.exp(shifted - largest)
        return np.asarray(shifted / (_over_rows(np.add, shifted) + np.exp(sink - largest)))

    def slopes(self, scores: FloatArray, mask: BoolArray, values: FloatArray) -> FloatArray:
        """Return the derivatives of Σ_j A_rj u_j with respect to P_rl, which are A_rl (u_l - Σ_j A_rj u_j)."""
        weights = self.weights(scores, mask)
        return np.asarray(weights * (values[..., None, :] - weights @ values[..., None]))


class _Elementwise(AttentionMap):
    """Attention map that acts on each score separately."""

    @abc.abstractmethod
    def of(self, scores: FloatArray) -> FloatArray:
        """Return the weights of `scores`, before masking."""

    @abc.abstractmethod
    def slope(self, scores: FloatArray) -> FloatArray:
        """Return the derivative of each weight with respect to its score."""

    def weights(self, scores: FloatArray, mask: BoolArray) -> FloatArray:
        """Return weights for scores (..., s)."""
        return np.where(mask, self.of(scores), 0.0)

    def slopes(self, scores: FloatArray, mask: BoolArray, values: FloatArray) -> FloatArray:
        """Return the derivatives of Σ_j A_rj u_j with respect to the scores P_rl, for weights A and values u."""
        return np.where(mask, self.slope(scores), 0.0) * values[..., None, :]


@dataclasses.dataclass(frozen=True)
class Linear(_Elementwise):
    """Linear attention, whose weights are the scores."""

    traits = Traits(homogeneous=True)

    def of(self, scores: FloatArray) -> FloatArray:
        """Return the weights of `scores`, before masking."""
        return scores

    def slope(self, scores: FloatArray) -> FloatArray:
        """Return the derivative of each weight with respect to its score."""
        return np.ones_like(scores)

    def scores_of(self, weights: FloatArray, mask: BoolArray) -> FloatArray:
        """Return visible scores from weights."""
        return weights


@dataclasses.dataclass(frozen=True)
class Relu(_Elementwise):
    """ReLU attention, with weights max(p, 0)/s for scores p and s positions."""

    seq_len: int
    traits = Traits(homogeneous=True, positive=True, may_vanish=True)

    def of(self, scores: FloatArray) -> FloatArray:
        """Return the weights of `scores`, before masking."""
        return np.asarray(np.maximum(scores, 0.0) / self.seq_len)

    def slope(self, scores: FloatArray) -> FloatArray:
        """Return the derivative of each weight with respect to its score: 1/s if the score is positive, else 0."""
        return np.asarray((scores > 0.0) / self.seq_len)


@dataclasses.dataclass(frozen=True)
class Sigmoid(_Elementwise):
    """Sigmoid attention, with weights 1/(1 + exp(-p + log s)) for scores p and s positions."""

    seq_len: int
    traits = Traits(bounded=True, positive=True)

    def of(self, scores: FloatArray) -> FloatArray:
        """Return the weights of `scores`, before masking."""
        return np.asarray(special.expit(scores - np.log(self.seq_len)))

    def slope(self, scores: FloatArray) -> FloatArray:
        """Return the derivative of each weight with respect to its score."""
        weights = self.of(scores)
        return np.asarray(weights * (1.0 - weights))

    def scores_of(self, weights: FloatArray, mask: BoolArray) -> FloatArray:
        """Return visible scores from weights."""
        if not ((weights[..., mask] > 0) & (weights[..., mask] < 1)).all():
            refuse(
                "subject['attention']", weights, "contains values outside (0, 1)", "return the sigmoid of the scores"
            )
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(weights) - np.log1p(-weights) + np.log(self.seq_len))


@dataclasses.dataclass(frozen=True)
class Softcapped(AttentionMap):
    """Attention map of the capped scores c tanh(P/c)."""

    inner: AttentionMap
    cap: float

    @property
    def traits(self) -> Traits:
        """The map's mathematical properties."""
        return dataclasses.replace(self.inner.traits, shift_invariant=False, homogeneous=False, bounded=True)

    def weights(self, scores: FloatArray, mask: BoolArray) -> FloatArray:
        """Return weights for scores (..., s)."""
        return self.inner.weights(self._capped(scores), mask)

    def slopes(self, scores: FloatArray, mask: BoolArray, values: FloatArray) -> FloatArray:
        """Return the derivatives of Σ_j A_rj u_j with respect to the scores P_rl, for weights A and values u."""
        capped = self._capped(scores)
        return self.inner.slopes(capped, mask, values) * (1.0 - (capped / self.cap) ** 2)

    def _capped(self, scores: FloatArray) -> FloatArray:
        return np.asarray(self.cap * np.tanh(scores / self.cap))


@dataclasses.dataclass(frozen=True)
class DeclaredMap(AttentionMap):
    """A user's function of (scores, visible); its `Traits` are unknown, so the least favourable ones are assumed."""

    function: Callable[[FloatArray, BoolArray], Any]
    name: str
    traits = Traits(may_vanish=True, may_jump=True)

    def weights(self, scores: FloatArray, mask: BoolArray) -> FloatArray:
        """Return weights for scores (..., s)."""
        shown_mask = np.broadcast_to(mask, scores.shape)
        result = np.where(
            shown_mask, np.asarray(self.function(np.where(shown_mask, scores, 0.0), shown_mask), dtype=np.float64), 0.0
        )
        if not np.isfinite(result).all():
            refuse("attention_map", self.name, "gave weights that are not finite", "make them finite for all scores")
        return result

    def slopes(self, scores: FloatArray, mask: BoolArray, values: FloatArray) -> FloatArray:
        """Return the derivatives of Σ_j A_rj u_j with respect to the scores P_rl, for weights A and values u."""
        refuse("attention_map", self.name, "has no declared derivative", "use a map of attncheck for tangent kernels")


_PLAIN: Mapping[str, Callable[[int], AttentionMap]] = {
    "softmax": lambda seq_len: Softmax(),
    "linear": lambda seq_len: Linear(),
    "relu": Relu,
    "sigmoid": Sigmoid,
}
#: Names of attncheck's maps.
ATTENTION_MAPS: tuple[str, ...] = tuple(_PLAIN)


def map_of(layer: AttentionLayer) -> AttentionMap:
    """Return the attention map of a layer, with its sink and cap.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> map_of(AttentionLayer(width=8, attention_map="relu", softcap=5.0))
    Softcapped(inner=Relu(seq_len=4), cap=5.0)
    """
    name = layer.attention_map
    if layer.sink is not None:
        plain: AttentionMap = Softmax(layer.sink)
    elif name in _PLAIN:
        plain = _PLAIN[str(name)](layer.seq_len)
    else:
        function = named_function.resolve("attention_map", name)
        if isinstance(name, str):  # other functions were tried when the layer was validated
            _try_map(function)
        plain = DeclaredMap(function, named_function.label(name))
    return plain if layer.softcap is None else Softcapped(plain, layer.softcap)


def check_map(field: str, value: Any) -> Any:
    """Return a validated `attention_map`."""
    remedy = "or pass a function of (scores, visible), arrays (..., s), that returns weights"
    return named_function.validate(field, value, ATTENTION_MAPS, remedy, _try_map)


def _try_map(function: Callable[..., Any]) -> None:
    """Raise `InputError` unless a user's map works on trial scores.

    Its weights must be finite, have the shape of the scores, and depend only on the visible scores of their row.
    """
    scores = np.linspace(-4.0, 4.0, _ROWS * _TRIED).reshape(_ROWS, _TRIED) * np.linspace(0.1, 2.0, _ROWS)[:, None]
    mask = np.tri(_ROWS, _TRIED, dtype=bool)
    remedy = "pass a vectorised function of arrays (scores, visible), visible being False at masked scores"
    try:
        weights = np.asarray(function(scores.copy(), mask.copy()))
        alone = np.asarray(function(scores[:1].copy(), mask[:1].copy()), dtype=np.float64)
        hidden = np.asarray(function(np.where(mask, scores, 1.0), mask.copy()), dtype=np.float64)
    except Exception as error:
        refuse("attention_map", function, f"raised {type(error).__name__}: {error}", remedy)
    if weights.dtype.kind not in "fiu":
        refuse("attention_map", function, f"returned {weights.dtype}, not real numbers", remedy)
    if weights.shape != scores.shape:
        refuse("attention_map", function, f"returned shape {weights.shape} for shape {scores.shape}", remedy)
    if not np.isfinite(weights[mask]).all():
        refuse("attention_map", function, "returned weights that are not finite", remedy)
    close = functools.partial(np.allclose, rtol=_TOLERANCE, atol=_TOLERANCE)
    if not close(alone[0, mask[0]], weights[0, mask[0]]):
        refuse("attention_map", function, "gives weights that depend on other rows or vary between calls", remedy)
    if not close(hidden[mask], weights[mask]):
        refuse("attention_map", function, "gives weights that depend on scores that are not visible", remedy)


def _over_rows(combine: np.ufunc, rows: FloatArray) -> FloatArray:
    """Reduce the last axis to length 1 with the ufunc `combine`, in NumPy's order of operations."""
    if rows.shape[-1] >= _SHORT:
        return np.asarray(combine.reduce(rows, axis=-1, keepdims=True))
    # Slices, because np.split would take longer than the reduction of so few columns.
    return functools.reduce(combine, [rows[..., k : k + 1] for k in range(rows.shape[-1])])
