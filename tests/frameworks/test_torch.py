"""PyTorch layers: attention is seen on every path, and messages are true, name the cause, and put the worst first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import attncheck as ac
from attncheck.frameworks.effective import ModuleReader
from attncheck.frameworks.framework import adapter_of
from attncheck.frameworks.probe import Probe
from attncheck.frameworks.trace import Trace
from tests.refusals import refused

from .rows import Row, assert_says, each, inspected, notes_of, row

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from .torch_layers import Attend, Make, Own, by_hand, multi_head

imported = F.scaled_dot_product_attention
LINEAR = 3**-0.5  # the scale of nn.Linear
STDS = {f"{role}_std": LINEAR for role in ("query", "key", "value", "output")}

# Attention functions ------------------------------------------------------------------------------


def causal(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def scores(function: Callable[[Any], Any]) -> Attend:
    """Return attention by hand that changes q·k/√d."""
    return lambda q, k, v: function(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def in_turn(members_last: bool) -> Attend:
    """Return grouped-query attention that calls the kernel for one member of each group after the other.

    The heads of a group follow each other in W_Q, or (tiled) are the first of all groups, then the second.
    """

    def attend(q: Any, k: Any, v: Any) -> Any:
        groups = q.unflatten(1, (2, 2))
        outputs = [F.scaled_dot_product_attention(groups.select(2 if members_last else 1, i), k, v) for i in range(2)]
        return torch.stack(outputs, dim=2 if members_last else 1).flatten(1, 2)

    return attend


def times(factor: float) -> Attend:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=factor)


def added(bias: Callable[[int], Any]) -> Attend:
    """Return attention with a bias of the scores."""
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=bias(q.shape[2]))


def divided_later(q: Any, k: Any, v: Any) -> Any:
    """Divide by the sums of exponentials after the product with the values."""
    p = (q @ k.mT / q.shape[-1] ** 0.5).exp().tril()
    return p @ v / p.sum(-1, keepdim=True)


def never_divided(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT / q.shape[-1] ** 0.5).exp().tril() @ v


def hidden(number: float, first: int = 1) -> Attend:
    """Return attention that sets scores of later positions to a number."""
    return scores(lambda p: p.masked_fill(torch.ones(p.shape[-2:], dtype=torch.bool).triu(first), number))


def multiplied(of_queries: float, of_keys: float = 1.0, scale: float | None = None) -> Attend:
    return lambda q, k, v: F.scaled_dot_product_attention(of_queries * q, of_keys * k, v, scale=scale)


def heads_first(attend: Attend) -> Attend:
    return lambda *qkv: attend(*(a.transpose(0, 1) for a in qkv)).transpose(0, 1)


def null_key(q: Any, k: Any, v: Any) -> Any:
    k, v = (F.pad(a, (0, 0, 1, 0)) for a in (k, v))
    visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def sink(q: Any, k: Any, v: Any) -> Any:
    return F.pad(q @ k.mT / 4, (0, 1), value=0.5).softmax(-1)[..., :-1] @ v


def rotated_heads(q: Any, k: Any, v: Any) -> Any:
    def turn(a: Any) -> Any:
        angles = (torch.arange(4)[:, None] * 1e4 ** (-torch.arange(8) / 8)).repeat(1, 2)[:, None]
        one, other = a.chunk(2, -1)
        return a * angles.cos() + torch.cat([-other, one], -1) * angles.sin()

    return F.scaled_dot_product_attention(turn(q), turn(k), v)


def whole_numbers(q: Any, k: Any, v: Any) -> Any:
    ones = torch.ones(2, 2, dtype=torch.int64)
    return by_hand(q * int((ones @ ones)[0, 0]) / 2, k, v)


def ends(q: Any, k: Any, v: Any) -> Any:
    """A causal mask that was made for 16 positions."""
    return scores(lambda p: p.masked_fill(~ENDS[: p.shape[-1], : p.shape[-1]], -torch.inf))(q, k, v)


next_too = hidden(-math.inf, 2)
ENDS = torch.ones(16, 16).tril().bool()
PER_HEAD = 4 * torch.tensor([0.25, 0.25, 0.5, 0.125])[:, None, None]


def distances(length: int) -> Any:
    at = torch.arange(length)
    return -(at[:, None] - at).abs().float()


# Modules ------------------------------------------------------------------------------------------


class Heads(nn.Module):
    """Hand-written attention with matrices (heads, width, head_dim); `fan` is the axis that sets the scale."""

    def __init__(self, fan: int = 1) -> None:
        super().__init__()
        self.parts = nn.ParameterList(list(torch.randn(3, 4, 64, 16) / (4, 64, 16)[fan] ** 0.5))
        self.last = nn.Parameter(torch.randn(4, 16, 64) / 8)

    def forward(self, x: Any) -> Any:
        q, k, v = (torch.einsum("bln,hnd->bhld", x, part) for part in self.parts)
        return torch.einsum("bhld,hdn->bln", by_hand(q, k, v), self.last)


class Transposed(nn.Sequential):
    """A module for (batch, width, positions)."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.mT).mT


class Latents(Own):
    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(64))

    def projected(self, x: Any) -> tuple[Any, ...]:
        return (self.split(self.q(self.latents.expand_as(x)), 4), *super().projected(x)[1:])


class Silent(Own):
    """Values are multiplied by 0, which may be a parameter."""

    def __init__(self, gate: bool) -> None:
        super().__init__(lambda q, k, v: imported(q, k, self.gate * v))
        self.gate = nn.Parameter(torch.zeros(1)) if gate else 0.0


class Auto(Own):
    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


class Cached(Own):
    past: Any = None

    def forward(self, x: Any) -> Any:
        before = self.past if self.past is not None and self.past.shape == x.shape else torch.zeros_like(x)
        self.past = x + before
        return super().forward(x) + before


class Training(Own):
    """A module whose outputs or attention are others in training."""

    def __init__(self, attend: Attend, in_training: Attend, dropout: float = 0.0) -> None:
        super().__init__(lambda *qkv: (in_training if self.training else attend)(*qkv), after=nn.Dropout(dropout))


def shifted(part: float) -> Callable[[Any], Any]:
    return lambda x: part * x + (1 - part) * F.pad(x, (0, 0, 1, -1))


def dropping(q: Any, k: Any, v: Any) -> Any:
    return imported(q, k, v, dropout_p=0.1)


def larger(q: Any, k: Any, v: Any) -> Any:
    return 1.001 * ((q / 4 @ k.mT).softmax(-1) @ v)


def untrained(q: Any, k: Any, v: Any) -> Any:
    raise RuntimeError("no\ntraining")


def spectral() -> Any:
    module = Own()
    module.q = nn.utils.parametrizations.spectral_norm(module.q)
    return module


def narrow_values() -> Any:
    module = Own()
    module.v, module.o = nn.Linear(64, 32, bias=False), nn.Linear(32, 64, bias=False)
    return module


def narrow_queries() -> Any:
    module = Own()
    nn.init.normal_(module.q.weight, std=0.02)
    return module


def encoder_layer() -> Any:
    return nn.TransformerEncoderLayer(64, 4, batch_first=True)


def copies() -> Any:
    return nn.TransformerEncoder(encoder_layer(), 3, enable_nested_tensor=False)


def of_width_64(width: int) -> Any:
    assert width == 64
    return Own()


class Block(nn.Module):
    """A causal layer with residual paths, and a perceptron after it."""

    def __init__(self, before: Any = None) -> None:
        super().__init__()
        self.attention = Own(causal, before=before)
        self.after = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))

    def forward(self, x: Any) -> Any:
        return x + self.after(x + self.attention(x))


def chunks(x: Any) -> Any:
    return x if x.shape[1] < 32 else x + x.mean(1, keepdim=True)


# What inspections say -----------------------------------------------------------------------------

MUP = "asks: scores times 1/head_dim, as in maximal-update parametrisation, not 1/sqrt(head_dim)"
EXTRA = (
    "note: attention sees a key beyond the positions: learned or fixed, as by bias_k or add_zero_attn, or from a cache"
)
DROPOUT, STATE = "two calls on one input differ: dropout", "two calls on one input differ: a call changes the module"
KEYS = "asks: keys are dependent on inputs at other positions too: W_K unknown"
INPUTS = "asks: queries, keys and values are dependent on inputs at other positions too: W_Q, W_K and W_V unknown"
ZERO_ONE = "wrong: the causal mask is added as 0 and 1: ... it should hide get a score lower by 1"
SLOPE = "asks: slopes by distance are 1; ALiBi's are 0.25, 0.0625, 0.0156, 0.00391"
ONE_HOT = "note: scores have a standard deviation of 21.3: attention is nearly one-hot at initialisation"
TIMES_8 = "note: the inputs are multiplied by 8 before attention: W_Q, W_K and W_V include this factor"
TIMED = {name: LINEAR if name == "output_std" else 8 * LINEAR for name in STDS}
TEMPERATURES = "asks: heads have their own scales of scores: 0.25, 0.25, 0.5, 0.125"
EQUAL_ENDS = "asks: heads have their own scales of scores: 0.25, 0.5, 0.5, 0.25"
NARROW = "note: 8 neurons, those of keys 16"
DIFFERENTIAL = "note: 2 attention maps have the same values, as in differential attention"
ADDED_MAPS = "note: 2 attention maps are added or subtracted before W_O"
NOT_ONE_MAP = {"refusal": "several attention maps that are added"}
BY_LENGTH = "asks: length: 0.5199 at 7 ... 1.047 at 65"
OTHER_OUTPUTS = "note: train: outputs differ from those of eval, with the same"
APART = "asks: W_Q and W_K have different standard deviations: ... as 0.02² (whatever the width); 0.5"
FOLLOWS = "note: what follows attention is not linear: W_O is not read"
ZERO = "every entry of W_V is 0: no weight matrix is 0, but the forward pass multiplies values by 0"
SAME_KEYS = "note: 2 attention maps have the same keys and values"
TILED = "asks: KV heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)"
TWO_NAMES = "wrong: scores times 1/sqrt(heads) = head_dim**(-1/4), not 1/sqrt(head_dim)"
OFF_BY_ONE = (
    f"note: train: {DROPOUT}",
    "wrong: train: position i sees i + 1: the causal mask is off by one",
    "wrong: two paths of this module differ in mask: eval: causal; train: causal, off by one",
)
NO_OUTPUT = "note: W_O is not read"
COPIES = "wrong: layers 0, 1 and 2 have the same weights: layers.*.self_attn.in_proj_weight and 3 more"
SEVERAL = "note: attention runs 3 times per forward pass: only the first is inspected"
ONE_WIDTH = "note: a module of width 128 could not be inspected: scales of scores are not compared"
LEAK = "wrong: outputs at position 0 change with inputs at position 64, despite the causal mask"


def own(name: str, attend: Any = None, *notes: str, before: Any = None, of_keys: Any = None, **fields: Any) -> Row:
    return row(name, lambda: Own(attend, before=before, of_keys=of_keys), *notes, **fields)


DIVIDED = ("note: are divided by the sums of their rows only after", "note: is not linear: W_O is not read")
ROWS = [
    own("divided later", divided_later, *DIVIDED, mask="causal", matrices="QKV"),
    own("never divided", never_divided, "wrong: rows of the attention weights sum to", known=False),
    row("multi-head", multi_head(), require={"query_std": 0.5**0.5, "output_std": LINEAR, "bias": False}),
    row("bfloat16", multi_head(dtype=torch.bfloat16), bound=0.03),
    row("positions first", multi_head(batch_first=False), "wrong: attends over the first axis of its inputs: batch_fi"),
    row("bias_kv", multi_head(add_bias_kv=True), EXTRA),
    row("zero_attn", multi_head(add_zero_attn=True), EXTRA),
    row("dropout", multi_head(dropout=0.1), f"note: train: {DROPOUT}"),
    # By hand
    own("by hand", by_hand, require=STDS | {"bias": False, "query_law": "uniform", "output_law": "uniform"}),
    row("axes of heads", Heads, require=dict.fromkeys(STDS, 1.0) | {"scale": 0.25}),
    own("mask that ends", ends, mask="causal", require=STDS),
    row("narrow values", narrow_values, NARROW, require=STDS, refusal="values of 8 neurons per head"),
    row("narrow queries", narrow_queries, APART, require={"key_std": LINEAR}),
    # Masks
    own("hidden by 0", hidden(0.0), "wrong: scores hidden by the causal mask are 0, not -inf", mask="causal"),
    own("added 0, 1", added(lambda n: torch.ones(n, n).tril()), ZERO_ONE),
    own("added 1, 0", added(lambda n: torch.ones(n, n).triu(1)), "wrong: causal ... as 1 and 0: ... higher by 1"),
    own("added 3", added(lambda n: 3.0 * torch.ones(n, n).tril()), "wrong: as a number: ... lower by 3"),
    own("added -30", added(lambda n: torch.full((n, n), -30.0).triu(1)), "note: hidden ... -29.9", mask="causal"),
    own("slope", added(distances), SLOPE, optional_parts="slope 1"),
    # Scores
    own("null key", null_key, EXTRA, mask="causal"),
    own("sink", sink, optional_parts="sink 0.5"),
    own("soft cap", scores(lambda p: 2 * torch.tanh(p / 2)), optional_parts="softcap 2"),
    own("temperatures", scores(lambda p: p * PER_HEAD), TEMPERATURES, scale=...),
    own("equal at both ends", lambda q, k, v: by_hand(PER_HEAD[[0, 2, 2, 0]] * q, k, v), EQUAL_ENDS, scale=...),
    own("once in all", lambda q, k, v: by_hand(PER_HEAD * q, k / PER_HEAD, v), require=STDS),
    own("two maps", lambda q, k, v: by_hand(q, k, v) - 0.8 * by_hand(k, q, v), DIFFERENTIAL, **NOT_ONE_MAP),
    own("added maps", lambda q, k, v: by_hand(q, k, v) + by_hand(v, q, k), ADDED_MAPS, **NOT_ONE_MAP),
    own("by length", scores(lambda p: p * math.log(1 + p.shape[-1])), BY_LENGTH, scale=...),
    own("two names", times(0.5), TWO_NAMES, scale=...),
    row("members in turn", lambda: Own(in_turn(True), kv=2), SAME_KEYS, require={"kv_heads": 2}),
    row("tiled in turn", lambda: Own(in_turn(False), kv=2), TILED, SAME_KEYS, require={"kv_heads": 2}),
    own("queries scaled", multiplied(1 / 4, 1, 1), require=STDS),
    own("scaled twice", multiplied(1 / 4), "note: queries ... by 0.25 ... 1/head_dim in all", MUP, scale="1/head_dim"),
    own(
        "scaled up", multiplied(8, 8), ONE_HOT, "note: queries ... by 8", "note: keys ... by 8", "wrong: 16", scale="16"
    ),
    own("rotated heads", rotated_heads, "wrong: in the same way at every position, by angles that depend on the head"),
    # Digits
    row("autocast", lambda: Auto(), bound=0.1),
    own("whole numbers", whole_numbers),
    # Inputs and matrices
    own("shifted keys", None, KEYS, of_keys=shifted(0.0), matrices="QVO", refusal="key_std=None: is unknown"),
    own("mixed inputs", None, INPUTS, before=shifted(0.5), matrices="O"),
    own("inputs times 8", None, TIMES_8, ONE_HOT, before=lambda x: 8.0 * x, require=TIMED),
    row("latents", Latents, "note: queries do not depend on the inputs: they are learned", matrices="KVO"),
    row("zeros", lambda: Silent(False), f"wrong: {ZERO}"),
    row("gate", lambda: Silent(True), f"asks: {ZERO}, or a parameter that starts at 0"),
    # Calls and paths that differ
    row("spectral norm", spectral, f"note: train: {STATE}"),
    row("state", Cached, NO_OUTPUT, f"wrong: eval: {STATE}", f"note: train: {STATE}", matrices="QKV", known=False),
    own("always dropout", dropping, f"wrong: eval: {DROPOUT}", f"note: train: {DROPOUT}", known=False),
    row("batch norm", lambda: Own(before=Transposed(nn.BatchNorm1d(64))), OTHER_OUTPUTS),
    row(
        "no training", lambda: Training(causal, untrained), "asks: train: ... RuntimeError: no training", mask="causal"
    ),
    row("scaled in training", lambda: Training(imported, larger), OTHER_OUTPUTS),
    row("leak in training", lambda: Training(causal, next_too, 0.5), *OFF_BY_ONE, mask="causal"),
    # Around attention
    row("encoder layer", encoder_layer, NO_OUTPUT, f"note: train: {DROPOUT}", matrices="QKV"),
    row("copies", copies, NO_OUTPUT, COPIES, f"note: train: {DROPOUT}", SEVERAL, matrices="QKV"),
    row("compiled", lambda: torch.compile(multi_head()())),
    row("one width alone", of_width_64, ONE_WIDTH),
    row("right block", Block, FOLLOWS, matrices="QKV", mask="causal"),
    row("leak over chunks", lambda: Block(chunks), LEAK, FOLLOWS, matrices="QKV", mask="causal"),
]


@each(ROWS)
def test_a_layer(row: Row) -> None:
    before = torch.get_rng_state()
    assert_says(row)
    assert torch.equal(before, torch.get_rng_state())


def test_names_of_scales() -> None:
    assert inspected(lambda: Heads(2), draws=8).weights["query"].known == ("1/head_dim (fan_in taken to be head_dim)",)
    for name in ("1/sqrt(heads)", "head_dim**(-1/4)", 0.5):
        inspected(lambda: Own(times(0.5))).require(scale=name)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Own(lambda *qkv: F.scaled_dot_product_attention(*qkv)),
        lambda: Own(imported),
        lambda: Own(lambda q, k, v: imported(q, k, v, enable_gqa=True), kv=2),
        lambda: Own(lambda *qkv: imported(*(a.flatten(0, 1) for a in qkv)).unflatten(0, (-1, 4))),
        lambda: Own(heads_first(lambda *qkv: imported(*(a.flatten(0, 1) for a in qkv)).unflatten(0, (4, -1)))),
        lambda: Own(heads_first(imported)),
        lambda: Own(lambda *qkv: imported(*(a.requires_grad_() for a in qkv))),
    ],
    ids=["looked up", "imported", "groups", "three axes", "flat", "heads first", "no fast path"],
)
def test_attention_is_seen_on_every_path(make: Make) -> None:
    adapter = adapter_of(make, 64)
    state = adapter.fresh(0)
    for mode in ("train", "eval"):
        reader = ModuleReader(adapter, state, 64, mode)
        matrices = reader.read(state)
        assert reader.layout.num_heads == 4
        probe = Probe(reader, state, matrices)
        assert probe.forward(probe.seen)[0].known
        read = torch.as_tensor(matrices.query.reshape(64, 64).T, dtype=torch.float32)
        assert torch.equal(read, state.q.weight)


def test_paths_of_multi_head_attention() -> None:
    assert list(inspected(multi_head()).paths) == ["eval", "train", "eval, need_weights"]
    assert list(inspected(lambda: Training(causal, untrained)).paths) == ["eval"]


def test_a_watched_run_is_the_module_itself() -> None:
    adapter = adapter_of(multi_head(), 64)
    module = adapter.fresh(0)
    x = torch.randn(2, 3, 64)
    with torch.no_grad():
        expected = module.eval()(x, x, x, need_weights=False)[0]
    assert (adapter.outputs(module, x.double().numpy(), Trace(), "eval") == expected.double().numpy()).all()


class Functions(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def test_pytorch_is_as_it_was() -> None:
    functions = F.scaled_dot_product_attention, F.multi_head_attention_forward
    with Functions():
        assert notes_of(inspected(lambda: Own(imported))) == []
    refused(lambda: inspected(lambda: Own(untrained)), "RuntimeError: no training")
    assert (F.scaled_dot_product_attention, F.multi_head_attention_forward) == functions
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_path_that_this_configuration_cannot_run_is_a_note() -> None:
    gemma = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    configuration = gemma.Gemma2Config(**sizes, num_hidden_layers=1, vocab_size=8, attn_implementation="eager")
    rotations = gemma.Gemma2RotaryEmbedding(configuration)

    def call(module: Any, x: Any) -> Any:
        return module(x, rotations(x, torch.arange(x.shape[1])[None]), None)[0]

    inspection = inspected(lambda: gemma.Gemma2Attention(configuration, 0), call)
    assert inspection.blamed == ()
    assert list(inspection.paths) == ["eval, eager", "train, eager"]
    assert sum("`sdpa` attention does not support `softcap`" in note for note in notes_of(inspection)) == 1


def test_groups_of_a_subject_follow_each_other() -> None:
    inspection = ac.inspect(lambda: Own(in_turn(True), kv=2), width=64)
    subject, layer = inspection.subject(weights="gaussian"), inspection.layer(seq_len=3)
    assert layer.num_kv_heads == 2
    report = ac.check(subject, layer, properties=["scores", "exactness"], profile="smoke")
    assert report.verdict == "consistent"
    assert sum(bool(result.p_values) for result in report.results) > 30


@pytest.mark.parametrize("width", [16, 64])  # at the first, the scale is 1/sqrt(head_dim)
def test_a_base_width_of_maximal_update_parametrisation(width: int) -> None:
    inspection = ac.inspect(lambda width: Own(times(8 / width), width=width), width=width)
    assert inspection.blamed == ()
    (asked,) = inspection.asked
    assert asked.startswith("scores times 2/head_dim, which is 1/sqrt(head_dim) at a head_dim of 4, as in maximal-")
    inspection.require(scale=8 / width, asked=False)


def test_a_declared_scale_is_no_error() -> None:
    inspection = ac.inspect(lambda: Own(times(0.1768)), width=64)
    assert inspection.blamed == ("scores times 0.1768, not 1/sqrt(head_dim)",)
    inspection.require("scale=0.1768", blamed=False)
    assert inspection.unmet("scale=0.2", blamed=False) == ["scores are multiplied by 0.1768, not 0.2"]
    wide = ac.inspect(lambda width: Own(times(0.25), width=width), width=64)
    assert wide.blamed == ("scores times 0.25, not 1/sqrt(head_dim): width 128 tells them apart",)
