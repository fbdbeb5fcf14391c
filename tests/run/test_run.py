"""Runs: planned ahead, reproducible by seed, alike in any order, with clear messages on failures."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from attncheck import AttentionLayer, InputError, faults
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.files import write_file
from attncheck._lib.processes import Processes
from attncheck._lib.workers import InProcess
from attncheck.checks.registry import EVERY_PROPERTY, PROGRAM_PROPERTIES, PROPERTIES, checks_of
from attncheck.commands.cli import main
from attncheck.evidence.exchange import Calls, Trend
from attncheck.evidence.family import Outcome
from attncheck.evidence.looks import ROOM
from attncheck.faults import FAULTS
from attncheck.layers.regimes import REGIMES
from attncheck.looks import look as look_module
from attncheck.looks.examine import probed, run_items
from attncheck.looks.item import Item
from attncheck.looks.look import CheckData, observe
from attncheck.looks.plan import Cost, Plan
from attncheck.looks.profiles import ANCHORS, PROFILES, REGIME_ANCHORS
from attncheck.looks.substitutes import substitute
from attncheck.programs import recurrent
from attncheck.pytest_plugin.cases import item_id
from attncheck.records.schema import Result
from attncheck.runs.options import RunOptions
from attncheck.runs.probe import refusal
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run
from attncheck.runs.tasks import CaseTask
from attncheck.runs.tasks import examine as examine_task
from attncheck.simulators.weights import draw_with_weights
from attncheck.strategies import layers
from attncheck.subject import Subject, collapsed, direct
from tests.recorded import RIGHT, Recorded, closing_of
from tests.refusals import refused

from .conftest import COST, GROUPED, LAYER, made, planned

THOROUGH: dict[str, Any] = {"profile": "thorough"}
#: Options that all front ends share, and what is said of them.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"seed": "-1"}, "seed=-1: must be at least 0; pass a whole number, or random"),
    ({"seed": "1.5"}, "seed='1.5': must be a whole number"),
    ({"profile": "fast"}, "profile='fast': is not known; use one of 'smoke', 'default', 'thorough'"),
    ({"false_alarm": "0"}, "false_alarm=0.0: must be greater than 0"),
    ({"false_alarm": "1"}, "false_alarm=1.0: must be less than 1"),
    ({"false_alarm": "nan"}, "false_alarm=nan: must be finite; pass a chance such as 1e-6"),
    ({"draws": "1e6"}, "draws='1e6': has no effect with the profile smoke; use the profile thorough"),
    *(({"draws": text, **THOROUGH}, f"draws='{text}': must be a whole number") for text in ("0.5", "inf", "many")),
    ({"draws": "0", **THOROUGH}, "draws=0: must be at least 1"),
    ({"subject": "nowhere:f"}, "subject=nowhere:f: cannot be imported"),
    ({"subject": 3}, "is not callable; pass a function (layer, size, rng) or (layer, inputs, rng)"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_an_unusable_option_is_named(options: dict[str, Any], message: str) -> None:
    refused(lambda: made(**options), re.escape(message))


def test_numbers_may_be_typed_or_given() -> None:
    assert made(seed="7", false_alarm="1e-3") == made(seed=7, false_alarm=1e-3)
    assert made(draws="1e6", **THOROUGH).draws == made(draws=10**6, **THOROUGH).draws == 10**6


def test_items_are_fixed_cases_and_then_examples() -> None:
    for name, profile in PROFILES.items():
        cases = [item.case for item in made(profile=name).items("scores", layers(max_entries=500))]
        fixed = ANCHORS[: profile.fixed_cases] + REGIME_ANCHORS[: profile.regimes]
        assert cases[: len(fixed)] == list(fixed) == list(profile.layers)
        assert len(fixed) < len(cases) == len(set(cases)) <= len(fixed) + profile.examples


def test_no_cost_depends_on_the_plan() -> None:
    run = planned("scores", "draws")
    checks = [check.name for item in run.item_ids for check in checks_of(item.partition("@")[0])]
    assert [result.check for result in run.planned] == checks
    assert run.planning([*run.item_ids, *run.item_ids]).planned == run.planned
    alone, both = (made().items_on("scores", cases) for cases in ([LAYER], [LAYER, GROUPED]))
    (task,), (same, _) = made().tasks(alone), made().tasks(both)
    assert task.cost == same.cost == PROFILES["smoke"].cost(LAYER)


def test_thorough_draws_are_those_of_costly_layers() -> None:
    wide = AttentionLayer(width=2048)
    profile = made(draws=10**5, **THOROUGH).profile
    assert profile.affordable(wide) == profile.affordable(LAYER) == 10**5 > PROFILES["thorough"].affordable(LAYER)
    assert PROFILES["thorough"].affordable(wide) == PROFILES["thorough"].fewest_draws


def test_more_than_the_budget_allows_is_refused() -> None:
    count = -(-ROOM // len(checks_of("scores")))
    items = [f"scores@{number:012x}" for number in range(count)]
    refused(lambda: made().planning(items), r"plan='10,\d+': are more results, pools included, than the 10,000 that")
    assert made().planning(items[: count // 2]).planned


def reported(record: Path, *names: str, **options: Any) -> tuple[RunReport, bool]:
    """Return the report of a run planned for scores and draws that examined properties, and whether it passed."""
    run = planned("scores", "draws", record=record, **{"subject": RIGHT, **options})
    report = RunReport(run)
    for name in names:
        report.take(run.examine(run.items_on(name, [LAYER])))
    return report, report.finish()


@pytest.mark.parametrize("names", [[], ["scores"], ["scores", "draws", "draws"], ["scores", "draws", "inputs"]])
def test_missing_or_further_results_are_incomplete(tmp_path: Path, names: list[str]) -> None:
    report, passed = reported(tmp_path / "record.jsonl", *names)
    assert not passed
    closing, text = closing_of(tmp_path / "record.jsonl"), report.summary()
    assert closing.verdict == "incomplete"
    assert closing.reasons[0] in text
    if not names:  # without a table
        assert text.startswith(f"INCOMPLETE: {RIGHT}, 0 of {len(report.run.planned)} planned results examined on 0")
        assert "property" not in text


def test_a_report_needs_a_path() -> None:
    refused(lambda: RunReport(planned("scores")), "record=None: is missing")


def test_summary_tells_what_no_layer_examined(tmp_path: Path) -> None:
    blind = faults.exposing(collapsed, ["outputs", "scores"])
    report, passed = reported(tmp_path / "record.jsonl", "scores", "draws", subject=blind)
    assert not passed
    text = report.summary(verbose=True)
    assert text.startswith("INCONCLUSIVE: ")
    assert "none on a law" in text
    assert "Not examined on any layer:" in text
    assert "  the subject does not expose input_gram, key_gram: draws.keys, draws.scores, scores" in text
    assert not any(line.startswith(" scores") for line in text.splitlines())
    assert "Return input_gram, key_gram" not in text
    assert " too: up to " in report.summary()


# Probe calls: a subject that always fails is one error, and the record has the reason -------------


SUBJECTS = """
def raising(layer, inputs, rng):
    raise ValueError("boom\\nin the second line")

def deaf(layer, inputs, rng):
    return {"outputs": inputs}

def undecided(layer, inputs, rng):
    return {"outputs": inputs * rng.standard_normal()}

def ungrouped(layer, inputs, rng):
    return {"outputs": inputs}

def _supports(layer):
    raise KeyError("width")

undecided.supports = _supports
ungrouped.supports = lambda layer: layer.num_kv_heads is None or layer.groups
"""
ERRORS = {
    "raising": r"subject=failing:raising: raised ValueError: boom in the second line \(failing.py:3\) on n=",
    "deaf": "two different generators gave the same outputs",
    "undecided": "failing:undecided.supports: raised KeyError: 'width'",
    # On some layers only; the run ends before it begins.
    "ungrouped": "failing:ungrouped.supports: raised AttributeError: .*num_kv_heads=2",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "failing.py").write_text(SUBJECTS, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ERRORS)
def test_a_subject_that_always_fails_is_one_error(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    run = ["run", "--profile=smoke", "--only=draws", "--workers=0", f"--subject=failing:{name}"]
    assert main([*run, "--record=run.jsonl", "--report=page.html"]) == ExitCode.UNUSABLE
    _, first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("ERROR: ")
    assert re.search(ERRORS[name], first)
    assert first.endswith("Nothing was examined.")
    assert sum("Traceback" in line for line in rest) == (": raised " in first)
    assert not any("missing" in line or "attncheck/" in line for line in rest)
    assert closing_of(folder / "run.jsonl").verdict == "incomplete"
    assert main(["gate", "run.jsonl", "--baseline=none.jsonl"]) == ExitCode.INCOMPLETE
    assert re.search(ERRORS[name], capsys.readouterr().out)
    assert "nothing was examined" in (folder / "page.html").read_text("utf-8")


def test_a_run_that_fails_before_it_begins_leaves_no_record(
    folder: Path, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gate would judge that of an earlier run."""
    gate = ["gate", "reports/output/record.jsonl", "--baseline=base.jsonl", "--summary=s.md", "--json=j.json"]
    write_file(folder / "reports/output/record.jsonl", recorded.right.read_bytes())
    assert main([*gate, "--write-baseline"]) == ExitCode.CONSISTENT
    assert main(["run", "--profile=smoke", "--workers=0", "--subject=failing:absent"]) == ExitCode.UNUSABLE
    assert "The record of an earlier run is now reports/output/record.jsonl.earlier." in capsys.readouterr().out
    assert main(gate) == ExitCode.UNUSABLE
    assert json.loads((folder / "j.json").read_text("utf-8"))["verdict"] == "unusable"
    assert "record.jsonl: cannot be read" in (folder / "s.md").read_text("utf-8")
    assert main(["gate", "reports/output/record.jsonl.earlier", *gate[2:]]) == ExitCode.CONSISTENT


def supporting(subject: object, *widths: int, timeout: float = 60.0) -> Run:
    """Return a run of a subject that supports only layers of these widths."""
    layers = tuple(AttentionLayer(width=width, seq_len=2, num_heads=1) for width in widths)
    run = Run.of(RunOptions(subject=subject, profile="smoke", timeout=timeout))
    run = dataclasses.replace(run, subject=dataclasses.replace(run.subject, layers=layers))
    return run.planning(item.id for item in run.items_on("draws", layers))


@pytest.mark.parametrize("bad", [(4,), (4, 8), (4, 8, 16)])
def test_one_probe_that_works_is_enough(bad: tuple[int, ...]) -> None:
    """The first, the cheapest and the most expensive layer are tried; texts of errors steer no terminal."""
    tried = []

    def subject(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        tried.append(layer.width)
        if layer.width in bad:
            raise ValueError(f"width {layer.width}\n::error::forged \x1b[31m")
        return direct(layer, size, rng)

    refused = refusal(supporting(subject, 8, 4, 12, 16), InProcess())
    assert (refused is not None) == (len(bad) == 3)
    assert list(dict.fromkeys(tried)) == ([8] if 8 not in bad else [8, 4, 16])
    if refused is not None:
        assert "width 8" in refused.unusable
        lines = [refused.unusable, *refused.traceback.splitlines()]
        assert not any("\x1b" in line or line.strip().startswith("::") for line in lines)
        assert lines[1].startswith("Traceback")


def test_a_call_that_hangs_is_not_waited_for_again() -> None:
    tried = []

    def subject(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        tried.append(layer.width)
        while True:
            time.sleep(0.01)

    refused = refusal(supporting(subject, 8, 4, 16, timeout=0.2), InProcess())
    assert refused is not None
    assert "took more than 0.2 s for one call" in refused.unusable
    assert tried == [8]


def test_an_import_that_hangs_in_a_worker_is_stopped(folder: Path) -> None:
    hanging = "import multiprocessing, time\nif multiprocessing.parent_process():\n    time.sleep(600)\n"
    (folder / "hanging.py").write_text(hanging + SUBJECTS, "utf-8")
    with Processes(1) as workers:
        refused = refusal(supporting("hanging:raising", 4, timeout=1.0), workers)
    assert refused is not None
    assert "cannot be imported: GuardError: took more than 1 s" in refused.unusable


# Properties of a case share draws, their results do not depend on each other, and large data are condensed


WIDE = AttentionLayer(width=64, seq_len=4, num_heads=2)
PROGRAM = ("netsor", "program_scores")


def units_of(case: Any, names: Sequence[str] = PROPERTIES) -> list[Item]:
    return [Item(name, case) for name in names]


def digits(results: Sequence[Result]) -> list[Result]:
    return [msgspec.structs.replace(result, seconds=0.0) for result in results]


def uniform(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
    return draw_with_weights(layer, size, 2, rng, "uniform").as_dict()


uniform.weights = "uniform"  # type: ignore[attr-defined]  # functions take attributes, their type says no


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("subject", "case", "names", "cost"),
    [
        (collapsed, LAYER, PROPERTIES, COST),
        (collapsed, WIDE, PROPERTIES, Cost(381, 5e-4, 0.9)),
        # Some checks are violated, after looks of other sizes.
        (FAULTS["tied_query_key"].subject, LAYER, PROPERTIES, COST),
        (uniform, LAYER, ("exactness", "scores", "conditional", "independence"), Cost(1500, 5e-4, 0.9)),
        ("attncheck.subject:direct", recurrent(2).at(16), PROGRAM, COST),
    ],
    ids=["right", "cut", "faulty", "other weights", "program"],
)
def test_a_property_comes_to_the_same_alone_and_beside_others(
    subject: Any, case: Any, names: Sequence[str], cost: Cost
) -> None:
    settled, items = Subject.of(subject), units_of(case, names)
    together = digits(run_items(items, settled, 0, cost))
    alone = [result for item in items for result in digits(run_items([item], settled, 0, cost))]
    assert together == alone
    assert len({tuple(result.p_values) for result in together}) > 5
    turned = digits(run_items(items[::-1], settled, 0, cost))
    assert sorted(turned, key=lambda r: r.id) == sorted(together, key=lambda r: r.id)


def test_a_property_that_fails_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = run_items

    def failing(items: Sequence[Item], *rest: Any) -> list[Result]:
        if any(item.property_name == "scores" for item in items):
            raise InputError("subject=mine: no scores today")
        return real(items, *rest)

    monkeypatch.setattr("attncheck.runs.tasks.run_items", failing)
    task = CaseTask(Subject.of(collapsed), 0, tuple(units_of(LAYER, ("scores", "draws", "inputs"))), COST, False)
    found = {id.partition("@")[0]: examined for id, examined in examine_task(task).items()}
    assert found["scores"][:2] == ([], "subject=mine: no scores today")
    for name in ("draws", "inputs"):
        assert digits(found[name].results) == digits(real([Item(name, LAYER)], Subject.of(collapsed), 0, COST))


def test_ids_name_the_item() -> None:
    assert item_id("test_scores.py::test_scores[scores@0123456789ab n=16 s=4 H=2]") == "scores@0123456789ab"
    for other in ("[scores@0123456789ab]", "[a@b n=3]", "[scores@somebody.org n=4]", ""):
        assert item_id(f"test_scores.py::test_address{other}") == ""


def test_a_subject_that_fails_now_and_then_has_no_results() -> None:
    calls: list[int] = []

    def sometimes(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Any:
        calls.append(size)
        if len(calls) == 8:
            raise ValueError("eighth call")
        return collapsed(layer, size, rng)

    task = CaseTask(Subject.of(sometimes), 0, tuple(units_of(LAYER, ("draws", "inputs"))), COST, False)
    found = examine_task(task)
    assert len(calls) > 20
    assert all(not examined.results and "eighth call" in examined.unusable for examined in found.values())


FEW_NEURONS = AttentionLayer(width=4, seq_len=3, num_heads=2)
DRAWS, CHUNK = 3000, 300
SUBJECT = Subject.of("attncheck.subject:collapsed")


def planned_look(name: str) -> Plan:
    plan = probed([Item(name, FEW_NEURONS)], SUBJECT, 0, Cost(100_000, 5e-4, 0.99))
    return dataclasses.replace(plan, sizes=dict.fromkeys(plan.sizes, DRAWS), chunk=CHUNK)


def look(plan: Plan) -> dict[str, Outcome]:
    return observe(plan, list(plan.sizes), 1, SUBJECT, np.random.default_rng(0), np.random.SeedSequence(0))


@pytest.mark.sampled
@pytest.mark.parametrize("name", [name for name in EVERY_PROPERTY if name not in (*PROGRAM_PROPERTIES, "structure")])
def test_a_condensed_look_says_what_the_whole_one_says(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plan = planned_look(name)
    whole = look(plan)
    monkeypatch.setattr(look_module, "MOST_RETAINED", 600)
    found = look(plan)
    assert found.keys() == whole.keys()
    assert found
    for check in plan.sizes:
        one, other = found[check.name], whole[check.name]
        assert one.count == other.count
        if isinstance(check.family_on(plan.setting), Trend | Calls):  # ranks among the first draws only
            assert abs(one.effect - other.effect) < 0.2 * (other.high - other.low)
        else:
            assert one.p_value >= other.p_value * (1.0 - 1e-6)
            assert one.effect == pytest.approx(other.effect, abs=0.01)


def data_of(name: str) -> CheckData:
    plan = planned_look("scores")
    return CheckData(next(check for check in plan.sizes if check.name == name), plan.setting)


def test_a_sample_without_another_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_module, "MOST_RETAINED", 1000)
    rng, data = np.random.default_rng(0), data_of("scores.size")
    for _ in range(50):
        data.add((np.zeros(0), rng.standard_normal(500)))
        assert sum(np.size(column) for part in data._parts for column in part) <= 1500
    assert data.outcome().count == 0
    for _ in range(50):
        data.add((rng.standard_normal(100), rng.standard_normal(400)))
    data.add((np.zeros(0), rng.standard_normal(400)))
    assert data.outcome().count == 5000
    assert data.outcome().p_value > 1e-6


# Substitutes for layers that the subject does not support -----------------------------------------


def cases_of(subject: Any) -> list[Any]:
    """Return the cases of scores that are planned."""
    return [item.case for item in made(subject=subject).items("scores", layers())]


def declaring(**attributes: Any) -> Any:
    """Return a right simulator with attributes."""
    simulator: Any = functools.partial(collapsed)
    vars(simulator).update(attributes)
    return simulator


def added(supports: Callable[[AttentionLayer], bool | str]) -> list[Any]:
    """Return the cases that are planned in place of unsupported ones, which are planned too, as not examined."""
    cases, every = cases_of(declaring(supports=supports)), cases_of(collapsed)
    assert cases[: len(every)] == every
    assert len(set(cases)) == len(cases)
    return cases[len(every) :]


def plain(layer: Any) -> bool | str:
    """Support a mask, and otherwise only defaults."""
    sizes = {name: getattr(layer, name) for name in ("width", "seq_len", "num_heads", "mask")}
    return layer == AttentionLayer(**sizes) or "only masks"


def test_others_stand_in_for_layers_that_are_not_supported() -> None:
    cases = added(plain)
    assert all(plain(layer) is True for layer in cases)
    # In place of the unsupported grouped causal fixed case: a causal layer of its sizes.
    assert AttentionLayer(width=16, seq_len=3, num_heads=4, mask="causal") in cases


def failing(layer: AttentionLayer) -> bool:
    raise RuntimeError("no licence")


def test_nothing_stands_in_where_sizes_are_not_supported_or_a_declaration_fails() -> None:
    assert added(lambda layer: False) == added(failing) == []
    assert substitute(GROUPED, lambda layer: layer.width == 8) is None
    alone = substitute(GROUPED, lambda layer: layer.num_heads == 1 and layer.mask == "causal")
    assert alone is not None
    assert (alone.width, alone.seq_len, alone.num_heads) == (GROUPED.width, GROUPED.seq_len, 1)


def test_a_subject_of_low_rank_heads_alone_is_examined() -> None:
    cases = added(lambda layer: layer.head_dim is not None and layer.mask == "none")
    assert all(layer.head_dim is not None for layer in cases)
    # The grouped causal fixed case: heads of width/num_heads, and its groups.
    assert AttentionLayer(width=16, seq_len=3, num_heads=4, num_kv_heads=2, head_dim=4) in cases
    # The first supported plain layer is the base, overridden by the layer's own fields.
    wide = AttentionLayer(width=16, num_heads=4, head_dim=8, score_scaling="1/n")
    assert substitute(wide, lambda layer: layer.head_dim is not None) == wide
    linear = substitute(wide, lambda layer: layer.attention_map == "linear" and layer.head_dim is None)
    assert linear == AttentionLayer(width=16, num_heads=4, attention_map="linear", score_scaling="1/n")


def test_stand_ins_keep_all_that_is_supported() -> None:
    tied = REGIMES["tied queries and keys"]
    assert substitute(tied, lambda layer: layer.mask == "none") == tied
    assert substitute(tied, lambda layer: not layer.tied_query_key) == tied.replace(tied_query_key=False)
    # Fields supported only together, in any order.
    together = AttentionLayer(width=4, head_dim=2, mask="causal")
    assert substitute(together, lambda layer: layer.head_dim is None or layer.mask == "causal") == together


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (AttentionLayer(width=8), "layers=AttentionLayer.*is not a list of layers; list one"),
        ([], r"layers=\[\]: is empty"),
        ([AttentionLayer(width=8), 4], r"layers\[1\]=4: is not an AttentionLayer"),
    ],
)
def test_layers_that_are_none_are_refused(declared: object, message: str) -> None:
    refused(lambda: cases_of(declaring(layers=declared)), message)
