"""Records of parts of a run are read as one run."""

from __future__ import annotations

import functools
import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from attncheck._lib.errors import InputError
from attncheck._lib.workers import InProcess
from attncheck.commands.cli import main
from attncheck.commands.replaying import repeat
from attncheck.gate import gate
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.item import Item
from attncheck.records.run_record import RunRecord
from attncheck.runs.parts import read_run
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run
from attncheck.subject import Subject

from .conftest import made
from .test_pools import LAYERS as SMALL
from .test_pools import slight

COLLAPSED = "attncheck.subject:collapsed"
LAYERS = [AttentionLayer(width=width, seq_len=2, num_heads=2) for width in (3, 4, 6, 8)]


def items_of(run: Run, names: Iterable[str] = ("scores", "draws")) -> list[Item]:
    return [item for name in names for item in run.items_on(name, LAYERS)]


def recorded(
    path: Path,
    items: list[Item],
    examined: int | None = None,
    subject: Any = COLLAPSED,
    seed: int = 0,
) -> Path:
    """Write the record of a part of a run; of its items, only the first `examined` have results."""
    run = made(subject=subject, record=path, seed=seed).planning(item.id for item in items)
    report = RunReport(run)
    report.take(run.examine(items[:examined]))
    if examined is None:
        report.take(report.pool(InProcess())[0])
    report.finish()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, as a whole, in halves by case and by property, and one that was interrupted."""
    place = tmp_path_factory.mktemp("parts")
    items = items_of(made())
    few = {layer.key for layer in LAYERS[:2]}
    recorded(place / "whole.jsonl", items)
    recorded(place / "narrow.jsonl", [item for item in items if item.case.key in few])
    recorded(place / "wide.jsonl", [item for item in items if item.case.key not in few])
    recorded(place / "scores.jsonl", [item for item in items if item.property_name == "scores"])
    recorded(place / "draws.jsonl", [item for item in items if item.property_name == "draws"])
    recorded(place / "begun.jsonl", items, examined=3)
    recorded(place / "rest.jsonl", items[3:])
    recorded(place / "other.jsonl", items_of(made(), ["draws"]), seed=1)
    return place


@functools.cache
def read(folder: Path, *names: str) -> RunRecord:
    return read_run([folder / f"{name}.jsonl" for name in names])


@pytest.mark.parametrize("names", [("narrow", "wide"), ("scores", "draws"), ("draws", "scores"), ("begun", "rest")])
def test_parts_are_the_whole(folder: Path, names: tuple[str, ...]) -> None:
    parts, whole = read(folder, *names), read(folder, "whole")
    assert [each.id for each in parts.every] == [each.id for each in whole.every]
    assert [(each.p_values, each.verdict) for each in parts.every] == [(e.p_values, e.verdict) for e in whole.every]
    assert parts.conclusion.verdict == whole.conclusion.verdict == "consistent"
    assert parts.digest == whole.digest != ""
    assert parts.planned == whole.planned


def test_one_file_may_have_the_records_of_all_parts(folder: Path, tmp_path: Path) -> None:
    joined = tmp_path / "joined.jsonl"
    joined.write_bytes(b"".join((folder / f"{name}.jsonl").read_bytes() for name in ("narrow", "wide", "wide")))
    assert read_run(joined).digest == read(folder, "whole").digest


def test_what_a_part_demands_or_finds_stays(folder: Path, tmp_path: Path) -> None:
    """Whatever the order of the files, and however often each is passed."""
    demanding = tmp_path / "demanding.jsonl"
    run = made(subject=COLLAPSED, record=demanding, min_examined=10_000).planning(item.id for item in items_of(made()))
    RunReport(run).finish()
    rest = [folder / "whole.jsonl"]
    for paths in ([demanding, *rest], [*rest, demanding], [demanding, demanding, *rest]):
        assert read_run(paths).conclusion.verdict == "inconclusive"
    bad = recorded(tmp_path / "bad.jsonl", made().items_on("scores", SMALL), subject=slight)
    some = recorded(tmp_path / "some.jsonl", made().items_on("scores", SMALL[:2]), subject=slight)
    for paths in ([bad, some], [some, bad], [some, some, bad]):
        assert read_run(paths).conclusion.verdict == "violated"
    joined = tmp_path / "joined.jsonl"
    joined.write_bytes(b"".join(path.read_bytes() for path in (bad, some)))
    (pool, *_) = (each for each in read_run(joined).pools if each.verdict == "violated")
    again = repeat(pool, Subject.of(slight), 0, record=joined)
    assert again.p_values == pool.p_values


def test_a_record_that_is_cut_in_a_file_of_several_is_refused(folder: Path, tmp_path: Path) -> None:
    whole, other = ((folder / f"{name}.jsonl").read_bytes() for name in ("scores", "draws"))
    for cut in (whole + other[:3_000], whole + other[:20], whole[:-20] + other):
        (tmp_path / "cut.jsonl").write_bytes(cut)
        with pytest.raises(InputError, match=r"cut\.jsonl"):
            read_run(tmp_path / "cut.jsonl")


def test_a_part_without_its_end_is_no_pass(folder: Path, tmp_path: Path) -> None:
    """Nothing tells whether its lines were edited."""
    killed = tmp_path / "killed.jsonl"
    killed.write_bytes((folder / "narrow.jsonl").read_bytes().rpartition(b'{"type":"closing"')[0])
    for paths in ([killed, folder / "wide.jsonl"], [folder / "whole.jsonl", killed]):
        assert read_run(paths).conclusion.verdict == "incomplete"


def test_a_baseline_of_several_files_can_be_read(folder: Path, tmp_path: Path) -> None:
    """Compressed or not, whatever they are called."""
    packed, plain = tmp_path / "packed.jsonl", tmp_path / "plain.jsonl.gz"
    packed.write_bytes(gzip.compress((folder / "wide.jsonl").read_bytes()))
    plain.write_bytes((folder / "narrow.jsonl").read_bytes())
    arguments = ["gate", str(plain), str(packed), "--baseline", str(tmp_path / "new.jsonl"), "--write-baseline"]
    assert main(arguments) == 0
    assert read_run(tmp_path / "new.jsonl").digest == read(folder, "whole").digest


def test_a_result_that_no_part_has_is_missing(folder: Path) -> None:
    assert read(folder, "begun", "scores").conclusion.verdict == "incomplete"
    assert "draws." in read(folder, "begun", "scores").conclusion.reasons[0]
    assert read(folder, "begun", "scores").digest == ""


def test_records_of_different_runs_are_refused(folder: Path) -> None:
    with pytest.raises(
        InputError, match=r"^seed: is 1 in .*other.jsonl and 0 in .*scores.jsonl; pass records of one run"
    ):
        read(folder, "scores", "other")


def test_a_result_is_replayed_from_its_own_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = read(folder, "narrow", "wide")
    id = next(each.id for each in read(folder, "wide").results)
    assert parts.part_of(id).path == folder / "wide.jsonl"
    assert main(["replay", str(parts.part_of(id).path), id]) == 0
    assert "The digits agree." in capsys.readouterr().out


def test_gate_and_report_read_several_records(folder: Path, tmp_path: Path) -> None:
    parts = [str(folder / f"{name}.jsonl") for name in ("narrow", "wide")]
    baseline, page = tmp_path / "baseline.jsonl.gz", tmp_path / "page.html"
    assert main(["gate", *parts, "--baseline", str(baseline), "--write-baseline"]) == 0
    assert gate(folder / "whole.jsonl", baseline).verdict == "consistent"
    assert main(["gate", *parts, "--baseline", str(baseline)]) == 0
    assert main(["report", *parts, "--out", str(page)]) == 0
    assert read(folder, "whole").digest in page.read_text("utf-8")


def test_a_pool_that_no_part_has_examined_and_is_suspicious_decides_nothing(tmp_path: Path) -> None:
    """The error shows on all cases together only; a record of a single case has no pool."""
    items = made().items_on("scores", SMALL)
    whole = read_run(recorded(tmp_path / "whole.jsonl", items, subject=slight))
    parts = read_run(recorded(tmp_path / f"{item.case.key}.jsonl", [item], subject=slight) for item in items)
    assert [each.verdict for each in parts.results] == [each.verdict for each in whole.results]
    assert "violated" not in {each.verdict for each in whole.results}
    bad = {pool.id for pool in whole.pools if pool.verdict == "violated"}
    assert bad
    assert all(parts.by_id[id].verdict == "inconclusive" for id in bad)
    assert parts.conclusion.verdict == "inconclusive"
