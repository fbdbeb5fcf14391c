"""PyTorch layers: attention is seen on every path, whatever way it is called."""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import pytest

import attncheck as ac
from attncheck.frameworks.effective import ModuleReader
from attncheck.frameworks.framework import adapter_of
from attncheck.frameworks.probe import Probe
from attncheck.frameworks.trace import Trace

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from .torch_layers import Attend, Make, Own, by_hand, inspected, multi_head, told

imported = F.scaled_dot_product_attention
MATRICES = {"query", "key", "value", "output"}
LINEAR = 3**-0.5  # the scale of nn.Linear

# MultiheadAttention -------------------------------------------------------------------------------


def test_multi_head_attention() -> None:
    found = inspected(multi_head(), draws=8)
    assert found.notes == ()
    assert found.forward.error < 2e-6
    assert {m.law for m in found.weights.values()} == {"uniform"}
    assert found.weights["query"].known == ("2/(fan_in + 3 fan_in) (xavier over packed q, k, v)",)
    assert found.weights["output"].known == ("1/(3 fan_in) (torch.nn.Linear)",)
    found.require(query_std=0.5**0.5, output_std=LINEAR, mask="none", bias=False)
    assert list(found.paths) == ["eval", "train", "eval, need_weights"]
    assert len({forward.mask for forward in found.paths.values()}) == 1


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.03), ("float16", 0.01), ("float64", 1e-13)])
def test_types(dtype: str, bound: float) -> None:
    found = inspected(multi_head(dtype=getattr(torch, dtype)))
    assert found.forward.known
    assert found.forward.bound < bound
    assert found.notes == ()
    assert {m.law for m in found.weights.values()} == {"uniform"}


def test_separate_matrices_have_another_scale() -> None:
    def call(module: Any, x: Any) -> Any:
        return module(x, x[..., :63], x[..., :63], need_weights=False)[0]

    found = inspected(multi_head(kdim=63, vdim=63), call)
    assert found.weights["query"].known[0] == "1/fan_in (lecun)"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch_first": False}, "attends over the first axis of its inputs: batch_first"),
        ({"add_bias_kv": True}, "attention sees a key beyond the positions: bias_k and bias_v, or add_zero_attn"),
        ({"add_zero_attn": True}, "attention sees a key beyond the positions: bias_k and bias_v, or add_zero_attn"),
        ({"dropout": 0.1}, "train: two calls on one input differ: dropout"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_options_that_people_forget(given: dict[str, Any], said: str) -> None:
    found = inspected(multi_head(**given))
    assert told(found) == [said]
    assert bool(found.blamed) == (given == {"batch_first": False})
    assert found.forward.known


def test_packed_values_of_zero_are_not_drawn() -> None:
    def make() -> Any:
        module = multi_head()()
        nn.init.zeros_(module.in_proj_weight[128:])
        return module

    assert "every entry of W_V is 0: this initialiser does not draw it" in told(inspected(make))


@pytest.mark.parametrize(("width", "seconds"), [(64, 1.0), (1024, 10.0)])
def test_it_is_fast(width: int, seconds: float) -> None:
    began = time.process_time()
    found = ac.inspect(multi_head(width), width=width)
    assert time.process_time() - began < seconds
    assert found.forward.known


def test_an_untouched_run_is_the_module_itself() -> None:
    adapter = adapter_of(multi_head(), 64)
    module = adapter.fresh(0)
    x = torch.randn(2, 3, 64)
    with torch.no_grad():
        expected = module.eval()(x, x, x, need_weights=False)[0]
    assert (adapter.outputs(module, x.double().numpy(), Trace(), "eval") == expected.double().numpy()).all()


# Every way in which attention is called -----------------------------------------------------------


class Wrapped(nn.Module):
    """Requests weights by default: no fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = multi_head()()

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x)[0]


class Functions(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def three_axes(attend: Attend) -> Attend:
    return lambda *qkv: attend(*(a.flatten(0, 1) for a in qkv)).unflatten(0, (-1, 4))


def heads_first(attend: Attend) -> Attend:
    return lambda *qkv: attend(*(a.transpose(0, 1) for a in qkv)).transpose(0, 1)


def flat_heads_first(attend: Attend) -> Attend:
    return heads_first(lambda *qkv: attend(*(a.flatten(0, 1) for a in qkv)).unflatten(0, (4, -1)))


WAYS: dict[str, Make] = {
    "the function, looked up when it is called": lambda: Own(lambda *given: F.scaled_dot_product_attention(*given)),
    "the function, imported before": lambda: Own(imported),
    "weights wanted": Wrapped,
    "grouped": lambda: Own(lambda q, k, v: imported(q, k, v, enable_gqa=True), kv=2),
    "three axes": lambda: Own(three_axes(imported)),
    "three axes, heads first": lambda: Own(flat_heads_first(imported)),
    "heads first": lambda: Own(heads_first(imported)),
    "no fast path": lambda: Own(lambda *given: imported(*(a.requires_grad_() for a in given))),
}


@pytest.mark.parametrize("make", WAYS.values(), ids=list(WAYS))
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_attention_is_seen(make: Make, mode: str) -> None:
    adapter = adapter_of(make, 64)
    state = adapter.fresh(0)
    reader = ModuleReader(adapter, state, 64, mode)
    matrices = reader.read(state)
    assert reader.layout.num_heads == 4
    probe = Probe(reader, state, matrices)
    assert probe.forward(probe.seen)[0].known
    weight = state.q.weight if hasattr(state, "q") else state.attention.in_proj_weight[:64]
    read = torch.as_tensor(matrices.query.reshape(64, 64).T, dtype=torch.float32)
    scale = 4.0 if state.__class__.__name__ == "Wrapped" else 1.0
    assert torch.equal(read * scale, weight)


def test_a_mode_of_the_users_own_changes_nothing() -> None:
    with Functions():
        found = inspected(lambda: Own(imported))
    assert found.notes == ()
    assert found.forward.known


def test_all_is_as_it_was_afterwards() -> None:
    torch.backends.mha.set_fastpath_enabled(True)
    torch.manual_seed(7)
    before = torch.rand(3)
    torch.manual_seed(7)
    held = F.scaled_dot_product_attention, F.multi_head_attention_forward

    def failing(q: Any, k: Any, v: Any) -> Any:
        raise RuntimeError("no kernel")

    with pytest.raises(ac.InputError, match="RuntimeError: no kernel"):
        inspected(lambda: Own(failing))
    inspected(lambda: Own(by_hand))
    assert (F.scaled_dot_product_attention, F.multi_head_attention_forward) == held
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.equal(torch.rand(3), before)


# By hand ------------------------------------------------------------------------------------------


def test_written_by_hand() -> None:
    found = inspected(lambda: Own(by_hand), draws=8)
    assert found.notes == ()
    found.require(mask="none", scale="1/sqrt(head_dim)", bias=False, query_law="uniform", output_law="uniform")
    found.require(**{f"{role}_std": LINEAR for role in MATRICES})
    assert found.forward.error < 2e-6


def summed(q: Any, k: Any, v: Any) -> Any:
    weights = (q @ k.mT / 4).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


@pytest.mark.parametrize(
    "attend", [heads_first(by_hand), flat_heads_first(by_hand), summed], ids=["heads first", "three axes", "sums"]
)
def test_other_ways_by_hand(attend: Attend) -> None:
    found = inspected(lambda: Own(attend))
    assert found.blamed == ()
    assert found.forward.known
    assert set(found.weights) == MATRICES


class Packed(nn.Module):
    """Packed queries, keys and values, in a common layout."""

    def __init__(self, way: str = "three, heads, neurons", width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.way, self.heads = way, heads
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        d = width // self.heads
        made = self.qkv(x)
        if self.way == "three, heads, neurons":
            q, k, v = made.view(batch, length, 3, self.heads, d).permute(2, 0, 3, 1, 4)
        elif self.way == "heads, three, neurons":
            q, k, v = made.view(batch, length, self.heads, 3, d).permute(3, 0, 2, 1, 4)
        elif self.way == "heads, neurons, three":
            q, k, v = made.view(batch, length, self.heads, d, 3).permute(4, 0, 2, 1, 3)
        else:
            q, k, v = (a.view(batch, length, d, self.heads).permute(0, 3, 1, 2) for a in made.chunk(3, -1))
        return self.o(by_hand(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    "way", ["three, heads, neurons", "heads, three, neurons", "heads, neurons, three", "neurons, heads"]
)
def test_matrices_by_hand_are_found_however_they_are_packed(way: str) -> None:
    found = inspected(lambda: Packed(way))
    assert set(found.weights) == MATRICES
    assert {m.law for m in found.weights.values()} == {"uniform"}
    assert all(m.low <= LINEAR <= m.high for m in found.weights.values())
    assert all(0.4 < m.bias_std < 0.8 for m in found.weights.values())


@pytest.mark.parametrize(("heads", "width"), [(1, 64), (16, 64), (2, 16)])
def test_shapes_by_hand(heads: int, width: int) -> None:
    found = ac.inspect(lambda: Packed(width=width, heads=heads), width=width, draws=2)
    assert (found.num_heads, found.head_dim) == (heads, width // heads)
    assert set(found.weights) == MATRICES
    assert found.blamed == ()
    assert found.forward.scale == "1/sqrt(head_dim)"


class Heads(nn.Module):
    """Hand-written attention with matrices (heads, width, head_dim); `fan` is the axis that sets the scale."""

    def __init__(self, fan: int = 1) -> None:
        super().__init__()
        self.parts = nn.ParameterList(list(torch.randn(3, 4, 64, 16) / (4, 64, 16)[fan] ** 0.5))
        self.last = nn.Parameter(torch.randn(4, 16, 64) / 8)

    def forward(self, x: Any) -> Any:
        q, k, v = (torch.einsum("bln,hnd->bhld", x, each) for each in self.parts)
        return torch.einsum("bhld,hdn->bln", by_hand(q, k, v), self.last)


def test_by_hand_with_heads_on_an_axis_of_their_own() -> None:
    right, wrong = (inspected(lambda fan=fan: Heads(fan), draws=8) for fan in (1, 2))
    right.require(query_std=1.0, key_std=1.0, value_std=1.0, output_std=1.0, scale=0.25)
    assert wrong.weights["query"].known == ("1/head_dim (fan over the axis of a head)",)
    with pytest.raises(AssertionError, match=r"W_Q: std·√fan-in is [12]\.[09]"):
        wrong.require(query_std=1.0)


def test_a_mask_that_ends() -> None:
    mask = torch.ones(16, 16).tril().bool()

    def short(q: Any, k: Any, v: Any) -> Any:
        p = q @ k.mT / 4
        return p.masked_fill(~mask[: p.shape[-1], : p.shape[-1]], float("-inf")).softmax(-1) @ v

    with pytest.raises(RuntimeError):
        Own(short)(torch.zeros(1, 17, 64))
    inspected(lambda: Own(short)).require(mask="causal", query_std=LINEAR, blamed=False)


def test_values_with_fewer_neurons_than_keys() -> None:
    class Narrow(Own):
        def __init__(self) -> None:
            super().__init__()
            self.v, self.o = nn.Linear(64, 32, bias=False), nn.Linear(32, 64, bias=False)

        def forward(self, x: Any) -> Any:
            q, k, v = (m(x).unflatten(-1, (4, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
            return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))

    found = inspected(Narrow)
    assert told(found) == ["heads of values have 8 neurons, those of keys 16"]
    found.require(value_std=LINEAR, output_std=LINEAR, head_dim=16, kv_heads=4)
    with pytest.raises(ac.InputError, match="comes with values of 8 neurons per head"):
        found.layer()


# Layers around attention --------------------------------------------------------------------------


def encoder_layer() -> Any:
    return nn.TransformerEncoderLayer(64, 4, batch_first=True)


def test_an_encoder_layer_and_its_fast_path() -> None:
    found = inspected(encoder_layer)
    assert told(found) == [
        "the outputs are normalised: W_O is not read",
        "train: two calls on one input differ: dropout",
    ]
    assert found.forward.known


def test_copies_of_one_layer() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = inspected(lambda: nn.TransformerEncoder(encoder_layer(), 3))
    assert found.blamed == ("layers 0, 1 and 2 have the same weights: layers.*.self_attn.in_proj_weight and 3 more",)
    assert "attention runs 3 times per forward pass: only the first is inspected" in told(found)


def test_a_batch_norm_is_no_other_scale() -> None:
    class Normed(Own):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(64)

        def forward(self, x: Any) -> Any:
            return super().forward(self.norm(x.mT).mT)

    found = inspected(Normed)
    assert found.blamed == ()
    assert any(note.startswith("train: outputs differ from those of eval, with the same") for note in told(found))


# What is refused ----------------------------------------------------------------------------------


class Crossed(Own):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.randn(1, 5, 64))

    def forward(self, x: Any) -> Any:
        given = (self.q, x), (self.k, self.memory), (self.v, self.memory)
        q, k, v = (m(each).unflatten(-1, (4, -1)).transpose(1, 2) for m, each in given)
        return by_hand(q, k, v).transpose(1, 2).flatten(2)


class Around(Own):
    def __init__(self, after: Any) -> None:
        super().__init__()
        self.after = after

    def forward(self, x: Any) -> Any:
        return self.after(super().forward(x))


class InTurn(Own):
    def forward(self, x: Any) -> Any:
        return torch.cat([super(InTurn, self).forward(sequence[None]) for sequence in x])


def unset() -> Any:
    made = Own()
    nn.init.constant_(made.o.weight, torch.nan)
    return made


def crossed(module: Any, x: Any) -> Any:
    memory = torch.ones(x.shape[0], 5, 64)
    return module(x, memory, memory, need_weights=False)[0]


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "cross-attention": (multi_head(), crossed, "cross-attention"),
    "cross-attention by hand": (Crossed, None, "do not depend on the inputs: cross-attention"),
    "Linear": (lambda: nn.Linear(64, 64), None, "test it by sampling"),
    "LSTM": (lambda: nn.LSTM(64, 64), None, "test it by sampling"),
    "linear attention": (
        lambda: Own(lambda q, k, v: q @ (k.mT @ v) / q.shape[2]),
        None,
        "its forward pass has no attention that is recognised: no product of weights and values",
    ),
    "in turn": (lambda: InTurn(by_hand), None, "pass attention one after another"),
    "no output": (
        lambda: Around(lambda y: None),
        None,
        "call=None: is not an output array; return the outputs",
    ),
    "meta": (
        lambda: nn.Linear(64, 64, device="meta"),
        None,
        "make=.*meta.*: is a device that holds no numbers; make the module",
    ),
    "a module": (nn.Linear(64, 64), None, "is a module, already initialised"),
    "a class": (nn.MultiheadAttention, None, "make: failed with TypeError: .*; pass a function that returns a new mod"),
    "another width": (multi_head(63, 3), None, r"call: failed on inputs of shape \(2, 2, 64\) with "),
    "an exit": (
        lambda: Own(lambda q, k, v: sys.exit(3)),
        None,
        r"call: failed on .* with SystemExit: 3 \(test_torch\.py, line \d+\)",
    ),
    "NaN of the forward pass": (
        lambda: Own(lambda q, k, v: by_hand(q, k, v) * torch.nan),
        None,
        r"output=nan: .* finite; mend the forward pass: all parameters are finite",
    ),
    "NaN of the initialiser": (unset, None, r"output=nan: .* finite; mend the initialiser"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_inspected_is_refused(name: str) -> None:
    make, call, said = REFUSED[name]
    with pytest.raises(ac.InputError, match=said) as caught:
        inspected(make, call)
    assert "\n" not in str(caught.value)
