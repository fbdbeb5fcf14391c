"""The finite-width methods have one joint law; `test_interpret` and `tests/layers/test_parts` have the definition."""

from __future__ import annotations

import numpy as np
import pytest

from attncheck import AttentionLayer, Draws, simulate
from attncheck._lib.arrays import FloatArray
from attncheck.checks.functionals import FUNCTIONALS

from .conftest import COMPARISONS, assert_same_law

# A different seed per method: methods share streams, and compared samples must be independent.
SEEDS = {"direct": 1, "matrix-free": 2, "collapsed": 3}

# `properties/test_exactness.py` compares methods on random layers in every run; here are narrow, singular and long
# ones, each map, scaling, mask and grouping, and positions and ties.
LAYERS = (
    AttentionLayer(width=1, seq_len=1, num_heads=1),
    AttentionLayer(width=1, seq_len=3, num_heads=2, activation="relu"),
    AttentionLayer(width=1, seq_len=2, num_heads=2, head_dim=3, attention_map="relu", clip=1.0, input_correlation=0.5),
    AttentionLayer(width=3, seq_len=5, num_heads=2, clip=1.0, input_correlation=0.5),
    AttentionLayer(
        width=3, seq_len=4, num_heads=4, num_kv_heads=1, head_dim=8, attention_map="linear", mask="causal", key_std=0.7
    ),
    AttentionLayer(
        width=8, seq_len=4, num_heads=4, num_kv_heads=2, mask="causal", query_std=1.5, input_correlation=0.8
    ),
    AttentionLayer(width=8, seq_len=5, num_heads=2, head_dim=3, value_std=0.7, output_std=1.5, attention_map="sigmoid"),
    AttentionLayer(width=8, seq_len=3, num_heads=3, attention_map="relu", head_scaling=False, activation="tanh"),
    AttentionLayer(width=8, seq_len=2, num_heads=2, head_dim=2, score_scaling="1/n", input_correlation=1.0),
    AttentionLayer(width=4, seq_len=6, num_heads=4, num_kv_heads=2, mask="causal", activation="erf", input_std=2.0),
    AttentionLayer(width=16, seq_len=3, num_heads=2, activation="identity", input_correlation=0.2, query_std=2.0),
    AttentionLayer(width=3, seq_len=4, num_heads=2, position_std=1.5, mask="causal", clip=2.0),
    AttentionLayer(
        width=8, seq_len=3, num_heads=2, position_std=0.7, position_reach=2.0, input_correlation=1.0, activation="relu"
    ),
    AttentionLayer(
        width=3, seq_len=4, num_heads=2, tied_query_key=True, score_scaling="1/n", query_std=1.5, key_std=1.5
    ),
    AttentionLayer(width=8, seq_len=3, num_heads=2, head_dim=3, tied_query_key=True, score_scaling="1/n"),
    AttentionLayer(width=5, seq_len=3, num_heads=2, activation="relu", query_std=1.5, norm="rms"),
    AttentionLayer(
        width=4, seq_len=4, num_heads=2, head_dim=3, num_kv_heads=1, clip=1.0, position_std=0.5, norm="layer"
    ),
)


def assert_same_joint_law(layer: AttentionLayer, ours: Draws, theirs: Draws, what: str) -> int:
    """Compare all informative functionals; return their number."""
    compared = 0
    for functional in FUNCTIONALS:
        if functional.applies(layer, ours.outputs.shape[-1]):
            values = [functional.compute(layer, draws) for draws in (ours, theirs)]
            assert_same_law(values[0], values[1], f"{layer.describe()}: {functional.name}, {what}")
            compared += 1
    return compared


def gram_functionals(draws: Draws) -> dict[str, FloatArray]:
    """Functionals that tie the Gram matrices to the rest of a draw."""
    grams = {"input": draws.input_gram, "key": draws.key_gram, "value": draws.value_gram}
    found = {}
    for name, gram in grams.items():
        assert gram is not None
        found[f"{name} trace"] = np.trace(gram, axis1=-2, axis2=-1).reshape(len(draws), -1).sum(axis=1)
        found[f"{name} gram and output"] = gram.reshape(len(draws), -1)[:, 0] * draws.outputs[:, 0, 0] ** 2
        found[f"{name} gram and score"] = gram.reshape(len(draws), -1)[:, -1] * draws.scores[:, -1, -1, -1]
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("layer", LAYERS, ids=AttentionLayer.describe)
def test_finite_width_readings_agree_in_law(layer: AttentionLayer) -> None:
    size, coordinates = 8_000, min(layer.width, 2)
    draws = {
        "direct": simulate(layer, size, SEEDS["direct"], "direct", coordinates),
        "matrix-free": simulate(layer, size, SEEDS["matrix-free"], "matrix-free", coordinates),
        "collapsed": simulate(layer, size, SEEDS["collapsed"], "collapsed", coordinates),
    }
    grams = {name: gram_functionals(d) for name, d in draws.items()}
    # Close to the literal method, so close to the others.
    for one, other in (("direct", "matrix-free"), ("direct", "collapsed")):
        compared = assert_same_joint_law(layer, draws[one], draws[other], f"{one} and {other}")
        assert compared >= 6
        for name in grams[one]:
            assert_same_law(grams[one][name], grams[other][name], f"{layer.describe()}: {name}, {one} and {other}")


def test_the_comparisons_cover_all_functionals_and_are_no_more_than_their_level_says() -> None:
    assert len(FUNCTIONALS) >= 12
    shown = {f.name: sum(f.applies(layer, min(layer.width, 2)) for layer in LAYERS) for f in FUNCTIONALS}
    assert min(shown.values()) >= 2, shown
    of_methods = 2 * (sum(shown.values()) + len(LAYERS) * len(gram_functionals(simulate(LAYERS[0], 1))))
    of_programs = 30
    assert of_methods + of_programs <= COMPARISONS


def test_zero_inputs_give_scores_that_are_exactly_zero() -> None:
    """With ReLU at width 1 half of the inputs are 0: rounding noise would be another law."""
    for seq_len, width in ((12, 1), (5, 2), (2, 3)):
        layer = AttentionLayer(width=width, seq_len=seq_len, num_heads=2, activation="relu")
        for name in ("direct", "matrix-free", "collapsed"):
            draws = simulate(layer, 500, method=name, coordinates=width)
            zero = (draws.inputs == 0.0).all(axis=-1)
            assert zero.any()
            either = np.broadcast_to((zero[:, :, None] | zero[:, None, :])[:, None], draws.scores.shape)
            assert not draws.scores[either].any()
            assert draws.scores[~either].all()


# Against the definition


# Gram matrices


@pytest.mark.parametrize("method", ["direct", "matrix-free", "collapsed"])
@pytest.mark.parametrize("layer", LAYERS, ids=AttentionLayer.describe)
def test_gram_matrices_fit_the_draw(layer: AttentionLayer, method: str) -> None:
    """Exact relations: shapes, symmetry, groups, the inputs' own Gram matrix, and the range of the scores."""
    # Overloads take literal names, parameters any string.
    draws = simulate(layer, 40, 5, method, coordinates=layer.width)  # type: ignore[arg-type]  # method is a literal
    s, heads = layer.seq_len, layer.num_heads
    assert draws.outputs.shape == draws.inputs.shape == (40, s, layer.width)
    assert draws.scores.shape == (40, heads, s, s)
    assert draws.input_gram is not None
    assert draws.key_gram is not None
    assert draws.value_gram is not None
    own = draws.inputs @ draws.inputs.swapaxes(-1, -2) / layer.width
    np.testing.assert_allclose(draws.input_gram, own, rtol=1e-12, atol=1e-13)
    for gram in (draws.key_gram, draws.value_gram):
        assert gram.shape == (40, heads, s, s)
        np.testing.assert_allclose(gram, gram.swapaxes(-1, -2), rtol=1e-13, atol=1e-14)
        grouped = gram.reshape(40, layer.kv_heads, layer.group_size, s, s)
        np.testing.assert_array_equal(grouped, np.broadcast_to(grouped[:, :, :1], grouped.shape))
        firsts = np.diagonal(grouped[:, :, 0], axis1=-2, axis2=-1).sum(axis=-1)
        nonzero = firsts.min(axis=1) > 0.0
        assert all(len(set(row)) == layer.kv_heads for row in firsts[nonzero].tolist())
    assert not np.array_equal(draws.key_gram / layer.key_std**2, draws.value_gram / layer.value_std**2)
    # Rows of P are in the row space of Kᵀ, columns in the column space of X.
    for scores, gram in (
        (draws.scores, draws.key_gram),
        (draws.scores.swapaxes(-1, -2), np.broadcast_to(draws.input_gram[:, None], draws.scores.shape)),
    ):
        values, vectors = np.linalg.eigh(gram)
        null = np.where(values <= 1e-10 * (values[..., -1:] + 1e-300), 1.0, 0.0)
        outside = (scores @ vectors) * null[..., None, :]
        assert np.abs(outside).max() <= 1e-5 * np.abs(scores).max()


def test_the_limit_has_no_gram_matrices() -> None:
    draws = simulate(LAYERS[0], 10, method="limit", coordinates=3)
    assert draws.outputs.shape == draws.inputs.shape == (10, 1, 3)
    assert draws.input_gram is draws.key_gram is draws.value_gram is None
    assert set(draws.as_dict()) == {"outputs", "scores", "inputs"}
