"""Runs of the paper's tasks: workers change no digit, streams are separate, and impossible arguments are refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncheck._lib.errors import InputError
from attncheck._lib.processes import Processes
from attncheck.commands.cli import main
from attncheck.paper import exact, units
from attncheck.paper.experiments import EXPERIMENTS
from attncheck.paper.run import manifest_of, names_of, perform_all
from attncheck.paper.units import Task

from .conftest import TINY, cheap

MANIFEST = manifest_of(3, TINY)


def test_workers_do_not_change_a_digit_and_streams_are_separate(monkeypatch: pytest.MonkeyPatch) -> None:
    """On three trials of the cheapest items."""
    whole, names = units.tasks_of, ["fig1", "fig2"]

    def few(name: str) -> list[Task]:
        sampled = [unit for unit in whole(name) if 0 < unit.trial <= 3]
        return [unit for unit in sampled if unit.subject.layer.width * unit.subject.layer.num_heads < 1000]

    monkeypatch.setattr(units, "tasks_of", few)
    progress: list[tuple[int, int]] = []
    alone = perform_all(names, MANIFEST, on_progress=lambda done, total, name: progress.append((done, total)))
    assert progress == [(done, len(alone)) for done in range(1, len(alone) + 1)]
    with Processes(2) as workers:
        several = perform_all(names, MANIFEST, workers)
    assert alone.keys() == several.keys()
    assert len(alone) >= 15
    for task, arrays in alone.items():
        assert all(np.array_equal(arrays[name], several[task][name]) for name in arrays)
    means = {float(arrays["moments"][0]) for arrays in alone.values()}
    assert len(means) == len(alone)
    other_seed = perform_all(["fig2"], manifest_of(4, TINY))
    assert means.isdisjoint(float(arrays["moments"][0]) for arrays in other_seed.values())


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    # At full size: it is refused before anything is computed.
    assert main(["paper", "--workers", "0", "--out", str(tmp_path / "file" / "x")]) == 2
    assert "out=" in capsys.readouterr().err


SCALES: list[Any] = [0.0, -1.0, 1e-9, 0.99e-3, 1.5, float("nan"), "1"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((functools.partial(manifest_of, 0, scale), "scale=") for scale in SCALES),
        (functools.partial(manifest_of, -1, 1.0), "seed=-1"),
        (functools.partial(names_of, ["fig4"]), "figure='fig4'"),
    ],
)
def test_impossible_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


#: Width, heads and head dimension of the layers of a figure.
PUBLISHED = {
    **{name: [(n, 2, None) for n in (16, 64, 256, 1024)] for name in ("fig1", "fig5")},
    "fig2": [(256, 2, None), (256, 2, None), (256, 1, None), (256, 256, None)],
    "fig3": [(64, 1, 64), (256, 4, 64), (1024, 16, 64)],
}


def test_published_sizes_are_kept() -> None:
    sizes = {name: (each.draws, each.trials) for name, each in EXPERIMENTS.items()}
    assert sizes == {"fig1": (50_000, 10), "fig2": (50_000, 10), "fig3": (50_000, 10), "fig5": (100_000, 10)}
    layers = {name: [c.layer for c in each.configurations if not c.limit] for name, each in EXPERIMENTS.items()}
    assert {
        name: [(layer.width, layer.num_heads, layer.head_dim) for layer in each] for name, each in layers.items()
    } == PUBLISHED
    scaled = [
        (name, k) for name, each in layers.items() for k, layer in enumerate(each) if layer.score_scaling == "1/n"
    ]
    assert scaled == [("fig2", 1)]
    assert {layer.seq_len for name in ("fig1", "fig5") for layer in layers[name]} == {4}
    assert {layer.activation for layer in layers["fig5"]} == {"relu"}
    assert {layer.clip for name in ("fig1", "fig2", "fig3") for layer in layers[name]} == {100.0}


def test_cheap_values_have_the_form_of_real_ones() -> None:
    wanted = EXPERIMENTS["fig1"].exact[0]
    real = exact.compute(wanted, units.grid(), 0, TINY)
    fake = cheap(wanted, units.grid(), 0)
    assert {name: value.shape for name, value in real.items()} == {name: value.shape for name, value in fake.items()}
