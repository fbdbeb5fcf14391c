"""Comparisons of heads with each other and with outputs are exactly normal for any weights."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import special

from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.check import Check, Setting
from attncheck.checks.reference import Reference
from attncheck.checks.sample import Sample
from attncheck.checks.sharing import CHECKS, MOST_PAIRS, head_pairs
from attncheck.evidence.families import Uniform
from attncheck.faults import FAULTS
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import visible
from attncheck.methods import simulate
from attncheck.simulators.literal import LiteralSimulator, Projections, independent, project_out

DRAWS = 4_000
LEVEL = 1e-9
LAYERS = [
    AttentionLayer(width=8, seq_len=4, num_heads=3),
    AttentionLayer(width=2, seq_len=5, num_heads=2, mask="causal"),
    AttentionLayer(width=8, seq_len=3, num_heads=4, num_kv_heads=2, head_dim=2),
    AttentionLayer(width=1, seq_len=3, num_heads=2, activation="relu", attention_map="relu", mask="causal"),
    AttentionLayer(width=3, seq_len=3, num_heads=2, clip=1.0, input_std=2.0, attention_map="linear"),
]


def sample_of(layer: AttentionLayer, form: str) -> Sample:
    draws = simulate(layer, DRAWS, seed_sequence(0, "tests", "sharing", layer.key), coordinates=min(2, layer.width))
    arrays = dict(draws.as_dict())
    if form == "masked":
        arrays["scores"] = np.where(visible(layer), arrays["scores"], -np.inf)
    if form == "single":
        arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return Sample.from_mapping(layer, arrays, DRAWS)


@pytest.mark.sampled
@pytest.mark.parametrize("form", ["double", "single", "masked"])
@pytest.mark.parametrize("layer", LAYERS, ids=AttentionLayer.describe)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_noise_of_a_right_simulator_is_standard_normal(check: Check, layer: AttentionLayer, form: str) -> None:
    sample = sample_of(layer, form)
    setting = Setting(layer, sample.exposed, sample.coordinates)
    assert check.reason_not_examined(setting) == ""
    noise, weight = check.measure(sample, Reference(layer, DRAWS, sample.coordinates, seed_sequence(0)))
    assert noise.shape == weight.shape
    columns, weights = noise.reshape(len(noise), -1).T, weight.reshape(len(noise), -1).T
    for column, seen in zip(columns, weights != 0.0, strict=True):
        assert 0 < seen.sum() <= DRAWS * check.family_on(setting).per_draw  # type: ignore[attr-defined]  # theirs all have it
        assert Uniform().test(special.ndtr(column[seen])).p_value > LEVEL
    assert check.test(setting, (noise, weight)).p_value > LEVEL


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


def uneven(layer: AttentionLayer, values: np.ndarray) -> np.ndarray:
    return values * np.linspace(1.5, 0.5, layer.num_heads)[:, None, None]


UNEVEN = LiteralSimulator(
    project=lambda layer, inputs, rng: scaled_queries(layer, independent(layer, inputs, rng)),
    finish=lambda layer, mixed, count, rng: project_out(layer, uneven(layer, mixed), count, rng),
)


def scaled_queries(layer: AttentionLayer, made: Projections) -> Projections:
    return dataclasses.replace(made, queries=uneven(layer, made.queries))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_scales_that_differ_from_head_to_head_tie_nothing(check: Check) -> None:
    layer = AttentionLayer(width=8, seq_len=4, num_heads=4)
    drawn = UNEVEN(layer, DRAWS, stream(0, "tests", "uneven"))
    sample = Sample.from_mapping(layer, drawn, DRAWS)
    data = check.measure(sample, Reference(layer, DRAWS, 2, seed_sequence(0)))
    assert check.test(Setting(layer, sample.exposed, 2), data).p_value > 1e-6
