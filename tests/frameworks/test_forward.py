"""Forward pass: every change to a right layer is named, and right layers pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck.frameworks.trace import Trace
from attncheck.frameworks.views import AttentionView

from .plain import CAUSAL, Array, Plain, hidden, inspected, softmax, told

# Right layers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [lambda p: p, CAUSAL], ids=["none", "causal"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("width", "heads", "kv", "head_dim"), [(64, 4, 4, 16), (48, 3, 1, 16), (16, 4, 2, 4)])
def test_a_right_layer_is_the_formula(width: int, heads: int, kv: int, head_dim: int, dtype: Any, masked: Any) -> None:
    found = inspected(width=width, heads=heads, kv=kv, head_dim=head_dim, dtype=dtype, masked=masked)
    assert found.forward.known
    assert found.forward.bound < 0.03
    mask = "none" if masked is not CAUSAL else "causal"
    assert (found.forward.map, found.forward.mask, found.forward.scale) == ("softmax", mask, "1/sqrt(head_dim)")
    assert (found.num_heads, found.kv_heads, found.head_dim) == (heads, kv, head_dim)
    assert found.notes == ()


@pytest.mark.parametrize("width", [1, 2, 3, 63])
def test_odd_widths(width: int) -> None:
    found = inspected(width=width, heads=1, kv=1, head_dim=width)
    assert found.forward.known
    assert found.blamed == ()


# Scales, masks and maps ---------------------------------------------------------------------------

FACTORS = {
    "1/head_dim": 1 / 16,
    "1/sqrt(width)": 1 / 8,
    "1": 1.0,
    "1/width": 1 / 64,
    "0.3": 0.3,
}


@pytest.mark.parametrize(("name", "factor"), FACTORS.items(), ids=list(FACTORS))
def test_another_scale_is_named(name: str, factor: float) -> None:
    found = inspected(factor=factor)
    assert found.forward.known
    assert found.forward.scale == name
    assert found.forward.factor == pytest.approx(factor, rel=1e-4)
    if name == "1/head_dim":
        assert told(found) == ["scores times 1/head_dim, as in maximal-update parametrisation, not 1/sqrt(head_dim)"]
    else:
        assert f"scores times {name}, not 1/sqrt(head_dim)" in found.blamed


MASKS = {
    "window of 3": lambda behind: (behind >= 0) & (behind < 3),
    "two-sided window of 2": lambda behind: np.abs(behind) < 2,
    "window of 16": lambda behind: (behind >= 0) & (behind < 16),
    "window of 40": lambda behind: (behind >= 0) & (behind < 40),
    "two-sided window of 9": lambda behind: np.abs(behind) < 9,
}


@pytest.mark.parametrize(("name", "shown"), MASKS.items(), ids=list(MASKS))
def test_another_mask_is_named(name: str, shown: Any) -> None:
    found = inspected(masked=hidden(shown))
    assert found.forward.known
    assert found.forward.mask == name
    assert found.notes[0].text == f"the mask is neither none nor causal: {name}"
    found.require(mask=name)


@pytest.mark.parametrize(("name", "last"), [("anticausal", 0), ("strictly anticausal", -1)])
def test_a_mask_of_earlier_positions_is_asked_about(name: str, last: int) -> None:
    found = inspected(masked=hidden(lambda behind: behind <= last))
    assert found.forward.mask == name
    asked = f"the mask is {name}, so that positions see later ones and no earlier ones: is it transposed?"
    assert asked in [str(note) for note in found.notes if note.level == "asks"]
    assert asked not in [str(note) for note in found.expecting(f"mask={name}").notes if note.level == "asks"]


def causal_and(more: Callable[[Array, Array], Array]) -> Callable[[Array], Array]:
    """Return a mask of scores that hides later positions but for those that `more`, of (i, j), shows."""

    def masked(p: Array) -> Array:
        i, j = np.ogrid[: p.shape[-2], : p.shape[-1]]
        return np.where((j <= i) | more(i, j), p, -np.inf)

    return masked


ROUNDED = {
    "prefix": lambda i, j: (i < 3) & (j < 3),
    "blocks": lambda i, j: i // 2 == j // 2,
    "global first position": lambda i, j: i == 0,
}


@pytest.mark.parametrize("more", ROUNDED.values(), ids=list(ROUNDED))
def test_prefixes_and_blocks_that_see_each_other_are_no_mistake(more: Any) -> None:
    assert inspected(masked=causal_and(more)).blamed == ()


MAPS = {
    "softmax over the query axis": lambda p: softmax(p, -2),
    "softmax over the heads": lambda p: softmax(p, 1),
    "linear": lambda p: p,
    "relu": lambda p: np.maximum(p, 0) / p.shape[-1],
    "sigmoid": lambda p: 1 / (1 + np.exp(-p + 1.5)),
}


@pytest.mark.parametrize(("name", "mapped"), MAPS.items(), ids=list(MAPS))
def test_another_map_is_named(name: str, mapped: Any) -> None:
    found = inspected(mapped=mapped)
    assert found.forward.map == name
    assert found.forward.known
    assert any(name in text for text in found.blamed)


def test_an_unknown_map_is_no_known_formula() -> None:
    found = inspected(mapped=lambda p: softmax(np.sin(3 * p) * 3))
    assert not found.forward.known
    assert "not those of a known formula" in told(found)[0]


# What attention gets ------------------------------------------------------------------------------


def turn(a: Array, base: float = 100.0, steps: float = 1.0, halves: bool = False) -> Array:
    angle = steps * np.arange(a.shape[2])[:, None] * base ** (-np.arange(0, a.shape[3], 2) / a.shape[3])
    even, odd = np.split(a, 2, axis=-1) if halves else (a[..., ::2], a[..., 1::2])
    turned = even * np.cos(angle) - odd * np.sin(angle), even * np.sin(angle) + odd * np.cos(angle)
    return np.concatenate(turned, axis=-1) if halves else np.stack(turned, axis=-1).reshape(a.shape)


def rotated(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    return turn(q), turn(k), v


def normalised(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    q, k = (a / np.sqrt(np.mean(a**2, axis=-1, keepdims=True) + 1e-6) for a in (q, k))
    return q, k, v


def layer_norm(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + 1e-5))


def rms_norm(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray((wide / np.sqrt(np.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(x.dtype))


def test_rotary_positions() -> None:
    found = inspected(before=rotated)
    assert told(found) == ["queries and keys are rotated by position: rotary positions"]
    assert set(found.weights) == {"query", "key", "value", "output"}
    assert found.forward.known
    assert (found.forward.positions, found.forward.rotary_base) == ("rotary", 100.0)
    assert "rotary positions (base 100)" in str(found)
    found.require(positions="rotary", rotary_base=100)
    with pytest.raises(AssertionError, match="positions is 'none', not 'rotary'"):
        inspected().require(positions="rotary")


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize(("dtype", "base"), [(np.float32, 1e4), (np.float64, 5e5), (np.float64, 123.25)])
@pytest.mark.parametrize("steps", [1.0, -1.0])
def test_the_base_is_read_off_whatever_the_planes_are(halves: bool, dtype: Any, base: float, steps: float) -> None:
    def before(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        return turn(q, base, steps, halves), turn(k, base, steps, halves), v

    found = inspected(before=before, dtype=dtype)
    assert found.forward.rotary_base == pytest.approx(base, rel=1e-9)
    assert found.layer().rotary_base == found.forward.rotary_base
    assert isinstance(found.view, AttentionView)
    assert found.view.rotation is not None
    assert (found.view.rotation.halves, found.view.rotation.sign) == (halves, steps)


@pytest.mark.parametrize(
    ("before", "said", "blames"),
    [
        (lambda q, k, v: (turn(q), turn(k, steps=-1.0), v), "opposite ways: scores depend on sums of positions", True),
        (lambda q, k, v: (turn(q), turn(k, base=50.0), v), "rotated by different angles", True),
        (lambda q, k, v: (turn(q), k, v), "only one of queries and keys is rotated", True),
        (lambda q, k, v: (turn(q, steps=2.0), turn(k, steps=2.0), v), "are not powers of one base", False),
    ],
)
def test_wrong_rotations_are_told_and_described_by_no_layer(before: Any, said: str, blames: bool) -> None:
    found = inspected(before=before)
    assert said in str(found)
    assert bool(found.blamed) == blames
    assert (found.forward.positions, found.forward.rotary_base) == ("other", None)
    with pytest.raises(ac.InputError, match="positions='other'"):
        found.layer()
    assert found.layer(rotary_base=None).rotary_base is None


@pytest.mark.parametrize(("name", "normed"), [("layer norm", layer_norm), ("RMS norm", rms_norm)])
def test_a_norm_before_and_a_residual(name: str, normed: Any) -> None:
    found = inspected(normed=normed, after=lambda y, x: y + x)
    assert told(found) == [
        f"the inputs are normalised before attention: {name}",
        "a residual path: the outputs include the inputs",
    ]
    assert found.forward.known
    found.require(query_std=1.0, key_std=1.0, value_std=1.0, output_std=1.0, query_law="normal", value_law="normal")


def test_tiled_groups() -> None:
    def tiled(a: Array, times: int) -> Array:
        return np.tile(a, (1, times, 1, 1))

    assert told(inspected(kv=2, spread=tiled)) == ["KV heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)"]
    beforehand = inspected(kv=2, before=lambda q, k, v: (q, tiled(k, 2), tiled(v, 2)))
    assert [str(note) for note in beforehand.notes if note.level == "asks"] == [
        "KV heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)"
    ]
    assert beforehand.kv_heads == 2
    assert inspected(kv=2, before=lambda q, k, v: (q, np.repeat(k, 2, 1), np.repeat(v, 2, 1))).notes == ()


def test_queries_that_are_scaled_beforehand() -> None:
    once = inspected(before=lambda q, k, v: (q / 4, k, v), factor=1.0)
    assert told(once) == ["scores times 1: 1/sqrt(head_dim) is in W_Q's initialisation"]
    twice = inspected(before=lambda q, k, v: (q / 4, k, v))
    assert "1/head_dim in all" in "; ".join(twice.blamed)


def test_no_output_matrix_and_an_output_of_zeros() -> None:
    def one(state: dict[str, Array]) -> None:
        state["output"] = np.eye(64, dtype=np.float32)

    def zero(state: dict[str, Array]) -> None:
        state["output"] = np.zeros((64, 64), dtype=np.float32)

    none = inspected(changed=one)
    assert told(none) == ["heads are concatenated and returned: there is no W_O"]
    assert "output" not in none.weights
    nothing = inspected(changed=zero)
    assert nothing.weights["output"].law == "constant"
    assert nothing.forward.known


def test_nothing_to_watch() -> None:
    class Unseen(Plain):
        def run(self, state: Any, x: Array, trace: Trace, path: str = "") -> Array:
            return super().run(state, x, Trace())

    with pytest.raises(ac.InputError, match="test it by sampling"):
        ac.inspect(Unseen(), width=64)


def alibi(p: Array) -> Array:
    far = np.arange(p.shape[-2])[:, None] - np.arange(p.shape[-1])
    return np.asarray(p - 0.4 * np.abs(far) * np.arange(1, p.shape[1] + 1)[:, None, None])


#: Changes of a layer, the only note on them, and whether it is an error.
CHANGES: dict[str, tuple[dict[str, Any], str, bool]] = {
    "ALiBi": (
        {"masked": alibi},
        "scores have a bias by distance, slopes 0.4, 0.8, 1.2, 1.6; ALiBi's are 0.25, 0.0625, 0.0156, 0.00391",
        False,
    ),
    "gap": (
        {"masked": causal_and(lambda i, j: (i == 0) & (j == 3))},
        "the mask is causal, except that position 0 sees 3",
        True,
    ),
    "long mask": (
        {"masked": hidden(lambda behind: (behind >= 0) & ((behind < 10) | (behind % 4 == 0)))},
        "the mask is neither none nor causal: other",
        False,
    ),
    "normalised": ({"before": normalised}, "queries and keys are normalised: W_Q and W_K unknown", False),
    "norm after": (
        {"after": lambda y, x: layer_norm(y + x)},
        "the outputs are normalised: W_O is not read",
        False,
    ),
    "after": ({"after": lambda y, x: y + np.tanh(y)}, "what follows attention is not linear: W_O is not read", False),
    "split": (
        {"split": lambda a, heads: a.reshape(len(a), heads, a.shape[1], -1)},
        "queries, keys and values are reshaped to heads without a transpose, so that heads hold positions",
        True,
    ),
    "merged": (
        {"merge": lambda o: o.reshape(o.shape[0], o.shape[2], -1)},
        "heads are merged without a transpose, so that outputs mix positions",
        True,
    ),
    "over heads": (
        {
            "split": lambda a, heads: a.reshape(*a.shape[:2], heads, -1),
            "merge": lambda o: o.reshape(*o.shape[:2], -1),
        },
        "attends over the heads of one position, not over positions: queries are (batch, positions, heads, head_dim)",
        True,
    ),
}


@pytest.mark.parametrize(("changes", "said", "blames"), CHANGES.values(), ids=list(CHANGES))
def test_a_changed_layer_is_told_in_one_note(changes: dict[str, Any], said: str, blames: bool) -> None:
    found = inspected(**changes)
    assert told(found) == [said]
    assert bool(found.blamed) == blames
    assert found.forward.known
    unread = {role for role in ("query", "key", "value", "output") if f"W_{role[0].upper()}" in said}
    assert found.weights.keys() == {"query", "key", "value", "output"} - unread


# Errors -------------------------------------------------------------------------------------------


def wrong(**changes: Any) -> str:
    with pytest.raises(ac.InputError) as error:
        inspected(**changes)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_fails_says_so_in_a_sentence() -> None:
    def failing(x: Array) -> Array:
        raise RuntimeError("no kernel\nfor this")

    def nan(state: dict[str, Array]) -> None:
        state["key"][0, 0] = np.nan

    assert "call: failed on inputs of shape (2, 2, 64) with RuntimeError: no kernel for this" in wrong(normed=failing)
    assert wrong(changed=nan).startswith("key=nan: ")
    assert "is the output shape" in wrong(after=lambda y, x: y[0])
    assert "cross-attention" in wrong(
        before=lambda q, k, v: (q, np.ones((len(q), 4, 5, 16)), np.ones((len(q), 4, 5, 16)))
    )


@pytest.mark.parametrize("given", [{"width": 0}, {"width": 64, "draws": 0}, {"width": 64, "seed": -1}])
def test_bad_arguments(given: Any) -> None:
    with pytest.raises(ac.InputError):
        ac.inspect(Plain(), **given)


def softmax_of_some(p: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return softmax(p)


def test_positions_that_attend_to_nothing() -> None:
    def strict(p: Array) -> Array:
        return hidden(lambda behind: behind > 0)(p)

    def guarded(p: Array) -> Array:
        return np.nan_to_num(softmax_of_some(p))

    assert inspected(masked=strict, mapped=softmax_of_some).blamed == (
        "position 0 attends to nothing, of 0 to 6",
        "outputs are NaN or infinite at positions 0",
    )
    found = inspected(masked=strict, mapped=guarded)
    assert found.forward.mask == "strictly causal"
    assert found.forward.known
    assert found.blamed == ("position 0 attends to nothing, of 0 to 6",)


def nan_beyond(length: int, a: Array) -> Array:
    return a * np.nan if a.shape[-2] > length else a


@pytest.mark.parametrize("masked", [lambda p: p, CAUSAL], ids=["none", "causal"])
def test_outputs_that_are_nan_at_large_lengths_only(masked: Any) -> None:
    outputs = inspected(masked=masked, after=lambda y, x: nan_beyond(20, y))
    keys = inspected(masked=masked, before=lambda q, k, v: (q, nan_beyond(20, k), v))
    told = "are NaN or infinite at length 65, although they are finite at length 7"
    assert (outputs.blamed, keys.blamed) == ((f"outputs {told}",), (f"keys and outputs {told}",))


def test_weights_that_are_all_nan_are_no_mask() -> None:
    found = inspected(mapped=lambda p: p * np.nan)
    assert found.blamed[0] == "all attention weights are NaN or infinite"
    assert not any("to nothing" in note or "mask" in note for note in told(found))


def test_a_mask_without_a_name_is_no_unknown_formula() -> None:
    def all_but(last: int) -> Any:
        return lambda p: np.where(np.arange(p.shape[-1]) < p.shape[-1] - last, p, -np.inf)

    found = inspected(masked=all_but(2))
    assert (found.forward.known, found.forward.map, found.forward.mask) == (True, "softmax", "other")
    said = ["nothing attends to positions 5 and 6, of 0 to 6", "the mask is neither none nor causal: other"]
    assert told(found) == said
    assert found.forward.error < 1e-6
    with pytest.raises(AssertionError, match="mask is 'other', not 'none'"):
        found.require(mask="none")
    assert not inspected(mapped=lambda p: np.tril(softmax(p))).forward.known


def test_a_boolean_mask_that_is_taken_for_its_opposite() -> None:
    found = inspected(masked=hidden(lambda behind: behind < 0), mapped=lambda p: np.nan_to_num(softmax_of_some(p)))
    assert found.forward.mask == "strictly anticausal"
    assert found.blamed == ("position 6 attends to nothing, of 0 to 6",)


def test_a_coarse_type_behind_a_residual_hides_no_formula() -> None:
    found = inspected(normed=rms_norm, after=lambda y, x: y + 20 * x, dtype=np.float16)
    assert found.forward.known
    assert found.forward.scale == "1/sqrt(head_dim)"
