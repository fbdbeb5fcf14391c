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
from attncheck.diagnosis.unread import unread
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
    return set(unread(Subject.of(subject), layer, np.random.default_rng(0)))


ALL = {"num_heads", "num_kv_heads", "mask", "norm", "clip", "input_correlation"}


def test_what_is_read_is_not_told() -> None:
    assert unread_by(lambda layer: None) == ALL
    assert unread_by(lambda layer: layer.mask) == ALL - {"mask"}
    assert unread_by(lambda layer: layer.kv_heads) == ALL - {"num_kv_heads"}
    assert unread_by(lambda layer: layer.inputs) == ALL - {"norm", "clip", "input_correlation"}
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


def test_fields_without_effect_are_not_told() -> None:
    layer = AttentionLayer(width=8, seq_len=3, num_heads=2, num_kv_heads=2, head_dim=8, window=3)
    assert unread_by(lambda layer: layer.num_heads, layer) == set()

    def given(layer: AttentionLayer, inputs: Any, rng: np.random.Generator) -> Mapping[str, Any]:
        return {"outputs": inputs}

    assert set(unread(Subject.of(given), LAYER, np.random.default_rng(0))) == ALL - {"clip", "input_correlation"}
    # A module of one layer is that layer.
    assert unread_by(lambda layer: None, layers=(LAYER,)) == set()


def unmasked(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Mapping[str, Any]:
    """Draw from the layer with only some of its fields; its mask is not among them."""
    names = ("width", "seq_len", "num_heads", "value_std")
    return collapsed(AttentionLayer(**{name: getattr(layer, name) for name in names}), size, rng)


def test_an_unread_field_is_the_first_cause_if_the_simplest_layer_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncheck.runs.causes.fitted", lambda *arguments: ([], []))  # which takes seconds
    plain = AttentionLayer(width=8, seq_len=3, num_heads=2)
    report = check(unmasked, plain.replace(mask="causal"), properties="outputs", profile="smoke")
    assert report.verdict == "violated"
    assert report.causes[0] == "the subject never reads mask (here 'causal')"

    def doubled(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Mapping[str, Any]:
        return {name: 2.0 * values for name, values in unmasked(layer, size, rng).items()}

    report = check(doubled, [plain, plain.replace(mask="causal")], properties="outputs", profile="smoke")
    assert "never reads mask" not in report.causes[0]
    assert "the subject never reads mask (here 'causal')" in report.causes
