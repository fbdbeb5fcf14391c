"""Whole PyTorch models: what is read off them, and which public mistakes are named."""

from __future__ import annotations

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

WIDTH, HEADS, LAYERS, TOKENS = 32, 2, 4, 50
IDS = torch.arange(24).reshape(2, 12) % TOKENS
STD = 0.05


class Attention(nn.Module):
    """Causal attention with packed projections."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, mask: Any = None) -> Any:
        q, k, v = (a.unflatten(-1, (HEADS, -1)).transpose(1, 2) for a in self.c_attn(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + mask
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.attn = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.fc, self.c_proj = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Any, mask: Any) -> Any:
        x = x + self.attn(self.ln_1(x), mask=mask)
        return x + self.c_proj(nn.functional.gelu(self.fc(self.ln_2(x))))


class Model(nn.Module):
    """A small language model, initialised as GPT-2 is."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(TOKENS, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        for name, each in self.named_parameters():
            if each.ndim > 1:
                nn.init.normal_(each, std=STD / (2 * LAYERS) ** 0.5 if "c_proj" in name else STD)
            elif name.endswith("bias"):
                nn.init.zeros_(each)

    def forward(self, ids: Any) -> Any:
        length = ids.shape[1]
        mask = torch.full((length, length), -torch.inf).triu(1)
        x = self.wte(ids)
        for block in self.h:
            x = block(x, mask)
        return self.head(self.ln_f(x))


SIZE = sum(each.numel() for each in Model().parameters())


def inspected(change: Callable[[Any], None] | None = None, **options: Any) -> ModelInspection:
    def make() -> Any:
        model = Model()
        if change is not None:
            with torch.no_grad():
                change(model)
        return model

    return ac.inspect(make, inputs=(IDS,), **options)


def std_of(std: float, name: str) -> Callable[[Any], None]:
    """Return a change to normal entries in parameters of a name."""

    def change(model: Any) -> None:
        for key, parameter in model.named_parameters():
            if name in key:
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
    assert "depth scaling: 0.05/sqrt(2·4) in h.*.attn.c_proj.weight" in map(str, right.notes)
    # One draw of every model, of which the other layers have one.
    assert (right["h.0.attn"].draws, right["h.3.attn"].draws) == (8, 1)
    assert "h.*.attn (4)" in str(right)


DECLARED = {"*.c_proj.weight": "normal(0.05/sqrt(2*4))", "*.bias": "zeros", "wte.weight": "normal(0.05)"}


def test_requirements(right: ModelInspection) -> None:
    right.require("causal", parameters=DECLARED, num_heads=2, blamed=False)
    for expected, message in (
        ({"mask": "none"}, r"h\.\*\.attn \(4\): mask is 'causal', not 'none'"),
        ({"parameters": {"head.weight": "normal(0.02)"}}, r"head\.weight: std 0\.0.*, not 0\.02"),
        ({"parameters": {"wte.weight": "orthogonal"}}, "whether it is orthogonal is not determined"),
    ):
        with pytest.raises(AssertionError, match=message):
            right.require(**expected)
    with pytest.raises(ac.InputError, match=r"parameters='\*\.gamma': matches no parameter"):
        right.require(parameters={"*.gamma": "ones"})
    refused(lambda: right["h.9.attn"], r"module='h\.9\.attn': is not an inspected attention module")
    refused(lambda: right.parameters["h.9"], r"parameters='h\.9': is not the name of a parameter")
    no_mapping: Any
    for no_mapping in (["*.bias"], "*.bias", {3: "zeros"}):
        with pytest.raises(ac.InputError, match="is not a mapping of patterns to initialisers"):
            right.require(parameters=no_mapping)


# One change ---------------------------------------------------------------------------------------


def default(model: Any) -> None:
    model.h[2].fc.reset_parameters()


def clone(model: Any) -> None:
    model.h[2].load_state_dict(model.h[1].state_dict())


def share(model: Any) -> None:
    model.h[2] = model.h[1]


def tie(model: Any) -> None:
    model.head.weight = model.wte.weight


def unwritten(*layers: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for i in layers:
            model.h[i].fc.weight = nn.Parameter(torch.empty(2 * WIDTH, WIDTH))

    return change


def masked(of: Callable[[Any], Any], *layers: int) -> Callable[[Any], None]:
    """Return a change of the mask in layers."""

    def change(model: Any) -> None:
        for i in layers:
            attention = model.h[i].attn
            attention.forward = lambda x, mask, own=attention: Attention.forward(own, x, mask=of(mask))

    return change


def transposed(mask: Any) -> Any:
    return mask.mT


def unmasked(model: Any) -> None:
    std_of(STD, "c_proj.weight")(model)
    masked(lambda mask: 0.0, *range(LAYERS))(model)


def skip(model: Any) -> None:
    for i in (1, 2):
        model.h[i].forward = lambda x, mask: x


def zero_queries(model: Any) -> None:
    for block in model.h:
        block.attn.c_attn.weight[:WIDTH] = 0.0


def equal_biases(model: Any) -> None:
    nn.init.normal_(model.h[0].fc.bias)
    for block in model.h:
        block.fc.bias.copy_(model.h[0].fc.bias)


def leave_dropout(model: Any) -> None:
    model.head.register_forward_hook(lambda module, inputs, y: nn.functional.dropout(y, 0.1, True))


MEANT, MEANT_MASK = (
    "if this is meant: ",
    "nothing wrong was found, if this is meant: h.*.attn (4): the mask is anticausal",
)
DEFAULT = "WRONG: h.2.fc.weight: uniform, std 0.1 (default of Linear); h.*.fc.weight elsewhere: normal, std 0.05"
NORMS = "WRONG: scales of LayerNorm are drawn around 0, where ones are usual: h.0.ln_1.weight and 3 others"
CALLS = "two calls of the model in evaluation mode on the same inputs differ: dropout, or other random numbers"
UNWRITTEN = "WRONG: h.{1,3}.fc.weight not initialised: nothing, or NaN, was written to this memory"
#: Changes of the model, and the beginning of the verdict, or a part of the text.
CHANGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "default": (default, DEFAULT),
    "clone": (clone, "WRONG: layers 1 and 2 have the same weights: h.*.attn.c_attn.weight and 3 more"),
    "unwritten": (unwritten(1, 3), UNWRITTEN),
    "norms around 0": (std_of(0.02, "ln_1.weight"), NORMS),
    "unit": (
        std_of(1.0, "fc.weight"),
        "WRONG: h.*.fc.weight: normal, std 1 for any fan-in, as by normal_ without a num",
    ),
    "one transposed": (masked(transposed, 3), "WRONG: h.3.attn: mask anticausal; h.*.attn: mask causal"),
    "all transposed": (masked(transposed, *range(LAYERS)), MEANT_MASK),
    "unscaled": (std_of(STD, "c_proj.weight"), "depth scaling: no; std 0.05 in every projection of the blocks"),
    "unscaled, not causal": (unmasked, ""),
    "shared": (share, MEANT + "layers 1 and 2 share their weights: h.*.attn.c_attn.weight and 3 more"),
    "skipped": (skip, MEANT + "the outputs do not depend on h.{1,2}.ln_{1,2}.weight, "),
    "zero queries": (zero_queries, ""),
    "equal biases": (equal_biases, "layers 0, 1, 2 and 3 have the same biases: h.*.fc.bias"),
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
    (row,) = (row for row in inspection.parameters if row.name == "wte.weight")
    assert row.tied == ("head.weight",)
    assert sum(np.prod(each.shape) for each in inspection.parameters) == SIZE - TOKENS * WIDTH


def test_a_declared_mask_is_no_question() -> None:
    inspection = inspected(masked(transposed, *range(LAYERS)), draws=1)
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


class Windows(nn.Module):
    """Attention within halves of the sequence, which are folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        nn.init.normal_(self.qkv.weight, std=STD)

    def forward(self, x: Any, mask: Any = None) -> Any:
        q, k, v = self.qkv(x).reshape(2 * len(x), -1, 3 * WIDTH).chunk(3, -1)
        return (torch.softmax(q @ k.mT / WIDTH**0.5, -1) @ v).reshape(x.shape)


def test_attention_that_is_not_read_is_counted() -> None:
    inspection = inspected(lambda model: setattr(model.h[0], "attn", Windows()), draws=2)
    assert inspection.not_examined is False
    assert re.match(rf"Model: {LAYERS} attention modules \({LAYERS - 1} read, 1 not: ", inspection.headline)
    assert "nothing wrong was found in those that were read" in inspection.verdict
    assert [*inspection.refused] == ["h.0.attn"]
    inspection.require(blamed=False)
    assert inspection.unmet("causal")[0].startswith("h.0.attn: not read: queries=")


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
    assert len(references) == 3
    for inputs in (lambda: (IDS,), IDS):
        assert len(ac.inspect(Model, inputs=inputs, draws=1).modules) == LAYERS


WIDER = itertools.count(3)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (Model, {}, "inputs=None: are unknown for a model of class Model; pass the inputs of one call"),
        (Model, {"inputs": 3}, "inputs=3: are neither arrays by name nor in order"),
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
