"""Streams: the same digits everywhere, and a new stream per key."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attncheck._lib.streams import digest, encode, seed_sequence, stream
from attncheck.evidence.families import Association

LAYER = {"width": 64, "heads": 4, "mask": "causal", "scaling": 0.5, "std": None, "shape": [1, 2]}

SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
VALUE = st.recursive(
    SCALAR | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


def test_digits_are_fixed() -> None:
    """On every platform: a change makes old records unreplayable."""
    assert digest(LAYER) == "c787c1f4fda3"
    assert stream(7, "scores", LAYER, look=2).integers(1000, size=4).tolist() == [677, 642, 390, 893]


def test_the_same_key_gives_the_same_stream_whatever_was_drawn_before() -> None:
    first = stream(7, "scores", LAYER).standard_normal(5)
    stream(7, "outputs", LAYER).standard_normal(50)
    np.testing.assert_array_equal(first, stream(7, "scores", LAYER).standard_normal(5))


CHANGES: list[tuple[int, tuple[Any, ...], int, str]] = [
    (8, ("scores", LAYER), 1, "draws"),
    (7, ("outputs", LAYER), 1, "draws"),
    (7, ("scores", {**LAYER, "heads": 5}), 1, "draws"),
    (7, ("scores", {**LAYER, "scaling": 0.5000000000000001}), 1, "draws"),
    (7, ("scores", {**LAYER, "extra": 0}), 1, "draws"),
    (7, ("scores",), 1, "draws"),
    (7, ("scores", LAYER, None), 1, "draws"),
    (7, (["scores", LAYER],), 1, "draws"),
    (7, ("scores", LAYER), 2, "draws"),
    (7, ("scores", LAYER), 1, "inputs"),
]


@pytest.mark.parametrize(("seed", "key", "look", "role"), CHANGES)
def test_changing_any_part_gives_an_unrelated_stream(seed: int, key: tuple[Any, ...], look: int, role: str) -> None:
    ours = stream(7, "scores", LAYER).standard_normal(2000)
    other = stream(seed, *key, look=look, role=role).standard_normal(2000)
    assert Association().test(ours, other).p_value > 1e-7  # chance of a false alarm


def test_parts_do_not_run_together() -> None:
    texts: list[Any] = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), (["ab", "c"],), ({"ab": "c"},)]
    ones: list[Any] = [(1,), ("1",), (1.0,), (True,), (b"1",), (1, 1), (11,)]
    keys = [*texts, *ones, (None,), (), ([],), ({},), ("",)]
    assert len({encode(list(key)) for key in keys}) == len(keys)


def test_a_key_survives_json_and_numpy() -> None:
    assert digest(json.loads(json.dumps(LAYER))) == digest(LAYER)
    assert digest((1, 2)) == digest([1, 2])
    assert digest({"n": np.int64(3), "x": np.float64(0.5), "b": np.bool_(True)}) == digest(
        {"x": 0.5, "b": True, "n": 3}
    )


@given(one=VALUE, other=VALUE)
def test_encodings_are_equal_only_for_equal_values(one: Any, other: Any) -> None:
    assert (encode(one) == encode(other)) == (repr(_sorted(one)) == repr(_sorted(other)))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


def test_ten_thousand_looks_have_ten_thousand_seeds() -> None:
    entropies = {
        seed_sequence(seed, f"property {i}", look=look).entropy
        for seed in range(10)
        for i in range(250)
        for look in range(1, 5)
    }
    assert len(entropies) == 10_000


def test_a_digest_is_hexadecimal_of_the_length_asked_for() -> None:
    assert digest(LAYER, 64).startswith(digest(LAYER))
    assert len(digest(LAYER, 1)) == 1
    assert len(digest(LAYER, 5)) == 5
    int(digest(LAYER, 64), 16)
