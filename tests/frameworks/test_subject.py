"""Modules as subjects: declared layers are consistent, others violated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.frameworks.trace import Trace
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.simulators.weights import WeightLaws
from attncheck.subject import Subject
from tests.refusals import refused

from .numpy_layers import CAUSAL, Plain

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
