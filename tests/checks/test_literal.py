"""Checks of any weight law against literal draws: exact, and about as powerful as for Gaussian weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.checks.check import Setting
from attncheck.checks.literal import LITERAL_RATIO, LiteralReference
from attncheck.checks.registry import check_named
from attncheck.checks.returned import FIELDS
from attncheck.checks.sample import Sample
from attncheck.checks.scores import CHECKS as SCORES
from attncheck.evidence.blocks import BLOCK, Blocks
from attncheck.evidence.families import Association, Scale, TwoSample, Uniform
from attncheck.layers.attention_map import visible
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.looks.result import violated
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws, draw_with_weights
from attncheck.subject import Subject

Laws = str | Mapping[str, Any]
PAPER = ac.AttentionLayer(width=16, seq_len=4, num_heads=2)
NARROW = ac.AttentionLayer(width=4, seq_len=6, num_heads=2)
CAUSAL = ac.AttentionLayer(width=8, seq_len=3, num_heads=4, num_kv_heads=2, mask="causal")
TURNED = ac.AttentionLayer(width=8, seq_len=3, num_heads=2, head_dim=4, rotary_base=100.0)
UNIFORM = WeightLaws.of("uniform")
LINEAR: dict[str, Any] = {
    name + end: law
    for name in ("query", "key", "value", "output")
    for end, law in (("", "uniform"), ("_bias", ("uniform", 1.0)))
}
COST = Cost(1500, 5e-4, 0.9)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A subject with weight laws `own` and a scale of W_Q, which declares others."""

    own: Laws
    weights: Laws
    scale: float = 1.0
    single: bool = False
    hides: bool = False

    def __call__(self, layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        wrong = layer.replace(query_std=layer.query_std * self.scale)
        drawn = draw_with_weights(wrong, size, min(2, layer.width), rng, self.own).as_dict()
        if self.hides:
            drawn["scores"] = np.where(visible(layer), drawn["scores"], -np.inf)
        return {name: array.astype(np.float32) if self.single else array for name, array in drawn.items()}


def examine(drawn: Drawn, layer: ac.AttentionLayer, name: str) -> list[str]:
    """Return a property's violated checks, and assert that some were examined."""
    results = run_item(Item(name, layer), Subject.of(drawn), 0, COST)
    assert any(result.p_values for result in results)
    return [result.check for result in violated(results)]


# A whole run examines uniform weights below.
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("law", "name"),
    [
        ("student5", "exactness"),
        ("student5", "scores"),
        ("rademacher", "conditional"),
        ("rademacher", "independence"),
        ("truncated normal", "scores"),
        ("truncated normal", "conditional"),
    ],
)
def test_right_simulators_pass(law: str, name: str) -> None:
    assert examine(Drawn(law, law), PAPER, name) == []


@pytest.mark.sampled
@pytest.mark.parametrize("layer", [NARROW, CAUSAL], ids=["singular", "hidden"])
@pytest.mark.parametrize("name", ["scores", "conditional", "exactness"])
def test_single_precision_and_hidden_scores_pass(layer: ac.AttentionLayer, name: str) -> None:
    assert examine(Drawn("uniform", "uniform", single=True, hides=layer is CAUSAL), layer, name) == []


def test_nearly_all_that_gaussian_weights_are_held_to_is_examined() -> None:
    layer = ac.AttentionLayer(width=8, seq_len=3, num_heads=2)
    report = ac.check(Drawn("uniform", "uniform"), layer, profile="smoke")
    assert report.verdict == "consistent"
    report.require(min_examined=80)


def test_a_scale_of_queries_is_seen() -> None:
    assert "scores.scale" in examine(Drawn("uniform", "uniform", 1.1), PAPER, "scores")


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (NARROW, "scores"),
        (NARROW, "exactness"),
        (CAUSAL, "conditional"),
        (CAUSAL, "outputs"),
        (TURNED, "scores"),
        (TURNED, "exactness"),
    ],
)
def test_biases_that_are_declared_pass(layer: ac.AttentionLayer, name: str) -> None:
    assert examine(Drawn(LINEAR, LINEAR), layer, name) == []


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("matrix", "name", "std"), [("query", "scores", 0.0), ("key", "scores", 2.0), ("value", "exactness", 0.0)]
)
def test_other_biases_than_declared_ones_are_seen(matrix: str, name: str, std: float) -> None:
    own = {key: law for key, law in LINEAR.items() if key != f"{matrix}_bias"}
    own |= {f"{matrix}_bias": ("uniform", std)} if std else {}
    assert examine(Drawn(own, LINEAR), CAUSAL, name) != []


def test_a_matrix_has_one_law() -> None:
    for text in ("query=uniform,query=student5", "output_bias=uniform:1, output_bias=uniform:1"):
        with pytest.raises(ac.InputError, match=r"names (query|output_bias) twice"):
            WeightLaws.read(text)


def test_biases_of_gaussian_weights_are_not_what_is_computed() -> None:
    laws = WeightLaws.of({"output_bias": ("gaussian", 1.0)})
    assert GAUSSIAN_LAWS.gaussian
    assert not laws.gaussian
    assert str(WeightLaws.of({"value": "uniform"})) == "gaussian (query, key, output, inputs), uniform (value)"
    assert WeightLaws.read("output_bias=gaussian:1") == laws
    drawn = draw_with_weights(PAPER, 4000, 2, np.random.default_rng(0), laws).outputs
    plain = draw_with_weights(PAPER, 4000, 2, np.random.default_rng(0), "gaussian").outputs
    added = drawn - plain
    assert np.ptp(added, axis=1).max() < 1e-12
    assert added.var() == pytest.approx(1 / (PAPER.num_heads * PAPER.width), rel=0.1)


def test_a_bias_is_a_law_and_a_number() -> None:
    for value in ("uniform", ("uniform",), ("odd", 1.0), ("uniform", -1.0), ("uniform", "one")):
        with pytest.raises(ac.InputError, match=r"weights\['key_bias'\]"):
            WeightLaws.of({"key_bias": value})
    with pytest.raises(ac.InputError, match="inputs_bias"):
        WeightLaws.of({"inputs_bias": ("uniform", 1.0)})


def test_laws_are_told_apart_where_weights_are_few() -> None:
    narrow = ac.AttentionLayer(width=1, seq_len=1, num_heads=1)
    assert examine(Drawn("uniform", "uniform"), narrow, "exactness") == []
    assert examine(Drawn("uniform", {"query": "uniform"}), narrow, "exactness") != []
    assert examine(Drawn({"key": "uniform"}, {"key": "uniform"}), narrow, "exactness") == []


def test_nothing_changes_for_gaussian_weights() -> None:
    (plain,) = (check for check in SCORES if check.name == "scores.scale")
    setting = Setting(PAPER, frozenset({*FIELDS, "masked scores"}), 2)
    assert plain.family_on(setting) == plain.family(setting) == Scale(32)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("scores.scale", Blocks(Scale(32), LITERAL_RATIO)),
        ("scores.tied", Blocks(Association(32), LITERAL_RATIO)),
        ("scores.marginal", TwoSample(LITERAL_RATIO)),
        ("scores.law", Blocks(Uniform(per_draw=32), LITERAL_RATIO)),
    ],
)
def test_families(name: str, family: object) -> None:
    setting = Setting(PAPER, frozenset({*FIELDS, "masked scores"}), 2, UNIFORM)
    assert check_named(name).family_on(setting) == family
    assert check_named(name).reason_not_examined(setting) == ""


def test_what_has_no_literal_form_is_not_examined() -> None:
    setting = Setting(PAPER, frozenset({*FIELDS, "masked scores"}), 2, UNIFORM)
    assert "holds for Gaussian weights" in check_named("scores.each_head").reason_not_examined(setting)
    copies = check_named("scores.key_copies")
    assert copies.reason_not_examined(setting) == ""
    signs = dataclasses.replace(setting, weights=WeightLaws.of("rademacher"))
    assert "two-valued weights" in copies.reason_not_examined(signs)


def test_reference_shows_what_the_subject_shows() -> None:
    drawn = Drawn("uniform", "uniform", single=True, hides=True)(CAUSAL, 50, stream(0, "tests", "like"))
    del drawn["value_gram"]
    like = Sample.from_mapping(CAUSAL, drawn, 50)
    reference = LiteralReference(CAUSAL, 50, 2, np.random.SeedSequence(0), laws=UNIFORM, like=like, blocks={})
    assert reference.sample.exposed == like.exposed
    assert len(reference.sample) == LITERAL_RATIO * 50
    for name in like.exposed & set(FIELDS):
        values = reference.sample.need(name)
        np.testing.assert_array_equal(values, values.astype(np.float32))


@pytest.mark.usefixtures("verdicts_only")
def test_layers_add_up_in_the_unit_of_the_check() -> None:
    layers = [PAPER, NARROW, ac.AttentionLayer(width=4, seq_len=1, num_heads=1)]
    report = ac.check(Drawn("uniform", "uniform", 1.05), layers, properties=["scores"], profile="smoke")
    pools = {pool.id: pool for pool in report.pools}
    assert pools["scores.law@all"].p_values  # one number a draw in one layer, blocks in the others
    scale = pools["scores.scale@all"]
    assert scale.verdict in ("violated", "explained")
    assert scale.effect == pytest.approx(0.1025, abs=0.03)
    assert scale.text.startswith("common deviation of: score variance given inputs and keys")


def test_blocks_have_their_planned_power() -> None:
    family, rng = Blocks(Scale(8.0), ratio=2.0), stream(0, "tests", "power")
    size = family.size(1.2, 1e-3, 0.95)
    assert size is not None
    block = max(BLOCK, size // 32)
    blocks = size // block
    detected = 0
    for _ in range(200):
        ours = 1.2 * rng.chisquare(8 * block, blocks) / (8 * block)
        theirs = rng.chisquare(8 * block, 2 * blocks) / (8 * block)
        detected += family.test(ours, theirs).p_value < 1e-3
    assert detected >= 180


def test_too_few_draws_have_no_power() -> None:
    assert Blocks(Scale(8.0)).power(10.0, 100, 1e-3) == 0.0
    assert Blocks(Uniform(per_draw=4)).power(0.001, 10_000, 1e-3) == 0.0
    assert Blocks(Uniform(per_draw=4)).power(0.2, 10_000, 1e-3) == 1.0
