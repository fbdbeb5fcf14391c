"""The law of a tangent-kernel entry at finite width: against literal gradients, and refusals."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attncheck import AttentionLayer, InputError, tangent_gap, tangent_kernel
from attncheck.evidence.distances import one_sample_tail
from attncheck.theory.rates import tangent

BASE: dict[str, Any] = {"width": 6, "seq_len": 3, "query_std": 1.3, "key_std": 0.8, "value_std": 1.2, "output_std": 0.7}
KINDS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "grouped, low rank": ({"num_heads": 4, "num_kv_heads": 2, "head_dim": 2, "attention_map": "sigmoid"}, (0, 0)),
    "grouped, causal": ({"num_kv_heads": 1, "mask": "causal"}, (2, 2)),
    "relu, correlated": ({"attention_map": "relu", "input_correlation": 0.5}, (0, 2)),
    "rms": ({"norm": "rms", "input_correlation": 0.5}, (0, 1)),
    "layer": ({"norm": "layer", "activation": "relu"}, (1, 1)),
    "positions, linear": ({"position_std": 0.7, "attention_map": "linear"}, (0, 1)),
    "equal inputs": ({"input_correlation": 1.0, "attention_map": "sigmoid"}, (0, 1)),
    "narrow": ({"width": 2, "seq_len": 4}, (0, 0)),
}
_SAMPLE, _LEVEL = 20_000, 1e-7


@pytest.mark.sampled
@pytest.mark.parametrize("kind", list(KINDS))
def test_the_law_is_that_of_literal_gradients(kind: str) -> None:
    """At widths far from the limit, which is rejected."""
    changes, positions = KINDS[kind]
    layer = AttentionLayer(**{**BASE, **changes})
    sample = tangent_kernel(layer, _SAMPLE, seed=5, method="direct", coordinates=2).kernel
    for between in (False, True):
        gap = tangent_gap(layer, between=between, positions=positions, size=2**11)
        found = (sample[:, 0, int(between), *positions, None] <= gap.points).mean(axis=0)
        (law, error), (limit, of_limit) = gap.cdf(), gap.cdf(limit=True)
        assert one_sample_tail(float((np.abs(found - law) - error).max()), _SAMPLE) > _LEVEL
        assert one_sample_tail(float((np.abs(found - limit) - of_limit).max()), _SAMPLE) < _LEVEL


def test_the_law_is_right_where_softmax_saturates() -> None:
    """The limit then nearly has an atom, at a number that depends on Gram matrices: its cdf is steep."""
    layer = AttentionLayer(width=8, seq_len=2, num_heads=1, query_std=3.0)
    gap, size = tangent_gap(layer, size=2**15), 200_000
    sample = np.sort(tangent_kernel(layer, size, seed=5, coordinates=1).kernel[:, 0, 0, 0, 0])
    found, (law, error) = np.searchsorted(sample, gap.points, side="right") / size, gap.cdf()
    assert one_sample_tail(float((np.abs(found - law) - error).max()), size) > _LEVEL
    # Detects the error of a difference of cdfs along the deviations.
    assert one_sample_tail(float(0.02 - error.max()), size) < _LEVEL


@pytest.mark.parametrize(
    ("fields", "between"),
    [
        ({"width": 8, "seq_len": 2, "num_heads": 1, "query_std": 3.0}, True),
        ({"width": 8, "seq_len": 3, "attention_map": "relu", "input_correlation": 0.5}, False),
    ],
    ids=str,
)
def test_the_derivative_that_takes_noise_off_has_mean_zero(fields: dict[str, Any], between: bool) -> None:
    entry = tangent._Entry(AttentionLayer(**fields), between, (0, 0))
    rng = np.random.default_rng(3)
    points, blocks, size = entry._points(rng), 32, 2**10
    sums = np.array([entry._block(size, points, rng)[2].mean(axis=0) for _ in range(blocks)])
    standard = sums.std(axis=0, ddof=1) / np.sqrt(blocks)
    # Student's law over all points: false alarms have probability 1e-6.
    quantile = stats.t.isf(0.5e-6 / sums.shape[1], blocks - 1)
    assert np.all(np.abs(sums.mean(axis=0)) <= quantile * standard + 1e-15)
    assert standard.max() > 0.0


def test_atoms_are_compared_on_both_sides() -> None:
    """Finite width spreads the limit's atom at 0 over both signs: the mass below 0 is the distance."""
    layer = AttentionLayer(width=256, num_heads=1, attention_map="relu")
    gap, size = tangent_gap(layer, positions=(1, 0), size=2**12), 40_000
    assert np.nextafter(0.0, -1.0) in gap.points
    assert 0.0 in gap.points
    # Two rows of four scores share no positive one with the chance (3/4)⁴.
    limit, error = (values[gap.points == 0.0][0] for values in gap.cdf(limit=True))
    assert limit == pytest.approx(0.75**4, abs=error)
    sample = tangent_kernel(layer, size, seed=5, coordinates=1).kernel[:, 0, 0, 1, 0]
    below = float((sample < 0.0).mean())
    assert below > 0.08
    assert one_sample_tail(abs(below - gap.distance) - gap.error, size) > _LEVEL


def test_memory_does_not_grow_with_the_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tangent, "_BLOCK", 2**20)
    monkeypatch.setattr(tangent, "_PILOT_BLOCK", 2**21)
    tracemalloc.start()
    tangent_gap(AttentionLayer(width=64, seq_len=16, num_heads=1, attention_map="sigmoid"), size=16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**27, np.log2(peak)


def test_width_one() -> None:
    layer = AttentionLayer(width=1, seq_len=3, attention_map="sigmoid")
    gap = tangent_gap(layer, size=2**12)
    sample = tangent_kernel(layer, _SAMPLE, seed=5, method="direct").kernel[:, 0, 0, 0, 0]
    found, (law, error) = (sample[:, None] <= gap.points).mean(axis=0), gap.cdf()
    assert one_sample_tail(float((np.abs(found - law) - error).max()), _SAMPLE) > _LEVEL


def test_errors_hold_between_seeds() -> None:
    gaps = [tangent_gap(AttentionLayer(**{**BASE, "width": 64}), between=True, size=2**12, seed=k) for k in range(4)]
    mean = np.mean([gap.distance for gap in gaps])
    assert all(abs(gap.distance - mean) < 1.5 * gap.error for gap in gaps)
    assert all(gap.error < 0.5 * gap.distance for gap in gaps)


def test_without_the_derivative_there_is_more_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = AttentionLayer(**{**BASE, "width": 512, "attention_map": "sigmoid"})
    with_it = tangent_gap(layer, between=True, size=2**12).differences.std(axis=0)[10:].mean()
    block = tangent._Entry._block
    monkeypatch.setattr(
        tangent._Entry, "_block", lambda *given: (*(found := block(*given))[:2], np.zeros_like(found[2]))
    )
    without = tangent_gap(layer, between=True, size=2**12).differences.std(axis=0)[10:].mean()
    assert with_it < 0.5 * without


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"layer": "layer"}, "layer=.*is not an AttentionLayer"),
        ({"layer": AttentionLayer(width=8, head_dim=4, rotary_base=1e4)}, "rotary_base=10000.0: is not supported"),
        ({"layer": AttentionLayer(width=8, score_scaling="1/n")}, 'use score_scaling="1/sqrt'),
        ({"layer": AttentionLayer(width=8, seq_len=1)}, "constant limit"),
        ({"layer": AttentionLayer(width=8, mask="causal")}, "constant limit"),
        ({"layer": AttentionLayer(width=8), "between": True, "positions": (0, 1)}, "constant limit"),
        ({"layer": AttentionLayer(width=1), "between": True}, "the width is 1"),
        ({"layer": AttentionLayer(width=8), "positions": (0, 4)}, "positions=4"),
        ({"layer": AttentionLayer(width=8), "positions": 0}, "positions=0: is not two positions"),
        ({"layer": AttentionLayer(width=8), "size": 3}, "size=3"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        tangent_gap(**arguments)
