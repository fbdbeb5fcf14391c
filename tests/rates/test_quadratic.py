"""Sums of program scores: against literal draws, closed forms, and the orders due to shared matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck.layers.nonlinearity import relu, tanh
from attncheck.layers.program import LinearCombination, Program
from attncheck.simulators.multipliers import DirectMultiplier
from attncheck.simulators.programs import draw_lines
from attncheck.theory.rates.distance import score_sum
from attncheck.theory.rates.quadratic import ScoreSum

_CYCLE, _APART = ("AB", "BC", "CA"), ("AB", "CD", "EF")


def _program(sides: tuple[str, ...], hidden: bool = False) -> Program:
    """Return scores of two correlated tokens, with or without a matrix before the inputs."""
    program = Program()
    tokens = program.initials(["h1", "h2"], [0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]])
    made = program.weight("W")
    vectors = [program.matmul(made, token) for token in tokens] if hidden else tokens
    inputs = [program.nonlin(relu() if hidden else tanh(), vector) for vector in vectors]
    weights = {name: program.weight(name, 1.5) for name in dict.fromkeys("".join(sides))}
    for k, pair in enumerate(sides):
        left, right = (program.matmul(weights[name], inputs[(k + j) % 2]) for j, name in enumerate(pair))
        program.score(left, right)
    return program


# With and without a hidden matrix and sides, each with and without a cycle.
@pytest.mark.parametrize(
    ("sides", "hidden"), [(_CYCLE, True), (_APART, False), (("AB", "BA"), True), (("AB", "AC", "BC"), False)]
)
def test_it_is_the_law_of_literal_draws(sides: tuple[str, ...], hidden: bool) -> None:
    program, width, size = _program(sides, hidden), 8, 20_000
    weights = tuple(1.0 - 0.25 * k for k in range(len(sides)))
    total = ScoreSum(program, weights)
    gap = total.gap(width, 512, np.random.SeedSequence(0).spawn(8))
    drawn = draw_lines(program.at(width), size, 1, np.random.default_rng(1), DirectMultiplier).scores @ np.array(
        weights
    )
    cdf = stats.norm.cdf(gap.points / total.std) + gap.cdf.mean(axis=0)
    error = 4 * gap.cdf.std(axis=0, ddof=1).max() / math.sqrt(8)
    found = stats.ks_1samp(drawn, lambda t: np.interp(t, gap.points, cdf)).statistic
    # Exceeded with a chance of 1e-6; the computed law's own error must not dominate.
    assert error < 0.01
    assert stats.kstwo.sf(max(0.0, found - error), size) > 1e-6


# `properties/theory/test_rates.py` fits the orders and tests the leading constants.
@pytest.mark.parametrize(
    ("sides", "projection", "skewed"),
    [
        (_CYCLE, (1.0, 1.0, 1.0), True),
        (_CYCLE, (1.0, 1.0, 0.0), False),  # two of three: no cycle
        (("AB", "BC", "CD", "DA"), (1.0, 1.0, 1.0, 1.0), False),  # a third cumulant needs a cycle of three
        (("AB", "BC", "CD", "DA", "AC"), (1.0,) * 5, True),
        (("AB", "AC", "AD"), (1.0, 1.0, 1.0), False),
    ],
)
def test_the_order_follows_from_the_third_cumulant(
    sides: tuple[str, ...], projection: tuple[float, ...], skewed: bool
) -> None:
    assert (ScoreSum(_program(sides), projection).order == -0.5) is skewed


def test_the_third_cumulant_is_that_of_three_gram_entries() -> None:
    total = ScoreSum(_program(_CYCLE), (1.0, 1.0, 1.0))
    # A sees both tokens, B the second twice, C the first twice: six times E p1 p2 p3 = n^{-1/2} σ⁶ K_12 K_22 K_11.
    (first, both), (_, second) = total.kernel
    assert total.skewness * total.std**3 == pytest.approx(6 * 1.5**6 * first * both * second, rel=1e-9)


def test_one_score_is_the_score_of_a_layer() -> None:
    program = Program()
    h = program.initial("h")
    tokens = [program.matmul(program.weight(name), h) for name in ("W1", "W2")]
    program.score(program.matmul(program.weight("Q"), tokens[0]), program.matmul(program.weight("K"), tokens[1]))
    # `ac.distance` redraws this for each metric.
    gap = score_sum(program, "scores", None).gap(16, 2048, np.random.SeedSequence(0).spawn(8))
    for metric in ("ks", "w1", "tv"):
        value, error = gap.distance(metric)
        theirs = ac.distance(ac.AttentionLayer(width=16, clip=1e9), metric, of="scores", size=1024)
        assert value == pytest.approx(theirs.value, abs=error + theirs.error)
        assert error + theirs.error < 0.2 * value


def test_a_linear_combination_of_tokens_is_an_input_too() -> None:
    program = Program()
    one, other = program.initials(["h1", "h2"], [0.5, 0.0], [[1.0, 0.0], [0.0, 2.0]])
    total = program.nonlin(LinearCombination((1.0, -1.0)), one, other)
    program.score(program.matmul(program.weight("Q"), total), program.matmul(program.weight("K"), one))
    found = ac.distance(program, of="scores", width=10**5, size=16)
    assert found.value == pytest.approx(found.leading, rel=0.02)
    assert found.error < 0.02 * found.value


def test_bad_arguments_are_named() -> None:
    program = _program(_CYCLE)
    for arguments, field in [
        ({"of": "outputs", "width": 64}, "of"),
        ({"of": "scores"}, "width"),
        ({"of": "scores", "width": 2}, "width"),
        ({"of": "scores", "width": 64, "metric": "kl"}, "metric"),
        ({"of": "scores", "width": 64, "key": 1}, "key"),
        ({"of": "scores", "width": 64, "projection": [1, 1, 1], "position": 1}, "position"),
        ({"of": "scores", "width": 64, "position": np.array([0, 1])}, "position"),
        ({"of": "scores", "width": 64, "weights": "uniform"}, "weights"),
        ({"of": "scores", "width": 64, "reference": "infinite width"}, "reference"),
        ({"of": "scores", "width": 64, "projection": np.array(3.0)}, "projection"),
        ({"of": "scores", "width": 64, "projection": (1.0,)}, "projection"),
        ({"of": "scores", "width": 64, "projection": (1.0, math.nan, 1.0)}, "projection"),
        ({"of": "scores", "width": 64, "projection": (0.0, 0.0, 0.0)}, "projection"),
        ({"of": "scores", "width": 64, "projection": (1e200, 1e200, 1.0)}, "projection"),
        ({"of": "scores", "width": 64, "projection": (-1e100, 1.0, 1.0)}, "projection"),
        ({"of": "scores", "width": 64, "projection": (1e-100, 1e-100, 1e-100)}, "projection"),
        ({"of": "scores", "width": 64, "projection": 3.0}, "projection"),
    ]:
        with pytest.raises(ac.InputError, match=f"^{field}=") as caught:
            # mypy cannot match arguments of any type to parameters.
            ac.distance(program, **arguments)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    for layer in (program, ac.AttentionLayer(width=8)):
        with pytest.raises(ac.InputError, match=r"^widths=5: is not a list of whole numbers"):
            # Wrong type on purpose.
            ac.rate(layer, 5, of="scores")  # type: ignore[arg-type]
    with pytest.raises(ac.InputError, match="six different"):
        ac.rate(program, (64, 128, 256, 512), of="scores")
    with pytest.raises(ac.InputError, match="projection"):
        ac.distance(ac.AttentionLayer(width=8), projection=(1.0,))
    with pytest.raises(ac.InputError, match=r"^program=<Program of 0 lines and 0 weights>: has no lines"):
        ac.distance(Program(), of="scores", width=64)
    without = Program()
    without.initial("h")
    with pytest.raises(ac.InputError, match="no scores") as caught:
        score_sum(without, "scores", None)
    assert "\n" not in str(caught.value)


def test_what_has_no_such_law_is_refused() -> None:
    program = Program()
    h, q, k = program.initial("h"), program.weight("Q", rows=4), program.weight("K", rows=4)
    program.score(program.matmul(q, h), program.matmul(k, h))
    with pytest.raises(ac.InputError, match="fixed size"):
        ac.distance(program, of="scores", width=64)
    again = Program()
    h, q, k = again.initial("h"), again.weight("Q"), again.weight("K")
    again.score(again.matmul(q, again.matmul(q, h)), again.matmul(k, h))
    with pytest.raises(ac.InputError, match="program"):
        ac.distance(again, of="scores", width=64)


def test_the_law_scales_with_its_weights() -> None:
    program = _program(_CYCLE)
    for metric in ("ks", "w1"):
        unit, *others = (
            ac.distance(program, metric, of="scores", width=64, size=16, projection=(each, -each, 0.5 * each))
            for each in (1.0, 1e-12, 1e12)
        )
        for scale, scaled in zip((1e-12, 1e12), others, strict=True):
            factor = scale if metric == "w1" else 1.0
            assert scaled.value == pytest.approx(factor * unit.value, rel=1e-6)
            assert scaled.error == pytest.approx(factor * unit.error, rel=1e-3)
