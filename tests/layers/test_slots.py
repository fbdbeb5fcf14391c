"""Limits that depend on weight laws: slots of layers and programs, and exact moments of one position."""

from __future__ import annotations

import math

import numpy as np
import pytest

import attncheck as ac
from attncheck.layers.nonlinearity import identity, tanh
from attncheck.layers.program import LinearCombination
from attncheck.layers.slots import law_slots
from attncheck.simulators.weights import WEIGHT_LAWS, WeightLaws, draw_with_weights
from attncheck.theory.rates.entries import FOURTH_CUMULANTS
from attncheck.theory.rates.one_position import output_kurtosis, score_kurtosis

LAYER = ac.AttentionLayer(width=8, seq_len=2, num_heads=2, num_kv_heads=1)
ONE = ac.AttentionLayer(width=3, seq_len=1, num_heads=1, activation="identity")


def _depending(described: ac.AttentionLayer | ac.Program) -> dict[str, tuple[str, ...]]:
    return {slot.name: slot.shows_in for slot in law_slots(described) if slot.depends}


def test_no_limit_of_full_heads_depends_on_a_law() -> None:
    assert _depending(LAYER) == {}
    kinds = {slot.name: slot.kind for slot in law_slots(LAYER)}
    assert kinds["h"] == "initial vector"
    assert kinds["W1"] == kinds["K1"] == kinds["Q2"] == "matrix, scores downstream"
    assert kinds["V1"] == "matrix, no scores downstream"
    assert kinds["O2"] == "output matrix"


def test_heads_of_a_fixed_size_keep_the_law_of_the_output_matrix() -> None:
    found = _depending(LAYER.replace(head_dim=4))
    assert set(found) == {"O1", "O2"}
    assert set(found["O2"]) == {"o2,1", "o2,2", "y1", "y2"}


def test_positions_keep_their_law_under_a_nonlinearity_alone() -> None:
    found = _depending(LAYER.replace(position_std=1.0))
    assert set(found) == {"e1", "e2"}
    assert "y1" in found["e2"]
    assert _depending(LAYER.replace(position_std=1.0, activation="identity")) == {
        "e1": ("z1", "x1"),
        "e2": ("z2", "x2"),
    }


def test_slots_of_programs() -> None:
    program = ac.Program()
    h, e = program.initial("h"), program.initial("e")
    x = program.nonlin(LinearCombination((1.0, 2.0)), program.matmul(program.weight("A"), h), e, name="x")
    z = program.matmul(program.weight("B"), program.nonlin(identity(), x, name="same"), "z")
    program.nonlin(tanh(), z, name="last")
    # Matrix B averages the sum, of which only covariances remain.
    assert _depending(program) == {"e": ("x", "same")}
    bent = program.matmul(program.weight("C"), program.nonlin(tanh(), e, name="bent"), "c")
    program.score(bent, program.matmul(program.weight("D"), x), name="p")
    assert set(_depending(program)["e"]) == {"x", "same", "bent", "c", "p"}
    assert _depending(program).keys() == {"e"}
    alone = ac.Program()
    alone.initial("h")
    assert _depending(alone) == {"h": ("h",)}
    with pytest.raises(ac.InputError, match=r"^described='layer': is neither a layer nor a program"):
        # Wrong type on purpose.
        law_slots("layer")  # type: ignore[arg-type]


def test_slots_say_what_they_are() -> None:
    said = [str(slot) for slot in law_slots(ONE.replace(head_dim=1))]
    assert said[0] == "h (initial vector): no limit does"
    assert said[-1] == "O1 (output matrix): the limit of o1,1, y1 depends on its law"


@pytest.mark.sampled
@pytest.mark.parametrize("law", ["gaussian", "uniform", "rademacher"])
def test_moments_of_one_position_are_those_of_literal_draws(law: str) -> None:
    layer, size = ONE.replace(num_heads=2, head_dim=2, width=4), 400_000
    expected = output_kurtosis(layer, law)
    y = draw_with_weights(layer, size, 1, np.random.default_rng(0), law).outputs[:, 0, 0]
    z = ((y**4).mean() - 3.0 - expected) / (y**4).std() * math.sqrt(size)
    assert abs(z) < 5.5
    # Another law in any slot is rejected.
    others = [output_kurtosis(layer, {slot: "student5"}) for slot in ("inputs", "value", "output")]
    assert min(others) > output_kurtosis(layer) + 0.5
    assert output_kurtosis(layer, initial="student5") > output_kurtosis(layer) + 0.5
    for name, cumulant in FOURTH_CUMULANTS.items():
        entries = WEIGHT_LAWS[name](np.random.default_rng(1), (10**6,))
        if name != "student5":
            assert (entries**4).mean() - 3.0 == pytest.approx(cumulant, abs=0.05)


def test_mixtures_say_the_same_of_normal_weights() -> None:
    layer = ONE.replace(width=16)
    law = ac.finite_width_law(layer, size=4096)
    assert law.excess_kurtosis() == pytest.approx(output_kurtosis(layer), abs=1.75 * law.excess_kurtosis_error())
    uniform = ac.finite_width_law(layer, size=2**15, weights="uniform")
    # All matrices have the law, and h is normal.
    off = abs(uniform.excess_kurtosis() - output_kurtosis(layer, "uniform"))
    assert off < 1.75 * uniform.excess_kurtosis_error() < 0.2 * output_kurtosis(layer, "uniform")


def test_limits_of_moments() -> None:
    wide = ONE.replace(width=10**9)
    assert output_kurtosis(wide, "rademacher") == pytest.approx(output_kurtosis(wide, infinite=True), abs=1e-7)
    assert output_kurtosis(ONE, "student5", infinite=True) == 0.0
    assert output_kurtosis(ONE.replace(num_heads=2, head_scaling=False, output_std=3.0)) == output_kurtosis(
        ONE.replace(num_heads=2)
    )
    low = ONE.replace(head_dim=5, num_heads=2)
    # Ten neurons: Gaussian weights plus three times the fourth cumulant of W^O over their number.
    assert output_kurtosis(low, infinite=True) == pytest.approx(0.6)
    assert output_kurtosis(low, {"output": "uniform"}, infinite=True) == pytest.approx(0.6 - 3.6 / 10)
    assert output_kurtosis(low, {"value": "uniform", "inputs": "uniform"}, infinite=True) == pytest.approx(0.6)


def test_moments_refuse_what_they_do_not_know() -> None:
    for layer, field in [
        (ONE.replace(seq_len=2), "seq_len"),
        (ONE.replace(activation="relu"), "activation"),
        (ONE.replace(norm="rms"), "norm"),
        (ONE.replace(attention_map="sigmoid"), "attention_map"),
        (ONE.replace(num_heads=2, num_kv_heads=1), "num_kv_heads"),
    ]:
        with pytest.raises(ac.InputError, match=rf"^{field}="):
            output_kurtosis(layer)
    with pytest.raises(ac.InputError, match=r"^initial='cauchy'"):
        output_kurtosis(ONE, initial="cauchy")
    biased = WeightLaws.of({"query_bias": ("uniform", 0.5)})
    with pytest.raises(ac.InputError, match=r"^weights=.*has biases"):
        output_kurtosis(ONE, biased)
    with pytest.raises(ac.InputError, match=r"^weights=.*has biases"):
        score_kurtosis(ONE, biased, 0.5)
    with pytest.raises(ac.InputError, match=r"^ratio=0.1"):
        score_kurtosis(ONE, "uniform", 0.1)
