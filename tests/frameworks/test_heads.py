"""Odd heads, lines, draws and sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck.frameworks.laws import uneven

from .plain import Array, Plain, hidden, inspected, softmax, told

State = dict[str, Array]
LAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-(3**0.5), 3**0.5, shape),
    "orthogonal": lambda rng, shape: np.linalg.qr(rng.standard_normal(shape))[0] * shape[0] ** 0.5,
}


def larger(state: State) -> None:
    state["query"][:, 16:32] *= 1.3


def smaller(state: State) -> None:
    state["output"][48:] *= 0.5


def copied(state: State) -> None:
    state["key"][:, 32:48] = state["key"][:, :16]


def fixed(state: State) -> None:
    state["value"][:, :16] = np.random.default_rng(1).standard_normal((64, 16)) / 8


def zero(state: State) -> None:
    state["query"][:, 16:32] = 0.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (larger, "W_Q of head 1 has 1."),
        (smaller, "W_O of head 3 has 0."),
        (copied, "W_K is the same in heads 0 and 2"),
        (fixed, "W_V is the same in every draw in head 0: this initialiser does not draw it"),
        (zero, "W_Q of head 1 has 0 times the standard deviation of the other heads"),
    ],
)
def test_heads_that_differ_from_the_others(change: Callable[[State], None], said: str) -> None:
    blamed = inspected(changed=change, draws=8).blamed
    assert any(note.startswith(said) for note in blamed), blamed


def test_keys_that_are_tiled_and_values_that_are_repeated() -> None:
    found = inspected(kv=2, before=lambda q, k, v: (q, np.tile(k, (1, 2, 1, 1)), np.repeat(v, 2, 1)))
    assert found.blamed == (
        "W_K is the same in heads 0 and 2, and in heads 1 and 3",
        "W_V is the same in heads 0 and 1, and in heads 2 and 3",
    )


def test_modules_that_come_again() -> None:
    class Again(Plain):
        def make(self, seed: int) -> State:
            return super().make(seed % 3)

    (note,) = ac.inspect(Again(), 64).blamed
    assert note == "draw 3 repeats the W_Q, W_K, W_V, W_O of draw 0: draws are not independent"


@pytest.mark.parametrize("rank", [0, 4, 48])
def test_even_groups_are_hardly_ever_told_apart(rank: int) -> None:
    """Groups of independent entries, or heads of products of matrices, whose entries depend on each other."""
    rng = np.random.default_rng(rank)
    for draws, heads, size in ((2, 2, 1), (2, 64, 4), (8, 8, 8), (3, 4, 64)) if rank == 0 else ((2, 4, 16), (8, 4, 16)):
        for _ in range(1000 if rank == 0 else 100):
            if rank == 0:
                entries = rng.standard_normal((draws, heads, size))
            else:
                products = rng.standard_normal((draws, 64, rank)) @ rng.standard_normal((draws, rank, heads * size))
                entries = products.reshape(draws, 64, heads, size).swapaxes(1, 2).reshape(draws, heads, -1)
            squares, sizes = np.mean(entries**2, axis=-1), np.full(draws, entries.shape[-1])
            assert uneven(squares, sizes, entries) is None


@pytest.mark.parametrize("how", ["mixed", "over the batch"])
def test_sequences_that_meet(how: str) -> None:
    if how == "mixed":
        blamed = inspected(before=lambda q, k, v: (q, k[::-1], v)).blamed
    else:
        blamed = inspected(mapped=lambda p: softmax(p, 0)).blamed
    assert "outputs of a sequence depend on the other sequences of its batch" in blamed
    assert (how == "mixed") == (not any(note.startswith("softmax over an axis that is neither") for note in blamed))


@pytest.mark.parametrize(("heads", "said"), [(1, "heads have different masks"), (4, "position i sees i + 1")])
def test_masks_that_leak(heads: int, said: str) -> None:
    def leaking(p: Array) -> Array:
        causal, next_too = hidden(lambda behind: behind >= 0)(p), hidden(lambda behind: behind >= -1)(p)
        return np.concatenate([causal[:, : 4 - heads], next_too[:, 4 - heads :]], axis=1)

    found = inspected(masked=leaking)
    assert any(note.startswith(said) for note in told(found))
    assert found.forward.mask == ("other" if heads == 1 else "causal, off by one")
    with pytest.raises(AssertionError, match="mask is '"):
        found.require(mask="causal")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("shown", "mask"), [(lambda behind: behind >= 0, "causal"), (lambda behind: behind > -99, "none")]
)
def test_weights_of_sharp_heads_that_underflow_are_no_mask(shown: Any, mask: str, seed: int) -> None:
    def sharp(p: Array) -> Array:
        return hidden(shown)(p * np.array([1.0, 1.0, 30.0, 300.0])[:, None, None])

    found = inspected(masked=sharp, seed=seed)
    assert found.forward.mask == mask
    assert not any("mask" in note or "length" in note for note in told(found)), told(found)


@pytest.mark.parametrize("at", [lambda i, j: i * j, lambda i, j: i - j], ids=["by position", "by distance"])
def test_biases_of_scores_that_no_description_has(at: Any) -> None:
    def masked(p: Array) -> Array:
        i, j = np.ogrid[: p.shape[-2], : p.shape[-1]]
        return np.asarray(p + np.sin(at(i, j)))

    found = inspected(masked=masked)
    with pytest.raises(ac.InputError, match="a bias of scores that is neither by slopes nor a random table"):
        found.layer()


def test_outputs_of_another_width_are_told() -> None:
    assert told(inspected(after=lambda y, x: y[..., :5])) == ["outputs have 5 neurons, inputs 64"]


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
    def change(state: State) -> None:
        state[role][index] *= factor

    blamed = inspected(changed=change, draws=8).blamed
    (line,) = (each for each in blamed if "column" in each or "row" in each)
    assert line.startswith(said)
    # One odd column makes its head odd, too.
    assert all(f"{said[:3]} of head " in each for each in blamed if each != line)


def test_an_odd_head_is_no_odd_line() -> None:
    def change(state: State) -> None:
        state["query"][:, :16] *= 1.5
        state["output"][48:] *= 0.5

    assert [each[:17] for each in inspected(changed=change, draws=8).blamed] == [
        "W_Q of head 0 has",
        "W_O of head 3 has",
    ]


@pytest.mark.parametrize("law", LAWS)
def test_lines_of_right_layers_are_alike(law: str) -> None:
    for seed in range(4):
        assert inspected(draw=LAWS[law], draws=8, seed=1000 * seed).blamed == ()
