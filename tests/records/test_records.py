"""Records: readable however the run ended, and nothing else passes for one."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import attncheck as ac
from attncheck import faults
from attncheck._lib.errors import InputError
from attncheck.checks.registry import CHECKS
from attncheck.gate import gate
from attncheck.gate.outputs import sentence
from attncheck.records import writer as records
from attncheck.records.run_record import read_records
from attncheck.records.schema import Closing, Manifest, Result, read, run_digest
from attncheck.records.scope import FEWEST_LAWS, Scope
from attncheck.records.writer import Writer
from attncheck.runs.parts import read_run
from attncheck.runs.view import RunView
from attncheck.subject import collapsed
from tests.recorded import examine, make_closing, make_manifest, make_result, write_lines
from tests.refusals import refused


def manifest(**changes: Any) -> Manifest:
    return make_manifest([result()], **changes)


def result(**changes: Any) -> Result:
    return make_result("a.b", {"width": 8}, **{"id": "a.b@1", "item": "a@1", "claim": "scores", **changes})


def lines() -> list[Manifest | Result | Closing]:
    return [manifest(), result(), make_closing([result()])]


def written(path: Path) -> Path:
    return write_lines(path, lines())


def refusal(path: Path) -> str:
    return refused(lambda: read_records(path), f"^record={re.escape(str(path))}: ")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """And nothing else is left in the folder."""
    record = written(written(tmp_path / "new" / "record.jsonl"))
    *first, closing = read(record)
    assert closing.seal
    assert [*first, msgspec.structs.replace(closing, seal="")] == lines()
    assert list(record.parent.iterdir()) == [record]
    record.write_bytes(record.read_bytes().replace(b"\n", b"\r\n"))  # as git checks it out on Windows
    assert list(read(record)) == [*first, closing]


def test_digest_depends_on_digits_and_not_on_order_time_or_prose() -> None:
    one, two = result(), result(id="c", p_values=[0.25])
    assert run_digest([one, two]) == run_digest([two, msgspec.structs.replace(one, seconds=9.0)])
    for changes in ({"mde": 1.0300000000000002}, {"p_values": [0.4000000000000001]}, {"verdict": "violated"}):
        assert run_digest([one]) != run_digest([msgspec.structs.replace(one, **changes)])
    assert run_digest([one]) != run_digest([one, one])
    assert run_digest([one]) != run_digest([result(id="x.y@1")])
    names = {"item": "x@1", "property": "x", "check": "x.y", "claim": "y", "reason": "r", "text": "t"}
    renamed = msgspec.structs.replace(one, **names, hint="h", case={"width": 9}, diagnosis=["d"])
    assert run_digest([one]) == run_digest([renamed])


@pytest.mark.parametrize("cut", [1, 40])
def test_a_last_line_that_was_cut_short_is_left_out(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "r.jsonl")
    path.write_bytes(path.read_bytes()[:-cut])
    assert list(read(path)) == lines()[:2]


def test_lines_are_read_one_at_a_time(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"type":"closing"', b'"type":"clothing"'))
    iterator = read(path)
    assert isinstance(next(iterator), Manifest)
    assert isinstance(next(iterator), Result)
    refused(lambda: next(iterator), "line 3 is broken")


EDITED = "was edited or damaged: its lines changed after the run had closed it; make the record again"
BROKEN: dict[str, tuple[Any, str]] = {
    "empty": (lambda data: b"", "has no manifest"),
    "other json": (lambda data: b'{"a": 1}\n', "has no manifest"),
    "nested deeply": (lambda data: b'{"a":' * 100_000 + b"\n", "has no manifest"),
    "first line cut": (lambda data: data[:30], "ends within its first line; make the record again"),
    "manifest missing": (lambda data: data.split(b"\n", 1)[1], "has no manifest"),
    "newer schema": (lambda data: data.replace(b'"schema":7', b'"schema":8'), "upgrade attncheck"),
    "older schema": (lambda data: data.replace(b'"schema":7', b'"schema":6'), "reads 7; make the record again"),
    "broken line": (lambda data: data.replace(b'"a@1","property"', b'"a@1,"property"'), "line 2 is broken"),
    "impossible digit": (lambda data: data.replace(b"[0.4]", b"[2.0]"), "line 2 was edited or damaged (p_values=2.0: "),
    "no digit": (lambda data: data.replace(b"[0.4]", b"[]"), "line 2 was edited or damaged (p_values=(): is empty al"),
    "edited digit": (lambda data: data.replace(b"[0.4]", b"[0.6]"), EDITED),
    "edited width": (lambda data: data.replace(b'"width":', b'"width":1', 1), EDITED),
    "edited budget": (lambda data: data.replace(b'"false_alarm":1', b'"false_alarm":2', 1), EDITED),
    "edited reasons": (lambda data: data.replace(b'"reasons":[', b'"reasons":["none"', 1), EDITED),
    "field after the seal": (lambda data: data[:-2] + b',"reasons":["none"]}\n', EDITED),
    "removed line": (lambda data: b"\n".join([*data.split(b"\n")[::2], b""]), EDITED),
    "results after the end": (lambda data: data + data.split(b"\n")[1] + b"\n", "line 4 is out of place"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_no_run_wrote_is_refused(tmp_path: Path, name: str) -> None:
    damage, says = BROKEN[name]
    path = written(tmp_path / "r.jsonl")
    data = path.read_bytes()
    assert damage(data) != data
    path.write_bytes(damage(data))
    message = refusal(path)
    assert says in message
    assert "Entry" not in message


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.jsonl")
    assert "directory" in refusal(tmp_path)


def test_another_run_cannot_write_to_the_same_path(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first, second = Writer(path), Writer(path)
    first.write(manifest())
    refused(lambda: second.write(manifest(seed=1)), "another run is writing to it; wait")
    first.write(result())
    first.close()
    assert list(read(path)) == lines()[:2]
    written(path)
    assert len(list(read(path))) == 3


def _race(path: Path, seed: int) -> None:
    writer = Writer(path)
    try:
        writer.write(manifest(seed=seed))
    except InputError:
        os._exit(7)
    for number in range(200):
        writer.write(result(id=f"{seed}/{number}"))
    os._exit(0)  # killed: without a closing line


def test_runs_that_start_together_do_not_interleave(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    context = multiprocessing.get_context("fork")
    runs = [context.Process(target=_race, args=(path, seed)) for seed in range(6)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert {run.exitcode for run in runs} <= {0, 7}
    first, *others = read(path)
    assert isinstance(first, Manifest)
    assert [line.id for line in others if isinstance(line, Result)] == [f"{first.seed}/{n}" for n in range(200)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the size of files as Linux does")
def test_a_full_disk_keeps_what_was_written(tmp_path: Path) -> None:
    """The disk is full in the middle of a line; in the end it is not."""
    import resource

    path = tmp_path / "r.jsonl"
    writer, before = Writer(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    for line in lines()[:2]:
        writer.write(line)
    for room, line in zip((100, 100, 10**9), (*lines()[1:], lines()[2]), strict=True):
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, before[1]))
        try:
            with pytest.raises(InputError, match=rf"^record={path}: cannot be written \(File too large\); free some"):
                writer.write(line)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(read(path)) == lines()[:2]
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("existed", [True, False])
def test_where_the_first_line_cannot_be_written_the_older_record_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    path = tmp_path / "r.jsonl"
    before = written(path).read_bytes() if existed else b""

    def full(file: Any, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(records, "_write_all", full)
    refused(lambda: Writer(path).write(manifest(seed=1)), "No space left on device")
    assert [each.name for each in tmp_path.iterdir()] == (["r.jsonl"] if existed else [])
    assert not existed or path.read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no /dev/full")
def test_devices_are_written_to_and_not_replaced() -> None:
    refused(
        lambda: Writer(Path("/dev/full")).write(manifest()),
        r"record=/dev/full: cannot be written \(No space left on device\)",
    )
    written(Path(os.devnull))
    assert Path(os.devnull).is_char_device()
    assert Path("/dev/full").is_char_device()


def test_links_are_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "kept.jsonl", tmp_path / "r.jsonl"
    link.symlink_to(target)
    written(link)
    assert link.is_symlink()
    assert len(list(read(target))) == 3


def test_a_folder_cannot_be_a_record(tmp_path: Path) -> None:
    refused(lambda: Writer(tmp_path).write(manifest()), "directory")
    file = written(tmp_path / "file")
    refused(lambda: Writer(file / "r.jsonl").write(manifest()), "cannot be written")


# Passes on little evidence say so in the first line; on too little they are none ------------------


LAYER = ac.AttentionLayer(width=8, seq_len=3, num_heads=2)
BLIND = faults.exposing(collapsed, ["outputs"])
ALL = {check.name: 1 for check in CHECKS}


def reach(*names: str, count: int = 10) -> Scope:
    return Scope.of(dict.fromkeys(names, count), dict.fromkeys(ALL, count))


# What a run covered -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["outputs.limit", "draws.signs"], "limit only"),
        (["outputs.limit", "outputs.law", "exactness.input"], "outputs only"),
        (["outputs.law", "scores.scale"], "little examined"),
        (["corollary2.output_size", "corollary2.two_scores"], "outputs and scores only"),
        (ALL, ""),
        (["outputs.limit", "scores.of_tomorrow"], ""),  # checks of other versions are not judged
    ],
)
def test_words_say_what_was_examined(names: Iterable[str], words: str) -> None:
    assert reach(*names).words == words


def test_checks_that_hold_no_law_are_none() -> None:
    assert reach("draws.signs", "outputs.symmetry", "exactness.repeats").laws == 0
    assert "none on a law" in reach("draws.signs").doubt()
    assert reach("outputs.law", "scores.scale").doubt().startswith("too little was examined: ")


def test_few_laws_settle_nothing_unless_there_are_no_more() -> None:
    few = {"scores.scale": FEWEST_LAWS - 1}
    assert Scope.of(few, {"scores.scale": 100}).doubt()
    assert not Scope.of(few, few).doubt()


def test_a_number_that_is_asked_for_holds() -> None:
    assert reach("scores.scale", count=7).doubt(8) == "7 results were examined, 8 are required"
    assert not reach("scores.scale", count=7).doubt(7)


# First lines --------------------------------------------------------------------------------------


def test_check_tells_that_outputs_are_all() -> None:
    report = ac.check(BLIND, LAYER, properties=["exactness", "outputs"], profile="smoke")
    assert str(report).startswith("CONSISTENT, OUTPUTS ONLY: ")
    report.require()
    with pytest.raises(AssertionError, match="are required"):
        report.require(min_examined=len(report.results))
    refused(lambda: report.require(min_examined=-1), "min_examined=-1: must be at least 0")


@pytest.mark.parametrize(
    ("names", "options", "first_line", "headline"),
    [
        (["exactness", "outputs"], {}, "CONSISTENT, OUTPUTS ONLY: ", "Outputs only: "),
        (["outputs"], {"min_examined": "1000"}, "INCONCLUSIVE: ", ""),
    ],
)
def test_run_page_and_gate_say_the_same(
    tmp_path: Path, names: list[str], options: dict[str, Any], first_line: str, headline: str
) -> None:
    record, base = tmp_path / "record.jsonl", tmp_path / "base.jsonl"
    report = examine(record, BLIND, names, [LAYER], **options)
    base.write_bytes(record.read_bytes())
    assert report.summary().startswith(first_line)
    assert RunView(read_run(record)).headline.startswith(headline)
    assert sentence(gate(record, base)).startswith(first_line if headline else "INCO")
    assert (RunView(read_run(record)).verdict == "consistent") is bool(headline)
