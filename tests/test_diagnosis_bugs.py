"""The wrong attentions of the diagnosis benchmark return what a subject returns, and what they share is right."""

from __future__ import annotations

import numpy as np
import pytest

import attncheck as ac
from attncheck.subject import Subject
from benchmarks.diagnosis_bugs import BUGS, Reported
from benchmarks.diagnosis_bugs.parts import attention, draw, reported

PLAIN = ac.AttentionLayer(width=8, seq_len=4, num_heads=2)
GROUPS = PLAIN.replace(num_heads=4, num_kv_heads=2, head_dim=4, mask="causal")
LAYERS = (PLAIN.replace(head_dim=4), PLAIN.replace(mask="causal"), GROUPS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_returns_arrays_of_the_right_shapes(bug: Reported) -> None:
    layers = [layer for layer in LAYERS if Subject.of(bug.subject).reason_unsupported(layer) == ""]
    assert layers
    for layer in layers:
        sample = Subject.of(bug.subject).draw(layer, 9, np.random.default_rng(0))
        assert {"outputs", "scores", "key_gram", "value_gram"} <= sample.exposed


def test_names_and_reports_are_given_once() -> None:
    assert len(BUGS) == len({bug.name for bug in BUGS}) == len({bug.source for bug in BUGS}) == 20


def test_what_the_bugs_share_is_right() -> None:
    right = reported("", "", ())(lambda layer, inputs, rng: attention(layer, inputs, draw(layer, inputs, rng)))
    assert ac.check(right.subject, GROUPS, profile="smoke").verdict == "consistent"
