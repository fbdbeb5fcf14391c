"""Joint functionals of one draw: what two readings of the same layer are compared on."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from attncheck.checks.rotation import two_neurons
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import attention_weights, visible
from attncheck.layers.kernel import input_covariance

FloatArray = NDArray[np.float64]

# Squared differences of logarithms that single precision may make of equal numbers.
_ROUNDING = 1e-8
# Eigenvalues of the inputs' covariance, over the largest one, below which scores lose their digits.
_ALIKE = 1e-5
# Outputs below this share of their scale have lost digits in single precision.
_UNDERFLOW = 1e-30
_EQUAL = "all positions are equal"
_SINGULAR = "score matrices are singular, or nearly so"
# Below this a clip leaves h as it is in all draws that anyone will see, at any width.
_NEVER_CLIPPED = 40.0


class Arrays(Protocol):
    """What `Draws` and `Sample` have in common."""

    @property
    def outputs(self) -> FloatArray:
        """y, (draws, s, coordinates)."""
        ...

    @property
    def scores(self) -> FloatArray | None:
        """P, (draws, heads, s, s)."""
        ...

    @property
    def attention(self) -> FloatArray | None:
        """A, (draws, heads, s, s)."""
        ...

    @property
    def inputs(self) -> FloatArray | None:
        """x, (draws, s, coordinates)."""
        ...

    @property
    def input_gram(self) -> FloatArray | None:
        """X Xᵀ/n, (draws, s, s)."""
        ...


@dataclasses.dataclass(frozen=True)
class Functional:
    """A number per draw: its name, what it is, the arrays it takes, how it is computed, and where it says nothing.

    `unit` is the size of the numbers whose rounding it has, where that is not its own: 1 for logarithms.
    `of_weights` says that scores are taken by their attention weights alone.
    """

    name: str
    text: str
    needs: frozenset[str]
    compute: Callable[[AttentionLayer, Arrays], FloatArray]
    excluded: Callable[[AttentionLayer, int], str] = lambda layer, coordinates: ""
    unit: float = 0.0
    of_weights: bool = False


def _scores(arrays: Arrays) -> FloatArray:
    assert arrays.scores is not None
    return arrays.scores


def _weights(layer: AttentionLayer, arrays: Arrays, heads: slice = slice(None)) -> FloatArray:
    if arrays.scores is not None:
        return attention_weights(layer, arrays.scores[:, heads])
    assert arrays.attention is not None
    return arrays.attention[:, heads]


def _inputs(arrays: Arrays) -> FloatArray:
    """Return the inputs of the neurons of `first_neurons`."""
    assert arrays.inputs is not None
    return two_neurons(arrays.inputs)


def _gram(arrays: Arrays) -> FloatArray:
    assert arrays.input_gram is not None
    return arrays.input_gram


def first_neurons(arrays: Arrays) -> FloatArray:
    """Return the outputs of two neurons, as many as the reference has, all of them in turn."""
    return two_neurons(arrays.outputs)


def _log_energy(values: FloatArray) -> FloatArray:
    """Return log Σ values² per draw, with zeros kept finite."""
    return _log((values**2).sum(axis=tuple(range(1, values.ndim))))


def _log(values: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(values, 1e-300)))


def _score_energy(layer: AttentionLayer, arrays: Arrays) -> FloatArray:
    return _log_energy(np.where(visible(layer), _scores(arrays), 0.0))


def _row_entropy(layer: AttentionLayer, arrays: Arrays) -> FloatArray:
    """Return the entropy of the last row of the first head's weights."""
    weights = _weights(layer, arrays, slice(1))[:, 0, -1]
    return np.asarray(special.entr(weights).sum(axis=-1))


def _log_volumes(arrays: Arrays) -> FloatArray:
    """Return log |det P| of every head, (draws, heads)."""
    return np.asarray(np.maximum(np.linalg.slogdet(_scores(arrays))[1], -1e3))


def _score_shape(layer: AttentionLayer, arrays: Arrays) -> FloatArray:
    """Return log |det P| less what the size of P makes of it, averaged over heads: how correlated its entries are."""
    sizes = _log((_scores(arrays) ** 2).sum(axis=(-1, -2)))
    return np.asarray((_log_volumes(arrays) - 0.5 * layer.seq_len * sizes).mean(axis=1))


def _score_contrast(layer: AttentionLayer, arrays: Arrays) -> FloatArray:
    """Return how far log |det P| differs between heads, on a logarithmic scale: less where they share keys."""
    return _log(_log_volumes(arrays).std(axis=1))


def _alike(layer: AttentionLayer, arrays: Arrays, axis: int, groups: bool) -> FloatArray:
    """Return how log sizes of columns (or rows) of P go together in two heads: more where they share keys (queries).

    The heads are neighbours, or the first ones of two groups.
    """
    seen = np.where(visible(layer), _scores(arrays), 0.0)
    sizes = _log((seen[:, [0, layer.group_size if groups else 1]] ** 2).sum(axis=axis))
    sizes -= sizes.mean(axis=-1, keepdims=True)
    product, lengths = sizes.prod(axis=1).sum(axis=-1), (sizes**2).sum(axis=-1)
    # Sizes that are equal but for rounding have no correlation.
    told = (lengths > _ROUNDING).all(axis=1)
    return np.asarray(np.divide(product, np.sqrt(lengths.prod(axis=1)), out=np.zeros_like(product), where=told))


def _three_positions(layer: AttentionLayer, coordinates: int) -> str:
    if layer.seq_len < 3:
        return "there are fewer than three positions"
    return _EQUAL if layer.equal_inputs else _heads(layer, coordinates)


def _groups_apart(layer: AttentionLayer, coordinates: int) -> str:
    """Exclude layers without two groups of heads, and those in which neighbouring heads are of two groups."""
    if layer.group_size == 1:
        return "neighbouring heads are of two groups: score_columns examines this"
    if layer.kv_heads == 1:
        return "there is one group of heads only"
    return _three_positions(layer, coordinates)


def _input_products(layer: AttentionLayer, arrays: Arrays) -> FloatArray:
    """Return how x xᵀ goes with X Xᵀ/n, less the mean of the diagonal and that of all else, which tell no positions."""
    x, uneven = _inputs(arrays), _gram(arrays).copy()
    size = np.trace(uneven, axis1=1, axis2=2) / layer.seq_len
    diagonal = np.eye(layer.seq_len, dtype=bool)
    for part in (diagonal, ~diagonal):
        uneven[:, part] -= uneven[:, part].mean(axis=1, keepdims=True)
    product, squares = np.einsum("dic,dij,djc->d", x, uneven, x), (uneven**2).sum(axis=(1, 2))
    lengths = np.sqrt(squares) * (x**2).sum(axis=(1, 2))
    # Positions that differ by rounding only, as where inputs saturate, are in no order.
    told = (squares > _ROUNDING * size**2) & (lengths > 0.0)
    return np.asarray(np.divide(product, lengths, out=np.zeros_like(product), where=told))


def _unequal_positions(layer: AttentionLayer, coordinates: int) -> str:
    return _EQUAL if layer.equal_inputs else _positions(layer, coordinates)


def _output_energy(layer: AttentionLayer, arrays: Arrays) -> FloatArray:
    return _floored(layer, _log_energy(first_neurons(arrays)))


def _floored(layer: AttentionLayer, energy: FloatArray) -> FloatArray:
    """Return log Σ y², not below where single precision underflows: sigmoid weights may be as small as that."""
    least = _UNDERFLOW * layer.value_std * layer.output_std * layer.input_scale
    return np.asarray(np.maximum(energy, 2.0 * np.log(least)))


def _score_output_size(layer: AttentionLayer, arrays: Arrays) -> FloatArray:
    """Return the log of Σ P² over (Σ y²)²: the inputs' length drops out where both see the same inputs."""
    return np.asarray(_score_energy(layer, arrays) - 2 * _output_energy(layer, arrays))


def _output_given_scores(layer: AttentionLayer, arrays: Arrays) -> FloatArray:
    """Return the log size of the outputs, whitened by what the weights make of uncorrelated equal values."""
    weights = _weights(layer, arrays)
    covariance = (weights @ weights.swapaxes(-1, -2)).sum(axis=1)
    # Weights that underflow leave a covariance without a root; any ridge makes a valid functional.
    ridge = 1e-3 * np.trace(covariance, axis1=1, axis2=2)[:, None, None] + 1e-100
    root = np.linalg.cholesky(covariance + ridge * np.eye(layer.seq_len))
    whitened = np.asarray(np.linalg.solve(root, first_neurons(arrays)), dtype=np.float64)
    # Where the outputs are too small for their digits, the weights are too.
    told = _output_energy(layer, arrays) > _floored(layer, np.full(len(whitened), -np.inf))
    return np.where(told, _log_energy(whitened), 0.0)


def _heads(layer: AttentionLayer, coordinates: int) -> str:
    return "" if layer.num_heads > 1 else "there is one head only"


def _positions(layer: AttentionLayer, coordinates: int) -> str:
    return "" if layer.seq_len > 1 else "there is one position only"


def _softmax(layer: AttentionLayer, coordinates: int) -> str:
    if layer.attention_map != "softmax":
        return "rows of weights are no probabilities"
    if layer.equal_inputs:
        return _EQUAL
    return _positions(layer, coordinates)


def linear(layer: AttentionLayer) -> bool:
    """Return whether x = h + e for all that can be seen."""
    clipped = layer.activation == "clip" and layer.clip < _NEVER_CLIPPED * layer.hidden_std
    return layer.activation in ("clip", "identity") and not clipped and layer.norm is None


def _regular(layer: AttentionLayer, coordinates: int) -> str:
    """Exclude layers whose score matrices are singular, or nearly so with a chance that matters."""
    if min(layer.width, layer.head_width) <= layer.seq_len or layer.equal_inputs:
        # Where a width is seq_len, rounding tells in one draw of a hundred.
        return "" if layer.seq_len == 1 else _SINGULAR
    if _alike_inputs(layer):
        return _SINGULAR
    return "" if linear(layer) else "score matrices may be singular"


def _alike_inputs(layer: AttentionLayer) -> bool:
    """Return whether positions are so much alike that single precision tells how their scores differ."""
    spectrum = np.linalg.eigvalsh(input_covariance(layer))
    return bool(spectrum[0] < _ALIKE * spectrum[-1])


def _regular_heads(layer: AttentionLayer, coordinates: int) -> str:
    return _heads(layer, coordinates) or _regular(layer, coordinates)


def _regular_positions(layer: AttentionLayer, coordinates: int) -> str:
    return _positions(layer, coordinates) or _regular(layer, coordinates)


def _coordinates(layer: AttentionLayer, coordinates: int) -> str:
    return "" if coordinates > 1 else "the subject returns one neuron only"


_OUTPUTS, _SCORES, _INPUTS = frozenset({"outputs"}), frozenset({"scores"}), frozenset({"inputs"})
_MASKED, _GRAM = frozenset({"masked scores"}), frozenset({"input_gram"})

FUNCTIONALS: tuple[Functional, ...] = (
    Functional("score", "the first head's score P_11", _SCORES, lambda layer, a: _scores(a)[:, 0, 0, 0]),
    Functional(
        "score_off",
        "the last head's score of the last position with the first",
        _SCORES,
        lambda layer, a: _scores(a)[:, -1, -1, 0],
        _positions,
    ),
    Functional(
        "score_heads",
        "the product of the first and the last head's scores of the last position with the first",
        _SCORES,
        lambda layer, a: _scores(a)[:, 0, -1, 0] * _scores(a)[:, -1, -1, 0],
        _heads,
    ),
    Functional("score_energy", "log Σ P² over visible scores", _SCORES, _score_energy, unit=1.0),
    Functional(
        "row_entropy",
        "the entropy of the last row of the first head's weights",
        _SCORES,
        _row_entropy,
        _softmax,
        unit=1.0,
        of_weights=True,
    ),
    Functional("output", "the output y at the last position", _OUTPUTS, lambda layer, a: first_neurons(a)[:, -1, 0]),
    Functional(
        "output_positions",
        "the product of the outputs at the first and the last position",
        _OUTPUTS,
        lambda layer, a: first_neurons(a)[:, 0, 0] * first_neurons(a)[:, -1, 0],
        _positions,
    ),
    Functional(
        "output_neurons",
        "the product of two neurons of the last output",
        _OUTPUTS,
        lambda layer, a: first_neurons(a)[:, -1].prod(axis=-1),
        _coordinates,
    ),
    Functional("output_energy", "log Σ y²", _OUTPUTS, _output_energy, unit=1.0),
    Functional(
        "output_given_scores",
        "log Σ y² of outputs whitened by the weights that the scores give",
        _OUTPUTS | _SCORES,
        _output_given_scores,
        unit=1.0,
        of_weights=True,
    ),
    Functional(
        "score_shape",
        "log |det P| at a given Σ P²: how correlated the scores are",
        _SCORES | _MASKED,
        _score_shape,
        _regular_positions,
        unit=1.0,
    ),
    Functional(
        "score_contrast",
        "how far log |det P| differs between heads",
        _SCORES | _MASKED,
        _score_contrast,
        _regular_heads,
        unit=1.0,
    ),
    Functional("score_output_size", "log Σ P²/(Σ y²)²", _OUTPUTS | _SCORES, _score_output_size, unit=1.0),
    Functional(
        "score_columns",
        "the correlation of two neighbouring heads' column sizes Σ_i P_ij², from column to column",
        _SCORES,
        functools.partial(_alike, axis=-2, groups=False),
        _three_positions,
        unit=1.0,
    ),
    Functional(
        "score_rows",
        "the correlation of two neighbouring heads' row sizes Σ_j P_ij², from row to row",
        _SCORES,
        functools.partial(_alike, axis=-1, groups=False),
        _three_positions,
        unit=1.0,
    ),
    Functional(
        "score_columns_apart",
        "the correlation of the column sizes Σ_i P_ij² of heads of two groups, from column to column",
        _SCORES,
        functools.partial(_alike, axis=-2, groups=True),
        _groups_apart,
        unit=1.0,
    ),
    Functional("input", "the input x at the last position", _INPUTS, lambda layer, a: _inputs(a)[:, -1, 0]),
    Functional(
        "input_neurons",
        "the product of two neurons of the last input",
        _INPUTS,
        lambda layer, a: _inputs(a)[:, -1].prod(axis=-1),
        _coordinates,
    ),
    Functional("input_length", "log Σ x²", _GRAM, lambda layer, a: _log(np.trace(_gram(a), 0, 1, 2)), unit=1.0),
    Functional(
        "input_overlap",
        "the overlap of the first and the last input",
        _GRAM,
        lambda layer, a: _gram(a)[:, 0, -1],
        _positions,
    ),
    Functional(
        "input_products",
        "how the products of a neuron's inputs go with the inputs' Gram matrix",
        _INPUTS | _GRAM,
        _input_products,
        _unequal_positions,
        unit=1.0,
    ),
    Functional(
        "input_output",
        "the sum of an input and an output of one neuron",
        _INPUTS | _OUTPUTS,
        lambda layer, a: _inputs(a)[:, 0, 0] + first_neurons(a)[:, -1, 0],
    ),
    Functional(
        "input_output_squares",
        "x² y² of one neuron",
        _INPUTS | _OUTPUTS,
        lambda layer, a: (_inputs(a)[:, -1, 0] * first_neurons(a)[:, -1, 0]) ** 2,
    ),
    Functional(
        "input_score_squares",
        "x² P² of one neuron and one score",
        _INPUTS | _SCORES,
        lambda layer, a: (_inputs(a)[:, -1, 0] * _scores(a)[:, 0, -1, -1]) ** 2,
    ),
)
