"""Every program check rejects a known-wrong simulator, and each of these is found by its named checks."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.programs import PROGRAM_CHECKS
from attncheck.checks.programs.sample import PROGRAM_FIELDS, sample_of
from attncheck.checks.registry import checks_of
from attncheck.diagnosis.lines import wrong_functions, wrong_laws, wrong_sizes
from attncheck.evidence.family import Outcome
from attncheck.faults.fault import Fault
from attncheck.faults.pairs import paired, rejecting
from attncheck.faults.programs import PROGRAM_FAULTS, LineByLineSimulator
from attncheck.layers.program import Program, ProgramCase
from attncheck.layers.program.mixes import softmax_mix
from attncheck.looks.domains import widths_of
from attncheck.looks.look import observe
from attncheck.looks.plan import plan
from attncheck.looks.profiles import PROFILES
from attncheck.programs import EXAMPLES
from attncheck.subject import Subject

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


@pytest.mark.sampled
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
    case, seeds = program("cross_attention").at(16), range(5)
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
@pytest.mark.parametrize("seed", range(2))
def test_no_line_is_blamed_that_is_its_function_of_wrong_ones(fault: str, seed: int) -> None:
    """Scores of wrong vectors have wrong sizes; neither fault changes a mean, a variance or a correlation."""
    report = ac.check(PROGRAM_FAULTS[fault].subject, program("gated_attention"), profile="smoke", seed=seed)
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
