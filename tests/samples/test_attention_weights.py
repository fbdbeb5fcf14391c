"""Attention weights in place of scores: what they determine, checks that use them, and validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.checks.sample import Sample
from attncheck.layers.attention_map import attention_weights, visible
from attncheck.simulators.literal import LiteralSimulator

LAYER = ac.AttentionLayer(width=16, seq_len=4, num_heads=2, mask="causal")


def subject_of(literal: LiteralSimulator, *fields: str) -> Any:
    class Shown:
        def __call__(self, layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
            drawn = literal(layer, size, rng)
            drawn["attention"] = literal.weigh(layer, drawn["scores"])
            return {name: drawn[name] for name in ("outputs", "attention", *fields)}

    return Shown()


@pytest.mark.parametrize("attention_map", ["linear", "sigmoid"])
def test_weights_of_some_maps_are_scores(attention_map: Any) -> None:
    layer = LAYER.replace(attention_map=attention_map)
    arrays = ac.simulate(layer, 10, seed=0).as_dict()
    scores = arrays.pop("scores")
    arrays["attention"] = attention_weights(layer, scores)
    sample = Sample.from_mapping(layer, arrays, 10)
    assert sample.attention is None
    assert np.allclose(sample.need("scores")[..., visible(layer)], scores[..., visible(layer)])
    assert np.isneginf(sample.need("scores")[..., ~visible(layer)]).all()


@pytest.mark.parametrize("attention_map", ["softmax", "relu"])
def test_the_same_is_made_of_weights_as_of_scores(attention_map: Any) -> None:
    layer = LAYER.replace(attention_map=attention_map)
    arrays = ac.simulate(layer, 50, seed=0, coordinates=2).as_dict()
    whole = Sample.from_mapping(layer, arrays, 50)
    weights = attention_weights(layer, arrays.pop("scores"))
    shown = Sample.from_mapping(layer, {**arrays, "attention": weights}, 50)
    assert "scores" not in shown.exposed
    assert np.array_equal(shown.output_residual.values, whole.output_residual.values)
    assert np.array_equal(shown.variance_weights, whole.variance_weights)


def test_weights_computed_from_the_scores_add_nothing() -> None:
    arrays = ac.simulate(LAYER, 10, seed=0).as_dict()
    weights = attention_weights(LAYER, arrays["scores"])
    assert Sample.from_mapping(LAYER, {**arrays, "attention": weights}, 10).attention is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights + 0.01, "behind the mask"),
        (lambda weights: 0.9 * weights, "row sums"),
        (lambda weights: -weights, "below 0"),
        (None, "computed from the given scores"),
    ],
)
def test_what_is_no_attention_is_refused(change: Callable[[FloatArray], FloatArray] | None, message: str) -> None:
    arrays = ac.simulate(LAYER, 10, seed=0).as_dict()
    if change is None:
        arrays["attention"] = attention_weights(LAYER, 2.0 * arrays["scores"])
    else:
        arrays["attention"] = change(attention_weights(LAYER, arrays.pop("scores")))
    with pytest.raises(ac.InputError, match=rf"attention.*{message}"):
        Sample.from_mapping(LAYER, arrays, 10)


GRAMS = ("input_gram", "value_gram", "inputs")


def test_a_right_subject_is_consistent() -> None:
    layers = [LAYER, LAYER.replace(attention_map="relu", mask="none")]
    report = ac.check(subject_of(LiteralSimulator(), *GRAMS), layers, profile="smoke", seed=0)
    assert report.verdict == "consistent"
    for layer in layers:
        examined = {result.check for result in report.results if result.p_values and result.item.endswith(layer.key)}
        assert {"conditional.law", "outputs.given_scores", "exactness.output_given_scores"} <= examined
        assert ("exactness.row_entropy" in examined) == (layer.attention_map == "softmax")
        assert not {name for name in examined if name.startswith("scores.") and "key" not in name}


def twice(layer: ac.AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator) -> FloatArray:
    return 1.2 * LiteralSimulator().finish(layer, mixed, coordinates, rng)


HOTTER = LiteralSimulator(weigh=lambda layer, scores: attention_weights(layer, 1.5 * scores))


@pytest.mark.usefixtures("verdicts_only")
@pytest.mark.parametrize(("literal", "name"), [(HOTTER, "exactness"), (LiteralSimulator(finish=twice), "conditional")])
def test_wrong_ones_are_violated(literal: LiteralSimulator, name: str) -> None:
    report = ac.check(subject_of(literal, *GRAMS), LAYER, properties=[name], profile="smoke")
    assert report.verdict == "violated"


@pytest.mark.usefixtures("verdicts_only")
def test_weights_of_another_law_are_compared_with_literal_draws() -> None:
    subject = subject_of(LiteralSimulator(), *GRAMS)
    subject.weights = "uniform"  # a lie
    report = ac.check(subject, LAYER.replace(width=2), properties=["conditional"], profile="smoke")
    assert any(result.p_values for result in report.results if result.check == "conditional.scale")
