"""Rates: laws of outputs approach the limit as 1/n (Corollary 2), scores become independent of the inputs as 1/n.

Properties of the theory rather than of a subject: laws at finite width and the dependence of scores and inputs are
computed from exact conditional moments, so that nothing else is left to estimate.
"""

from __future__ import annotations

import math

from hypothesis import strategies as st

from attncheck._lib.streams import stream
from attncheck.layers.attention import AttentionLayer, AttentionMap
from attncheck.layers.nonlinearity import relu, tanh
from attncheck.layers.program import Program
from attncheck.looks.examples import draw_examples
from attncheck.pytest_plugin import theory
from attncheck.runs.statements import Statement
from attncheck.strategies import STDS, layers
from attncheck.theory.limits.dependence import Dependence, score_input_dependences
from attncheck.theory.rates.distance import distance
from attncheck.theory.rates.gap import ERRORS
from attncheck.theory.rates.law import Distance
from attncheck.theory.rates.rate import Estimate, rate

_NARROW, _WIDE, _DRAWS = 64, 1024, 6_000
# Two-sided level 1e-9 for each layer and token.
_QUANTILE = 6.1
# The next order, 1/n², bends the slope between the two widths by less than this (0.03 at most was measured).
_CURVATURE = 0.05
# Widths at which laws are compared, and draws; errors come from 8 repetitions: beyond `_STUDENT` standard errors
# (7 degrees of freedom) with a chance of 2e-9.
_LAW_WIDTHS, _LAW_DRAWS, _STUDENT = (512, 8192), 64, 30.0
# An order further off than this is told apart: that of -1/2, of cyclically shared weights, is.
_TOLD_APART = 0.45
# Intervals of fits, at level 1% those of Student's law with 21 degrees of freedom, are widened to 6.1 standard errors:
# beyond with a chance of 5e-6.
_WIDER, _TOLERANCE = 6.1 / 2.831, 0.05
_LITERAL_DRAWS, _LOW_RANK, _GAP_DRAWS = 8192, 3, 512
_FOURTH = {"uniform": -1.2, "rademacher": -2.0, "truncated normal": -0.63, "student5": 6.0}
_PROGRAMS, _SUM_WIDTHS, _SUM_DRAWS = 3, (256, 512, 1024, 2048, 4096, 8192), 512


@theory("rates.outputs", layers(max_entries=800))
def test_outputs_approach_the_limit_as_one_over_n(layer: AttentionLayer, run_seed: int, note: Statement) -> None:
    # A gap stays with heads of fixed size; "1/n" makes outputs of maps that vanish at 0 vanish. The kink of relu
    # leaves more noise than this many draws take away.
    softmax = "softmax" if layer.attention_map == "relu" else layer.attention_map
    wanted = layer.replace(head_dim=None, attention_map=softmax, tied_query_key=False)
    if softmax == "linear":
        wanted = wanted.replace(score_scaling="1/sqrt(n)")
    seed = int(stream(run_seed, "rates", "laws", wanted.key).integers(2**32))
    # More draws where few tell nothing apart: the error decides, not the order.
    for draws in (_LAW_DRAWS, 4 * _LAW_DRAWS):
        narrow, wide = (
            distance(wanted, position=layer.seq_len - 1, size=draws, seed=seed + step, width=width)
            for step, width in enumerate(_LAW_WIDTHS)
        )
        if _order(narrow, wide)[1] < _TOLD_APART:
            break
    note(order=_falls_as_one_over_n(narrow, wide), constant=wide.width * wide.value)


def _order(narrow: Distance, wide: Distance) -> tuple[float, float]:
    """Return the order at which a distance falls, and how far it may be off."""
    span = math.log(wide.width / narrow.width)
    error = math.hypot(narrow.error / narrow.value, wide.error / wide.value) / ERRORS / span
    return math.log(wide.value / narrow.value) / span, _CURVATURE + _STUDENT * error


def _falls_as_one_over_n(narrow: Distance, wide: Distance) -> float:
    order, half = _order(narrow, wide)
    assert abs(order + 1.0) < half, f"order {order:.3f}, half {half:.3f}"
    assert half < _TOLD_APART
    return order


@theory("rates.fixed_heads")
def test_heads_of_fixed_size_keep_a_gap_and_the_rest_falls_as_one_over_n(run_seed: int, note: Statement) -> None:
    drawn = draw_examples(layers(max_entries=200), _LOW_RANK, run_seed, "heads of fixed size")
    for number, layer in enumerate(drawn, 1):
        bounded = "sigmoid" if layer.attention_map == "sigmoid" else "softmax"
        changes = {"head_dim": layer.head_dim or 2, "num_heads": min(2, layer.num_heads), "num_kv_heads": None}
        wanted = layer.replace(attention_map=bounded, **changes)
        seed = int(stream(run_seed, "rates", "heads", wanted.key).integers(2**32))
        position = layer.seq_len - 1
        narrow, wide = (
            distance(wanted, position=position, size=256, seed=seed + n, width=n, reference="infinite width")
            for n in (256, 8192)
        )
        order = _falls_as_one_over_n(narrow, wide)
        gap = distance(wanted, position=position, size=_GAP_DRAWS, seed=seed, width=math.inf)
        note(**{f"order {number}": order, f"gap {number}": gap.value})
        # Neither a limit that is reached, nor a head_dim that is forgotten: nearly all that there is stays.
        assert gap.value > 2.0 * gap.error
        assert gap.value > 4.0 * wide.value


@theory("rates.one_position", heads=(1, 3), of=("outputs", "scores"))
def test_one_position_has_the_gap_of_its_values_alone(heads: int, of: str, run_seed: int, note: Statement) -> None:
    """Softmax of one score is 1: v is ‖h‖²/n χ²_n/n times the heads' mean χ²_n/n, of relative variance (4 + 2/H)/n."""
    layer = AttentionLayer(width=4096, seq_len=1, num_heads=heads)
    found, other = (
        distance(each, of=of, size=_LAW_DRAWS, seed=run_seed) for each in (layer, layer.replace(query_std=2.0))
    )
    mean, spread = (0.0, 4.0 + 2.0 / heads) if of == "outputs" else (4.0, 18.0)
    # The largest of the leading term's values (3t - t³) spread/8 - t mean/2, times the density.
    grid = [0.005 * k for k in range(1, 1000)]
    expected = max(
        abs(math.exp(-0.5 * t * t) / math.sqrt(2 * math.pi) * (-0.5 * t * mean + (3 * t - t**3) * spread / 8))
        for t in grid
    )
    note(constant=layer.width * found.value, expected=expected)
    assert abs(layer.width * found.value - expected) < 0.01 * expected + layer.width * _STUDENT / ERRORS * found.error
    assert _STUDENT / ERRORS * found.error < 0.2 * found.value
    # Outputs do not notice the scores, to the last digit; with another map than softmax they would.
    same = abs(found.value - other.value) < 1e-9 * found.value
    assert same
    if of == "outputs":
        sigmoid, steeper = (
            distance(each.replace(attention_map="sigmoid"), size=_LAW_DRAWS, seed=run_seed)
            for each in (layer, layer.replace(query_std=4.0))
        )
        assert abs(steeper.value - sigmoid.value) > steeper.error + sigmoid.error


@theory("rates.vanishing", attention_map=("linear", "softmax"))
def test_what_vanishes_falls_as_a_root_and_is_the_theorems_on_its_own_scale(
    attention_map: AttentionMap, run_seed: int, note: Statement
) -> None:
    """With 1/n the mean size of outputs of a linear map, and of scores with any, falls as n^{-1/2}."""
    of = "outputs" if attention_map == "linear" else "scores"
    layer = AttentionLayer(width=64, seq_len=2, num_heads=1, attention_map=attention_map, score_scaling="1/n")
    narrow, wide = (distance(layer, "w1", of=of, size=256, seed=run_seed + n, width=n) for n in (64, 1024))
    order, half = _order(narrow, wide)
    note(order=order, constant=wide.width**0.5 * wide.value, expected=wide.width**0.5 * wide.leading)
    assert abs(order + 0.5) < half, f"order {order:.3f}, half {half:.3f}"
    # Neither 0, what scores have with 1/√n, nor -1, what a distance from a limit that is not 0 has.
    assert half < _TOLD_APART
    assert abs(wide.value - wide.leading) < _STUDENT / ERRORS * wide.error + 10.0 / wide.width * wide.leading
    # On its own scale it is as far from its limit as the theorem's number, which falls as 1/n.
    near, far = (
        distance(layer, "w1", of=of, size=256, seed=run_seed + n, width=n, reference="scaled limit")
        for n in _LAW_WIDTHS
    )
    note(**{"order on its scale": _falls_as_one_over_n(near, far)})


@theory("rates.other_weights", weights=("uniform", "rademacher", "truncated normal", "student5"))
def test_other_weights_have_the_same_limit_and_order_with_a_constant_of_their_own(
    weights: str, run_seed: int, note: Statement
) -> None:
    narrow, wide = (
        distance(AttentionLayer(width=n), weights=weights, size=_LITERAL_DRAWS, seed=run_seed + n) for n in (8, 24)
    )
    order = math.log(wide.value / narrow.value) / math.log(wide.width / narrow.width)
    # Widths are small: the next order bends the slope by less than 0.15 (0.1 at most was measured).
    error = math.hypot(narrow.error / narrow.value, wide.error / wide.value) / math.log(wide.width / narrow.width)
    half = 0.15 + _STUDENT / ERRORS**2 * error
    note(order=order, constant=wide.width * wide.value)
    assert abs(order + 1.0) < half, f"order {order:.3f}, error {error:.3f}"
    # Half an order more or less would have been told apart.
    assert half < 0.5
    # The constant is its own: fourth cumulants of W^O enter it, and nothing else of the law does.
    constant, error = wide.width * wide.leading, wide.width * (wide.error + wide.leading_error)
    bend = 6.0 / wide.width * constant
    assert abs(wide.width * wide.value - constant) < bend + 2.0 * error
    gaussian = wide.width * distance(AttentionLayer(width=24), size=1024, seed=run_seed).leading
    # That of normal weights would have been told apart where the fourth cumulants differ much.
    own = _FOURTH[weights]
    assert (constant - gaussian) * own > 0.02 * own**2
    if abs(own) > 5.0:
        assert wide.width * wide.value - 2.0 * error > gaussian


@st.composite
def _sums_of_scores(draw: st.DrawFn, sides: tuple[str, ...]) -> tuple[Program, tuple[float, ...]]:
    """Draw a program with scores of these matrices, on one token or on two, and weights of its scores."""
    program = Program()
    correlation = draw(st.sampled_from((1.0, 0.9)))
    tokens = program.initials(["h1", "h2"], [0.0, 0.0], [[1.0, correlation], [correlation, 1.0]])
    function = draw(st.sampled_from((None, tanh(), relu())))
    inputs = [token if function is None else program.nonlin(function, token) for token in tokens]
    weights = {name: program.weight(name, draw(st.sampled_from(STDS))) for name in dict.fromkeys("".join(sides))}
    for pair in sides:
        left, right = (program.matmul(weights[name], draw(st.sampled_from(inputs))) for name in pair)
        program.score(left, right)
    # Of about one size, as the third cumulant is that of a round through all of them.
    sizes = (math.prod(weights[name].std for name in pair) for pair in sides)
    return program, tuple(draw(st.sampled_from((1.0, -1.0, 0.7))) / size for size in sizes)


_ORDERS = {
    ("AB", "BC", "CA"): -0.5,
    ("AB", "CD", "EF"): -1.0,
    ("AB", "BC", "CD", "DA"): -1.0,  # nothing goes round in three
}


@theory("rates.sums_of_scores", sides=tuple(_ORDERS))
def test_sums_of_scores_have_the_order_of_their_third_cumulant(
    sides: tuple[str, ...], run_seed: int, note: Statement
) -> None:
    order = _ORDERS[sides]
    drawn = draw_examples(_sums_of_scores(sides), _PROGRAMS, run_seed, "orders of sums of scores")
    for number, (program, projection) in enumerate(drawn, 1):
        seed = int(stream(run_seed, "rates", "scores", program.key).integers(2**32))
        found = rate(program, _SUM_WIDTHS, of="scores", projection=projection, size=_SUM_DRAWS, seed=seed)
        note(**{f"order {number}": found.order.value})
        assert found.predicted == order
        half = _WIDER * _half(found.order)
        assert abs(found.order.value - order) < max(_TOLERANCE, half), f"{program}: {found}"
        # The other order would have been told apart.
        assert max(_TOLERANCE, half) < 0.25, f"{program}: {found}"
        assert abs(found.constant.value - found.leading) < 0.05 * found.leading + _WIDER * _half(found.constant)


def _half(estimate: Estimate) -> float:
    return 0.5 * (estimate.high - estimate.low)


@theory("rates.scores_and_inputs", layers(max_entries=5_000))
def test_scores_become_independent_of_inputs_as_one_over_n(
    layer: AttentionLayer, run_seed: int, note: Statement
) -> None:
    layer = layer.replace(tied_query_key=False)
    # A third token shares ‖h‖ alone with the score, which may be little next to what positions add.
    between = set() if layer.position_std else {layer.seq_len // 2}
    tokens = sorted({0, layer.seq_len - 1} | between)
    found = (_at_width(layer, width, tokens, run_seed) for width in (_NARROW, _WIDE))
    for token, narrow, wide in zip(tokens, *found, strict=True):
        note(**{f"distance of token {token} at n={_NARROW}": narrow.value, f"at n={_WIDE}": wide.value})
        assert narrow.value > _QUANTILE * narrow.error, "at finite width the dependence is there, and is seen"
        order = math.log(wide.value / narrow.value) / math.log(_WIDE / _NARROW)
        error = math.hypot(narrow.error / narrow.value, wide.error / wide.value) / math.log(_WIDE / _NARROW)
        assert abs(order + 1.0) < _CURVATURE + _QUANTILE * error, f"order {order:.3f}, error {error:.3f}"
        # An order of -1/2, that of cyclically shared weights, would have been told apart.
        assert _CURVATURE + _QUANTILE * error < 0.25


def _at_width(layer: AttentionLayer, width: int, tokens: list[int], run_seed: int) -> list[Dependence]:
    """Return the dependence for each token, from the same draws: each test keeps its level."""
    wider = layer.replace(width=width)
    rng = stream(run_seed, "rates", wider.key)
    return score_input_dependences(wider, _DRAWS, rng, tokens)
