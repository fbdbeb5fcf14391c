"""PyTorch layers as people write them: messages are true, name the cause, and the worst comes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import attncheck as ac

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from .torch_layers import Attend, Make, Own, by_hand, inspected, multi_head, told

ATTEND = pytest.mark.parametrize("attend", [None, by_hand], ids=["sdpa", "by hand"])
LINEAR = 3**-0.5  # the scale of nn.Linear


def first_line(make: Make) -> str:
    return str(inspected(make)).splitlines()[0]


class Fed(Own):
    """Attention with transformed inputs, or inputs of the keys only."""

    def __init__(self, to_all: Any = None, to_keys: Any = None, attend: Attend | None = None) -> None:
        super().__init__(attend)
        self.to_all, self.to_keys = to_all or nn.Identity(), to_keys or nn.Identity()

    def forward(self, x: Any) -> Any:
        x = self.to_all(x)
        given = (self.q, x), (self.k, self.to_keys(x)), (self.v, x)
        q, k, v = (m(each).unflatten(-1, (4, -1)).transpose(1, 2) for m, each in given)
        return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))


class Around(nn.Module):
    """A layer behind a function of the inputs, with a perceptron after it."""

    def __init__(self, attend: Attend, before: Callable[[Any], Any] = lambda x: x) -> None:
        super().__init__()
        self.layer, self.before = Own(attend), before
        self.after = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))

    def forward(self, x: Any) -> Any:
        return x + self.after(x + self.layer(self.before(x)))


# Digits -------------------------------------------------------------------------------------------


class Auto(Own):
    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


@ATTEND
def test_autocast_has_the_digits_that_attention_is_given(attend: Attend | None) -> None:
    found = inspected(lambda: Auto(attend))
    assert found.blamed == ()
    assert found.forward.known
    assert 1e-3 < found.forward.bound < 0.1
    assert (found.num_heads, found.head_dim) == (4, 16)
    assert set(found.weights) == {"query", "key", "value", "output"}
    assert found.weights["query"].low < LINEAR < found.weights["query"].high
    assert inspected(lambda: Own(attend)).forward.bound < 1e-5


def test_products_of_whole_numbers_have_no_digits() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        ones = torch.ones(2, 2, dtype=torch.int64)
        return by_hand(q * int((ones @ ones)[0, 0]) / 2, k, v)

    assert inspected(lambda: Own(attend)).forward.bound < 1e-5


def test_a_wrong_scale_shows_under_autocast() -> None:
    found = inspected(lambda: Auto(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1 / 16)))
    assert "scores times 1/head_dim, as in maximal-update parametrisation, not 1/sqrt(head_dim)" in told(found)


# Inputs and matrices ------------------------------------------------------------------------------


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(64, 64, 3, padding=1, groups=64)

    def forward(self, x: Any) -> Any:
        return self.conv(x.mT).mT


class Shifted(nn.Module):
    def __init__(self, kept: float) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: Any) -> Any:
        return self.kept * x + (1 - self.kept) * F.pad(x, (0, 0, 1, -1))


@pytest.mark.parametrize("mixing", [Convolved, lambda: Shifted(0.0), lambda: Shifted(0.5)])
def test_keys_of_several_positions_have_no_matrix(mixing: Make) -> None:
    found = inspected(lambda: Fed(to_keys=mixing()))
    assert told(found) == ["keys are dependent on inputs at other positions too: W_K unknown"]
    assert set(found.weights) == {"query", "value", "output"}
    with pytest.raises(ac.InputError, match="key_std=None: is unknown"):
        found.layer()


def test_what_takes_the_place_before_is_multiplied_by_no_number() -> None:
    said = "queries, keys and values are dependent on inputs at other positions too: W_Q, W_K and W_V unknown"
    assert told(inspected(lambda: Fed(to_all=Shifted(0.5)))) == [said]


class Times(nn.Module):
    def forward(self, x: Any) -> Any:
        return 8.0 * x


@ATTEND
def test_inputs_that_are_multiplied_are_no_wrong_scale(attend: Attend | None) -> None:
    found = inspected(lambda: Fed(to_all=Times(), attend=attend))
    assert "the inputs are multiplied by 8 before attention: W_Q, W_K and W_V include this factor" in told(found)
    assert found.blamed == ()
    found.require(query_std=8 * LINEAR, key_std=8 * LINEAR, value_std=8 * LINEAR, output_std=LINEAR)


def normalised() -> Any:
    made = Own()
    made.q = nn.utils.parametrizations.spectral_norm(made.q)
    return made


@pytest.mark.parametrize("seed", [100, 101])
def test_a_spectral_norm_belongs_to_the_matrix(seed: int) -> None:
    assert inspected(normalised, seed=seed).blamed == ()


def test_learned_queries_are_drawn() -> None:
    class Latents(Own):
        def __init__(self) -> None:
            super().__init__()
            self.latents = nn.Parameter(torch.randn(64))

        def forward(self, x: Any) -> Any:
            q = self.q(self.latents.expand_as(x))
            q, k, v = (a.unflatten(-1, (4, 16)).transpose(1, 2) for a in (q, self.k(x), self.v(x)))
            return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))

    found = inspected(Latents)
    assert found.blamed == ()
    assert "queries do not depend on the inputs: they are learned, or fixed by `call`" in told(found)
    assert "query" not in found.weights


@pytest.mark.parametrize("gate", [False, True])
def test_values_that_the_forward_pass_sets_to_zero(gate: bool) -> None:
    class Silent(Own):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.zeros(1)) if gate else 0.0
            self.attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, self.gate * v)

    found = inspected(Silent)
    text = "every entry of W_V is 0: no weight matrix is, but the forward pass multiplies values by 0"
    assert found.blamed == (() if gate else (text,))
    assert (f"{text}, or a parameter that starts at 0" in found.verdict) == gate


# Calls and paths that differ ----------------------------------------------------------------------


class Cached(Own):
    past: Any = None

    def forward(self, x: Any) -> Any:
        before = self.past if self.past is not None and self.past.shape == x.shape else torch.zeros_like(x)
        self.past = x + before
        return super().forward(x) + before


class Dropped(Own):
    def forward(self, x: Any) -> Any:
        return F.dropout(super().forward(x), 0.5, self.training)


def dropping() -> Any:
    return Own(lambda *qkv: F.scaled_dot_product_attention(*qkv, dropout_p=0.1))


@pytest.mark.parametrize(
    ("make", "path", "cause"),
    [
        (Cached, "eval", "a call changes the module's state"),
        (normalised, "train", "a call changes the module's state"),
        (Dropped, "train", "dropout"),
        (dropping, "eval", "dropout"),
    ],
)
def test_dropout_is_named_where_numbers_are_drawn(make: Make, path: str, cause: str) -> None:
    before = torch.get_rng_state()
    found, said = inspected(make), f"{path}: two calls on one input differ: {cause}"
    assert said in told(found)
    assert found.blamed == ((said,) if path == "eval" else ())
    assert torch.equal(before, torch.get_rng_state())


def test_a_training_path_that_raises_is_named() -> None:
    class Untrained(Own):
        def forward(self, x: Any) -> Any:
            if self.training:
                raise RuntimeError("no\ntraining")
            return super().forward(x)

    found = inspected(Untrained)
    assert (found.blamed, list(found.paths)) == ((), ["eval"])
    said = "if this is meant: train: call: failed on inputs of shape (3, 7, 64) with RuntimeError: no training"
    assert said in found.verdict


def test_a_path_that_scales_queries_has_the_same_scale() -> None:
    class TwoPaths(Own):
        def forward(self, x: Any) -> Any:
            def scaled(q: Any, k: Any, v: Any) -> Any:
                return 1.001 * ((q / 4 @ k.mT).softmax(-1) @ v)

            self.attend = scaled if self.training else F.scaled_dot_product_attention
            return super().forward(x)

    found = inspected(TwoPaths)
    assert found.blamed == ()
    assert found.paths["train"].scale == "1/sqrt(head_dim)"


def causal(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def next_too(q: Any, k: Any, v: Any) -> Any:
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(2)
    return (q @ k.mT / 4).masked_fill(hidden, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("right", [True, False])
def test_the_training_path_is_examined_without_dropout(right: bool) -> None:
    class Masked(Dropped):
        def forward(self, x: Any) -> Any:
            self.attend = next_too if self.training and not right else causal
            return super().forward(x)

    found = inspected(Masked)
    if right:
        assert told(found) == ["train: two calls on one input differ: dropout"]
    assert ("train: position i sees i + 1: the causal mask is off by one" in found.blamed) == (not right)


# What is wrong in a block is named first ----------------------------------------------------------


def chunks(x: Any) -> Any:
    return x if x.shape[1] < 32 else x + x.mean(1, keepdim=True)


def test_a_leak_at_large_lengths_is_named_first() -> None:
    said = "WRONG: outputs at position 0 change with inputs at position 64, despite the causal mask"
    assert first_line(lambda: Around(causal, chunks)).partition(" (and")[0] == said


def test_a_right_block_is_not_blamed() -> None:
    found = inspected(lambda: Around(causal))
    assert str(found).splitlines()[0].endswith("nothing wrong was found")


# What cannot be inspected -------------------------------------------------------------------------


def test_tokens_that_are_added_inside_are_said() -> None:
    class Token(Own):
        def forward(self, x: Any) -> Any:
            return super().forward(torch.cat([torch.ones_like(x[:, :1]), x], 1))[:, 1:]

    with pytest.raises(ac.InputError, match="has 4 rows for 3 positions, as if tokens or padding were added inside"):
        inspected(Token)


def test_compiled_modules() -> None:
    assert first_line(lambda: torch.compile(multi_head()())).endswith("was found")
    with pytest.raises(ac.InputError, match="is compiled, which hides"):
        inspected(lambda: torch.jit.script(nn.Linear(64, 64)))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_an_operation_that_cannot_be_watched_says_so() -> None:
    said = "call='flex_attention': is a single PyTorch operation, which cannot be inspected; .*test it by sampling"
    with pytest.raises(ac.InputError, match=said):
        inspected(lambda: Own(lambda q, k, v: flex_attention(q, k, v)))
