"""The gate's exit code in every kind of trouble."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from attncheck.records.schema import Result, read
from attncheck.records.writer import Writer

if TYPE_CHECKING:
    from tests.gate.conftest import Sheet

BASELINE_SEED, RUN_SEED = 0, 7
Gated = Callable[..., tuple[int, str]]
MakeSheet = Callable[..., "Sheet"]


def nothing(run: Sheet, base: Sheet) -> None:
    """Leave both as they are."""


def violated(run: Sheet, base: Sheet) -> None:
    run.violate("scores.scale")


def inconclusive(run: Sheet, base: Sheet) -> None:
    run.change("scores.scale", verdict="inconclusive", p_values=[1e-5, 0.5, 1e-4])


def violated_and_crashed(run: Sheet, base: Sheet) -> None:
    violated(run, base)
    crashed(run, base)


def renamed_property(run: Sheet, base: Sheet) -> None:
    run.rename("draws", "samples")


def renamed_check(run: Sheet, base: Sheet) -> None:
    run.rename("scores.law", "scores.shape")


def new_property(run: Sheet, base: Sheet) -> None:
    base.drop(lambda each: each.check.startswith("draws"), plan=True)


def crashed(run: Sheet, base: Sheet) -> None:
    lost = run.planned[0].item
    run.drop(lambda each: each.item == lost)


def skipped(run: Sheet, base: Sheet) -> None:
    run.drop(lambda each: each.check == "outputs.energy")


def deselected(run: Sheet, base: Sheet) -> None:
    run.drop(lambda each: each.check == "outputs.energy", plan=True)


def fewer_substitutes(run: Sheet, base: Sheet) -> None:
    """Another seed, for which the subject refuses one layer less, without substitute."""
    fewer_examples(run, base)
    layer = base.planned[-1].id.partition("@")[2]
    idle: dict[str, Any] = {"verdict": "not examined", "reason": "narrow only", "p_values": [], "summary": None}
    base.results = [msgspec.structs.replace(each, **idle) if layer in each.id else each for each in base.results]


def fewer_examples(run: Sheet, base: Sheet) -> None:
    layer = run.planned[-1].id.partition("@")[2]
    run.drop(lambda each: each.id.endswith(layer), plan=True)


def unplanned(run: Sheet, base: Sheet) -> None:
    run.planned = run.planned[1:]


def duplicated(run: Sheet, base: Sheet) -> None:
    run.results.append(run.results[0])


def killed(run: Sheet, base: Sheet) -> None:
    run.closing = False


def less_exposed(run: Sheet, base: Sheet) -> None:
    run.excuse("scores.law")


def nothing_examined(run: Sheet, base: Sheet) -> None:
    for check in {planned.check for planned in run.planned}:
        run.excuse(check)


def nothing_examined_before(run: Sheet, base: Sheet) -> None:
    nothing_examined(base, run)


def other_order(run: Sheet, base: Sheet) -> None:
    run.results.reverse()


def same_seed(run: Sheet, base: Sheet) -> None:
    vars(run).update(copy.deepcopy(vars(base)))


def other_subject(run: Sheet, base: Sheet) -> None:
    run.head["subject"] = "attncheck.subject:direct"


def other_versions(run: Sheet, base: Sheet) -> None:
    run.head["versions"] = {"attncheck": "0.2.0"}


def drifted(run: Sheet, base: Sheet) -> None:
    """Effects drifted, while each record alone is consistent."""
    base.change("scores.scale", effect=0.99, low=0.985, high=0.995)
    run.change("scores.scale", effect=1.01, low=1.005, high=1.015)


def moved_within_the_errors(run: Sheet, base: Sheet) -> None:
    base.change("scores.scale", effect=0.97, low=0.93, high=1.01)
    run.change("scores.scale", effect=1.03, low=0.99, high=1.07)


def mde_grew(run: Sheet, base: Sheet) -> None:
    run.change("scores.scale", mde=1.08)


def mde_gone(run: Sheet, base: Sheet) -> None:
    run.change("scores.scale", mde=None)


def size_fell(run: Sheet, base: Sheet) -> None:
    run.change("scores.scale", size=2000)


def power_fell(run: Sheet, base: Sheet) -> None:
    base.change("scores.scale", power=0.99)


def power_grew(run: Sheet, base: Sheet) -> None:
    run.change("scores.scale", size=8000, mde=1.03, power=0.99)
    run.change("outputs.energy", size=3900, mde=1.052)


def not_uniform(run: Sheet, base: Sheet) -> None:
    for check in {planned.check for planned in run.planned}:
        run.change(check, p_values=[0.999])


def baseline_violated(run: Sheet, base: Sheet) -> None:
    base.violate("scores.scale", effect=1.5, low=1.4, high=1.6)


def baseline_killed(run: Sheet, base: Sheet) -> None:
    base.closing = False


def edit(old: bytes, new: bytes) -> Callable[[Path, Path], None]:
    def damage(run: Path, base: Path) -> None:
        data = run.read_bytes()
        assert old in data
        run.write_bytes(data.replace(old, new, 1))

    return damage


def cut(length: int) -> Callable[[Path, Path], None]:
    def damage(run: Path, base: Path) -> None:
        run.write_bytes(run.read_bytes()[:-length])

    return damage


def forge(run: Path, base: Path) -> None:
    """Change a digit and reseal the record with its old digest."""
    lines = list(read(run))
    writer = Writer(run)
    for line in lines:
        same = not isinstance(line, Result) or line.check != "scores.law"
        writer.write(line if same else msgspec.structs.replace(line, p_values=[0.5]))
    writer.close()


@dataclasses.dataclass(frozen=True)
class Situation:
    code: int
    says: str
    change: Callable[[Sheet, Sheet], None] = nothing
    damage: Callable[[Path, Path], Any] = lambda run, base: None


# A line that no run writes.
DAMAGED = "was edited or damaged ("

SITUATIONS = {
    "clean, another seed": Situation(0, "CONSISTENT"),
    "clean, the same seed": Situation(0, "CONSISTENT", same_seed),
    "other order of results": Situation(0, "CONSISTENT", other_order),
    "other versions": Situation(0, "note: versions differ: attncheck 0.2.0 (0.1.0 in the baseline)", other_versions),
    "new property": Situation(0, "note: not in the baseline: draws.signs", new_property),
    "moved within the errors": Situation(0, "CONSISTENT", moved_within_the_errors),
    "power grew": Situation(0, "CONSISTENT", power_grew),
    "baseline violated": Situation(0, "note: the baseline has violated results", baseline_violated),
    "violated": Situation(1, "verdicts: 8 results are violated: scores.scale", violated),
    "violated and crashed": Situation(1, "completeness: 2 planned results are missing", violated_and_crashed),
    "drifted effect": Situation(1, "drift: scores.scale: the effect moved from 0.99 to 1.01", drifted),
    "p-values not uniform": Situation(1, "uniformity: the first-look p-values of 8 test items", not_uniform),
    "truncated in its first line": Situation(
        2, "ends within its first line", damage=lambda run, base: run.write_bytes(b'{"ty')
    ),
    "edited p-values": Situation(2, "its digest is not that of its results", damage=forge),
    "broken line": Situation(2, "is broken", damage=edit(b'"verdict"', b'"verdict')),
    "newer schema": Situation(2, "upgrade attncheck", damage=edit(b'"schema":6', b'"schema":9')),
    "older schema": Situation(2, "make the record again", damage=edit(b'"schema":6', b'"schema":5')),
    "not a record": Situation(2, "has no manifest", damage=lambda run, base: run.write_text("hello\n")),
    "no run": Situation(2, "No such file", damage=lambda run, base: run.unlink()),
    "baseline not a record": Situation(2, "has no manifest", damage=lambda run, base: base.write_text("hello\n")),
    "unknown verdict": Situation(2, DAMAGED, lambda run, base: run.change("scores.law", verdict="fine")),
    "impossible p-value": Situation(2, DAMAGED, lambda run, base: run.change("scores.law", p_values=[7.0])),
    "verdict without p-values": Situation(2, DAMAGED, lambda run, base: run.change("scores.law", p_values=[])),
    "inconclusive": Situation(3, "verdicts: 8 results are inconclusive: scores.scale", inconclusive),
    "nothing examined": Situation(4, "nothing was examined", nothing_examined),
    "baseline examined nothing": Situation(2, "has no examined result; make the baseline", nothing_examined_before),
    "renamed property": Situation(4, "property draws: not planned", renamed_property),
    "renamed check": Situation(4, "1 check of the baseline not planned: scores.law", renamed_check),
    "crashed worker": Situation(4, "2 planned results are missing: scores.law", crashed),
    "skipped": Situation(4, "8 planned results are missing", skipped),
    "deselected": Situation(4, "property outputs: not planned; the baseline examined 8 layers", deselected),
    "fewer examples": Situation(4, "scores: planned on 7 layers, the baseline examined 8", fewer_examples),
    "fewer stand-ins": Situation(0, "CONSISTENT", fewer_substitutes),
    "unplanned result": Situation(4, "1 result is reported but not planned", unplanned),
    "duplicated result": Situation(4, "1 result is reported more than once", duplicated),
    "killed between lines": Situation(4, "the record has no closing line", killed),
    "truncated in its last line": Situation(4, "the record has no closing line", damage=cut(9)),
    "truncated in the middle": Situation(4, "planned results are missing", damage=cut(9000)),
    "exposes less": Situation(4, "no longer examined (the subject does not expose scores)", less_exposed),
    "other subject": Situation(4, "attncheck.subject:direct was examined, the baseline is of my:", other_subject),
    "gap grew": Situation(4, "power: scores.scale: minimum detectable effect was 1.05 and is 1.08 on", mde_grew),
    "gap gone": Situation(4, "power: scores.scale: minimum detectable effect was 1.05 and is nothing", mde_gone),
    "size fell": Situation(4, "power: scores.scale: size was 4000 and is 2000", size_fell),
    "planned power fell": Situation(4, "power: scores.scale: power was 0.99 and is 0.9", power_fell),
    "baseline killed": Situation(4, "belongs to an unfinished or incomplete run", baseline_killed),
    "no baseline": Situation(4, "there is no baseline", damage=lambda run, base: base.unlink()),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_situation(tmp_path: Path, gated: Gated, make_sheet: MakeSheet, name: str) -> None:
    situation = SITUATIONS[name]
    run, base = make_sheet(RUN_SEED), make_sheet(BASELINE_SEED)
    situation.change(run, base)
    paths = run.write(tmp_path / "run.jsonl"), base.write(tmp_path / "base.jsonl")
    situation.damage(*paths)
    code, said = gated(*paths)
    assert situation.says in said
    assert code == situation.code


def test_a_run_without_a_baseline_can_be_accepted(tmp_path: Path, gated: Gated, make_sheet: MakeSheet) -> None:
    run = make_sheet(RUN_SEED).write(tmp_path / "run.jsonl")
    base = tmp_path / "baselines" / "base.jsonl"
    code, said = gated(run, base)
    assert code == 4
    assert said.startswith("INCOMPLETE: ")
    assert f"there is no baseline {base} yet; accept this run with: attncheck gate {run} --baseline {base} " in said
    assert not base.parent.exists()
    assert gated(run, base, "--write-baseline")[0] == 0
    assert [path.name for path in base.parent.iterdir()] == ["base.jsonl"]
    assert base.read_bytes() == run.read_bytes()
    assert gated(run, base)[0] == 0


@pytest.mark.parametrize("trouble", [violated, inconclusive, crashed, killed])
def test_a_run_in_trouble_is_not_offered_as_a_baseline(
    tmp_path: Path, gated: Gated, make_sheet: MakeSheet, trouble: Callable[[Sheet, Sheet], None]
) -> None:
    run = make_sheet(RUN_SEED)
    trouble(run, run)
    path = run.write(tmp_path / "run.jsonl")
    code, said = gated(path, tmp_path / "base.jsonl")
    assert code == (1 if trouble is violated else 4)
    assert "this run cannot become a baseline" in said
    assert "accept this run" not in said
    assert [each.name for each in tmp_path.iterdir()] == ["run.jsonl"]


def test_a_record_is_no_baseline_for_itself(tmp_path: Path, gated: Gated, make_sheet: MakeSheet) -> None:
    run = make_sheet(RUN_SEED).write(tmp_path / "run.jsonl")
    code, said = gated(run, tmp_path / "." / "run.jsonl")
    assert code == 2
    assert "is the record of the run itself" in said


def test_the_drift_budget_can_be_widened(tmp_path: Path, gated: Gated, make_sheet: MakeSheet) -> None:
    run, base = make_sheet(RUN_SEED), make_sheet(BASELINE_SEED)
    moved_within_the_errors(run, base)
    paths = run.write(tmp_path / "run.jsonl"), base.write(tmp_path / "base.jsonl")
    assert gated(*paths, "--false-alarm", "0.5")[0] == 1
    assert gated(*paths, "--false-alarm", "0")[0] == 2
