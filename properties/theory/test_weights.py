"""Weight laws of one matrix or initial vector (slot) at a time: their effect on the limit and at finite width.

Moments with one position are exact at every width, for any weight law. Literal draws test them at width 2, where
every slot matters. From there a law is forgotten as 1/n (initial vectors, W^O), as 1/n² (the matrices in between, as
inputs are linear here), or not at all: initial vectors under a nonlinearity, and W^O with heads of fixed size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from attncheck._lib.streams import stream
from attncheck.evidence.comparisons import order_between
from attncheck.evidence.distances import one_sample_tail
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.nonlinearity import clip
from attncheck.layers.program import Program
from attncheck.layers.slots import law_slots
from attncheck.pytest_plugin import theory
from attncheck.runs.statements import Statement
from attncheck.simulators.weights import WEIGHT_LAWS, draw_with_weights
from attncheck.theory.rates.one_position import output_kurtosis, score_kurtosis

FloatArray = NDArray[np.float64]

_LAYER = AttentionLayer(width=2, seq_len=1, num_heads=1, activation="identity")
_LAWS = ("uniform", "rademacher")
_DRAWS, _LOW_RANK_DRAWS, _LOW_RANK_WIDTH = 150_000, 10_000, 256
# Heavy-tailed fourth powers of outputs take more draws (in units of `_DRAWS`), and a clearly non-normal law.
_FAR, _PARTS = "rademacher", 4
# Order in 1/n at which a law is forgotten.
_ORDERS = {"initial": 1, "inputs": 2, "query": 2, "key": 2, "value": 2, "output": 1}


def _state(note: Statement, name: str, values: FloatArray, expected: float, neighbour: float) -> None:
    """Test the mean of independent values; `neighbour` is its value with Gaussian weights in the slot."""
    note.equals(name, values.mean(), values.std() / math.sqrt(len(values)), expected, neighbours=[neighbour])


def _images(vectors: FloatArray, law: str, rng: np.random.Generator) -> FloatArray:
    """Return M u/√n of vectors u, (draws, n), each with its own matrix."""
    draws, n = vectors.shape
    return np.asarray(np.einsum("dij,dj->di", WEIGHT_LAWS[law](rng, (draws, n, n)), vectors) / math.sqrt(n))


def _outputs(slot: str, law: str, rng: np.random.Generator) -> FloatArray:
    """Draw a neuron of W^O W^V W^1 h at width 2, with one law in one slot."""
    if slot != "initial":
        return draw_with_weights(_LAYER, _DRAWS, 1, rng, {slot: law}).outputs[:, 0, 0]
    h = WEIGHT_LAWS[law](rng, (_DRAWS, _LAYER.width))
    for _ in ("inputs", "value", "output"):
        h = _images(h, "gaussian", rng)
    return h[:, 0]


def _kurtosis(slot: str, law: str, width: int) -> float:
    layer = _LAYER.replace(width=width)
    return output_kurtosis(layer, initial=law) if slot == "initial" else output_kurtosis(layer, {slot: law})


@theory("weights.slot_of_outputs", slot=("initial", "inputs", "value", "output"))
def test_a_law_is_seen_by_outputs_at_finite_width_and_not_in_the_limit(
    slot: str, run_seed: int, note: Statement
) -> None:
    rng = stream(run_seed, "weights", slot)
    fourth = np.concatenate([_outputs(slot, _FAR, rng) for _ in range(_PARTS)]) ** 4
    own, gaussian = 3.0 + _kurtosis(slot, _FAR, 2), 3.0 + _kurtosis(slot, "gaussian", 2)
    _state(note, "fourth moment", fourth, own, gaussian)
    order = _order(*(_kurtosis(slot, _FAR, n) - _kurtosis(slot, "gaussian", n) for n in (2**10, 2**14)))
    note(order=order)
    assert abs(order + _ORDERS[slot]) < 0.01
    assert not _depends(_LAYER, {"initial": "h", "inputs": "W1", "value": "V1", "output": "O1"}[slot])


@theory("weights.slot_of_scores", slot=("query", "key"), law=_LAWS)
def test_a_law_is_seen_by_scores_at_finite_width_and_not_in_the_limit(
    slot: str, law: str, run_seed: int, note: Statement
) -> None:
    rng = stream(run_seed, "weights", slot, law)
    draws = draw_with_weights(_LAYER, _DRAWS, _LAYER.width, rng, {slot: law})
    squares = draws.inputs[:, 0] ** 2
    normalised = draws.scores[:, 0, 0, 0] / squares.mean(axis=1)
    ratio = (squares**2).sum(axis=1) / squares.sum(axis=1) ** 2
    # Given the input the fourth moment is known: that of Gaussian weights plus Σ x⁴/(Σ x²)² times a slope.
    slope = score_kurtosis(_LAYER, {slot: law}, 1.0) - score_kurtosis(_LAYER, "gaussian", 1.0)
    gaussian = 3.0 + score_kurtosis(_LAYER, "gaussian", 1.0)
    _state(
        note, "fourth moment", normalised**4 - slope * ratio, gaussian, gaussian - slope * 3.0 / (_LAYER.width + 2.0)
    )
    order = _order(*(_score_shift(slot, law, n) for n in (2**10, 2**14)))
    note(order=order)
    assert abs(order + _ORDERS[slot]) < 0.01
    assert not _depends(_LAYER, {"query": "Q1", "key": "K1"}[slot])


def _score_shift(slot: str, law: str, width: int) -> float:
    layer, ratio = _LAYER.replace(width=width), 3.0 / (width + 2.0)
    return score_kurtosis(layer, {slot: law}, ratio) - score_kurtosis(layer, "gaussian", ratio)


def _low_rank_shift(layer: AttentionLayer) -> float:
    return output_kurtosis(layer, {"output": "rademacher"}) - output_kurtosis(layer)


def _order(narrow: float, wide: float) -> float:
    """Return the power of the width that the shift of a moment follows between widths 2^10 and 2^14."""
    return order_between((narrow, wide), (2**10, 2**14))


def _depends(layer: AttentionLayer | Program, name: str) -> bool:
    return {slot.name: slot.depends for slot in law_slots(layer)}[name]


@theory("weights.low_rank_output", law=("gaussian", "rademacher"))
def test_heads_of_a_fixed_size_keep_the_law_of_the_output_matrix(law: str, run_seed: int, note: Statement) -> None:
    """With heads of two neurons and one position, outputs are Laplace for Gaussian W^O, and normal for random signs."""
    layer = _LAYER.replace(width=_LOW_RANK_WIDTH, head_dim=2)
    rng = stream(run_seed, "weights", "low rank", law)
    drawn = draw_with_weights(layer, _LOW_RANK_DRAWS, 1, rng, {"output": law}).outputs[:, 0, 0]
    laws: dict[str, Callable[[Any], Any]] = {
        "gaussian": stats.laplace(scale=2**-0.5).cdf,
        "rademacher": special.ndtr,
    }
    found = {name: float(stats.ks_1samp(drawn, cdf).statistic) for name, cdf in laws.items()}
    own, other = found.pop(law), found.popitem()[1]
    # The squared lengths of h and W h have a relative variance of 4/n together, which moves the distribution function
    # of the normal law by up to (3t - t³)φ(t)/8 times that, and that of either law by less than 1/n.
    allowed = 1.0 / layer.width
    note(distance=own, **{"from the other's": other})
    note.p_value(law, one_sample_tail(own - allowed, _LOW_RANK_DRAWS))
    note.rejects("the other's", one_sample_tail(other - allowed, _LOW_RANK_DRAWS))
    limits = [output_kurtosis(layer, {"output": name}, infinite=True) for name in laws]
    assert limits == [3.0, 0.0]
    # The effect of W^O's law stays: its order is 0.
    order = _order(*(_low_rank_shift(layer.replace(width=n)) for n in (2**10, 2**14)))
    assert abs(order) < 0.01
    assert _depends(layer, "O1")


@theory("weights.initial_nonlinear", law=_LAWS)
def test_an_initial_vector_under_a_nonlinearity_keeps_its_law(law: str, run_seed: int, note: Statement) -> None:
    """W φ(h) has the variance E φ(h)² at every width and in the limit, which depends on the law of h."""
    phi, program = clip(1.0), Program()
    program.matmul(program.weight("W"), program.nonlin(phi, program.initial("h")))
    rng = stream(run_seed, "weights", "initial, nonlinear", law)
    # The law is the same at a narrow and at a wide layer.
    narrow, wide = (
        _images(phi(WEIGHT_LAWS[law](rng, (_DRAWS // width, width))), "gaussian", rng)[:, 0] ** 2 for width in (2, 16)
    )
    reach = 3.0**0.5
    own = {"uniform": (1.0 / 3.0 + reach - 1.0) / reach, "rademacher": 1.0}[law]
    gaussian = float(phi.dual(1.0, 1.0, 1.0)[0])
    for name, squares in (("narrow", narrow), ("wide", wide)):
        _state(note, name, squares, own, gaussian)
    assert _depends(program, "h")
    assert not _depends(program, "W")
