"""Attention as people write it: what is right is not called wrong, and what is wrong is named first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import attncheck as ac

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
Attend = Callable[[Any, Any, Any], Any]


class Layer(nn.Module):  # type: ignore[name-defined]  # torch is imported if it is there
    """Four heads of 16 neurons; `attend` takes (B, H, L, d)."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64, bias=False) for _ in range(4))

    def forward(self, x: Any) -> Any:
        q, k, v = (part(x).unflatten(-1, (4, 16)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))


def told(attend: Attend) -> list[str]:
    found = ac.inspect(lambda: Layer(attend), width=64, draws=2)
    assert found.forward.known
    return [str(note) for note in found.notes]


def first_line(make: Callable[[], Any]) -> str:
    return str(ac.inspect(make, width=64, draws=2)).splitlines()[0]


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
    ("attend", "said"),
    [
        (null_key, ["attention sees a key beyond the positions: bias_k and bias_v, or add_zero_attn"]),
        (sink, ["softmax has one more score, a sink: 0.5"]),
        (capped, ["scores s are capped softly: 2·tanh(s/2)"]),
        (temperatures, ["heads have their own scales of scores: 0.25, 0.25, 0.5, 0.125", "scores times 0.281, not"]),
        (long_scale, ["the scale of scores depends on the length: 0.52 at 7 positions, 1.05 at 65"]),
    ],
    ids=["null key", "sink", "soft cap", "temperatures", "scale by length"],
)
def test_scores_of_many_kinds(attend: Attend, said: list[str]) -> None:
    notes = told(attend)
    assert len(notes) == len(said)
    assert all(note.startswith(start) for note, start in zip(notes, said, strict=True))


def test_a_causal_mask_with_a_null_key_is_causal() -> None:
    assert ac.inspect(lambda: Layer(null_key), width=64, draws=2).forward.mask == "causal"


def test_keys_of_another_length_are_refused() -> None:
    def pooled(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k[:, :, ::2], v[:, :, ::2])

    with pytest.raises(ac.InputError, match="are fewer than the positions"):
        told(pooled)


def test_tokens_that_are_added_inside_are_said() -> None:
    class Token(Layer):
        def forward(self, x: Any) -> Any:
            return super().forward(torch.cat([torch.ones_like(x[:, :1]), x], 1))[:, 1:]

    with pytest.raises(ac.InputError, match="has 4 rows for 3 positions, as if tokens or padding were added inside"):
        ac.inspect(lambda: Token(F.scaled_dot_product_attention), width=64)


def test_theory_says_what_it_assumes() -> None:
    found = ac.inspect(lambda: Around(causal), width=64, draws=2)
    assert "theory: W_O is not read: a variance of 1/fan_in is assumed" in found.text(theory=True)


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_spectral_norm_belongs_to_the_matrix(seed: int) -> None:
    def make() -> Any:
        layer = Layer(F.scaled_dot_product_attention)
        layer.q = nn.utils.parametrizations.spectral_norm(layer.q)
        return layer

    assert ac.inspect(make, width=64, draws=2, seed=seed).blamed == ()


def test_learned_queries_are_drawn() -> None:
    class Latents(Layer):
        def __init__(self) -> None:
            super().__init__(F.scaled_dot_product_attention)
            self.latents = nn.Parameter(torch.randn(64))

        def forward(self, x: Any) -> Any:
            q = self.q(self.latents.expand_as(x))
            q, k, v = (a.unflatten(-1, (4, 16)).transpose(1, 2) for a in (q, self.k(x), self.v(x)))
            return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))

    found = ac.inspect(Latents, width=64, draws=2)
    assert found.blamed == ()
    assert "queries do not depend on the inputs: they are learned, or fixed by `call`" in map(str, found.notes)
    assert "query" not in found.weights


def test_compiled_modules() -> None:
    assert first_line(lambda: torch.compile(nn.MultiheadAttention(64, 4, batch_first=True))).endswith("was found")
    with pytest.raises(ac.InputError, match="is compiled, which hides"):
        first_line(lambda: torch.jit.script(nn.Linear(64, 64)))


class Around(nn.Module):  # type: ignore[name-defined]  # torch is imported if it is there
    """A layer behind a function of the inputs, with a perceptron after it."""

    def __init__(self, attend: Attend, before: Callable[[Any], Any] = lambda x: x) -> None:
        super().__init__()
        self.layer, self.before = Layer(attend), before
        self.after = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))

    def forward(self, x: Any) -> Any:
        return x + self.after(x + self.layer(self.before(x)))


def causal(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def next_too(q: Any, k: Any, v: Any) -> Any:
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(2)
    return (q @ k.mT / 4).masked_fill(hidden, -torch.inf).softmax(-1) @ v


def unmerged(q: Any, k: Any, v: Any) -> Any:
    heads = F.scaled_dot_product_attention(q, k, v)
    return heads.reshape(len(q), -1, 4, 16).transpose(1, 2)


def inverted(q: Any, k: Any, v: Any) -> Any:
    shown = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    return (q @ k.mT / 4).masked_fill(shown, -1e9).softmax(-1) @ v


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Around(next_too), "WRONG: position i sees i + 1: the causal mask is off by one"),
        (lambda: Around(unmerged), "WRONG: heads are merged without a transpose, so that outputs mix positions"),
        (lambda: Around(inverted), "WRONG: position 6 attends to nothing, of 0 to 6"),
        (
            lambda: Around(causal, lambda x: x + x.mean(1, keepdim=True)),
            "WRONG: outputs at position 0 change with inputs at position 6, despite the causal mask",
        ),
        (
            lambda: Around(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5)),
            "WRONG: scores times 1/sqrt(heads) = head_dim**(-1/4), not 1/sqrt(head_dim)",
        ),
    ],
    ids=["off by one", "merge", "inverted", "leak", "scale"],
)
def test_what_is_wrong_in_a_block_is_named_first(make: Callable[[], Any], said: str) -> None:
    assert first_line(make).partition(" (and")[0] == said


def test_a_parameter_that_is_never_used() -> None:
    def make() -> Any:
        layer = Layer(causal)
        layer.idle = nn.Linear(8, 8)
        return layer

    said = "WRONG: idle.weight and idle.bias: never used, the outputs do not depend on them"
    assert first_line(make) == said


def test_a_causal_layer_that_leaks_at_long_lengths_only() -> None:
    def chunks(x: Any) -> Any:
        return x if x.shape[1] < 32 else x + x.mean(1, keepdim=True)

    assert first_line(lambda: Around(causal)).endswith("nothing wrong was found")
    assert "change with inputs at position" in first_line(lambda: Around(causal, chunks))


def test_a_path_that_scales_queries_has_the_same_scale() -> None:
    class TwoPaths(Layer):
        def forward(self, x: Any) -> Any:
            def by_hand(q: Any, k: Any, v: Any) -> Any:
                return 1.001 * ((q / 4 @ k.mT).softmax(-1) @ v)

            self.attend = by_hand if self.training else F.scaled_dot_product_attention
            return super().forward(x)

    found = ac.inspect(lambda: TwoPaths(causal), width=64, draws=2)
    assert found.blamed == ()
    assert found.paths["train"].scale == "1/sqrt(head_dim)"


def test_the_training_path_is_examined_without_dropout() -> None:
    class Dropped(Layer):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            return F.dropout(y, 0.5, self.training)

    def masks(train: Attend) -> Any:
        class Masked(Dropped):
            def forward(self, x: Any) -> Any:
                self.attend = train if self.training else causal
                return super().forward(x)

        return ac.inspect(lambda: Masked(causal), width=64, draws=2)

    right = masks(causal)
    assert right.blamed == ()
    assert [str(note) for note in right.notes] == ["train: two calls on one input differ: dropout"]
    assert "train: position i sees i + 1: the causal mask is off by one" in masks(next_too).blamed
