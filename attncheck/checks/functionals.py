"""Functionals of one draw, on which two methods for the same layer are compared."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Generic, TypeVar

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
# Squared differences of logarithms due to rounding in single precision.
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

    `neurons` is the minimum number of neurons that the subject must return. `unit` is the scale of rounding errors: 1
    for logarithms, or 0 for the size of the values themselves. `rejects` has the faults that its comparison with the
    exact law must reject.
    """

    name: str
    text: str
    needs: frozenset[str]
    compute: Callable[[_Described, _Arrays], FloatArray]
    requires: Requirement[_Described] = ANY
    neurons: int = 1
    unit: float = 0.0
    rejects: Rejected = NOTHING

    def applies(self, described: _Described, neurons: int) -> bool:
        """Return whether the functional applies to a layer or program of which `neurons` neurons are returned."""
        return self.neurons <= neurons and not self.requires.reason(described)


Functional = FunctionalOf[AttentionLayer, Sample]


def _scores(sample: Sample) -> FloatArray:
    return sample.need("scores")


@kept
def _inputs(sample: Sample) -> FloatArray:
    """Return the inputs of two neurons, the same as in `two_neurons`."""
    return neighbours(sample.need("inputs"), 2)


def _gram(sample: Sample) -> FloatArray:
    return sample.need("input_gram")


@kept
def two_neurons(sample: Sample) -> FloatArray:
    """Return the outputs of two neurons that rotate from draw to draw, (draws, positions, 2)."""
    return neighbours(sample.outputs, 2)


@kept
def several_neurons(sample: Sample) -> FloatArray:
    """Return the outputs of up to `NEURONS` neurons that rotate from draw to draw, (draws, positions, neurons)."""
    return neighbours(sample.outputs, NEURONS)


def log_energy(values: FloatArray) -> FloatArray:
    """Return log Σ values² per draw, finite even if all values are 0."""
    return log((values**2).sum(axis=tuple(range(1, values.ndim))))


def log(values: FloatArray) -> FloatArray:
    """Return finite logarithms of nonnegative numbers."""
    return np.asarray(np.log(np.maximum(values, 1e-300)))


@kept
def _score_energy(sample: Sample) -> FloatArray:
    return log_energy(sample.told_scores)


def _row_entropy(layer: AttentionLayer, sample: Sample) -> FloatArray:
    """Return the entropy of the last row of the first head's attention weights."""
    return np.asarray(special.entr(sample.weights[:, 0, -1]).sum(axis=-1))


@kept
def _log_volumes(sample: Sample) -> FloatArray:
    """Return log |det P| of every head, (draws, heads)."""
    return np.asarray(np.maximum(np.linalg.slogdet(_scores(sample))[1], -1e3))


def _score_shape(layer: AttentionLayer, sample: Sample) -> FloatArray:
    """Return log |det P| - s log ‖P‖ of the scores P of s positions, averaged over heads."""
    sizes = log((_scores(sample) ** 2).sum(axis=(-1, -2)))
    return np.asarray((_log_volumes(sample) - 0.5 * layer.seq_len * sizes).mean(axis=1))


def _score_contrast(layer: AttentionLayer, sample: Sample) -> FloatArray:
    """Return the log standard deviation of log |det P| over heads: smaller if heads share keys."""
    return log(_log_volumes(sample).std(axis=1))


def _covariance_ratio(layer: AttentionLayer, sample: Sample, axis: int, groups: bool) -> FloatArray:
    """Return the correlation between two heads of the log sizes of columns or rows of the scores P.

    Columns correlate more if the heads share keys, rows if they share queries. With `groups`, the two heads belong to
    different groups; otherwise they are neighbours.
    """
    sizes = log((sample.told_scores[:, [0, layer.group_size if groups else 1]] ** 2).sum(axis=axis))
    sizes -= sizes.mean(axis=-1, keepdims=True)
    product, lengths = sizes.prod(axis=1).sum(axis=-1), (sizes**2).sum(axis=-1)
    # The correlation of sizes that are equal up to rounding is undefined and set to 0.
    valid = (lengths > _ROUNDING).all(axis=1)
    return np.asarray(np.divide(product, np.sqrt(lengths.prod(axis=1)), out=np.zeros_like(product), where=valid))


def _input_products(layer: AttentionLayer, sample: Sample) -> FloatArray:
    """Return the correlation of the products x xᵀ of two neurons' inputs with the Gram matrix X Xᵀ/n of all.

    Diagonal and off-diagonal entries are centred separately.
    """
    x, uneven = _inputs(sample), _gram(sample).copy()
    size = np.trace(uneven, axis1=1, axis2=2) / layer.seq_len
    diagonal = np.eye(layer.seq_len, dtype=bool)
    for part in (diagonal, ~diagonal):
        uneven[:, part] -= uneven[:, part].mean(axis=1, keepdims=True)
    product, squares = np.einsum("dic,dij,djc->d", x, uneven, x), (uneven**2).sum(axis=(1, 2))
    lengths = np.sqrt(squares) * (x**2).sum(axis=(1, 2))
    # If positions differ by rounding only, e.g. for saturated inputs, the correlation is undefined and set to 0.
    valid = (squares > _ROUNDING * size**2) & (lengths > 0.0)
    return np.asarray(np.divide(product, lengths, out=np.zeros_like(product), where=valid))


@kept
def _output_energy(sample: Sample) -> FloatArray:
    return _floored(sample.layer, log_energy(several_neurons(sample)))


def _output_contrast(layer: AttentionLayer, sample: Sample) -> FloatArray:
    """Return log Σ (y - ȳ)², ȳ the mean over positions: larger for sharper weights."""
    y = several_neurons(sample)
    size = (y**2).sum(axis=(1, 2))
    spread = ((y - y.mean(axis=1, keepdims=True)) ** 2).sum(axis=(1, 2))
    # Differences of nearly equal outputs are rounding errors.
    return _floored(layer, log(np.maximum(spread, _CANCELLED * size)))


def _floored(layer: AttentionLayer, energy: FloatArray) -> FloatArray:
    """Return log Σ y², bounded below where single precision underflows."""
    least = _UNDERFLOW * layer.value_std * layer.output_std * layer.inputs.scale
    return np.asarray(np.maximum(energy, 2.0 * np.log(least)))


def _conditional_output(layer: AttentionLayer, sample: Sample) -> FloatArray:
    """Return the log size of outputs whitened as if values were uncorrelated with equal variances."""
    covariance = (sample.weights @ sample.weights.swapaxes(-1, -2)).sum(axis=1)
    # Underflowing weights make the covariance singular; any ridge gives a valid functional.
    ridge = 1e-3 * np.trace(covariance, axis1=1, axis2=2)[:, None, None] + 1e-100
    root = np.linalg.cholesky(covariance + ridge * np.eye(layer.seq_len))
    whitened = np.asarray(np.linalg.solve(root, several_neurons(sample)), dtype=np.float64)
    # Where outputs underflow, so do weights: the size of the whitened outputs is meaningless and set to 0.
    valid = _output_energy(sample) > _floored(layer, np.full(len(whitened), -np.inf))
    return np.where(valid, log_energy(whitened), 0.0)


_ROW_BY_ROW = need.THREE_POSITIONS & need.UNEQUAL_INPUTS & need.SEVERAL_HEADS
_GROUPS_APART = (
    OfLayer(
        "neighbouring heads of one group",
        lambda layer: layer.group_size > 1,
        "neighbouring heads belong to different groups, which score_columns examines",
    )
    & need.SEVERAL_GROUPS
    & _ROW_BY_ROW
)
_OUTPUTS, _SCORES, _INPUTS = frozenset({"outputs"}), frozenset({"scores"}), frozenset({"inputs"})
_ATTENTION = frozenset({"attention"})
_MASKED, _GRAM = frozenset({"masked scores"}), frozenset({"input_gram"})

FUNCTIONALS: tuple[Functional, ...] = (
    Functional(
        "score",
        "the first head's score P_11",
        _SCORES,
        lambda layer, a: _scores(a)[:, 0, 0, 0],
        rejects=Rejected.of("tied_query_key", on=regimes.ONE_POSITION),
    ),
    Functional(
        "score_off",
        "the last head's score of the last position with the first",
        _SCORES,
        lambda layer, a: _scores(a)[:, -1, -1, 0],
        need.SEVERAL_POSITIONS & need.FAR_VISIBLE,
        rejects=Rejected.of("scores_over_root_s", on=regimes.OVER_N),
    ),
    Functional(
        "score_heads",
        "the product of the first and the last head's scores of the last position with the first",
        _SCORES,
        lambda layer, a: _scores(a)[:, 0, -1, 0] * _scores(a)[:, -1, -1, 0],
        need.SEVERAL_HEADS & need.FAR_VISIBLE,
        rejects=Rejected.of("shared_keys", on=regimes.TIED),
    ),
    Functional(
        "score_energy",
        "log Σ P² over visible scores",
        _SCORES,
        lambda layer, sample: _score_energy(sample),
        unit=1.0,
        rejects=Rejected.of("scores_over_root_s", on=regimes.STANDARD),
    ),
    Functional(
        "row_entropy",
        "the entropy of the last row of the first head's weights",
        _ATTENTION,
        _row_entropy,
        need.PROBABILITIES,
        unit=1.0,
        rejects=Rejected.of("query_std_10", on=regimes.TIED),
    ),
    Functional(
        "output",
        "the output y at the last position",
        _OUTPUTS,
        lambda layer, a: two_neurons(a)[:, -1, 0],
        rejects=Rejected.of("shifted_outputs", on=regimes.ONE_POSITION),
    ),
    Functional(
        "output_positions",
        "the product of the outputs at the first and the last position",
        _OUTPUTS,
        lambda layer, a: two_neurons(a)[:, 0, 0] * two_neurons(a)[:, -1, 0],
        need.SEVERAL_POSITIONS,
        rejects=Rejected.of("missing_head_scaling", on=regimes.RELU),
    ),
    Functional(
        "output_neurons",
        "the product of two neurons of the last output",
        _OUTPUTS,
        lambda layer, a: two_neurons(a)[:, -1].prod(axis=-1),
        neurons=2,
        rejects=Rejected.of("missing_head_scaling", on=regimes.RELU),
    ),
    Functional(
        "output_energy",
        "log Σ y²",
        _OUTPUTS,
        lambda layer, sample: _output_energy(sample),
        unit=1.0,
        rejects=Rejected.of("missing_head_scaling", on=regimes.STANDARD),
    ),
    Functional(
        "output_contrast",
        "log Σ (y - ȳ)², ȳ the mean of the outputs over positions",
        _OUTPUTS,
        _output_contrast,
        need.DISTINGUISHABLE_POSITIONS,
        unit=1.0,
        rejects=Rejected.of("scores_over_root_s", on=regimes.STANDARD),
    ),
    Functional(
        "output_given_scores",
        "log Σ y² of outputs whitened by the weights that the scores give",
        _OUTPUTS | _ATTENTION,
        _conditional_output,
        unit=1.0,
        rejects=Rejected.of("softmax_over_columns", on=regimes.OVER_N),
    ),
    Functional(
        "score_shape",
        "log |det P| at a given Σ P²: how correlated the scores are",
        _SCORES | _MASKED,
        _score_shape,
        need.SEVERAL_POSITIONS & need.REGULAR_SCORES,
        unit=1.0,
        rejects=Rejected.of("independent_scores", on=regimes.STANDARD),
    ),
    Functional(
        "score_contrast",
        "the spread of log |det P| over heads",
        _SCORES | _MASKED,
        _score_contrast,
        need.SEVERAL_HEADS & need.REGULAR_SCORES,
        unit=1.0,
        rejects=Rejected.of("shared_keys", on=regimes.MANY_HEADS),
    ),
    Functional(  # in which the inputs' length cancels
        "score_output_size",
        "log Σ P²/(Σ y²)²",
        _OUTPUTS | _SCORES,
        lambda layer, sample: _score_energy(sample) - 2 * _output_energy(sample),
        unit=1.0,
        rejects=Rejected.of("missing_head_scaling", on=regimes.STANDARD),
    ),
    Functional(
        "score_columns",
        "the correlation of two neighbouring heads' column sizes Σ_i P_ij², from column to column",
        _SCORES,
        functools.partial(_covariance_ratio, axis=-2, groups=False),
        _ROW_BY_ROW,
        unit=1.0,
        rejects=Rejected.of("shared_keys", on=regimes.NARROW),
    ),
    Functional(
        "score_rows",
        "the correlation of two neighbouring heads' row sizes Σ_j P_ij², from row to row",
        _SCORES,
        functools.partial(_covariance_ratio, axis=-1, groups=False),
        _ROW_BY_ROW,
        unit=1.0,
        rejects=Rejected.of("shared_keys", on=regimes.TIED),
    ),
    Functional(
        "score_columns_apart",
        "the correlation of the column sizes Σ_i P_ij² of heads of two groups, from column to column",
        _SCORES,
        functools.partial(_covariance_ratio, axis=-2, groups=True),
        _GROUPS_APART,
        unit=1.0,
        rejects=Rejected.of("shared_keys", on=regimes.GROUPS),
    ),
    Functional(
        "input",
        "the input x at the last position",
        _INPUTS,
        lambda layer, a: _inputs(a)[:, -1, 0],
        rejects=Rejected.of("limit_as_finite", on=regimes.ONE_POSITION),
    ),
    Functional(
        "input_neurons",
        "the product of two neurons of the last input",
        _INPUTS,
        lambda layer, a: _inputs(a)[:, -1].prod(axis=-1),
        neurons=2,
        rejects=Rejected.of("neuron_twice", on=regimes.STANDARD),
    ),
    Functional(
        "input_length",
        "log Σ x²",
        _GRAM,
        lambda layer, a: log(np.trace(_gram(a), 0, 1, 2)),
        unit=1.0,
        rejects=Rejected.of("limit_as_finite", on=regimes.STANDARD),
    ),
    Functional(
        "input_overlap",
        "the overlap of the first and the last input",
        _GRAM,
        lambda layer, a: _gram(a)[:, 0, -1],
        need.SEVERAL_POSITIONS,
        rejects=Rejected.of("limit_as_finite", on=regimes.CAUSAL),
    ),
    Functional(
        "input_products",
        "the correlation of the products of a neuron's inputs with the inputs' Gram matrix",
        _INPUTS | _GRAM,
        _input_products,
        need.UNEQUAL_POSITIONS,
        unit=1.0,
        rejects=Rejected.of("inputs_turned", on=regimes.NARROW),
    ),
    Functional(
        "input_output",
        "the sum of an input and an output of one neuron",
        _INPUTS | _OUTPUTS,
        lambda layer, a: _inputs(a)[:, 0, 0] + two_neurons(a)[:, -1, 0],
        rejects=Rejected.of("gaussian_outputs", on=regimes.ONE_POSITION),
    ),
    Functional(
        "input_score_squares",
        "x² P² of one neuron and one score",
        _INPUTS | _SCORES,
        lambda layer, a: (_inputs(a)[:, -1, 0] * _scores(a)[:, 0, -1, -1]) ** 2,
        rejects=Rejected.of("scores_over_root_s", on=regimes.MANY_HEADS),
    ),
)
