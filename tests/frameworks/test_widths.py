"""torch models over widths: taps, right models accepted, wrong ones found and located."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.errors import InputError

pytest.importorskip("torch")

import torch
from torch import nn

from attncheck.frameworks.models import ModelsAtWidths
from attncheck.frameworks.torch import Torch
from benchmarks.width_models import WRONG, Recipe

from .descent import INPUTS, RATE, assert_descends, half_square

WIDTHS = (32, 64, 128, 256)


def examined(recipe: Recipe) -> ac.Widths:
    expect = "mup" if recipe.mup else "standard"
    widths = (16, 32, 64, 128) if recipe.mup else WIDTHS  # μP has more rows, as it takes steps
    return ac.widths(recipe.build, widths, expect, optimizer=recipe.optimizer if recipe.mup else None)


def taps(build: Callable[[int], Any], width: int = 32, **options: Any) -> Any:
    return ModelsAtWidths(Torch, build, **options).make(width, seed=0).taps()


class TestTaps:
    def test_every_module_and_attention_is_tapped_in_order(self) -> None:
        found = taps(Recipe(depth=1).build)
        block = ["norm1", *(f"attention.{name}" for name in ("query", "key", "value", "scores", "weights", "out"))]
        names = [f"blocks.0.{name}" for name in (*block, "norm2", "up", "down")]
        assert list(found) == ["embedding", "position_embedding", *names, "blocks.0", "norm", "readout"]
        kinds = {name: tap.kind for name, tap in found.items()}
        assert kinds["blocks.0.attention.scores"] == "scores"
        assert kinds["blocks.0.attention.weights"] == "weights"
        assert kinds["embedding"] == "embedding"
        assert kinds["norm"] == "norm"
        assert kinds["readout"] == "output"

    def test_scores_are_those_of_queries_and_keys(self) -> None:
        """Visible scores only, also with hand-written attention."""
        for by_hand in (False, True):
            found = taps(Recipe(depth=1, by_hand=by_hand).build)
            q, k = (
                found[f"blocks.0.attention.{name}"].values.reshape(4, 16, 4, 8).swapaxes(1, 2)
                for name in ("query", "key")
            )
            scores = found["blocks.0.attention.scores"].values
            shown = np.tril(np.ones((16, 16), dtype=bool))
            assert np.isnan(scores[..., ~shown]).all()
            expected = q @ k.swapaxes(-1, -2) * Recipe().scale(8)
            np.testing.assert_allclose(scores[..., shown], expected[..., shown], rtol=1e-4, atol=1e-5)
            weights = found["blocks.0.attention.weights"].values
            np.testing.assert_allclose(np.nansum(weights, axis=-1), 1.0, rtol=1e-6)

    def test_what_a_container_hands_on_is_told_once(self) -> None:
        found = taps(lambda width: nn.Sequential(nn.Linear(width, width), nn.Sequential(nn.Tanh(), nn.Dropout())))
        assert list(found) == ["0", "1.0"]
        assert found["1.0"].kind == "output"

    def test_what_changes_its_input_in_place_is_a_tap_of_its_own(self) -> None:
        assert list(taps(lambda width: nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True)))) == ["0", "1"]

    def test_a_module_that_runs_twice(self) -> None:
        class Twice(nn.Module):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.layer = nn.Linear(width, width)

            def forward(self, x: Any) -> Any:
                return self.layer(self.layer(x))

        found = taps(Twice)
        assert list(found) == ["layer", "layer (2)"]
        assert [tap.note for tap in found.values()] == ["", "module runs more than once"]
        rows = ac.widths(Twice, WIDTHS).rows
        assert rows[1].notes == ("module runs more than once",)

    def test_multi_head_attention_shows_its_scores(self) -> None:
        found = ac.widths(lambda width: nn.MultiheadAttention(width, 4, batch_first=True), WIDTHS, seeds=48)
        # Xavier over the packed matrix: constant in the width, at a quarter of the usual scale.
        assert {row.name: str(row.verdict) for row in found.rows} == dict.fromkeys(
            ("scores", "weights", "output"), "consistent"
        )
        assert found["scores"].sizes[-1] == pytest.approx(0.25**0.5, rel=0.05)

    def test_a_softmax_of_logits_is_none_of_attention(self) -> None:
        """Whichever axis of the inputs is the position."""
        first = taps(lambda width: nn.MultiheadAttention(width, 4))
        assert [tap.kind for tap in first.values()] == ["scores", "weights", "output"]
        logits = taps(lambda width: nn.Sequential(nn.Linear(width, 7), nn.Softmax(-1)))
        assert [(name, tap.kind) for name, tap in logits.items()] == [
            ("0", "module"),
            ("1.softmax scores", "module"),
            ("1.softmax weights", "module"),
            ("1", "output"),
        ]

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    def test_gpt2_of_transformers_depends_on_the_width(self, implementation: str) -> None:
        transformers = pytest.importorskip("transformers")

        def build(width: int) -> Any:
            shape = {"n_embd": width, "n_layer": 1, "n_head": 4, "n_positions": 16, "vocab_size": 64}
            return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, attn_implementation=implementation))

        found = ac.widths(build, WIDTHS)
        assert found.headline.startswith(
            "VIOLATED: 4 matrices have std 0.014 and 0.02 at every width: neither standard"
        )
        first = found.violated[0]
        assert (first.name, first.what) == ("transformer.h.0.attn.c_attn", "Conv1D")
        assert first.exponent == pytest.approx(0.5, abs=0.05)
        assert found["transformer.h.0.attn.scores"].exponent == pytest.approx(1.0, abs=0.1)

    def test_half_precision_is_held_in_single(self) -> None:
        found = ac.widths(lambda width: nn.Linear(width, width).to(torch.bfloat16), WIDTHS)
        assert found.verdict == "consistent"


class TestModels:
    def test_a_seed_makes_one_model_and_leaves_the_generator(self) -> None:
        models = ModelsAtWidths(Torch, Recipe(depth=1).build)
        before = torch.get_rng_state()
        one, again, other = (models.make(32, seed=seed).taps()["readout"].values for seed in (1, 1, 2))
        assert np.array_equal(one, again, equal_nan=True)
        assert not np.array_equal(one, other)
        assert torch.equal(before, torch.get_rng_state())

    def test_a_step_is_one_of_the_optimiser_on_the_same_batch(self) -> None:
        model = ModelsAtWidths(
            Torch,
            lambda width: nn.Linear(width, 1, bias=False),
            inputs=lambda width, rng: INPUTS,
            optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=RATE),
            loss=half_square,
        ).make(8, seed=0)
        assert_descends(model, steps=2, atol=1e-6)

    def test_modules_run_as_in_evaluation(self) -> None:
        model = ModelsAtWidths(Torch, lambda width: nn.Sequential(nn.Linear(width, width), nn.Dropout(0.5))).make(32, 0)
        first, second = (model.taps()["0"].values for _ in range(2))
        assert np.array_equal(first, second)


class TestRightModels:
    @pytest.mark.sampled
    @pytest.mark.parametrize(
        "recipe",
        [
            Recipe(),
            Recipe(mup=False),
            Recipe(depth=1, zero_readout=True),
            Recipe(depth=1, head_dim=8, norm="rms", by_hand=True),
            Recipe(mup=False, head_dim=8, norm="rms", after=True),
        ],
        ids=["mup", "standard", "zero readout", "mup, many heads", "standard, many heads"],
    )
    def test_nothing_is_violated(self, recipe: Recipe) -> None:
        found = examined(recipe)
        assert not found.violated, str(found)
        examined_rows = [row for row in found.rows if row.verdict != "not examined"]
        assert sum(row.verdict == "consistent" for row in examined_rows) > len(examined_rows) / 2 > 10

    def test_what_is_zero_by_design_is_named(self) -> None:
        found = examined(Recipe(depth=1, zero_readout=True))
        assert found["readout"].notes == ("zero by design",)
        moved = {(row.name, row.steps): row.notes for row in found.rows}
        # A zero readout blocks gradients: the first step changes only the readout.
        assert moved["blocks.0.up", 1] == ("no change beyond rounding",)
        assert moved["blocks.0.up", 2] == ()


@pytest.mark.sampled
@pytest.mark.parametrize("name", WRONG)
def test_what_people_shipped_is_found_with_its_module(name: str) -> None:
    recipe, tap, steps = WRONG[name]
    first = examined(recipe).violated[0]
    assert (first.name, first.steps) == (tap, steps)
    assert math.isfinite(first.exponent or math.nan)


def test_a_table_of_ones_own() -> None:
    """Depth as the second axis: residuals over √L stay, unscaled ones grow as √L."""

    class Stack(nn.Module):
        def __init__(self, depth: int, power: float) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(depth))
            self.factor, self.out = depth**-power, nn.Identity()

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = x + self.factor * block(torch.nn.functional.normalize(x, dim=-1) * 8)
            return self.out(x)

    def found(power: float) -> ac.Widths:
        return ac.widths(
            lambda depth: Stack(depth, power),
            (8, 16, 32, 64),
            {"out": 0},
            inputs=lambda depth, rng: rng.standard_normal((4, 16, 64)),
            seeds=16,
        )

    assert found(0.5).verdict == "consistent"
    assert found(0.0)["out"].verdict == "violated"


class Broken(torch.nn.Module):
    def __init__(self, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.hidden, self.scale = torch.nn.Linear(width, width), scale

    def forward(self, x: Any) -> Any:
        return self.hidden(x) * self.scale


def seeded(width: int) -> Any:
    torch.manual_seed(0)
    return Broken(width)


def frozen(width: int) -> Any:
    return Broken(width).requires_grad_(False)


def sgd(module: Any) -> Any:
    return torch.optim.SGD(module.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("build", "options", "said"),
    [
        (lambda width: nn.Linear(7, 7), {}, "call: failed with RuntimeError"),
        (lambda width: 1 / 0, {}, "build: failed with ZeroDivisionError"),
        (Broken, {"inputs": lambda width, rng: "text"}, "inputs='str.*': must hold numbers"),
        (Broken, {"call": lambda module, x: 3}, "call=3: returned no array of real numbers"),
        (Broken, {"optimizer": lambda module: 1 / 0}, "optimizer: failed with ZeroDivisionError"),
        (
            lambda width: Broken(width, float("nan")),
            {},
            "call='the model': returns NaN; mend the model",
        ),
        (seeded, {}, "makes the same model for every seed; let it draw from the framework's own generator"),
        (frozen, {"optimizer": sgd}, "loss: failed with RuntimeError: element 0 of tensors does not require grad"),
        (
            lambda width: torch.nn.Sequential(torch.jit.script(torch.nn.Linear(width, width))),
            {},
            "build='Sequential': is compiled, which hides what it computes",
        ),
    ],
)
def test_models_that_cannot_be_measured_are_refused(build: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ac.widths(build, (16, 32, 64), **options)
