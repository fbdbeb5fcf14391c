"""Fields that a subject never reads are told, and no field that it reads in any way."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from attncheck import AttentionLayer, check
from attncheck.diagnosis.unread import never_read, unused_fields, unused_text
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
