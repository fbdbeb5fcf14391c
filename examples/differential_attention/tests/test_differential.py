"""The simulator passes its check, the fault does not, and both error rates are measured."""

from __future__ import annotations

import numpy as np
import pytest
from differential_attention import simulate
from differential_attention.checks import second_softmax_forgotten
from differential_attention.simulator import LAMBDA, FloatArray, differential, draw, supports

from attncheck import AttentionLayer, check
from attncheck.commands.cli import main

LAYERS = [AttentionLayer(width=16, seq_len=s, num_heads=h) for s, h in ((4, 2), (2, 4), (1, 2))]


def test_rows_of_the_weights_sum_to_one_minus_lambda() -> None:
    scores = draw(LAYERS[0], 10, np.random.default_rng(0))["scores"]
    assert differential(scores).sum(axis=-1) == pytest.approx(1.0 - LAMBDA)


def test_the_simulator_passes_its_check() -> None:
    # A correct simulator fails with a probability of 1e-6.
    report = check(simulate, LAYERS, properties="differential")
    report.require(min_examined=len(LAYERS))


@pytest.mark.parametrize("factor", [0.0, 0.7])
def test_a_wrong_lambda_is_found(factor: float) -> None:
    def wrong(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        return draw(layer, size, rng, factor)

    wrong.supports = supports  # type: ignore[attr-defined]  # mypy knows no attributes of functions
    assert check(wrong, LAYERS, properties="differential").verdict == "violated"


def test_both_error_rates(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["calibrate", "differential", "--subject", "differential_attention:simulate", "--looks", "300"])
    text = capsys.readouterr().out
    assert code == 0, text
    assert "against differential_attention.checks:second_softmax_forgotten" in text


def test_the_fault_is_the_simulator_without_the_second_softmax() -> None:
    layer = LAYERS[0]
    one, other = (
        second_softmax_forgotten(layer, 5, np.random.default_rng(1)),
        draw(layer, 5, np.random.default_rng(1), 0.0),
    )
    assert np.array_equal(one["outputs"], other["outputs"])
