"""A violated size comes with the standard deviations of its module's own matrices."""

from __future__ import annotations

import importlib
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


@pytest.mark.parametrize("framework", ["flax", "keras"])
def test_parameters_have_the_names_of_their_taps(framework: str) -> None:
    pytest.importorskip(framework)
    other = importlib.import_module(f"tests.frameworks.test_widths_{framework}")
    if framework == "flax":
        models = [other.FlaxModels(other.Linen), other.FlaxModels(other.Twin)]
    else:
        models = [other.KerasModels(lambda width: other.Block(width))]
    for each in models:
        model = each.make(32, seed=0)
        weights = model.weights()
        assert {"head", "norm"} <= {name.rpartition(".")[0] for name in weights} & set(model.taps())
        heads = [array for name, array in weights.items() if name.startswith("head.") and array.ndim == 2]
        assert [array.shape for array in heads] == [(32, 8)]
