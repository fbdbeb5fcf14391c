"""Kernels of the inputs, and roots of singular matrices."""

from __future__ import annotations

import numpy as np
import pytest

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import input_kernel, psd_root


def test_the_papers_kernels() -> None:
    np.testing.assert_allclose(input_kernel(AttentionLayer(width=8).inputs).matrix, np.eye(4), atol=1e-14)
    relu = input_kernel(AttentionLayer(width=8, activation="relu").inputs).matrix
    expected = np.full((4, 4), 1 / (2 * np.pi))
    np.fill_diagonal(expected, 0.5)
    np.testing.assert_allclose(relu, expected, atol=1e-14)


def test_kernel_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        input_kernel(AttentionLayer(width=8).inputs).matrix[0, 0] = 2.0


def test_root_drops_null_directions() -> None:
    rng = np.random.default_rng(0)
    thin = rng.standard_normal((3, 5, 2))
    gram = thin @ thin.swapaxes(-1, -2)
    root = psd_root(gram)
    assert root.shape == (3, 5, 2)
    np.testing.assert_allclose(root @ root.swapaxes(-1, -2), gram, atol=1e-12)
    assert psd_root(np.zeros((2, 2))).shape == (2, 0)
