"""A violated size comes with the standard deviations of its module's own matrices."""

from __future__ import annotations

import re
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
    (note,) = found["0"].notes
    assert note in found.findings[0][1]
    assert found["2"].notes == ()
    told = re.fullmatch(r"std of weight (.*) at width 32, (.*) at 256: n\^(.*)", note)
    assert told is not None
    narrow, wide, exponent = map(float, told.groups())
    np.testing.assert_allclose([narrow, wide], 0.02, rtol=0.11)  # five standard errors of 1,024 entries
    np.testing.assert_allclose(exponent, np.log(wide / narrow) / np.log(8), atol=0.01)
