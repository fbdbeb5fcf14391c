"""Gradient descent on a linear map of one batch, by hand, for models of every framework."""

from __future__ import annotations

from typing import Any

import numpy as np

#: The batch, for maps of width 8 to one neuron.
INPUTS = np.random.default_rng(0).standard_normal((4, 8))
RATE = 0.1


def half_square(y: Any, x: Any) -> Any:
    return 0.5 * (y**2).sum()


def assert_descends(model: Any, steps: int = 1, factor: float = 1.0, atol: float = 1e-5) -> None:
    """Assert that steps on `half_square` of a map times a factor f take its outputs y to (1 - 0.1 f² X Xᵀ)ᵏ y."""
    before = model.taps()["output"].values
    for _ in range(steps):
        model.step()
    step = np.eye(4) - RATE * factor**2 * INPUTS @ INPUTS.T
    expected = np.linalg.matrix_power(step, steps) @ before
    np.testing.assert_allclose(model.taps()["output"].values, expected, rtol=1e-4, atol=atol)
