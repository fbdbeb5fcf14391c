"""torch layers: observation on every path, and findings in typical user code."""

from __future__ import annotations

import html
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import attncheck as ac
from attncheck.frameworks.binding import bind
from attncheck.frameworks.effective import ModuleReader
from attncheck.frameworks.probe import Probe
from attncheck.frameworks.trace import Trace

from . import reading

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

imported = F.scaled_dot_product_attention
Make = Callable[[], Any]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def multi_head(**given: Any) -> Make:
    return lambda: nn.MultiheadAttention(64, 4, **({"batch_first": True} | given))


class Own(nn.Module):
    def __init__(self, attend: Callable[..., Any] | None = None, kv: int = 4, width: int = 64) -> None:
        super().__init__()
        self.attend, self.kv = attend or F.scaled_dot_product_attention, kv
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv * width // 4, bias=False) for _ in range(2))

    def forward(self, x: Any) -> Any:
        shape = *x.shape[:2], -1, x.shape[2] // 4
        q, k, v = (m(x).view(shape).transpose(1, 2) for m in (self.q, self.k, self.v))
        return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))


def by_hand(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def grouped(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))


def looked_at(q: Any, k: Any, v: Any) -> Any:
    """Convert a tensor to a number, which prevents batching."""
    assert q.isfinite().all()
    return F.scaled_dot_product_attention(q, k, v)


def told(make: Any, call: Any = None) -> list[str]:
    return [str(note) for note in ac.inspect(make, 64, call, draws=2).notes]


# MultiheadAttention -------------------------------------------------------------------------------


def test_multi_head_attention() -> None:
    found = ac.inspect(multi_head(), width=64)
    assert found.notes == ()
    assert found.forward.error < 2e-6
    assert {m.law for m in found.weights.values()} == {"uniform"}
    assert found.weights["query"].known == ("2/(fan_in + 3 fan_in) (xavier over packed q, k, v)",)
    assert found.weights["output"].known == ("1/(3 fan_in) (torch.nn.Linear)",)
    found.require(query_std=0.5**0.5, output_std=3**-0.5, mask="none", bias=False)
    assert list(found.paths) == ["eval", "train", "eval, need_weights"]
    assert len({forward.mask for forward in found.paths.values()}) == 1


@pytest.mark.parametrize(
    ("dtype", "bound"), [("bfloat16", 0.03), ("float16", 0.01), ("float32", 1e-5), ("float64", 1e-13)]
)
def test_types(dtype: str, bound: float) -> None:
    found = ac.inspect(multi_head(dtype=getattr(torch, dtype)), width=64)
    assert found.forward.known
    assert found.forward.bound < bound
    assert found.notes == ()
    assert {m.law for m in found.weights.values()} == {"uniform"}


def test_separate_matrices_have_another_scale() -> None:
    class Separate(nn.MultiheadAttention):
        def __init__(self) -> None:
            super().__init__(64, 4, batch_first=True, kdim=63, vdim=63)

    def call(module: Any, x: Any) -> Any:
        return module(x, x[..., :63], x[..., :63], need_weights=False)[0]

    found = ac.inspect(Separate, 64, call)
    assert found.weights["query"].known[0] == "1/fan_in (lecun)"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0.0, ("scores hidden by the causal mask are 0, not -inf",)),
        (-9.0, ("scores hidden by the causal mask are -9, not -inf",)),
        (-100.0, ()),
        (-1e4, ()),
        (float("-inf"), ()),
    ],
)
def test_a_mask_by_hand_that_hides_nothing(number: float, said: tuple[str, ...]) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        behind = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        return (q @ k.mT / 4).masked_fill(behind, number).softmax(-1) @ v

    assert ac.inspect(lambda: Own(attend), 64).blamed == said


def test_relative_positions_by_hand_hide_nothing() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        at = torch.arange(q.shape[2])
        return (q @ k.mT / 4 - (at[:, None] - at).abs()).softmax(-1) @ v

    found = ac.inspect(lambda: Own(attend), 64)
    assert found.blamed == ()
    assert "scores have a bias by distance, slope 1; ALiBi's are 0.25, 0.0625, 0.0156, 0.00391" in str(found)
    assert "no mask, scores times 1/sqrt(head_dim), slope 1; equal" in str(found)


def test_what_takes_the_place_before_is_multiplied_by_no_number() -> None:
    class Shifted(Own):
        def forward(self, x: Any) -> Any:
            return super().forward((x + F.pad(x, (0, 0, 1, -1))) / 2)

    said = "queries, keys and values are dependent on inputs at other positions too: W_Q, W_K and W_V unknown"
    assert told(Shifted) == [said]


def test_a_path_that_this_configuration_cannot_run_is_a_note() -> None:
    gemma = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    configuration = gemma.Gemma2Config(
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_hidden_layers=1,
        vocab_size=8,
        attn_implementation="eager",
    )
    rotations = gemma.Gemma2RotaryEmbedding(configuration)

    def call(module: Any, x: Any) -> Any:
        return module(x, rotations(x, torch.arange(x.shape[1])[None]), None)[0]

    found = ac.inspect(lambda: gemma.Gemma2Attention(configuration, 0), 64, call, draws=2)
    assert found.blamed == ()
    assert list(found.paths) == ["eval, eager", "train, eager"]
    assert sum("`sdpa` attention does not support `softcap`" in str(note) for note in found.notes) == 1


def test_a_batch_norm_is_no_other_scale() -> None:
    class Normed(Own):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(64)

        def forward(self, x: Any) -> Any:
            return super().forward(self.norm(x.mT).mT)

    found = ac.inspect(Normed, 64)
    assert found.blamed == ()
    assert any(str(note).startswith("train: outputs differ from those of eval, with the same") for note in found.notes)


def test_values_with_fewer_neurons_than_keys() -> None:
    class Narrow(Own):
        def forward(self, x: Any) -> Any:
            q, k, v = (m(x).unflatten(-1, (4, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
            return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def make() -> Any:
        made = Narrow()
        made.v, made.o = nn.Linear(64, 32, bias=False), nn.Linear(32, 64, bias=False)
        return made

    found = ac.inspect(make, 64)
    assert [str(note) for note in found.notes] == ["heads of values have 8 neurons, those of keys 16"]
    found.require(value_std=3**-0.5, output_std=3**-0.5, head_dim=16, kv_heads=4)
    with pytest.raises(ac.InputError, match="comes with values of 8 neurons per head"):
        found.layer()


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
    found = ac.inspect(multi_head(**given), width=64, draws=2)
    assert [str(note) for note in found.notes] == [said]
    assert bool(found.blamed) == (given == {"batch_first": False})
    assert found.forward.known


def test_an_output_matrix_that_is_not_drawn() -> None:
    kept = multi_head()()

    def make() -> Any:
        kept._reset_parameters()  # draws the packed matrices, and no W_O
        return kept

    assert ac.inspect(make, 64, draws=2).blamed == ("W_O is the same in every draw: this initialiser does not draw it",)


# Every way in which attention is called -----------------------------------------------------------


class Wrapped(nn.Module):
    """Requests weights by default: no fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x)[0]


class Functions(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


WAYS: dict[str, Make] = {
    "the function, looked up when it is called": lambda: Own(lambda *given: F.scaled_dot_product_attention(*given)),
    "the function, imported before": lambda: Own(imported),
    "weights wanted": Wrapped,
    "grouped": lambda: Own(lambda q, k, v: imported(q, k, v, enable_gqa=True), kv=2),
    "three axes": lambda: Own(lambda *qkv: imported(*(a.flatten(0, 1) for a in qkv)).unflatten(0, (-1, 4))),
    "three axes, heads first": lambda: Own(
        lambda *qkv: imported(*(a.transpose(0, 1).flatten(0, 1) for a in qkv)).unflatten(0, (4, -1)).transpose(0, 1)
    ),
    "heads first": lambda: Own(lambda *qkv: imported(*(a.transpose(0, 1) for a in qkv)).transpose(0, 1)),
    "no fast path": lambda: Own(lambda *given: imported(*(a.requires_grad_() for a in given))),
}


@pytest.mark.parametrize("make", WAYS.values(), ids=list(WAYS))
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_attention_is_seen(make: Make, mode: str) -> None:
    binding = bind(make, 64)
    state = binding.fresh(0)
    reader = ModuleReader(binding, state, 64, mode)
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
        found = ac.inspect(lambda: Own(imported), width=64, draws=2)
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
        ac.inspect(lambda: Own(failing), width=64)
    ac.inspect(lambda: Own(by_hand), width=64, draws=2)
    assert (F.scaled_dot_product_attention, F.multi_head_attention_forward) == held
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.equal(torch.rand(3), before)


def test_written_by_hand() -> None:
    found = ac.inspect(lambda: Own(by_hand), width=64)
    assert found.notes == ()
    found.require(mask="none", scale="1/sqrt(head_dim)", bias=False, query_law="uniform", output_law="uniform")
    found.require(**{f"{role}_std": 3**-0.5 for role in ("query", "key", "value", "output")})
    assert found.forward.error < 2e-6
    over = ac.inspect(lambda: Own(lambda q, k, v: (q @ k.mT / 4).softmax(-2) @ v), width=64, draws=2)
    assert over.blamed == ("softmax over the query axis",)


SCALES = {"1": 1.0, "1/sqrt(width)": 1 / 8, "0.3": 0.3}


@pytest.mark.parametrize(("name", "factor"), SCALES.items(), ids=list(SCALES))
def test_the_scale_of_scores_by_hand(name: str, factor: float) -> None:
    found = ac.inspect(lambda: Own(lambda q, k, v: (q @ k.mT * factor).softmax(-1) @ v), width=64, draws=2)
    assert found.blamed == (f"scores times {name}, not 1/sqrt(head_dim)",)
    assert found.forward.factor == pytest.approx(factor, rel=1e-3)


def test_queries_that_are_scaled_beforehand() -> None:
    right = ac.inspect(lambda: Own(lambda q, k, v: imported(q / 4, k, v, scale=1.0)), width=64)
    assert right.blamed == ()
    right.require(scale="1/sqrt(head_dim)", query_std=3**-0.5)
    both = ac.inspect(lambda: Own(lambda q, k, v: imported(q / 2, k / 2, v, scale=1.0)), width=64)
    assert both.blamed == ()
    both.require(scale="1/sqrt(head_dim)", query_std=3**-0.5, key_std=3**-0.5)
    twice = ac.inspect(lambda: Own(lambda q, k, v: imported(q / 4, k, v)), width=64, draws=2)
    assert twice.blamed == ()
    assert "scores times 1/head_dim, as in maximal-update parametrisation, not 1/sqrt(head_dim)" in [
        str(note) for note in twice.notes
    ]
    said = "queries are multiplied by 0.25 before attention: scores times 1/head_dim in all"
    assert said in [str(note) for note in twice.notes]


class Packed(nn.Module):
    """Packed queries, keys and values, in a common layout."""

    def __init__(self, way: str, width: int = 64, heads: int = 4) -> None:
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
    found = ac.inspect(lambda: Packed(way), width=64)
    assert set(found.weights) == {"query", "key", "value", "output"}
    assert {m.law for m in found.weights.values()} == {"uniform"}
    assert all(m.holds(3**-0.5) for m in (each.scale for each in found.weights.values()))
    assert all(0.4 < m.bias_std < 0.8 for m in found.weights.values())


@pytest.mark.parametrize(("heads", "width"), [(1, 64), (16, 64), (2, 16), (16, 256)])
def test_shapes_by_hand(heads: int, width: int) -> None:
    found = ac.inspect(lambda: Packed("three, heads, neurons", width, heads), width=width, draws=2)
    assert (found.num_heads, found.head_dim) == (heads, width // heads)
    assert set(found.weights) == {"query", "key", "value", "output"}
    assert found.blamed == ()
    assert found.forward.scale == "1/sqrt(head_dim)"


def test_groups_by_hand() -> None:
    def grouped(q: Any, k: Any, v: Any) -> Any:
        return by_hand(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))

    def tiled(q: Any, k: Any, v: Any) -> Any:
        return by_hand(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))

    right = ac.inspect(lambda: Own(grouped, kv=2), width=64, draws=2)
    assert right.kv_heads == 2
    assert right.blamed == ()
    wrong = ac.inspect(lambda: Own(tiled, kv=2), width=64, draws=2)
    assert [str(note) for note in wrong.notes if note.convention] == [
        "KV heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)"
    ]


@pytest.mark.parametrize("flat", [False, True])
def test_heads_before_batches_by_hand(flat: bool) -> None:
    def first(*qkv: Any) -> Any:
        q, k, v = (a.transpose(0, 1) for a in qkv)
        if not flat:
            return by_hand(q, k, v).transpose(0, 1)
        return by_hand(*(a.flatten(0, 1) for a in (q, k, v))).unflatten(0, (4, -1)).transpose(0, 1)

    found = ac.inspect(lambda: Own(first), width=64, draws=2)
    assert found.blamed == ()
    assert found.forward.known
    assert set(found.weights) == {"query", "key", "value", "output"}


def test_rotary_positions_and_normalised_queries_by_hand() -> None:
    def rotated(q: Any, k: Any, v: Any) -> Any:
        angle = torch.arange(q.shape[2])[:, None] * 100.0 ** -torch.arange(0, 1, 2 / q.shape[3])

        def turn(a: Any) -> Any:
            even, odd = a[..., ::2], a[..., 1::2]
            return torch.cat([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], -1)

        return by_hand(turn(q), turn(k), v)

    def normalised(q: Any, k: Any, v: Any) -> Any:
        return by_hand(F.rms_norm(q, (16,)), F.rms_norm(k, (16,)), v)

    for attend, said in (
        (rotated, "queries and keys are rotated by position"),
        (normalised, "queries and keys are normalised"),
    ):
        found = ac.inspect(lambda attend=attend: Own(attend), width=64, draws=2)
        assert any(str(note).startswith(said) for note in found.notes)
        assert found.blamed == ()
        assert set(found.weights) == ({"value", "output"} | ({"query", "key"} if attend is rotated else set()))
        assert found.forward.known


def test_a_mask_that_ends() -> None:
    mask = torch.ones(16, 16).tril().bool()

    def short(q: Any, k: Any, v: Any) -> Any:
        p = q @ k.mT / 4
        return p.masked_fill(~mask[: p.shape[-1], : p.shape[-1]], float("-inf")).softmax(-1) @ v

    with pytest.raises(RuntimeError):
        Own(short)(torch.zeros(1, 17, 64))
    found = ac.inspect(lambda: Own(short), width=64)
    found.require(mask="causal", query_std=3**-0.5, blamed=False)


def test_a_softmax_by_hand_is_attention_and_linear_attention_is_not() -> None:
    def summed(q: Any, k: Any, v: Any) -> Any:
        weights = (q @ k.mT / 4).exp()
        return weights / weights.sum(-1, keepdim=True) @ v

    assert ac.inspect(lambda: Own(summed), width=64, draws=2).forward.known

    def linear(q: Any, k: Any, v: Any) -> Any:
        return q @ (k.mT @ v) / q.shape[2]

    with pytest.raises(
        ac.InputError, match="its forward pass has no attention that is recognised: no product of weights and values"
    ):
        ac.inspect(lambda: Own(linear), width=64)


# Layers around attention --------------------------------------------------------------------------


def test_an_encoder_layer_and_its_fast_path() -> None:
    found = ac.inspect(lambda: nn.TransformerEncoderLayer(64, 4, batch_first=True), width=64)
    assert [str(note) for note in found.notes] == [
        "the outputs are normalised: W_O is not read",
        "train: two calls on one input differ: dropout",
    ]
    assert found.forward.known


def test_copies_of_one_layer() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ac.inspect(lambda: nn.TransformerEncoder(multi_layer(), 3), width=64, draws=2)
    assert found.blamed == ("layers 0, 1 and 2 have the same weights: layers.#.self_attn.in_proj_weight and 3 more",)
    assert "attention runs 3 times per forward pass: only the first is inspected" in [str(note) for note in found.notes]


def multi_layer() -> Any:
    return nn.TransformerEncoderLayer(64, 4, batch_first=True)


def test_dropout_that_is_never_off() -> None:
    found = ac.inspect(lambda: Own(lambda *qkv: F.scaled_dot_product_attention(*qkv, dropout_p=0.1)), 64, draws=2)
    assert found.blamed == ("eval: two calls on one input differ: dropout",)


def test_tiled_keys() -> None:
    def tiled(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))

    found = ac.inspect(lambda: Own(tiled, kv=2), width=64, draws=2)
    assert [str(note) for note in found.notes if note.convention] == [
        "KV heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)"
    ]
    assert found.kv_heads == 2


def test_cross_attention_is_refused() -> None:
    def call(module: Any, x: Any) -> Any:
        memory = torch.ones(x.shape[0], 5, 64)
        return module(x, memory, memory, need_weights=False)[0]

    with pytest.raises(ac.InputError, match="cross-attention"):
        ac.inspect(multi_head(), 64, call)


@pytest.mark.parametrize("make", [lambda: nn.Linear(64, 64), lambda: nn.LSTM(64, 64)], ids=["Linear", "LSTM"])
def test_no_attention(make: Make) -> None:
    with pytest.raises(ac.InputError, match="test it by sampling"):
        ac.inspect(make, width=64)


def test_a_module_in_the_place_of_a_function() -> None:
    with pytest.raises(ac.InputError, match="is a module, already initialised"):
        ac.inspect(nn.Linear(64, 64), width=64)


def test_a_call_that_fails_is_a_sentence() -> None:
    with pytest.raises(ac.InputError, match=r"call: failed on inputs of shape \(2, 2, 63\) with "):
        ac.inspect(multi_head(), width=63)


def test_a_forward_that_ends_the_process_is_a_sentence() -> None:
    with pytest.raises(ac.InputError, match=r"call: failed on .* with SystemExit: 3 \(test_torch\.py, line \d+\)"):
        ac.inspect(lambda: Own(lambda q, k, v: sys.exit(3)), width=64)


def test_what_is_not_finite_is_blamed_on_the_forward_pass_or_the_parameters() -> None:
    def unset() -> Any:
        made = Own()
        nn.init.constant_(made.o.weight, torch.nan)
        return made

    with pytest.raises(ac.InputError, match=r"output=nan: .* finite; mend the forward pass: all parameters are finite"):
        ac.inspect(lambda: Own(lambda q, k, v: by_hand(q, k, v) * torch.nan), width=64)
    with pytest.raises(ac.InputError, match=r"output=nan: .* finite; mend the initialiser"):
        ac.inspect(unset, width=64)


MISUSED = {"class": nn.MultiheadAttention, "argument": lambda generator: multi_head()()}


@pytest.mark.parametrize("make", MISUSED.values(), ids=list(MISUSED))
def test_a_make_that_cannot_be_called_is_told_what_to_be(make: Any) -> None:
    with pytest.raises(ac.InputError, match=r"make: failed with TypeError: .*; pass a function that returns a new mod"):
        ac.inspect(make, width=64)


@pytest.mark.usefixtures("verdicts_only")
def test_attention_by_hand_is_a_subject() -> None:
    def grouped(q: Any, k: Any, v: Any) -> Any:
        return by_hand(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))

    found = ac.inspect(lambda: Own(grouped, kv=2, width=16), width=16)
    layer = found.layer()
    assert layer.num_kv_heads == 2
    report = ac.check(found.subject(), layer, properties=["exactness", "outputs"], profile="smoke")
    assert report.verdict == "consistent"
    wrong = ac.check(found.subject(), layer.replace(num_kv_heads=None), properties=["exactness"], profile="smoke")
    assert wrong.verdict == "violated"


@pytest.mark.parametrize("weights", ["gaussian", "own"])
@pytest.mark.parametrize(
    ("make", "at_once"),
    [
        (lambda: nn.MultiheadAttention(16, 2, batch_first=True), True),
        (lambda: nn.MultiheadAttention(16, 2), True),
        (lambda: Own(grouped, kv=2, width=16), True),
        (lambda: Own(by_hand, width=16), True),
        (lambda: Own(looked_at, width=16), False),
    ],
    ids=["packed", "first axis", "groups", "by hand", "looked at"],
)
def test_modules_run_at_once_as_they_do_one_by_one(make: Make, at_once: bool, weights: str) -> None:
    reading.assert_at_once(ac.inspect(make, width=16).subject(weights=weights), at_once)


def test_attention_of_one_sequence_after_another_is_refused() -> None:
    class InTurn(Own):
        def forward(self, x: Any) -> Any:
            y = torch.empty_like(x)
            for place, sequence in enumerate(x):
                y[place] = super().forward(sequence[None])[0]
            return y

    with pytest.raises(ac.InputError, match="pass attention one after another"):
        ac.inspect(lambda: InTurn(by_hand, width=16), width=16)


def test_a_module_with_two_names_is_a_subject() -> None:
    class Shared(Own):
        def __init__(self) -> None:
            super().__init__(by_hand, width=16)
            self.alias = self.v

    reading.assert_at_once(ac.inspect(Shared, width=16).subject())


# Over widths --------------------------------------------------------------------------------------


def test_a_scale_that_does_not_fall_with_the_width() -> None:
    def make(width: int) -> Any:
        made = Own(width=width)
        nn.init.normal_(made.q.weight, std=0.02)
        return made

    assert told(make) == ["W_Q: std 0.02 whatever the width"]
    assert told(lambda width: Own(width=width)) == []


def test_widths_by_hand() -> None:
    def make(width: int, std: float | None = None) -> Any:
        made = Own(by_hand, width=width)
        if std is not None:
            nn.init.normal_(made.q.weight, std=std)
        return made

    assert told(make) == []
    assert told(lambda width: make(width, 0.02)) == ["W_Q: std 0.02 whatever the width"]


def test_a_width_that_cannot_be_made() -> None:
    def make(width: int) -> Any:
        assert width == 64
        return Own()

    assert told(make) == ["a module of width 128 could not be inspected: widths are not compared"]


# transformers -------------------------------------------------------------------------------------


def test_two_implementations_of_one_module() -> None:
    transformers = pytest.importorskip("transformers")

    def make() -> Any:
        config = transformers.GPT2Config(n_embd=64, n_head=4, n_layer=2)
        return transformers.GPT2Model(config).h[0].attn

    found = ac.inspect(make, width=64)
    told = "two paths of this module differ in mask: eval, sdpa: causal; eval, eager and train, eager: no mask"
    assert told in map(str, found.notes)
    assert found.blamed == ()  # configured for the other
    assert found.weights["query"].known == ("0.02² (whatever the width)",)
    assert {m.law for m in found.weights.values()} == {"normal"}


# Speed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "seconds"), [(64, 1.0), (1024, 10.0)])
def test_it_is_fast(width: int, seconds: float) -> None:
    began = time.process_time()
    found = ac.inspect(lambda: nn.MultiheadAttention(width, 4, batch_first=True), width=width)
    assert time.process_time() - began < seconds
    assert found.forward.known


def test_an_untouched_run_is_the_module_itself() -> None:
    binding = bind(multi_head(), 64)
    module = binding.fresh(0)
    x = torch.randn(2, 3, 64)
    with torch.no_grad():
        expected = module.eval()(x, x, x, need_weights=False)[0]
    assert (binding.outputs(module, x.double().numpy(), Trace(), "eval") == expected.double().numpy()).all()


class Heads(nn.Module):
    """Hand-written attention with matrices (heads, width, head_dim); `fan` is the axis that sets the scale."""

    def __init__(self, fan: int = 1, empty: bool = False) -> None:
        super().__init__()
        parts = torch.randn(3, 4, 64, 16) / (4, 64, 16)[fan] ** 0.5
        self.parts = nn.ParameterList(list(torch.zeros_like(parts) if empty else parts))
        self.last = nn.Parameter(torch.randn(4, 16, 64) / 8)

    def forward(self, x: Any) -> Any:
        q, k, v = (torch.einsum("bln,hnd->bhld", x, each) for each in self.parts)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 4, -1)
        return torch.einsum("bhld,hdn->bln", weights @ v, self.last)


def test_by_hand_with_heads_on_an_axis_of_their_own() -> None:
    right, wrong = ac.inspect(lambda: Heads(), width=64), ac.inspect(lambda: Heads(fan=2), width=64)
    right.require(query_std=1.0, key_std=1.0, value_std=1.0, output_std=1.0, scale=0.25)
    assert wrong.weights["query"].known == ("1/head_dim (fan over the axis of a head)",)
    with pytest.raises(AssertionError, match=r"W_Q: std·√fan-in is [12]\.[09]"):
        wrong.require(query_std=1.0)


def test_zeros_are_not_drawn() -> None:
    found = ac.inspect(lambda: Heads(empty=True), width=64)
    assert "every entry of W_K is 0: this initialiser does not draw it" in map(str, found.notes)
    assert "every entry of W_Q is 0" in str(found).splitlines()[0]


@pytest.mark.parametrize("axis", ["positions", "heads"])
def test_rotary_angles_by_head(axis: str) -> None:
    def turned(a: Any) -> Any:
        count = torch.arange(a.shape[2 if axis == "positions" else 1])
        angles = (count[:, None] * 1e4 ** (-torch.arange(8) / 8)).repeat(1, 2)
        angles = angles if axis == "positions" else angles[:, None]
        one, other = a.chunk(2, -1)
        return a * angles.cos() + torch.cat([-other, one], -1) * angles.sin()

    found = ac.inspect(lambda: Own(lambda q, k, v: F.scaled_dot_product_attention(turned(q), turned(k), v)), width=64)
    wrong = "queries and keys are rotated in the same way at every position, by angles that depend on the head"
    assert found.blamed == ((wrong,) if axis == "heads" else ())


@pytest.mark.parametrize("gate", [False, True])
def test_values_that_the_forward_pass_sets_to_zero(gate: bool) -> None:
    class Silent(Own):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.zeros(1)) if gate else 0.0
            self.attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, self.gate * v)

    found = ac.inspect(Silent, width=64)
    text = "every entry of W_V is 0: no weight matrix is, but the forward pass multiplies values by 0"
    assert found.blamed == (() if gate else (text,))
    assert (f"{text}, or a parameter that starts at 0" in found.verdict) == gate


def test_packed_values_of_zero_are_not_drawn() -> None:
    def make() -> Any:
        module = nn.MultiheadAttention(64, 4, batch_first=True)
        nn.init.zeros_(module.in_proj_weight[128:])
        return module

    assert "every entry of W_V is 0: this initialiser does not draw it" in told(make)


@pytest.mark.usefixtures("verdicts_only")
def test_llama_is_examined_with_its_rotary_positions() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=1,
        intermediate_size=64,
        vocab_size=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        attn_implementation="sdpa",
    )

    def make() -> Any:
        layer = LlamaAttention(config, 0)
        for part in (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj):
            torch.nn.init.normal_(part.weight, std=32**-0.5)
        return layer

    rotary = LlamaRotaryEmbedding(config)

    def call(layer: Any, x: Any) -> Any:
        rotations = rotary(x, torch.arange(x.shape[1])[None])
        return layer(x, position_embeddings=rotations, attention_mask=None)[0]

    found = ac.inspect(make, width=32, call=call)
    assert (found.forward.positions, found.forward.rotary_base) == ("rotary", 1000.0)
    layer = found.layer(seq_len=6, input_correlation=0.5)
    assert layer.rotary_base == 1000.0
    right = ac.check(found.subject(weights="gaussian"), layer, properties=["scores", "conditional"], profile="smoke")
    assert right.verdict == "consistent"
    assert sum(bool(result.p_values) for result in right.results) >= 24
    wrong = layer.replace(rotary_base=None)
    assert ac.check(found.subject(), wrong, properties=["scores"], profile="smoke").verdict == "violated"


def test_the_shell_takes_a_call_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from attncheck.commands.cli import main

    lines = [
        "import torch",
        "def build():",
        "    return torch.nn.MultiheadAttention(16, 2, batch_first=True)",
        "def causal(layer, x):",
        "    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)",
        "    return layer(x, x, x, attn_mask=hidden, need_weights=False)[0]",
        "",
    ]
    (tmp_path / "called.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    inspect = ["inspect", "called:build", "--width", "16", "--call"]
    assert main([*inspect, "called:causal", "--report", "page.html"]) == 0
    printed = capsys.readouterr().out
    assert "softmax, causal mask" in printed
    page = (tmp_path / "page.html").read_text()
    assert "called:build" in page
    assert "softmax, causal mask" in page
    assert page.count("<tr>") == 5
    assert all(line.partition(": ")[2][:20] in html.unescape(page) for line in printed.splitlines()[8:])
    assert main([*inspect, "causal"]) == 2
    assert "call='causal'" in capsys.readouterr().err


def test_cross_attention_by_hand_is_refused() -> None:
    class Crossed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(64, 64, bias=False) for _ in range(3))
            self.register_buffer("memory", torch.randn(1, 5, 64))

        def forward(self, x: Any) -> Any:
            q, k, v = self.query(x), self.key(self.memory), self.value(self.memory)
            q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in (q, k, v))
            return ((q @ k.mT / 4).softmax(-1) @ v).transpose(1, 2).flatten(2)

    with pytest.raises(ac.InputError, match="do not depend on the inputs: cross-attention"):
        ac.inspect(Crossed, width=64)


def test_biases_that_are_zero_are_none_and_others_are_declared() -> None:
    found = ac.inspect(lambda: nn.MultiheadAttention(16, 2, batch_first=True), width=16)
    assert found.subject(weights="own").weights == dict.fromkeys(("query", "key", "value", "output"), "uniform")

    def biased() -> nn.Module:
        layer = nn.MultiheadAttention(16, 2, batch_first=True)
        nn.init.normal_(layer.in_proj_bias)
        return layer

    found = ac.inspect(biased, width=16)
    assert ("theory", "of the layer without its biases") in found.predicted
    weights = found.subject(weights="own").weights
    assert isinstance(weights, dict)
    declared = {name: law for name, law in weights.items() if "bias" in name}
    assert declared == {
        f"{role}_bias": ("gaussian", pytest.approx(4.0, rel=0.03)) for role in ("query", "key", "value")
    }
