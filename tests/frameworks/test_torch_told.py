"""User-written torch layers: messages are true and name the cause."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck.frameworks.result import Inspection

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from .test_torch import Own, by_hand

Make = Callable[[], Any]


def inspected(make: Make, call: Any = None) -> Inspection:
    return ac.inspect(make, 64, call, draws=2)


def told(found: Inspection) -> list[str]:
    return [str(note) for note in found.notes]


class Fed(Own):
    """Attention with transformed inputs, or inputs of the keys only."""

    def __init__(self, to_all: Any = None, to_keys: Any = None, attend: Any = None) -> None:
        super().__init__(attend)
        self.to_all, self.to_keys = to_all or nn.Identity(), to_keys or nn.Identity()

    def forward(self, x: Any) -> Any:
        x = self.to_all(x)
        shape = *x.shape[:2], -1, x.shape[2] // 4
        given = (self.q, x), (self.k, self.to_keys(x)), (self.v, x)
        q, k, v = (m(each).view(shape).transpose(1, 2) for m, each in given)
        return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))


# A mask that is added ------------------------------------------------------------------------------


def added(bias: Callable[[int], Any], scores: bool) -> Make:
    def attend(q: Any, k: Any, v: Any) -> Any:
        mask = bias(q.shape[2])
        if not scores:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return (q @ k.mT / q.shape[-1] ** 0.5 + mask).softmax(-1) @ v

    return lambda: Own(attend)


@pytest.mark.parametrize("scores", [False, True], ids=["sdpa", "by hand"])
@pytest.mark.parametrize(
    ("bias", "said", "change"),
    [
        (lambda n: torch.ones(n, n).tril(), "the causal mask is added as 0 and 1", "lower by 1"),
        (lambda n: torch.ones(n, n).triu(1), "the causal mask is added as 1 and 0", "higher by 1"),
        (lambda n: 3.0 * torch.ones(n, n).tril(), "the causal mask is added as a number", "lower by 3"),
        (lambda n: torch.ones(n, n).triu(), "the anticausal mask is added as 0 and 1", "lower by 1"),
    ],
)
def test_a_mask_that_is_added_as_a_number(bias: Any, said: str, change: str, scores: bool) -> None:
    said += f": positions that it should hide get a score {change}"
    assert inspected(added(bias, scores)).blamed == (said,)


@pytest.mark.parametrize("scores", [False, True], ids=["sdpa", "by hand"])
@pytest.mark.parametrize("slope", [0.25, 1.0])
def test_a_bias_by_distance_is_no_mask(slope: float, scores: bool) -> None:
    def alibi(n: int) -> Any:
        at = torch.arange(n)
        return -slope * (at[:, None] - at).abs()

    found = inspected(added(alibi, scores))
    assert found.blamed == ()
    assert any(note.startswith(f"scores have a bias by distance, slope {slope:g}; ALiBi's are") for note in told(found))


@pytest.mark.parametrize("scores", [False, True], ids=["sdpa", "by hand"])
def test_a_learned_bias_of_positions_is_no_mask(scores: bool) -> None:
    held = torch.from_numpy(np.random.default_rng(0).standard_normal((65, 65)).astype(np.float32))
    assert inspected(added(lambda n: held[:n, :n], scores)).blamed == ()


@pytest.mark.parametrize("number", [-math.inf, -1e9, -30.0])
def test_a_mask_that_is_added_and_hides(number: float) -> None:
    found = inspected(added(lambda n: torch.full((n, n), number).triu(1), scores=False))
    assert found.blamed == ()
    assert found.forward.mask == "causal"


# Digits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attend", [None, by_hand], ids=["sdpa", "by hand"])
def test_autocast_has_the_digits_that_attention_is_given(attend: Any) -> None:
    class Auto(Own):
        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x).float()

    found = ac.inspect(lambda: Auto(attend), 64)
    assert found.blamed == ()
    assert found.forward.known
    assert 1e-3 < found.forward.bound < 0.1
    assert (found.num_heads, found.head_dim) == (4, 16)
    assert set(found.weights) == {"query", "key", "value", "output"}
    assert found.weights["query"].low < 3**-0.5 < found.weights["query"].high
    assert inspected(lambda: Own(attend)).forward.bound < 1e-5


def test_products_of_whole_numbers_have_no_digits() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        ones = torch.ones(2, 2, dtype=torch.int64)
        return by_hand(q * int((ones @ ones)[0, 0]) / 2, k, v)

    assert inspected(lambda: Own(attend)).forward.bound < 1e-5


def test_a_wrong_scale_shows_under_autocast() -> None:
    class Wrong(Own):
        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x).float()

    found = inspected(lambda: Wrong(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1 / 16)))
    assert "scores times 1/head_dim, as in maximal-update parametrisation, not 1/sqrt(head_dim)" in told(found)


# More than one position ----------------------------------------------------------------------------


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
        return self.kept * x + (1 - self.kept) * torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


@pytest.mark.parametrize("mixing", [Convolved, lambda: Shifted(0.0), lambda: Shifted(0.5)])
def test_keys_of_several_positions_have_no_matrix(mixing: Make) -> None:
    found = inspected(lambda: Fed(to_keys=mixing()))
    assert told(found) == ["keys are dependent on inputs at other positions too: W_K unknown"]
    assert set(found.weights) == {"query", "value", "output"}
    assert "theory: nothing: key_std=None: is unknown" in found.text(theory=True)


# Calls that differ ---------------------------------------------------------------------------------


class Cached(Own):
    past: Any = None

    def forward(self, x: Any) -> Any:
        before = self.past if self.past is not None and self.past.shape == x.shape else torch.zeros_like(x)
        self.past = x + before
        return super().forward(x) + before


def normalised() -> Any:
    made = Own()
    made.q = nn.utils.parametrizations.spectral_norm(made.q)
    return made


class Dropped(Own):
    def forward(self, x: Any) -> Any:
        return F.dropout(super().forward(x), 0.1, self.training)


@pytest.mark.parametrize(
    ("make", "path", "cause"),
    [
        (Cached, "eval", "a call changes the module's state"),
        (normalised, "train", "a call changes the module's state"),
        (Dropped, "train", "dropout"),
    ],
)
def test_dropout_is_named_where_numbers_are_drawn(make: Make, path: str, cause: str) -> None:
    before = torch.get_rng_state()
    assert f"{path}: two calls on one input differ: {cause}" in told(inspected(make))
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


# Scales --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attend", [None, by_hand], ids=["sdpa", "by hand"])
def test_inputs_that_are_multiplied_are_no_wrong_scale(attend: Any) -> None:
    class Times(nn.Module):
        def forward(self, x: Any) -> Any:
            return 8.0 * x

    found = ac.inspect(lambda: Fed(to_all=Times(), attend=attend), 64)
    said = "the inputs are multiplied by 8 before attention: W_Q, W_K and W_V include this factor"
    assert said in told(found)
    assert found.blamed == ()
    found.require(query_std=8 / 3**0.5, key_std=8 / 3**0.5, value_std=8 / 3**0.5, output_std=3**-0.5)


def test_queries_and_keys_that_are_multiplied_are_a_wrong_scale() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(8 * q, 8 * k, v)

    assert inspected(lambda: Own(attend)).blamed == ("scores times 16, not 1/sqrt(head_dim)",)


@pytest.mark.parametrize("sdpa", [True, False])
def test_one_number_with_two_names_has_both(sdpa: bool) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        if sdpa:
            return F.scaled_dot_product_attention(q, k, v, scale=0.5)
        return (q @ k.mT / 2).softmax(-1) @ v

    found = inspected(lambda: Own(attend))
    assert found.blamed == ("scores times 1/sqrt(heads) = head_dim**(-1/4), not 1/sqrt(head_dim)",)
    for name in ("1/sqrt(heads)", "head_dim**(-1/4)", 0.5):
        found.require(scale=name)
    with pytest.raises(AssertionError):
        found.require(scale="1")


def test_scores_over_head_dim_have_a_number_at_this_width() -> None:
    found = ac.inspect(lambda: Own(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1 / 16)), 64)
    theory = found.theory
    assert theory.score_variance == 0.0
    assert theory.score_variance_here == pytest.approx(1 / 9 / 16, rel=0.05)
    first, second = str(theory).splitlines()[:2]
    assert first.startswith("score variance 0.0069")
    assert first.endswith("at width 64, so softmax at temperature 12; 0 in the limit")
    assert second.endswith("(entropy 2.079 nats) in the limit")


# What is told --------------------------------------------------------------------------------------


def test_theory_is_among_what_is_told_as_json() -> None:
    found = ac.inspect(Own, 64)
    told = json.loads(json.dumps(found.to_dict(theory=True), allow_nan=False))["theory"]
    theory = found.theory
    for name in ("score_variance", "temperature", "entropy", "excess_kurtosis", "excess_kurtosis_here"):
        assert told[name] == getattr(theory, name)
    assert theory.distance is not None
    assert told["distance"]["value"] == theory.distance.value
    none = ac.inspect(lambda: Fed(to_keys=Convolved()), 64).to_dict(theory=True)["theory"]
    assert none["nothing"].startswith("key_std=None: is unknown")


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_an_operation_that_cannot_be_watched_says_so() -> None:
    said = "call='flex_attention': is a single PyTorch operation, which cannot be inspected; .*test it by sampling"
    with pytest.raises(ac.InputError, match=said):
        ac.inspect(lambda: Own(lambda q, k, v: flex_attention(q, k, v)), 64)
