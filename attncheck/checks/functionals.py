"""Functionals of one draw, whose laws are compared between the subject and a reference method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.kept import kept
from attncheck.checks.declared import NOTHING, Rejected
from attncheck.checks.rotation import neighbours
from attncheck.checks.sample import Sample
from attncheck.layers import regimes
from attncheck.layers import requirements as need
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.requirement import ANY, Requirement
from attncheck.layers.requirements import OfLayer

#: Neurons used for output sizes; more would add cost but little sensitivity.
NEURONS = 8
# Largest sum of squared differences of logarithms that rounding in single precision explains.
_ROUNDING = 1e-8
# Smallest relative squared difference of outputs that single precision resolves.
_CANCELLED = 1e-10
# Outputs below this share of their scale have lost digits in single precision.
_UNDERFLOW = 1e-12


_Described = TypeVar("_Described")
_Arrays = TypeVar("_Arrays")


@dataclasses.dataclass(frozen=True)
class FunctionalOf(Generic[_Described, _Arrays]):
    """A number computed from each draw, with the arrays that it needs and the layers or programs to which it applies.

    `neurons` is the minimum number of neurons that the subject must return. Rounding errors are relative to the size of
    the values, but at least to `unit`: 1 for logarithms, 0 for other functionals. `rejects` lists wrong simulators that
    the comparison with the exact law must reject.
    """

    name: str
    text: str
    needs: frozenset[str]
    compute: Callable[[_Arrays], FloatArray]
    requires: Requirement[_Described] = ANY
    neurons: int = 1
    unit: float = 0.0
    rejects: Rejected = NOTHING

    def applies(self, described: _Described, neurons: int) -> bool:
        """Return whether the functional applies to a layer or program if the subject returns `neurons` neurons."""
        return self.neurons <= neurons and not self.requires.reason(described)


Functional = FunctionalOf[AttentionLayer, Sample]
_Compute = TypeVar("_Compute", bound=Callable[..., FloatArray])

_ROW_BY_ROW = need.THREE_POSITIONS & need.UNEQUAL_INPUTS & need.SEVERAL_HEADS
_GROUPS_APART = (
    OfLayer(
        "neighbouring heads of one group",
        lambda layer: layer.group_size > 1,
        "neighbouring heads belong to different groups; score_columns examines them",
    )
    & need.SEVERAL_GROUPS
    & _ROW_BY_ROW
)
_OUTPUTS, _SCORES, _INPUTS = frozenset({"outputs"}), frozenset({"scores"}), frozenset({"inputs"})
_ATTENTION = frozenset({"attention"})
_MASKED, _GRAM = frozenset({"masked scores"}), frozenset({"input_gram"})


def added(
    functionals: list[FunctionalOf[Any, Any]], text: str, needs: frozenset[str], rejects: Rejected, **fields: Any
) -> Callable[[_Compute], _Compute]:
    """Return a decorator that adds a functional to the list `functionals`.

    The decorated function computes the functional, and its name becomes the name of the functional. The other arguments
    are fields of `FunctionalOf`.
    """

    def add(compute: _Compute) -> _Compute:
        name = compute.__name__.lstrip("_")
        functionals.append(FunctionalOf(name, text, needs, compute, rejects=rejects, **fields))
        return compute

    return add


_FUNCTIONALS: list[Functional] = []


def _functional(
    text: str, needs: frozenset[str], fault: str, on: AttentionLayer, requires: OfLayer = ANY, **fields: Any
) -> Callable[[_Compute], _Compute]:
    """Return a decorator that adds a functional of layers to `_FUNCTIONALS`.

    The decorated function computes the functional from a sample. The check of the functional must reject the wrong
    simulator `fault` on the layer `on`. The other arguments are fields of `FunctionalOf`.
    """
    return added(_FUNCTIONALS, text, needs, Rejected.of(fault, on=on), requires=requires, **fields)


def _scores(sample: Sample) -> FloatArray:
    return sample.need("scores")


@kept
def _inputs(sample: Sample) -> FloatArray:
    """Return the inputs of two neurons, with the same indices as in `_two_neurons`."""
    return neighbours(sample.need("inputs"), 2)


def _gram(sample: Sample) -> FloatArray:
    return sample.need("input_gram")


@kept
def _two_neurons(sample: Sample) -> FloatArray:
    """Return the outputs of two neighbouring neurons, (draws, positions, 2); their indices shift by one per draw."""
    return neighbours(sample.outputs, 2)


@kept
def _several_neurons(sample: Sample) -> FloatArray:
    """Return the outputs of up to `NEURONS` neurons, (draws, positions, neurons).

    They are neighbours, and their indices shift by one from draw to draw.
    """
    return neighbours(sample.outputs, NEURONS)


def log_energy(values: FloatArray) -> FloatArray:
    """Return log Σ values² per draw, finite even if all values are 0."""
    return log((values**2).sum(axis=tuple(range(1, values.ndim))))


def log(values: FloatArray) -> FloatArray:
    """Return finite logarithms of nonnegative numbers."""
    return np.asarray(np.log(np.maximum(values, 1e-300)))


@kept
def _log_volumes(sample: Sample) -> FloatArray:
    """Return log |det P| of every head's score matrix P, (draws, heads)."""
    return np.asarray(np.maximum(np.linalg.slogdet(_scores(sample))[1], -1e3))


def _covariance_ratio(sample: Sample, axis: int, other: int) -> FloatArray:
    """Return, for each draw, how score sizes in the first head correlate with those in the head `other`.

    With `axis` -2, the log sizes of score columns are correlated, which correlate more if the heads share keys. With
    `axis` -1, those of score rows are correlated, which correlate more if the heads share queries.
    """
    squares = (sample.told_scores[:, [0, other]] ** 2).sum(axis=axis)
    # Give equal sizes to all rows that consist of rounding errors.
    sizes = log(np.maximum(squares, _CANCELLED * squares.max(axis=-1, keepdims=True)))
    sizes -= sizes.mean(axis=-1, keepdims=True)
    product, lengths = sizes.prod(axis=1).sum(axis=-1), (sizes**2).sum(axis=-1)
    # The correlation of sizes that are equal up to rounding is undefined and set to 0.
    valid = (lengths > _ROUNDING).all(axis=1)
    return np.asarray(np.divide(product, np.sqrt(lengths.prod(axis=1)), out=np.zeros_like(product), where=valid))


def _floored(layer: AttentionLayer, energy: FloatArray) -> FloatArray:
    """Return log Σ y², bounded below where single precision underflows."""
    least = _UNDERFLOW * layer.value_std * layer.output_std * layer.input_scale
    return np.asarray(np.maximum(energy, 2.0 * np.log(least)))


@_functional("the first head's score P_11", _SCORES, "tied_query_key", regimes.ONE_POSITION)
def _score(sample: Sample) -> FloatArray:
    return _scores(sample)[:, 0, 0, 0]


@_functional(
    "the last head's score of the last position with the first",
    _SCORES,
    "scores_over_root_s",
    regimes.OVER_N,
    need.SEVERAL_POSITIONS & need.FAR_VISIBLE,
)
def _score_off(sample: Sample) -> FloatArray:
    return _scores(sample)[:, -1, -1, 0]


@_functional(
    "the product of the first and the last head's scores of the last position with the first",
    _SCORES,
    "shared_keys",
    regimes.TIED,
    need.SEVERAL_HEADS & need.FAR_VISIBLE,
)
def _score_heads(sample: Sample) -> FloatArray:
    return _scores(sample)[:, 0, -1, 0] * _scores(sample)[:, -1, -1, 0]


@_functional("log Σ P² over visible scores", _SCORES, "scores_over_root_s", regimes.STANDARD, unit=1.0)
@kept
def _score_energy(sample: Sample) -> FloatArray:
    return log_energy(sample.told_scores)


@_functional(
    "the entropy of the last row of the first head's weights",
    _ATTENTION,
    "query_std_10",
    regimes.TIED,
    need.PROBABILITIES,
    unit=1.0,
)
def _row_entropy(sample: Sample) -> FloatArray:
    return np.asarray(special.entr(sample.weights[:, 0, -1]).sum(axis=-1))


@_functional("the output y at the last position", _OUTPUTS, "shifted_outputs", regimes.ONE_POSITION)
def _output(sample: Sample) -> FloatArray:
    return _two_neurons(sample)[:, -1, 0]


@_functional(
    "the product of the outputs at the first and the last position",
    _OUTPUTS,
    "missing_head_scaling",
    regimes.RELU,
    need.SEVERAL_POSITIONS,
)
def _output_positions(sample: Sample) -> FloatArray:
    return _two_neurons(sample)[:, 0, 0] * _two_neurons(sample)[:, -1, 0]


@_functional(
    "the product of two neurons' outputs at the last position",
    _OUTPUTS,
    "missing_head_scaling",
    regimes.RELU,
    neurons=2,
)
def _output_neurons(sample: Sample) -> FloatArray:
    return np.asarray(_two_neurons(sample)[:, -1].prod(axis=-1))


@_functional("log Σ y²", _OUTPUTS, "missing_head_scaling", regimes.STANDARD, unit=1.0)
@kept
def _output_energy(sample: Sample) -> FloatArray:
    return _floored(sample.layer, log_energy(_several_neurons(sample)))


@_functional(
    "log Σ (y - ȳ)², ȳ the mean of the outputs over positions",
    _OUTPUTS,
    "scores_over_root_s",
    regimes.STANDARD,
    need.DISTINGUISHABLE_POSITIONS,
    unit=1.0,
)
def _output_contrast(sample: Sample) -> FloatArray:
    """Return log Σ (y - ȳ)² of the outputs y, with ȳ their mean over positions.

    It is larger for sharper attention weights.
    """
    y = _several_neurons(sample)
    size = (y**2).sum(axis=(1, 2))
    spread = ((y - y.mean(axis=1, keepdims=True)) ** 2).sum(axis=(1, 2))
    # Differences of nearly equal outputs are rounding errors.
    return _floored(sample.layer, log(np.maximum(spread, _CANCELLED * size)))


@_functional(
    "log Σ y² of outputs whitened by the weights that the scores give",
    _OUTPUTS | _ATTENTION,
    "softmax_over_columns",
    regimes.OVER_N,
    unit=1.0,
)
def _output_given_scores(sample: Sample) -> FloatArray:
    """Return the log size of outputs whitened as if values were uncorrelated with equal variances."""
    covariance = (sample.weights @ sample.weights.swapaxes(-1, -2)).sum(axis=1)
    # Weights that underflow make the covariance singular. The functional is valid with any ridge.
    ridge = 1e-3 * np.trace(covariance, axis1=1, axis2=2)[:, None, None] + 1e-100
    root = np.linalg.cholesky(covariance + ridge * np.eye(sample.layer.seq_len))
    whitened = np.asarray(np.linalg.solve(root, _several_neurons(sample)), dtype=np.float64)
    # Where outputs underflow, so do weights: the size of the whitened outputs is meaningless and set to 0.
    valid = _output_energy(sample) > _floored(sample.layer, np.full(len(whitened), -np.inf))
    return np.where(valid, log_energy(whitened), 0.0)


@_functional(
    "log |det P| at a given Σ P²: how correlated the scores are",
    _SCORES | _MASKED,
    "independent_scores",
    regimes.STANDARD,
    need.SEVERAL_POSITIONS & need.REGULAR_SCORES,
    unit=1.0,
)
def _score_shape(sample: Sample) -> FloatArray:
    """Return log |det P| - s log ‖P‖, averaged over heads, for the scores P of s positions.

    ‖P‖ is the Frobenius norm.
    """
    sizes = log((_scores(sample) ** 2).sum(axis=(-1, -2)))
    return np.asarray((_log_volumes(sample) - 0.5 * sample.layer.seq_len * sizes).mean(axis=1))


@_functional(
    "the spread of log |det P| over heads",
    _SCORES | _MASKED,
    "shared_keys",
    regimes.MANY_HEADS,
    need.SEVERAL_HEADS & need.REGULAR_SCORES,
    unit=1.0,
)
def _score_contrast(sample: Sample) -> FloatArray:
    """Return the logarithm of the standard deviation over heads of log |det P|, with P the scores of a head.

    It is smaller if heads share keys.
    """
    return log(_log_volumes(sample).std(axis=1))


@_functional("log Σ P²/(Σ y²)²", _OUTPUTS | _SCORES, "missing_head_scaling", regimes.STANDARD, unit=1.0)
def _score_output_size(sample: Sample) -> FloatArray:
    """Return log Σ P²/(Σ y²)² for scores P and outputs y; the length of the inputs cancels in this ratio."""
    return _score_energy(sample) - 2 * _output_energy(sample)


@_functional(
    "the correlation over columns of the sizes Σ_i P_ij² between two neighbouring heads",
    _SCORES,
    "shared_keys",
    regimes.NARROW,
    _ROW_BY_ROW,
    unit=1.0,
)
def _score_columns(sample: Sample) -> FloatArray:
    return _covariance_ratio(sample, -2, 1)


@_functional(
    "the correlation over rows of the sizes Σ_j P_ij² between two neighbouring heads",
    _SCORES,
    "shared_keys",
    regimes.TIED,
    _ROW_BY_ROW,
    unit=1.0,
)
def _score_rows(sample: Sample) -> FloatArray:
    return _covariance_ratio(sample, -1, 1)


@_functional(
    "the correlation over columns of the sizes Σ_i P_ij² between heads of two groups",
    _SCORES,
    "shared_keys",
    regimes.GROUPS,
    _GROUPS_APART,
    unit=1.0,
)
def _score_columns_apart(sample: Sample) -> FloatArray:
    return _covariance_ratio(sample, -2, sample.layer.group_size)


@_functional("the input x at the last position", _INPUTS, "limit_as_finite", regimes.ONE_POSITION)
def _input(sample: Sample) -> FloatArray:
    return _inputs(sample)[:, -1, 0]


@_functional(
    "the product of two neurons' inputs at the last position", _INPUTS, "neuron_twice", regimes.STANDARD, neurons=2
)
def _input_neurons(sample: Sample) -> FloatArray:
    return np.asarray(_inputs(sample)[:, -1].prod(axis=-1))


@_functional("log Σ x²", _GRAM, "limit_as_finite", regimes.STANDARD, unit=1.0)
def _input_length(sample: Sample) -> FloatArray:
    return log(np.trace(_gram(sample), 0, 1, 2))


@_functional(
    "the overlap of the first and the last input", _GRAM, "limit_as_finite", regimes.CAUSAL, need.SEVERAL_POSITIONS
)
def _input_overlap(sample: Sample) -> FloatArray:
    return _gram(sample)[:, 0, -1]


@_functional(
    "the correlation of the products of a neuron's inputs with the inputs' Gram matrix",
    _INPUTS | _GRAM,
    "inputs_turned",
    regimes.NARROW,
    need.UNEQUAL_POSITIONS,
    unit=1.0,
)
def _input_products(sample: Sample) -> FloatArray:
    """Return, for each draw, the correlation of the entries of x xᵀ with those of the Gram matrix X Xᵀ/n.

    Here x holds the inputs of two neurons, and X those of all n neurons. Diagonal and off-diagonal entries are centred
    separately.
    """
    x, uneven, seq_len = _inputs(sample), _gram(sample).copy(), sample.layer.seq_len
    size = np.trace(uneven, axis1=1, axis2=2) / seq_len
    diagonal = np.eye(seq_len, dtype=bool)
    for part in (diagonal, ~diagonal):
        uneven[:, part] -= uneven[:, part].mean(axis=1, keepdims=True)
    product, squares = np.einsum("dic,dij,djc->d", x, uneven, x), (uneven**2).sum(axis=(1, 2))
    lengths = np.sqrt(squares) * (x**2).sum(axis=(1, 2))
    # If positions differ by rounding only, e.g. for saturated inputs, the correlation is undefined and set to 0.
    valid = (squares > _ROUNDING * size**2) & (lengths > 0.0)
    return np.asarray(np.divide(product, lengths, out=np.zeros_like(product), where=valid))


@_functional(
    "the sum of an input and an output of one neuron", _INPUTS | _OUTPUTS, "gaussian_outputs", regimes.ONE_POSITION
)
def _input_output(sample: Sample) -> FloatArray:
    return _inputs(sample)[:, 0, 0] + _two_neurons(sample)[:, -1, 0]


@_functional("x² P² of an input x and a score P", _INPUTS | _SCORES, "scores_over_root_s", regimes.MANY_HEADS)
def _input_score_squares(sample: Sample) -> FloatArray:
    return np.asarray((_inputs(sample)[:, -1, 0] * _scores(sample)[:, 0, -1, -1]) ** 2)


#: Functionals of layers.
FUNCTIONALS = tuple(_FUNCTIONALS)
