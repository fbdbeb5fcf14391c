"""What a subject answers to changed inputs: nothing in a right one, and true statements in wrong ones."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from attncheck import AttentionLayer, check
from attncheck._lib.arrays import FloatArray
from attncheck.checks.answers import projected
from attncheck.checks.registry import EVERY_PROPERTY, PROGRAM_PROPERTIES, checks_of
from attncheck.diagnosis.causes import first_stages, stage_of
from attncheck.diagnosis.responses import findings
from attncheck.diagnosis.sources import Violations, explanations
from attncheck.evidence.plot_data import Matrix
from attncheck.records.explanation import Certainty, Explanation
from attncheck.simulators.literal import LiteralSimulator, Projections, dot_products, project_out
from attncheck.simulators.weights import GAUSSIAN_LAWS
from attncheck.strategies import layers
from attncheck.subject import Subject, collapsed
from tests.simulators.answering import CENTRED_ON_BATCH, HALF, RIGHT, SINGLE, Answering, changed, few_weights, on_inputs

LAYER = AttentionLayer(width=8, seq_len=4, num_heads=2)
CAUSAL = LAYER.replace(mask="causal")
SINUSOIDS = np.sin(np.arange(4)[:, None] / 10_000.0 ** (np.arange(8) // 2 / 4) + np.pi / 2 * (np.arange(8) % 2))


def found(simulator: Any, layer: AttentionLayer = LAYER) -> list[Explanation]:
    return findings(Subject.of(simulator), layer, np.random.default_rng(0))


PARTS = [(), ("window", "sink"), ("softcap", "norm"), ("rotary positions",), ("position bias",), ("QK norm",)]


@pytest.mark.sampled
@pytest.mark.parametrize("parts", PARTS)
def test_nothing_is_found_in_a_right_subject(parts: tuple[str, ...]) -> None:
    @settings(max_examples=5, deadline=None)
    @given(layers(parts=parts, max_entries=20_000))
    def examine(layer: AttentionLayer) -> None:
        assert not found(RIGHT, layer)
        assert not found(SINGLE, layer)
        assert not found(on_inputs(LiteralSimulator(), shown=("outputs",)), layer)

    examine()


def score(change: Callable[[AttentionLayer, FloatArray], FloatArray]) -> LiteralSimulator:
    return LiteralSimulator(score=lambda layer, made, rng: change(layer, dot_products(layer, made, rng)))


def weigh(change: Callable[[AttentionLayer, FloatArray], FloatArray]) -> LiteralSimulator:
    return LiteralSimulator(weigh=lambda layer, scores: change(layer, layer.attention_weights(scores)))


def by_distance(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    places = np.arange(layer.seq_len)
    return np.asarray(scores - 0.5 * np.abs(places[:, None] - places))


def one_way(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    places = np.arange(layer.seq_len)
    return np.asarray(scores + 0.25 * (places[:, None] - places))


def normalised_queries(layer: AttentionLayer, made: Projections) -> Projections:
    lengths = np.maximum(np.linalg.norm(made.queries, axis=-1, keepdims=True), 1e-300)
    return dataclasses.replace(made, queries=made.queries / lengths)


def shifted_values(layer: AttentionLayer, made: Projections) -> Projections:
    return dataclasses.replace(made, values=np.roll(made.values, 1, axis=2))


def off_by_one(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    seen = np.tri(layer.seq_len, k=1, dtype=bool)
    weights = np.where(seen, np.exp(scores), 0.0)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def clipped(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator) -> FloatArray:
    return project_out(layer, np.maximum(mixed, 0.0), coordinates, rng)


def squashed(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator) -> FloatArray:
    return project_out(layer, np.tanh(mixed), coordinates, rng)


def hidden_query_neurons(layer: AttentionLayer, made: Projections) -> Projections:
    """Lose half of the queries' neurons in head 1."""
    queries = made.queries.copy()
    queries[:, 1, :, : layer.head_width // 2] = 0.0
    return dataclasses.replace(made, queries=queries)


def absolute(layer: AttentionLayer, made: Projections) -> Projections:
    return dataclasses.replace(made, queries=np.abs(made.queries), keys=np.abs(made.keys))


def last_attends_equally(layer: AttentionLayer, weights: FloatArray) -> FloatArray:
    changed = weights.copy()
    changed[..., -1, :] = 1.0 / layer.seq_len
    return changed


def doubled_values(layer: AttentionLayer, made: Projections) -> Projections:
    return dataclasses.replace(made, values=made.values * np.array([1.0, 2.0, 1.0, 1.0])[:, None])


def heated(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    """Apply another temperature in head 1 only, to scores that are returned as declared."""
    return layer.attention_weights(scores * np.array([1.0, 1.3])[:, None, None])


def with_inputs_added(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
    drawn = RIGHT(layer, inputs, rng)
    return {**drawn, "outputs": drawn["outputs"] + 0.3 * inputs[..., : drawn["outputs"].shape[-1]]}


#: Simulators of what `LAYER` does not declare, by what is found.
WRONG: dict[str, Answering] = {
    (
        "scores: inputs of 0 give scores other than 0: "
        "0 at distance 0, -0.5 at distance 1, -1 at distance 2 and -1.5 at distance 3 is added"
    ): on_inputs(score(by_distance)),
    (
        "scores: they grow 2 times when all inputs are doubled; declared 4 times: are queries or keys normalised?"
    ): on_inputs(LiteralSimulator(), normalised_queries),
    "inputs: inputs of 0 give scores and outputs other than 0, as if something were added to the inputs": changed(
        lambda drawn: {}, before=lambda inputs: inputs + 1.0
    ),
    "inputs: a sinusoidal encoding of the positions is added to the inputs": changed(
        lambda drawn: {}, before=lambda inputs: inputs + SINUSOIDS
    ),
    (
        "scores: the score of query 0 and key 0 changes with the inputs at 0 and 3; declared 0; 15 others are wrong too"
    ): on_inputs(score(lambda layer, scores: np.roll(scores, 1, axis=2))),
    "after the scores: outputs do not follow the inputs to other positions; scores do": on_inputs(
        weigh(lambda layer, weights: weights * np.arange(1, layer.seq_len + 1))
    ),
    "after the scores: outputs do not change sign when all inputs do: something is added, or is not linear": on_inputs(
        LiteralSimulator(finish=clipped)
    ),
    "scores: those of head 0 use neurons 0 to 3 of the inputs; declared all": changed(
        lambda drawn: {}, before=lambda inputs: inputs * (np.arange(LAYER.width) < 4)
    ),
    "draws: 0 and 24 of a call have the same weights; only 24 of 48 are distinct": few_weights,
    (
        "attention weights or values: outputs are those of attention weights averaged over heads, or "
        "these heads share one W_V W_O"
    ): on_inputs(weigh(lambda layer, weights: np.repeat(weights.mean(axis=1, keepdims=True), 2, axis=1))),
    "attention weights or values: outputs are those of attention weights averaged over queries": on_inputs(
        weigh(lambda layer, weights: 0.0 * weights + weights.mean(axis=2, keepdims=True))
    ),
    "attention weights or values: outputs use the attention weights of head 0 alone": on_inputs(
        weigh(lambda layer, weights: np.repeat(weights[:, :1], 2, axis=1))
    ),
    "scores: outputs are those of the returned scores times 0.5": changed(lambda a: {"scores": 2.0 * a["scores"]}),
    "attention weights or values: outputs are those of the transposed scores": on_inputs(
        LiteralSimulator(weigh=lambda layer, scores: layer.attention_weights(scores.swapaxes(-1, -2)))
    ),
    "attention weights or values: -0.5 times the outputs of equal attention weights are added": on_inputs(
        weigh(lambda layer, weights: weights - 0.5 / layer.seq_len)
    ),
    "attention weights or values: attention weights are smoothed: a share of 0.1 is equal for all keys": on_inputs(
        weigh(lambda layer, weights: 0.9 * weights + 0.1 / layer.seq_len)
    ),
    "attention weights or values: softmax is applied twice": on_inputs(weigh(AttentionLayer.attention_weights)),
    (
        "attention weights or values: outputs are those of the returned scores times 1 in head 0 and 1.3 in head 1"
    ): on_inputs(LiteralSimulator(weigh=heated)),
    "after the scores: the output at position 3 is computed differently from those at other positions": on_inputs(
        weigh(last_attends_equally)
    ),
    (
        "attention weights or values: where scores are 0, the weights of position 1 are 0.8, 1.6, 0.8 "
        "and 0.8; declared 1, 1, 1 and 1, up to a factor"
    ): on_inputs(LiteralSimulator(), doubled_values),
    (
        "after the scores: a linear function of a position's input is added to its output, as by a residual path"
    ): with_inputs_added,
    "after the scores: outputs pass through tanh": changed(lambda arrays: {"outputs": np.tanh(arrays["outputs"])}),
    (
        "after the scores: when inputs equal at all positions are doubled, outputs grow 1.29 times; declared 2 "
        "times: a function is applied to values or outputs, or weights do not add up to 1"
    ): on_inputs(LiteralSimulator(finish=squashed)),
    "scores: W_Q W_Kᵀ has rank 4 in head 1; declared 8": on_inputs(LiteralSimulator(), hidden_query_neurons),
    "scores: scores of query and key are symmetric in each head": on_inputs(
        score(lambda layer, scores: 0.5 * (scores + scores.swapaxes(-1, -2)))
    ),
    "scores: they are not products of linear functions of two inputs": on_inputs(LiteralSimulator(), absolute),
    "after the scores: outputs of a draw change with the inputs of other draws; its scores do not": CENTRED_ON_BATCH,
}
ROWS = [
    *((simulator, LAYER, text) for text, simulator in WRONG.items()),
    (
        on_inputs(score(one_way)),
        LAYER.replace(seq_len=3),
        "scores: inputs of 0 give scores other than 0: "
        "by key minus query position, 0 at 0, 0.25 at -1, -0.25 at 1, 0.5 at -2 and -0.5 at 2 is added",
    ),
    (
        lambda layer, inputs, rng: RIGHT(layer.replace(norm="rms"), inputs, rng),
        LAYER.replace(norm="layer", activation="relu"),
        "scores: they are those of inputs with norm='rms'",
    ),
    (  # a call gives one equation for 32 unknowns
        on_inputs(LiteralSimulator(weigh=lambda layer, scores: np.ones_like(scores))),
        AttentionLayer(width=16),
        "attention weights or values: outputs are those of equal attention weights",
    ),
    (
        on_inputs(LiteralSimulator(), shifted_values),
        CAUSAL,
        "attention weights or values: the output at 0 depends on the inputs at 3; declared 0; 2 others are wrong too",
    ),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("simulator", "layer", "text"), ROWS)
def test_what_is_computed_otherwise_is_found(simulator: Answering, layer: AttentionLayer, text: str) -> None:
    assert text in map(str, found(simulator, layer))


def test_a_subject_that_draws_its_inputs_gives_no_answers() -> None:
    assert found(collapsed) == []


def test_answers_that_are_not_exact_are_not_read() -> None:
    def drifting(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
        drawn = RIGHT(layer, inputs, rng)
        return drawn | {"outputs": drawn["outputs"] * (1.0 + 1e-3 * np.random.default_rng().standard_normal())}

    assert found(drifting) == found(HALF) == []


def test_few_values_of_weights_are_no_shared_weights() -> None:
    def signs(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
        return {"outputs": inputs * rng.choice([-1.0, 1.0], size=(len(inputs), 1, 1))}

    signs.weights = "rademacher"  # type: ignore[attr-defined]
    assert not any(each.stage == "draws" for each in found(signs, AttentionLayer(width=1, seq_len=1, num_heads=1)))


def test_declared_biases_are_nothing_wrong() -> None:
    def biased(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
        made = projected(layer, inputs, rng)
        bias = 0.3 * rng.standard_normal((3, *made.queries.shape[:2], 1, layer.head_width))
        arrays = made.queries + bias[0], made.keys + bias[1], made.values + bias[2]
        return LiteralSimulator().after(layer, Projections(inputs, *arrays), rng)

    assert found(biased)
    declared = {f"{name}_bias": ("gaussian", 0.3 * 8**0.5) for name in ("query", "key", "value")}
    biased.weights = declared  # type: ignore[attr-defined]  # mypy knows no attributes of functions
    assert not found(biased)


Change = Callable[[FloatArray], FloatArray]


def whole(weigh: Change = np.asarray, values: Change = np.asarray, outputs: Change = np.asarray) -> Answering:
    """Return all neurons of the outputs, and scores, with changes of weights, values and outputs."""

    def finish(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator) -> FloatArray:
        return outputs(project_out(layer, mixed, layer.width, rng))

    return on_inputs(
        LiteralSimulator(weigh=lambda layer, scores: weigh(layer.attention_weights(scores)), finish=finish),
        lambda layer, made: dataclasses.replace(made, values=values(made.values)),
    )


@pytest.mark.parametrize("layer", [LAYER.replace(num_heads=1), LAYER, CAUSAL.replace(head_dim=3)])
def test_the_weights_that_a_subject_uses_are_shown(layer: AttentionLayer) -> None:
    """Where nothing known fits, the layer with one head is examined, whose weights its outputs determine."""
    (first,) = found(whole(weigh=lambda weights: np.where(weights < 0.15, 0.0, weights)), layer)
    asked = re.fullmatch(
        r"attention weights or values: (with one head, )?where a score is \S+, a weight is 0; declared (0\.1\d*)",
        str(first),
    )
    assert asked is not None
    assert (asked[1] is None) is (layer.num_heads == 1)
    assert isinstance(first.plot, Matrix)
    observed, declared = np.array(first.plot.observed), np.array(first.plot.expected)
    np.testing.assert_allclose(observed, np.where(declared < 0.15, 0.0, declared), atol=2e-3)
    assert (declared < 0.15).any()


def test_weights_that_do_not_add_up_to_1_are_not_quoted() -> None:
    (first,) = found(whole(weigh=lambda weights: np.round(weights, 1)), LAYER.replace(num_heads=1))
    assert re.search(r"attention weights that add up to \S+ to \S+ times their sum for equal inputs", str(first))


def clipped_to(size: float, vectors: FloatArray) -> FloatArray:
    """Return vectors no longer than `size`, by position."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors * np.minimum(1.0, size / np.maximum(lengths, 1e-300)))


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("where", ["values", "outputs"])
def test_values_or_outputs_of_limited_size_are_no_wrong_weights(where: str, num_heads: int) -> None:
    limited = whole(**{where: lambda vectors: clipped_to(1.0, vectors)})
    told = list(map(str, found(limited, LAYER.replace(num_heads=num_heads))))
    assert told
    assert not any("weight is" in each for each in told)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_cause_that_answers_otherwise_is_not_identified(seed: int) -> None:
    """Scores with a soft cap have nearly the law of smoothed weights."""
    smoothed = on_inputs(weigh(lambda layer, weights: 0.9 * weights + 0.1 / layer.seq_len))
    first, *_ = check(smoothed, LAYER, properties="exactness", profile="smoke", seed=seed).explanations
    assert "a share of 0.1 is equal for all keys" in first.text


def test_equal_outputs_of_all_positions_are_no_equal_weights() -> None:
    """With equal weights, all positions give one equation, and the solution of few calls fits anything."""
    averaged = on_inputs(weigh(lambda layer, weights: 0.0 * weights + (weights**2).mean(axis=2, keepdims=True)))
    (explanation,) = found(averaged, LAYER.replace(num_heads=1))
    assert "no matrices give the outputs" in explanation.text


def test_refused_inputs_are_left_out() -> None:
    """A subject that divides by its inputs has no answer to inputs of 0."""

    def dividing(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
        if not inputs.any():
            raise ZeroDivisionError
        return on_inputs(LiteralSimulator(weigh=off_by_one))(layer, inputs, rng)

    first = found(dividing, CAUSAL)[0]
    assert "the output at 0 depends on the inputs at 0 and 1" in str(first)
    assert isinstance(first.plot, Matrix)
    observed, declared = (
        np.reshape(entries, (CAUSAL.seq_len,) * 2) for entries in (first.plot.observed, first.plot.expected)
    )
    assert np.array_equal(declared, np.tri(CAUSAL.seq_len))
    assert np.argwhere(observed > declared)[0].tolist() == [0, 1]


def test_every_check_of_layers_has_a_stage() -> None:
    """But those of the limit, of independence between matrices, and of shape."""
    names = [check.name for name in EVERY_PROPERTY for check in checks_of(name)]
    without = {name.partition(".")[0] for name in names if not stage_of(name)}
    assert without <= {*PROGRAM_PROPERTIES, "independence", "non_gaussianity", "structure"}
    assert first_stages({}) == []


# No explanation names a fault that draws or answers contradict

SMALL = LAYER.replace(seq_len=3, num_heads=4)


def mixed_heads(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    """Attend with a tenth of the weights of the head before: no known fault does so."""
    weights = layer.attention_weights(scores)
    return 0.9 * weights + 0.1 * np.roll(weights, 1, axis=1)


def test_a_fault_that_uses_positions_otherwise_is_not_named() -> None:
    report = check(on_inputs(LiteralSimulator(weigh=mixed_heads)), SMALL, properties="exactness", profile="smoke")
    assert report.verdict == "violated"
    kinds = {explanation.certainty for explanation in report.explanations}
    assert kinds <= {Certainty.ESTIMATED, Certainty.HINTED}
    assert "the fault begins with outputs given scores" in report.causes[0]


def test_nothing_is_explained_without_violations() -> None:
    assert explanations(Violations((), 0, GAUSSIAN_LAWS)) == ()
