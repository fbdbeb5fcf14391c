"""Baselines are records, plain or compressed, with one-line errors if damaged."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from attncheck.layers.attention import AttentionLayer
from attncheck.runs.parts import read_run
from tests.gate.conftest import ANCHORS, CHECKS
from tests.gate.test_gate import BASELINE_SEED, RUN_SEED, SITUATIONS, Gated, MakeSheet

if TYPE_CHECKING:
    from tests.gate.conftest import Sheet


@pytest.fixture
def sheets(make_sheet: MakeSheet) -> tuple[Sheet, Sheet]:
    """A run and a baseline of another seed that know the fixed layers."""
    run, base = make_sheet(RUN_SEED), make_sheet(BASELINE_SEED)
    for each in (run, base):
        each.head["fixed"] = [layer.key for layer in ANCHORS]
    return run, base


def compressed(tmp_path: Path, base: Sheet) -> Path:
    path = base.write(tmp_path / "whole.jsonl")
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    return path.with_suffix(".jsonl.gz")


@pytest.mark.parametrize("name", ["violated", "drifted effect", "clean, another seed", "skipped"])
def test_a_compressed_record_judges_as_a_plain_one(
    tmp_path: Path, gated: Gated, make_sheet: MakeSheet, name: str
) -> None:
    run, base = make_sheet(RUN_SEED), make_sheet(BASELINE_SEED)
    SITUATIONS[name].change(run, base)
    ours, theirs = run.write(tmp_path / "run.jsonl"), compressed(tmp_path, base)
    (plain_code, plain), (code, said) = (gated(ours, path) for path in (tmp_path / "whole.jsonl", theirs))
    assert (code, said) == (plain_code, plain.replace("whole.jsonl", "whole.jsonl.gz"))
    assert SITUATIONS[name].says in said
    assert read_run(theirs).results == read_run(tmp_path / "whole.jsonl").results


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def _cut_early(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x55
    path.write_bytes(bytes(data))


def _edit(path: Path) -> None:
    content = gzip.decompress(path.read_bytes())
    assert b'"size":4000' in content
    path.write_bytes(gzip.compress(content.replace(b'"size":4000', b'"size":3000', 1)))


def _newer(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b'"schema":6', b'"schema":9', 1)))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "has no manifest in its first line; pass a record that attncheck"),
    "something else": (lambda path: path.write_text("hello\n"), "has no manifest in its first line; pass a record"),
    "something else, compressed": (lambda path: path.write_bytes(gzip.compress(b"hello\n")), "has no manifest in its"),
    "only a first line": (lambda path: path.write_bytes(_first(path)), "has no examined result; make the baseline"),
    "cut": (
        _cut,
        "is truncated or damaged (Compressed file ended before the end-of-stream marker was reached); make the",
    ),
    "cut early": (_cut_early, "is truncated or damaged (Compressed file ended"),
    "another byte": (_flip, ""),
    "edited": (_edit, "its digest is not that of its results; make the baseline again"),
    "newer": (_newer, "has schema 9, this version reads 6; upgrade attncheck"),
    "folder": (_folder, "cannot be read (Is a directory); pass the path of a run record"),
}


def _first(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)[0]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_baseline_that_cannot_be_used_is_named(
    tmp_path: Path, sheets: tuple[Sheet, Sheet], gated: Gated, name: str
) -> None:
    run, base = sheets
    path = compressed(tmp_path, base)
    damage, says = DAMAGES[name]
    damage(path)
    code, said = gated(run.write(tmp_path / "run.jsonl"), path)
    assert code == 2
    assert said.startswith(f"attncheck: baseline={path}: {says}")


def test_a_plain_baseline_that_was_cut_is_of_a_run_that_did_not_end(
    tmp_path: Path, sheets: tuple[Sheet, Sheet], gated: Gated
) -> None:
    run, base = sheets
    path = base.write(tmp_path / "base.jsonl")
    _cut(path)
    code, said = gated(run.write(tmp_path / "run.jsonl"), path)
    assert code == 4
    assert f"baseline={path}: belongs to an unfinished or incomplete run; make a new one with --write" in said


def test_write_baseline_replaces_one(tmp_path: Path, sheets: tuple[Sheet, Sheet], gated: Gated) -> None:
    run, base = sheets
    path = compressed(tmp_path, base)
    run.change("scores.scale", mde=1.08)
    ours = run.write(tmp_path / "run.jsonl")
    assert gated(ours, path)[0] == 4
    code, said = gated(ours, path, "--write-baseline")
    assert code == 0
    assert f"note: {path} is now the baseline" in said
    assert gzip.decompress(path.read_bytes()) == ours.read_bytes()
    assert gated(ours, path)[0] == 0
    assert gated(base.write(tmp_path / "base.jsonl"), path)[0] == 0


@pytest.mark.parametrize("name", ["violated", "inconclusive", "crashed worker", "killed between lines"])
def test_a_run_in_trouble_is_no_baseline(tmp_path: Path, sheets: tuple[Sheet, Sheet], gated: Gated, name: str) -> None:
    run, base = sheets
    SITUATIONS[name].change(run, base)
    path = compressed(tmp_path, sheets[1])
    before = path.read_bytes()
    code, said = gated(run.write(tmp_path / "run.jsonl"), path, "--write-baseline")
    assert code in (1, 4)
    assert "completeness: this run cannot become a baseline" in said
    assert path.read_bytes() == before


def test_write_baseline_needs_a_place(tmp_path: Path, sheets: tuple[Sheet, Sheet], gated: Gated) -> None:
    run = sheets[0].write(tmp_path / "run.jsonl")
    code, said = gated(run, tmp_path, "--write-baseline")
    assert code == 2
    assert said.startswith(f"attncheck: baseline={tmp_path}: cannot be written")
    code, said = gated(run, run, "--write-baseline")
    assert code == 2
    assert "is the record of the run itself" in said


def _without(layer: AttentionLayer, sheet: Sheet) -> None:
    sheet.drop(lambda each: each.id.endswith(layer.key), plan=True)


def test_a_fixed_layer_is_owed_whatever_the_seed(tmp_path: Path, sheets: tuple[Sheet, Sheet], gated: Gated) -> None:
    run, base = sheets
    _without(ANCHORS[0], run)
    base.results = base.results[:-8]  # the number of layers is unchanged
    base.planned = base.planned[:-8]
    paths = run.write(tmp_path / "run.jsonl"), compressed(tmp_path, base)
    code, said = gated(*paths)
    assert code == 4
    assert (
        "completeness: properties draws, outputs and scores: planned on 2 of the 3 fixed layers of the baseline" in said
    )


def test_another_profile_says_how_to_run(tmp_path: Path, sheets: tuple[Sheet, Sheet], gated: Gated) -> None:
    run, base = sheets
    base.head["profile"] = "default"
    _without(ANCHORS[0], run)
    run.change("scores.law", mde=1.08)
    code, said = gated(run.write(tmp_path / "run.jsonl"), compressed(tmp_path, base))
    assert code == 4
    says = "profile=smoke: the baseline has the profile default; run with --profile default, or make a new one with"
    assert said.splitlines()[1:2] == [f"  completeness: {says} --write-baseline"]
    assert "power" not in said


def test_losses_by_the_same_numbers_are_told_together(
    tmp_path: Path, sheets: tuple[Sheet, Sheet], gated: Gated
) -> None:
    run, base = sheets
    for check in CHECKS:
        run.change(check, size=2000)
    code, said = gated(run.write(tmp_path / "run.jsonl"), compressed(tmp_path, base))
    assert code == 4
    losses = [line for line in said.splitlines() if "power:" in line]
    assert len(losses) == 1
    assert "outputs.energy, scores.law and 1 more: size was 4000 and is 2000 on n=" in losses[0]


def test_pools_are_compared_with_the_same_seed(tmp_path: Path, sheets: tuple[Sheet, Sheet], gated: Gated) -> None:
    run, base = sheets
    for sheet, effect, of in ((base, 0.99, "b"), (run, 1.01, "b")):
        error = {"effect": effect, "low": effect - 0.005, "high": effect + 0.005}
        case = {"pool": "all", "of": ["a", of]}
        item = {"id": "scores.scale@all", "item": "scores@all"}
        sheet.results.append(msgspec.structs.replace(sheet.results[0], case=case, **item, **error))
    ours = run.write(tmp_path / "run.jsonl")
    code, said = gated(ours, compressed(tmp_path, base))
    assert code == 1
    assert "drift: scores.scale: the effect moved from 0.99 to 1.01" in said
    base.results[-1] = msgspec.structs.replace(base.results[-1], case={"pool": "all", "of": ["a", "c"]})
    assert gated(ours, compressed(tmp_path, base))[0] == 0
