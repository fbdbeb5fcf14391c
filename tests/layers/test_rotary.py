"""Rotary positions: description, three methods of one law, the limit, and wrong rotations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.arrays import FloatArray, IntArray
from attncheck._lib.errors import InputError
from attncheck.checks.check import Setting
from attncheck.checks.registry import CHECKS, check_named
from attncheck.checks.sample import Sample
from attncheck.layers.parts.rotary import pair_alignment, rotated, rotated_by, score_alignment
from attncheck.simulators.literal import LiteralSimulator, Projections

from .conftest import rejected

# Correlated inputs: otherwise rotation hardly shows in wide layers.
TURNED = ac.AttentionLayer(
    width=16,
    seq_len=5,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    rotary_base=10.0,
    input_correlation=0.5,
    query_std=1.3,
)
PLAIN = TURNED.replace(rotary_base=None)


def test_rotation_is_of_planes_and_scores_know_distances_only() -> None:
    q, k = np.random.default_rng(0).standard_normal((2, 5, 4))
    places = np.arange(5)
    assert np.allclose(np.linalg.norm(rotated(TURNED, q), axis=1), np.linalg.norm(q, axis=1))
    shifted = rotated_by(TURNED, q, places + 7) @ rotated_by(TURNED, k, places + 7).T
    assert np.allclose(rotated(TURNED, q) @ rotated(TURNED, k).T, shifted)
    one, other = rotated_by(TURNED, q[0], np.array(1)), rotated_by(TURNED, q[0], np.array(4))
    angles = np.array([1.0, 10**-0.5])
    assert np.allclose((one[:2] + 1j * one[2:]) * np.exp(3j * angles), other[:2] + 1j * other[2:])
    assert np.array_equal(rotated(PLAIN, q), q)


def test_alignment_approaches_that_of_many_neurons() -> None:
    many = score_alignment(TURNED.replace(head_dim=200_000))
    assert np.abs(many - score_alignment(TURNED, limit=True)).max() < 1e-4
    assert np.linalg.eigvalsh(pair_alignment(TURNED, limit=True)).min() > -1e-12


def test_rotation_shows_in_the_limit_only_where_inputs_are_correlated() -> None:
    assert abs(ac.limit(TURNED).covariance()[0, 1] / ac.limit(PLAIN).covariance()[0, 1] - 1) > 0.001
    apart = {"input_correlation": 0.0}
    one, other = ac.limit(TURNED.replace(**apart)), ac.limit(PLAIN.replace(**apart))
    assert np.array_equal(one.covariance(), other.covariance())


def test_keys_decide_their_gram_matrix_and_are_kept_only_where_they_are_turned() -> None:
    arrays = ac.simulate(TURNED, 20, seed=0).as_dict()
    gram = arrays.pop("key_gram")
    assert np.allclose(Sample.from_mapping(TURNED, arrays, 20).need("key_gram"), gram)
    assert "keys" not in Sample.from_mapping(PLAIN, arrays, 20).exposed
    with pytest.raises(InputError, match="key_gram"):
        Sample.from_mapping(TURNED, {**arrays, "key_gram": 2.0 * gram}, 20)


def test_what_is_not_examined_says_why() -> None:
    exposed = Sample.from_mapping(TURNED, ac.simulate(TURNED, 20, seed=0, coordinates=2).as_dict(), 20).exposed
    reasons = {check.name: check.reason_not_examined(Setting(TURNED, exposed, 2)) for check in CHECKS}
    turning = {name for name, reason in reasons.items() if reason.startswith("rotary")}
    assert turning == {"scores.size", "scores.head_pairs"}
    without = Setting(TURNED, exposed - {"keys"}, 2)
    assert check_named("scores.scale").reason_not_examined(without) == "the subject does not expose keys"
    long = Setting(TURNED.replace(seq_len=17), exposed, 2)
    assert "more than 16" in check_named("scores.law").reason_not_examined(long)


Score = Callable[[ac.AttentionLayer, Projections, np.random.Generator], FloatArray]


def wired(query: Callable[..., FloatArray], key: Callable[..., FloatArray]) -> Score:
    """Return scores with separate rotations of queries and keys."""

    def score(layer: ac.AttentionLayer, made: Projections, rng: np.random.Generator) -> FloatArray:
        places = np.arange(layer.seq_len)
        q, k = query(layer, made.queries, places), key(layer, made.keys, places)
        return np.asarray(layer.score_factor * layer.head_width**-0.5 * (q @ k.swapaxes(-1, -2)))

    return score


def by(factor: int = 1, shift: int = 0, base: float = 1.0) -> Callable[..., FloatArray]:
    def turn(layer: ac.AttentionLayer, vectors: FloatArray, places: IntArray) -> FloatArray:
        other = layer.replace(rotary_base=base * (layer.rotary_base or 1.0))
        return rotated_by(other, vectors, factor * places + shift)

    return turn


_NOT = by(0)
WRONG = {
    "not turned": wired(_NOT, _NOT),
    "keys only": wired(_NOT, by()),
    "queries only": wired(by(), _NOT),
    "opposite ways": wired(by(), by(-1)),
    "steps of two": wired(by(2), by(2)),
    "base off by 50": wired(by(base=50.0), by(base=50.0)),
}
#: The same law: scores depend on differences of positions, and W_Q R has the law of W_Q.
SAME = {"both shifted": wired(by(shift=3), by(shift=3)), "queries shifted": wired(by(shift=1), by())}


def rejects(name: str, score: Score, layer: ac.AttentionLayer, *fields: str) -> bool:
    """Return whether a smoke run violates a property; layers are not shrunk."""
    literal = LiteralSimulator(score=score)

    def subject(case: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        drawn = literal(case, size, rng)
        return {name: drawn[name] for name in fields or drawn}

    return rejected(subject, layer, name)


@pytest.mark.sampled
@pytest.mark.parametrize("name", WRONG)
def test_wrong_rotations_are_violated(name: str) -> None:
    assert rejects("scores", WRONG[name], TURNED)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["not turned", "keys only", "queries only"])
def test_scores_alone_show_what_is_not_turned(name: str) -> None:
    assert rejects("exactness", WRONG[name], TURNED, "outputs", "scores")


@pytest.mark.parametrize("name", SAME)
def test_shifts_are_the_same_law(name: str) -> None:
    assert not rejects("scores", SAME[name], TURNED)
    assert not rejects("exactness", SAME[name], TURNED)
