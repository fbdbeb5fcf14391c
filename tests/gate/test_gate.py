"""The gate on hand-made records: exit codes in every kind of trouble, baselines, and outputs."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attncheck.commands.cli import main
from attncheck.layers.attention import AttentionLayer
from attncheck.records.explanation import Certainty, Explanation
from attncheck.records.schema import PlannedResult, Result, read
from attncheck.runs.parts import read_run
from tests.memory import with_peak
from tests.recorded import make_result, write_lines, write_record

CHECKS = ("scores.scale", "scores.law", "outputs.energy", "draws.signs")
ANCHORS = [AttentionLayer(width=width) for width in (8, 16, 32)]
NOT_EXAMINED: dict[str, Any] = {
    **{"verdict": "not examined", "p_values": [], "effects": [], "size": 0},
    **dict.fromkeys(("effect", "low", "high", "null_effect", "mde")),
}
BASELINE_SEED, RUN_SEED = 0, 7
Gated = Callable[..., tuple[int, str]]


@dataclasses.dataclass
class Sheet:
    """The lines of a record, to be changed and written."""

    results: list[Result]
    planned: list[PlannedResult]
    head: dict[str, Any]
    close: bool = True
    causes: Sequence[str] = ()
    failed: list[str] = dataclasses.field(default_factory=list)

    def change(self, check: str = "", **fields: Any) -> None:
        """Change the results of a check, or all of them."""
        self.results = [
            msgspec.structs.replace(result, **fields) if check in ("", result.check) else result
            for result in self.results
        ]

    def violate(self, check: str, **fields: Any) -> None:
        self.change(check, **{"verdict": "violated", "p_values": [1e-5, 1e-6, 1e-7], "combined": 1e-15} | fields)

    def describe(self, **fields: Any) -> None:
        """Change fields of the first line."""
        self.head |= fields

    def rename(self, old: str, new: str) -> None:
        text = msgspec.json.encode([self.results, self.planned]).decode()
        for before, after in ((f'"{old}@', f'"{new}@'), (f'"{old}.', f'"{new}.'), (f'"{old}"', f'"{new}"')):
            text = text.replace(before, after)
        self.results, self.planned = msgspec.json.decode(text, type=tuple[list[Result], list[PlannedResult]])

    def drop(self, text: str, *, plan: bool = False) -> None:
        """Drop the results whose id has a text, and their plan too."""
        self.results = [result for result in self.results if text not in result.id]
        if plan:
            self.planned = [planned for planned in self.planned if text not in planned.id]

    def write(self, path: Path) -> Path:
        explanations = [Explanation(text, Certainty.FITTED) for text in self.causes]
        closing = {"explanations": explanations, "failed": self.failed}
        return write_record(path, self.results, close=self.close, closing=closing, planned=self.planned, **self.head)


#: A run and a baseline.
Sheets = tuple[Sheet, Sheet]


def layers_of(seed: int) -> list[AttentionLayer]:
    """Return layers, the first three the same for all seeds."""
    return [*ANCHORS, *(AttentionLayer(width=9, seq_len=2 + number + 10 * seed) for number in range(5))]


def make_sheet(seed: int, layers: Sequence[AttentionLayer] = ()) -> Sheet:
    """Return a clean run, consistent with any other at any seed."""
    results = [
        a_result(check, layer, (0.137 * seed + 0.618034 * number) % 1.0)
        for number, layer in enumerate(layers or layers_of(seed))
        for check in CHECKS
    ]
    planned = [PlannedResult(result.id, result.item, result.check) for result in results]
    head = {"versions": {"attncheck": "0.1.0"}, "seed": seed, "subject": "my:simulator", "level": 1e-3, "machine": {}}
    return Sheet(results, planned, head)


def a_result(check: str, layer: AttentionLayer, uniform: float) -> Result:
    effect, key = 1.0 + 0.02 * (uniform - 0.5), layer.key
    fields: dict[str, Any] = {"id": f"{check}@{key}", "item": f"{check.partition('.')[0]}@{key}"}
    fields |= {"size": 4000, "affordable": 6000, "level": 1e-3, "power": 0.9, "mde": 1.05, "alternative": 1.1}
    fields |= {"p_values": [uniform], "effect": effect, "low": effect - 0.026, "high": effect + 0.026, "hint": ""}
    return make_result(check, layer, **fields, text=f"ratio {effect:.4g}")


@pytest.fixture
def sheets() -> Sheets:
    """Return a run and a baseline of another seed."""
    return make_sheet(RUN_SEED), make_sheet(BASELINE_SEED)


@pytest.fixture
def gated(capsys: pytest.CaptureFixture[str]) -> Gated:
    """Return the gate as a command: exit code and output, with one-line errors on standard error only."""

    def call(run: Path, base: Path, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["gate", str(run), "--baseline", str(base), *options])
        output = capsys.readouterr()
        assert bool(output.err) == (code == 2)
        assert output.err.count("\n") == (code == 2)
        return code, output.out + output.err

    return call


# The gate -----------------------------------------------------------------------------------------


Change = Callable[[Sheet, Sheet], object]
Damage = tuple[str, Callable[[Path], object], int, str]


def fewer_examples(run: Sheet, base: Sheet) -> None:
    run.drop(run.planned[-1].id.partition("@")[2], plan=True)


def fewer_substitutes(run: Sheet, base: Sheet) -> None:
    """Another seed, for which the subject refuses one layer less, without substitute."""
    fewer_examples(run, base)
    layer = base.planned[-1].id.partition("@")[2]
    idle: dict[str, Any] = {"verdict": "not examined", "reason": "narrow only", "p_values": [], "summary": None}
    base.results = [msgspec.structs.replace(each, **idle) if layer in each.id else each for each in base.results]


def crashed(run: Sheet, base: Sheet) -> None:
    lost = run.planned[0].item
    run.results = [result for result in run.results if result.item != lost]


def violated_and_crashed(run: Sheet, base: Sheet) -> None:
    run.violate("scores.scale")
    crashed(run, base)


def effects(before: tuple[float, float, float], after: tuple[float, float, float]) -> Change:
    """Return a change of a check's effect and its interval, while each record alone is consistent."""

    def change(run: Sheet, base: Sheet) -> None:
        for sheet, interval in ((base, before), (run, after)):
            sheet.change("scores.scale", **dict(zip(("low", "effect", "high"), interval, strict=True)))

    return change


def power_grew(run: Sheet, base: Sheet) -> None:
    run.change("scores.scale", size=8000, mde=1.03, power=0.99)
    run.change("outputs.energy", size=3900, mde=1.052)


def fixed_layer_lost(run: Sheet, base: Sheet) -> None:
    """Leave the number of layers unchanged."""
    run.drop(ANCHORS[0].key, plan=True)
    base.results, base.planned = base.results[:-8], base.planned[:-8]
    base.head["fixed"] = [layer.key for layer in ANCHORS]


def other_budget(run: Sheet, base: Sheet) -> None:
    base.head["false_alarm"] = 1e-3


def other_profile(run: Sheet, base: Sheet) -> None:
    base.head["profile"] = "default"
    run.drop(ANCHORS[0].key, plan=True)
    run.change("scores.law", mde=1.08)


def pools(*cases: str) -> Change:
    """Return a change that adds a pool of other effects to both, over these cases in the baseline."""

    def change(run: Sheet, base: Sheet) -> None:
        for sheet, effect, of in ((base, 0.99, list(cases)), (run, 1.01, ["a", "b"])):
            fields: dict[str, Any] = {"effect": effect, "low": effect - 0.005, "high": effect + 0.005}
            fields |= {"case": {"pool": "all", "of": of}, "id": "scores.scale@all", "item": "scores@all"}
            sheet.results.append(msgspec.structs.replace(sheet.results[0], **fields))

    return change


def shape(check: str, **fields: Any) -> Change:
    """Return a change of the run's results of a check."""
    return lambda run, base: run.change(check, **fields)


def of_run(method: str, *arguments: Any, **options: Any) -> Change:
    """Return a change of the run by a method of its sheet."""
    return lambda run, base: getattr(run, method)(*arguments, **options)


def of_base(method: str, *arguments: Any, **options: Any) -> Change:
    return lambda run, base: of_run(method, *arguments, **options)(base, run)


DAMAGED = "was edited or damaged ("  # a line that no run writes
INCONCLUSIVE = {"verdict": "inconclusive", "p_values": [1e-5, 0.5, 1e-4]}
HIDDEN = NOT_EXAMINED | {"reason": "the subject does not expose scores"}
LOST_FIXED = "completeness: properties draws, outputs and scores: planned on 2 of the 3 fixed layers of the baseline"
BUDGET = (
    "false_alarm=1e-06: the baseline has the false alarm 0.001; run with --false-alarm 0.001, or make a new one with"
)
PROFILE = "profile=smoke: the baseline has the profile default; run with --profile default, or make a new one with"
MOVED = "drift: scores.scale: the effect moved from 0.99 to 1.01"
POWER, TWICE = "power: scores.scale:", "1 result is reported more than once"
GAP = f"{POWER} minimum detectable effect was 1.05"
DESELECTED = "property outputs: not planned; the baseline examined 8 layers"
DIFFERENT = "note: versions differ: attncheck 0.2.0 (0.1.0 in the baseline)"
SEVERAL = "power: draws.signs, outputs.energy, scores.law and 1 more"
UNFINISHED = "belongs to an unfinished or incomplete run; make a new one with --write"
NEWER, FAR, FAILED = {"attncheck": "0.2.0"}, {"effect": 1.5, "low": 1.4, "high": 1.6}, "subject=my: raised"
SITUATIONS: dict[str, tuple[int, str, Change]] = {
    "clean, another seed": (0, "CONSISTENT", lambda run, base: None),
    "clean, the same seed": (0, "CONSISTENT", lambda run, base: vars(run).update(copy.deepcopy(vars(base)))),
    "other order of results": (0, "CONSISTENT", lambda run, base: run.results.reverse()),
    "other versions": (0, DIFFERENT, of_run("describe", versions=NEWER)),
    "new property": (0, "note: not in the baseline: draws.signs", of_base("drop", "draws.", plan=True)),
    "moved within the errors": (0, "CONSISTENT", effects((0.93, 0.97, 1.01), (0.99, 1.03, 1.07))),
    "power grew": (0, "CONSISTENT", power_grew),
    "fewer stand-ins": (0, "CONSISTENT", fewer_substitutes),
    "pools of other cases": (0, "CONSISTENT", pools("a", "c")),
    "baseline violated": (0, "note: the baseline has violated results", of_base("violate", "scores.scale", **FAR)),
    "violated": (1, "verdicts: 8 results are violated: scores.scale", of_run("violate", "scores.scale")),
    "violated and crashed": (1, "completeness: 2 planned results are missing", violated_and_crashed),
    "drifted effect": (1, MOVED, effects((0.985, 0.99, 0.995), (1.005, 1.01, 1.015))),
    "drifted pool": (1, MOVED, pools("a", "b")),
    "p-values not uniform": (1, "uniformity: the first-look p-values of 8 test items", shape("", p_values=[0.999])),
    "unknown verdict": (2, DAMAGED, shape("scores.law", verdict="fine")),
    "impossible p-value": (2, DAMAGED, shape("scores.law", p_values=[7.0])),
    "verdict without p-values": (2, DAMAGED, shape("scores.law", p_values=[])),
    "baseline examined nothing": (2, "has no examined result; make the baseline", of_base("change", **HIDDEN)),
    "inconclusive": (3, "verdicts: 8 results are inconclusive: scores.scale", shape("scores.scale", **INCONCLUSIVE)),
    "nothing examined": (4, "nothing was examined", shape("", **HIDDEN)),
    "renamed property": (4, "property draws: not planned", of_run("rename", "draws", "samples")),
    "renamed check": (4, "1 check of the baseline not planned: scores.law", of_run("rename", "scores.law", "scores.s")),
    "a subject that failed": (4, f"completeness: {FAILED}", lambda run, base: run.failed.append(FAILED)),
    "crashed worker": (4, "2 planned results are missing: scores.law", crashed),
    "skipped": (4, "8 planned results are missing", of_run("drop", "outputs.energy")),
    "deselected": (4, DESELECTED, of_run("drop", "outputs.", plan=True)),
    "fewer examples": (4, "scores: planned on 7 layers, the baseline examined 8", fewer_examples),
    "a fixed layer is required whatever the seed": (4, LOST_FIXED, fixed_layer_lost),
    "another budget": (4, f"\n  completeness: {BUDGET} --write-baseline\n", other_budget),
    "another profile": (4, f"\n  completeness: {PROFILE} --write-baseline\n", other_profile),
    "unplanned result": (4, "1 result is reported but not planned", lambda run, base: run.planned.pop(0)),
    "duplicated result": (4, TWICE, lambda run, base: run.results.append(run.results[0])),
    "killed between lines": (4, "the record has no closing line", lambda run, base: setattr(run, "close", False)),
    "baseline killed": (4, UNFINISHED, lambda run, base: setattr(base, "close", False)),
    "exposes less": (4, "no longer examined (the subject does not expose scores)", shape("scores.law", **HIDDEN)),
    "other subject": (4, "my:direct was examined, the baseline is of my:", of_run("describe", subject="my:direct")),
    "gap grew": (4, f"{GAP} and is 1.08 on", shape("scores.scale", mde=1.08)),
    "gap gone": (4, f"{GAP} and is nothing", shape("scores.scale", mde=None)),
    "size fell": (4, "power: scores.scale: size was 4000 and is 2000", shape("scores.scale", size=2000)),
    "sizes of several fell": (4, f"{SEVERAL}: size was 4000 and is 2000 on n=", shape("", size=2000)),
    "planned power fell": (4, f"{POWER} power was 0.99 and is 0.9", of_base("change", "scores.scale", power=0.99)),
}


def compressed(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return packed


@pytest.mark.parametrize("name", SITUATIONS)
def test_situation(tmp_path: Path, gated: Gated, sheets: Sheets, name: str) -> None:
    code, text, change = SITUATIONS[name]
    change(*sheets)
    run, base = (sheet.write(tmp_path / file) for sheet, file in zip(sheets, ("run.jsonl", "base.jsonl"), strict=True))
    found, output = gated(run, base)
    assert text in output
    assert found == code
    assert output.count("power:") == text.count("power:")
    packed = compressed(base)
    assert gated(run, packed) == (code, output.replace("base.jsonl", "base.jsonl.gz"))


def forge(path: Path) -> None:
    """Change a digit and reseal the record with its old digest."""
    other = {"p_values": [0.5]}
    lines = [
        msgspec.structs.replace(line, **other) if getattr(line, "check", "") == "scores.law" else line
        for line in read(path)
    ]
    write_lines(path, lines)


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :]


def cut(length: int) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[:-length])


def gzipped(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return a change of a compressed file's content."""
    return lambda path: path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


#: What happens to a file, the gate's exit code, and what it says: files as such are in tests/records.
DAMAGES: list[Damage] = [
    ("run.jsonl", Path.unlink, 2, "No such file"),
    ("run.jsonl", forge, 2, "its digest does not match its results"),
    ("run.jsonl", cut(9), 4, "the record has no closing line"),
    ("run.jsonl", cut(9000), 4, "planned results are missing"),
    ("base.jsonl", Path.unlink, 4, "there is no baseline"),
    ("base.jsonl", cut(200), 4, f"base.jsonl: {UNFINISHED}"),
    ("base.jsonl.gz", gzipped(lambda data: b"hello\n"), 2, "has no manifest in its first line; pass a record"),
    ("base.jsonl.gz", gzipped(lambda data: data.splitlines(keepends=True)[0]), 2, "has no examined result; make the b"),
    ("base.jsonl.gz", cut(200), 2, "is truncated or damaged (Compressed file ended before the end-of-stream marker"),
    ("base.jsonl.gz", lambda path: path.write_bytes(flip(path.read_bytes())), 2, ""),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file(tmp_path: Path, gated: Gated, sheets: Sheets, damage: Damage) -> None:
    name, change, code, text = damage
    run, base = sheets[0].write(tmp_path / "run.jsonl"), sheets[1].write(tmp_path / "base.jsonl")
    base = compressed(base) if name.endswith(".gz") else base
    change(tmp_path / name)
    found, output = gated(run, base)
    assert found == code
    assert text in output
    if name.endswith(".gz"):
        assert output.startswith(f"attncheck: baseline={base}: {text}")


def test_a_run_without_a_baseline_can_be_accepted(tmp_path: Path, gated: Gated, sheets: Sheets) -> None:
    run, base = sheets[0].write(tmp_path / "run.jsonl"), tmp_path / "baselines" / "base.jsonl"
    code, output = gated(run, base)
    assert code == 4
    assert output.startswith("INCOMPLETE: ")
    assert f"there is no baseline {base} yet; accept this run with: attncheck gate {run} --baseline {base} " in output
    assert not base.parent.exists()
    assert gated(run, base, "--write-baseline")[0] == 0
    assert [path.name for path in base.parent.iterdir()] == ["base.jsonl"]
    assert base.read_bytes() == run.read_bytes()
    assert gated(run, base)[0] == 0


def test_write_baseline_replaces_one(tmp_path: Path, gated: Gated, sheets: Sheets) -> None:
    run, base = sheets
    path = compressed(base.write(tmp_path / "base.jsonl"))
    run.change("scores.scale", mde=1.08)
    ours = run.write(tmp_path / "run.jsonl")
    assert gated(ours, path)[0] == 4
    code, output = gated(ours, path, "--write-baseline")
    assert code == 0
    assert f"note: {path} is now the baseline" in output
    assert gzip.decompress(path.read_bytes()) == ours.read_bytes()
    assert read_run(path).results == read_run(ours).results
    assert gated(ours, path)[0] == gated(tmp_path / "base.jsonl", path)[0] == 0


@pytest.mark.parametrize("name", ["violated", "inconclusive", "crashed worker", "killed between lines"])
def test_a_run_in_trouble_is_no_baseline(tmp_path: Path, gated: Gated, sheets: Sheets, name: str) -> None:
    """It is not offered as one, and replaces none."""
    SITUATIONS[name][2](*sheets)
    run, base = sheets[0].write(tmp_path / "run.jsonl"), sheets[1].write(tmp_path / "base.jsonl")
    before = base.read_bytes()
    for path, options in ((tmp_path / "none.jsonl", []), (base, ["--write-baseline"])):
        code, output = gated(run, path, *options)
        assert code == (1 if name == "violated" else 4)
        assert "this run cannot become a baseline" in output
        assert "accept this run" not in output
    assert base.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"run.jsonl", "base.jsonl"}


def test_a_baseline_needs_a_place_of_its_own(tmp_path: Path, gated: Gated, sheets: Sheets) -> None:
    run = sheets[0].write(tmp_path / "run.jsonl")
    for base, options, text in (
        (tmp_path, ["--write-baseline"], f"attncheck: baseline={tmp_path}: cannot be written"),
        (run, ["--write-baseline"], "is the record of the run itself"),
        (tmp_path / "." / "run.jsonl", [], "is the record of the run itself"),
    ):
        code, output = gated(run, base, *options)
        assert code == 2
        assert text in output


def test_the_drift_budget_can_be_widened(tmp_path: Path, gated: Gated, sheets: Sheets) -> None:
    SITUATIONS["moved within the errors"][2](*sheets)
    paths = sheets[0].write(tmp_path / "run.jsonl"), sheets[1].write(tmp_path / "base.jsonl")
    assert gated(*paths, "--false-alarm", "0.5")[0] == 1
    assert gated(*paths, "--false-alarm", "0")[0] == 2


# Output as JSON and Markdown; long records are streamed


def outputs(tmp_path: Path, sheets: Sheets, gated: Gated) -> tuple[int, Path, Path]:
    paths = sheets[0].write(tmp_path / "run.jsonl"), sheets[1].write(tmp_path / "base.jsonl")
    summary, document = tmp_path / "a" / "s.md", tmp_path / "g.json"
    code, _ = gated(*paths, "--summary", str(summary), "--json", str(document))
    return code, summary, document


def test_json_says_everything(tmp_path: Path, gated: Gated, sheets: Sheets) -> None:
    sheets[0].violate("scores.scale")
    code, _, document = outputs(tmp_path, sheets, gated)
    found = json.loads(document.read_text(encoding="utf-8"))
    assert found["exit_code"] == code == 1
    assert found["verdict"] == "violated"
    assert found["sentence"].startswith("VIOLATED: my:simulator, 8 violated, 32 of 32 planned results examined")
    assert found["sentence"].endswith(f" Compared with {tmp_path / 'base.jsonl'}.")
    assert found["findings"] == [
        {"part": "verdicts", "verdict": "violated", "text": "8 results are violated: scores.scale"}
    ]
    assert found["wrong"][-1]["label"] == "replay"
    assert found["wrong"][-1]["text"].startswith("attncheck replay ")
    assert found["notes"] == ["seed is 7, 0 in the baseline"]
    assert found["detectable"] == []


def test_summary_begins_with_verdict_cause_and_number(tmp_path: Path, gated: Gated, sheets: Sheets) -> None:
    run, _ = sheets
    run.violate("scores.scale")
    run.change("scores.scale", diagnosis=["score variance 1.19 [1.10, 1.27] times the declared"])
    run.causes = ["W_Q: 1.09 times the declared standard deviation", "W_K: 1.09 times the declared standard deviation"]
    _, summary, _ = outputs(tmp_path, sheets, gated)
    text = summary.read_text(encoding="utf-8").replace("\\", "")
    lines = [line for line in text.splitlines() if line]
    assert lines[:4] == [
        "## attncheck: violated",
        f"- **cause**: {run.causes[0]}",
        f"- **or**: {run.causes[1]}",
        "- **observed**: score variance 1.19 [1.10, 1.27] times the declared",
    ]
    assert lines[4].startswith("- **first**: scores.scale on 8 of 8 layers: ratio ")
    smallest = min(run.results, key=lambda result: result.case["width"] * result.case["seq_len"])
    assert lines[5] == f"- **layer**: {AttentionLayer.from_dict(smallest.case).describe()}, the smallest of them"
    command = f"attncheck replay {tmp_path}/run.jsonl scores.scale@{smallest.id[-12:]} --trust my"
    assert lines[6] == f"<pre>{command}</pre>"
    assert lines[7] == "- **verdicts**: 8 results are violated: scores.scale"
    assert lines[8].startswith("VIOLATED: my:simulator, 8 violated, 32 of 32 planned results examined")


def test_summary_is_one_screen_without_ids(tmp_path: Path, gated: Gated, sheets: Sheets) -> None:
    run, base = sheets
    for number, check in enumerate(CHECKS):
        run.change(check, mde=1.1 + 0.01 * number, **{"p_values": [0.999]})
        base.change(check, effect=0.9, low=0.895, high=0.905)
    run.drop(run.planned[0].id)
    run.results.append(run.results[-1])
    run.close = False
    run.head["versions"] = {f"library {number}": "1.0" for number in range(50)}
    base.head["versions"] = {f"library {number}": "2.0" for number in range(50)}
    _, summary, document = outputs(tmp_path, sheets, gated)
    text = summary.read_text(encoding="utf-8")
    assert len(json.loads(document.read_text(encoding="utf-8"))["findings"]) == 12
    assert text.count("- **") == 8
    assert "- and 4 more" in text
    assert not re.search("[0-9a-f]{12}", text)
    lines = text.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 300


@pytest.mark.parametrize("option", ["--summary", "--json"])
@pytest.mark.parametrize(
    ("path", "text"),
    [(name, "is also the path of") for name in ("x/../run.jsonl", "x/../base.jsonl", "link")] + [("", "is a folder")],
)
def test_nothing_is_written_over_what_is_read_or_a_folder(
    tmp_path: Path, gated: Gated, sheets: Sheets, option: str, path: str, text: str
) -> None:
    run, base = sheets[0].write(tmp_path / "run.jsonl"), sheets[1].write(tmp_path / "base.jsonl")
    (tmp_path / "link").symlink_to(run)
    before = [record.read_bytes() for record in (run, base)]
    code, output = gated(run, base, option, str(tmp_path / path))
    assert code == 2
    assert text in output
    assert [record.read_bytes() for record in (run, base)] == before


def test_long_records_take_little_more_than_their_text(tmp_path: Path, gated: Gated) -> None:
    """Thousands of lines, and as many in a whole baseline, take at most twice the text of both."""
    short = [make_sheet(seed).write(tmp_path / f"short {seed}.jsonl") for seed in (RUN_SEED, BASELINE_SEED)]
    assert gated(*short)[0] == 0  # with all imports of the gate
    layers = [AttentionLayer(width=1 + index % 100, seq_len=1 + index // 100) for index in range(500)]
    paths = []
    for seed in (RUN_SEED, BASELINE_SEED):
        sheet = make_sheet(seed, layers)
        sheet.results = [msgspec.structs.replace(result, hint="x" * 2_000) for result in sheet.results]
        paths.append(sheet.write(tmp_path / f"{seed}.jsonl"))
    (code, _), peak = with_peak(lambda: gated(*paths))
    assert code == 0
    assert peak < 2.0 * sum(path.stat().st_size for path in paths)
