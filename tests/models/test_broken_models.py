"""Models and inputs that somebody broke."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest

import attncheck as ac

torch = pytest.importorskip("torch")

from torch import autograd, nn  # noqa: E402  # only where torch is

from tests.models.language_model import HEADS, IDS, LAYERS, STD, WIDTH, Model, inspected  # noqa: E402  # it needs torch


def varying() -> Callable[[], Any]:
    """Return a function that makes wider and wider models."""
    widths = itertools.count(3)
    return lambda: nn.Linear(next(widths), 2)


class TestBroken:
    """Models and inputs that somebody broke."""

    def test_several_layers_that_are_not_initialised(self) -> None:
        def change(model: Any) -> None:
            for i in (1, 3):
                model.h[i].fc.weight = nn.Parameter(torch.empty(2 * WIDTH, WIDTH))

        found = inspected(change, draws=2)
        assert found.verdict.startswith("WRONG: h.{1,3}.fc.weight not initialised"), found.verdict
        assert not any("same weights" in line for line in found.blamed)

    def test_dropout_that_is_left_on(self) -> None:
        class Left(Model):
            def forward(self, ids: Any) -> Any:
                return nn.functional.dropout(super().forward(ids), 0.1, True)

        found = ac.inspect(Left, inputs=(IDS,), draws=2)
        assert found.verdict.endswith(
            "if this is meant: two calls of the model in evaluation mode on the same inputs differ: "
            "dropout, or other random numbers"
        )

    def test_queries_that_are_zero(self) -> None:
        def change(model: Any) -> None:
            for block in model.h:
                block.attn.c_attn.weight[:WIDTH] = 0.0

        assert len(inspected(change, draws=2).modules) == LAYERS

    def test_a_part_of_a_family_is_named(self) -> None:
        class Skipped(Model):
            def forward(self, ids: Any) -> Any:
                self.h[1].forward = lambda x, mask: x
                self.h[2].forward = lambda x, mask: x
                return super().forward(ids)

        found = ac.inspect(Skipped, inputs=(IDS,), draws=2)
        assert "if this is meant: the outputs do not depend on h.{1,2}.ln_{1,2}.weight, " in found.verdict

    def test_equal_biases_may_be_meant(self) -> None:
        def change(model: Any) -> None:
            nn.init.normal_(model.h[0].fc.bias)
            model.h[1].fc.bias.copy_(model.h[0].fc.bias)

        found = inspected(change, draws=2)
        assert "layers 0 and 1 have the same biases: h.*.fc.bias" in map(str, found.notes)

    def test_positions_first_is_meant_if_it_is_everywhere(self) -> None:
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64)
        found = ac.inspect(lambda: nn.TransformerEncoder(layer, 1), inputs=(torch.randn(5, 2, WIDTH),), draws=1)
        assert "if this is meant: layers.0.self_attn: attends over the first axis" in found.verdict

    def test_lazy_layers(self) -> None:
        found = ac.inspect(lambda: nn.Sequential(nn.LazyLinear(8)), inputs=(torch.randn(2, 3, 4),), draws=2)
        assert [row.shape for row in found.parameters] == [(8, 4), (8,)]
        assert found.verdict.startswith("NOT EXAMINED: Sequential: 0 attention modules, ")
        assert found.unmet(blamed=False)[0].startswith("no attention was recognised in the forward pass")
        found.require(parameters={"0.weight": "uniform"})

    def test_attention_that_is_read_in_part_is_counted(self) -> None:
        class Windows(nn.Module):
            """Attention within halves of the sequence, which are folded into the batch."""

            def __init__(self) -> None:
                super().__init__()
                self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
                nn.init.normal_(self.qkv.weight, std=STD)

            def forward(self, x: Any, mask: Any = None) -> Any:
                q, k, v = self.qkv(x).reshape(2 * len(x), -1, 3 * WIDTH).chunk(3, -1)
                return (torch.softmax(q @ k.mT / WIDTH**0.5, -1) @ v).reshape(x.shape)

        def change(model: Any) -> None:
            model.h[0].attn = Windows()

        found = inspected(change, draws=2)
        assert found.not_examined is False
        assert re.match(rf"Model: {LAYERS} attention modules \({LAYERS - 1} read, 1 not: ", found.headline)
        assert "nothing wrong was found in those that were read" in found.verdict
        assert [*found.refused] == ["h.0.attn"]
        found.require(blamed=False)
        assert found.unmet("causal")[0].startswith("h.0.attn: not read: queries=")

    def test_a_backward_pass_that_fails(self) -> None:
        class Forward(autograd.Function):
            @staticmethod
            def forward(_: Any, x: Any) -> Any:
                return x

        class Once(Model):
            def forward(self, ids: Any) -> Any:
                return Forward.apply(super().forward(ids))

        found = ac.inspect(Once, inputs=(IDS,), draws=1)
        assert all(row.notes == () for row in found.parameters)

    @pytest.mark.parametrize(
        ("make", "options", "message"),
        [
            (Model, {"inputs": (IDS[:0],)}, r"inputs=\(0, 12\): is the shape of an array without sequences"),
            (Model, {"inputs": (IDS,), "call": 3}, "call=3: is not a function"),
            (lambda: Model().to("meta"), {"inputs": (IDS,)}, "make='meta': is a device that holds no numbers"),
            (lambda: torch.jit.script(nn.Linear(2, 2)), {"inputs": (IDS,)}, "is compiled, which hides"),
            (
                varying(),
                {"inputs": (torch.ones(1, 3),)},
                "differs between the models of draws",
            ),
        ],
    )
    def test_refused(self, make: Callable[[], Any], options: dict[str, Any], message: str) -> None:
        with pytest.raises(ac.InputError, match=message):
            ac.inspect(make, draws=2, **options)

    @pytest.mark.parametrize("parameters", [["*.bias"], "*.bias", {3: "zeros"}])
    def test_initialisers_that_are_no_mapping(self, parameters: Any) -> None:
        with pytest.raises(ac.InputError, match="is not a mapping of patterns to initialisers"):
            inspected(draws=1).require(parameters=parameters)

    def test_orthogonal_is_not_assumed(self) -> None:
        with pytest.raises(AssertionError, match="whether it is orthogonal is not determined"):
            inspected(draws=8).require(parameters={"wte.weight": "orthogonal"})
