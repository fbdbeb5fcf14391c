"""Runs of the paper's tasks: workers change no digit, streams are separate, and impossible arguments are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attncheck._lib.errors import InputError
from attncheck._lib.processes import Processes
from attncheck.commands.cli import main
from attncheck.paper import exact, units
from attncheck.paper.experiments import EXPERIMENTS
from attncheck.paper.run import manifest_of, names_of, perform_all

from .conftest import TINY, cheap

MANIFEST = manifest_of(3, TINY)


@pytest.mark.usefixtures("few_units")
def test_workers_do_not_change_a_digit_and_streams_are_separate() -> None:
    names = ["fig1", "fig2"]
    with Processes(2) as workers:
        alone, several = perform_all(names, MANIFEST), perform_all(names, MANIFEST, workers)
    assert alone.keys() == several.keys()
    assert len(alone) >= 15
    for task, arrays in alone.items():
        assert all(np.array_equal(arrays[name], several[task][name]) for name in arrays)
    means = {float(arrays["moments"][0]) for arrays in alone.values()}
    assert len(means) == len(alone)
    other_seed = perform_all(names, manifest_of(4, TINY))
    assert means.isdisjoint(float(arrays["moments"][0]) for arrays in other_seed.values())


@pytest.mark.usefixtures("few_units")
def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    found = perform_all(["fig2"], MANIFEST, on_progress=lambda done, total, name: told.append((done, total)))
    assert told == [(done, len(found)) for done in range(1, len(found) + 1)]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    # At full size: it is refused before anything is computed.
    assert main(["paper", "--workers", "0", "--out", str(tmp_path / "file" / "x")]) == 2
    assert "out=" in capsys.readouterr().err


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


def test_cheap_values_have_the_form_of_real_ones() -> None:
    wanted = EXPERIMENTS["fig1"].exact[0]
    real = exact.compute(wanted, units.grid(), 0, TINY)
    fake = cheap(wanted, units.grid(), 0)
    assert {name: value.shape for name, value in real.items()} == {name: value.shape for name, value in fake.items()}
