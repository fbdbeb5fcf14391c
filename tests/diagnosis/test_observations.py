"""Observations: fields that a subject never reads, uneven scales, and correlations between draws, and no others."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from attncheck import AttentionLayer, check, simulate
from attncheck._lib.arrays import FloatArray
from attncheck.checks.sample import Sample
from attncheck.diagnosis.estimates import exact_sample, not_normal, uneven
from attncheck.diagnosis.unread import never_read, unused_fields, unused_text
from attncheck.evidence.plot_data import Estimates
from attncheck.faults import FAULTS
from attncheck.records.explanation import Certainty, Explanation
from attncheck.report.results import of_cause
from attncheck.simulators.literal import LiteralSimulator, Projections
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws, draw_with_weights
from attncheck.subject import Subject, collapsed

LAYER = AttentionLayer(
    width=8, seq_len=3, num_heads=4, num_kv_heads=2, mask="causal", norm="rms", clip=2.0, input_correlation=0.5
)


def unread_by(read: Callable[[AttentionLayer], Any], layer: AttentionLayer = LAYER, **attributes: Any) -> set[str]:
    """Return the names of the fields unread by a subject that does this with its layer, and else needs its shape."""

    def subject(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Mapping[str, Any]:
        read(layer)
        return {"outputs": rng.standard_normal((size, layer.seq_len, layer.width))}

    for name, value in attributes.items():
        setattr(subject, name, value)
    return unused_fields(Subject.of(subject), layer, np.random.default_rng(0))


ALL = {"num_heads", "num_kv_heads", "mask", "norm", "clip", "input_correlation"}


def test_what_is_read_is_not_told() -> None:
    assert unread_by(lambda layer: None) == ALL
    assert unread_by(lambda layer: layer.mask) == ALL - {"mask"}
    assert unread_by(lambda layer: layer.kv_heads) == ALL - {"num_kv_heads"}
    assert unread_by(lambda layer: layer.equal_inputs) == ALL - {"input_correlation"}
    assert unread_by(lambda layer: None, supports=lambda layer: layer.mask == "causal") == ALL - {"mask"}


@functools.cache
def cached(layer: AttentionLayer) -> int:
    return layer.width


@pytest.mark.parametrize(
    "read",
    [
        vars,
        hash,
        repr,
        cached,
        pickle.dumps,
        copy.copy,
        dataclasses.asdict,
        AttentionLayer.to_dict,
        AttentionLayer.describe,
        lambda layer: layer == LAYER or pytest.fail("an equal layer is not equal"),
        lambda layer: [LAYER].index(layer),
        lambda layer: layer.replace(width=4),
        lambda layer: collapsed(layer, 1, np.random.default_rng(0)),
    ],
)
def test_what_reads_the_whole_layer_reads_each_field(read: Callable[[AttentionLayer], Any]) -> None:
    assert unread_by(read) == set()


PLAIN = AttentionLayer(width=8, seq_len=3)


@pytest.mark.parametrize(
    "layer",
    [
        PLAIN.replace(num_kv_heads=2, head_dim=8, window=3),
        PLAIN.replace(window=10),
        PLAIN.replace(num_heads=1, head_scaling=False),
        PLAIN.replace(seq_len=1, mask="causal", head_dim=8, rotary_base=10.0, bias_std=1.0),
    ],
)
def test_fields_without_effect_are_not_told(layer: AttentionLayer) -> None:
    assert unread_by(lambda layer: None, layer) == set()


def test_the_second_name_of_a_tied_matrix_is_not_told() -> None:
    tied = PLAIN.replace(tied_query_key=True, score_scaling="1/n", query_std=2.0, key_std=2.0)
    assert unread_by(lambda layer: (layer.tied_query_key, layer.query_std), tied) == set()


def test_subjects_that_do_not_depend_on_a_description_are_not_told() -> None:
    def given(layer: AttentionLayer, inputs: Any, rng: np.random.Generator) -> Mapping[str, Any]:
        return {"outputs": inputs}

    assert unused_fields(Subject.of(given), LAYER, np.random.default_rng(0)) == ALL - {"clip", "input_correlation"}
    # A module of one layer, and a function written for one layer, are that layer.
    assert unread_by(lambda layer: None, layers=(LAYER,)) == set()

    def fixed(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Mapping[str, Any]:
        return {"outputs": rng.standard_normal((size, 3, 8))}

    assert unused_fields(Subject.of(fixed), LAYER, np.random.default_rng(0)) == set()


def test_a_subject_sees_and_keeps_a_usual_layer() -> None:
    kept: list[Any] = []

    def look(layer: AttentionLayer) -> None:
        assert layer.__class__ is AttentionLayer
        assert "Watched" not in repr(layer)
        kept.extend([layer, pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)])

    unread_by(look)
    assert [type(layer) for layer in kept] == [AttentionLayer] * len(kept)
    assert [layer == LAYER for layer in kept] == [True] * len(kept)


def test_fields_read_on_any_layer_are_not_told() -> None:
    layers = [PLAIN.replace(window=2, sink=0.5), PLAIN.replace(window=2, mask="causal"), PLAIN]
    assert never_read(layers, [{"window", "sink"}, set(), set()]) == {"sink": 0.5}
    assert never_read(layers, [{"window"}, set(), set()]) == {}
    many = PLAIN.replace(num_heads=4, mask="causal", norm="rms", softcap=9.0, window=2, value_std=2.0)
    told = unused_text(never_read([many], [unread_by(lambda layer: None, many)]))
    named = "num_heads (here 4), mask (here 'causal'), value_std (here 2.0), norm (here 'rms') and 2 other fields"
    assert told == f"in a repeated call, the subject did not read {named}"


def unmasked(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Mapping[str, Any]:
    """Draw from the layer with only some of its fields; its mask is not among them."""
    names = ("width", "seq_len", "num_heads", "value_std")
    return collapsed(AttentionLayer(**{name: getattr(layer, name) for name in names}), size, rng)


def test_an_unread_field_is_the_first_cause_if_the_simplest_layer_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncheck.diagnosis.sources.fitted", lambda *arguments: ([], []))  # which takes seconds
    plain = AttentionLayer(width=8, seq_len=3, num_heads=2)
    report = check(unmasked, plain.replace(mask="causal"), properties="conditional", profile="smoke")
    assert report.verdict == "violated"
    assert report.causes[0] == "in a repeated call, the subject did not read mask (here 'causal')"

    def doubled(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Mapping[str, Any]:
        return {name: 2.0 * values for name, values in unmasked(layer, size, rng).items()}

    report = check(doubled, [plain, plain.replace(mask="causal")], properties="conditional", profile="smoke")
    assert "did not read mask" not in report.causes[0]
    assert "in a repeated call, the subject did not read mask (here 'causal')" in report.causes


# Uneven scales and correlations -------------------------------------------------------------------


LAYERS = (
    AttentionLayer(width=8, seq_len=3, num_heads=2),
    AttentionLayer(width=12, seq_len=4, num_heads=4, num_kv_heads=2, head_dim=4, mask="causal"),
    AttentionLayer(width=4, seq_len=1, num_heads=1, norm="rms"),
    AttentionLayer(width=8, seq_len=5, num_heads=3, attention_map="relu", window=2),
)
DRAWS = 2_000


def drawn(layer: AttentionLayer, seed: int = 0, size: int = DRAWS) -> dict[str, FloatArray]:
    sample = collapsed(layer, size, np.random.default_rng(seed))
    return {name: np.array(sample[name]) for name in ("outputs", "scores")}


def found(layer: AttentionLayer, fields: dict[str, Any], seed: int = 0) -> list[Explanation]:
    sample = Sample.from_mapping(layer, fields, len(fields["outputs"]))
    return list(uneven(sample, lambda: exact_sample(sample, np.random.SeedSequence(seed))))


def test_nothing_is_uneven_in_a_right_sample() -> None:
    """Two of some dozens of intervals miss each other by chance in 3e-6, and correlations reach 6.6 errors in 4e-11."""
    for layer, seed in itertools.product(LAYERS, range(3)):
        for fields in ({"outputs"}, {"outputs", "scores"}):
            sample = drawn(layer, seed)
            assert [each.text for each in found(layer, {name: sample[name] for name in fields}, seed)] == []


@pytest.mark.parametrize(
    ("field", "place", "name"),
    [
        ("scores", np.s_[:, 1], "scores: score variance by head: "),
        ("scores", np.s_[:, :, 2], "scores: score variance by position of the query: "),
        ("scores", np.s_[..., 0], "scores: score variance by position of the key: "),
        ("outputs", np.s_[:, 1], "seen in the outputs: output variance by position: "),
        ("outputs", np.s_[:, :, 0], "seen in the outputs: output variance by neuron: "),
    ],
)
def test_larger_values_at_one_place_are_told(field: str, place: Any, name: str) -> None:
    """A variance 2.25 times as large is 20 standard errors away."""
    layer = LAYERS[0]
    sample = drawn(layer)
    if field == "outputs":
        sample["outputs"] = np.concatenate([sample["outputs"], drawn(layer, 7)["outputs"]], axis=2)
    sample[field][place] *= 1.5
    told = found(layer, sample)
    assert [str(each)[: len(name)] for each in told] == [name]
    values = np.array([float(value) for value in told[0].text.split(": ")[1].partition(" times")[0].split(", ")])
    at = int(np.argmax(values))
    assert values == pytest.approx(np.where(np.arange(len(values)) == at, 2.25, 1.0), rel=0.25)
    plot = told[0].plot
    assert isinstance(plot, Estimates)
    assert np.argmax(plot.observed) == at
    drawing = of_cause(plot)
    assert drawing is not None
    assert f"The farthest is {plot.observed[at]:.3g} at " in drawing.alt


def one_large_head(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    sample = collapsed(layer, size, rng)
    return {"outputs": sample["outputs"], "scores": sample["scores"] * np.array([1.0, 1.5])[:, None, None]}


def dependent_keys(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    def mix(layer: AttentionLayer, made: Projections) -> Projections:
        return dataclasses.replace(made, keys=0.5 * made.queries + 0.75**0.5 * made.keys)

    sample = LiteralSimulator(arrange=mix)(layer, size, rng)
    return {"outputs": sample["outputs"], "scores": sample["scores"]}


def centred(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    number = int(rng.integers(2**31))
    outputs = simulate(layer, size, seed=number, coordinates=layer.width).outputs
    return {"outputs": outputs - outputs.mean(axis=-1, keepdims=True)}


def weights_of_a_call(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    return {"outputs": FAULTS["weights_per_call"].subject(layer, size, rng)["outputs"]}


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
def test_dependent_matrices_and_centred_outputs_are_told(seed: int) -> None:
    first, *others = check(dependent_keys, LAYERS[0], properties="exactness", profile="smoke", seed=seed).explanations
    assert re.match("scores: mean score of a position with itself .*: W_Q and W_K depend on each other", str(first))
    assert not any(other.certainty == Certainty.HINTED for other in others)
    first, *_ = check(centred, LAYERS[0], properties=["exactness", "outputs"], profile="smoke", seed=seed).explanations
    assert str(first) == "the outputs of all neurons add up to 0 at each position: are they centred?"


@pytest.mark.parametrize(("law", "count"), [("student5", 1), ("gaussian", 0)])
def test_heavy_tails_of_output_weights_are_told(law: str, count: int) -> None:
    layer = AttentionLayer(width=8, seq_len=1, num_heads=1, head_dim=2)
    draws = draw_with_weights(layer, DRAWS, 8, np.random.default_rng(0), WeightLaws.of({"output": law}))
    texts = [each.text for each in not_normal(Sample(layer, draws.outputs), GAUSSIAN_LAWS)]
    assert [text.endswith("is W_O not Gaussian?") for text in texts] == count * [True]


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
def test_no_interval_stands_beside_dependent_draws(seed: int) -> None:
    report = check(weights_of_a_call, LAYERS[0], profile="smoke", seed=seed)
    assert report.causes[0].startswith("draws: two calls have different distributions")
    assert any(result.diagnosis for result in report.results)
    assert report.view.observed == []


def large_scores(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Outputs are uneven as well, since positions that see more differ more."""
    sample = collapsed(layer.replace(query_std=2.0), size, rng)
    return {"outputs": sample["outputs"], "scores": sample["scores"]}


@pytest.mark.sampled
@pytest.mark.parametrize("simulator", [one_large_head, large_scores])
def test_the_first_line_of_a_run_is_of_the_first_stage(simulator: Any) -> None:
    layer = LAYERS[0].replace(mask="causal", seq_len=4)
    first, *_ = causes = check(simulator, layer, properties="exactness", profile="smoke").causes
    assert first.startswith("scores: score variance by head: ") is (simulator is one_large_head)
    assert not any("by position" in cause for cause in causes)
