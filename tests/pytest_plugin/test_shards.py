"""Shards: `--shard` of the command and of pytest, `attncheck merge` and errors."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import NamedTuple

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main
from attncheck.looks.profiles import PROFILES
from attncheck.records.schema import Closing, Manifest, Result, StatementResult, read

pytest_plugins = ["pytester"]

# Runs in this process forget their imports: import once here. Functions of `concurrent.futures.process` imported
# twice cannot be pickled.
for module in (
    "attncheck.runs.run",
    "attncheck.strategies",
    "attncheck.runs.summary",
    "concurrent.futures.process",
    "statsmodels.stats.multitest",
):
    importlib.import_module(module)

TESTS = """
from attncheck.pytest_plugin import examines, theory
from attncheck.strategies import layers

@examines("scores", layers(max_entries=40))
def test_scores(layer, hold):
    hold(layer)

@theory("sums.small", number=[1, 2, 3, 4, 5])
def test_sums(number, note):
    note(twice=2.0 * number)

def test_of_nobody():
    pass
"""

# For workers, which have profiles of their own.
FEW = """
import dataclasses
from attncheck.looks.profiles import PROFILES
PROFILES["smoke"] = dataclasses.replace(PROFILES["smoke"], examples=1)
"""

SUBJECTS = """
from attncheck import AttentionLayer
from attncheck.subject import collapsed

def right(layer, size, rng):
    return collapsed(layer, size, rng)

def slight(layer, size, rng):
    return collapsed(layer.replace(query_std=1.012 * layer.query_std), size, rng)

# A layer hardly shows it, and all of them together do.
slight.layers = [AttentionLayer(width=width, seq_len=2, num_heads=1) for width in range(3, 11)]
"""


class Said(NamedTuple):
    code: int
    out: str


@pytest.fixture
def place(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a folder with tests and subjects, without the user's settings."""
    for name in ("ATTNCHECK_SUBJECT", "PYTEST_ADDOPTS", "CI", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(pytester.path)
    monkeypatch.setitem(PROFILES, "smoke", dataclasses.replace(PROFILES["smoke"], examples=1))
    pytester.makeconftest(FEW)
    pytester.makepyfile(test_it=TESTS, shard_subjects=SUBJECTS)
    return pytester


def smoke(place: pytest.Pytester, record: str, *options: str, subject: str = "right") -> pytest.RunResult:
    arguments = ["-p", "no:cacheprovider", "--attncheck-profile=smoke", f"--attncheck-record={record}"]
    return place.runpytest_inprocess(*arguments, f"--attncheck-subject=shard_subjects:{subject}", *options)


def shard(place: pytest.Pytester, number: int, of: int, *options: str, subject: str = "right") -> pytest.RunResult:
    return smoke(place, f"part{number}.jsonl", f"--attncheck-shard={number}/{of}", *options, subject=subject)


_HALVES: dict[str, bytes] = {}


def halves(place: pytest.Pytester) -> None:
    """Put the cached records of both shards into the folder."""
    if not _HALVES:
        assert shard(place, 1, 2).ret == shard(place, 2, 2).ret == 0
        _HALVES.update({name: Path(name).read_bytes() for name in ("part1.jsonl", "part2.jsonl")})
    for name, content in _HALVES.items():
        Path(name).write_bytes(content)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> Said:
    capsys.readouterr()
    code = main(arguments)
    return Said(code, capsys.readouterr().out)


def closing_of(record: str) -> Closing:
    *_, closing = read(Path(record))
    assert isinstance(closing, Closing)
    return closing


def ids_of(record: str) -> set[str]:
    return {line.id for line in read(Path(record)) if isinstance(line, Result | StatementResult)}


def test_shards_of_pytest_make_the_record_of_one_run(
    place: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    """With and without a worker, in any item order, theory statements included."""
    assert smoke(place, "whole.jsonl").ret == 0
    whole = closing_of("whole.jsonl")
    assert whole.verdict == "consistent"
    done = [shard(place, 1, 3, "-n1"), shard(place, 2, 3)]
    place.makeconftest(FEW + "def pytest_collection_modifyitems(items): items.reverse()")
    done.append(shard(place, 3, 3))
    passed = [result.parseoutcomes() for result in done]
    assert [result.ret for result in done] == [0, 0, 0]
    assert all(outcomes["passed"] >= 3 and outcomes["skipped"] >= 3 for outcomes in passed)
    items = passed[0]["passed"] + passed[0]["skipped"]
    assert sum(outcomes["passed"] for outcomes in passed) - 2 == items
    parts = [ids_of(f"part{number}.jsonl") for number in (1, 2, 3)]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert all(any(id.startswith("sums.small@") for id in part) for part in parts)

    told = said(capsys, "merge", "part3.jsonl", "part1.jsonl", "part2.jsonl", "-o", "run.jsonl")
    assert told.code == ExitCode.CONSISTENT, told.out
    assert closing_of("run.jsonl").digest == whole.digest
    assert ids_of("run.jsonl") == ids_of("whole.jsonl")
    assert f"Digest of all digits: {whole.digest}\nRecord: run.jsonl\n" in told.out


def test_summary_says_that_it_is_a_part(place: pytest.Pytester) -> None:
    result = shard(place, 2, 3, "-rs")
    result.stdout.fnmatch_lines(
        [
            "attncheck: subject shard_subjects:right, seed 0, *, shard 2/3",
            "SKIPPED *: belongs to shard 1/3",
            "CONSISTENT: *",
            "  Shard 2/3 is only part of a run; combine all shards with attncheck merge.",
        ]
    )
    assert "missing" not in result.stdout.str()


def test_owed_looks_are_said_and_taken(place: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    whole = smoke(place, "whole.jsonl", subject="slight")
    assert whole.ret == pytest.ExitCode.TESTS_FAILED
    assert closing_of("whole.jsonl").verdict == "violated"
    assert [shard(place, number, 2, subject="slight").ret for number in (1, 2)] == [0, 0]
    told = said(capsys, "merge", "part1.jsonl", "part2.jsonl")
    assert told.code == ExitCode.INCOMPLETE
    owed = "attncheck run --owed run.jsonl --subject shard_subjects:slight"
    assert told.out.endswith(f"\nFurther looks at suspicious pools are owed: {owed}\n")
    assert "missing: scores.scale@all" in told.out
    gated = said(capsys, "gate", "run.jsonl", "--baseline", "whole.jsonl")
    assert gated.code == ExitCode.INCOMPLETE
    assert "further looks at suspicious pools are owed: attncheck run --owed takes them" in gated.out

    told = said(capsys, *owed.split()[1:], "--workers", "1", "--report", "page.html", "-v")
    assert told.code == ExitCode.VIOLATED
    assert closing_of("run.jsonl").digest == closing_of("whole.jsonl").digest
    assert closing_of("run.jsonl").causes == closing_of("whole.jsonl").causes
    assert told.out.endswith("\nReport: page.html\n")
    assert "scores.scale@all" in told.out


def test_gate_and_report_say_that_a_shard_is_a_part(place: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    remedy = "the record is of shard 1/2, a part of a run; attncheck merge makes one record of all shards"
    halves(place)
    for options in (["--baseline", "part2.jsonl"], ["--baseline", "new.jsonl.xz", "--write-baseline"]):
        told = said(capsys, "gate", "part1.jsonl", *options)
        assert told.code == ExitCode.INCOMPLETE
        assert remedy in told.out
    assert not Path("new.jsonl.xz").exists()
    assert said(capsys, "report", "part1.jsonl", "-o", "page.html").code == ExitCode.CONSISTENT
    assert remedy in Path("page.html").read_text(encoding="utf-8")
    assert said(capsys, "merge", "part1.jsonl", "part2.jsonl").code == ExitCode.CONSISTENT
    told = said(capsys, "gate", "run.jsonl", "--baseline", "part2.jsonl")
    assert told.code == ExitCode.INCOMPLETE
    assert "baseline=part2.jsonl: is of shard 2/2, a part of a run; merge all shards with attncheck merge" in told.out
    assert said(capsys, "gate", "run.jsonl", "--baseline", "run.jsonl.xz", "--write-baseline").code == 0


def test_shards_that_make_no_run_leave_what_is_there(
    place: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    halves(place)
    Path("run.jsonl").write_text("the last one", encoding="utf-8")
    told = said(capsys, "merge", "part1.jsonl", "-o", "run.jsonl")
    assert told.code == ExitCode.INCOMPLETE
    assert told.out == (
        "INCOMPLETE: no record was written.\n  shard 2/2 is missing; run it: "
        "attncheck run --profile smoke --subject shard_subjects:right --only scores --theory --shard 2/2\n"
    )
    told = said(capsys, "merge", "part1.jsonl", "part1.jsonl", "-o", "run.jsonl")
    assert told.code == ExitCode.INCOMPLETE
    assert "shard 1/2 appears 2 times, in part1.jsonl and part1.jsonl; pass one of them" in told.out
    assert Path("run.jsonl").read_text(encoding="utf-8") == "the last one"
    before = Path("part1.jsonl").read_bytes()
    assert main(["merge", "part1.jsonl", "-o", "part1.jsonl"]) == ExitCode.UNUSABLE
    assert Path("part1.jsonl").read_bytes() == before


def test_interrupted_shard_is_gone_on_with(place: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    halves(place)
    part = Path("part2.jsonl")
    digest = closing_of("part2.jsonl").digest
    part.write_bytes(b"".join(part.read_bytes().splitlines(keepends=True)[:-3]))
    told = said(capsys, "merge", "part1.jsonl", "part2.jsonl")
    assert told.code == ExitCode.INCOMPLETE
    assert (
        "shard 2/2 did not finish (part2.jsonl has no closing line); resume it: attncheck run --profile smoke "
        "--subject shard_subjects:right --only scores --theory --shard 2/2 --resume part2.jsonl --record part2.jsonl\n"
    ) in told.out
    assert shard(place, 2, 2, "--attncheck-resume=part2.jsonl").ret == 0
    assert closing_of("part2.jsonl").digest == digest
    assert said(capsys, "merge", "part1.jsonl", "part2.jsonl").code == ExitCode.CONSISTENT


def test_unusable_shard_is_a_usage_error(place: pytest.Pytester) -> None:
    result = smoke(place, "record.jsonl", "--attncheck-shard=9/8")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "shard='9/8': " in "\n".join(result.errlines)
    assert not Path("record.jsonl").exists()


def test_command_passes_its_shard_on(place: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--profile", "smoke", "--workers", "0", "--only", "fact1", "--record", "part.jsonl"]
    told = said(capsys, "run", "--shard", "1/2", *arguments)
    assert told.code == ExitCode.CONSISTENT, told.out
    manifest = next(read(Path("part.jsonl")))
    assert isinstance(manifest, Manifest)
    assert manifest.shard == (1, 2)
    assert {line.split("@")[0] for line in ids_of("part.jsonl")} == {planned.check for planned in manifest.planned}
    assert len(ids_of("part.jsonl")) < len(manifest.planned)
