"""NumPy attention, right and with one change: an inspection says what is different, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from .numpy_layers import CAUSAL, Array, Draw, Plain, mask_of, softmax
from .rows import Row, assert_says, each, inspected, notes_of, row

State = dict[str, Array]


def turn(a: Array, base: float = 100.0, steps: float = 1.0, halves: bool = False) -> Array:
    angle = steps * np.arange(a.shape[2])[:, None] * base ** (-np.arange(0, a.shape[3], 2) / a.shape[3])
    even, odd = np.split(a, 2, axis=-1) if halves else (a[..., ::2], a[..., 1::2])
    turned = even * np.cos(angle) - odd * np.sin(angle), even * np.sin(angle) + odd * np.cos(angle)
    return np.concatenate(turned, axis=-1) if halves else np.stack(turned, axis=-1).reshape(a.shape)


def unit(a: Array) -> Array:
    return np.asarray(a / np.sqrt(np.mean(a**2, axis=-1, keepdims=True) + 1e-6))


def layer_norm(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + 1e-5))


def rms_norm(x: Array) -> Array:
    return np.asarray(unit(x.astype(np.float64)).astype(x.dtype))


def tiled(a: Array) -> Array:
    return np.tile(a, (1, 2, 1, 1))


def repeated(a: Array) -> Array:
    return np.repeat(a, 2, 1)


def softmax_of_some(p: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return softmax(p)


def guarded(p: Array) -> Array:
    return np.nan_to_num(softmax_of_some(p))


GAP, ALL_BUT_TWO = (
    mask_of(lambda i, j: (j <= i) | (i == 0) & (j == 3)),
    mask_of(lambda i, j: (j < j.size - 2) & (i >= 0)),
)
STRICTLY, LATER_ONLY = mask_of(lambda i, j: j < i), mask_of(lambda i, j: i < j)
UNITARY = np.linalg.qr(np.random.default_rng(1).standard_normal((64, 16)))[0]


def alibi(p: Array) -> Array:
    far = np.arange(p.shape[-2])[:, None] - np.arange(p.shape[-1])
    return np.asarray(p - 0.4 * np.abs(far) * np.arange(1, p.shape[1] + 1)[:, None, None])


def leaking(heads: int) -> Callable[[Array], Array]:
    """Return a causal mask whose last heads see the next position, too."""
    next_too = mask_of(lambda i, j: j <= i + 1)
    return lambda p: np.concatenate([CAUSAL(p)[:, : 4 - heads], next_too(p)[:, 4 - heads :]], axis=1)


def gated(p: Array) -> Array:
    return np.asarray(softmax(p + 0.5 * np.sin(p)) / (1 + np.exp(-p.mean(-1, keepdims=True))))


def dropped(p: Array) -> Array:
    return softmax(p) * (np.random.default_rng(0).random(p.shape) > 0.25) / 0.75


def finite(a: Array) -> Array:
    """Return NaN for more than 20 positions."""
    return a * np.nan if a.shape[-2] > 20 else a


def quartered(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    return q / 4, k, v


def biased(at: Callable[[Array, Array], Array]) -> Callable[[Array], Array]:
    return lambda p: np.asarray(p + np.sin(at(*np.ogrid[: p.shape[-2], : p.shape[-1]])))


def turning(of_queries: float, of_keys: float) -> Any:
    """Return rotations by so many steps per position."""
    return lambda q, k, v: (turn(q, steps=of_queries), turn(k, steps=of_keys), v)


def two_bases(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    return turn(turn(q), 7.0), turn(turn(k), 7.0), v


def fixed(*shape: int) -> Array:
    return np.random.default_rng(10**6).standard_normal(shape) / 8


def layer(name: str, *notes: str, **fields: Any) -> Row:
    """Return the row of a layer, of which some fields are those of `Plain`."""
    own = {key: fields.pop(key) for key in [*fields] if key in Plain.__dataclass_fields__}
    return row(name, Plain(**own), *notes, **fields)


def matrix(name: str, role: str, function: Callable[[State], Array], *notes: str, **fields: Any) -> Row:
    """Return the row of a layer with another matrix."""
    return layer(name, *notes, changed=lambda m: m.update({role: function(m).astype(np.float32)}), **fields)


def part(name: str, role: str, index: Any, factor: Any, *notes: str) -> Row:
    """Return the row of a layer that multiplies a part of a matrix by a number, or replaces it."""

    def change(state: State) -> None:
        state[role][index] = state[role][index] * factor if isinstance(factor, float) else factor(state)

    return layer(name, *notes, changed=change)


def sizes(width: int, heads: int, kv: int, head_dim: int, dtype: Any = np.float32, mask: str = "none") -> Row:
    own = {"width": width, "heads": heads, "kv": kv, "head_dim": head_dim, "dtype": dtype, "masked": MASKS[mask]}
    counts = {"num_heads": heads, "kv_heads": kv, "head_dim": head_dim}
    name = f"{width}, {heads}, {kv}, {dtype.__name__}, {mask}"
    return layer(name, **own, require=counts, options={"width": width}, bound=0.03, mask=mask)


MASKS: dict[str, Callable[[Array], Array]] = {"none": lambda p: p, "causal": CAUSAL}
NO_LAYER = "cannot be described by an AttentionLayer"
MUP = "asks: scores times 1/head_dim, as in maximal-update parametrisation, not 1/sqrt(head_dim)"
WINDOW = "note: the mask is neither none nor causal: "
LATER = ", so that positions see later ones and no earlier ones: is it transposed?"
NOTHING, UNSEEN = "wrong: position {} attends to nothing, of 0 to 6", "note: nothing attends to position {}, of 0 to 6"
STRICT = NOTHING.format(0), UNSEEN.format(6), WINDOW + "strictly causal"
TURNED = "wrong: the causal mask is inverted", NOTHING.format(6), UNSEEN.format(0)
NAN = "wrong: outputs are NaN or infinite at positions {}"
LEAK = "wrong: position i sees i + 1: the causal mask is off by one"
UNKNOWN, BATCH = (
    "asks: the attention weights are not those of a known",
    "wrong: outputs of a sequence depend on the other",
)
ROTARY, OTHER = "note: queries and keys are rotated by position", "wrong: queries and keys are rotated "
TWICE = "asks: rotary angles are 2 times those of base 100: are rotary positions applied twice?"
SHORT = "asks: the mask is causal at 7 positions, and not at 65: is it too short?"
EARLIER = "asks: positions see only earlier ones, and not themselves: is the causal mask off by one?"
NO_BASE = {"positions": "other", "rotary_base": None, "refusal": "positions='other'"}
TILED = "asks: KV heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)"
UNLIKE = "wrong: heads share keys as 0, 1, 0, 1, but values as 0, 0, 1, 1"
DROPPED = "wrong: every call drops the same attention weights, at rate 0.25; before that, they are softmax, causal mask"
SLOPES = "asks: slopes by distance are 0.4, 0.8, 1.2, 1.6; ALiBi's are 0.25, 0.0625, 0.0156, 0.00391"
NO_TABLE = "a bias of scores that is neither by slopes nor a random table"
BIASED = {"refusal": NO_TABLE, "optional_parts": NO_TABLE}
NO_STD = "query_std=None: is unknown"
NO_KEYS, ALL_TIED = "note: keys are not x W + b: W_K unknown", "wrong: W_Q, W_K and W_V are the same matrix"
SPLIT = "wrong: queries, keys and values are reshaped to heads without a transpose, so that heads hold positions"
OVER_HEADS = "wrong: attends over the heads of one position, not over positions: queries are (batch, positions, heads, "
WITHOUT_TRANSPOSE: dict[str, Any] = {
    "split": lambda a, heads: a.reshape(*a.shape[:2], heads, -1),
    "merge": lambda o: o.reshape(*o.shape[:2], -1),
}
BYPASS = "note: a residual path: the outputs include the inputs"
BEYOND = "are NaN or infinite at length 65, although they are finite at length 7"
UNITS = {f"{role}_std": 1.0 for role in ("query", "key", "value", "output")}
NORMAL = {"require": UNITS | {"query_law": "normal", "value_law": "normal"}}
LAYER_NORM = "note: the inputs are normalised before attention: layer norm"
RMS_NORM = "note: the inputs are normalised before attention: RMS norm"
UNDRAWN = ": this initialiser does not draw it"
SAME = "make returns the same module, or its initialisers have seeds of their own"
FIXED_HEAD = "wrong: W_V is the same in every draw in head 0" + UNDRAWN

FORWARD = [
    *(sizes(64, 4, 4, 16, dtype, mask) for dtype in (np.float16, np.float32, np.float64) for mask in MASKS),
    *(sizes(48, 3, 1, 16, mask=mask) for mask in MASKS),
    *(sizes(16, 4, 2, 4, mask=mask) for mask in MASKS),
    *(sizes(width, 1, 1, width) for width in (1, 2, 3, 63)),
    # Scales
    *(
        layer(name, f"wrong: scores times {name}, not ", factor=factor, scale=name, require={"scale": factor})
        for name, factor in {"1/sqrt(width)": 1 / 8, "1": 1.0, "1/width": 1 / 64, "0.3": 0.3, "-0.25": -0.25}.items()
    ),
    layer("1/head_dim", MUP, factor=1 / 16, scale="1/head_dim"),
    layer("scaled", "note: scores times 1: 1/sqrt(head_dim) is in W_Q's", before=quartered, factor=1.0, scale="1"),
    layer("scaled twice", "wrong: W_Q has W_K's scale times 1/sqrt(head_dim): ... 1/head_dim in all", before=quartered),
    # Masks
    *(
        layer(name, WINDOW + name.partition(":")[0], masked=mask_of(visible), mask=name.partition(":")[0])
        for name, visible in {
            "window of 3": lambda i, j: (j <= i) & (i - j < 3),
            "window of 16": lambda i, j: (j <= i) & (i - j < 16),
            "window of 40": lambda i, j: (j <= i) & (i - j < 40),
            "two-sided window of 2": lambda i, j: np.abs(i - j) < 2,
            "two-sided window of 9": lambda i, j: np.abs(i - j) < 9,
            "other: prefix": lambda i, j: (j <= i) | (i < 3) & (j < 3),
            "other: blocks": lambda i, j: (j <= i) | (i // 2 == j // 2),
            "other: global first position": lambda i, j: (j <= i) | (i == 0),
        }.items()
    ),
    layer(
        "every fourth", SHORT, masked=mask_of(lambda i, j: (j <= i) & ((i - j < 10) | (i % 4 == j % 4))), mask="other"
    ),
    layer("two hidden", "note: to positions 5 and 6", WINDOW + "other", masked=ALL_BUT_TWO, mask="other"),
    layer("gap", "wrong: the mask is causal, except that position 0 sees 3", masked=GAP, mask="other"),
    layer("anticausal", "asks: the mask is anticausal" + LATER, masked=mask_of(lambda i, j: i <= j), mask="anticausal"),
    layer("strict, NaN", *STRICT, NAN.format(0), masked=STRICTLY, mapped=softmax_of_some, mask="strictly causal"),
    layer("strict", *STRICT, masked=STRICTLY, mapped=guarded, mask="strictly causal"),
    layer("earlier", UNSEEN.format(6), EARLIER, masked=mask_of(lambda i, j: (j < i) | (i + j == 0)), mask="other"),
    layer("turned, NaN", *TURNED, NAN.format(6), masked=LATER_ONLY, mapped=softmax_of_some, mask="strictly anticausal"),
    layer("turned", *TURNED, masked=LATER_ONLY, mapped=guarded, mask="strictly anticausal"),
    layer("leak of one head", "wrong: heads have different masks", LEAK, masked=leaking(1), mask="other"),
    layer("leak of all heads", LEAK, masked=leaking(4), mask="causal, off by one"),
    # Weights
    *(
        layer(name, note, mapped=function, map=name, scale=..., refusal=NO_LAYER if name != "linear" else "")
        for name, note, function in (
            ("softmax over the query axis", "wrong: softmax over the query axis", lambda p: softmax(p, -2)),
            ("softmax over the heads", "wrong: softmax over the heads", lambda p: softmax(p, 1)),
            ("linear", "asks: the attention map is linear, not softmax", lambda p: p),
            ("relu", "asks: the attention map is relu, not softmax", lambda p: np.maximum(p, 0) / p.shape[-1]),
            ("sigmoid", "asks: the attention map is sigmoid, not softmax", lambda p: 1 / (1 + np.exp(-p + 1.5))),
        )
    ),
    layer("sine", UNKNOWN, mapped=lambda p: softmax(np.sin(3 * p) * 3), known=False, refusal=NO_LAYER),
    layer("dropped", DROPPED, masked=CAUSAL, mapped=dropped, known=False),
    layer("larger", "wrong: rows of the attention weights sum to 1.5", mapped=lambda p: 1.5 * softmax(p), known=False),
    layer("gates and sinks", UNKNOWN, mapped=gated, known=False),
    layer("NaN", "wrong: all attention weights are NaN or infinite", mapped=lambda p: p * np.nan, known=False),
    layer("batch", "wrong: softmax over an axis that is neither", BATCH, mapped=lambda p: softmax(p, 0), known=False),
    layer("ALiBi", SLOPES, masked=alibi, optional_parts="slopes 0.4, 0.8, 1.2, 1.6"),
    layer("bias of positions", masked=biased(np.multiply), **BIASED),
    layer("bias of distances", masked=biased(np.subtract), **BIASED),
    # Queries, keys and values
    layer("opposite ways", ROTARY, OTHER + "opposite ways: scores depend on sums", before=turning(1, -1), **NO_BASE),
    layer("other angles", ROTARY, OTHER + "by different angles", before=turning(1, 2), **NO_BASE),
    layer("one alone", "note: queries are rotated", "wrong: only one of", before=turning(1, 0), **NO_BASE),
    layer("no base", ROTARY, "note: rotary angles are not powers of one base", before=two_bases, **NO_BASE),
    layer("twice", ROTARY, TWICE, before=turning(2, 2), **NO_BASE),
    layer("unit", "note: queries and keys are normalised", before=lambda q, k, v: (unit(q), unit(k), v), matrices="VO"),
    layer("unit queries", "note: W_Q unknown", before=lambda q, k, v: (unit(q), k, v), matrices="KVO", refusal=NO_STD),
    layer(
        "scaled by position",
        "note: queries are multiplied by a factor that depends on the position: W_Q unknown",
        before=lambda q, k, v: (q * np.log(2.0 + np.arange(q.shape[2]))[:, None], k, v),
        matrices="KVO",
        refusal=NO_STD,
    ),
    layer("tiled", TILED, kv=2, spread=lambda a, times: tiled(a)),
    layer("tiled before", TILED, kv=2, before=lambda q, k, v: (q, tiled(k), tiled(v)), require={"kv_heads": 2}),
    layer("repeated", kv=2, before=lambda q, k, v: (q, repeated(k), repeated(v)), require={"kv_heads": 2}),
    layer("keys tiled", UNLIKE, kv=2, before=lambda q, k, v: (q, tiled(k), repeated(v))),
    layer("other keys", NO_KEYS, UNKNOWN, BATCH, before=lambda q, k, v: (q, k[::-1], v), matrices="QVO", known=False),
    # Inputs and outputs
    layer("layer norm", LAYER_NORM, BYPASS, normed=layer_norm, after=lambda y, x: y + x, **NORMAL),
    layer("RMS norm", RMS_NORM, BYPASS, normed=rms_norm, after=lambda y, x: y + x, **NORMAL),
    layer(
        "coarse", RMS_NORM, "note: bypass", normed=rms_norm, after=lambda y, x: y + 20 * x, dtype=np.float16, bound=0.1
    ),
    layer(
        "norm after", "note: what follows attention is not linear", after=lambda y, x: layer_norm(y + x), matrices="QKV"
    ),
    layer("tanh", "note: what follows attention is not linear", after=lambda y, x: y + np.tanh(y), matrices="QKV"),
    layer("narrow outputs", "note: outputs have 5 neurons, inputs 64", after=lambda y, x: y[..., :5]),
    layer("split", SPLIT, split=lambda a, heads: a.reshape(len(a), heads, a.shape[1], -1)),
    layer("merged", "wrong: heads are merged without a transpose", merge=lambda o: o.reshape(len(o), o.shape[2], -1)),
    layer("over heads", OVER_HEADS, **WITHOUT_TRANSPOSE, map="softmax among the heads of a position"),
    *(
        layer(f"long {parts}, {mask}", f"wrong: {parts} {BEYOND}", masked=hide, mask=mask, **change)
        for mask, hide in MASKS.items()
        for parts, change in (
            ("outputs", {"after": lambda y, x: finite(y)}),
            ("keys and outputs", {"before": lambda q, k, v: (q, finite(k), v)}),
        )
    ),
    # Scales of matrices, and constant ones
    layer("fan-in", "asks: W_Q, W_K and W_V ... as 1/(heads fan_in)", stds={"query": 0.5, "key": 0.5, "value": 0.5}),
    matrix("constant", "query", lambda m: np.full((64, 64), 0.125), "wrong: every entry of W_Q is 0.125" + UNDRAWN),
    layer("keys", "asks: every entry of W_K is 0" + UNDRAWN, stds={"key": 0}, masked=CAUSAL, mask="causal", scale=...),
]
MATRICES = [
    matrix("tied", "key", lambda m: m["query"], "wrong: W_Q and W_K are the same matrix"),
    layer("all tied", ALL_TIED, changed=lambda m: m.update(key=m["query"], value=m["query"])),
    matrix(
        "half", "key", lambda m: (m["query"] + m["key"]) / 2**0.5, "wrong: entries of W_Q and W_K have correlation 0.7"
    ),
    matrix("half, either sign", "key", lambda m: m["key"] + 0.1 * np.sign(m["key"][0, 0]) * m["query"]),
    matrix("heads", "query", lambda m: np.tile(m["query"][:, :16], (1, 4)), "wrong: W_Q is the same in every head"),
    matrix("output", "output", lambda m: m["value"], "wrong: W_V is W_O"),
    matrix("transposed", "output", lambda m: m["value"].T.copy(), "wrong: W_V is W_O, transposed"),
    matrix("fixed", "output", lambda m: fixed(64, 64), "wrong: W_O is the same in every draw" + UNDRAWN),
    matrix("shifted", "value", lambda m: m["value"] + 0.05, "wrong: entries of W_V have mean 0.05"),
    matrix("zero output", "output", lambda m: 0 * m["output"], refusal=r"output_std=0.0: must be at least"),
    matrix("none", "output", lambda m: np.eye(64), "note: heads are concatenated and returned: there", matrices="QKV"),
    # Heads and lines
    part("larger head", "query", np.s_[:, 16:32], 1.3, "wrong: W_Q of head 1 has 1."),
    part("smaller head", "output", np.s_[48:], 0.5, "wrong: W_O of head 3 has 0."),
    part("zero head", "query", np.s_[:, 16:32], 0.0, "wrong: W_Q of head 1 has 0 times", "note: W_Q: 16 columns are 0"),
    part("copied head", "key", np.s_[:, 32:48], lambda m: m["key"][:, :16], "wrong: W_K is the same in heads 0 and 2"),
    part("fixed head", "value", np.s_[:, :16], lambda m: UNITARY, FIXED_HEAD),
    part("zero row", "output", 3, 0.0, "wrong: W_O: row 3 is 0 in every draw"),
    part("zero column", "output", np.s_[:, 5], 0.0, "wrong: W_O: column 5 is 0 in every draw"),
    part("small row", "query", 9, 0.25, "wrong: W_Q: row 9 has 0.2"),
    # One odd column makes its head odd, too.
    part("large column", "key", np.s_[:, 20], 3.0, "wrong: W_K of head 1 has 1.2", "wrong: W_K: column 20 has "),
]


@each(FORWARD)
def test_a_forward_pass(row: Row) -> None:
    assert_says(row)


@each(MATRICES)
def test_matrices(row: Row) -> None:
    assert_says(dataclasses.replace(row, options={"draws": 8}))
    with_biases = inspected(dataclasses.replace(row.make, bias=0.5), draws=8)
    wrong = [note for note in row.notes if note.startswith("wrong: ")]
    assert all(map(str.startswith, (f"wrong: {note}" for note in with_biases.blamed), wrong))
    assert len(with_biases.blamed) == len(wrong)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize(("dtype", "base"), [(np.float32, 1e4), *((np.float64, base) for base in (5e5, 123.25, 12.25))])
@pytest.mark.parametrize("steps", [1.0, -1.0])
def test_the_base_is_read_off_whatever_the_planes_are(halves: bool, dtype: Any, base: float, steps: float) -> None:
    def before(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        return turn(q, base, steps, halves), turn(k, base, steps, halves), v

    inspection = inspected(Plain(before=before, dtype=dtype))
    asked = ["asks: rotary positions have base 12.25: are their exponents multiples of 2/head_dim?"] * (base < 50.0)
    assert sorted(notes_of(inspection)) == [*asked, "note: queries and keys are rotated by position"]
    assert inspection.forward.rotary_base == pytest.approx(base, rel=1e-9)
    inspection.require("rotary", rotary_base=1.0005 * base)
    with pytest.raises(AssertionError, match=f"rotary_base is {base:g}, not "):
        inspection.require(rotary_base=1.01 * base)
    assert f"rotary positions (base {base:g})" in str(inspection)
    assert inspection.layer().rotary_base == inspection.forward.rotary_base
    assert inspection.layer(rotary_base=None).rotary_base is None
    assert inspection.view.rotation is not None
    assert (inspection.view.rotation.halves, inspection.view.rotation.sign) == (halves, steps)


# Draws --------------------------------------------------------------------------------------------


def truncated(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return np.asarray(stats.truncnorm.rvs(-2, 2, size=shape, random_state=rng))


LAWS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-(3**0.5), 3**0.5, shape),
    "truncated normal": lambda rng, shape: truncated(rng, shape) / stats.truncnorm.std(-2, 2),
    "orthogonal": lambda rng, shape: np.linalg.qr(rng.standard_normal(shape))[0] * shape[0] ** 0.5,
}


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("law", LAWS)
def test_right_draws_are_not_blamed(law: str, width: int) -> None:
    for seed in range(10):
        layer = Plain(
            width=width, head_dim=width // 4, draw=LAWS[law], bias=0.7, dtype=(np.float32, np.float64)[seed % 2]
        )
        inspection = inspected(layer, width=width, draws=8, seed=1000 * seed)
        assert inspection.blamed == ()
        inspection.require(**UNITS, **{name.replace("std", "law"): law for name in UNITS})
        if width == 64:
            assert {matrix.law for matrix in inspection.weights.values()} == {law}
            assert all(0.6 < matrix.bias_std < 0.8 for matrix in inspection.weights.values())


@pytest.mark.parametrize(
    ("role", "std", "name"),
    [
        ("query", 1.0, "1/fan_in (lecun)"),
        ("query", 3**-0.5, "1/(3 fan_in) (torch.nn.Linear)"),
        ("query", 0.5**0.5, "2/(fan_in + 3 fan_in) (xavier over packed q, k, v)"),
        ("query", 2**0.5, "2/fan_in (he)"),
        ("query", 0.02 * 8, "0.02² (whatever the width)"),
        ("value", (2 * 64 / (64 + 32)) ** 0.5, "2/(fan_in + fan_out) (xavier)"),
    ],
)
def test_known_scales_are_named(role: str, std: float, name: str) -> None:
    matrix = inspected(Plain(kv=2 if role == "value" else 4, stds={role: std}), draws=8).weights[role]
    assert name in matrix.known
    assert matrix.low < std < matrix.high
    assert matrix.high - matrix.low < 0.14 * std


@pytest.mark.parametrize(
    ("seeds", "note"),
    [
        (1, f"all weights are the same in every draw: {SAME}"),
        (3, "draw 3 repeats the W_Q, W_K, W_V, W_O of draw 0: draws are not independent"),
    ],
)
def test_draws_that_come_again(seeds: int, note: str) -> None:
    class Again(Plain):
        def make(self, seed: int) -> State:
            return super().make(seed % seeds)

    assert inspected(Again(), draws=8).blamed == (note,)
