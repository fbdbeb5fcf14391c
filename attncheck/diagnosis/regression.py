"""Deviations found by regression: matrices that give the subject's scores and outputs, whatever their law.

In calls with the same weights, a correct score is x_i B x_j with one matrix B per head, and a correct output is
linear in the inputs averaged by the attention weights. Many inputs determine these matrices exactly. A remainder
shows that scores or outputs have another form.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Generator, Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck._lib.text import listed
from attncheck.checks.answers import Pair
from attncheck.checks.declared import AFTER, SCORES, WEIGHTS_OR_VALUES
from attncheck.diagnosis.mistakes import MISTAKES
from attncheck.diagnosis.weights import weights_of_one_head
from attncheck.faults import FAULTS
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.inputs import NORMS, Norm
from attncheck.layers.norm import normalised
from attncheck.layers.parts import refusing
from attncheck.layers.parts.scores import whole_vectors
from attncheck.records.explanation import Explanation, exact
from attncheck.simulators.literal import LiteralSimulator

#: Text of a finding that no known mistake explains.
UNEXPLAINED = "no matrices give the outputs from the attention weights of the scores"
# Number of draws for which equations are solved, number of equations per unknown, and maximum number of unknowns of a
# draw.
_DRAWS, _EQUATIONS, _UNKNOWNS = 4, 1.5, 1024
# Relative remainders below _ROUNDED are rounding errors, and those above _WRONG are deviations.
_ROUNDED, _WRONG = 1e-4, 1e-3
# Singular values below this share of the largest count as 0. For a product of two Gaussian matrices of 32 rows, the
# smallest one is below it in 2% of draws, so a low rank is reported only if all draws have it.
_ZERO = 1e-5
# Features are equal if they agree to this many decimals after division by the largest one.
_DIGITS = 9
# Error of the logarithm of a root mean square of the scores of an answer.
_SIZE = 0.1
# Largest factor of the scores that is fitted.
_FACTOR = 16.0


@dataclasses.dataclass(frozen=True, eq=False)
class _Calls:
    """Several calls of the subject on different inputs.

    Arrays are the inputs before the norm, (draws, calls, s, n), the scores, (draws, calls, H, s, s), and the outputs,
    (draws, calls, s, k), for s positions, n neurons, H heads and k returned neurons.
    """

    layer: AttentionLayer
    given: FloatArray
    scores: FloatArray
    outputs: FloatArray

    @functools.cached_property
    def inputs(self) -> FloatArray:
        """The inputs after the declared norm, (draws, calls, s, n)."""
        return normalised(self.layer.norm, self.given)

    @classmethod
    def of(cls, pair: Pair, unknowns: int, equations: int) -> _Calls | None:
        """Call the subject as often as needed to determine `unknowns` numbers per draw; None if these are too many.

        Each call gives `equations` equations per draw.
        """
        count = math.ceil(_EQUATIONS * unknowns / equations)
        if count > len(pair.inputs) or unknowns > _UNKNOWNS:
            return None
        inputs = [np.roll(pair.inputs, shift, axis=0) for shift in range(count)]
        answers = [pair.subject(entry) for entry in inputs]
        scores = [entry.scores[:_DRAWS] for entry in answers if entry.scores is not None]
        vectors = [entry[:_DRAWS] for entry in inputs]
        outputs = [entry.outputs[:_DRAWS] for entry in answers]
        return cls(pair.layer, *(np.stack(entry, axis=1) for entry in (vectors, scores, outputs)))

    def averages(self, weights: FloatArray) -> FloatArray:
        """Return inputs averaged by attention weights (draws, calls, H, s, s), as (draws, calls·s, H·n)."""
        averaged = np.einsum("dchij,dcjn->dcihn", weights, self.inputs)
        return np.asarray(averaged.reshape(len(averaged), -1, averaged.shape[-2] * averaged.shape[-1]))


def by_regression(pair: Pair) -> Iterator[Explanation]:
    """Yield explanations if scores or outputs do not have the declared form, for a subject that returns scores."""
    if pair.known:
        norm = yield from _scores(pair)
        yield from _outputs(dataclasses.replace(pair, layer=pair.layer.replace(norm=norm)))


def _scores(pair: Pair) -> Generator[Explanation, None, Norm | None]:
    """Yield what is wrong with the scores, which should have the form x_i B x_jᵀ with a matrix B for each head.

    Here x_i and x_j are inputs. Nothing is yielded if the scores are not declared to be bilinear. The generator returns
    the norm of the inputs: the declared one, unless the scores have this form with another one.
    """
    layer, mask = pair.layer, pair.layer.visible
    if whole_vectors(layer) or refusing(layer, "homogeneous scores"):
        return layer.norm
    calls = _Calls.of(pair, layer.width**2, int(mask.sum()))
    if calls is None:
        return layer.norm
    scores = calls.scores.swapaxes(2, 3).swapaxes(3, 4)[:, :, mask].reshape(len(calls.scores), -1, layer.num_heads)
    remainder, solved = _solved(_products(calls.inputs, mask), scores)
    if remainder > _WRONG:
        for norm in (None, *NORMS):
            if _solved(_products(normalised(norm, calls.given), mask), scores)[0] < _ROUNDED:
                yield exact(SCORES, f"they are those of inputs with norm={norm!r}")
                return norm
        yield exact(SCORES, "they are not products of linear functions of two inputs")
    elif solved is not None and pair.continuous and layer.width > 1:
        yield from _matrices(layer, solved.swapaxes(1, 2).reshape(len(solved), -1, layer.width, layer.width))
    return layer.norm


def _products(inputs: FloatArray, mask: BoolArray) -> FloatArray:
    """Return the products of entries of two inputs of a call, (draws, calls·visible scores, n²)."""
    products = np.einsum("dcia,dcjb->dcijab", inputs, inputs)[:, :, mask]
    return np.asarray(products.reshape(len(products), -1, inputs.shape[-1] ** 2))


def _matrices(layer: AttentionLayer, products: FloatArray) -> Iterator[Explanation]:
    """Yield what is wrong with W_Q W_Kᵀ of each head, (draws, H, n, n), for weights of continuous laws."""
    sizes = np.linalg.svd(products, compute_uv=False)
    largest = sizes[..., :1]
    ranks = (sizes > _ZERO * largest).sum(axis=-1)
    declared = min(layer.width, layer.head_width)
    asymmetry = np.abs(products - products.swapaxes(-1, -2)).max(axis=(0, 2, 3))
    least = largest[..., 0].min(axis=0)
    if (symmetric := np.flatnonzero(asymmetry < _WRONG * least)).size and not layer.tied_query_key:
        # W Wᵀ has no negative eigenvalue.
        square = np.linalg.eigvalsh(products[:, symmetric]).min() > -_WRONG * largest.max()
        text = "W_Q and W_K are the same matrix, up to a factor," if square else "scores of query and key are symmetric"
        yield exact(SCORES, f"{text} {_of(symmetric, layer)}")
    elif (low := np.flatnonzero((ranks < declared).all(axis=0))).size:
        yield exact(SCORES, f"W_Q W_Kᵀ has rank {ranks[:, low].max()} {_of(low, layer)}; declared {declared}")
    elif declared > 1:
        spread = np.ptp(sizes[..., :declared], axis=-1).max(axis=0)
        if (equal := np.flatnonzero(spread < _WRONG * least)).size:
            message = f"all singular values of W_Q W_Kᵀ are equal {_of(equal, layer)}: are the matrices orthogonal?"
            yield exact(SCORES, message)


def _of(heads: NDArray[np.intp], layer: AttentionLayer) -> str:
    if len(heads) == layer.num_heads:
        return "in each head"
    return f"in head{'s' * (len(heads) > 1)} {listed(map(str, heads))}"


def _misweighed(layer: AttentionLayer, scores: FloatArray, weights: FloatArray) -> Iterator[tuple[str, FloatArray]]:
    """Yield known faults of the attention weights, each as its text and the wrong weights.

    The wrong weights have the shape (draws, calls, H, s, s), like `scores` and the declared `weights`.
    """
    yield "outputs are those of attention weights that are transposed", weights.swapaxes(-1, -2)
    yield "outputs are those of the transposed scores", layer.attention_weights(scores.swapaxes(-1, -2))
    mean = np.broadcast_to(weights.mean(axis=-2, keepdims=True), weights.shape)
    yield "outputs are those of attention weights averaged over queries", mean
    yield "outputs are those of equal attention weights", layer.attention_weights(np.zeros_like(scores))
    powers = np.exp2(np.round(np.log2(np.maximum(weights, 1e-300))))
    yield "outputs are those of attention weights rounded to powers of two", np.where(weights > 0.0, powers, 0.0)
    largest = weights == weights.max(axis=-1, keepdims=True)
    yield "outputs are those of the largest score alone", largest.astype(np.float64)
    of_draws = scores.reshape(-1, *scores.shape[2:])
    for fault in (*FAULTS.values(), *MISTAKES):
        simulator = fault.subject
        if not isinstance(simulator, LiteralSimulator) or fault.reason_hidden(layer):
            continue
        if simulator == dataclasses.replace(LiteralSimulator(), weigh=simulator.weigh):
            yield fault.what, simulator.weigh(layer, of_draws).reshape(scores.shape)


def _outputs(pair: Pair) -> Iterator[Explanation]:
    """Yield what is wrong with the outputs as functions of the inputs and the attention weights of the scores."""
    layer, y = pair.layer, pair.usual[0].outputs
    # If all positions have equal outputs, a call may give one equation only.
    is_equal = np.ptp(y, axis=1).max() <= _ROUNDED * np.abs(y).max()
    calls = _Calls.of(pair, layer.num_heads * layer.width, 1 if is_equal else layer.seq_len)
    if calls is None:
        return
    outputs = calls.outputs.reshape(len(calls.outputs), -1, calls.outputs.shape[-1])
    weights = layer.attention_weights(calls.scores)
    remainder, solved = _solved(calls.averages(weights), outputs)
    if remainder <= _WRONG:
        if solved is not None and pair.continuous:
            yield from _equal_heads(solved.reshape(len(solved), layer.num_heads, -1))
        return
    if np.abs(outputs).max() < 1.0 and _solved(calls.averages(weights), np.arctanh(outputs))[0] < _ROUNDED:
        yield exact(AFTER, "outputs pass through tanh")
        return
    for text, wrong in _misweighed(layer, calls.scores, weights):
        if _solved(calls.averages(wrong), outputs)[0] < _ROUNDED:
            yield exact(WEIGHTS_OR_VALUES, text)
            return
    if added := [*_added(pair)]:
        yield from added
        return
    factors = _factors(calls, outputs)
    if factors is not None:
        listing = listed(f"{factor:.3g} in head {h}" for h, factor in enumerate(factors))
        if np.ptp(factors) < _WRONG * factors.max():
            listing = f"{factors[0]:.3g}"
        # Returned scores of the wrong size are at fault themselves if times the factor they have the declared size.
        ours, theirs = (float(np.mean(np.square(np.asarray(answer.scores)))) ** 0.5 for answer in pair.usual)
        is_returned = abs(np.log(factors.mean() * ours / theirs)) < abs(np.log(ours / theirs)) - _SIZE
        stage = SCORES if is_returned else WEIGHTS_OR_VALUES
        yield exact(stage, f"outputs are those of the returned scores times {listing}")
        return
    yield from [*weights_of_one_head(pair)] or [exact(AFTER, UNEXPLAINED)]


def _added(pair: Pair) -> Iterator[Explanation]:
    """Yield what is added to the outputs of attention.

    This can be a linear function of the input at the same position, or of the mean input.
    """
    layer = pair.layer
    calls = _Calls.of(pair, (layer.num_heads + 1) * layer.width, layer.seq_len)
    if calls is None:
        return
    averages = calls.averages(layer.attention_weights(calls.scores))
    outputs = calls.outputs.reshape(len(calls.outputs), -1, calls.outputs.shape[-1])
    inputs = calls.inputs.reshape(*averages.shape[:2], -1)
    if _solved(np.concatenate([averages, inputs], axis=-1), outputs)[0] < _ROUNDED:
        yield exact(AFTER, "a linear function of a position's input is added to its output, as by a residual path")
        return
    means = calls.averages(layer.attention_weights(np.zeros_like(calls.scores[:, :, :1])))
    remainder, solved = _solved(np.concatenate([averages, means], axis=-1), outputs)
    if remainder < _ROUNDED and solved is not None:
        *of_heads, of_mean = np.moveaxis(solved.reshape(len(solved), layer.num_heads + 1, -1), 1, 0)
        total = np.sum(of_heads, axis=0)
        ratio = float((of_mean * total).sum() / (total**2).sum())
        if np.abs(of_mean - ratio * total).max() < _WRONG * np.abs(total).max():
            text = f"{ratio:.3g} times the outputs of equal attention weights are added"
            if ratio > 0.0:
                share = ratio / (1.0 + ratio)
                text = f"attention weights are smoothed: a share of {share:.3g} is equal for all keys"
            yield exact(WEIGHTS_OR_VALUES, text)


def _equal_heads(products: FloatArray) -> Iterator[Explanation]:
    """Find heads whose products W_V W_O, in `products`, (draws, H, entries), are 0 or equal.

    If they are 0, outputs depend on the attention weights of other heads only. If they are equal, averaging the
    attention weights of these heads would give the same outputs.
    """
    sizes = np.abs(products).max(axis=(0, 2))
    used = np.flatnonzero(sizes > _WRONG * sizes.max())
    if len(used) < len(sizes):
        yield exact(WEIGHTS_OR_VALUES, f"outputs use the attention weights of head {listed(map(str, used))} alone")
        return
    gaps = np.abs(products[:, :, None] - products[:, None]).max(axis=(0, 3))
    same = gaps < _WRONG * np.abs(products).max(axis=(0, 2))
    equal = np.flatnonzero(same[int(np.argmax(same.sum(axis=1)))])
    if len(equal) > 1:
        heads = "" if len(equal) == products.shape[1] else f" {listed(map(str, equal))}"
        text = f"outputs are those of attention weights averaged over heads{heads}, or these heads share one W_V W_O"
        yield exact(WEIGHTS_OR_VALUES, text)


def _factors(calls: _Calls, outputs: FloatArray) -> FloatArray | None:
    """Return a factor for the scores of each head such that the attention weights explain the outputs, or None."""

    def remainders(logs: FloatArray) -> FloatArray:
        features = calls.averages(calls.layer.attention_weights(np.exp(logs)[:, None, None] * calls.scores))
        parts = [y - x @ np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(features, outputs, strict=True)]
        return np.concatenate([part.ravel() for part in parts])

    limit = math.log(_FACTOR)
    solution = scipy.optimize.least_squares(remainders, np.zeros(calls.layer.num_heads), bounds=(-limit, limit))
    close = float(np.linalg.norm(solution.fun)) < _ROUNDED * float(np.linalg.norm(outputs))
    return np.exp(solution.x) if close else None


def _solved(features: FloatArray, values: FloatArray) -> tuple[float, FloatArray | None]:
    """Solve linear equations in each draw; return the largest relative remainder, and the solutions or None.

    `features` are (draws, equations, unknowns), `values` (draws, equations, k), and solutions (draws, unknowns, k);
    they are None if not unique. The remainder is infinite if, in some draw, the number of distinct equations does not
    exceed their rank, because then any values fit.
    """
    remainder, solutions, unique = 0.0, [], True
    for x, y in zip(features, values, strict=True):
        solution, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
        length = max(float(np.linalg.norm(y)), 1e-300)
        remainder = max(remainder, float(np.linalg.norm(y - x @ solution)) / length)
        different = len(np.unique(np.round(x / max(float(np.abs(x).max()), 1e-300), _DIGITS), axis=0))
        remainder = remainder if different > rank else np.inf
        solutions.append(solution)
        unique &= int(rank) == x.shape[1]
    return remainder, np.stack(solutions) if unique else None
