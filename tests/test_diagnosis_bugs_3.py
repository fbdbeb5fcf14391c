"""The third set of public bugs simulates what it declares, and is wrong."""

import re

import numpy as np
import pytest

from attncheck import AttentionLayer
from benchmarks.diagnosis_bugs.parts import attention, draw
from benchmarks.diagnosis_bugs_3 import BUGS, STAGE, Reported

LAYERS = (
    AttentionLayer(width=8, seq_len=4, num_heads=2),
    AttentionLayer(width=8, seq_len=4, num_heads=2, head_dim=4, mask="causal"),
    AttentionLayer(width=16, seq_len=4, num_heads=4, head_dim=4, num_kv_heads=2),
)
STAGES = {"inputs", "scores", "values", "weights", "outputs", "draws"}
DRAWS = 8


def _inputs(layer: AttentionLayer) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((DRAWS, layer.seq_len, layer.width))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_words_are_alternatives_of_patterns(bug: Reported) -> None:
    assert {type(patterns) for patterns in bug.words} == {tuple}
    assert all(re.compile(pattern) for patterns in bug.words for pattern in patterns)
    # What blames nothing is no cause.
    assert not any(all(re.search(p, "no known cause fits", re.IGNORECASE) for p in patterns) for patterns in bug.words)


def test_there_are_25_with_stages_and_sources() -> None:
    assert len(BUGS) == 25
    assert {bug.name for bug in BUGS} == set(STAGE)
    assert set(STAGE.values()) <= STAGES
    assert len({bug.source for bug in BUGS}) == 25


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_differs_from_the_right_layer(bug: Reported) -> None:
    supported = [layer for layer in LAYERS if bug.subject.supports(layer) is True]  # type: ignore[attr-defined]  # mypy knows no attributes of functions
    assert supported
    for layer in supported:
        N, s, H = DRAWS, layer.seq_len, layer.num_heads
        inputs, seed = _inputs(layer), 2
        wrong = bug.subject(layer, inputs, np.random.default_rng(seed))
        right_rng = np.random.default_rng(seed)
        right = attention(layer, inputs, draw(layer, inputs, right_rng))
        assert wrong["outputs"].shape == (N, s, 2)
        assert all(wrong[name].shape == (N, H, s, s) for name in ("scores", "key_gram", "value_gram"))
        assert all(np.isfinite(array).all() for array in wrong.values())
        assert not np.allclose(wrong["outputs"], right["outputs"]) or not np.allclose(wrong["scores"], right["scores"])


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_layers_that_the_right_stages_lack_are_refused(bug: Reported) -> None:
    refused = AttentionLayer(width=8, seq_len=4, num_heads=2, window=2)
    assert isinstance(bug.subject.supports(refused), str)  # type: ignore[attr-defined]  # mypy knows no attributes of functions
