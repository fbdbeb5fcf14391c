"""The tangent kernel: gradients match finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attncheck import AttentionLayer, tangent_kernel
from attncheck.simulators.tangent import literal_kernel

BASE = {"width": 5, "seq_len": 3, "query_std": 1.3, "key_std": 0.8, "value_std": 1.2, "output_std": 0.7}
# Zero scores have no ReLU slope: none of these layers has one.
LAYERS: dict[str, dict[str, Any]] = {
    "full heads": {},
    "grouped, causal": {"num_kv_heads": 1, "mask": "causal"},
    "grouped, low rank": {"num_kv_heads": 2, "num_heads": 4, "head_dim": 2, "attention_map": "sigmoid"},
    "divided by n": {"score_scaling": "1/n", "attention_map": "relu", "input_std": 2.0},
    "tied": {"score_scaling": "1/n", "tied_query_key": True, "key_std": 1.3},
    "narrow, linear": {"width": 2, "seq_len": 4, "attention_map": "linear", "head_scaling": False},
    "parts": {"sink": (-1.0, 2.0), "softcap": 1.5, "window": 2, "head_dim": 3},
    "capped linear": {"softcap": 1.0, "attention_map": "linear", "width": 3, "mask": "causal"},
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_differences(name: str) -> None:
    """θ is perturbed entry by entry; products of the outputs' changes are the kernel."""
    layer, rng, step = AttentionLayer(**{**BASE, **LAYERS[name]}), np.random.default_rng(3), 1e-6
    n, nu, heads, groups = layer.width, layer.head_width, layer.num_heads, layer.kv_heads
    shapes = {"query": (heads, n, nu), "key": (groups, n, nu), "value": (groups, n, nu), "output": (heads, nu, 2)}
    matrices = {part: rng.standard_normal((1, *shape)) for part, shape in shapes.items()}
    if layer.tied_query_key:
        matrices["key"] = matrices["query"]
    inputs = rng.standard_normal((1, layer.seq_len, n))
    kernel = literal_kernel(layer, inputs, **matrices)
    for part, matrix in enumerate(matrices):
        if layer.tied_query_key and matrix == "key":
            assert not kernel.parts[:, part].any()
            continue
        gradients = []
        for entry in np.ndindex(matrices[matrix].shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = matrices[matrix].copy()
                moved[entry] += sign * step
                changed = {**matrices, matrix: moved}
                if layer.tied_query_key and matrix == "query":
                    changed["key"] = moved
                ends.append(literal_kernel(layer, inputs, **changed).outputs[0])
            gradients.append((ends[0] - ends[1]) / (2.0 * step))
        expected = np.einsum("eri,eqj->ijrq", np.array(gradients), np.array(gradients))
        np.testing.assert_allclose(kernel.parts[0, part], expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


def test_draws_do_not_depend_on_their_number_nor_on_the_scale_of_normalised_inputs() -> None:
    layer = AttentionLayer(width=64, seq_len=3, num_kv_heads=1, mask="causal")
    few, many = (tangent_kernel(layer, size, seed=5, coordinates=2) for size in (300, 600))
    np.testing.assert_array_equal(few.kernel[:100], many.kernel[:100])
    normed = layer.replace(width=6, activation="relu", norm="layer")
    one, longer = (tangent_kernel(each, 50, seed=0).parts for each in (normed, normed.replace(input_std=3.0)))
    np.testing.assert_allclose(one, longer, rtol=1e-9, atol=1e-12)
