"""Masks, biases and scores of PyTorch layers: what is right is not called wrong, what is wrong is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attncheck as ac

pytest.importorskip("torch")

import torch
import torch.nn.functional as F

from .torch_layers import Attend, Own, inspected, told

PATHS = pytest.mark.parametrize("scores", [False, True], ids=["sdpa", "by hand"])


def added(bias: Callable[[int], Any], scores: bool) -> Attend:
    """Return attention with a bias, which PyTorch's function or hand-written scores get."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        mask = bias(q.shape[2])
        if not scores:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return (q @ k.mT / q.shape[-1] ** 0.5 + mask).softmax(-1) @ v

    return attend


def filled(number: float) -> Attend:
    """Return attention that sets scores of later positions to a number."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        behind = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        return (q @ k.mT / 4).masked_fill(behind, number).softmax(-1) @ v

    return attend


def distances(length: int) -> Any:
    at = torch.arange(length)
    return (at[:, None] - at).abs().float()


# Masks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0.0, ("scores hidden by the causal mask are 0, not -inf",)),
        (-9.0, ("scores hidden by the causal mask are -9, not -inf",)),
        (-100.0, ()),
        (-math.inf, ()),
    ],
)
def test_a_mask_by_hand_that_hides_nothing(number: float, said: tuple[str, ...]) -> None:
    assert inspected(lambda: Own(filled(number))).blamed == said


@pytest.mark.parametrize(
    ("bias", "said", "change", "scores"),
    [
        (lambda n: torch.ones(n, n).tril(), "the causal mask is added as 0 and 1", "lower by 1", False),
        (lambda n: torch.ones(n, n).tril(), "the causal mask is added as 0 and 1", "lower by 1", True),
        (lambda n: torch.ones(n, n).triu(1), "the causal mask is added as 1 and 0", "higher by 1", False),
        (lambda n: 3.0 * torch.ones(n, n).tril(), "the causal mask is added as a number", "lower by 3", False),
        (lambda n: torch.ones(n, n).triu(), "the anticausal mask is added as 0 and 1", "lower by 1", True),
    ],
)
def test_a_mask_that_is_added_as_a_number(bias: Any, said: str, change: str, scores: bool) -> None:
    said += f": positions that it should hide get a score {change}"
    assert inspected(lambda: Own(added(bias, scores))).blamed == (said,)


@pytest.mark.parametrize("number", [-math.inf, -30.0])
def test_a_mask_that_is_added_and_hides(number: float) -> None:
    found = inspected(lambda: Own(added(lambda n: torch.full((n, n), number).triu(1), scores=True)))
    assert found.blamed == ()
    assert found.forward.mask == "causal"


@PATHS
def test_a_bias_by_distance_is_no_mask(scores: bool) -> None:
    found = inspected(lambda: Own(added(lambda n: -distances(n), scores)))
    assert found.blamed == ()
    assert told(found) == ["scores have a bias by distance, slope 1; ALiBi's are 0.25, 0.0625, 0.0156, 0.00391"]
    assert "no mask, scores times 1/sqrt(head_dim), slope 1; equal" in str(found)


@PATHS
def test_a_learned_bias_of_positions_is_no_mask(scores: bool) -> None:
    held = torch.from_numpy(np.random.default_rng(0).standard_normal((65, 65)).astype(np.float32))
    assert inspected(lambda: Own(added(lambda n: held[:n, :n], scores))).blamed == ()


# Scores -------------------------------------------------------------------------------------------


def null_key(q: Any, k: Any, v: Any) -> Any:
    nothing = torch.zeros_like(k[:, :, :1])
    shown = torch.cat([torch.ones(len(q[0, 0]), 1), torch.ones(len(q[0, 0]), len(q[0, 0])).tril()], 1).bool()
    k, v = (torch.cat([nothing, a], 2) for a in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=shown)


def sink(q: Any, k: Any, v: Any) -> Any:
    p = q @ k.mT / 4
    return torch.cat([p, torch.full_like(p[..., :1], 0.5)], -1).softmax(-1)[..., :-1] @ v


def capped(q: Any, k: Any, v: Any) -> Any:
    return (2 * torch.tanh(q @ k.mT / 8)).softmax(-1) @ v


def long_scale(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT / 4 * math.log(1 + q.shape[2])).softmax(-1) @ v


def temperatures(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT * torch.tensor([0.25, 0.25, 0.5, 0.125])[:, None, None]).softmax(-1) @ v


@pytest.mark.parametrize(
    ("attend", "mask", "said"),
    [
        (null_key, "causal", ["attention sees a key beyond the positions: bias_k and bias_v, or add_zero_attn"]),
        (sink, "none", ["softmax has one more score, a sink: 0.5"]),
        (capped, "none", ["scores s are capped softly: 2·tanh(s/2)"]),
        (
            temperatures,
            "none",
            ["heads have their own scales of scores: 0.25, 0.25, 0.5, 0.125", "scores times 0.281, not"],
        ),
        (long_scale, "none", ["the scale of scores depends on the length: 0.52 at 7 positions, 1.05 at 65"]),
    ],
    ids=["null key", "sink", "soft cap", "temperatures", "scale by length"],
)
def test_scores_of_many_kinds(attend: Attend, mask: str, said: list[str]) -> None:
    found = inspected(lambda: Own(attend))
    assert found.forward.known
    assert found.forward.mask == mask
    assert all(note.startswith(start) for note, start in zip(told(found), said, strict=True))


@pytest.mark.parametrize("sdpa", [True, False])
def test_one_number_with_two_names_has_both(sdpa: bool) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        if sdpa:
            return F.scaled_dot_product_attention(q, k, v, scale=0.5)
        return (q @ k.mT / 2).softmax(-1) @ v

    found = inspected(lambda: Own(attend))
    assert found.blamed == ("scores times 1/sqrt(heads) = head_dim**(-1/4), not 1/sqrt(head_dim)",)
    assert found.forward.factor == pytest.approx(0.5, rel=1e-3)
    for name in ("1/sqrt(heads)", "head_dim**(-1/4)", 0.5):
        found.require(scale=name)
    with pytest.raises(AssertionError):
        found.require(scale="1")


def test_queries_that_are_scaled_beforehand() -> None:
    def scaled(of_q: float, of_k: float, scale: float | None = None) -> Attend:
        return lambda q, k, v: F.scaled_dot_product_attention(of_q * q, of_k * k, v, scale=scale)

    for right in (scaled(1 / 4, 1.0, 1.0), scaled(1 / 2, 1 / 2, 1.0)):
        found = inspected(lambda right=right: Own(right))
        assert found.blamed == ()
        found.require(scale="1/sqrt(head_dim)", query_std=3**-0.5, key_std=3**-0.5)
    twice = inspected(lambda: Own(scaled(1 / 4, 1.0)))
    assert twice.blamed == ()
    assert "scores times 1/head_dim, as in maximal-update parametrisation, not 1/sqrt(head_dim)" in told(twice)
    assert "queries are multiplied by 0.25 before attention: scores times 1/head_dim in all" in told(twice)
    assert inspected(lambda: Own(scaled(8.0, 8.0))).blamed == ("scores times 16, not 1/sqrt(head_dim)",)


# Keys ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [2, 1], ids=["positions", "heads"])
def test_rotary_angles_by_head(axis: int) -> None:
    def turned(a: Any) -> Any:
        angles = (torch.arange(a.shape[axis])[:, None] * 1e4 ** (-torch.arange(8) / 8)).repeat(1, 2)
        angles = angles if axis == 2 else angles[:, None]
        one, other = a.chunk(2, -1)
        return a * angles.cos() + torch.cat([-other, one], -1) * angles.sin()

    found = inspected(lambda: Own(lambda q, k, v: F.scaled_dot_product_attention(turned(q), turned(k), v)))
    wrong = "queries and keys are rotated in the same way at every position, by angles that depend on the head"
    assert found.blamed == ((wrong,) if axis == 1 else ())
    assert found.forward.known
    assert ("queries and keys are rotated by position: rotary positions" in told(found)) == (axis == 2)


def test_keys_of_another_length_are_refused() -> None:
    def pooled(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k[:, :, ::2], v[:, :, ::2])

    with pytest.raises(ac.InputError, match="are fewer than the positions"):
        inspected(lambda: Own(pooled))
