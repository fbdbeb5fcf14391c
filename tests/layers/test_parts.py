"""Optional parts of layers: checks of right and wrong draws, messages, import paths."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.arrays import BoolArray, FloatArray, IntArray
from attncheck._lib.exit_codes import ExitCode
from attncheck.checks.check import Setting
from attncheck.checks.claims import CLAIMS
from attncheck.checks.registry import CHECKS
from attncheck.checks.sample import Sample
from attncheck.commands.cli import main
from attncheck.diagnosis.messages import explain
from attncheck.diagnosis.sources import Violations, explanations
from attncheck.faults import FAULTS
from attncheck.layers.case import modules_of, read_case
from attncheck.layers.names import layer_call
from attncheck.layers.parts import PARTS
from attncheck.layers.parts.rotary import rotated_by
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.profiles import PROFILES
from attncheck.looks.result import violated
from attncheck.methods import Method
from attncheck.records.tallies import Space
from attncheck.simulators.collapsed import attend, draw_hidden
from attncheck.simulators.literal import LiteralSimulator, Projections
from attncheck.simulators.weights import GAUSSIAN_LAWS
from attncheck.subject import Subject, collapsed
from tests.refusals import refused
from tests.simulators.cases import PARTS as LAYERS
from tests.simulators.cases import PLAIN, ROTARY, prefix

TIED = ac.AttentionLayer(width=64, seq_len=3, tied_query_key=True, score_scaling="1/n", activation="relu")
PLACED = ac.AttentionLayer(width=8, seq_len=2, num_heads=1, position_std=1.5, position_reach=1.2)
# Correlated inputs: otherwise rotation hardly shows in wide layers.
ROTATED = ROTARY["rotary, grouped"].replace(width=16, seq_len=5, query_std=1.3)
NORMED = ac.AttentionLayer(width=16, seq_len=3, activation="relu", norm="rms")


# Right and wrong draws

#: Layers with several parts at once, and each part in one of them.
RIGHT: dict[str, ac.AttentionLayer] = {
    name: LAYERS[name]
    for name in (
        *("causal window", "softcap", "sinks by head", "sink, cap, window", "slopes", "both biases", "qk norm"),
        *("qk norm of small heads", "own mask", "own map"),
    )
}
RIGHT |= ROTARY | {layer.describe(): layer for layer in PLAIN if layer.norm or layer.tied_query_key}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", RIGHT)
def test_right_layers_pass_all_checks(name: str) -> None:
    report = ac.check("attncheck.subject:collapsed", RIGHT[name], profile="smoke", seed=3)
    assert report.verdict == "consistent"
    assert sum(bool(result.p_values) for result in report.results) > 50


def test_layers_whose_standard_deviation_comes_from_rare_draws_pass() -> None:
    # Typical outputs are far below the standard deviation: the distance from the limit is found between them.
    layer = ac.AttentionLayer(width=1, seq_len=2, num_heads=1, sink=20.0)
    report = ac.check("attncheck.subject:collapsed", layer, properties="outputs", profile="smoke", seed=20)
    assert report.verdict == "consistent"


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["causal window", "own mask", "sink, cap, window"])
def test_hidden_scores_need_not_be_exposed(name: str) -> None:
    layer = LAYERS[name]

    def subject(layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        drawn = collapsed(layer, size, rng)
        return {**drawn, "scores": np.where(layer.visible, drawn["scores"], -np.inf)}

    report = ac.check(subject, layer, properties=["scores", "conditional", "exactness"], profile="smoke", seed=5)
    assert not report.violated, report
    examined = {result.check for result in report.results if result.size}
    assert {"scores.scale", "scores.law", "conditional.joint"} <= examined


Rotation = Callable[[ac.AttentionLayer, FloatArray, IntArray], FloatArray]


def by(factor: int = 1, shift: int = 0, base: float = 1.0) -> Rotation:
    def rotate(layer: ac.AttentionLayer, vectors: FloatArray, positions: IntArray) -> FloatArray:
        other = layer.replace(rotary_base=base * (layer.rotary_base or 1.0))
        return rotated_by(other, vectors, factor * positions + shift)

    return rotate


#: Rotations of queries and of keys, whether their law is another, the property that says so, and fields it reads.
ROTATIONS: dict[str, tuple[Rotation, Rotation, bool, str, tuple[str, ...]]] = {
    "none": (by(0), by(0), True, "scores", ()),
    "keys only": (by(0), by(), True, "scores", ()),
    "queries only": (by(), by(0), True, "scores", ()),
    "opposite ways": (by(), by(-1), True, "scores", ()),
    "steps of two": (by(2), by(2), True, "scores", ()),
    "base off by 50": (by(base=50.0), by(base=50.0), True, "scores", ()),
    "keys only, by scores": (by(0), by(), True, "exactness", ("outputs", "scores")),
    "queries only, by scores": (by(), by(0), True, "exactness", ("outputs", "scores")),
    # Scores depend on differences of positions, and W_Q R has the law of W_Q.
    "both shifted": (by(shift=3), by(shift=3), False, "scores", ()),
    "queries shifted": (by(shift=1), by(), False, "exactness", ()),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ROTATIONS)
def test_wrong_rotations_are_violated_and_shifts_are_not(name: str) -> None:
    of_queries, of_keys, wrong, check, fields = ROTATIONS[name]

    def score(layer: ac.AttentionLayer, made: Projections, rng: np.random.Generator) -> FloatArray:
        positions = np.arange(layer.seq_len)
        q, k = of_queries(layer, made.queries, positions), of_keys(layer, made.keys, positions)
        return np.asarray(layer.score_factor * layer.head_width**-0.5 * (q @ k.swapaxes(-1, -2)))

    def subject(layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        drawn = LiteralSimulator(score=score)(layer, size, rng)
        return {field: drawn[field] for field in fields or drawn}

    item = Item(check, ROTATED)
    results = run_item(item, Subject.of(subject), 0, PROFILES["smoke"].cost(ROTATED))
    assert bool(violated(results)) == wrong


# What checks leave out

#: Layers, a field that is not exposed, the start of a reason, and all checks that give it.
LEFT_OUT: list[tuple[ac.AttentionLayer, str, str, tuple[str, ...]]] = [
    (LAYERS["window"], "masked scores", "hidden scores: ", ("scores.head_pairs",)),
    (LAYERS["window"], "", "the mask hides", ("exactness.score_off", "exactness.score_heads")),
    (ROTATED, "", "rotary", ("scores.size", "scores.head_pairs")),
    (NORMED, "", "the inputs are normalised", ("inputs.tail_4",)),
]


@pytest.mark.parametrize(("layer", "hidden", "start", "names"), LEFT_OUT)
def test_checks_say_why_they_leave_out_a_layer(
    layer: ac.AttentionLayer, hidden: str, start: str, names: tuple[str, ...]
) -> None:
    draws = ac.simulate(layer, 20, seed=0, coordinates=2).as_dict()
    setting = Setting(layer, Sample.from_mapping(layer, draws, 20).exposed - {hidden}, 2)
    reasons = {check.name: check.reason_not_examined(setting) for check in CHECKS}
    assert {name for name, reason in reasons.items() if reason.startswith(start)} == set(names)


def test_keys_of_rotated_layers_decide_their_gram_matrix() -> None:
    arrays = ac.simulate(ROTATED, 20, seed=0).as_dict()
    gram = arrays.pop("key_gram")
    sample = Sample.from_mapping(ROTATED, arrays, 20)
    assert np.allclose(sample.need("key_gram"), gram)
    refused(lambda: Sample.from_mapping(ROTATED, {**arrays, "key_gram": 2.0 * gram}, 20), "key_gram")
    assert "keys" not in Sample.from_mapping(ROTATED.replace(rotary_base=None), arrays, 20).exposed
    reason = next(check for check in CHECKS if check.name == "scores.scale").reason_not_examined
    assert reason(Setting(ROTATED, sample.exposed - {"keys"}, 2)) == "the subject does not expose keys"
    assert "more than 16" in reason(Setting(ROTATED.replace(seq_len=17), sample.exposed, 2))


# What violations say


#: Of parts that a layer has, their misreadings; of others, that they are there.
CAUSES: dict[str, tuple[Any, Any, str]] = {
    misread.name: (part.example, FAULTS[misread.name].subject, misread.what)
    for part in PARTS
    for misread in part.misreadings
}
CAUSES |= {
    words: ({}, lambda layer, size, rng, fields=fields: collapsed(layer.replace(**fields), size, rng), words)
    for part in PARTS
    for words, fields in [*part.undeclared.items()][:1]
}


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", CAUSES)
def test_parts_that_are_misread_or_undeclared_are_named(name: str) -> None:
    """As causes of as many draws as `attncheck.check` takes; that faults are rejected, test_faults examines."""
    fields, subject, words = CAUSES[name]
    plain = ac.AttentionLayer(width=8, seq_len=4, num_heads=2)
    layer = plain.replace(**fields or {"query_std": 2.0})
    sample = Sample.from_mapping(layer, subject(layer, 4_000, np.random.default_rng(2)), 4_000)
    assert any(words in str(cause) for cause in explanations(Violations((), 2, GAUSSIAN_LAWS, files=(sample,))))


@pytest.mark.usefixtures("no_causes")
def test_messages_on_wrong_positions_are_about_positions() -> None:
    def wrong(layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        hidden, lengths = draw_hidden(layer, size, rng)
        # The reach is twice as large.
        root = np.linalg.cholesky([[1.0, np.exp(-1 / (2 * 2.4**2))], [np.exp(-1 / (2 * 2.4**2)), 1.0]])
        positions = layer.position_std * root @ rng.standard_normal((size, 2, layer.width))
        return attend(layer, hidden * lengths[:, None, None] + positions, 2, rng).as_dict()

    text = explain(ac.check(wrong, PLACED, properties=["exactness"], profile="smoke").results, None)
    assert text.startswith("VIOLATED: Inputs are x^i = φ(W^i h + e^i)")
    assert "position_std² exp(-(i - j)²/(2 position_reach²))" in text
    (cause,) = (line for line in text.splitlines() if line.startswith("  likely:   the activation"))
    assert "position_std, position_reach or the law of the position vectors e^i" in cause
    assert "mean product of inputs at positions 1 apart (position_std, position_reach)" in text


def test_claims_are_those_of_the_layer() -> None:
    assert "e^i" in CLAIMS["inputs"].text_of(PLACED.to_dict())
    assert "e^i" not in CLAIMS["inputs"].text_of(PLACED.replace(position_std=0.0, position_reach=1.0).to_dict())
    assert CLAIMS["scores"].text_of(TIED.to_dict()).startswith("Scores are K Kᵀ/ν, as W_Q is W_K")
    assert not any("Gaussian given the keys" in claim.text_of(TIED.to_dict()) for claim in CLAIMS.values())
    assert "Gaussian given the keys" in CLAIMS["scores"].text_of(PLACED.to_dict())


def test_a_report_counts_layers_without_the_fields_with_those_that_have_them() -> None:
    layers = (PLACED, TIED, TIED.replace(tied_query_key=False))
    space = Space({layer.key: layer.to_dict() for layer in layers}, frozenset({TIED.key}))
    assert space.values["tied_query_key"] == {"no": 2, "yes": 1}
    assert space.values["position_std"] == {"1.5": 1, "0": 2}


# Fields and functions


def test_fields_of_parts_have_defaults_and_misreadings_need_their_part() -> None:
    plain = ac.AttentionLayer(width=8)
    slopes: Any = np.array([1.0, 0.5])
    assert plain.replace(bias_slopes=slopes).bias_slopes == (1.0, 0.5)
    for part in PARTS:
        assert all(getattr(plain, field) == absent for field, absent in part.fields.items())
        assert not part.present(plain)
        layer = plain.replace(seq_len=4, num_heads=2, **part.example)
        for fault in (FAULTS[misread.name] for misread in part.misreadings):
            assert fault.reason_hidden(plain)
            assert not fault.reason_hidden(layer)
            assert fault.subject(layer, 2, np.random.default_rng(0))["outputs"].shape[0] == 2


def test_functions_are_recorded_by_import_path(tmp_path: Path) -> None:
    layer = LAYERS["own mask"]
    module = prefix.__module__
    path = f"{module}:prefix"
    assert layer.mask == path
    assert layer == ac.AttentionLayer(width=8, seq_len=4, num_heads=2, mask=path)
    fields = json.loads(json.dumps(layer.to_dict()))
    assert modules_of(fields) == (module,)
    assert read_case(fields, trust=[module]) == layer
    refused(lambda: read_case(fields), r"untrusted module.*--trust")
    assert ac.AttentionLayer.from_toml(layer.to_toml(), trust=[module]) == layer
    assert ac.AttentionLayer.from_dict(fields, trust=None).describe() == f"n=8 s=4 H=2 {path}"
    assert path in layer_call(layer)
    (tmp_path / "layer.toml").write_text(layer.to_toml())
    np.save(tmp_path / "y.npy", ac.simulate(layer, 2000).outputs)
    call = ["check", "--layer", str(tmp_path / "layer.toml"), "--samples", str(tmp_path / "y.npy")]
    assert main(call) == ExitCode.UNUSABLE
    assert main([*call, "--trust", module]) in (ExitCode.CONSISTENT, ExitCode.INCONCLUSIVE)


def in_place(scores: FloatArray, seen: BoolArray) -> FloatArray:
    """Return the softmax, computed in the array of the scores."""
    scores[~seen] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def test_local_functions_work_and_a_map_may_write_into_its_arguments() -> None:
    layer = ac.AttentionLayer(width=8, seq_len=3, mask="causal")
    local = layer.replace(attention_map=in_place, mask=lambda i, j: j <= i)
    assert local.key != layer.key
    for method in get_args(Method):
        drawn, expected = (ac.simulate(each, 5, seed=1, method=method) for each in (local, layer))
        assert np.allclose(drawn.scores, expected.scores)
        assert np.allclose(drawn.outputs, expected.outputs)
