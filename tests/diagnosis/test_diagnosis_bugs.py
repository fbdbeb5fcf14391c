"""The bugs of the diagnosis benchmarks are valid subjects, are wrong, and share the right parts."""

from __future__ import annotations

import functools
import itertools
import re

import numpy as np
import pytest
from scipy.stats import ks_2samp

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.subject import Subject
from benchmarks.diagnosis_bugs import BUGS, Reported
from benchmarks.diagnosis_bugs.parts import attention, draw, reported
from benchmarks.diagnosis_bugs_2 import BUGS as MORE_BUGS
from benchmarks.diagnosis_bugs_3 import BUGS as THIRD_SET
from benchmarks.diagnosis_bugs_3 import STAGE

EVERY_BUG = (*BUGS, *MORE_BUGS)
of_the_third_set = pytest.mark.parametrize("bug", THIRD_SET, ids=lambda bug: bug.name)

PLAIN = ac.AttentionLayer(width=8, seq_len=4, num_heads=2)
GROUPS = PLAIN.replace(num_heads=4, num_kv_heads=2, head_dim=4, mask="causal")
RELATED = PLAIN.replace(activation="relu", input_correlation=0.9)
LAYERS = (PLAIN.replace(head_dim=4), PLAIN.replace(mask="causal"), GROUPS, RELATED)
LEVEL, SIZE = 1e-6, 20_000


RIGHT = reported("", "", ())(lambda layer, inputs, rng: attention(layer, inputs, draw(layer, inputs, rng)))


def supported(bug: Reported, layers: tuple[ac.AttentionLayer, ...] = LAYERS) -> list[ac.AttentionLayer]:
    return [layer for layer in layers if Subject.of(bug.subject).reason_unsupported(layer) == ""]


def drawn(bug: Reported, layer: ac.AttentionLayer, size: int, seed: int) -> list[FloatArray]:
    """Return a bug's draws, arrays of shape (size, ...)."""
    sample = Subject.of(bug.subject).draw(layer, size, np.random.default_rng(seed))
    shown = [sample.outputs, sample.scores, sample.key_gram, sample.value_gram]
    assert all(values is not None for values in shown)
    return [values for values in shown if values is not None]


def numbers(values: FloatArray) -> list[FloatArray]:
    """Return entries, products, differences over positions or heads, and sums of squares per draw.

    Parameters
    ----------
    values : ndarray, shape (N, positions or heads, ..., any)
    """
    flat = values.reshape(*values.shape[:2], -1)
    first, second, others = flat[:, 0, 0], flat[:, 0, 1], flat[:, 1:, 0].T
    entries = (first, second, others[-1])
    products = [x * y for x, y in itertools.combinations_with_replacement(entries, 2)]
    return [*entries, *products, *(first - others), (flat**2).sum(axis=(1, 2))]


def law(bug: Reported, layer: ac.AttentionLayer, seed: int) -> list[FloatArray]:
    return [np.sort(x) for values in drawn(bug, layer, SIZE, seed) for x in numbers(values)]


@functools.cache
def right_law(layer: ac.AttentionLayer) -> list[FloatArray]:
    return law(RIGHT, layer, 1)


def differs(bug: Reported, layer: ac.AttentionLayer) -> bool:
    """Return whether a bug's law differs from the right one: Kolmogorov–Smirnov tests, Bonferroni, up to the first."""
    pairs = list(zip(law(bug, layer, 0), right_law(layer), strict=True))
    return any(float(ks_2samp(x, y, method="asymp").pvalue) < LEVEL / len(pairs) for x, y in pairs)


@pytest.mark.sampled
@pytest.mark.parametrize("bug", EVERY_BUG, ids=lambda bug: bug.name)
def test_a_bug_shows_arrays_of_another_law_than_the_right_ones(bug: Reported) -> None:
    assert supported(bug)
    assert any(differs(bug, layer) for layer in supported(bug))


def test_names_and_reports_are_given_once() -> None:
    assert len(BUGS) == len(MORE_BUGS) == 20
    assert len({bug.name for bug in EVERY_BUG}) == len({bug.source for bug in EVERY_BUG}) == 40


@pytest.mark.sampled
@pytest.mark.parametrize("layer", LAYERS)
def test_right_draws_do_not_differ_from_right_ones(layer: ac.AttentionLayer) -> None:
    assert not differs(RIGHT, layer)


def test_what_the_bugs_share_is_right() -> None:
    assert ac.check(RIGHT.subject, GROUPS, profile="smoke").verdict == "consistent"


# The third set


@of_the_third_set
def test_words_are_alternatives_of_patterns(bug: Reported) -> None:
    assert {type(patterns) for patterns in bug.words} == {tuple}
    assert all(re.compile(pattern) for patterns in bug.words for pattern in patterns)
    # What blames nothing is no cause.
    assert not any(all(re.search(p, "no known cause fits", re.IGNORECASE) for p in patterns) for patterns in bug.words)


def test_there_are_25_with_stages_and_sources() -> None:
    assert len(THIRD_SET) == len({bug.source for bug in THIRD_SET}) == 25
    assert {bug.name for bug in THIRD_SET} == set(STAGE)
    assert set(STAGE.values()) <= {"inputs", "scores", "values", "weights", "outputs", "draws"}


@of_the_third_set
def test_each_differs_from_the_right_layer(bug: Reported) -> None:
    assert supported(bug, (PLAIN, *LAYERS))
    for layer in supported(bug, (PLAIN, *LAYERS)):
        N, s, H = 8, layer.seq_len, layer.num_heads
        inputs = np.random.default_rng(1).standard_normal((N, s, layer.width))
        wrong = bug.subject(layer, inputs, np.random.default_rng(2))
        rng = np.random.default_rng(2)
        right = attention(layer, inputs, draw(layer, inputs, rng))
        assert wrong["outputs"].shape == (N, s, 2)
        assert all(wrong[name].shape == (N, H, s, s) for name in ("scores", "key_gram", "value_gram"))
        assert all(np.isfinite(array).all() for array in wrong.values())
        assert not all(np.allclose(wrong[name], right[name]) for name in ("outputs", "scores"))


@of_the_third_set
def test_layers_that_the_right_stages_lack_are_refused(bug: Reported) -> None:
    assert supported(bug, (PLAIN.replace(window=2),)) == []
