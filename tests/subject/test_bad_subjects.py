"""Misbehaving subjects are judged, excused or refused in one line."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attncheck._lib.errors import InputError
from attncheck.checks.comparison import gaussian_distance
from attncheck.checks.laws import affordable_draws, marginal_law
from attncheck.checks.marginals import Scalar
from attncheck.checks.registry import PROPERTIES, checks_of
from attncheck.checks.returned import FIELDS
from attncheck.checks.sample import Sample
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import visible
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.records.schema import Result
from attncheck.subject import Subject, collapsed
from attncheck.theory.limits.mixture import condense

Arrays = dict[str, Any]
Simulator = Callable[[AttentionLayer, int, np.random.Generator], Any]

LAYER = AttentionLayer(width=8, seq_len=3, num_heads=2)
CAUSAL = LAYER.replace(mask="causal")
SMALL = AttentionLayer(width=4, seq_len=2, num_heads=2)
# The fields that properties read.
READ = sorted(
    {(name, field) for name in PROPERTIES for check in checks_of(name) for field in check.needs & set(FIELDS)}
)
COST = Cost(1500, 1e-5, 0.9)
LOWEST = float(np.finfo(np.float64).min)


def right(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
    return dict(collapsed(layer, size, rng))


def returning(change: Callable[[Arrays], Any]) -> Simulator:
    """Return a right simulator whose mapping is changed before it is returned."""
    return lambda layer, size, rng: change(right(layer, size, rng))


def results(simulator: Any, name: str, layer: AttentionLayer = LAYER, cost: Cost = COST) -> list[Result]:
    return run_item(Item(name, layer), Subject.of(simulator), 0, cost)


class TestFillings:
    @pytest.mark.parametrize("layer", [CAUSAL, CAUSAL.replace(attention_map="linear")], ids=["softmax", "linear"])
    @pytest.mark.parametrize("filling", [-1e9, LOWEST, -7.5, 0.0])
    def test_a_filling_is_no_score(self, filling: float, layer: AttentionLayer) -> None:
        """The sample and its results are the same as with minus infinity."""
        for size in (4, 600, COST.affordable):
            drawn = right(layer, size, np.random.default_rng(size))
            scores = [np.where(visible(layer), drawn["scores"], behind) for behind in (filling, -np.inf)]
            one, other = (Sample.from_mapping(layer, drawn | {"scores": each}, size) for each in scores)
            np.testing.assert_array_equal(one.need("scores"), other.need("scores"))
            assert one.exposed == other.exposed
            assert "masked scores" not in one.exposed
            assert "scores" in one.exposed

    @pytest.mark.parametrize("added", [-1e9, -1e4])
    def test_scores_plus_a_mask_are_none_either(self, added: float) -> None:
        layer = CAUSAL.replace(query_std=5.0)
        behind = np.where(visible(layer), 0.0, added)
        simulator = returning(lambda d: d | {"scores": d["scores"] + behind})
        assert not [r.check for r in results(simulator, "scores", layer) if r.verdict == "violated"]
        setting = Subject.of(simulator).probe(layer, np.random.default_rng(0))
        assert "scores" in setting.exposed
        assert "masked scores" not in setting.exposed

    def test_the_array_of_the_subject_stays_as_it_is(self) -> None:
        scores = np.where(visible(CAUSAL), right(CAUSAL, 5, np.random.default_rng(0))["scores"], -1e9)
        kept = scores.copy()
        sample = Sample.from_mapping(CAUSAL, {"outputs": np.ones((5, 3, 1)), "scores": scores}, 5)
        np.testing.assert_array_equal(scores, kept)
        assert np.isneginf(sample.need("scores")[..., ~visible(CAUSAL)]).all()
        assert "masked scores" not in sample.exposed

    @pytest.mark.parametrize(
        "layer",
        [
            CAUSAL,
            CAUSAL.replace(query_std=1e5, key_std=1e5),
            CAUSAL.replace(width=1, seq_len=2, num_heads=1, input_correlation=1.0),
            CAUSAL.replace(width=1, seq_len=2, num_heads=1, activation="relu"),
            CAUSAL.replace(num_heads=1, input_correlation=1.0),
        ],
        ids=lambda layer: layer.describe(),
    )
    def test_scores_from_before_the_mask_stay(self, layer: AttentionLayer) -> None:
        for seed in range(50):
            size = 1 + seed % 4
            drawn = right(layer, size, np.random.default_rng(seed))
            sample = Sample.from_mapping(layer, drawn, size)
            np.testing.assert_array_equal(sample.need("scores"), drawn["scores"])

    def test_without_a_mask_a_filling_is_a_wrong_score(self) -> None:
        simulator = returning(lambda d: d | {"scores": np.where(visible(CAUSAL), d["scores"], -1e9)})
        assert any(result.verdict == "violated" for result in results(simulator, "scores"))


def rounded(drawn: Arrays) -> Arrays:
    noise = np.random.default_rng(0)
    grams = {name: drawn[name] for name in ("input_gram", "key_gram", "value_gram")}
    return drawn | {name: gram * (1 + 1e-6 * noise.standard_normal(gram.shape)) for name, gram in grams.items()}


@pytest.mark.parametrize(
    "simulator",
    [
        returning(lambda d: {"outputs": np.ma.asarray(d["outputs"])}),  # without masked entries
        returning(rounded),
        lambda layer, size, rng: right(layer, size, rng.spawn(1)[0]),
    ],
    ids=["masked array", "rounded", "spawned"],
)
def test_accepted(simulator: Simulator) -> None:
    assert results(simulator, "draws")


class TestStatistics:
    """Valid at the boundary, but unusable in statistics."""

    @pytest.mark.sampled
    @pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning")
    @pytest.mark.parametrize(("name", "field"), [*READ, *((name, "") for name in PROPERTIES)])
    def test_zeros_are_judged(self, name: str, field: str) -> None:
        """In one field, or in all."""
        simulator = returning(
            lambda d: {each: np.zeros_like(array) if field in ("", each) else array for each, array in d.items()}
        )
        assert results(simulator, name, SMALL)

    @pytest.mark.sampled
    @pytest.mark.parametrize(("name", "field"), READ)
    def test_huge_numbers_are_judged_or_refused_with_names(self, name: str, field: str) -> None:
        simulator = returning(lambda d: d | {field: d[field] * 1e95})
        message = f"check={name}."
        with np.errstate(all="ignore"):
            try:
                assert results(simulator, name, SMALL)
            except InputError as error:
                message = str(error)
        assert message.startswith(f"check={name}.")
        assert message.count("\n") == 0

    def test_matrices_with_negative_eigenvalues_are_judged(self) -> None:
        def indefinite(drawn: Arrays) -> Arrays:
            return drawn | {"key_gram": drawn["key_gram"] + 50.0 * (1.0 - np.eye(LAYER.seq_len))}

        found = results(returning(indefinite), "scores")
        assert "scores.key_scale" in {result.check for result in found if result.verdict == "violated"}


class TestLargeLayers:
    WIDE = AttentionLayer(width=10**6)
    LESS_WIDE = AttentionLayer(width=10**5)
    LONG = AttentionLayer(width=16, seq_len=200)

    @pytest.mark.parametrize("name", ["outputs", "exactness", "non_gaussianity"])
    def test_no_law_is_computed_where_no_look_can_be_paid(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def unexpected(*arguments: Any, **options: Any) -> Any:
            raise AssertionError("a law was computed")

        monkeypatch.setattr("attncheck.checks.laws.drawn_blocks", unexpected)
        monkeypatch.setattr("attncheck.checks.comparison.drawn_blocks", unexpected)
        found = results(collapsed, name, self.LESS_WIDE, Cost(1, 1e-5, 0.9))
        assert {result.verdict for result in found} == {"not examined"}
        assert all("the one draw available to a look at this layer" in r.reason for r in found)

    def test_one_draw_is_enough_for_gram_matrices(self) -> None:
        examined = [r.check for r in results(collapsed, "scores", self.LESS_WIDE, Cost(1, 1e-5, 0.9)) if r.p_values]
        assert examined == ["scores.key_scale", "scores.key_each_head"]

    def test_laws_of_long_layers_take_little_memory(self) -> None:
        tracemalloc.start()
        try:
            distance = gaussian_distance(self.LONG, 1)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert 0.0 <= distance < 1.0
        assert peak < 2**29

    def test_laws_of_scores_take_no_draws_in_the_limit(self) -> None:
        law = marginal_law(self.LONG, Scalar(), "limit")
        assert law.std == pytest.approx(1.0)
        assert law.error == 0.0

    def test_draws_are_bounded_by_what_they_cost(self) -> None:
        assert affordable_draws(self.WIDE, 10_000) == 100
        assert affordable_draws(LAYER, 10_000) == 10_000
        assert affordable_draws(self.LONG, 10_000, "limit") < affordable_draws(self.LONG, 10_000) < 10_000

    @pytest.mark.parametrize("std", [1e-6, 1e6])
    def test_layers_at_the_ends_of_the_range(self, std: float) -> None:
        names = ("query_std", "key_std", "value_std", "output_std", "input_std")
        layer = SMALL.replace(activation="identity", attention_map="linear", **dict.fromkeys(names, std))
        for name in PROPERTIES:
            found = results(collapsed, name, layer, Cost(600, 1e-5, 0.9))
            assert not [result.check for result in found if result.verdict == "violated"]

    @pytest.mark.parametrize("item", [2.0**-900, 2.0**900])
    def test_mixtures_in_any_unit(self, item: float) -> None:
        variances = np.random.default_rng(0).chisquare(1, 1000)
        expected, scaled = condense(variances, np.ones(1000)), condense(item * variances, np.ones(1000))
        np.testing.assert_allclose(scaled.mean() / item, expected.mean(), rtol=1e-12)
        assert len(scaled.variances) == pytest.approx(len(expected.variances), abs=20)
