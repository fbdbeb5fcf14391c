"""Whole PyTorch models: what is read off them, and which public mistakes are named."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck.models.result import ModelInspection

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # only where torch is

from tests.models.language_model import (  # noqa: E402  # it needs torch
    HEADS,
    IDS,
    LAYERS,
    SIZE,
    STD,
    TOKENS,
    WIDTH,
    Attention,
    Model,
    inspected,
)


@pytest.fixture(scope="module")
def right() -> ModelInspection:
    return inspected()


def test_a_right_model_is_described(right: ModelInspection) -> None:
    found = right
    assert found.blamed == ()
    assert found.headline == f"Model: 4 attention modules, {SIZE:,} parameters; 8 draws"
    (group,) = found.attention
    assert group.title == "h.*.attn (4)"
    assert group.kind == "Attention"
    assert str(group.inspection.forward).startswith("softmax, causal mask, scores times 1/sqrt(head_dim)")
    assert found["h.3.attn"].weights["query"].laws
    assert found["h.3.attn"].forward.mask == "causal"
    assert "depth scaling: 0.05/sqrt(2·4) in h.*.attn.c_proj.weight" in map(str, found.notes)
    # One draw of every model, of which the other layers have one.
    assert (found["h.0.attn"].draws, found["h.3.attn"].draws) == (8, 1)
    assert "h.*.fc.weight ×4" in str(found)
    assert "h.*.attn (4)" in str(found)


@pytest.mark.parametrize("seed", [100, 200])
def test_a_right_model_is_right_at_every_seed(seed: int) -> None:
    assert inspected(seed=seed, draws=4).blamed == ()


def test_parameters_print_as_the_table(right: ModelInspection) -> None:
    parameters = right.parameters
    assert str(parameters) in str(right)
    assert "h.*.fc.weight ×4" in str(parameters)
    assert parameters["head.weight"] is parameters.rows[-1]
    assert [row.name for row in parameters.rows[:2]] == ["wte.weight", "h.0.ln_1.weight"]
    with pytest.raises(ac.InputError, match=r"parameters='h\.9': is not the name of a parameter"):
        parameters["h.9"]


def test_requirements(right: ModelInspection) -> None:
    found = right
    declared = {"*.c_proj.weight": "normal(0.05/sqrt(2*4))", "*.bias": "zeros", "wte.weight": "normal(0.05)"}
    found.require("causal", parameters=declared, num_heads=2, blamed=False)
    with pytest.raises(AssertionError, match=r"h\.\*\.attn \(4\): mask is 'causal', not 'none'"):
        found.require(mask="none")
    with pytest.raises(AssertionError, match=r"head\.weight: std 0\.0.*, not 0\.02"):
        found.require(parameters={"head.weight": "normal(0.02)"})
    with pytest.raises(ac.InputError, match=r"parameters='\*\.gamma': matches no parameter"):
        found.require(parameters={"*.gamma": "ones"})
    with pytest.raises(ac.InputError, match=r"module='h\.9\.attn': is not an inspected attention module"):
        found["h.9.attn"]


def _default(model: Any) -> None:
    model.h[2].fc.reset_parameters()


def _cloned(model: Any) -> None:
    model.h[2].load_state_dict(model.h[1].state_dict())


def _unwritten(model: Any) -> None:
    model.h[1].fc.weight = nn.Parameter(torch.empty(2 * WIDTH, WIDTH))


def _norm_around_zero(model: Any) -> None:
    for block in model.h:
        nn.init.normal_(block.ln_1.weight, std=0.02)


def _unit(model: Any) -> None:
    for block in model.h:
        nn.init.normal_(block.fc.weight)


def _not_causal(model: Any) -> None:
    model.h[3].attn.forward = lambda x, mask: Attention.forward(model.h[3].attn, x, mask=0.0)


def _one_transposed(model: Any) -> None:
    model.h[3].attn.forward = lambda x, mask: Attention.forward(model.h[3].attn, x, mask=mask.mT)


def _all_transposed(model: Any) -> None:
    for block in model.h:
        block.attn.forward = lambda x, mask, own=block.attn: Attention.forward(own, x, mask=mask.mT)


#: A mistake, and what the inspection calls it.
MISTAKES = [
    (_default, "h.2.fc.weight: uniform, std 0.1 (default of Linear); h.*.fc.weight elsewhere: normal, std 0.05"),
    (_cloned, "layers 1 and 2 have the same weights: h.*.attn.c_attn.weight and 3 more"),
    (_unwritten, "h.1.fc.weight not initialised: nothing, or NaN, was written to this memory"),
    (_norm_around_zero, "scales of LayerNorm are drawn around 0, where ones are usual: h.0.ln_1.weight and 3 others"),
    (_unit, "h.*.fc.weight: normal, std 1 for any fan-in, as by normal_ without a number"),
]


@pytest.mark.parametrize(("mistake", "text"), MISTAKES)
def test_a_mistake_is_named_first(mistake: Callable[[Any], None], text: str) -> None:
    found = inspected(mistake, draws=4)
    assert found.verdict.startswith(f"WRONG: {text}"), found.verdict


def test_layers_that_differ_are_named() -> None:
    found = inspected(_not_causal, draws=2)
    assert [group.title for group in found.attention] == ["h.*.attn (3)", "h.3.attn"]
    assert found.verdict == "WRONG: h.3.attn: mask none; h.*.attn: mask causal"


def test_transposed_masks_are_wrong_in_one_layer_and_asked_about_in_all() -> None:
    one, every = inspected(_one_transposed, draws=2), inspected(_all_transposed, draws=2)
    assert one.verdict == "WRONG: h.3.attn: mask anticausal; h.*.attn: mask causal"
    assert "nothing wrong was found, if this is meant: h.*.attn (4): the mask is anticausal" in every.verdict
    assert "if this is meant" not in every.expecting("mask=anticausal").verdict


def _depth_scaling(found: ModelInspection) -> list[str]:
    return [str(note) for note in found.notes if str(note).startswith("depth scaling")]


def test_no_depth_scaling_is_said_of_causal_models_with_one_std() -> None:
    def unscaled(model: Any) -> None:
        for name, each in model.named_parameters():
            if "c_proj.weight" in name:
                nn.init.normal_(each, std=STD)

    def unmasked(model: Any) -> None:
        unscaled(model)
        for block in model.h:
            block.attn.forward = lambda x, mask, own=block.attn: Attention.forward(own, x, mask=0.0)

    def default(model: Any) -> None:
        for each in model.modules():
            if isinstance(each, nn.Linear):
                each.reset_parameters()

    found = inspected(unscaled, draws=4)
    assert found.blamed == ()
    assert _depth_scaling(found) == ["depth scaling: no; std 0.05 in every projection of the blocks"]
    assert _depth_scaling(inspected(unmasked, draws=4)) == []
    assert _depth_scaling(inspected(default, draws=4)) == []


def test_a_module_shared_by_two_layers_is_said(right: ModelInspection) -> None:
    def share(model: Any) -> None:
        model.h[2] = model.h[1]

    found = inspected(share, draws=4)
    assert "if this is meant: layers 1 and 2 share their weights: h.*.attn.c_attn.weight and 3 more" in found.verdict
    assert _depth_scaling(found) == _depth_scaling(right)


def test_tied_embeddings_are_said() -> None:
    def tie(model: Any) -> None:
        model.head.weight = model.wte.weight

    found = inspected(tie, draws=2)
    (row,) = (row for row in found.parameters if row.name == "wte.weight")
    assert row.tied == ("head.weight",)
    assert "tied to head.weight" in str(found)
    assert sum(np.prod(each.shape) for each in found.parameters) == SIZE - TOKENS * WIDTH


class TestInputs:
    def test_arrays_by_name_and_a_function(self) -> None:
        for inputs in ({"ids": IDS.numpy()}, lambda: (IDS,), IDS):
            assert len(ac.inspect(Model, inputs=inputs, draws=1).modules) == LAYERS

    def test_sequences_first(self) -> None:
        class First(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.attn = nn.MultiheadAttention(WIDTH, HEADS)

            def forward(self, x: Any) -> Any:
                x = x.transpose(0, 1)
                return self.attn(x, x, x)[0].transpose(0, 1)

        found = ac.inspect(First, inputs=(torch.randn(3, 5, WIDTH),), draws=2)
        assert found.blamed == ()
        assert found["attn"].num_heads == HEADS

    def test_cross_attention_of_another_length(self) -> None:
        model = ac.inspect(
            lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 64, batch_first=True), 1),
            inputs=(torch.randn(2, 5, WIDTH), torch.randn(2, 9, WIDTH)),
            draws=2,
        )
        sources = {group.title: group.source for group in model.attention}
        assert sources == {"layers.0.self_attn": "", "layers.0.multihead_attn": "key"}

    def test_queries_from_outside_are_of_the_outer_module(self) -> None:
        class Inner(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.out = nn.Linear(WIDTH, WIDTH)

            def forward(self, q: Any, k: Any, v: Any) -> Any:
                return self.out((q @ k.mT / WIDTH**0.5).softmax(-1) @ v)

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.qkv = Inner(), nn.Linear(WIDTH, 3 * WIDTH)

            def forward(self, x: Any) -> Any:
                return self.inner(*self.qkv(x).chunk(3, -1))

        found = ac.inspect(lambda: nn.Sequential(Outer()), inputs=(torch.randn(2, 5, WIDTH),), draws=2)
        assert list(found.modules) == ["0"]
        assert found["0"].forward.scale == "1/sqrt(head_dim)"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "inputs=None: are unknown for a model of class Model; pass the inputs of one call"),
            ({"inputs": 3}, "inputs=3: are neither arrays by name nor in order"),
            ({"inputs": (IDS,), "width": 32}, "width=32: cannot be combined with inputs"),
            ({"inputs": (torch.zeros(2, 3),)}, "model: failed"),
            ({"inputs": (IDS,), "draws": 0}, "draws=0"),
        ],
    )
    def test_what_is_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ac.InputError, match=message):
            ac.inspect(Model, **options)

    def test_a_model_is_built_once_for_each_draw_and_one_is_kept_at_a_time(self) -> None:
        made: list[weakref.ref[Any]] = []

        def make() -> Any:
            gc.collect()
            assert not any(each() for each in made)
            model = Model()
            made.append(weakref.ref(model))
            return model

        assert ac.inspect(make, inputs=(IDS,), draws=3).blamed == ()
        assert len(made) == 3


@pytest.mark.parametrize("name", ["GPT2", "Bert", "Llama", "ViT", "T5"])
def test_transformers_find_their_inputs(name: str) -> None:
    t = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
    own = {
        "GPT2": {"n_embd": 32, "n_head": 2, "n_layer": 2, "vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2},
        "ViT": {**sizes, "image_size": 16, "patch_size": 4},
        "T5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 60},
    }.get(name, {**sizes, "vocab_size": 60})
    config = getattr(t, f"{name}Config")(**own)
    found = ac.inspect(lambda: getattr(t, f"{name}Model")(config), draws=2)
    assert found.blamed == ()
    assert len(found.modules) == (6 if name == "T5" else 2)
    masks = {group.title: group.inspection.forward.mask for group in found.attention}
    causal = {
        "GPT2": "h.*.attn (2)",
        "Llama": "layers.*.self_attn (2)",
        "T5": "decoder.block.*.layer.0.SelfAttention (2)",
    }
    assert {title for title, mask in masks.items() if mask == "causal"} == ({causal[name]} if name in causal else set())
    if name == "GPT2":
        found.require(parameters={"*.c_proj.weight": "normal(0.02/sqrt(2*n_layer))"})
