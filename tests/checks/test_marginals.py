"""Joint or partial computation changes no digit."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from attncheck.checks.laws import (
    LAW_ERROR,
    _law,
    affordable_draws,
    conditional_variances,
    first_draws,
    marginal_law,
    usual,
)
from attncheck.checks.reference import Reference
from attncheck.layers.attention import AttentionLayer
from attncheck.methods import drawn_blocks, simulate

LAYER = AttentionLayer(width=8, seq_len=3, num_heads=2)


@pytest.mark.parametrize("method", ["collapsed", "limit"])
def test_marginals_of_a_layer_share_their_draws(method: Literal["collapsed", "limit"]) -> None:
    together = np.concatenate(conditional_variances(LAYER, usual(LAYER), 300, method), axis=1)
    assert together.shape == (3, 300)
    for row, marginal in zip(together, usual(LAYER), strict=True):
        (alone,) = np.concatenate(conditional_variances(LAYER, (marginal,), 300, method), axis=1)
        np.testing.assert_array_equal(row, alone)
        assert (row > 0).all()
    assert not np.allclose(together[0], together[1])


@pytest.mark.parametrize(
    "layer",
    [
        LAYER.replace(width=2, seq_len=5, num_kv_heads=1, attention_map="sigmoid", activation="relu"),
        LAYER.replace(tied_query_key=True, score_scaling="1/n", mask="causal", input_correlation=0.5),
        LAYER.replace(width=64, seq_len=12, num_heads=4, head_dim=4, position_std=0.5),
    ],
    ids=lambda layer: layer.describe(),
)
@pytest.mark.parametrize("method", ["collapsed", "limit"])
def test_draws_without_outputs_have_the_digits_of_those_with_them(
    layer: AttentionLayer, method: Literal["collapsed", "limit"]
) -> None:
    whole = simulate(layer, 2_000, 3, method).as_dict()  # several blocks
    parts = [part.as_dict() for part in drawn_blocks(layer, 2_000, 3, method, outputs=False)]
    assert parts[0].keys() == whole.keys()
    for name in whole.keys() - {"outputs", "inputs"}:
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), whole[name], err_msg=name)
    assert all(part["outputs"].size == part["inputs"].size == 0 for part in parts)
    later = list(drawn_blocks(layer, 2_000, 3, method, grams=frozenset({"key_gram"}), first=len(parts) - 1))
    assert len(later) == 1
    assert later[0].value_gram is None
    for name, array in later[0].as_dict().items():
        np.testing.assert_array_equal(array, whole[name][-len(later[0]) :], err_msg=name)


def test_laws_keep_the_whole_blocks_of_fewer_draws() -> None:
    layer = LAYER.replace(width=16, seq_len=12, num_heads=16)
    few = conditional_variances(layer, usual(layer), 500, "collapsed")
    assert len(few) > 2
    grown = conditional_variances(layer, usual(layer), 900, "collapsed", few[:-1])
    whole = conditional_variances(layer, usual(layer), 900, "collapsed")
    np.testing.assert_array_equal(np.concatenate(grown, axis=1), np.concatenate(whole, axis=1))


@pytest.mark.parametrize("method", ["collapsed", "limit"])
def test_laws_take_the_draws_that_the_worst_of_them_asks_for(method: Literal["collapsed", "limit"]) -> None:
    layers = (LAYER, LAYER.replace(attention_map="linear", width=2))
    grown = 0
    for layer in layers:
        together = usual(layer)[:2] if method == "limit" else usual(layer)
        laws = [marginal_law(layer, marginal, method) for marginal in together]
        (size,) = {law.size for law in laws}
        assert max(law.error for law in laws) < LAW_ERROR or size == affordable_draws(layer, 128_000, method)
        fewer = max(
            _law(row).error for row in np.concatenate(conditional_variances(layer, together, size // 2, method), axis=1)
        )
        assert size == first_draws(layer, method) or fewer >= LAW_ERROR
        grown += size > first_draws(layer, method)
    assert grown


def test_a_reference_computes_what_is_wanted_on_the_same_draws() -> None:
    every = Reference(LAYER, 20, 2, np.random.SeedSequence(0)).functionals
    wanted = frozenset({"output", "score_energy"})
    some = Reference(LAYER, 20, 2, np.random.SeedSequence(0), wanted).functionals
    assert set(some) == wanted < set(every)
    for name, values in some.items():
        np.testing.assert_array_equal(values, every[name])
