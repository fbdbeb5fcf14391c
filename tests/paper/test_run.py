"""Items, files and folders: finished ones stay, damaged ones are redone, and workers change no digit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from attncheck._lib.errors import InputError
from attncheck._lib.executors import pool
from attncheck.paper import exact, units
from attncheck.paper.experiments import EXPERIMENTS
from attncheck.paper.run import manifest_of, names_of, settle_all
from attncheck.paper.units import Arrays, Task

from .conftest import TINY, cheap

MANIFEST = manifest_of(3, TINY)


def contents(data: Path) -> dict[str, dict[str, bytes]]:
    found = {}
    for path in sorted(data.glob("*.npz")):
        with np.load(path) as file:
            found[path.name] = {name: file[name].tobytes() for name in file.files if not name.endswith("seconds")}
    return found


def stamps(data: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in data.glob("*.npz")}


@pytest.mark.usefixtures("few_units")
def test_workers_do_not_change_a_digit(tmp_path: Path) -> None:
    alone = settle_all(["fig1", "fig2"], tmp_path / "1", MANIFEST)
    several = settle_all(["fig1", "fig2"], tmp_path / "2", MANIFEST, pool(2))
    assert contents(alone) == contents(several)
    assert len(contents(alone)) >= 15
    other = settle_all(["fig1", "fig2"], tmp_path / "3", manifest_of(4, TINY))
    assert contents(alone) != contents(other)


@pytest.mark.usefixtures("few_units")
def test_trials_and_configurations_have_streams_of_their_own(tmp_path: Path) -> None:
    data = settle_all(["fig1"], tmp_path, MANIFEST)
    digests = []
    for path in data.glob("*.npz"):
        with np.load(path) as file:
            digests.append(str(file["digest"]))
    assert len(set(digests)) == len(digests) > 8


@pytest.mark.usefixtures("few_units", "computed_cheaply")
def test_a_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents(settle_all(["fig2"], tmp_path / "whole", MANIFEST))
    perform = units.perform
    done: list[Task] = []

    def interrupted(unit: Task, seed: int, scale: float) -> Arrays:
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(unit)
        return perform(unit, seed, scale)

    monkeypatch.setattr(units, "perform", interrupted)
    with pytest.raises(KeyboardInterrupt):
        settle_all(["fig2"], tmp_path / "parts", MANIFEST)
    data = tmp_path / "parts" / "data"
    before = stamps(data)
    assert len(before) == 4
    assert not list(data.glob(".*"))
    monkeypatch.setattr(units, "perform", perform)
    told: list[tuple[int, int]] = []
    settle_all(["fig2"], tmp_path / "parts", MANIFEST, told=lambda done, total, name: told.append((done, total)))
    assert contents(data) == whole
    assert {name: stamps(data)[name] for name in before} == before
    assert told[0] == (4, len(whole))
    assert told[-1] == (len(whole), len(whole))


@pytest.mark.usefixtures("few_units")
@pytest.mark.parametrize("damage", ["truncated", "empty", "other bytes", "of another unit", "without its time"])
def test_a_damaged_unit_is_done_again(tmp_path: Path, damage: str) -> None:
    data = settle_all(["fig2"], tmp_path, MANIFEST)
    whole, before = contents(data), stamps(data)
    path, other = sorted(data.glob("*.npz"))[:2]
    good = path.read_bytes()
    if damage == "without its time":
        with np.load(path) as file:
            kept = {name: file[name] for name in file.files if name != "seconds"}
        np.savez(path, allow_pickle=False, **kept)
    else:
        path.write_bytes(
            {
                "truncated": good[: len(good) // 2],
                "empty": b"",
                "other bytes": bytes(len(good)),
                "of another unit": other.read_bytes(),
            }[damage]
        )
    settle_all(["fig2"], tmp_path, MANIFEST)
    assert contents(data) == whole
    assert [name for name, stamp in stamps(data).items() if stamp != before[name]] == [path.name]


@pytest.mark.usefixtures("few_units")
@pytest.mark.parametrize(
    ("seed", "scale", "said"),
    [(4, TINY, "holds a run with seed 3, not 4"), (3, 2 * TINY, "holds a run with scale 0.001, not 0.002")],
)
def test_a_folder_of_another_run_is_refused(tmp_path: Path, seed: int, scale: float, said: str) -> None:
    data = settle_all(["fig2"], tmp_path, MANIFEST)
    before = stamps(data)
    with pytest.raises(InputError, match=f"{said}; choose another --out"):
        settle_all(["fig2"], tmp_path, manifest_of(seed, scale))
    assert stamps(data) == before


@pytest.mark.usefixtures("few_units")
def test_an_unreadable_manifest_is_refused(tmp_path: Path) -> None:
    data = settle_all(["fig2"], tmp_path, MANIFEST)
    for content in (b'{"seed": 3', b""):
        (data / "run.json").write_bytes(content)
        before = stamps(data)
        with pytest.raises(InputError, match=r"run\.json cannot be read.*; choose another --out"):
            settle_all(["fig2"], tmp_path, manifest_of(3, 2 * TINY))
        assert stamps(data) == before


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be written"):
        settle_all(["fig2"], tmp_path / "file", MANIFEST)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-9, 0.99e-3, 1.5, float("nan"), "1"])
def test_impossible_scales_are_refused(scale: float) -> None:
    with pytest.raises(InputError, match="scale="):
        manifest_of(0, scale)


def test_impossible_seeds_and_names_are_refused() -> None:
    with pytest.raises(InputError, match="seed=-1"):
        manifest_of(-1, 1.0)
    with pytest.raises(InputError, match="figure='fig4'"):
        names_of(["fig4"])


def test_published_sizes_are_kept() -> None:
    sizes = {name: (each.draws, each.trials) for name, each in EXPERIMENTS.items()}
    assert sizes == {"fig1": (50_000, 10), "fig2": (50_000, 10), "fig3": (50_000, 10), "fig5": (100_000, 10)}
    layers = {name: [c.layer for c in each.configurations if not c.limit] for name, each in EXPERIMENTS.items()}
    for name in ("fig1", "fig5"):
        assert [(layer.width, layer.seq_len, layer.num_heads) for layer in layers[name]] == [
            (n, 4, 2) for n in (16, 64, 256, 1024)
        ]
    assert [(layer.width, layer.num_heads, layer.score_scaling) for layer in layers["fig2"]] == [
        (256, 2, "1/sqrt(n)"),
        (256, 2, "1/n"),
        (256, 1, "1/sqrt(n)"),
        (256, 256, "1/sqrt(n)"),
    ]
    assert [(layer.width, layer.num_heads, layer.head_dim) for layer in layers["fig3"]] == [
        (64, 1, 64),
        (256, 4, 64),
        (1024, 16, 64),
    ]
    assert {layer.activation for layer in layers["fig5"]} == {"relu"}
    assert {layer.clip for name in ("fig1", "fig2", "fig3") for layer in layers[name]} == {100.0}


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_what_is_done(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "attncheck", "paper", "fig3", "--scale", "0.005", "--workers", "2"]
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(list((out / "data").glob("*.npz"))) < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert said == "attncheck: interrupted\n"
    paths = list((out / "data").glob("*.npz"))
    assert paths
    for path in paths:
        with np.load(path) as file:
            assert all(np.asarray(file[name]).size for name in file.files)


def test_cheap_values_have_the_form_of_real_ones() -> None:
    wanted = EXPERIMENTS["fig1"].exact[0]
    real = exact.compute(wanted, units.grid(), 0, TINY)
    fake = cheap(wanted, units.grid(), 0)
    assert {name: value.shape for name, value in real.items()} == {name: value.shape for name, value in fake.items()}
