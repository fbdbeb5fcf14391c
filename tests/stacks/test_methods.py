"""A stack's methods have one joint law, unlike that of independent layers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from attncheck import AttentionLayer, AttentionStack, InputError, StackDraws, simulate, simulate_chunks
from attncheck.layers.nonlinearity import of_inputs
from attncheck.methods import Method
from attncheck.simulators.collapsed import attend, draw_inputs

from .laws import BARE, FUNCTIONALS, MOST, SIZE, apart, numbers


def forgetful(stack: AttentionStack, size: int, rng: np.random.Generator) -> StackDraws:
    """Draw every layer from fresh inputs with the law of its own."""
    drawn = simulate(stack, size, int(rng.integers(2**32)), coordinates=stack.width)
    scores, grams = [], []
    for k, layer in enumerate(stack.layers):
        inputs = of_inputs(layer.inputs)(np.roll(drawn.streams[:, k], k, axis=0))
        made = attend(layer, inputs, stack.width, rng)
        assert made.input_gram is not None
        scores.append(made.scores)
        grams.append(made.input_gram)
    return StackDraws(made.outputs, np.stack(scores, axis=1), drawn.streams, np.stack(grams, axis=1))


def test_fresh_inputs_between_layers_are_told_apart() -> None:
    # At SIZE, the distances are about those that chance allows.
    ours = numbers(simulate(BARE[0], 4 * SIZE, 2, "direct", coordinates=2))
    theirs = numbers(forgetful(BARE[0], 4 * SIZE, np.random.default_rng(0)))
    found = {name: apart(ours[[k]], theirs[[k]]) for k, name in enumerate(FUNCTIONALS)}
    assert found["last gram"] < MOST / 2, "each layer alone has its law"
    for name in ("sum of all squared scores", "grams of two layers", "squared output and first score"):
        assert found[name] > MOST / 2, found


LAYERS = (
    AttentionLayer(width=6, seq_len=3, num_heads=2),
    AttentionLayer(width=3, seq_len=4, num_heads=4, num_kv_heads=2, head_dim=2, mask="causal", activation="relu"),
)


@pytest.mark.parametrize("layer", LAYERS, ids=AttentionLayer.describe)
def test_one_layer_is_an_attention_layer(layer: AttentionLayer) -> None:
    """To the last digit, for each method with the same order of random numbers."""
    stack = AttentionStack(layer=layer, depth=1)
    methods: tuple[Method, ...] = ("collapsed", "direct", "matrix-free")
    for method in methods:
        ours, theirs = simulate(stack, 500, 7, method, coordinates=2), simulate(layer, 500, 7, method, coordinates=2)
        if method == "collapsed":
            np.testing.assert_array_equal(ours.outputs, theirs.outputs)
            np.testing.assert_array_equal(ours.scores[:, 0], theirs.scores)
            np.testing.assert_array_equal(ours.grams[:, 0], theirs.input_gram)
        else:
            assert stats.ks_2samp(ours.outputs[:, 0, 0], theirs.outputs[:, 0, 0]).pvalue > 1e-9
    inputs = draw_inputs(layer, 3, np.random.default_rng(0))
    assert of_inputs(stack.layers[0].inputs)(inputs).shape == inputs.shape


@pytest.mark.parametrize("method", ["direct", "collapsed", "limit"])
def test_chunks_have_the_digits_of_the_whole(method: str) -> None:
    stack = BARE[1]
    # Overloads take literal names.
    whole = simulate(stack, 50, 4, method)  # type: ignore[arg-type]  # method is a literal
    chunks = list(simulate_chunks(stack, 50, 17, 4, method))  # type: ignore[arg-type]  # method is a literal
    np.testing.assert_array_equal(np.concatenate([chunk.outputs for chunk in chunks]), whole.outputs)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match=r"^coordinates=9: exceeds width=4; ask for"):
        simulate(BARE[1], 10, coordinates=9)
    with pytest.raises(InputError, match=r"^memory=1000: is too little for one collapsed draw of this stack"):
        simulate(BARE[1], 10, memory=1000)
    assert simulate(BARE[1], 2, method="limit", coordinates=9).outputs.shape == (2, 2, 9)
