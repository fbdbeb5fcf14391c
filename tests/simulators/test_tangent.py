"""The tangent kernel: gradients match finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attncheck import AttentionLayer, InputError, tangent_kernel
from attncheck._lib.arrays import FloatArray
from attncheck.simulators.tangent import literal_kernel

BASE = {"width": 5, "seq_len": 3, "query_std": 1.3, "key_std": 0.8, "value_std": 1.2, "output_std": 0.7}
KINDS: dict[str, dict[str, Any]] = {
    "full heads": {},
    "low rank": {"head_dim": 3, "num_heads": 3},
    "grouped, causal": {"num_kv_heads": 1, "mask": "causal"},
    "grouped, low rank": {"num_kv_heads": 2, "num_heads": 4, "head_dim": 2, "attention_map": "sigmoid"},
    "divided by n": {"score_scaling": "1/n", "attention_map": "relu", "input_std": 2.0},
    "tied": {"score_scaling": "1/n", "tied_query_key": True, "key_std": 1.3},
    "narrow, linear": {"width": 2, "seq_len": 4, "attention_map": "linear", "head_scaling": False},
}
# Zero scores have no ReLU slope: none of these kinds has one.
EACH = pytest.mark.parametrize("kind", list(KINDS))


def layer_of(kind: str) -> AttentionLayer:
    return AttentionLayer(**{**BASE, **KINDS[kind]})


def literal(layer: AttentionLayer, rng: np.random.Generator, k: int = 2) -> dict[str, FloatArray]:
    n, nu = layer.width, layer.head_width
    drawn = {
        "query": rng.standard_normal((1, layer.num_heads, n, nu)),
        "key": rng.standard_normal((1, layer.kv_heads, n, nu)),
        "value": rng.standard_normal((1, layer.kv_heads, n, nu)),
        "output": rng.standard_normal((1, layer.num_heads, nu, k)),
    }
    return {**drawn, "key": drawn["query"]} if layer.tied_query_key else drawn


@EACH
def test_gradients_are_differences(kind: str) -> None:
    """θ is perturbed entry by entry; products of the outputs' changes are the kernel."""
    layer, rng = layer_of(kind), np.random.default_rng(3)
    matrices, step = literal(layer, rng), 1e-6
    inputs = rng.standard_normal((1, layer.seq_len, layer.width))
    found = literal_kernel(layer, inputs, **matrices)
    for part, name in enumerate(matrices):
        if layer.tied_query_key and name == "key":
            assert not found.parts[:, part].any()
            continue
        gradients = []
        for entry in np.ndindex(matrices[name].shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = matrices[name].copy()
                moved[entry] += sign * step
                changed = {**matrices, name: moved}
                if layer.tied_query_key and name == "query":
                    changed["key"] = moved
                ends.append(literal_kernel(layer, inputs, **changed).outputs[0])
            gradients.append((ends[0] - ends[1]) / (2.0 * step))
        expected = np.einsum("eri,eqj->ijrq", np.array(gradients), np.array(gradients))
        np.testing.assert_allclose(found.parts[0, part], expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


def test_draws_do_not_depend_on_their_number() -> None:
    layer = layer_of("grouped, causal").replace(width=64)
    few, many = (tangent_kernel(layer, size, seed=5, coordinates=2) for size in (300, 600))
    block = 100
    np.testing.assert_array_equal(few.kernel[:block], many.kernel[:block])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: tangent_kernel("layer", 1), "layer=.*is not an AttentionLayer"),  # type: ignore[arg-type]
        (lambda: tangent_kernel(layer_of("full heads"), 0), "size=0"),
        (lambda: tangent_kernel(layer_of("full heads"), 1, coordinates=6), "coordinates=6: exceeds width=5"),
        (
            lambda: tangent_kernel(AttentionLayer(width=8, head_dim=4, rotary_base=1e4), 1),
            "rotary_base=10000.0: is not supported",
        ),
        (
            lambda: tangent_kernel(layer_of("full heads"), 1, memory=10),
            "is too little for one tangent kernel",
        ),
        (
            lambda: tangent_kernel(AttentionLayer(width=4096), 1, memory=2**30),
            "use a smaller width, or fewer heads or positions",
        ),
    ],
)
def test_bad_arguments_are_refused(change: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        change()
