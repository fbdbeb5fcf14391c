"""Every known-wrong simulator, of layers and programs, is found by a check that names the fault; right ones pass."""

from __future__ import annotations

import dataclasses
import functools
from functools import partial
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.programs import PROGRAM_CHECKS
from attncheck.checks.programs.sample import PROGRAM_FIELDS, sample_of
from attncheck.checks.registry import CHECKS, checks_of
from attncheck.checks.returned import FIELDS
from attncheck.diagnosis.lines import wrong_functions, wrong_laws, wrong_sizes
from attncheck.diagnosis.mistakes import MISTAKES
from attncheck.evidence.family import Outcome
from attncheck.faults import EXPOSURES, FAULTS, exposing, wrong_regimes
from attncheck.faults.fault import Fault, MisreadLayer
from attncheck.faults.pairs import paired, rejecting
from attncheck.faults.programs import PROGRAM_FAULTS, LineByLineSimulator
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts import PARTS
from attncheck.layers.program import Program, ProgramCase
from attncheck.layers.program.mixes import softmax_mix
from attncheck.layers.regimes import REGIMES
from attncheck.looks.domains import widths_of
from attncheck.looks.look import observe
from attncheck.looks.plan import plan
from attncheck.looks.profiles import ANCHORS, PROFILES
from attncheck.looks.result import violated
from attncheck.programs import EXAMPLES, positional_attention
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


# tests/checks/test_structure.py tests the first fault of each check.
@pytest.mark.sampled(6)
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


@pytest.mark.sampled
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
@pytest.mark.parametrize("layer", [layer for layer in PLAIN if layer.width < 8], ids=AttentionLayer.describe)
def test_mistakes_are_drawn_on_layers_that_hide_them(mistake: Fault, layer: AttentionLayer) -> None:
    """Diagnosis compares each with all violated layers, of any shape."""
    drawn = Subject.of(mistake.subject).draw(layer, 20, np.random.default_rng(1))
    assert drawn.outputs.shape == (20, layer.seq_len, min(2, layer.width))
    assert np.isfinite(drawn.outputs).all()


# Faults of programs -------------------------------------------------------------------------------


#: Bound on one look, far below a run's level for a further one.
FALSE_ALARM = 1e-6
#: A fault is examined on the first of these that shows it.
WITH_SCORES = ("cross_attention", "positional_attention", "gated_attention")
#: And on the first of these that shows it, if any.
WITHOUT_SCORES = ("perceptron", "recurrent")
#: Bounds on the effect in averages, by checks of orders, in particular programs.
ORDERS = {
    ("wandering_scale", "fact1.order", "perceptron"): (-0.15, 0.15),
    ("wandering_scale", "theorem1.order", "cross_attention"): (-0.15, 0.15),
    ("equal_rows", "fact1.order", "perceptron"): (-0.4, -0.1),
    ("outputs_apart", "theorem1.order", "gated_attention"): (-0.25, 0.15),
}
#: Beginning of the sentence on the first wrong line of a program, by fault: exact ones, and estimates.
LINES = {
    "shifted_initials": "h ~ N(0, 1): mean 0.5",
    "independent_initials": "x2 ~ N(0, 1) and x1 ~ N(0, 1): covariance",
    "biased_matmuls": "g1 = W1 h: mean 0.",
    "matrix_std_5": "g1 = W1 h: variance 1.1",
    "fresh_matrices": "g3 = W s1 has another W than earlier products: its variance given them 1.1",
    "stale_vectors": "g2 = W2 x1 is W2 h: another vector is multiplied",
    "tied_matrices": "g2 = aW2 ah is 1 times g1 = aW1 ah: one matrix in place of two",
    "always_tanh": "x1 = relu(g1) has other values, such as -0.",
    "first_term": "h1 = linear(1, 1)(g1, g2) has other values",
    "half_precision": "x1 = relu(g1) has other values in 7",
    "scores_over_n": "p1,1 = <q1, k1> / sqrt(n) is 0.25 times the declared line (n^-0.5)",
    "scores_5": "p1,1 = <q1, k1> / sqrt(n) is 1.05 times the declared line",
    "leaking_neuron": "p1,1 = <q1, k1> / sqrt(n) has other values",
    "limit_scores": "p1,1 = <q1, k1> / sqrt(n) has other values",
    "copied_score": "p2,3 = <q2, k3> / sqrt(n) has other values",
    "negated_scores": "y1 = sigmoid_mix(o1, o2, o3, p1,1, p1,2, p1,3) has other values",
}
#: Faults whose `visible` names good programs; elsewhere they change the law a little.
SHOWING_WELL = ("tied_matrices", "limit_scores", "negated_scores")


@functools.cache
def program(name: str) -> Program:
    return EXAMPLES[name]()


@functools.cache
def look(fault: str, name: str, property_name: str, seed: int = 0) -> dict[str, Outcome]:
    """Return one look of a fault's checks, twice as long as planned."""
    case, subject = ProgramCase.of(program(name), widths_of(property_name)), Subject.of(PROGRAM_FAULTS[fault].subject)
    key = ("tests", "program faults", fault, property_name, case.to_dict())
    setting = subject.probe(case, stream(seed, *key, role="probe"))
    planned = plan(checks_of(property_name), setting, PROFILES["default"].cost(case))
    also = {check for of, check, where in ORDERS if (of, where) == (fault, name)}
    checks = [check for check in planned.sizes if check.name in {*rejecting(PROGRAM_FAULTS[fault]), *also}]
    if not checks:
        return {}
    rng, reference = stream(seed, *key), seed_sequence(seed, *key, role="reference")
    outcomes = observe(planned, checks, 2, subject, rng, reference)
    return {check: outcome for check, outcome in outcomes.items() if outcome.count}


def visible_in(fault: Fault, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if not fault.reason_hidden(program(name))]


def unseen(fault: Fault, name: str, checks: list[str]) -> list[str]:
    """Return the applicable checks that miss a fault in a program."""
    properties = dict.fromkeys(check.partition(".")[0] for check in checks)
    outcomes = {check: each for of in properties for check, each in look(fault.name, name, of).items()}
    return [check for check in checks if check in outcomes and outcomes[check].p_value >= FALSE_ALARM]


def test_every_check_has_a_fault_that_it_must_reject() -> None:
    assert all(paired(check) for check in PROGRAM_CHECKS)
    assert {fault.name for check in PROGRAM_CHECKS for fault in paired(check)} == set(PROGRAM_FAULTS)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fault", PROGRAM_FAULTS.values(), ids=PROGRAM_FAULTS)
def test_fault_is_seen_by_every_check_it_names(fault: Fault) -> None:
    """A check's first fault is one that it examines."""
    where = visible_in(fault, WITH_SCORES)[0]
    assert unseen(fault, where, rejecting(fault)) == []
    for check in (check.name for check in PROGRAM_CHECKS if paired(check)[0] == fault):
        assert check in look(fault.name, where, check.partition(".")[0])
    for name in visible_in(fault, WITHOUT_SCORES)[:1]:
        assert unseen(fault, name, [check for check in rejecting(fault) if check.startswith("netsor.")]) == []


@pytest.mark.sampled
@pytest.mark.parametrize(("fault", "check", "name"), ORDERS)
def test_order_of_averages_that_converge_slowly_or_not_at_all(fault: str, check: str, name: str) -> None:
    seen = look(fault, name, check.partition(".")[0])[check]
    assert seen.p_value < FALSE_ALARM
    low, high = ORDERS[fault, check, name]
    assert low < seen.effect < high


def lines_of(simulator: Any, name: str, seed: int) -> list[str]:
    """Return what a diagnosis says of the lines of 2,000 draws at 16 neurons."""
    case = program(name).at(16)
    sample = sample_of(case, [simulator(case.program, 16, 2000, stream(seed, "lines", name))], 2000)
    return wrong_functions(sample) or wrong_laws(sample)


@pytest.mark.parametrize("fault", LINES)
def test_first_wrong_line_is_named(fault: str) -> None:
    where = visible_in(PROGRAM_FAULTS[fault], WITHOUT_SCORES + WITH_SCORES)[0]
    assert lines_of(PROGRAM_FAULTS[fault].subject, where, 0)[0].startswith(LINES[fault])


@pytest.mark.parametrize("fault", ["scores_over_n", ""])
def test_sizes_are_compared_where_lines_are_not_returned(fault: str) -> None:
    case, seeds = program("cross_attention").at(16), range(2)
    simulator = PROGRAM_FAULTS[fault].subject if fault else LineByLineSimulator()
    for seed in seeds:
        drawn = simulator(case.program, 16, 4000, stream(seed, "sizes", fault))
        sample = sample_of(case, [{name: drawn[name] for name in ("outputs", "scores")}], 4000)
        root = seed_sequence(seed, "sizes", role="reference")
        texts = wrong_sizes(sample, ac.simulate(case, 4000, root, coordinates=2))
        assert bool(texts) == bool(fault)
        assert all(text.startswith("p1,1 = <q1, k1> / sqrt(n): geometric mean of sizes 0.2") for text in texts[:1])
        assert wrong_functions(sample) == wrong_laws(sample) == []


@pytest.mark.parametrize("fault", ["wandering_scale", "equal_rows"])
def test_no_line_is_blamed_that_is_its_function_of_wrong_ones(fault: str) -> None:
    """Scores of wrong vectors have wrong sizes; neither fault changes a mean, a variance or a correlation."""
    report = ac.check(PROGRAM_FAULTS[fault].subject, program("gated_attention"), profile="smoke")
    assert report.verdict == "violated"
    assert not [cause for cause in report.causes if " = " in cause]


def two_layers(first_query_again: bool) -> Program:
    """Return two layers of attention, whose second has queries of its own or those of the first matrix."""
    program = Program()
    h = program.initial("h")
    x: list[Any] = [h, program.matmul(program.weight("W"), h)]
    first, second = program.weight("Q1"), program.weight("Q2")
    for layer, query in enumerate((first, first if first_query_again else second), 1):
        matrices = query, program.weight(f"K{layer}"), program.weight(f"V{layer}")
        q, k, v = ([program.matmul(matrix, z) for z in x] for matrix in matrices)
        scores = [[program.score(one, other) for other in k] for one in q]
        x = [program.output(softmax_mix, vectors=v, scores=row) for row in scores]
    return program


@pytest.mark.parametrize("again", [True, False])
def test_a_matrix_that_later_vectors_share_is_named(again: bool) -> None:
    def simulator(program: Program, width: int, size: int, rng: np.random.Generator) -> Any:
        return LineByLineSimulator()(two_layers(again), width, size, rng)

    report = ac.check(simulator, two_layers(False), profile="smoke")
    assert report.verdict == ("violated" if again else "consistent")
    named = [cause.partition(" = Q1 ")[0] for cause in report.causes[:1]]
    assert named in ([["g8 = Q2 y1 and g2"], ["g8 = Q2 y1 and g3"]] if again else [[]])


@pytest.mark.parametrize(("coordinates", "named"), [(4, True), (3, False)])
def test_a_copied_matrix_is_named_from_vectors_alone(coordinates: int, named: bool) -> None:
    side_by_side = Program()
    h = side_by_side.initial("h")
    for name in "AB":
        side_by_side.matmul(side_by_side.weight(name), h)
    h_values, images = np.random.default_rng(0).standard_normal((2, 50, 1, coordinates))
    vectors = np.concatenate([h_values, images, -0.5 * images], axis=1)
    draws = {"outputs": vectors[:, 1:], "vectors": vectors}
    texts = wrong_functions(sample_of(ProgramCase.of(side_by_side, (8,)), [draws], 50))
    assert texts == (["g2 = B h is -0.5 times g1 = A h: one matrix in place of two"] if named else [])


@pytest.mark.sampled
@pytest.mark.parametrize("name", EXAMPLES)
def test_lines_of_a_right_simulator_are_as_declared(name: str) -> None:
    assert [lines_of(LineByLineSimulator(), name, seed) for seed in range(3)] == 3 * [[]]
    # Other faults fit other vectors, a little.
    for fault, seed in {"fresh_matrices": 1, "matrices_of_a_call": 3}.items():
        assert "another vector" not in " ".join(lines_of(PROGRAM_FAULTS[fault].subject, name, seed))


def test_faults_are_hidden_where_they_change_nothing() -> None:
    hidden = [
        (fault, name)
        for fault in PROGRAM_FAULTS.values()
        for name in EXAMPLES
        if fault.reason_hidden(program(name)) and fault.name not in SHOWING_WELL
    ]
    assert len({fault.name for fault, _ in hidden}) >= 8
    for fault, name in hidden:
        right, wrong = (
            draw(program(name), 8, 3, stream(0, "hidden")) for draw in (LineByLineSimulator(), fault.subject)
        )
        assert all(np.array_equal(right[field], wrong[field]) for field in PROGRAM_FIELDS), (fault.name, name)
    for name in SHOWING_WELL:
        assert PROGRAM_FAULTS[name].reason_hidden(program("perceptron"))


@pytest.mark.parametrize("name", ["recurrent", "grouped_query_attention"])
def test_line_by_line_is_right(name: str) -> None:
    assert ac.check(LineByLineSimulator(), program(name), profile="smoke").verdict == "consistent"
