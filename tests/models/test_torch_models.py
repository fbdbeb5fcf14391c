"""Whole PyTorch models: what is read off them, and which public mistakes are named."""

from __future__ import annotations

import functools
import gc
import itertools
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck.models.result import ModelInspection
from tests.refusals import refused

torch = pytest.importorskip("torch")

from torch import autograd, nn  # noqa: E402  # only where torch is

from . import torch_attention as shared  # noqa: E402  # only where torch is
from .torch_attention import HEADS, TOKENS, WIDTH, Attention  # noqa: E402  # only where torch is

LAYERS, STD = 4, 0.05
IDS = torch.arange(24).reshape(2, 12)
#: Projections onto the hidden states.
ONTO = ("attn.o.weight", "fc.2.weight")


class Model(shared.Model):
    """A small language model, initialised as GPT-2 is."""

    def __init__(self) -> None:
        super().__init__(depth=LAYERS)
        for block in self.h:
            block.fc = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        for name, each in self.named_parameters():
            if each.ndim > 1:
                nn.init.normal_(each, std=STD / (2 * LAYERS) ** 0.5 if name.endswith(ONTO) else STD)
            elif name.endswith("bias"):
                nn.init.zeros_(each)


SIZE = sum(each.numel() for each in Model().parameters())


def inspected(change: Callable[[Any], None] | None = None, **options: Any) -> ModelInspection:
    def make() -> Any:
        model = Model()
        if change is not None:
            with torch.no_grad():
                change(model)
        return model

    return ac.inspect(make, inputs=(IDS,), **options)


def std_of(std: float, *names: str) -> Callable[[Any], None]:
    """Return a change to normal entries in parameters of some names."""

    def change(model: Any) -> None:
        for key, parameter in model.named_parameters():
            if key.endswith(names):
                nn.init.normal_(parameter, std=std)

    return change


# A right model ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def right() -> ModelInspection:
    return inspected()


def test_a_right_model_is_described(right: ModelInspection) -> None:
    assert right.blamed == ()
    assert right.headline == f"Model: 4 attention modules, {SIZE:,} parameters; 8 draws"
    (group,) = right.attention
    assert (group.title, group.kind) == ("h.*.attn (4)", "Attention")
    assert str(group.inspection.forward).startswith("softmax, causal mask, scores times 1/sqrt(head_dim)")
    assert right["h.3.attn"].weights["query"].laws
    assert right["h.3.attn"].forward.mask == "causal"
    assert "depth scaling: 0.05/sqrt(2·4) in h.*.attn.o.weight" in map(str, right.notes)
    # One draw of every model, of which the other layers have one.
    assert (right["h.0.attn"].draws, right["h.3.attn"].draws) == (8, 1)
    assert "h.*.attn (4)" in str(right)


DECLARED = {**dict.fromkeys((f"*.{name}" for name in ONTO), "normal(0.05/sqrt(2*4))"), "*.bias": "zeros"}


def test_requirements(right: ModelInspection) -> None:
    right.require("causal", parameters=DECLARED, num_heads=2, blamed=False)
    for expected, message in (
        ({"mask": "none"}, r"h\.\*\.attn \(4\): mask is 'causal', not 'none'"),
        ({"parameters": {"head.weight": "normal(0.02)"}}, r"head\.weight: std 0\.0.*, not 0\.02"),
        ({"parameters": {"embed.weight": "orthogonal"}}, "whether it is orthogonal is not determined"),
    ):
        with pytest.raises(AssertionError, match=message):
            right.require(**expected)
    refused(lambda: right.require(parameters={"*.gamma": "ones"}), r"parameters='\*\.gamma': matches no parameter")
    refused(lambda: right["h.9.attn"], r"module='h\.9\.attn': is not an inspected attention module")
    refused(lambda: right.parameters["h.9"], r"parameters='h\.9': is not the name of a parameter")
    no_mapping: Any
    for no_mapping in (["*.bias"], "*.bias", {3: "zeros"}):
        refused(functools.partial(right.require, parameters=no_mapping), "is not a mapping of patterns to initialisers")


# One change ---------------------------------------------------------------------------------------


def default(model: Any) -> None:
    model.h[2].fc[0].reset_parameters()


def clone(model: Any) -> None:
    model.h[2].load_state_dict(model.h[1].state_dict())


def share(model: Any) -> None:
    model.h[2] = model.h[1]


def tie(model: Any) -> None:
    model.head.weight = model.embed.weight


def unwritten(*layers: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for i in layers:
            model.h[i].fc[0].weight = nn.Parameter(torch.empty(2 * WIDTH, WIDTH))

    return change


def transposed(*layers: int) -> Callable[[Any], None]:
    """Return a change of the mask in layers."""

    def change(model: Any) -> None:
        for i in layers:
            attention = model.h[i].attn
            attention.masked = lambda scores, own=attention: Attention.masked(own, scores.mT).mT

    return change


def two_sided(model: Any) -> None:
    def masked(scores: Any) -> Any:
        return scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).triu(-2).tril(2), -torch.inf)

    model.h[0].attn.masked = masked


def unmasked(model: Any) -> None:
    std_of(STD, *ONTO)(model)
    for block in model.h:
        block.attn.masked = lambda scores: scores


def skip(model: Any) -> None:
    for i in (1, 2):
        model.h[i].forward = lambda x: x


def zero_queries(model: Any) -> None:
    for block in model.h:
        block.attn.q.weight[:] = 0.0


def equal_biases(model: Any) -> None:
    nn.init.normal_(model.h[0].fc[0].bias)
    for block in model.h:
        block.fc[0].bias.copy_(model.h[0].fc[0].bias)


def leave_dropout(model: Any) -> None:
    model.head.register_forward_hook(lambda module, inputs, y: nn.functional.dropout(y, 0.1, True))


MEANT, MEANT_MASK = (
    "if this is meant: ",
    "nothing wrong was found, if this is meant: h.*.attn (4): the mask is anticausal",
)
DEFAULT = "WRONG: h.2.fc.0.weight: uniform, std 0.1 (default of Linear); h.*.fc.0.weight elsewhere: normal, std 0.05"
NORMS = "WRONG: scales of LayerNorm are drawn around 0, where ones are usual: h.0.ln_1.weight and 3 others"
CALLS = "two calls of the model in evaluation mode on the same inputs differ: dropout, or other random numbers"
UNWRITTEN = "WRONG: h.{1,3}.fc.0.weight not initialised: nothing, or NaN, was written to this memory"
#: Changes of the model, and the beginning of the verdict, or a part of the text.
CHANGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "default": (default, DEFAULT),
    "clone": (clone, "WRONG: layers 1 and 2 have the same weights: h.*.attn.q.weight and 5 more"),
    "unwritten": (unwritten(1, 3), UNWRITTEN),
    "norms around 0": (std_of(0.02, "ln_1.weight"), NORMS),
    "unit": (
        std_of(1.0, "fc.0.weight"),
        "WRONG: h.*.fc.0.weight: normal, std 1 for any fan-in, the default of torch's norm",
    ),
    "one transposed": (transposed(3), "WRONG: h.3.attn: mask anticausal; h.*.attn: mask causal"),
    "two-sided window": (two_sided, "WRONG: h.0.attn: mask two-sided window of 3; h.*.attn: mask causal"),
    "all transposed": (transposed(*range(LAYERS)), MEANT_MASK),
    "unscaled": (std_of(STD, *ONTO), "depth scaling: no; std 0.05 in every projection of the blocks"),
    "unscaled, not causal": (unmasked, ""),
    "shared": (share, MEANT + "layers 1 and 2 share their weights: h.*.attn.q.weight and 5 more"),
    "skipped": (skip, MEANT + "no gradient of the outputs reaches h.{1,2}.ln_{1,2}.weight, "),
    "zero queries": (zero_queries, ""),
    "equal biases": (equal_biases, "layers 0, 1, 2 and 3 have the same biases: h.*.fc.0.bias"),
    "dropout": (leave_dropout, MEANT + CALLS),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named(name: str) -> None:
    change, text = CHANGES[name]
    inspection = inspected(change, draws=2)
    assert inspection.verdict.startswith("WRONG") == bool(inspection.blamed) == text.startswith("WRONG")
    assert inspection.verdict.startswith(text) if inspection.blamed else text in f"{inspection.verdict}\n{inspection}"
    assert ("depth scaling" in str(inspection)) == (name != "unscaled, not causal")
    assert len(inspection.modules) == LAYERS - {"skipped": 2, "shared": 1}.get(name, 0)


def test_tied_parameters_are_counted_once() -> None:
    inspection = inspected(tie, draws=1)
    (row,) = (row for row in inspection.parameters if row.name == "embed.weight")
    assert row.tied == ("head.weight",)
    assert inspection.unmet("head.weight=tied(embed.weight)") == []
    assert inspection.unmet("head.weight=tied(h.0.ln_1.weight)") == ["embed.weight is not tied to h.0.ln_1.weight"]
    assert inspection.unmet("embed.weight=declared") == ["embed.weight: no expectation declares it"]
    assert sum(np.prod(each.shape) for each in inspection.parameters) == SIZE - TOKENS * WIDTH


def test_a_declared_mask_is_no_question() -> None:
    inspection = inspected(transposed(*range(LAYERS)), draws=1)
    assert MEANT not in inspection.expecting("mask=anticausal").verdict


# Modules and inputs -------------------------------------------------------------------------------


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return self.out((q @ k.mT / WIDTH**0.5).softmax(-1) @ v)


class Outer(nn.Module):
    """Queries, keys and values come from outside of the attention."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.qkv = Inner(), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Any) -> Any:
        return self.inner(*self.qkv(x).chunk(3, -1))


def decoder() -> Any:
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 64, batch_first=True), 1)


class Crossed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Any, object_queries: Any, memory: Any) -> Any:
        q, k, v = self.q(x + object_queries), self.k(memory), self.v(memory)
        return self.out((q @ k.mT / WIDTH**0.5).softmax(-1) @ v)


class Detector(nn.Module):
    """Queries that all sequences share are added to the hidden states; keys and values come from the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.objects = Crossed(), nn.Parameter(torch.randn(1, 5, WIDTH))

    def forward(self, memory: Any) -> Any:
        x = memory[:, :5].mean(1, keepdim=True).expand(-1, 5, -1)
        return x + self.attn(x, self.objects.expand(len(x), -1, -1), memory)


def encoder() -> Any:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 64), 1)


X, MEMORY = torch.randn(2, 5, WIDTH), torch.randn(2, 9, WIDTH)
FIRST = MEANT + "layers.0.self_attn: attends over the first axis"


@pytest.mark.parametrize(
    ("make", "inputs", "sources", "text"),
    [
        (lambda: nn.Sequential(Outer()), (X,), {"0": ""}, "1/sqrt(head_dim)"),
        (decoder, (X, MEMORY), {"layers.0.self_attn": "", "layers.0.multihead_attn": "key"}, ""),
        (encoder, (X,), {"layers.0.self_attn": ""}, FIRST),
        (Detector, (MEMORY,), {"attn": "memory"}, "scores times 1/sqrt(head_dim)"),
        (lambda: nn.Sequential(nn.LazyLinear(8)), (X,), {}, "NOT EXAMINED: Sequential: 0 attention modules, "),
    ],
    ids=["outside", "cross-attention", "all first", "objects", "lazy"],
)
def test_modules_are_found(make: Callable[[], Any], inputs: Any, sources: dict[str, str], text: str) -> None:
    inspection = ac.inspect(make, inputs=inputs, draws=2)
    assert {group.title: group.source for group in inspection.attention} == sources
    assert text in f"{inspection.verdict}\n{inspection}"
    if not sources:
        assert inspection.unmet(blamed=False)[0].startswith("no attention was recognised in the forward pass")
        inspection.require(parameters={"0.weight": "uniform"})


def test_attention_that_is_not_read_is_counted() -> None:
    inspection = inspected(lambda model: setattr(model.h[0].attn, "__class__", shared.Differential), draws=2)
    assert inspection.not_examined is False
    assert re.match(rf"Model: {LAYERS} attention modules \({LAYERS - 1} read, 1 not: ", inspection.headline)
    assert "nothing wrong was found in those that were read" in inspection.verdict
    assert [*inspection.refused] == ["h.0.attn"]
    inspection.require(blamed=False)
    for expected in ("causal", "asked=false"):
        assert inspection.unmet(expected)[0].startswith("h.0.attn: not read: a softmax is found")


def test_a_backward_pass_that_fails() -> None:
    class Forward(autograd.Function):
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x

    class Once(Model):
        def forward(self, ids: Any) -> Any:
            return Forward.apply(super().forward(ids))

    inspection = ac.inspect(Once, inputs=(IDS,), draws=1)
    assert all(row.notes == () for row in inspection.parameters)


def test_a_model_is_built_once_for_each_draw_and_one_is_kept_at_a_time() -> None:
    references: list[weakref.ref[Any]] = []

    def make() -> Any:
        gc.collect()
        assert not any(reference() for reference in references)
        model = Model()
        references.append(weakref.ref(model))
        return model

    assert ac.inspect(make, inputs={"ids": IDS.numpy()}, draws=3).blamed == ()
    assert len(references) == 4  # the first one shows the framework
    for inputs in (lambda: (IDS,), IDS):
        assert len(ac.inspect(Model, inputs=inputs, draws=1).modules) == LAYERS


WIDER = itertools.count(2)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (Model, {}, "inputs=None: are unknown for a model of class Model; pass the inputs of one call"),
        (Model, {"inputs": 3}, "inputs=3: is neither a mapping nor a sequence of arrays"),
        (Model, {"inputs": (IDS,), "width": 32}, "width=32: cannot be combined with inputs"),
        (Model, {"inputs": (torch.zeros(2, 3),)}, "model: failed"),
        (Model, {"inputs": (IDS[:0],)}, r"inputs=\(0, 12\): is the shape of an array without sequences"),
        (lambda: Model().to("meta"), {"inputs": (IDS,)}, "make='meta': is a device that holds no numbers"),
        (lambda: torch.jit.script(nn.Linear(2, 2)), {"inputs": (IDS,)}, "is compiled, which hides"),
        (lambda: nn.Linear(next(WIDER), 2), {"inputs": (torch.ones(1, 3),)}, "differs between the models of draws"),
    ],
)
def test_models_that_are_refused(make: Callable[[], Any], options: dict[str, Any], message: str) -> None:
    refused(lambda: ac.inspect(make, **({"draws": 2} | options)), message)


# transformers -------------------------------------------------------------------------------------

SIZES = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
WORDS = {"vocab_size": 60}
IMAGES = {"image_size": 16, "patch_size": 4}
GPT2 = {"n_embd": 32, "n_head": 2, "n_layer": 2, "bos_token_id": 1, "eos_token_id": 2}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}


@pytest.mark.parametrize(
    ("name", "fields", "modules", "causal"),
    [
        ("GPT2", GPT2 | WORDS, 2, {"h.*.attn (2)"}),
        ("Bert", SIZES | WORDS, 2, set()),
        ("ViT", SIZES | IMAGES, 2, set()),
        ("T5", T5 | WORDS, 6, {"decoder.block.*.layer.0.SelfAttention (2)"}),
    ],
)
def test_transformers_find_their_inputs(name: str, fields: dict[str, int], modules: int, causal: set[str]) -> None:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**fields)
    inspection = ac.inspect(lambda: getattr(transformers, f"{name}Model")(config), draws=2)
    assert inspection.blamed == ()
    assert len(inspection.modules) == modules
    masks = {group.title: group.inspection.forward.mask for group in inspection.attention}
    assert {title for title, mask in masks.items() if mask == "causal"} == causal
    if name == "GPT2":
        inspection.require(parameters={"*.c_proj.weight": "normal(0.02/sqrt(2*n_layer))"})
