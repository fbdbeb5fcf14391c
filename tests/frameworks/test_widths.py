"""PyTorch models over widths: taps, right models accepted, wrong ones found and located."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from tests.refusals import refused

pytest.importorskip("torch")

import torch
from torch import nn

from attncheck.frameworks.models import ModelsAtWidths
from attncheck.frameworks.torch import Torch
from benchmarks.width_models import WRONG, Recipe

WIDTHS, NARROW = (32, 64, 128, 256), (16, 32, 64, 128)
BASE, VOCABULARY = 16, 64

# Taps ---------------------------------------------------------------------------------------------


class Twice(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        return self.layer(self.layer(x))


def linear(width: int) -> Any:
    return nn.Linear(width, width)


KINDS: dict[str, tuple[Callable[[int], Any], dict[str, str]]] = {
    "container": (
        lambda width: nn.Sequential(linear(width), nn.Sequential(nn.Tanh(), nn.Dropout())),
        {"0": "module", "1.0": "output"},
    ),
    "in place": (lambda width: nn.Sequential(linear(width), nn.ReLU(inplace=True)), {"0": "module", "1": "output"}),
    "twice": (Twice, {"layer": "module", "layer (2)": "output"}),
    "positions first": (
        lambda width: nn.MultiheadAttention(width, 4),
        {"scores": "scores", "weights": "weights", "output": "output"},
    ),
    "softmax of logits": (
        lambda width: nn.Sequential(nn.Linear(width, 7), nn.Softmax(-1)),
        {"0": "module", "1.softmax scores": "module", "1.softmax weights": "module", "1": "output"},
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_taps_come_in_order(name: str) -> None:
    build, kinds = KINDS[name]
    before = torch.get_rng_state()
    model = ModelsAtWidths(Torch, build).make(32, seed=0)
    taps = [model.taps() for _ in range(2)]
    assert torch.equal(before, torch.get_rng_state())
    assert [(name, tap.kind) for name, tap in taps[0].items() if not tap.same_as] == [*kinds.items()]
    for tap, again in zip(taps[0].values(), taps[1].values(), strict=True):  # dropout is off
        np.testing.assert_array_equal(tap.values, again.values)


def test_a_stream_is_measured_whose_last_block_has_another_name() -> None:
    """Of modules with the same output one is measured, by a name that all models have."""

    def build(depth: int) -> Any:
        blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8, bias=False), nn.Dropout()) for _ in range(depth)))
        return nn.Sequential(OrderedDict(blocks=blocks, stream=nn.Identity()))

    def inputs(depth: int, rng: np.random.Generator) -> Any:
        return rng.standard_normal((2, 8), np.float32)

    taps = ModelsAtWidths(Torch, build, inputs=inputs).make(3, seed=0).taps()
    copies = ("blocks.2.1", "blocks.2", "blocks", "stream", "output")
    assert {name: tap.same_as for name, tap in taps.items() if "2" in name or tap.kind == "output"} == {
        "blocks.2.0": "",
        **dict.fromkeys(copies, "blocks.2.0"),
    }
    result = ac.widths(build, (2, 3, 4), {"blocks": 0, "stream": 0}, inputs=inputs, seeds=2)
    assert {row.name for row in result.rows} == {"blocks.0.0", "blocks.1.0", "blocks", "stream", "output"}


# Right and wrong models ---------------------------------------------------------------------------


@functools.cache
def examined(recipe: Recipe) -> ac.Widths:
    expect = "mup" if recipe.mup else "standard"
    return ac.widths(recipe.build, NARROW, expect, optimizer=recipe.optimizer if recipe.mup else None)


ZERO_READOUT = Recipe(depth=1, zero_readout=True)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(mup=False),
        ZERO_READOUT,
        Recipe(depth=1, head_dim=8, norm="rms", by_hand=True),
        Recipe(mup=False, head_dim=8, norm="rms", after=True),
    ],
    ids=["mup", "standard", "zero readout", "mup, many heads", "standard, many heads"],
)
def test_right_models_are_not_violated(recipe: Recipe) -> None:
    result = examined(recipe)
    assert not result.violated, str(result)
    examined_rows = [row for row in result.rows if row.verdict != "not examined"]
    assert sum(row.verdict == "consistent" for row in examined_rows) > len(examined_rows) / 2 > 10


def test_what_is_zero_by_design_is_named() -> None:
    result = examined(ZERO_READOUT)
    assert result["readout"].notes == ("zero by design",)
    notes = {(row.name, row.steps): row.notes for row in result.rows}
    # A zero readout blocks gradients: the first step changes only the readout.
    assert notes["blocks.0.up", 1] == ("no change beyond rounding",)
    assert notes["blocks.0.up", 2] == ()


@pytest.mark.sampled
@pytest.mark.parametrize("name", WRONG)
def test_what_people_shipped_is_found_with_its_module(name: str) -> None:
    recipe, tap, steps = WRONG[name]
    first = examined(recipe).violated[0]
    assert (first.name, first.steps) == (tap, steps)
    assert math.isfinite(first.exponent or math.nan)


def test_half_precision_and_modules_that_run_twice() -> None:
    result = ac.widths(lambda width: Twice(width).to(torch.bfloat16), WIDTHS)
    assert result.verdict == "consistent"
    assert result.rows[1].notes == ("module runs more than once",)


# Readouts -----------------------------------------------------------------------------------------


class Readout(nn.Module):
    """A residual block between an embedding and a readout, which may share its matrix.

    `readout` names the parametrisation: a multiplier after the readout, a product with the embedding outside any
    module, a smooth limit of logits, multipliers at both ends, an untied matrix of variance 1/width², and wrong ones.
    """

    def __init__(self, width: int, readout: str, tied: bool) -> None:
        super().__init__()
        self.width, self.readout = width, readout
        self.embedding, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(64, width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        falling = width**-0.5
        stds = {self.embedding: 1.0, self.positions: 1.0, self.up: falling, self.down: falling}
        if readout in ("both ends", "no first end"):
            stds[self.embedding] = falling
        if readout in ("both ends", "falling positions"):
            stds[self.positions] = falling
        if not tied:
            stds[self.head] = {"plain": 1.0 / width, "standard": width**-0.5}.get(readout, 1.0)
        for module, std in stds.items():
            nn.init.normal_(module.weight, std=std)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        if self.readout == "both ends":
            x = x * self.width**0.5
        x = self.last(x + self.down(torch.tanh(self.up(self.norm(x)))))
        factor = BASE / self.width  # 1 at the narrowest width
        match self.readout:
            case "after" | "no first end" | "falling positions":
                return self.head(x) * factor
            case "both ends":
                return self.head(x) * factor**0.5
            case "product":
                return x @ self.embedding.weight.T * factor
            case "limited":
                return torch.tanh(self.head(x) * factor / 30.0) * 30.0
        return self.head(x)


def adam(module: Any, hidden: float = 1.0) -> Any:
    """Return Adam, with rates that fall as the width in hidden matrices."""
    powers = {module.up.weight: hidden, module.down.weight: hidden}
    groups = [
        {"params": [parameter], "lr": 0.01 * (BASE / module.width) ** powers.get(parameter, 0.0)}
        for parameter in module.parameters()
    ]
    return torch.optim.Adam(groups)


def read_out(readout: str, tied: bool, **options: Any) -> ac.Widths:
    return ac.widths(lambda width: Readout(width, readout, tied), NARROW, "mup", **({"seeds": 24} | options))


@pytest.mark.parametrize(
    ("readout", "tied", "optimizer"),
    [
        ("after", True, adam),
        ("product", False, None),
        ("limited", True, None),
        ("after", False, None),
        ("plain", False, None),
        ("both ends", True, None),
    ],
)
def test_right_readouts_are_not_violated(readout: str, tied: bool, optimizer: Any) -> None:
    result = read_out(readout, tied, optimizer=optimizer)
    assert not result.violated, str(result)
    output = next(row for row in result.rows if row.kind == "output")
    assert (str(output.verdict), output.predicted) == ("consistent", "-0.5")
    if readout in ("after", "limited"):
        assert result["head"].notes == ("a factor follows: the size is tested at the output instead",)


@pytest.mark.parametrize(
    ("readout", "tied", "name", "kind"),
    [
        ("standard", False, "head", "output"),
        ("none", True, "head", "output"),
        ("no first end", True, "embedding", "embedding"),
        ("falling positions", True, "positions", "embedding"),
    ],
)
def test_wrong_readouts_are_violated(readout: str, tied: bool, name: str, kind: str) -> None:
    first = read_out(readout, tied, seeds=8).violated[0]
    assert (first.name, first.kind, first.steps) == (name, kind, 0)


def test_a_wrong_rate_is_violated_in_a_tied_model() -> None:
    result = read_out("after", True, optimizer=lambda module: adam(module, hidden=0.0), seeds=8)
    assert {row.steps for row in result.violated} == {1, 2}
    assert result.violated[0].name == "up"
    assert not any("may follow" in text for _, text in result.findings)


def test_a_tokens_logit_at_its_position_is_left_out() -> None:
    model = ModelsAtWidths(Torch, lambda width: Readout(width, "after", tied=True)).make(16, seed=0)
    (tokens,), taps = model.tensors, model.taps()
    hidden = np.isnan(taps["output"].values)
    assert np.array_equal(hidden, np.arange(VOCABULARY) == tokens.numpy()[..., None])
    assert "without the logits of input tokens" in taps["output"].note
    assert not taps["embedding"].rescaled  # the model adds it as it is
    untied = ModelsAtWidths(Torch, lambda width: Readout(width, "plain", tied=False)).make(16, seed=0).taps()
    assert (untied["head"].note, untied["embedding"].rescaled) == ("", False)


# Refusals -----------------------------------------------------------------------------------------


class Broken(nn.Module):
    def __init__(self, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.hidden, self.scale = nn.Linear(width, width), scale

    def forward(self, x: Any) -> Any:
        return self.hidden(x) * self.scale


def seeded(width: int) -> Any:
    torch.manual_seed(0)
    return Broken(width)


def frozen(width: int) -> Any:
    return Broken(width).requires_grad_(False)


def scripted(width: int) -> Any:
    return nn.Sequential(torch.jit.script(nn.Linear(width, width)))


def sgd(module: Any) -> Any:
    return torch.optim.SGD(module.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (lambda width: nn.Linear(7, 7), {}, "model: failed with RuntimeError"),
        (lambda width: 1 / 0, {}, "build: failed with ZeroDivisionError"),
        (Broken, {"inputs": lambda width, rng: "text"}, "inputs='str.*': must hold numbers"),
        (Broken, {"call": lambda module, x: 3}, "call=3: returned no array of real numbers"),
        (Broken, {"optimizer": lambda module: 1 / 0}, "optimizer: failed with ZeroDivisionError"),
        (lambda width: Broken(width, math.nan), {}, "call='the model': returns NaN; mend the model"),
        (seeded, {}, "makes the same model for every seed; let it draw from the framework's own generator"),
        (frozen, {"optimizer": sgd}, "loss: failed with RuntimeError: element 0 of tensors does not require grad"),
        (scripted, {}, "build='Sequential': is compiled, which hides what it computes"),
    ],
)
def test_models_that_cannot_be_measured_are_refused(build: Any, options: dict[str, Any], message: str) -> None:
    refused(lambda: ac.widths(build, (16, 32, 64), **options), message)
