"""Odd heads, draws and sequences, and unusable input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import attncheck as ac  # noqa: E402
from attncheck.frameworks.laws import uneven  # noqa: E402

from .plain import Plain  # noqa: E402
from .torch_layers import Own, by_hand  # noqa: E402

F = torch.nn.functional
Change = Callable[[Any], None]


def changed(change: Change, attend: Any = None) -> Callable[[], Any]:
    """Return layers of four heads of 16 neurons, changed after the draw."""

    def make() -> Any:
        made = Own(attend)
        with torch.no_grad():
            change(made)
        return made

    return make


@pytest.mark.parametrize("attend", [None, by_hand], ids=["called", "by hand"])
def test_heads_that_differ_from_the_others(attend: Any) -> None:
    same = torch.randn(16, 64) / 14

    def larger(made: Any) -> None:
        made.q.weight[16:32] *= 1.3

    def smaller(made: Any) -> None:
        made.o.weight[:, 48:] *= 0.5

    def copied(made: Any) -> None:
        made.k.weight[32:48] = made.k.weight[:16]

    def fixed(made: Any) -> None:
        made.v.weight[:16] = same

    for change, said in (
        (larger, "W_Q of head 1 has 1."),
        (smaller, "W_O of head 3 has 0."),
        (copied, "W_K is the same in heads 0 and 2"),
        (fixed, "W_V is the same in every draw in head 0: this initialiser does not draw it"),
    ):
        told = ac.inspect(changed(change, attend), 64).blamed
        assert any(note.startswith(said) for note in told), (said, told)
    assert ac.inspect(changed(lambda made: None, attend), 64).blamed == ()


def test_keys_that_are_tiled_and_values_that_are_repeated() -> None:
    def mixed(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), v.repeat_interleave(2, 1))

    assert ac.inspect(lambda: Own(mixed, kv=2), 64).blamed == (
        "W_K is the same in heads 0 and 2, and in heads 1 and 3",
        "W_V is the same in heads 0 and 1, and in heads 2 and 3",
    )


def test_modules_that_come_again() -> None:
    made = [Own() for _ in range(3)]
    calls = iter(range(1000))
    (told,) = ac.inspect(lambda: made[next(calls) % 3], 64).blamed
    assert told == "draw 3 repeats the W_Q, W_K, W_V, W_O of draw 0: draws are not independent"


def test_products_of_matrices_with_a_head_that_is_zero() -> None:
    def zero(made: Any) -> None:
        made.q.weight[16:32] = 0.0

    told = ac.inspect(changed(zero, by_hand), 64).blamed
    assert "W_Q of head 1 has 0 times the standard deviation of the other heads" in told


@pytest.mark.sampled
@pytest.mark.parametrize("draws", [2, 8])
@pytest.mark.parametrize("rank", [4, 48])
def test_matrices_that_are_products_have_even_heads(rank: int, draws: int) -> None:
    def low(made: Any) -> None:
        made.k.weight.copy_(torch.randn(64, rank) @ torch.randn(rank, 64) / 8 / rank**0.5)

    for seed in range(0, 160, 8):
        assert ac.inspect(changed(low), 64, draws=draws, seed=seed).blamed == ()


def test_even_groups_are_hardly_ever_told_apart() -> None:
    rng = np.random.default_rng(0)
    for draws, heads, size in ((2, 2, 1), (2, 64, 4), (8, 8, 8), (3, 4, 64)):
        for _ in range(1000):
            entries = rng.standard_normal((draws, heads, size))
            assert uneven(np.mean(entries**2, axis=-1), np.full(draws, size), entries) is None


@pytest.mark.parametrize("how", ["mixed", "over the batch"])
def test_sequences_that_meet(how: str) -> None:
    def mixed(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k.flip(0), v)

    def over(q: Any, k: Any, v: Any) -> Any:
        return (q @ k.mT / 4).softmax(0) @ v

    told = ac.inspect(lambda: Own(mixed if how == "mixed" else over), 64).blamed
    assert "outputs of a sequence depend on the other sequences of its batch" in told
    assert (how == "mixed") == (not any(note.startswith("softmax over an axis that is neither") for note in told))


def hidden(length: int, heads: int) -> Any:
    """Return a causal mask that shows the next position in the last heads."""
    mask = torch.ones(length, length, dtype=torch.bool).triu(1).expand(4, length, length).clone()
    mask[4 - heads :] = torch.ones(length, length, dtype=torch.bool).triu(2)
    return mask


@pytest.mark.parametrize(("heads", "said"), [(1, "heads have different masks"), (4, "position i sees i + 1")])
def test_masks_by_hand_that_leak(heads: int, said: str) -> None:
    def leaking(q: Any, k: Any, v: Any) -> Any:
        return (q @ k.mT / 4).masked_fill(hidden(q.shape[2], heads), float("-inf")).softmax(-1) @ v

    found = ac.inspect(lambda: Own(leaking), 64)
    assert any(str(note).startswith(said) for note in found.notes)
    assert found.forward.mask == ("other" if heads == 1 else "causal, off by one")
    with pytest.raises(AssertionError, match="mask is '"):
        found.require(mask="causal")


def test_scores_and_keys_that_no_description_has() -> None:
    def by_position(q: Any, k: Any, v: Any) -> Any:
        at = torch.arange(q.shape[2]).float()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.sin(at[:, None] * at))

    def by_distance(q: Any, k: Any, v: Any) -> Any:
        at = torch.arange(q.shape[2]).float()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.sin(at[:, None] - at))

    def extra() -> Any:
        return torch.nn.MultiheadAttention(64, 4, batch_first=True, add_zero_attn=True)

    for make, what in (
        (lambda: Own(by_position), "a bias of scores that is neither by slopes nor a random table"),
        (lambda: Own(by_distance), "a bias of scores that is neither by slopes nor a random table"),
        (extra, "keys beyond the positions"),
    ):
        found = ac.inspect(make, 64)
        with pytest.raises(ac.InputError, match=what):
            found.layer()
        assert "theory: nothing: forward='softmax': comes with " in found.text(theory=True)


class Cut(torch.nn.Module):  # type: ignore[name-defined]
    def __init__(self, after: Any) -> None:
        super().__init__()
        self.inner, self.after = Own(), after

    def forward(self, x: Any) -> Any:
        return self.after(self.inner(x))


def test_outputs_of_another_width_are_told() -> None:
    notes = [str(note) for note in ac.inspect(lambda: Cut(lambda y: y[..., :5]), 64).notes]
    assert notes == ["outputs have 5 neurons, inputs 64"]


@pytest.mark.parametrize(
    ("make", "width", "said"),
    [
        (lambda: Cut(lambda y: None), 64, "call=None: is not an output array; return the outputs"),
        (
            lambda: torch.nn.Linear(64, 64, device="meta"),
            64,
            "make=.*meta.*: is a device that holds no numbers; make the module",
        ),
        (lambda: Own(), 10**9, "width=1000000000: must be at most 1048576; pass the number of input neurons"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(make: Any, width: int, said: str) -> None:
    with pytest.raises(ac.InputError, match=said) as caught:
        ac.inspect(make, width)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("role", "index", "factor", "said"),
    [
        ("output", (3,), 0.0, "W_O: row 3 is 0 in every draw"),
        ("output", (slice(None), 5), 0.0, "W_O: column 5 is 0 in every draw"),
        ("key", (slice(None), 20), 3.0, "W_K: column 20 has "),
        ("query", (9,), 0.25, "W_Q: row 9 has 0.2"),
    ],
)
def test_a_line_that_is_not_drawn_like_the_others_is_blamed(role: str, index: Any, factor: float, said: str) -> None:
    def change(state: dict[str, Any]) -> None:
        state[role][index] *= factor

    blamed = ac.inspect(Plain(changed=change), width=64).blamed
    (line,) = (each for each in blamed if "column" in each or "row" in each)
    assert line.startswith(said)
    # One odd column makes its head odd, too.
    assert all(f"{said[:3]} of head " in each for each in blamed if each != line)


def test_an_odd_head_is_no_odd_line() -> None:
    def change(state: dict[str, Any]) -> None:
        state["query"][:, :16] *= 1.5
        state["output"][48:] *= 0.5

    blamed = ac.inspect(Plain(changed=change), width=64).blamed
    assert [each[:17] for each in blamed] == ["W_Q of head 0 has", "W_O of head 3 has"]


@pytest.mark.parametrize("draw", ["normal", "uniform", "orthogonal"])
def test_lines_of_right_layers_are_alike(draw: str) -> None:
    laws: dict[str, Any] = {
        "normal": lambda rng, shape: rng.standard_normal(shape),
        "uniform": lambda rng, shape: rng.uniform(-(3**0.5), 3**0.5, shape),
        "orthogonal": lambda rng, shape: np.linalg.qr(rng.standard_normal(shape))[0] * shape[0] ** 0.5,
    }
    for seed in range(8):
        found = ac.inspect(Plain(draw=laws[draw]), width=64, seed=1000 * seed)
        assert found.blamed == ()
