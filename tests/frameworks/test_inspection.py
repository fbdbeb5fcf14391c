"""Inspection results: table, description, requirements, paths and entry points; modules as subjects."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.frameworks import effective
from attncheck.frameworks.trace import Trace
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.simulators.weights import WeightLaws
from attncheck.subject import Subject
from tests.refusals import refused

from .numpy_layers import CAUSAL, Array, Plain, softmax
from .rows import inspected

STDS = {"query": 0.6, "key": 0.9, "value": 1.5, "output": 2.0}
STD = STDS["query"] / 64**0.5


@pytest.fixture(scope="module")
def result() -> ac.Inspection:
    return ac.inspect(Plain(stds=STDS, kv=2, masked=CAUSAL, bias=0.3), width=64)


# The result ---------------------------------------------------------------------------------------


def test_the_table_says_all(result: ac.Inspection) -> None:
    text = str(result)
    assert text.startswith(
        "Attention of width 64: 4 heads of 16 neurons, 2 of keys and values; 8 draws: nothing wrong was found\n"
    )
    assert "forward: softmax, causal mask, scores times 1/sqrt(head_dim); equal to the formula to " in text
    assert "note: queries, keys, values and outputs have biases of standard deviation 0." in text
    for name, std in zip(("W_Q", "W_K", "W_V", "W_O"), STDS.values(), strict=True):
        row = next(line.split() for line in text.splitlines() if line.startswith(name))
        assert row[1] == "normal"
        assert float(row[3]) < std < float(row[4])
    wide = dataclasses.replace(result.weights["query"], std=6.25e-06, low=6e-06, high=6.5e-06)
    single = dataclasses.replace(result, weights={"query": wide}, num_heads=1, kv_heads=1, draws=1)
    assert single.tables["Matrices"][1][2:5] == ("6.25e-06", "6e-06", "6.5e-06")
    assert single.headline.endswith("1 head of 16 neurons; 1 draw")


def test_standard_deviations_whose_intervals_overlap_are_averaged(result: ac.Inspection) -> None:
    stds = {"query": 0.7, "key": 0.8, "output": 2.0}
    weights = {
        role: dataclasses.replace(result.weights[role], std=std, low=std - 0.08, high=std + 0.08)
        for role, std in stds.items()
    }
    averages = dataclasses.replace(result, weights=weights).stds
    assert averages == pytest.approx({"query": 0.75, "key": 0.75, "output": 2.0})


def test_the_description_is_that_layer(result: ac.Inspection) -> None:
    layer = result.layer(seq_len=8)
    assert (layer.width, layer.seq_len, layer.num_heads, layer.head_dim, layer.kv_heads) == (64, 8, 4, 16, 2)
    assert (layer.mask, layer.attention_map, layer.score_scaling) == ("causal", "softmax", "1/sqrt(n)")
    for name, std in STDS.items():
        assert getattr(layer, f"{name}_std") == pytest.approx(std, rel=0.05)
    assert result.layer(mask="none", query_std=1.0).query_std == 1.0


@pytest.mark.parametrize(
    ("factor", "scaling", "std"), [(1 / 16, "1/n", 1.0), (0.5, "1/sqrt(n)", 2.0), (-0.25, "1/sqrt(n)", 1.0)]
)
def test_the_scale_of_scores_is_described(factor: float, scaling: str, std: float) -> None:
    layer = ac.inspect(Plain(factor=factor), width=64).layer()
    assert layer.score_scaling == scaling
    assert layer.query_std == pytest.approx(std, rel=0.05)


def test_an_unknown_formula_has_no_description() -> None:
    unknown = inspected(Plain(mapped=lambda p: np.tril(softmax(p, -1))))
    assert "\nforward: weights are not those of a known formula: " in str(unknown)
    assert unknown.verdict.startswith("WRONG: rows of the attention weights sum to ")
    assert "and not to 1; divided by these, they are softmax, causal mask, " in unknown.verdict
    refused(unknown.layer, "forward='no known formula': cannot be described by an AttentionLayer; ")


def test_as_built_in_types(result: ac.Inspection) -> None:
    fields = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert fields["weights"]["query"]["law"] == "normal"
    assert fields["forward"]["mask"] == "causal"
    assert fields["notes"][0]["level"] == "note"
    unknown = inspected(Plain(mapped=lambda p: np.full_like(p, np.nan)))
    assert not np.isfinite(unknown.forward.factor)
    assert json.loads(json.dumps(unknown.to_dict(), allow_nan=False))["forward"]["factor"] is None


def test_matrices_are_the_same_if_read_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> effective.Effective:
        adapter = Plain(width=32, heads=2, kv=2)
        state = adapter.fresh(0)
        return effective.ModuleReader(adapter, state, 32, "").read(state)

    whole = read()
    monkeypatch.setattr(effective, "_CALL", 5 * 32)  # five rows of one position
    parts = read()
    for role in (*effective.ROLES, "output", "past"):
        np.testing.assert_allclose(parts[role], whole[role], rtol=1e-6, atol=1e-7)


# Requirements -------------------------------------------------------------------------------------


def test_what_holds_may_be_required(result: ac.Inspection) -> None:
    result.require(**{f"{name}_std": std for name, std in STDS.items()})
    result.require(mask="causal", map="softmax", scale="1/sqrt(head_dim)", bias=True, query_bias=True, blamed=False)
    result.require(scale=0.25, num_heads=4, kv_heads=2, head_dim=16, query_law="normal")
    result.require(query_law="gaussian", positions="none", rotary_base=None)
    result.require("causal", "query_law=normal", f"key_std={STDS['key']}", "num_heads=4", f"query=normal({STD})")


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"query_std": 1.0}, r"W_Q: std·√fan-in is 0\.\d+, from 0\.\d+ to 0\.\d+, not 1"),
        ({"output_law": "uniform"}, "W_O: the law is normal, not uniform"),
        ({"key_bias": False}, r"W_K: the bias is 0\.\d+/sqrt\(fan_in\)"),
        ({"bias": False}, "biases: W_Q, W_K, W_V, W_O have one"),
        ({"mask": "none"}, "mask is 'causal', not 'none'"),
        ({"mask": "window of 4096"}, "mask is 'causal', not 'window of 4096'"),  # longer than an inspection sees
        ({"scale": 1.0}, "scores are multiplied by 0.25, not 1"),
        ({"kv_heads": 4}, "kv_heads is 2, not 4"),
        ("num_heads=2", "num_heads is 4, not 2$"),
        ("unmasked", "mask is 'causal', not 'none'"),
        ("mup", "scale is '1/sqrt"),
        ("unbiased", "biases: "),
        ("rotary", "positions is 'none', not 'rotary'"),
        (f"query=uniform({STD})", "W_Q: the law is normal, not uniform"),
        (f"query=normal({2 * STD})", "W_Q: std"),
        ({"query_std": 9.0, "mask": "none", "key_std": 0.9}, r"^[^\n]*W_Q[^\n]*\n[^\n]*mask[^\n]*$"),
    ],
)
def test_what_does_not_hold_is_reported_with_its_number(result: ac.Inspection, expected: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        result.require(expected) if isinstance(expected, str) else result.require(**expected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("qeury_std", 1.0, "did you mean 'query_std'"),
        ("query_law", "gausian", "query_law=.*'gaussian'"),
        ("mask", "triangular", "mask=.*'window of 4'"),
        ("scale", "1/sqrt(n)", "scale=.*'1/sqrt.head_dim.'"),
        ("map", "softmax1", "map=.*'softmax over the heads'"),
        ("positions", "rope", "positions=.*'rotary'"),
        ("rotary_base", "10000", "rotary_base=.*pass the base"),
        ("", "mask=casual", "mask='casual'"),
    ],
)
def test_expectations_that_are_refused(result: ac.Inspection, name: str, value: Any, message: str) -> None:
    refused(lambda: result.require(**{name: value}) if name else result.require(value), message)


def test_an_error_or_a_question_may_be_forbidden_declared_or_allowed() -> None:
    with pytest.raises(AssertionError, match=r"scores times 1, not 1/sqrt\(head_dim\)"):
        inspected(Plain(factor=1.0)).require(blamed=False)
    mup = inspected(Plain(factor=1 / 16))
    assert (len(mup.blamed), len(mup.asked)) == (0, 1)
    mup.require(scale="1/head_dim", asked=False)
    mup.require(asked="maximal-update")
    assert not mup.expecting("mup").asked
    for asked in (False, ["tiled", "share"]):
        with pytest.raises(AssertionError, match="scores times 1/head_dim"):
            mup.require(asked=asked)


# Paths --------------------------------------------------------------------------------------------


class TwoPaths(Plain):
    """A module with two paths, the second a different layer; attention is visible on some."""

    paths: tuple[str, ...] = ("sdpa", "eager")
    visible: tuple[str, ...] = paths

    def __init__(self, other: Plain) -> None:
        super().__init__()
        self.other = other

    def run(self, state: Any, x: Array, trace: Trace, path: str = "sdpa") -> Array:
        trace = trace if path in self.visible else Trace()
        return super().run(state, x, trace) if path == "sdpa" else self.other.run(state, x, trace)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (Plain(), ()),
        (Plain(masked=CAUSAL), ("mask: sdpa: no mask; eager: causal",)),
        (Plain(factor=1 / 16), ("scale: sdpa: 1/sqrt(head_dim); eager: 1/head_dim",)),
    ],
)
def test_paths_of_one_module(other: Plain, difference: tuple[str, ...]) -> None:
    inspection = inspected(TwoPaths(other))
    assert inspection.blamed == tuple(f"two paths of this module differ in {text}" for text in difference)
    assert list(inspection.paths) == ["sdpa", "eager"]


def test_a_path_without_visible_attention_is_compared_with_one_that_has_it() -> None:
    layer = TwoPaths(Plain(masked=CAUSAL))
    layer.paths, layer.visible = ("eager", "sdpa"), ("sdpa",)
    inspection = inspected(layer)
    assert inspection.paths["eager"].error == np.inf
    assert inspection.forward.mask == "none"


# Modules as subjects: declared layers are consistent, others violated -----------------------------


pytestmark = pytest.mark.usefixtures("verdicts_only")

WIDTH, HEADS, SIZE = 16, 2, 8
ROLES = ("query", "key", "value", "output")


def uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return rng.uniform(-1.0, 1.0, shape)


def rotated(a: FloatArray, base: float) -> FloatArray:
    """Rotate neighbouring planes the other way: unlike attncheck, with the same law."""
    angles = np.arange(a.shape[2])[:, None] * base ** (-np.arange(0, SIZE, 2) / SIZE)
    planes = (a[..., ::2] + 1j * a[..., 1::2]) * np.exp(-1j * angles)
    return np.stack([planes.real, planes.imag], axis=-1).reshape(a.shape)


def rotary(q: FloatArray, k: FloatArray, v: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    return rotated(q, 10.0), rotated(k, 10.0), v


@dataclasses.dataclass
class Packed(Plain):
    """Uniform matrices and normal biases, of which queries, keys and values share an array."""

    width: int = WIDTH
    heads: int = HEADS
    kv: int = HEADS
    head_dim: int = SIZE
    dtype: Any = np.float64
    draw: Any = uniform
    stds: Mapping[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(ROLES[:3], 1.5**0.5))
    bias: float = 1.0
    gain: float = 1.0
    fills = True

    def make(self, seed: int) -> dict[str, FloatArray]:
        state = super().make(seed)
        packed, bias = (np.concatenate([state[role + name] for role in ROLES[:3]], axis=-1) for name in ("", " bias"))
        return {"packed": packed, "bias": bias, "last": state["output"], "last bias": state["output bias"]}

    def run(self, state: Mapping[str, FloatArray], x: FloatArray, trace: Trace, path: str = "") -> FloatArray:
        arrays = dict(zip(ROLES, np.split(state["packed"], 3, axis=-1), strict=False))
        arrays |= {f"{role} bias": bias for role, bias in zip(ROLES, np.split(state["bias"], 3), strict=False)}
        return super().run(arrays | {"output": self.gain * state["last"], "output bias": state["last bias"]}, x, trace)

    def parameters(self, state: Mapping[str, FloatArray]) -> Mapping[str, FloatArray]:
        return state

    def fill(self, state: Any, arrays: Mapping[str, FloatArray]) -> Mapping[str, FloatArray]:
        return arrays


class Unfilled(Packed):
    """The same, without settable parameters."""

    fills = False

    def parameters(self, state: Mapping[str, FloatArray]) -> Mapping[str, FloatArray]:
        return {}


class Constant(Packed):
    def make(self, seed: int) -> dict[str, FloatArray]:
        return super().make(seed) | {"last bias": np.full(WIDTH, 0.5)}


def verdict(subject: Any, layer: ac.AttentionLayer, properties: str, least: int = 0) -> str:
    report = ac.check(subject, layer, properties=properties.split(), profile="smoke")
    assert sum(bool(result.p_values) for result in report.results) >= least
    return str(report.verdict)


#: Layer, weights, properties, the least number of p-values, and changes of the declared layer that are violated.
ROWS: dict[str, tuple[Packed, str, str, int, dict[str, float | None]]] = {
    "causal": (Packed(masked=CAUSAL), "own", "exactness outputs scores", 30, {}),
    "plain": (Packed(bias=0.0), "gaussian", "scores conditional", 28, {"key_std": 1.1}),
    "rotary": (Packed(bias=0.0, before=rotary), "gaussian", "scores exactness", 12, {"rotary_base": 1000.0}),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_module_is_the_layer_that_its_inspection_describes(name: str) -> None:
    make, weights, properties, least, changes = ROWS[name]
    inspection = ac.inspect(make, width=WIDTH, draws=64)
    subject, layer = inspection.subject(weights=weights), inspection.layer(seq_len=5 if name == "rotary" else None)
    assert layer.rotary_base == (10.0 if name == "rotary" else None)
    assert verdict(subject, layer, properties, least) == "consistent"
    if changes:
        wrong = layer.replace(**changes)
        assert verdict(subject, wrong, "scores") == "violated"


@pytest.mark.sampled
@pytest.mark.parametrize(("role", "factor", "name"), [("query", 0.0, "scores"), ("output", 2.0, "exactness")])
def test_biases_other_than_the_declared_ones_are_violated(role: str, factor: float, name: str) -> None:
    inspection = ac.inspect(Packed(), width=WIDTH)
    subject = inspection.subject(weights="own")
    factors = np.repeat([factor if role == each else 1.0 for each in ROLES], WIDTH)

    def arrays(rng: np.random.Generator) -> Mapping[str, FloatArray]:
        drawn = dict(subject.arrays(rng))
        return drawn | {"bias": factors[:-WIDTH] * drawn["bias"], "last bias": factors[-WIDTH:] * drawn["last bias"]}

    assert verdict(dataclasses.replace(subject, arrays=arrays), inspection.layer(), name) == "violated"


def test_weights_are_gaussian_at_the_declared_scales_or_the_modules() -> None:
    inspection = ac.inspect(Packed(), width=WIDTH)
    layer = inspection.layer()
    assert layer.query_std == pytest.approx(layer.key_std) == pytest.approx(layer.value_std) != layer.output_std
    rng, subject = np.random.default_rng(0), inspection.subject()
    assert len(WeightLaws.of(subject.weights).biases) == 0
    drawn = [subject.arrays(rng) for _ in range(200)]
    packed = np.stack([arrays["packed"] for arrays in drawn])
    assert packed.std() * WIDTH**0.5 == pytest.approx(layer.query_std, rel=0.01)
    assert not any(arrays["bias"].any() for arrays in drawn)
    plain = ac.inspect(Packed(bias=0.0), width=WIDTH).subject(weights="own")
    assert plain.weights == dict.fromkeys(ROLES, "uniform")
    own = inspection.subject(weights="own")
    arrays = own(layer, np.ones((3, 4, WIDTH)), rng)
    assert arrays["outputs"].shape == (3, 4, 2)
    assert arrays["scores"].shape == arrays["key_gram"].shape == arrays["value_gram"].shape == (3, HEADS, 4, 4)
    assert len(np.unique(arrays["outputs"][:, 0, 0])) == 3
    assert verdict(own, layer, "draws") == "consistent"
    declared = WeightLaws.of(own.weights)
    assert [(bias.matrix, bias.law) for bias in declared.biases] == [(role, "gaussian") for role in ROLES]
    assert [bias.std for bias in declared.biases] == pytest.approx([1.0] * 4, rel=0.02)


def test_layers_of_another_shape_are_not_supported() -> None:
    subject = ac.inspect(Packed(bias=0.0), width=WIDTH).subject()
    assert subject.supports(subject.layer.replace(seq_len=9, input_std=2.0, query_std=2.0)) is True
    for changes in ({"width": 32, "head_dim": 8}, {"num_heads": 4, "head_dim": 4}):
        assert subject.supports(subject.layer.replace(**changes)) == "the module has a different width or heads"


@pytest.mark.parametrize(
    ("make", "weights", "message"),
    [
        (Packed(after=lambda y, x: y + x), "gaussian", "differs from attention alone by"),
        (Packed(stds={"value": 3.0}), "gaussian", "are different scales for W_Q, W_K, W_V, which share one array"),
        (Packed(gain=0.5), "gaussian", r"last=0.5: is the ratio of the sizes of W_O and this array"),
        (Unfilled(), "gaussian", "give it the methods `parameters` and `fill`"),
        (Packed(), "other", "weights='other'"),
        (Constant(), "own", r"bias of W_O=.*a law that checks do not know \(constant\)"),
    ],
)
def test_what_cannot_be_a_subject_is_refused(make: Packed, weights: str, message: str) -> None:
    refused(lambda: ac.inspect(make, width=WIDTH).subject(weights=weights), message)


def test_a_module_has_layers_of_its_shape() -> None:
    made = ac.inspect(Packed(bias=0.0), width=WIDTH).subject()
    layers = Subject.of(made).layers
    assert [layer.seq_len for layer in layers] == [2, 4, 8]
    run = Run.of(RunOptions(subject=made, profile="smoke"))
    assert {item.case for item in run.items("scores", None)} == set(layers)
