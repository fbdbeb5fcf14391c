"""Readouts that share the embedding's matrix, or are followed by a factor: right ones, and wrong neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attncheck as ac

pytest.importorskip("torch")

import torch
from torch import nn

from attncheck.frameworks.models import ModelsAtWidths
from attncheck.frameworks.torch import Torch

WIDTHS = (16, 32, 64, 128)
BASE, VOCABULARY = 16, 64


class Model(nn.Module):
    """A residual block between an embedding and a readout.

    `readout` names the parametrisation: a multiplier after a tied readout, a scaled input, a tied matrix of variance
    1/width between multipliers √width and 1/√width, a product with the matrix outside any module, or a smooth limit of
    logits; an untied matrix with a multiplier or without; and three wrong ones.
    """

    def __init__(self, width: int, readout: str, tied: bool) -> None:
        super().__init__()
        self.width, self.readout = width, readout
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        between = readout == "between"
        stds = {self.embedding: width**-0.5 if between else 1.0, self.up: width**-0.5, self.down: width**-0.5}
        if not tied:
            stds[self.head] = {"plain": 1.0 / width, "standard": width**-0.5}.get(readout, 1.0)
        for module, std in stds.items():
            nn.init.normal_(module.weight, std=std)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens) * (self.width**0.5 if self.readout == "between" else 1.0)
        x = self.last(x + self.down(torch.tanh(self.up(self.norm(x)))))
        factor = BASE / self.width  # 1 at the narrowest width
        match self.readout:
            case "after":
                return self.head(x) * factor
            case "input":
                return self.head(x * factor)
            case "between" | "root":
                return self.head(x) * self.width**-0.5
            case "product":
                return x @ self.embedding.weight.T * factor
            case "limited":
                return torch.tanh(self.head(x) * factor / 30.0) * 30.0
        return self.head(x)


def examined(readout: str, tied: bool = True, **options: Any) -> ac.Widths:
    return ac.widths(lambda width: Model(width, readout, tied), WIDTHS, "mup", seeds=24, **options)


def adam(module: Any, hidden: float = 1.0) -> Any:
    """Return Adam, with rates that fall as the width in hidden matrices, and as its root in one of variance 1/width."""
    shared = 0.5 if module.readout == "between" else 0.0
    powers = {module.embedding.weight: shared, module.up.weight: hidden, module.down.weight: hidden}
    groups = [
        {"params": [each], "lr": 0.01 * (BASE / module.width) ** powers.get(each, 0.0)} for each in module.parameters()
    ]
    return torch.optim.Adam(groups)


@pytest.mark.parametrize(
    ("readout", "tied"),
    [
        ("after", True),
        ("input", True),
        ("between", True),
        ("product", False),
        ("limited", True),
        ("after", False),
        ("plain", False),
    ],
)
def test_right_readouts_are_not_violated(readout: str, tied: bool) -> None:
    found = examined(readout, tied, optimizer=None if readout == "plain" else adam, steps=None)
    assert not found.violated, str(found)
    output = next(row for row in found.rows if row.kind == "output")
    assert (str(output.verdict), output.predicted) == ("consistent", "-0.5")
    if readout in ("after", "limited"):
        assert found["head"].notes == ("a factor follows: judged at the output",)


@pytest.mark.parametrize(
    ("readout", "tied", "tap"),
    [("standard", False, "head"), ("none", True, "head"), ("root", True, "output"), ("root", False, "output")],
)
def test_wrong_readouts_are_violated(readout: str, tied: bool, tap: str) -> None:
    first = examined(readout, tied).violated[0]
    assert (first.name, first.kind, first.steps) == (tap, "output", 0)


def test_a_wrong_rate_is_violated_in_a_tied_model() -> None:
    found = examined("after", optimizer=lambda module: adam(module, hidden=0.0))
    assert {row.steps for row in found.violated} == {1, 2}
    assert found.violated[0].name == "up"
    assert not any("may follow" in text for _, text in found.findings)


def test_a_tokens_logit_at_its_position_is_left_out() -> None:
    model = ModelsAtWidths(Torch, lambda width: Model(width, "after", tied=True)).make(16, seed=0)
    (tokens,), taps = model.tensors, model.taps()
    hidden = np.isnan(taps["output"].values)
    assert np.array_equal(hidden, np.arange(VOCABULARY) == tokens.numpy()[..., None])
    assert "without the logits of input tokens" in taps["output"].note
    assert taps["embedding"].rescaled
    untied = ModelsAtWidths(Torch, lambda width: Model(width, "plain", tied=False)).make(16, seed=0).taps()
    assert (untied["head"].note, untied["embedding"].rescaled) == ("", False)
