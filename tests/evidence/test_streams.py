"""Streams: the same digits everywhere, and a new stream per key."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
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


def test_digits_are_fixed_whatever_was_drawn_before() -> None:
    """On every platform: a change makes old records unreplayable."""
    assert digest(LAYER) == digest(LAYER, 64)[:12] == "c787c1f4fda3"
    assert [len(digest(LAYER, length)) for length in (1, 5, 64)] == [1, 5, 64]
    stream(7, "outputs", LAYER).standard_normal(50)
    assert stream(7, "scores", LAYER, look=2).integers(1000, size=4).tolist() == [871, 525, 793, 232]


KEYS: list[tuple[Any, ...]] = [
    ("outputs", LAYER),
    *(("scores", {**LAYER, **change}) for change in ({"heads": 5}, {"scaling": 0.5000000000000001}, {"extra": 0})),
    ("scores",),
    ("scores", LAYER, None),
    (["scores", LAYER],),
]


def test_changing_any_part_gives_an_unrelated_stream() -> None:
    changes: list[dict[str, Any]] = [{"run_seed": 8}, {"look": 2}, {"role": "inputs"}, *({"key": key} for key in KEYS)]
    ours = stream(7, "scores", LAYER).standard_normal(2000)
    for change in changes:
        fields: dict[str, Any] = {"run_seed": 7, "key": ("scores", LAYER), "look": 1, "role": "draws"} | change
        other = stream(fields.pop("run_seed"), *fields.pop("key"), **fields).standard_normal(2000)
        assert Association().test(ours, other).p_value > 1e-7, change  # chance of a false alarm
    looks = ((seed, f"property {i}", look) for seed in range(10) for i in range(250) for look in range(1, 5))
    assert len({seed_sequence(seed, name, look=look).entropy for seed, name, look in looks}) == 10_000


def test_a_key_survives_json_and_numpy() -> None:
    assert digest(json.loads(json.dumps(LAYER))) == digest(LAYER)
    assert digest((1, 2)) == digest([1, 2])
    numbers = {"n": np.int64(3), "x": np.float64(0.5), "b": np.bool_(True)}
    assert digest(numbers) == digest({"x": 0.5, "b": True, "n": 3})


@settings(max_examples=50)
@given(one=VALUE, other=VALUE)
def test_encodings_are_equal_only_for_equal_values(one: Any, other: Any) -> None:
    assert (encode(one) == encode(other)) == (repr(in_order(one)) == repr(in_order(other)))


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(item) for item in value] if isinstance(value, list) else value
