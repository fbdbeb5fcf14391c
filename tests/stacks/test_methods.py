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


def test_another_gram_matrix_between_layers_is_told_apart() -> None:
    """Gaussian streams of the mean covariance instead of the scores' own."""
    stack = BARE[0]
    rng = np.random.default_rng(1)
    first = stack.replace(depth=1, activations=("identity",))
    outputs = simulate(first, SIZE, 3, coordinates=2).outputs
    covariance = np.einsum("bic,bjc->ij", outputs, outputs) / outputs[:, 0].size
    fresh = np.linalg.cholesky(covariance) @ rng.standard_normal(outputs.shape)
    made = attend(stack.layers[1], of_inputs(stack.layers[1].inputs)(fresh), 2, rng)
    right = simulate(stack, SIZE, 2, "direct", coordinates=2).scores[:, 1]
    one, other = ((scores**2).sum(axis=(1, 2, 3))[None] for scores in (right, made.scores))
    assert apart(one, other) > MOST


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


@pytest.mark.parametrize("method", ["direct", "matrix-free", "collapsed", "limit"])
@pytest.mark.parametrize("residual", [False, True])
def test_eight_layers_of_every_reading(method: str, residual: bool) -> None:
    names = ("clip", "relu", "tanh", "erf", "identity", "clip", "relu", "tanh")
    stack = AttentionStack(
        layer=AttentionLayer(width=5, seq_len=6, num_heads=2), depth=8, activations=names, residual=residual
    )
    # Overloads take literal names.
    draws = simulate(stack, 3, 0, method, coordinates=4)  # type: ignore[arg-type]  # method is a literal
    assert draws.outputs.shape == (3, 6, 4)
    assert draws.scores.shape == (3, 8, 2, 6, 6)
    assert draws.streams.shape == (3, 8, 6, 4)
    assert draws.grams.shape == (3, 8, 6, 6)
    assert all(np.isfinite(value).all() for value in draws.as_dict().values())


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
