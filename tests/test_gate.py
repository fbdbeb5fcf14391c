"""The gate, against records of every kind of trouble: each situation with its exit code."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from attncheck.attention import AttentionLayer
from attncheck.cli import main
from attncheck.evidence.streams import digest
from attncheck.records import SCHEMA, Closing, Manifest, Planned, Result, Writer, read, run_digest

PROPERTIES = Path(__file__).resolve().parents[1] / "properties"
CHECKS = ("scores.scale", "scores.law", "outputs.energy", "draws.signs")
ANCHORS = [AttentionLayer(width=width) for width in (8, 16, 32)]
BASELINE_SEED, RUN_SEED = 0, 7


@dataclasses.dataclass
class Sheet:
    """A run to be written down."""

    results: list[Result]
    planned: list[Planned]
    head: dict[str, Any]
    closing: bool = True

    def change(self, check: str, **fields: Any) -> None:
        """Change all results of a check."""
        self.results = [
            msgspec.structs.replace(result, **fields) if result.check == check else result for result in self.results
        ]

    def rename(self, old: str, new: str) -> None:
        """Call a property by another name."""
        text = msgspec.json.encode([self.results, self.planned]).decode()
        for before, after in ((f'"{old}@', f'"{new}@'), (f'"{old}.', f'"{new}.'), (f'"{old}"', f'"{new}"')):
            text = text.replace(before, after)
        self.results, self.planned = msgspec.json.decode(text, type=tuple[list[Result], list[Planned]])

    def drop(self, wanted: Callable[[Any], bool], *, plan: bool = False) -> None:
        """Leave out results, and with `plan` do not plan them."""
        self.results = [result for result in self.results if not wanted(result)]
        if plan:
            self.planned = [planned for planned in self.planned if not wanted(planned)]

    def write(self, path: Path) -> Path:
        writer = Writer(path)
        writer.write(Manifest(planned=self.planned, **self.head))
        for result in self.results:
            writer.write(result)
        if self.closing:
            writer.write(Closing(run_digest(self.results), self.verdict, [], len(self.results), 1.0))
        writer.close()
        return path

    @property
    def verdict(self) -> str:
        verdicts = {result.verdict for result in self.results}
        return next((each for each in ("violated", "inconclusive") if each in verdicts), "consistent")


def layers_of(seed: int) -> list[AttentionLayer]:
    """Return layers of which the first three are the same for all seeds."""
    return [*ANCHORS, *(AttentionLayer(width=9, seq_len=2 + number + 10 * seed) for number in range(5))]


def sheet(seed: int) -> Sheet:
    results = [
        a_result(check, layer, (0.137 * seed + 0.618034 * number) % 1.0)
        for number, layer in enumerate(layers_of(seed))
        for check in CHECKS
    ]
    planned = [Planned(result.id, result.unit, result.check) for result in results]
    head = {"schema": SCHEMA, "versions": {"attncheck": "0.1.0"}, "seed": seed, "profile": "smoke"}
    return Sheet(results, planned, {**head, "false_alarm": 1e-6, "level": 1e-3, "subject": "my:simulator"})


def a_result(check: str, layer: AttentionLayer, uniform: float) -> Result:
    name = check.partition(".")[0]
    key = digest(layer.to_dict())
    effect = 1.0 + 0.02 * (uniform - 0.5)
    return Result(
        id=f"{check}@{key}",
        unit=f"{name}@{key}",
        property=name,
        check=check,
        claim=name,
        kind="exact",
        layer=layer.to_dict(),
        verdict="consistent",
        reason="",
        size=4000,
        affordable=6000,
        level=1e-3,
        power=0.9,
        p_values=[uniform],
        effects=[effect],
        effect=effect,
        low=effect - 0.026,
        high=effect + 0.026,
        null_effect=1.0,
        gap=1.05,
        departure=1.1,
        combined=1.0,
        continuous=True,
        text=f"ratio {effect:.4g}",
        hint="",
        seconds=0.5,
    )


VIOLATED = {"verdict": "violated", "p_values": [1e-5, 1e-6, 1e-7], "combined": 1e-15}
NOT_EXAMINED: dict[str, Any] = {
    "verdict": "not examined",
    "reason": "the subject does not expose scores",
    "p_values": [],
    "effects": [],
    **dict.fromkeys(("effect", "low", "high", "null_effect", "gap")),
    "size": 0,
}


def nothing(run: Sheet, base: Sheet) -> None:
    """Leave both as they are."""


def violated(run: Sheet, base: Sheet) -> None:
    run.change("scores.scale", **VIOLATED)


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
    """One unit of work took its worker down."""
    lost = run.planned[0].unit
    run.drop(lambda each: each.unit == lost)


def skipped(run: Sheet, base: Sheet) -> None:
    run.drop(lambda each: each.check == "outputs.energy")


def deselected(run: Sheet, base: Sheet) -> None:
    run.drop(lambda each: each.check == "outputs.energy", plan=True)


def fewer_examples(run: Sheet, base: Sheet) -> None:
    kept = {digest(layer.to_dict()) for layer in layers_of(RUN_SEED)[:-1]}
    run.drop(lambda each: each.id.partition("@")[2] not in kept, plan=True)


def unplanned(run: Sheet, base: Sheet) -> None:
    run.planned = run.planned[1:]


def duplicated(run: Sheet, base: Sheet) -> None:
    run.results.append(run.results[0])


def killed(run: Sheet, base: Sheet) -> None:
    run.closing = False


def less_exposed(run: Sheet, base: Sheet) -> None:
    run.change("scores.law", **NOT_EXAMINED)


def nothing_examined(run: Sheet, base: Sheet) -> None:
    for check in CHECKS:
        run.change(check, **NOT_EXAMINED)
        base.change(check, **NOT_EXAMINED)


def other_order(run: Sheet, base: Sheet) -> None:
    run.results.reverse()


def same_seed(run: Sheet, base: Sheet) -> None:
    run.__dict__.update(sheet(BASELINE_SEED).__dict__)


def other_subject(run: Sheet, base: Sheet) -> None:
    run.head["subject"] = "attncheck.subject:direct"


def other_versions(run: Sheet, base: Sheet) -> None:
    run.head["versions"] = {"attncheck": "0.2.0"}


def drifted(run: Sheet, base: Sheet) -> None:
    """Effects moved within what each record alone calls consistent."""
    base.change("scores.scale", effect=0.99, low=0.985, high=0.995)
    run.change("scores.scale", effect=1.01, low=1.005, high=1.015)


def moved_within_the_errors(run: Sheet, base: Sheet) -> None:
    base.change("scores.scale", effect=0.97, low=0.93, high=1.01)
    run.change("scores.scale", effect=1.03, low=0.99, high=1.07)


def gap_grew(run: Sheet, base: Sheet) -> None:
    run.change("scores.scale", gap=1.08)


def gap_gone(run: Sheet, base: Sheet) -> None:
    run.change("scores.scale", gap=None)


def size_fell(run: Sheet, base: Sheet) -> None:
    run.change("scores.scale", size=2000)


def power_fell(run: Sheet, base: Sheet) -> None:
    base.change("scores.scale", power=0.99)


def power_grew(run: Sheet, base: Sheet) -> None:
    run.change("scores.scale", size=8000, gap=1.03, power=0.99)
    run.change("outputs.energy", size=3900, gap=1.052)


def not_uniform(run: Sheet, base: Sheet) -> None:
    for check in CHECKS:
        run.change(check, p_values=[0.999])


def baseline_violated(run: Sheet, base: Sheet) -> None:
    base.change("scores.scale", effect=1.5, low=1.4, high=1.6, **VIOLATED)


def baseline_killed(run: Sheet, base: Sheet) -> None:
    base.closing = False


def older_schema(run: Sheet, base: Sheet) -> None:
    base.head["schema"] = 1


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


def unseal(run: Path, base: Path) -> None:
    """Write the baseline's closing line as schema 1 had it."""
    lines = base.read_bytes().splitlines(keepends=True)
    closing = {**json.loads(lines[-1]), "digest": "0123456789abcdef"}
    del closing["content"]
    base.write_bytes(b"".join(lines[:-1]) + json.dumps(closing).encode() + b"\n")


def forge(run: Path, base: Path) -> None:
    """Change a digit and seal the record again, with the digest that it had."""
    lines = list(read(run))
    writer = Writer(run)
    for line in lines:
        same = not isinstance(line, Result) or line.check != "scores.law"
        writer.write(line if same else msgspec.structs.replace(line, p_values=[0.5]))
    writer.close()


@dataclasses.dataclass(frozen=True)
class Situation:
    """What happened, the exit code that it deserves, and words that must be said."""

    code: int
    says: str
    change: Callable[[Sheet, Sheet], None] = nothing
    damage: Callable[[Path, Path], Any] = lambda run, base: None


SITUATIONS = {
    "clean, another seed": Situation(0, "CONSISTENT"),
    "clean, the same seed": Situation(0, "CONSISTENT", same_seed),
    "other order of results": Situation(0, "CONSISTENT", other_order),
    "other versions": Situation(0, "note: versions differ: attncheck 0.2.0 (0.1.0 in the baseline)", other_versions),
    "new property": Situation(0, "note: not in the baseline: draws.signs", new_property),
    "moved within the errors": Situation(0, "CONSISTENT", moved_within_the_errors),
    "power grew": Situation(0, "CONSISTENT", power_grew),
    "baseline violated": Situation(0, "note: the baseline has violated results", baseline_violated),
    "baseline of older schema": Situation(0, "note: the baseline has schema 1", older_schema, unseal),
    "violated": Situation(1, "verdicts: 8 results violated: scores.scale@", violated),
    "violated and crashed": Situation(1, "completeness: 2 results planned and not reported", violated_and_crashed),
    "drifted effect": Situation(1, "drift: scores.scale: the effect moved from 0.99 to 1.01", drifted),
    "p-values not uniform": Situation(1, "uniformity: the first-look p-values of 24 units", not_uniform),
    "truncated in its first line": Situation(2, "has no manifest", damage=lambda run, base: run.write_bytes(b'{"ty')),
    "edited p-value": Situation(2, "was edited", damage=edit(b'"text":"ratio 1', b'"text":"ratio 2')),
    "edited plan": Situation(2, "was edited", damage=edit(b'"check":"draws.signs"}', b'"check":"draws.sighs"}')),
    "edited and sealed again": Situation(2, "its digest is not that of its results", damage=forge),
    "broken line": Situation(2, "is broken", damage=edit(b'"verdict"', b'"verdict')),
    "newer schema": Situation(2, "upgrade attncheck", damage=edit(b'"schema":2', b'"schema":9')),
    "not a record": Situation(2, "has no manifest", damage=lambda run, base: run.write_text("hello\n")),
    "no run": Situation(2, "No such file", damage=lambda run, base: run.unlink()),
    "baseline not a record": Situation(2, "has no manifest", damage=lambda run, base: base.write_text("hello\n")),
    "unknown verdict": Situation(2, "cannot be right", lambda run, base: run.change("scores.law", verdict="fine")),
    "impossible p-value": Situation(2, "cannot be right", lambda run, base: run.change("scores.law", p_values=[7.0])),
    "inconclusive": Situation(3, "verdicts: 8 results inconclusive: scores.scale@", inconclusive),
    "nothing examined": Situation(3, "nothing was examined", nothing_examined),
    "renamed property": Situation(4, "the property draws was not planned", renamed_property),
    "renamed check": Situation(4, "1 check of the baseline not planned: scores.law", renamed_check),
    "crashed worker": Situation(4, "2 results planned and not reported (skipped or crashed): scores@", crashed),
    "skipped": Situation(4, "8 results planned and not reported", skipped),
    "deselected": Situation(4, "the property outputs was not planned; the baseline has it on 8 layers", deselected),
    "fewer examples": Situation(4, "scores was planned on 7 layers, on 8 in the baseline", fewer_examples),
    "unplanned result": Situation(4, "1 result reported without a plan", unplanned),
    "duplicated result": Situation(4, "1 result reported more than once", duplicated),
    "killed between lines": Situation(4, "there is no closing line", killed),
    "truncated in its last line": Situation(4, "there is no closing line", damage=cut(9)),
    "truncated in the middle": Situation(4, "planned and not reported", damage=cut(9000)),
    "exposes less": Situation(4, "no longer examined (the subject does not expose scores)", less_exposed),
    "other subject": Situation(4, "attncheck.subject:direct was examined, the baseline is of my:", other_subject),
    "gap grew": Situation(4, "power: scores.scale: gap was 1.05 and is 1.08 on", gap_grew),
    "gap gone": Situation(4, "power: scores.scale: gap was 1.05 and is nothing", gap_gone),
    "size fell": Situation(4, "power: scores.scale: size was 4000 and is 2000", size_fell),
    "planned power fell": Situation(4, "power: scores.scale: power was 0.99 and is 0.9", power_fell),
    "baseline killed": Situation(4, "the baseline is of a run that did not end", baseline_killed),
    "no baseline": Situation(4, "there is no baseline", damage=lambda run, base: base.unlink()),
}


def gated(run: Path, base: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code of the gate and what it says: errors in one line, on standard error only."""
    capsys.readouterr()
    code = main(["gate", str(run), "--baseline", str(base), *options])
    said = capsys.readouterr()
    assert bool(said.err) == (code == 2)
    assert said.err.count("\n") == (code == 2)
    return code, said.out + said.err


@pytest.mark.parametrize("name", SITUATIONS)
def test_situation(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    situation = SITUATIONS[name]
    run, base = sheet(RUN_SEED), sheet(BASELINE_SEED)
    situation.change(run, base)
    paths = run.write(tmp_path / "run.jsonl"), base.write(tmp_path / "base.jsonl")
    situation.damage(*paths)
    code, said = gated(*paths, capsys=capsys)
    assert situation.says in said
    assert code == situation.code


def test_there_are_enough_situations() -> None:
    assert len(SITUATIONS) >= 15
    assert {situation.code for situation in SITUATIONS.values()} == {0, 1, 2, 3, 4}


def test_a_missing_baseline_gets_a_candidate_that_can_be_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sheet(RUN_SEED).write(tmp_path / "run.jsonl")
    base = tmp_path / "baselines" / "base.jsonl"
    assert gated(run, base, capsys=capsys)[0] == 4
    candidate = base.with_name("base.jsonl.candidate")
    assert candidate.read_bytes() == run.read_bytes()
    candidate.rename(base)
    assert gated(run, base, capsys=capsys)[0] == 0


@pytest.mark.parametrize("trouble", [violated, inconclusive, crashed, killed])
def test_a_run_in_trouble_does_not_become_a_candidate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trouble: Callable[[Sheet, Sheet], None]
) -> None:
    run = sheet(RUN_SEED)
    trouble(run, run)
    path = run.write(tmp_path / "run.jsonl")
    code, said = gated(path, tmp_path / "base.jsonl", capsys=capsys)
    assert code == (1 if trouble is violated else 4)
    assert "this run cannot become one" in said
    assert [each.name for each in tmp_path.iterdir()] == ["run.jsonl"]


def test_a_record_is_no_baseline_for_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sheet(RUN_SEED).write(tmp_path / "run.jsonl")
    code, said = gated(run, tmp_path / "." / "run.jsonl", capsys=capsys)
    assert code == 2
    assert "is the record of the run itself" in said


def test_the_drift_budget_can_be_widened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, base = sheet(RUN_SEED), sheet(BASELINE_SEED)
    moved_within_the_errors(run, base)
    paths = run.write(tmp_path / "run.jsonl"), base.write(tmp_path / "base.jsonl")
    assert gated(*paths, "--false-alarm", "0.5", capsys=capsys)[0] == 1
    assert gated(*paths, "--false-alarm", "0", capsys=capsys)[0] == 2


# Outputs ------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script> | `x` **b** ]]> & \x00\x1b[31m \ud7ff\n# heading"


def outputs(
    tmp_path: Path, run: Sheet, base: Sheet, capsys: pytest.CaptureFixture[str]
) -> tuple[int, Path, Path, Path]:
    paths = run.write(tmp_path / "run.jsonl"), base.write(tmp_path / "base.jsonl")
    junit, summary, document = tmp_path / "a" / "j.xml", tmp_path / "s.md", tmp_path / "g.json"
    options = ("--junit", str(junit), "--summary", str(summary), "--json", str(document))
    code, _ = gated(*paths, *options, capsys=capsys)
    return code, junit, summary, document


def test_junit_has_a_case_for_each_property_and_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sheet(RUN_SEED)
    violated(run, run)
    crashed_unit = run.planned[-1].unit
    run.drop(lambda each: each.unit == crashed_unit)
    run.change("outputs.energy", **NOT_EXAMINED)
    _, junit, _, _ = outputs(tmp_path, run, sheet(BASELINE_SEED), capsys)
    suite = ElementTree.parse(junit).getroot()[0]
    units = [case for case in suite if case.get("classname") != "gate"]
    assert len(units) == len({planned.unit for planned in run.planned}) == 3 * 8
    tags = [(case.get("classname"), child.tag) for case in units for child in case]
    assert tags.count(("scores", "failure")) == 8
    assert tags.count(("outputs", "skipped")) == 8
    assert tags.count(("draws", "error")) == 1
    assert suite.get("failures") == str(len(suite.findall("testcase/failure")))
    assert suite.get("tests") == str(len(suite))
    assert all("n=" in str(case.get("name")) for case in units if case.get("classname") == "scores")


def test_json_says_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sheet(RUN_SEED)
    violated(run, run)
    code, _, _, document = outputs(tmp_path, run, sheet(BASELINE_SEED), capsys)
    found = json.loads(document.read_text(encoding="utf-8"))
    assert found["exit_code"] == code == 1
    assert found["verdict"] == "violated"
    assert found["run"]["seed"] == RUN_SEED
    assert found["baseline"]["seed"] == BASELINE_SEED
    assert len(found["results"]) == found["claims"]["scores"]["violated"] == 8
    assert {finding["part"] for finding in found["findings"]} == {"verdicts"}


def test_summary_is_short_and_leads_with_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sheet(RUN_SEED)
    violated(run, run)
    _, _, summary, _ = outputs(tmp_path, run, sheet(BASELINE_SEED), capsys)
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("## attncheck: violated\n\nVIOLATED: my:simulator, 32 of 32 planned results")
    assert f"attncheck replay {tmp_path}/run.jsonl scores.scale@" in text.replace("\\", "")
    assert len(text.splitlines()) < 60


def test_hostile_names_stay_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sheet(RUN_SEED)
    run.head["subject"] = HOSTILE
    run.change("scores.scale", **VIOLATED, text=HOSTILE, claim=HOSTILE)
    run.change("scores.law", **NOT_EXAMINED | {"reason": HOSTILE})
    code, junit, summary, document = outputs(tmp_path, run, sheet(BASELINE_SEED), capsys)
    assert code == 1
    (failure, *_) = ElementTree.parse(junit).getroot().findall("*/testcase[@classname='scores']/failure")
    assert "<script>alert(1)</script>" in str(failure.text)
    text = summary.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "\n# heading" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "script" in line]
    assert {row.replace("\\|", "").count("|") for row in rows} <= {5, 6}
    assert HOSTILE in json.loads(document.read_text(encoding="utf-8"))["run"]["subject"]


def test_outputs_that_cannot_be_written_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, base = sheet(RUN_SEED).write(tmp_path / "r.jsonl"), sheet(BASELINE_SEED).write(tmp_path / "b.jsonl")
    main(["gate", str(run), "--baseline", str(base), "--junit", str(tmp_path)])
    assert f"junit={tmp_path}: cannot be written" in capsys.readouterr().err


def test_long_records_are_streamed(tmp_path: Path) -> None:
    """The lines of a record are never in memory together: a hundredth of them here, ten times the results."""
    sheets = [sheet(seed) for seed in (RUN_SEED, BASELINE_SEED)]
    paths = []
    for number, each in enumerate(sheets):
        layers = [AttentionLayer(width=1 + index % 100, seq_len=1 + index // 100) for index in range(2_500)]
        uniform = [(0.618034 * index + 0.3 * number) % 1.0 for index in range(len(layers))]
        text = "x" * 2_000  # lines of a record with pictures are this long
        results = (
            msgspec.structs.replace(a_result(check, layer, u), hint=text)
            for layer, u in zip(layers, uniform, strict=True)
            for check in CHECKS
        )
        each.results = list(results)
        each.planned = [Planned(result.id, result.unit, result.check) for result in each.results]
        paths.append(str(each.write(tmp_path / f"{number}.jsonl")))
    code = (
        "import sys, tracemalloc, numpy, scipy.special, statsmodels.stats.multitest\n"
        "from attncheck.cli import main\n"
        "tracemalloc.start()\n"
        "code = main(['gate', sys.argv[1], '--baseline', sys.argv[2]])\n"
        "print(code, tracemalloc.get_traced_memory()[1])\n"
    )
    run = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True, timeout=300)
    exit_code, peak = map(int, run.stdout.split()[-2:])
    size = Path(paths[0]).stat().st_size
    assert exit_code == 0
    assert peak < 0.6 * size, "all results at once, without their text, would take more"


# Records of real runs -----------------------------------------------------------------------------

SUBJECTS = """
import os
from attncheck.subject import collapsed

def right(layer, size, rng):
    return collapsed(layer, size, rng)

def repeating(layer, size, rng):
    drawn = dict(collapsed(layer, size, rng))
    drawn["outputs"][size // 2 :] = drawn["outputs"][: size - size // 2]
    return drawn

def crashing(layer, size, rng):
    if layer.mask == "causal":
        os._exit(3)
    return collapsed(layer, size, rng)
"""

# Subject, workers and seed of each run, and what else is given.
RUNS = {
    "baseline": ("right", 0, 0, ()),
    "two workers": ("right", 2, 0, ()),
    "other seed": ("right", 0, 11, ()),
    "deselected": ("right", 0, 0, ("-k", "not causal")),
    "violated": ("repeating", 2, 0, ()),
    "crashed": ("crashing", 2, 0, ()),
}


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a run of one property, once, under the name of the right subject."""
    folder = tmp_path_factory.mktemp("runs")

    def make(name: str) -> Path:
        subject, workers, seed, more = RUNS[name]
        place = folder / name.replace(" ", "_")
        record = place / "record.jsonl"
        if not record.exists():
            place.mkdir()
            source = (
                SUBJECTS if subject == "right" else SUBJECTS.replace("def right", "def _").replace(subject, "right")
            )
            (place / "subjects.py").write_text(source, encoding="utf-8")
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers), *more]
            command += [str(PROPERTIES / "test_draws.py"), "--attncheck-profile", "smoke"]
            command += ["--attncheck-subject", "subjects:right", "--attncheck-seed", str(seed)]
            command += ["--attncheck-record", str(record)]
            subprocess.run(command, cwd=place, capture_output=True, check=False, timeout=300)
        return record

    return make


REAL: dict[str, int] = {
    "two workers": 0,
    "other seed": 0,
    "violated": 1,
    "deselected": 4,
    "crashed": 4,
}


@pytest.mark.parametrize("name", REAL)
def test_real_run_against_a_real_baseline(
    real_runs: Callable[[str], Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, said = gated(real_runs(name), real_runs("baseline"), capsys=capsys)
    assert code == REAL[name], said


def test_the_number_of_workers_that_made_the_baseline_is_no_matter(
    real_runs: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("baseline", "other seed"):
        code, said = gated(real_runs(name), real_runs("two workers"), capsys=capsys)
        assert code == 0, said
    assert gated(real_runs("violated"), real_runs("two workers"), capsys=capsys)[0] == 1
