"""Residuals of right simulators, and comparisons of their heads, are exactly normal, despite singular covariances.

All p-values are exact: noise fails this file with chance below 1e-6.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from attncheck import AttentionLayer
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks import whitening
from attncheck.checks.check import Check, Setting
from attncheck.checks.independence import CHECKS, MOST_PAIRS, head_pairs
from attncheck.checks.reference import Reference
from attncheck.checks.sample import Sample
from attncheck.evidence.families import Association, Scale, Uniform
from attncheck.faults import FAULTS
from attncheck.layers.attention_map import visible
from attncheck.methods import Method, simulate

DRAWS = 3_000
LEVEL = 1e-10

LAYERS: list[AttentionLayer] = [
    *(AttentionLayer(width=n, seq_len=4, num_heads=2) for n in (1, 3, 8)),
    *(AttentionLayer(width=n, seq_len=3, num_heads=2, input_correlation=1.0) for n in (1, 8)),
    *(AttentionLayer(width=n, seq_len=3, num_heads=2, clip=1.0, input_std=2.0) for n in (1, 3)),
    AttentionLayer(width=8, seq_len=4, num_heads=4, num_kv_heads=2, head_dim=2, mask="causal"),
    AttentionLayer(width=8, seq_len=3, num_heads=2, head_dim=1, attention_map="linear"),
    AttentionLayer(width=2, seq_len=3, num_heads=1, activation="relu", attention_map="relu"),
]
RESIDUALS = ("whitened_scores", "key_factors", "value_factors", "output_residual")


def sample_of(layer: AttentionLayer, size: int = DRAWS, form: str = "", method: Method = "collapsed") -> Sample:
    """Return draws of a right simulator, in single precision or with hidden scores of minus infinity."""
    seed = seed_sequence(0, "tests", "whitening", layer.key, method)
    arrays: dict[str, Any] = dict(simulate(layer, size, seed, method, coordinates=min(2, layer.width)).as_dict())
    if "masked" in form:
        arrays["scores"] = np.where(visible(layer), arrays["scores"], -np.inf)
    if "single" in form:
        arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return Sample.from_mapping(layer, arrays, size)


def assert_standard_normal(residual: whitening.Residual, level: float = LEVEL) -> None:
    """Check law, scale and mean of the kept values, and that they are uncorrelated."""
    values = residual.flat()
    assert np.isfinite(values).all()
    assert Uniform().test(special.ndtr(values)).p_value > level
    assert Scale(1).test(*residual.squares()).p_value > level
    assert Association().test(values, np.ones(values.shape)).p_value > level
    places = residual.values.reshape(len(residual.values), -1)
    used = residual.kept.reshape(len(places), -1).mean(axis=0) > 0.01
    for i, j in itertools.combinations(np.flatnonzero(used), 2):
        assert Association().test(places[:, i], places[:, j]).p_value > level


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("layer", "form", "method"),
    [
        *((layer, form, "collapsed") for layer in LAYERS for form in ("", "single")),
        (AttentionLayer(width=2, seq_len=3, num_heads=2), "", "direct"),
    ],
)
def test_residuals_of_a_right_simulator_are_standard_normal(layer: AttentionLayer, form: str, method: Method) -> None:
    sample = sample_of(layer, form=form, method=method)
    assert sample.rounding == float(np.finfo(np.float32 if form else np.float64).eps)
    for name in RESIDUALS:
        assert_standard_normal(getattr(sample, name))


@pytest.mark.parametrize(
    ("layer", "scores", "factors", "outputs"),
    [
        (AttentionLayer(width=8, seq_len=4, num_heads=2), 2 * 16, 2 * 10, 4),
        (AttentionLayer(width=2, seq_len=4, num_heads=1), 4, 3, 2),
        (AttentionLayer(width=1, seq_len=4, num_heads=2), 2, 2, 2),
        (AttentionLayer(width=8, seq_len=4, num_heads=1, head_dim=2), 8, 7, 2),
        (AttentionLayer(width=8, seq_len=4, num_heads=2, input_correlation=1.0), 2, 2, 1),
    ],
    ids=lambda value: value.describe() if isinstance(value, AttentionLayer) else "",
)
def test_only_the_directions_that_exist_are_kept(
    layer: AttentionLayer, scores: int, factors: int, outputs: int
) -> None:
    sample = sample_of(layer)
    assert sample.whitened_scores.kept.sum() == scores * DRAWS
    assert sample.key_factors.kept.sum() == sample.value_factors.kept.sum() == factors * DRAWS
    # Outputs may lose directions by saturation or equal rows, and never gain any.
    kept = sample.output_residual.kept[:, :, 0].sum(axis=1)
    assert kept.max() == outputs
    assert kept.mean() > 0.95 * outputs


# Rounding ruins squared diagonal entries of a factor once in 10⁴, which would score −37. At width 2, values are so
# often nearly parallel or 0 that one residual of outputs in 10⁴ draws exceeds 100.
SINGULAR = AttentionLayer(width=4, seq_len=4, num_heads=2)
CANCELLING = AttentionLayer(width=2, seq_len=3, activation="relu", attention_map="relu")


@pytest.mark.parametrize(
    ("layer", "size", "form", "name"),
    [
        *((SINGULAR, 20_000, form, "key_factors") for form in ("", "single")),
        *((CANCELLING.replace(num_heads=heads), 50_000, "single", "output_residual") for heads in (1, 2)),
    ],
)
def test_near_singular_matrices_give_no_wild_residuals(layer: AttentionLayer, size: int, form: str, name: str) -> None:
    residual = getattr(sample_of(layer, size, form), name)
    assert np.abs(residual.flat()).max() < 8.0
    assert Scale(1).test(*residual.squares()).p_value > LEVEL
    if layer is not SINGULAR:
        assert_standard_normal(residual)


def test_illegible_factors_are_not_read_and_a_matrix_without_one_does_no_harm() -> None:
    wishart, kept = np.tile(np.diag([2.0, -1.0, 3.0]), (2, 1, 1, 1)), np.ones((2, 1, 3), dtype=bool)
    residual = whitening.bartlett_residual(wishart, kept, 5, np.array([0.0, 1.0]))
    assert np.isfinite(residual.values).all()
    assert residual.values[0, 0, 1, 1] < -30
    assert residual.kept[0, 0].sum() == 6
    assert not residual.kept[1].any()
    alone = whitening.bartlett_residual(wishart[:, :, :1, :1], kept[:, :, :1], 5, np.array([0.0, 1.0]))
    assert alone.kept.all()


def test_normal_scores_keep_both_tails() -> None:
    squares = np.array([1e-12, 0.5, 4.0, 60.0, 5000.0])
    scores = whitening.chi_square_scores(3, squares)
    np.testing.assert_allclose(stats.norm.sf(scores[1:4]), stats.chi2.sf(squares[1:4], 3), rtol=1e-6)
    np.testing.assert_allclose(stats.norm.cdf(scores[:3]), stats.chi2.cdf(squares[:3], 3), rtol=1e-6)
    assert scores[-1] == 37.0
    assert whitening.chi_square_scores(3, np.zeros(1))[0] == -37.0


MASKED = [
    *(layer.replace(mask="causal") for layer in LAYERS if layer.seq_len > 1),
    AttentionLayer(width=5, seq_len=6, num_heads=3, num_kv_heads=1, head_dim=3, mask="causal"),
    AttentionLayer(width=6, seq_len=6, num_heads=2, clip=0.5, input_std=5.0, mask="causal"),
    AttentionLayer(width=8, seq_len=8, num_heads=2, position_std=10.0, position_reach=50.0, mask="causal"),
]


@pytest.mark.sampled
@pytest.mark.parametrize("form", ["masked", "masked single"])
@pytest.mark.parametrize("layer", MASKED, ids=AttentionLayer.describe)
def test_visible_scores_are_whitened_exactly(layer: AttentionLayer, form: str) -> None:
    sample = sample_of(layer, form=form)
    residual, planned = sample.whitened_scores, Setting(layer, sample.exposed)
    assert not residual.kept[..., ~visible(layer)].any()
    entries = residual.kept.sum(axis=(2, 3))
    assert entries.max() == planned.score_entries
    assert "masked scores" not in sample.exposed
    assert_standard_normal(residual)


# Comparisons of heads are exactly normal for any weights ------------------------------------------

HEAD_DRAWS = 4_000
HEAD_LEVEL = 1e-9
HEAD_LAYERS = [
    AttentionLayer(width=8, seq_len=4, num_heads=3),
    AttentionLayer(width=2, seq_len=5, num_heads=2, mask="causal"),
    AttentionLayer(width=8, seq_len=3, num_heads=4, num_kv_heads=2, head_dim=2),
    AttentionLayer(width=1, seq_len=3, num_heads=2, activation="relu", attention_map="relu", mask="causal"),
    AttentionLayer(width=3, seq_len=3, num_heads=2, clip=1.0, input_std=2.0, attention_map="linear"),
]


@pytest.mark.sampled
@pytest.mark.parametrize("form", ["", "single", "masked"])
@pytest.mark.parametrize("layer", HEAD_LAYERS, ids=AttentionLayer.describe)
@pytest.mark.parametrize("check", [each for each in CHECKS if "head" in each.name], ids=lambda check: check.name)
def test_noise_of_a_right_simulator_is_standard_normal(check: Check, layer: AttentionLayer, form: str) -> None:
    sample = sample_of(layer, HEAD_DRAWS, form)
    setting = Setting(layer, sample.exposed, sample.coordinates)
    assert check.reason_not_examined(setting) == ""
    noise, weight = check.measure(sample, Reference(layer, HEAD_DRAWS, sample.coordinates, seed_sequence(0)))
    assert noise.shape == weight.shape
    columns, weights = noise.reshape(len(noise), -1).T, weight.reshape(len(noise), -1).T
    for column, seen in zip(columns, weights != 0.0, strict=True):
        assert 0 < seen.sum() <= HEAD_DRAWS * check.family_on(setting).per_draw  # type: ignore[attr-defined]  # theirs all have it
        assert Uniform().test(special.ndtr(column[seen])).p_value > HEAD_LEVEL
    assert check.test(setting, (noise, weight)).p_value > HEAD_LEVEL


def test_up_to_sixteen_heads_all_pairs_are_examined_and_of_more_neighbours_and_halves() -> None:
    for count in (2, 3, 7, 16):
        assert sorted(head_pairs(count)) == list(itertools.combinations(range(count), 2))
    pairs = head_pairs(40)
    assert len(set(pairs)) == len(pairs) == MOST_PAIRS
    assert {(i, i + 1) for i in range(39)} | {(i, i + 20) for i in range(20)} <= set(pairs)


def test_the_pair_that_shares_a_matrix_is_the_one_that_stands_out() -> None:
    layer, (check,) = AttentionLayer(width=16, seq_len=8, num_heads=5), (c for c in CHECKS if c.claim == "heads")
    drawn = FAULTS["twin_queries"].subject(layer, 500, stream(0, "tests", "twins"))
    noise, weight = check.measure(Sample.from_mapping(layer, drawn, 500), Reference(layer, 500, 2, seed_sequence(0)))
    statistics = (noise * weight).sum(axis=0) / np.sqrt((weight**2).sum(axis=0))
    assert head_pairs(5)[int(np.abs(statistics).argmax())] == (0, 4)
    assert np.sort(np.abs(statistics))[-2] < 6.0
