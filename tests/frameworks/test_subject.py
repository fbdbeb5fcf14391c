"""Modules as subjects: inputs, draws and errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import attncheck as ac
from attncheck.frameworks.adapter import Adapter
from attncheck.frameworks.subject import pooled
from attncheck.frameworks.trace import AttentionCore, Trace
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.simulators.weights import WeightLaws
from attncheck.subject import Subject

pytestmark = pytest.mark.usefixtures("verdicts_only")

FloatArray = NDArray[np.float64]
WIDTH, HEADS, SIZE = 16, 2, 8
ROLES = ("query", "key", "value", "output")
CHECKED = ["scores", "conditional"]


def turned(a: FloatArray, base: float | None) -> FloatArray:
    """Rotate neighbouring planes the other way: unlike attncheck, with the same law."""
    if base is None:
        return a
    angles = np.arange(a.shape[2])[:, None] * base ** (-np.arange(0, SIZE, 2) / SIZE)
    planes = (a[..., ::2] + 1j * a[..., 1::2]) * np.exp(-1j * angles)
    return np.stack([planes.real, planes.imag], axis=-1).reshape(a.shape)


class Plain(Adapter):
    fills = True
    base: float | None = None
    before = 1.0

    def __init__(self, residual: bool = False, bias: float = 0.0, value_scale: float = 1.0, gain: float = 1.0) -> None:
        self.residual, self.bias, self.value_scale, self.gain = residual, bias, value_scale, gain

    def make(self, seed: int) -> dict[str, FloatArray]:
        rng = np.random.default_rng(seed)
        packed = rng.uniform(-1.0, 1.0, (WIDTH, 3 * WIDTH)) * (1.5 / WIDTH) ** 0.5
        packed[:, 2 * WIDTH :] *= self.value_scale
        last = rng.uniform(-1.0, 1.0, (WIDTH, WIDTH)) / WIDTH**0.5
        biases = self.bias * rng.uniform(-1.0, 1.0, (4, WIDTH)) / WIDTH**0.5
        return {"packed": packed, "last": last, "bias": biases[:3].ravel(), "last bias": biases[3]}

    def run(self, state: Mapping[str, FloatArray], x: FloatArray, trace: Trace, path: str = "") -> FloatArray:
        q, k, v = (
            each.reshape(*x.shape[:2], HEADS, SIZE).swapaxes(1, 2)
            for each in np.split(x @ state["packed"] + state["bias"], 3, axis=-1)
        )
        q, k = self.before * turned(q, self.base), turned(k, self.base)
        weights = np.exp(self.masked(q @ k.swapaxes(-1, -2) / SIZE**0.5))
        weights = weights / weights.sum(-1, keepdims=True)
        heads = trace.core(AttentionCore(q, k, v, weights))
        heads = weights @ v if heads is None else heads
        y: FloatArray = heads.swapaxes(1, 2).reshape(x.shape) @ (self.gain * state["last"])
        return y + state["last bias"] + self.residual * x

    def masked(self, scores: FloatArray) -> FloatArray:
        return scores

    def parameters(self, state: Mapping[str, FloatArray]) -> Mapping[str, FloatArray]:
        return state

    def fill(self, state: Any, arrays: Mapping[str, FloatArray]) -> Mapping[str, FloatArray]:
        return arrays


class Unfilled(Plain):
    """The same, without settable parameters."""

    fills = False

    def parameters(self, state: Mapping[str, FloatArray]) -> Mapping[str, FloatArray]:
        return {}


class Turned(Plain):
    base = 10.0


class Causal(Plain):
    """The same with a causal mask."""

    def masked(self, scores: FloatArray) -> FloatArray:
        return np.where(np.triu(np.ones(scores.shape[-2:], dtype=bool), 1), -np.inf, scores)


class Scaled(Plain):
    before = 0.5


@pytest.mark.sampled
@pytest.mark.parametrize("weights", ["gaussian", "own"])
@pytest.mark.parametrize("make", [Causal, Scaled], ids=["causal", "scaled before"])
def test_attention_that_is_written_otherwise_is_sampled(make: type[Plain], weights: str) -> None:
    found = ac.inspect(make(bias=1.0), width=WIDTH, draws=64)
    subject, layer = found.subject(weights=weights), found.layer()
    assert len(WeightLaws.of(subject.weights).biases) == (4 if weights == "own" else 0)
    report = ac.check(subject, layer, properties=["exactness", "outputs", "scores"], profile="smoke")
    assert report.verdict == "consistent"
    report.require(min_examined=30)
    wrong = ac.check(subject, layer.replace(query_std=1.5 * layer.query_std), properties=["scores"], profile="smoke")
    assert wrong.verdict == "violated"


def test_rotary_positions_are_examined_given_the_keys() -> None:
    found = ac.inspect(Turned(), width=WIDTH)
    layer = found.layer(seq_len=5)
    assert layer.rotary_base == 10.0
    right = ac.check(found.subject(), layer, properties=["scores", "exactness"], profile="smoke")
    assert right.verdict == "consistent"
    assert sum(bool(result.p_values) for result in right.results if result.check.startswith("scores.")) >= 12
    for base in (None, 1000.0):
        wrong = ac.check(found.subject(), layer.replace(rotary_base=base), properties=["scores"], profile="smoke")
        assert wrong.verdict == "violated"


def test_gaussian_weights_are_put_in_at_the_scales_that_are_declared() -> None:
    found = ac.inspect(Plain(), width=WIDTH)
    subject, layer = found.subject(), found.layer()
    assert layer.query_std == pytest.approx(layer.key_std) == pytest.approx(layer.value_std) != layer.output_std
    rng = np.random.default_rng(0)
    packed = np.stack([subject.arrays(rng)["packed"] for _ in range(200)])
    assert packed.std() * WIDTH**0.5 == pytest.approx(layer.query_std, rel=0.01)
    report = ac.check(subject, layer, properties=CHECKED, profile="smoke")
    assert report.verdict == "consistent"
    assert sum(bool(result.p_values) for result in report.results) >= 28


def test_a_scale_that_is_declared_wrongly_is_violated() -> None:
    found = ac.inspect(Plain(), width=WIDTH)
    report = ac.check(found.subject(), found.layer(key_std=1.1), properties=CHECKED, profile="smoke")
    assert report.verdict == "violated"
    assert report.violated[0].claim in ("scores", "keys")


def test_its_own_weights_are_drawn_for_every_draw() -> None:
    found = ac.inspect(Plain(), width=WIDTH)
    subject = found.subject(weights="own")
    assert subject.weights == dict.fromkeys(ROLES, "uniform")
    drawn = subject(found.layer(), np.ones((3, 4, WIDTH)), np.random.default_rng(0))
    assert drawn["outputs"].shape == (3, 4, 2)
    assert drawn["scores"].shape == drawn["key_gram"].shape == drawn["value_gram"].shape == (3, HEADS, 4, 4)
    assert len(np.unique(drawn["outputs"][:, 0, 0])) == 3
    report = ac.check(subject, found.layer(), properties=["draws"], profile="smoke")
    assert report.verdict == "consistent"


def test_biases_that_are_drawn_are_set_to_zero_or_declared() -> None:
    found = ac.inspect(Plain(bias=1.0), width=WIDTH)
    assert not found.subject().arrays(np.random.default_rng(0))["bias"].any()
    subject = found.subject(weights="own")
    declared = WeightLaws.of(subject.weights)
    assert [(bias.matrix, bias.law) for bias in declared.biases] == [(role, "uniform") for role in ROLES]
    assert [bias.std for bias in declared.biases] == pytest.approx([3**-0.5] * 4, rel=0.02)
    report = ac.check(subject, found.layer(), properties=["scores", "exactness"], profile="smoke")
    assert report.verdict == "consistent"
    report.require(min_examined=40)


@pytest.mark.parametrize(("role", "times", "name"), [("query", 0.0, "scores"), ("output", 2.0, "exactness")])
def test_biases_other_than_the_declared_ones_are_violated(role: str, times: float, name: str) -> None:
    found = ac.inspect(Plain(bias=1.0), width=WIDTH)
    subject = found.subject(weights="own")
    factors = np.repeat([times if role == each else 1.0 for each in ROLES], WIDTH)

    def arrays(rng: np.random.Generator) -> Mapping[str, FloatArray]:
        drawn = dict(subject.arrays(rng))
        return drawn | {"bias": factors[:-WIDTH] * drawn["bias"], "last bias": factors[-WIDTH:] * drawn["last bias"]}

    wrong = dataclasses.replace(subject, arrays=arrays)
    assert ac.check(wrong, found.layer(), properties=[name], profile="smoke").verdict == "violated"


def test_biases_of_no_law_are_refused() -> None:
    class Constant(Plain):
        def make(self, seed: int) -> dict[str, FloatArray]:
            return super().make(seed) | {"last bias": np.full(WIDTH, 0.5)}

    with pytest.raises(ac.InputError, match=r"bias of W_O=.*a law that checks do not know \(constant\)"):
        ac.inspect(Constant(), width=WIDTH).subject(weights="own")


def test_layers_of_another_shape_are_not_supported() -> None:
    subject = ac.inspect(Plain(), width=WIDTH).subject()
    assert subject.supports(subject.layer.replace(seq_len=9, input_std=2.0, query_std=2.0)) is True
    for changes in ({"width": 32, "head_dim": 8}, {"num_heads": 4, "head_dim": 4}):
        assert subject.supports(subject.layer.replace(**changes)) == "the module has a different width or heads"


def test_what_cannot_be_a_subject_is_refused() -> None:
    with pytest.raises(ac.InputError, match="differs from attention alone by"):
        ac.inspect(Plain(residual=True), width=WIDTH).subject()
    with pytest.raises(ac.InputError, match="are different scales for W_Q, W_K, W_V, which share one array"):
        ac.inspect(Plain(value_scale=3.0), width=WIDTH).subject()
    with pytest.raises(ac.InputError, match=r"last=0.5: is the size of W_O relative to this array"):
        ac.inspect(Plain(gain=0.5), width=WIDTH).subject()
    with pytest.raises(ac.InputError, match="give it methods parameters and fill"):
        ac.inspect(Unfilled(), width=WIDTH).subject()
    with pytest.raises(ac.InputError, match="weights='other'"):
        ac.inspect(Plain(), width=WIDTH).subject(weights="other")


def test_what_is_not_told_apart_is_one_number() -> None:
    told = pooled({"query": (0.7, 0.65, 0.75), "key": (0.72, 0.67, 0.77), "value": (1.0, 0.95, 1.05)})
    assert told["query"] == told["key"] == pytest.approx(0.71)
    assert told["value"] == 1.0


def test_a_module_is_the_subject_of_a_run_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    lines = [
        "import torch",
        "import attncheck as ac",
        "simulate = ac.inspect(lambda: torch.nn.MultiheadAttention(16, 2, batch_first=True), width=16).subject()",
        "",
    ]
    (tmp_path / "built.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    subject = Subject.of("built:simulate")
    assert [layer.seq_len for layer in subject.layers] == [2, 4, 8]
    run = Run.of(RunOptions(subject="built:simulate", profile="smoke"))
    assert {item.case for item in run.items("scores", None)} == set(subject.layers)


def test_arrays_are_put_into_modules_of_each_framework() -> None:
    from attncheck.frameworks.framework import adapter_of

    makes: dict[str, Any] = {}
    if pytest.importorskip("torch"):
        import torch

        makes["torch"] = lambda: torch.nn.MultiheadAttention(8, 2, batch_first=True)
    for name in ("flax", "equinox", "keras"):
        pytest.importorskip(name)
    import equinox
    import flax.linen
    import keras
    from flax import nnx

    makes["linen"] = lambda: flax.linen.MultiHeadDotProductAttention(num_heads=2)
    makes["nnx"] = lambda rngs: nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
    makes["equinox"] = lambda key: equinox.nn.MultiheadAttention(2, 8, key=key)
    makes["keras"] = lambda: keras.layers.MultiHeadAttention(2, 4)
    for name, make in makes.items():
        adapter = adapter_of(make, 8)
        state = adapter.fresh(0)
        own = {key: array.copy() for key, array in adapter.parameters(state).items()}
        filled = adapter.parameters(adapter.filled(state, {key: 2.0 * array for key, array in own.items()}))
        assert own.keys() == filled.keys(), name
        for key, array in own.items():
            np.testing.assert_allclose(filled[key], 2.0 * array, rtol=1e-6, err_msg=f"{name} {key}")
