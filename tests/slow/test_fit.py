"""The first cause that is named is what is wrong: candidates that are simulated, and held beside a sample."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy import stats

from attncheck import AttentionLayer
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.sample import FIELDS, Sample
from attncheck.diagnosis.candidates import candidates, right, scaled_by
from attncheck.diagnosis.fit import UNKNOWN, _Placed, fitted, told
from attncheck.faults import EXPOSURES, FAULTS, exposing
from attncheck.runs.check import check
from attncheck.subject import Subject

LAYERS = (AttentionLayer(width=16), AttentionLayer(width=8, seq_len=3, num_heads=4, mask="causal"))
SIZE = 4_000


def samples(subject: object, exposure: str, size: int = SIZE) -> list[Sample]:
    own = Subject.of(subject)
    drawn = [own.draw(layer, size, stream(7, "tests", layer.key)) for layer in LAYERS]
    wanted: list[str] = [name for name in FIELDS if name in EXPOSURES[exposure]]
    return [Sample.from_mapping(each.layer, {name: each.need(name) for name in wanted}, size) for each in drawn]


@functools.cache
def causes(name: str, exposure: str) -> tuple[str, ...]:
    return tuple(told(*fitted(samples(FAULTS[name].subject, exposure), seed_sequence(1, "tests", role="fit"))))


@pytest.mark.parametrize(
    ("name", "exposure"),
    [
        ("softmax_over_columns", "outputs"),
        ("tied_query_key", "scores"),
        ("shared_keys", "scores"),
        ("tied_key_value", "grams"),
    ],
)
def test_the_first_cause_is_the_fault(name: str, exposure: str) -> None:
    assert causes(name, exposure)[0] == FAULTS[name].what


@pytest.mark.parametrize(
    ("name", "exposure", "said"),
    [
        ("missing_head_scaling", "outputs", "is H^{-1/2} missing?"),
        ("key_std_10", "grams", "W_K: 1"),
        ("output_std_10", "grams", "W_O or the scaling of the heads: 1"),
    ],
)
def test_a_scale_is_named_by_its_number_and_its_matrix(name: str, exposure: str, said: str) -> None:
    first = causes(name, exposure)[0]
    assert said.rstrip("1") in first
    if said.endswith("1"):
        assert float(first.partition(": ")[2].split()[0]) == pytest.approx(1.1, rel=0.015)


def test_a_missing_root_of_n_is_asked_for() -> None:
    def unscaled(layer: AttentionLayer, size: int, rng: np.random.Generator) -> object:
        return right(change=lambda each: {"query_std": each.query_std * each.width**0.5})(layer, size, rng)

    first = told(*fitted(samples(unscaled, "scores"), seed_sequence(1, "tests", role="fit")))[0]
    assert first.startswith("W_Q, W_K or the scaling of the scores: √n")
    assert first.endswith("is the division by √n missing?")


def test_what_no_candidate_does_is_none_that_is_known() -> None:
    def odd(layer: AttentionLayer, size: int, rng: np.random.Generator) -> object:
        drawn = dict(right()(layer, size, rng))
        return drawn | {
            "outputs": drawn["outputs"]
            * np.where(np.abs(drawn["scores"][:, :1, -1]) > 0.7, 1.5, 1.0).mean(axis=-1, keepdims=True)
        }

    first, nearest = told(*fitted(samples(odd, "scores"), seed_sequence(1, "tests", role="fit")))
    assert first.startswith(UNKNOWN)
    assert nearest.endswith("(the nearest, and it does not fit)")


def test_the_true_cause_is_refused_as_often_as_stated() -> None:
    """Of 40 right samples, distances are a chi-square's: none beyond 1e-4, and their p-values are uniform at 1e-4."""
    p_values = []
    layer, own = LAYERS[0], right(change=scaled_by({"query_std": 1.3}))
    for seed in range(40):
        first, second = (stream(seed, "tests", "fit", which) for which in ("one", "other"))
        placed = _Placed(Sample.from_mapping(layer, own(layer, SIZE, first), SIZE))
        other = Sample.from_mapping(layer, own(layer, SIZE, second), SIZE)
        p_values.append(stats.chi2.sf(placed.distance(other), placed.dof))
    assert min(p_values) > 1e-4
    assert stats.kstest(p_values, "uniform").pvalue > 1e-4


def test_each_candidate_is_there_once_and_only_with_what_it_can_change() -> None:
    found = list(candidates(LAYERS, frozenset({"outputs"})))
    words = [candidate.words for candidate in found]
    assert len(set(words)) == len(words)
    assert not any(each.startswith("W_K:") for each in words)  # nothing tells it from W_Q
    assert "the mask is inverted: a position sees itself and the later ones" in words


def test_a_report_names_the_cause_first_and_the_same_twice() -> None:
    blind = exposing(FAULTS["softmax_over_columns"], EXPOSURES["scores"])
    reports = [check(blind, LAYERS[1], properties=["outputs"], profile="smoke") for _ in range(2)]
    assert reports[0].causes == reports[1].causes
    assert reports[0].causes[0] == FAULTS["softmax_over_columns"].what
    assert str(reports[0]).splitlines()[1] == f"  cause:    {FAULTS['softmax_over_columns'].what}"
    assert check("attncheck.subject:collapsed", LAYERS[1], properties=["outputs"], profile="smoke").causes == ()
