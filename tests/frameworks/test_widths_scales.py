"""A violated size comes with the standard deviations of its module's own matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attncheck as ac

pytest.importorskip("torch")

from torch import nn

WIDTHS = (32, 64, 128, 256)


def fixed(width: int) -> Any:
    """The same standard deviation at every width, as an initialiser range gives it."""
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.LayerNorm(width), nn.Linear(width, 64))
    nn.init.normal_(model[0].weight, std=0.02)
    return model


def test_a_scale_that_ignores_the_width_is_told() -> None:
    found = ac.widths(fixed, WIDTHS, {"0": 0, "2": (-9, 9)})
    assert [row.name for row in found.violated] == ["0"]
    np.testing.assert_allclose(found.fixed_scales, [0.02], rtol=0.11)  # five standard errors of 1,024 entries
    assert " has std 0.02 at every width" in found.headline
