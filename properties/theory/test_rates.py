"""Rates: output laws approach the limit as 1/n (Corollary 2), and so does the dependence of scores and inputs.

Both are computed from exact conditional moments.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attncheck._lib.streams import stream
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.nonlinearity import tanh
from attncheck.layers.program import Program
from attncheck.pytest_plugin import theory
from attncheck.runs.statements import Statement
from attncheck.strategies import STDS, layers
from attncheck.theory.limits.dependence import Dependence, score_input_dependences
from attncheck.theory.rates.deviation import REPLICATES
from attncheck.theory.rates.distance import distance, score_sum
from attncheck.theory.rates.gap import ERRORS
from attncheck.theory.rates.law import Distance

# Widths and draws of the dependence, and a bound on the effect of terms of order 1/n² on its order.
_NARROW, _WIDE, _DRAWS = 64, 1024, 3_000
_CURVATURE = 0.05
# Widths and draws for the comparison of laws, with errors from few repetitions.
_LAW_WIDTHS, _LAW_DRAWS, _DF = (512, 8192), 128, REPLICATES - 1
# Widths and draws of literal matrices. Per law its fourth cumulant, and the remaining next order relative to the
# constant: 1/n³, except for Student's law, whose sixth moment is infinite.
_LITERAL_WIDTHS, _LITERAL_DRAWS = (12, 36), 1024
_FOURTH = {"uniform": -1.2, "rademacher": -2.0, "truncated normal": -0.63, "student5": 6.0}
_REST = {"uniform": 0.05, "rademacher": 0.05, "truncated normal": 0.05, "student5": 0.15}
_SUM_WIDTHS = (1024, 8192)


def _told(note: Statement, name: str, narrow: Distance, wide: Distance, order: float = -1.0) -> None:
    """State a distance's order; half an order more or less is rejected."""
    values, errors = (narrow.value, wide.value), (narrow.error / ERRORS, wide.error / ERRORS)
    neighbours = order - 0.5, order + 0.5
    widths = narrow.width, wide.width
    note.order(name, values, errors, widths, order, neighbours=neighbours, allowance=_CURVATURE, df=_DF)


def _with_a_limit(layer: AttentionLayer) -> AttentionLayer:
    """Return a similar layer whose outputs reach a limit, without kinks.

    Heads of fixed size leave a constant distance; "1/n" makes outputs vanish for maps that vanish at 0. The kink of
    relu leaves too much noise.
    """
    softmax = "softmax" if layer.attention_map == "relu" else layer.attention_map
    scaling = "1/sqrt(n)" if softmax == "linear" else layer.score_scaling
    return layer.replace(head_dim=None, attention_map=softmax, tied_query_key=False, score_scaling=scaling)


@theory("rates.outputs", layers(max_entries=800).map(_with_a_limit))
def test_outputs_approach_the_limit_as_one_over_n(layer: AttentionLayer, run_seed: int, note: Statement) -> None:
    seed = int(stream(run_seed, "rates", "laws", layer.key).integers(2**32))
    narrow, wide = (
        distance(layer, position=layer.seq_len - 1, size=_LAW_DRAWS, seed=seed + step, width=width)
        for step, width in enumerate(_LAW_WIDTHS)
    )
    note(constant=wide.width * wide.value)
    _told(note, "order", narrow, wide)


def _with_fixed_heads(layer: AttentionLayer) -> AttentionLayer:
    """Return a similar layer of at most two heads of fixed size, whose law at infinite width is known.

    More than four positions have too many score normals for low noise.
    """
    bounded = "sigmoid" if layer.attention_map == "sigmoid" else "softmax"
    heads = {"head_dim": layer.head_dim or 2, "num_heads": min(2, layer.num_heads), "num_kv_heads": None}
    return layer.replace(attention_map=bounded, tied_query_key=False, seq_len=min(4, layer.seq_len), **heads)


@theory("rates.fixed_heads", layers(max_entries=200).map(_with_fixed_heads))
def test_heads_of_fixed_size_keep_a_gap_and_the_rest_falls_as_one_over_n(
    layer: AttentionLayer, run_seed: int, note: Statement
) -> None:
    seed, position = int(stream(run_seed, "rates", "heads", layer.key).integers(2**32)), layer.seq_len - 1
    narrow, wide = (
        distance(layer, position=position, size=_LAW_DRAWS, seed=seed + n, width=n, reference="infinite width")
        for n in (256, 8192)
    )
    gap = distance(layer, position=position, size=512, seed=seed, width=math.inf)
    _told(note, "order", narrow, wide)
    # No limit, or an ignored head_dim: nearly all of the distance stays.
    error = math.hypot(gap.error, 4.0 * wide.error) / ERRORS
    note.exceeds("gap beyond four times what falls", gap.value - 4.0 * wide.value, error, 0.0, df=_DF)


@theory("rates.one_position", heads=(1, 3), of=("outputs", "scores"))
def test_one_position_has_the_gap_of_its_values_alone(heads: int, of: str, run_seed: int, note: Statement) -> None:
    """Softmax of one score is 1: outputs have the conditional variance ‖h‖²/n χ²_n/n times the heads' mean χ²_n/n.

    The relative variance of this number is (4 + 2/H)/n. Neighbours: heads that do not average, constant values, and
    scores without the keys' lengths.
    """
    layer = AttentionLayer(width=4096, seq_len=1, num_heads=heads)
    found, other = (
        distance(each, of=of, size=_LAW_DRAWS, seed=run_seed) for each in (layer, layer.replace(query_std=2.0))
    )
    mean, spread, neighbours = (0.0, 4.0 + 2.0 / heads, (4.0, 4.0 + 4.0 / heads))
    if of == "scores":
        mean, spread, neighbours = 4.0, 18.0, (16.0, 20.0)
    expected, n = _constant(mean, spread), layer.width
    told = [_constant(mean, each) for each in neighbours]
    # By draws, and by the expansion, which draws score normals only.
    for name, value, error in (
        ("constant", found.value, found.error),
        ("constant of the expansion", found.leading, found.leading_error),
    ):
        allowance = 0.01 * expected
        note.equals(name, n * value, n * error / ERRORS, expected, neighbours=told, allowance=allowance, df=_DF)
    # Outputs do not depend on the scores, to the last digit; with another map than softmax they would.
    assert abs(found.value - other.value) < 1e-9 * found.value
    if of == "outputs":
        sigmoid = layer.replace(attention_map="sigmoid")
        flat, steep = (
            distance(each, size=_LAW_DRAWS, seed=run_seed) for each in (sigmoid, sigmoid.replace(query_std=4.0))
        )
        error = math.hypot(flat.error, steep.error) / ERRORS
        note.exceeds("a map that is not softmax", abs(steep.value - flat.value), error, 0.0, df=_DF)


def _constant(mean: float, spread: float) -> float:
    """Return the maximum over t of the leading term (3t - t³) spread/8 - t mean/2, times the density."""
    t = 0.005 * np.arange(1, 1000)
    change = np.exp(-0.5 * t * t) / math.sqrt(2 * math.pi) * (-0.5 * t * mean + (3 * t - t**3) * spread / 8)
    return float(np.abs(change).max())


@theory("rates.vanishing", attention_map=("linear", "softmax"))
def test_what_vanishes_falls_as_a_root_and_is_the_theorems_on_its_own_scale(
    attention_map: str, run_seed: int, note: Statement
) -> None:
    """With scores divided by n, the mean size of scores, and of outputs of the linear map, falls as n^{-1/2}."""
    of = "outputs" if attention_map == "linear" else "scores"
    layer = AttentionLayer(width=64, seq_len=2, num_heads=1, attention_map=attention_map, score_scaling="1/n")
    narrow, wide = (distance(layer, "w1", of=of, size=_LAW_DRAWS, seed=run_seed + n, width=n) for n in (64, 1024))
    # Neither 0, as scores with 1/√n, nor -1, as a distance from a non-zero limit.
    _told(note, "order", narrow, wide, -0.5)
    expected, root = wide.width**0.5 * wide.leading, wide.width**0.5
    allowance = 10.0 / wide.width * expected
    note.equals("constant", root * wide.value, root * wide.error / ERRORS, expected, allowance=allowance, df=_DF)
    # On its own scale its distance to the limit falls as 1/n, like the theorem's.
    near, far = (
        distance(layer, "w1", of=of, size=_LAW_DRAWS, seed=run_seed + n, width=n, reference="scaled limit")
        for n in _LAW_WIDTHS
    )
    _told(note, "order on its scale", near, far)


@theory("rates.other_weights", weights=("uniform", "rademacher", "truncated normal", "student5"))
def test_other_weights_have_the_same_limit_and_order_with_a_constant_of_their_own(
    weights: str, run_seed: int, note: Statement
) -> None:
    """The distance times n is c + d/n, with c from the expansion: two widths eliminate d, leaving c (1 - n/n').

    Neighbours: a distance that falls as n^{-1/2} from the same value, and a constant one.
    """
    narrow, wide = (
        distance(AttentionLayer(width=n), weights=weights, size=_LITERAL_DRAWS, seed=run_seed + n)
        for n in _LITERAL_WIDTHS
    )
    ratio, constant = wide.width / narrow.width, wide.width * wide.leading
    note(constant=wide.width * wide.value)
    note.equals(
        "constant without 1/n",
        wide.width * wide.value - narrow.width * narrow.value / ratio,
        math.hypot(wide.width * wide.error, narrow.width * narrow.error / ratio) / ERRORS,
        constant * (1.0 - 1.0 / ratio),
        neighbours=[constant * (ratio**power - 1.0 / ratio) for power in (0.5, 1.0)],
        allowance=_REST[weights] * constant + wide.width * wide.leading_error,
        df=_DF,
    )
    # The constant depends on the fourth cumulants of W^O, and on nothing else of the law.
    own, gaussian = _FOURTH[weights], distance(AttentionLayer(width=_LITERAL_WIDTHS[1]), size=64, seed=run_seed)
    share = wide.width * (wide.leading - gaussian.leading) / own
    error = wide.width * math.hypot(wide.leading_error, gaussian.leading_error) / ERRORS / abs(own)
    note.exceeds("share of the fourth cumulant", share, error, 0.0, df=_DF)


@dataclasses.dataclass(frozen=True)
class _Sums:
    """Parameters of random sums of scores.

    Attributes
    ----------
    correlation : float
        Correlation of the two initial vectors.
    saturated : bool
        Whether inputs are their tanh. With a kink the order 1/n matters up to widths of tens of thousands.
    inputs : tuple of int
        Index of the vector on each side of each score.
    stds, weights : tuple of float
        Standard deviation of each matrix, and weight of each score in the sum.
    """

    correlation: float
    saturated: bool
    inputs: tuple[int, ...]
    stds: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def key(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def describe(self) -> str:
        return f"correlation={self.correlation:g} saturated={self.saturated} inputs={''.join(map(str, self.inputs))}"

    def program(self, sides: tuple[str, ...]) -> tuple[Program, tuple[float, ...]]:
        """Return a program with scores of these matrices, and the factors of its scores.

        Scores have similar sizes, as the third cumulant comes from a cycle through all of them.
        """
        program, names = Program(), dict.fromkeys("".join(sides))
        tokens = program.initials(["h1", "h2"], [0.0, 0.0], [[1.0, self.correlation], [self.correlation, 1.0]])
        inputs = [program.nonlin(tanh(), token) for token in tokens] if self.saturated else tokens
        weights = {name: program.weight(name, std) for name, std in zip(names, self.stds, strict=False)}
        places = iter(self.inputs)
        for pair in sides:
            left, right = (program.matmul(weights[name], inputs[next(places)]) for name in pair)
            program.score(left, right)
        sizes = (math.prod(weights[name].std for name in pair) for pair in sides)
        return program, tuple(weight / size for weight, size in zip(self.weights, sizes, strict=False))


def _several(values: Sequence[Any], count: int) -> Any:
    return st.tuples(*[st.sampled_from(values)] * count)


_ORDERS = {
    ("AB", "BC", "CA"): -0.5,
    ("AB", "CD", "EF"): -1.0,
    ("AB", "BC", "CD", "DA"): -1.0,  # no three scores form a cycle
}


@theory(
    "rates.sums_of_scores",
    st.builds(
        _Sums,
        st.sampled_from((1.0, 0.9)),
        st.booleans(),
        inputs=_several((0, 1), 8),
        stds=_several(STDS, 6),
        weights=_several((1.0, -1.0, 0.7), 4),
    ),
)
def test_sums_of_scores_have_the_order_of_their_third_cumulant(case: _Sums, run_seed: int, note: Statement) -> None:
    for sides, order in _ORDERS.items():
        (program, projection), name = case.program(sides), "·".join(sides)
        assert score_sum(program, "scores", projection).order == order
        seed = int(stream(run_seed, "rates", "scores", program.key).integers(2**32))
        narrow, wide = (
            distance(program, of="scores", projection=projection, size=_LAW_DRAWS, seed=seed + n, width=n)
            for n in _SUM_WIDTHS
        )
        _told(note, f"order of {name}", narrow, wide, order)
        scale = wide.width**-order
        note.equals(
            f"constant of {name}",
            scale * wide.value,
            scale * wide.error / ERRORS,
            scale * wide.leading,
            allowance=0.01 * scale * wide.leading,
            df=_DF,
        )


@theory("rates.scores_and_inputs", layers(max_entries=5_000).map(lambda layer: layer.replace(tied_query_key=False)))
def test_scores_become_independent_of_inputs_as_one_over_n(
    layer: AttentionLayer, run_seed: int, note: Statement
) -> None:
    # A third token shares only ‖h‖ with the score, which may be small next to the positions' part.
    between = set() if layer.position_std else {layer.seq_len // 2}
    tokens = sorted({0, layer.seq_len - 1} | between)
    found = (_at_width(layer, width, tokens, run_seed) for width in (_NARROW, _WIDE))
    for token, narrow, wide in zip(tokens, *found, strict=True):
        # At finite width the dependence is visible. Cyclically shared weights have order -1/2.
        note.exceeds(f"dependence on token {token}", narrow.value, narrow.error, 0.0)
        values, errors = (narrow.value, wide.value), (narrow.error, wide.error)
        note.order(f"order for token {token}", values, errors, (_NARROW, _WIDE), allowance=_CURVATURE)


def _at_width(layer: AttentionLayer, width: int, tokens: list[int], run_seed: int) -> list[Dependence]:
    """Return the dependence for each token, from the same draws: each test keeps its level."""
    wider = layer.replace(width=width)
    rng = stream(run_seed, "rates", wider.key)
    return score_input_dependences(wider, _DRAWS, rng, tokens)
