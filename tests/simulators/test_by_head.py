"""Head-by-head draws have the law of joint draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attncheck import AttentionLayer, InputError, simulate, simulate_heads
from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention_map import attention_weights

from .conftest import assert_same_law

KINDS: dict[str, dict[str, Any]] = {
    "low rank, rotary, causal": {"head_dim": 4, "rotary_base": 100.0, "input_correlation": 0.5, "mask": "causal"},
    "grouped": {"num_kv_heads": 2, "num_heads": 4, "head_scaling": False, "attention_map": "sigmoid"},
    "tied, narrow": {"width": 3, "seq_len": 5, "score_scaling": "1/n", "tied_query_key": True, "attention_map": "relu"},
}
DRAWS = 3_000
# Draws whose attention weights are compared, which have no chance in them given the scores.
COMPARED = 100


@pytest.mark.sampled
@pytest.mark.parametrize("kind", list(KINDS))
def test_law_is_that_of_all_heads_together(kind: str) -> None:
    layer = AttentionLayer(**{"width": 6, "seq_len": 3, **KINDS[kind]})
    scores, outputs = [], []
    for seed in range(DRAWS):
        heads = list(simulate_heads(layer, seed, coordinates=2))
        assert len(heads) == layer.num_heads
        scores.append([head.scores for head in heads])
        outputs.append(sum(head.outputs for head in heads))
        if seed < COMPARED:
            np.testing.assert_array_equal(heads[-1].weights, attention_weights(layer, heads[-1].scores))
    ours_scores, ours_outputs = np.array(scores), np.array(outputs)
    theirs = simulate(layer, 20_000, seed=1, coordinates=2)
    for name, one, other in (
        ("output", ours_outputs[:, 1, 0], theirs.outputs[:, 1, 0]),
        ("outputs of two neurons", ours_outputs[:, -1].prod(axis=1), theirs.outputs[:, -1].prod(axis=1)),
        ("score", ours_scores[:, 1, 1, 0], theirs.scores[:, 1, 1, 0]),
        ("scores of two heads", _product(ours_scores), _product(theirs.scores)),
        ("size of all scores", np.log((ours_scores**2).sum(axis=(1, 2, 3))), np.log((theirs.scores**2).sum((1, 2, 3)))),
        ("scores and outputs", _both(ours_scores, ours_outputs), _both(theirs.scores, theirs.outputs)),
    ):
        assert_same_law(one, other, f"{kind}: {name}")


def _product(scores: FloatArray) -> FloatArray:
    return np.asarray(scores[:, 0, 1, 0] * scores[:, 1, 1, 0])


def _both(scores: FloatArray, outputs: FloatArray) -> FloatArray:
    return np.asarray((scores[:, 0] ** 2).sum(axis=(1, 2)) * (outputs**2).sum(axis=(1, 2)))


def test_a_seed_gives_the_same_digits() -> None:
    layer = AttentionLayer(width=32, seq_len=4)
    one, again, other = (np.stack([h.scores for h in simulate_heads(layer, seed)]) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).all()


def test_bad_arguments_are_refused_at_once() -> None:
    with pytest.raises(InputError, match="is not an AttentionLayer"):
        simulate_heads("layer")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="coordinates=9: exceeds width=8"):
        simulate_heads(AttentionLayer(width=8), coordinates=9)
    with pytest.raises(InputError, match="seed=-1"):
        simulate_heads(AttentionLayer(width=8), seed=-1)
