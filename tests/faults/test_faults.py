"""Every known-wrong simulator is found by a check that names the fault; right ones pass."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from attncheck._lib.errors import InputError
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.registry import CHECKS, PROPERTIES
from attncheck.checks.returned import FIELDS
from attncheck.checks.sample import Sample
from attncheck.diagnosis.mistakes import MISTAKES
from attncheck.faults import EXPOSURES, FAULTS, exposing, wrong_laws, wrong_regimes
from attncheck.faults.fault import Fault, MisreadLayer
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.inputs import Norm
from attncheck.layers.regimes import REGIMES
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.look import observe
from attncheck.looks.plan import Plan
from attncheck.looks.profiles import ANCHORS, PROFILES
from attncheck.looks.result import violated
from attncheck.records.schema import Result
from attncheck.simulators.literal import LiteralSimulator
from attncheck.simulators.weights import WeightLaws
from attncheck.subject import Subject, collapsed
from tests.faults.named import NAMED_BY
from tests.regimes import FAULT_OF

PAPER, NARROW, ONE, GROUPED = ANCHORS[:4]
# About as small as the check's planned alternative, or smaller, with more power.
SLIGHT = frozenset({"query_std_2", "key_std_2", "value_std_2", "output_std_2", "weights_per_call", "growing_outputs"})
SURELY = 1 - 1e-6
# Below the alternative of `conditional.shift`: on four times the draws of the largest plan.
SHIFT_DRAWS = 14_000
ODD = (
    AttentionLayer(width=4, seq_len=3, num_heads=12),
    AttentionLayer(width=5, seq_len=2, num_heads=2, head_dim=3, mask="causal"),
    AttentionLayer(width=1, seq_len=1, num_heads=1),
    AttentionLayer(width=8, seq_len=3, num_heads=4, num_kv_heads=1, attention_map="linear", mask="causal"),
    AttentionLayer(width=6, seq_len=2, num_heads=4, tied_query_key=True, score_scaling="1/n"),
)


def examine(subject: object, layer: AttentionLayer, name: str, profile: str) -> list[Result]:
    """Return the results of one property on one layer, at a profile's sizes and level."""
    settled = PROFILES[profile]
    cost = settled.cost(layer)
    return run_item(Item(name, layer), Subject.of(subject), 0, cost)


def examine_alone(name: str, seed: int = 0) -> Result:
    """Return the result of the fault's check alone, on its own number of draws."""
    layer, check = NAMED_BY[name]
    smoke, roomy = PROFILES["smoke"], PROFILES["default"]
    slight = name in SLIGHT
    cost = dataclasses.replace((roomy if slight else smoke).cost(layer), power=SURELY if slight else smoke.power)
    item = Item(check.partition(".")[0], layer, only=check)
    (result,) = run_item(item, Subject.of(FAULTS[name].subject), seed, cost)
    return result


def p_value_of_shift(seed: int = 0) -> float:
    layer, name = NAMED_BY["shifted_outputs"]
    (check,) = (each for each in CHECKS if each.name == name)
    subject, key = Subject.of(FAULTS["shifted_outputs"].subject), ("tests", "shift")
    setting = subject.probe(layer, stream(seed, *key, role="probe"))
    planned = Plan(setting, SHIFT_DRAWS, 1e-6, 0.99, {check: SHIFT_DRAWS}, {})
    reference = seed_sequence(seed, *key, role="reference")
    return observe(planned, [check], 1, subject, stream(seed, *key), reference)[name].p_value


def test_every_fault_is_listed_with_a_check_that_names_it() -> None:
    assert set(NAMED_BY) == set(FAULTS)
    assert len(FAULTS) >= 20
    assert {check for _, check in NAMED_BY.values()} <= {check.name for check in CHECKS}


@pytest.mark.sampled
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught_and_named(name: str) -> None:
    assert FAULTS[name].reason_hidden(NAMED_BY[name][0]) == ""
    if name == "shifted_outputs":
        assert p_value_of_shift() < 1e-6
    else:
        assert examine_alone(name).verdict == "violated"


def test_a_fault_that_a_layer_hides_is_not_seen_there() -> None:
    for name, fault in FAULTS.items():
        fixed = (*PROFILES["default"].layers, NAMED_BY[name][0])
        assert not all(fault.reason_hidden(layer) for layer in fixed), name
    assert violated(examine(FAULTS["leaking_mask"].subject, PAPER, "conditional", "smoke")) == []
    assert violated(examine(FAULTS["shared_keys"].subject, ONE, "scores", "smoke")) == []


# `LiteralSimulator` is right, so that each fault made from it is the only one. tests/test_properties.py tests the
# methods on all properties, benchmarks/evidence.md on more draws.
@pytest.mark.sampled
@pytest.mark.parametrize("layer", [PAPER, ONE, GROUPED], ids=AttentionLayer.describe)
def test_what_faults_are_made_of_is_not_violated(layer: AttentionLayer) -> None:
    # `outputs` needs a slow limit per layer; `conditional` uses the exact law in each.
    properties = [name for name in PROPERTIES if name != "outputs" or layer in (PAPER, ONE)]
    results = [result for name in properties for result in examine(LiteralSimulator(), layer, name, "smoke")]
    assert violated(results) == []
    assert any(result.verdict == "consistent" for result in results)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_exposes_what_a_right_simulator_does(name: str) -> None:
    draw = functools.partial(FAULTS[name].subject, GROUPED, 5)
    sample = Sample.from_mapping(GROUPED, draw(np.random.default_rng(0)), 5)
    assert sample.exposed >= set(FIELDS)
    again, other = draw(np.random.default_rng(0)), draw(np.random.default_rng(1))
    assert np.array_equal(sample.outputs, again["outputs"])
    assert not np.array_equal(sample.outputs, other["outputs"])


@pytest.fixture
def averaged_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few draws for `gaussian_outputs`' covariance: a probe only reads shapes and digits."""
    afresh = functools.lru_cache(wrong_laws._mean_root.__wrapped__)
    monkeypatch.setattr(wrong_laws, "_mean_root", afresh)
    monkeypatch.setattr(wrong_laws, "_AVERAGED", 100)


@pytest.mark.sampled
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_examined_in_every_layer_where_it_is_said_to_show(name: str, averaged_little: None) -> None:
    """Unlike constant Gram matrices, which are refused before the first look."""
    subject = Subject.of(FAULTS[name].subject)
    for layer in PROFILES["default"].layers:
        if not FAULTS[name].reason_hidden(layer):
            assert subject.probe(layer, np.random.default_rng(0)).layer == layer


@pytest.mark.parametrize("name", REGIMES)
def test_every_regime_has_a_fault_that_only_such_layers_show(name: str) -> None:
    fault = FAULTS[FAULT_OF[name]]
    assert fault.reason_hidden(REGIMES[name]) == ""
    assert REGIMES[name] in PROFILES["default"].layers
    if fault in wrong_regimes.FAULTS and name != "non-Gaussian weights":
        kin = {other for other in REGIMES if not fault.reason_hidden(REGIMES[other])}
        assert kin == {name}


def test_a_fault_of_one_regime_is_right_in_the_layers_of_others() -> None:
    """Where hidden, a fault of a regime draws like a right simulator."""
    for fault in wrong_regimes.FAULTS:
        if isinstance(fault.subject, MisreadLayer):
            others = [layer for layer in PROFILES["default"].layers if fault.reason_hidden(layer)]
            assert others
            assert all(layer.replace(**fault.subject.changes(layer)) == layer for layer in others), fault.name


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "properties"),
    [
        ("repeated_heads", ("scores", "conditional")),
        ("centred_relu", ("inputs", "scores")),
        ("positions_apart", ("scores", "independence")),
        ("skipped_values", ("conditional", "independence")),
    ],
)
def test_a_fault_of_one_regime_is_not_seen_elsewhere(name: str, properties: tuple[str, ...]) -> None:
    assert FAULTS[name].reason_hidden(NARROW)
    results = [result for each in properties for result in examine(FAULTS[name].subject, NARROW, each, "smoke")]
    assert violated(results) == []
    assert any(result.verdict == "consistent" for result in results)


@pytest.mark.sampled
@pytest.mark.parametrize("fault", wrong_regimes.FAULTS[-3:], ids=lambda fault: fault.name)
def test_wrong_norms_are_seen_with_either_norm_and_hidden_without(fault: Fault) -> None:
    layer = NAMED_BY[fault.name][0]
    norms: tuple[Norm, ...] = ("rms", "layer")
    for norm in norms:
        assert violated(examine(fault.subject, layer.replace(norm=norm), "exactness", "smoke"))
    plain = layer.replace(norm=None)
    assert fault.reason_hidden(plain) == "the inputs are not normalised"
    results = examine(fault.subject, plain, "exactness", "smoke")
    assert violated(results) == []
    assert any(result.verdict == "consistent" for result in results)


def test_exposing_keeps_the_declared_law_of_weights() -> None:
    blind = exposing(FAULTS["unscaled_uniform_weights"], EXPOSURES["outputs"])
    assert Subject.of(blind).weights == WeightLaws.of("uniform")
    assert Subject.of(exposing(collapsed, EXPOSURES["outputs"])).weights.gaussian


@pytest.mark.parametrize("exposure", EXPOSURES)
def test_exposing_leaves_the_rest_out(exposure: str) -> None:
    subject = Subject.of(exposing(FAULTS["tied_query_key"], EXPOSURES[exposure]))
    setting = subject.probe(PAPER, np.random.default_rng(0))
    assert setting.exposed & set(FIELDS) == set(EXPOSURES[exposure]) & setting.exposed
    assert ("scores" in setting.exposed) == (exposure != "outputs")


def test_exposing_refuses_unknown_fields() -> None:
    with pytest.raises(InputError, match="fields"):
        exposing(collapsed, ["weights"])


def test_faults_are_subjects_by_name() -> None:
    subject = Subject.of("attncheck.faults:tied_query_key")
    assert subject.call is FAULTS["tied_query_key"].subject
    with pytest.raises(InputError, match="no_such_fault"):
        Subject.of("attncheck.faults:no_such_fault")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
@pytest.mark.parametrize("layer", ODD, ids=AttentionLayer.describe)
def test_mistakes_are_drawn_on_layers_that_hide_them(mistake: Fault, layer: AttentionLayer) -> None:
    """Diagnosis compares each with all violated layers, of any shape."""
    drawn = Subject.of(mistake.subject).draw(layer, 20, np.random.default_rng(1))
    assert drawn.outputs.shape == (20, layer.seq_len, min(2, layer.width))
    assert np.isfinite(drawn.outputs).all()
