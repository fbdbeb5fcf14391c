"""attncheck's own layers: samples have the computed exponents."""

from __future__ import annotations

from typing import Any

import pytest

import attncheck as ac
from attncheck._lib.errors import InputError
from attncheck.layers.program import Program
from attncheck.programs import EXAMPLES

WIDTHS = (16, 32, 64, 128)
# Heavy tails, as under linear attention, bias the logarithm of a mean of squares downwards, more so in narrow
# layers: by 0.01 of the exponent, a tenth of the tolerance.
BIAS = 0.015
LAYER = ac.AttentionLayer(width=64, seq_len=3)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("changes", "scores"),
    [
        ({}, "0"),
        ({"score_scaling": "1/n"}, "-0.5"),
        ({"head_dim": 8, "num_heads": 4}, "0"),
        ({"head_dim": 8, "score_scaling": "1/n"}, "0"),
        ({"attention_map": "linear", "mask": "causal"}, "0"),
    ],
)
def test_sampled_exponents_hold_the_computed_ones(changes: dict[str, Any], scores: str) -> None:
    found = ac.widths(LAYER.replace(**changes), WIDTHS, seeds=32)
    assert found["scores"].predicted == scores
    assert [row.name for row in found.rows] == ["inputs", "scores", "outputs"]
    for row in found.rows:
        assert row.low is not None
        assert row.high is not None
        assert row.low - BIAS < float(row.predicted) < row.high + BIAS
        assert row.verdict != "violated"


def test_lines_of_programs_hold_the_order_of_their_limit() -> None:
    """Of a program with a reused matrix and with scores."""
    program = EXAMPLES["recurrent_attention"]()
    found = ac.widths(program, WIDTHS, seeds=8)
    assert [row.name for row in found.rows] == [line.name for line in program.lines()]
    assert {row.predicted for row in found.rows} == {"0"}
    assert not found.violated
    wrong = ac.widths(program, WIDTHS[:3], {"*": -0.5}, seeds=8)
    assert len(wrong.violated) == len(found.rows)


def test_what_is_0_in_the_limit_is_not_predicted() -> None:
    program = Program()
    x = program.matmul(program.weight("W"), program.initial("h"))
    nothing = program.nonlin(lambda values: 0.0 * values, x, name="nothing")
    program.matmul(program.weight("V"), nothing)
    found = ac.widths(program, WIDTHS)
    assert [str(row.verdict) for row in found.rows if row.name in ("nothing", "g2")] == ["not examined"] * 2


@pytest.mark.sampled
@pytest.mark.parametrize(("scaling", "order"), [("1/sqrt(n)", "0"), ("1/n", "-0.5")])
@pytest.mark.parametrize("residual", [False, True])
def test_stacks_hold_the_orders_of_their_layers(scaling: Any, order: str, residual: bool) -> None:
    layer = LAYER.replace(score_scaling=scaling)
    stack = ac.AttentionStack(layer=layer, depth=2, activations="tanh", residual=residual)
    found = ac.widths(stack, WIDTHS, seeds=8)
    assert {row.name: row.predicted for row in found.rows} == {
        "0.stream": "0",
        "0.scores": order,
        "1.stream": "0",
        "1.scores": order,
        "outputs": "0",
    }
    assert not found.violated
    assert ac.widths(stack, WIDTHS, {"1.scores": 0.5}, seeds=8).violated


def test_a_layer_that_is_predicted_wrong_is_violated_and_red_on_a_terminal() -> None:
    found = ac.widths(LAYER.replace(score_scaling="1/n"), WIDTHS, "standard", seeds=32)
    assert [row.name for row in found.violated] == ["scores"]
    red = [line for line in found.shown(red=True).splitlines() if line.startswith("\x1b[31m")]
    assert len(red) == 1
    assert red[0].startswith("\x1b[31mscores ")
    assert red[0].endswith("\x1b[0m")
    assert "\x1b" not in str(found)


def test_it_takes_no_functions() -> None:
    with pytest.raises(
        InputError,
        match=r"loss=.*: applies to models only, not to a layer, stack or program of attncheck; leave it out",
    ):
        ac.widths(LAYER, WIDTHS, loss=print)


@pytest.mark.parametrize("pattern", ["score", "output", "*.scores", "heads*"])
def test_a_line_of_a_table_that_is_of_no_tap_is_refused(pattern: str) -> None:
    """A misspelt tap would predict nothing."""
    if pattern == "output":  # a kind: a table may serve several models
        assert ac.widths(LAYER, WIDTHS, {"output": 0, "embedding": 0}, seeds=4).rows
        return
    with pytest.raises(InputError, match=r"matches no tap; use an existing name, such as (scores|inputs)"):
        ac.widths(LAYER, WIDTHS, {pattern: 0, "*": 0}, seeds=4)
