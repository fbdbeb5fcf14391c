"""Every known-wrong simulator is found by a check that names the fault; right ones pass."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest

from attncheck.checks.programs.sample import PROGRAM_FIELDS
from attncheck.checks.registry import CHECKS
from attncheck.checks.returned import FIELDS
from attncheck.diagnosis.mistakes import MISTAKES
from attncheck.faults import EXPOSURES, FAULTS, exposing, wrong_regimes
from attncheck.faults.fault import Fault, MisreadLayer
from attncheck.faults.pairs import paired
from attncheck.faults.programs import PROGRAM_FAULTS
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts import PARTS
from attncheck.layers.regimes import REGIMES
from attncheck.looks.profiles import ANCHORS, PROFILES
from attncheck.looks.result import violated
from attncheck.programs import positional_attention
from attncheck.simulators.weights import WeightLaws
from attncheck.subject import Subject, collapsed
from tests.refusals import refused
from tests.regimes import FAULT_OF
from tests.results import results_of
from tests.simulators.cases import PLAIN

PAPER, NARROW, ONE, GROUPED = ANCHORS[:4]
# About as small as the check's planned alternative, or smaller, with more power.
SLIGHT = frozenset({"key_std_2", "value_std_2", "output_std_2", "weights_per_call", "growing_outputs"})
SURELY = 1 - 1e-6


#: For each fault that is not the first of a check's own, a layer and a check that detects it there.
OTHERS = {
    **{
        f"{matrix}_std_{percent}": (GROUPED, check)
        for matrix, check in (
            ("key", "scores.key_scale"),
            ("value", "conditional.value_scale"),
            ("output", "conditional.scale"),
        )
        for percent in (2, 10)
    },
    "weights_per_call": (NARROW, "draws.calls"),
    "copied_draws": (PAPER, "exactness.repeats"),
    "dropped_head": (PAPER, "conditional.scale"),
    "bartlett_freedom": (NARROW, "scores.key_scale"),
    "student_weights": (ONE, "scores.key_law"),
    "repeated_stream": (PAPER, "draws.repeats"),
    "growing_outputs": (PAPER, "conditional.trend"),
    "ignored_over_n": (REGIMES["1/n scaling"], "scores.scale"),
    "full_rank_heads": (REGIMES["low rank"], "scores.key_law"),
    "linear_as_softmax": (REGIMES["linear attention"], "conditional.scale"),
    "repeated_heads": (REGIMES["many heads"], "scores.key_copies"),
    "untied_query_key": (REGIMES["tied queries and keys"], "exactness.score"),
    "centred_relu": (REGIMES["relu inputs"], "exactness.input_overlap"),
    "forgotten_positions": (REGIMES["positions"], "inputs.law"),
    **{
        misreading.name: (PAPER.replace(**part.example), misreading.check)
        for part in PARTS
        for misreading in part.misreadings
    },
    "positions_apart": (REGIMES["positions"], "scores.key_law"),
    "skipped_values": (ONE, "independence.output_inputs"),
    "ignored_mask": (GROUPED, "conditional.joint"),
    "unscaled_uniform_weights": (PAPER, "outputs.limit"),
    "forgotten_norm": (REGIMES["normalised inputs"], "exactness.input_length"),
    "other_norm": (REGIMES["normalised inputs"], "exactness.input"),
    "norm_over_positions": (REGIMES["normalised inputs"], "exactness.input_length"),
}
#: Layers that show a fault: those of a check that it is the first fault of, and these.
SHOWN_ON = {
    **{paired(check)[0].name: check.rejects.layer for check in CHECKS if check.rejects.layer is not None},
    **{name: layer for name, (layer, _) in OTHERS.items()},
}


def test_every_fault_is_rejected_by_a_check() -> None:
    assert set(SHOWN_ON) >= set(FAULTS) >= set(OTHERS)
    assert len(FAULTS) >= 20


# tests/checks/test_pairs.py tests the first fault of each check.
@pytest.mark.sampled
@pytest.mark.parametrize("name", OTHERS)
def test_fault_is_caught_by_its_check(name: str) -> None:
    """On the check's own number of draws."""
    (layer, check), slight = OTHERS[name], name in SLIGHT
    assert FAULTS[name].reason_hidden(layer) == ""
    profile = PROFILES["default" if slight else "smoke"]
    cost = dataclasses.replace(profile.cost(layer), power=SURELY if slight else PROFILES["smoke"].power)
    (result,) = results_of(FAULTS[name].subject, layer, check.partition(".")[0], cost=cost, only=check)
    assert result.verdict == "violated"


def test_no_fault_is_hidden_by_all_fixed_layers() -> None:
    for name, fault in FAULTS.items():
        fixed = (*PROFILES["default"].layers, SHOWN_ON[name])
        assert not all(fault.reason_hidden(layer) for layer in fixed), name


@pytest.mark.parametrize(
    ("fault", "case", "fields"),
    [
        *((fault, GROUPED, FIELDS) for fault in FAULTS.values()),
        *((fault, positional_attention().at(16), PROGRAM_FIELDS) for fault in PROGRAM_FAULTS.values()),
    ],
)
def test_fault_exposes_what_a_right_simulator_does(fault: Fault, case: Any, fields: tuple[str, ...]) -> None:
    draws = (Subject.of(fault.subject).draw(case, 5, np.random.default_rng(seed)) for seed in (0, 0, 1))
    sample, again, other = draws
    assert sample.exposed >= set(fields)
    assert np.array_equal(sample.outputs, again.outputs)
    assert not np.array_equal(sample.outputs, other.outputs)


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


WRONG_NORMS = [fault.name for fault in wrong_regimes.FAULTS[-3:]]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "layer", "properties"),
    [
        ("leaking_mask", PAPER, ("conditional",)),
        ("shared_keys", ONE, ("scores",)),
        ("repeated_heads", NARROW, ("scores", "conditional")),
        ("centred_relu", NARROW, ("inputs", "scores")),
        ("positions_apart", NARROW, ("scores", "independence")),
        ("skipped_values", NARROW, ("conditional", "independence")),
        *((name, REGIMES["normalised inputs"].replace(norm=None), ("exactness",)) for name in WRONG_NORMS),
    ],
)
def test_a_fault_is_not_seen_where_it_is_hidden(name: str, layer: AttentionLayer, properties: tuple[str, ...]) -> None:
    assert FAULTS[name].reason_hidden(layer)
    results = [result for each in properties for result in results_of(FAULTS[name].subject, layer, each)]
    assert violated(results) == []
    assert any(result.verdict == "consistent" for result in results)


def test_exposing_keeps_declared_weights_and_leaves_the_rest_out() -> None:
    blind = exposing(FAULTS["unscaled_uniform_weights"], EXPOSURES["outputs"])
    assert Subject.of(blind).weights == WeightLaws.of("uniform")
    assert Subject.of(exposing(collapsed, EXPOSURES["outputs"])).weights.gaussian
    for exposure, fields in EXPOSURES.items():
        subject = Subject.of(exposing(FAULTS["tied_query_key"], fields))
        exposed = subject.probe(PAPER, np.random.default_rng(0)).exposed
        assert exposed & set(FIELDS) == set(fields) & exposed
        assert ("scores" in exposed) == (exposure != "outputs")
    refused(lambda: exposing(collapsed, ["weights"]), "fields")


def test_faults_are_subjects_by_name() -> None:
    assert Subject.of("attncheck.faults:tied_query_key").call is FAULTS["tied_query_key"].subject
    programs = Subject.of("attncheck.faults.programs:tied_matrices").programs
    assert programs is PROGRAM_FAULTS["tied_matrices"].subject
    for module in ("faults", "faults.programs"):
        refused(partial(Subject.of, f"attncheck.{module}:no_such_fault"), "no_such_fault")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
@pytest.mark.parametrize("layer", [layer for layer in PLAIN if layer.width < 8], ids=AttentionLayer.describe)
def test_mistakes_are_drawn_on_layers_that_hide_them(mistake: Fault, layer: AttentionLayer) -> None:
    """Diagnosis compares each with all violated layers, of any shape."""
    drawn = Subject.of(mistake.subject).draw(layer, 20, np.random.default_rng(1))
    assert drawn.outputs.shape == (20, layer.seq_len, min(2, layer.width))
    assert np.isfinite(drawn.outputs).all()
