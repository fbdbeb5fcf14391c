"""Kernels of the inputs, and roots of singular matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import input_kernel, input_moments
from attncheck.layers.norm import normalised_gram

DISTANCE = np.subtract.outer(np.arange(5), np.arange(5))
PLACED = {"seq_len": 5, "position_std": 1.5, "position_reach": 1.2, "activation": "identity"}
#: Fields, and kernels by their entries on and off the diagonal.
KERNELS: list[tuple[dict[str, Any], FloatArray]] = [
    ({}, np.eye(4)),
    ({"activation": "relu"}, 0.5 * np.eye(4) + (1 - np.eye(4)) / (2 * np.pi)),
    ({"activation": "relu", "norm": "rms"}, np.eye(4) + (1 - np.eye(4)) / np.pi),
    ({"activation": "relu", "norm": "layer"}, np.eye(4)),
    ({"activation": "tanh", "norm": "rms"}, np.eye(4)),
    (PLACED, np.eye(5) + 1.5**2 * np.exp(-(DISTANCE**2) / (2 * 1.2**2))),
]


@pytest.mark.parametrize(("fields", "expected"), KERNELS)
def test_kernels_have_their_closed_forms_and_cannot_be_written_to(fields: Any, expected: FloatArray) -> None:
    kernel = input_kernel(AttentionLayer(width=8, **fields).inputs).matrix
    np.testing.assert_allclose(kernel, expected, atol=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        kernel[0, 0] = 2.0


def test_the_error_of_the_kernel_bounds_what_an_error_of_the_moments_makes() -> None:
    inputs = AttentionLayer(width=8, seq_len=3, activation="tanh", norm="layer", input_correlation=0.5).inputs
    kernel, means = input_moments(inputs)
    off = normalised_gram("layer", kernel.matrix + kernel.error * np.array([[1, -1, 1], [-1, 1, 1], [1, 1, -1]]), means)
    assert np.abs(off - input_kernel(inputs).matrix).max() <= input_kernel(inputs).error
