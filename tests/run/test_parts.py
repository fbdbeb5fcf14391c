"""Records of parts of a run are read as one run."""

from __future__ import annotations

import functools
import gzip
from collections.abc import Iterable
from pathlib import Path

import pytest

from attncheck.commands.cli import main
from attncheck.commands.replaying import repeat
from attncheck.gate import gate
from attncheck.layers.attention import AttentionLayer
from attncheck.records.run_record import RunRecord
from attncheck.runs.parts import read_run
from attncheck.subject import Subject
from tests.recorded import RIGHT, examine
from tests.refusals import refused

from .test_pools import LAYERS as SLIGHT_LAYERS
from .test_pools import slight

pytestmark = pytest.mark.usefixtures("verdicts_only")

LAYERS = [AttentionLayer(width=width, seq_len=2, num_heads=2) for width in (3, 4, 6, 8)]
BOTH = ("scores", "draws")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, as a whole, in halves by case and by property, interrupted, and a wrong run."""
    place = tmp_path_factory.mktemp("parts")
    examine(place / "whole.jsonl", RIGHT, BOTH, LAYERS)
    examine(place / "narrow.jsonl", RIGHT, BOTH, LAYERS[:2])
    examine(place / "wide.jsonl", RIGHT, BOTH, LAYERS[2:])
    examine(place / "scores.jsonl", RIGHT, ["scores"], LAYERS)
    examine(place / "draws.jsonl", RIGHT, ["draws"], LAYERS)
    examine(place / "begun.jsonl", RIGHT, BOTH, LAYERS, first=4)
    examine(place / "other.jsonl", RIGHT, ["draws"], LAYERS[:1], seed=1)
    examine(place / "slight.jsonl", slight, layers=SLIGHT_LAYERS)
    return place


@functools.cache
def read(folder: Path, *names: str) -> RunRecord:
    return read_run([folder / f"{name}.jsonl" for name in names])


def joined(path: Path, parts: Iterable[Path]) -> Path:
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


@pytest.mark.parametrize("names", [("narrow", "wide"), ("scores", "draws"), ("draws", "scores"), ("begun", "draws")])
def test_parts_are_the_whole(folder: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    """In several files or in one, and whatever comes twice."""
    whole = read(folder, "whole")
    files = [folder / f"{name}.jsonl" for name in names]
    for parts in (read(folder, *names), read_run(joined(tmp_path / "joined.jsonl", [*files, files[-1]]))):
        assert [result.id for result in parts.every] == [result.id for result in whole.every]
        assert [(r.p_values, r.verdict) for r in parts.every] == [(r.p_values, r.verdict) for r in whole.every]
        assert parts.conclusion.verdict == whole.conclusion.verdict == "consistent"
        assert parts.digest == whole.digest != ""
        assert parts.planned == whole.planned


def test_what_a_part_demands_or_finds_stays(folder: Path, tmp_path: Path) -> None:
    """Whatever the order of the files, and however often each is passed."""
    demanding, whole = tmp_path / "demanding.jsonl", folder / "whole.jsonl"
    examine(demanding, RIGHT, BOTH, LAYERS, first=0, min_examined=10_000)
    for paths in ([demanding, whole], [whole, demanding], [demanding, demanding, whole]):
        assert read_run(paths).conclusion.verdict == "inconclusive"
    bad, some = folder / "slight.jsonl", tmp_path / "some.jsonl"
    examine(some, slight, layers=SLIGHT_LAYERS[:2])
    for paths in ([bad, some], [some, bad], [some, some, bad]):
        assert read_run(paths).conclusion.verdict == "violated"
    both = joined(tmp_path / "joined.jsonl", (bad, some))
    (pool, *_) = (pool for pool in read_run(both).pools if pool.verdict == "violated")
    assert repeat(pool, Subject.of(slight), 0, record=both).p_values == pool.p_values


def test_a_record_that_is_cut_in_a_file_of_several_is_refused(folder: Path, tmp_path: Path) -> None:
    whole, other = ((folder / f"{name}.jsonl").read_bytes() for name in ("scores", "draws"))
    for cut in (whole + other[:3_000], whole + other[:20], whole[:-20] + other):
        (tmp_path / "cut.jsonl").write_bytes(cut)
        refused(functools.partial(read_run, tmp_path / "cut.jsonl"), r"cut\.jsonl")


def test_what_is_missing_is_no_pass(folder: Path, tmp_path: Path) -> None:
    """Nothing tells whether the lines of a part without its end were edited."""
    killed = tmp_path / "killed.jsonl"
    killed.write_bytes((folder / "narrow.jsonl").read_bytes().rpartition(b'{"type":"closing"')[0])
    for paths in ([killed, folder / "wide.jsonl"], [folder / "whole.jsonl", killed]):
        assert read_run(paths).conclusion.verdict == "incomplete"
    without = read(folder, "begun", "scores")
    assert (without.conclusion.verdict, without.digest) == ("incomplete", "")
    assert "draws." in without.conclusion.reasons[0]


def test_records_of_different_runs_are_refused(folder: Path) -> None:
    refusal = r"^seed: is 1 in .*other.jsonl and 0 in .*scores.jsonl; pass records of one run"
    refused(lambda: read(folder, "scores", "other"), refusal)


def test_commands_read_several_records(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compressed or not, whatever they are called; a result is replayed from its part."""
    packed, plain = tmp_path / "packed.jsonl", tmp_path / "plain.jsonl.gz"
    packed.write_bytes(gzip.compress((folder / "wide.jsonl").read_bytes()))
    plain.write_bytes((folder / "narrow.jsonl").read_bytes())
    baseline, page = tmp_path / "new.jsonl", tmp_path / "page.html"
    parts = [str(plain), str(packed)]
    assert main(["gate", *parts, "--baseline", str(baseline), "--write-baseline"]) == 0
    assert read_run(baseline).digest == read(folder, "whole").digest
    assert gate(folder / "whole.jsonl", baseline).verdict == "consistent"
    assert main(["gate", *parts, "--baseline", str(baseline)]) == 0
    assert main(["report", *parts, "--out", str(page)]) == 0
    assert read(folder, "whole").digest in page.read_text("utf-8")
    id = next(result.id for result in read(folder, "wide").results)
    path = read(folder, "narrow", "wide").part_of(id).path
    assert path == folder / "wide.jsonl"
    assert main(["replay", str(path), id]) == 0
    assert "The digits agree." in capsys.readouterr().out


def test_a_pool_that_no_part_has_examined_and_is_suspicious_decides_nothing(folder: Path, tmp_path: Path) -> None:
    """The error shows on all cases together only; a record of a single case has no pool."""
    whole = read(folder, "slight")
    paths = [tmp_path / f"{layer.key}.jsonl" for layer in SLIGHT_LAYERS]
    for path, layer in zip(paths, SLIGHT_LAYERS, strict=True):
        examine(path, slight, layers=[layer])
    parts = read_run(paths)
    assert [each.verdict for each in parts.results] == [each.verdict for each in whole.results]
    assert "violated" not in {each.verdict for each in whole.results}
    bad = {pool.id for pool in whole.pools if pool.verdict == "violated"}
    assert bad
    assert all(parts.by_id[id].verdict == "inconclusive" for id in bad)
    assert parts.conclusion.verdict == "inconclusive"
