"""Optional parts of layers: traits, derivatives, refusals, records and faults."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck._lib.errors import InputError
from attncheck._lib.exit_codes import ExitCode
from attncheck.checks.check import Setting
from attncheck.checks.registry import EVERY_CHECK, checks_of
from attncheck.checks.sample import Sample
from attncheck.commands.cli import main
from attncheck.diagnosis.sources import Violations, explanations
from attncheck.faults import FAULTS
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import attention_weights, visible, weight_slopes
from attncheck.layers.case import modules_of, read_case
from attncheck.layers.names import layer_call
from attncheck.layers.parts import PARTS, named_parts
from attncheck.layers.parts.mask import nested
from attncheck.methods import Method
from attncheck.simulators.weights import GAUSSIAN_LAWS
from attncheck.subject import collapsed
from tests.simulators.cases import PARTS as LAYERS
from tests.simulators.cases import PLAIN, ROTARY, prefix


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def in_place(scores: FloatArray, seen: BoolArray) -> FloatArray:
    """Return the softmax, computed in the array of the scores."""
    scores[~seen] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


# Whose weights have a declared derivative.
SLOPED = ("softcap", "sink", "sink, cap, window", "capped linear", "causal window")


@pytest.mark.parametrize("name", [*SLOPED, "softmax", "linear", "relu", "sigmoid"])
def test_slopes_are_derivatives_of_weights(name: str, rng: np.random.Generator) -> None:
    layer = LAYERS[name] if name in SLOPED else AttentionLayer(width=4, mask="causal", attention_map=name)
    s = layer.seq_len
    scores, values = rng.standard_normal((s, s)), rng.standard_normal(s)
    slopes, step = weight_slopes(layer, scores, values), 1e-6
    for i in range(s):
        for j in range(s):
            moved = np.zeros((s, s))
            moved[i, j] = step
            change = attention_weights(layer, scores + moved) - attention_weights(layer, scores - moved)
            assert slopes[i, j] == pytest.approx((change @ values)[i] / (2 * step), abs=1e-7)


def test_nested_masks() -> None:
    assert not nested(visible(LAYERS["window"]))
    assert nested(visible(AttentionLayer(width=4, mask="causal")))


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["causal window", "window", "own mask", "sink, cap, window"])
def test_scores_behind_a_window_need_not_be_exposed(name: str) -> None:
    layer = LAYERS[name]

    def subject(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        drawn = collapsed(layer, size, rng)
        return {**drawn, "scores": np.where(visible(layer), drawn["scores"], -np.inf)}

    report = ac.check(subject, layer, properties=["scores", "conditional", "exactness"], profile="smoke", seed=5)
    assert not report.violated, report
    examined = {result.check for result in report.results if result.size}
    assert {"scores.scale", "scores.law", "conditional.joint"} <= examined


RIGHT = LAYERS | ROTARY | {layer.describe(): layer for layer in PLAIN if layer.norm or layer.tied_query_key}


@pytest.mark.sampled
@pytest.mark.parametrize("name", RIGHT)
def test_right_layers_pass_all_checks(name: str) -> None:
    report = ac.check("attncheck.subject:collapsed", RIGHT[name], profile="smoke", seed=3)
    assert report.verdict == "consistent"
    assert sum(bool(result.p_values) for result in report.results) > 50


def test_layers_whose_standard_deviation_comes_from_rare_draws_pass() -> None:
    # Typical outputs are far below the standard deviation: the distance from the limit is found between them.
    layer = AttentionLayer(width=1, seq_len=2, num_heads=1, sink=20.0)
    report = ac.check("attncheck.subject:collapsed", layer, properties="outputs", profile="smoke", seed=20)
    assert report.verdict == "consistent"


def causes(declared: AttentionLayer, drawn: Any) -> list[str]:
    """Return the causes of draws, of as many as `attncheck.check` takes for the causes of a violation."""
    sample = Sample.from_mapping(declared, drawn, 4_000)
    return [*map(str, explanations(Violations((), 2, GAUSSIAN_LAWS, files=(sample,))))]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("part", "misread"), [(part, each) for part in named_parts() for each in part.misreadings], ids=lambda v: v.name
)
def test_misreadings_are_named(part: Any, misread: Any) -> None:
    """That they are rejected, test_faults examines of every fault."""
    layer = AttentionLayer(width=8, seq_len=4, num_heads=2, **part.example)
    fault = FAULTS[misread.name]
    assert not fault.reason_hidden(layer)
    assert fault.reason_hidden(AttentionLayer(width=8))
    found = causes(layer, fault.subject(layer, 4_000, np.random.default_rng(2)))
    assert any(misread.what in cause for cause in found)


@pytest.mark.sampled
@pytest.mark.parametrize("part", [part for part in named_parts() if part.undeclared], ids=lambda part: part.name)
def test_undeclared_parts_are_named(part: Any) -> None:
    words, fields = next(iter(part.undeclared.items()))
    declared = AttentionLayer(width=8, seq_len=4, num_heads=2, query_std=2.0)
    assert words in causes(declared, collapsed(declared.replace(**fields), 4_000, np.random.default_rng(2)))


def test_every_field_of_a_part_is_a_field_of_layers_with_that_default() -> None:
    plain = AttentionLayer(width=8)
    slopes: Any = np.array([1.0, 0.5])
    assert plain.replace(bias_slopes=slopes).bias_slopes == (1.0, 0.5)
    for part in PARTS:
        assert all(getattr(plain, field) == absent for field, absent in part.fields.items())
        assert not part.present(plain)


def test_functions_are_recorded_by_import_path() -> None:
    layer = LAYERS["own mask"]
    module = prefix.__module__
    path = f"{module}:prefix"
    assert layer.mask == path
    assert layer == AttentionLayer(width=8, seq_len=4, num_heads=2, mask=path)
    fields = json.loads(json.dumps(layer.to_dict()))
    assert modules_of(fields) == (module,)
    assert read_case(fields, trust=[module]) == layer
    with pytest.raises(InputError, match=r"untrusted module.*--trust"):
        read_case(fields)
    assert AttentionLayer.from_toml(layer.to_toml(), trust=[module]) == layer
    assert AttentionLayer.from_dict(fields, trust=None).describe() == f"n=8 s=4 H=2 {path}"
    assert path in layer_call(layer)


def test_local_functions_work() -> None:
    layer = AttentionLayer(width=8, seq_len=3, mask=lambda i, j: abs(i - j) < 2)
    assert np.array_equal(visible(layer), visible(AttentionLayer(width=8, seq_len=3, window=2)))
    assert ac.simulate(layer, 2).outputs.shape == (2, 3, 1)
    assert layer.key != AttentionLayer(width=8, seq_len=3).key


def test_a_map_may_write_into_its_arguments() -> None:
    layer = AttentionLayer(width=8, seq_len=3, mask="causal")
    own = layer.replace(attention_map=in_place)
    for method in get_args(Method):
        drawn, expected = (ac.simulate(each, 5, seed=1, method=method) for each in (own, layer))
        assert np.allclose(drawn.scores, expected.scores)
        assert np.allclose(drawn.outputs, expected.outputs)


def test_a_map_that_fails_on_large_scores_is_refused_when_it_does() -> None:
    layer = AttentionLayer(width=8, attention_map=lambda p, seen: np.where(np.abs(p) > 1e3, np.nan, p), query_std=1e3)
    with pytest.raises(InputError, match="gave weights that are not finite"):
        ac.simulate(layer, 1000)


def test_files_of_layers_with_a_mask_of_ones_own_need_trust(tmp_path: Path) -> None:
    layer = LAYERS["own mask"]
    (tmp_path / "layer.toml").write_text(layer.to_toml())
    np.save(tmp_path / "y.npy", ac.simulate(layer, 2000).outputs)
    call = ["check", "--layer", str(tmp_path / "layer.toml"), "--samples", str(tmp_path / "y.npy")]
    assert main(call) == ExitCode.UNUSABLE
    assert main([*call, "--trust", prefix.__module__]) in (ExitCode.CONSISTENT, ExitCode.INCONCLUSIVE)


@pytest.mark.parametrize("name", [*LAYERS, "softmax", "relu", "linear", "sigmoid"])
def test_traits_are_true(name: str, rng: np.random.Generator) -> None:
    layer = LAYERS[name] if name in LAYERS else AttentionLayer(width=8, attention_map=name)
    traits, seen = layer.map.traits, visible(layer)
    scores = rng.standard_normal((100, layer.num_heads, layer.seq_len, layer.seq_len))
    weights = functools.partial(attention_weights, layer)
    assert not traits.sums_to_one or np.allclose(weights(scores).sum(axis=-1), 1.0)
    assert not traits.shift_invariant or np.allclose(weights(scores + 3.0), weights(scores))
    assert not traits.homogeneous or np.allclose(weights(3.0 * scores), 3.0 * weights(scores))
    assert not traits.positive or (weights(scores) >= 0.0).all()
    assert not traits.bounded or np.abs(weights(1e6 * scores)).max() <= max(1.0, layer.softcap or 0.0)
    assert traits.may_vanish or (np.abs(weights(scores))[..., seen.any(axis=-1), :].sum(axis=-1) > 0.0).all()


def test_checks_say_why_they_leave_out_hidden_scores() -> None:
    exposed = frozenset({"outputs", "scores", "input_gram", "key_gram", "value_gram"})
    setting = Setting(LAYERS["window"], exposed)
    reasons = {check.name: check.reason_not_examined(setting) for check in checks_of("scores")}
    assert "hidden scores: " in reasons["scores.head_pairs"]
    assert not reasons["scores.scale"]
    assert any(check.name == "exactness.score_off" and check.reason_not_examined(setting) for check in EVERY_CHECK)
