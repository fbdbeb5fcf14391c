"""The paper's experiments: tiny runs, figures, numbers and pages, complete and reproducible; and computed values."""

from __future__ import annotations

import base64
import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck._lib.processes import Processes
from attncheck._lib.streams import stream
from attncheck.commands.cli import main
from attncheck.paper import exact, units
from attncheck.paper.experiments import EXPERIMENTS, ExactDistance, Experiment
from attncheck.paper.numbers import markdown, named, statements_of
from attncheck.paper.page import write_pages
from attncheck.paper.results import Figure, gather
from attncheck.paper.run import PaperRun, manifest_of, names_of, perform_all
from attncheck.paper.units import Arrays, Task, divergence
from attncheck.theory.rates.law import Distance
from tests.refusals import refused

#: 200 draws a trial.
TINY = 1e-3
PUBLISHED = tuple(EXPERIMENTS)


def cheap(wanted: ExactDistance, grid: FloatArray, seed: int, scale: float = 1.0) -> dict[str, Any]:
    """Return plausible computed values: 11/n², or 1e-4 if a distance stays."""
    width = float("inf") if wanted.infinite else float(wanted.layer.width)
    value = 11.0 / width**2 + (1e-4 if wanted.layer.head_dim else 0.0)
    numbers = (value, 0.01 * value, value, 0.01 * value, width, 256)
    curve = np.cos(3 * grid) * np.exp(-(grid**2)) / wanted.layer.width
    moments = np.array([0.39, 1e-3, 0.2, 1e-3])
    return {
        "distance": Distance("kl", *numbers),
        "difference": curve,
        "difference_error": 0.01 * np.abs(curve),
        "moments": moments,
    }


@pytest.fixture(scope="session")
def tiny() -> tuple[Mapping[Task, Arrays], PaperRun]:
    """Return the results of a tiny whole run, and its manifest."""
    manifest = manifest_of(3, TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "compute", cheap)
        return perform_all(PUBLISHED, manifest), manifest


# Runs and pages -----------------------------------------------------------------------------------


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
    refused(call, message)


def test_cheap_values_have_the_form_of_real_ones() -> None:
    wanted = EXPERIMENTS["fig1"].exact[0]
    real = exact.compute(wanted, units.grid(), 0, TINY)
    fake = cheap(wanted, units.grid(), 0)
    assert {name: np.shape(value) for name, value in real.items()} == {
        name: np.shape(value) for name, value in fake.items()
    }


Tiny = tuple[Mapping[Task, Arrays], PaperRun]


@pytest.fixture(scope="module")
def written(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the figures."""
    out = tmp_path_factory.mktemp("paper")
    write_pages(PUBLISHED, out, *tiny)
    return out


@pytest.fixture(scope="module")
def figures(tiny: Tiny) -> list[Figure]:
    return [gather(name, *tiny) for name in PUBLISHED]


def test_figures_are_written_whole_and_alone_with_the_same_numbers(tiny: Tiny, written: Path, tmp_path: Path) -> None:
    assert {path.name for path in written.iterdir()} == {"numbers.md", "paper.html"}
    write_pages(["fig3"], tmp_path, *tiny)
    assert (tmp_path / "paper.html").read_text(encoding="utf-8").count("<section") == 1
    alone = (tmp_path / "numbers.md").read_text(encoding="utf-8").partition("## ")[2].partition("## ")[0]
    assert alone.strip() in (written / "numbers.md").read_text(encoding="utf-8")


def test_numbers_are_those_of_the_units(figures: list[Figure]) -> None:
    first = figures[0]
    finite = first.finite
    assert [len(law.kl) for law in first.sampled.values()] == 5 * [10]
    said = statements_of(first)[0]
    for law in finite:
        assert f"{law.label}: {np.mean(law.kl):.3g} ± " in said.estimated
    assert "n = 64: 0.00269" in said.computed
    assert "11/n² at large n, fitted exponent −2.000" in said.computed
    page = markdown(figures)
    for figure in figures:
        assert f"## {named(figure)}" in page
        for statement in statements_of(figure):
            assert statement.estimated in page
    assert "quick look" in page
    full = [dataclasses.replace(figure, run=dataclasses.replace(figure.run, scale=1.0)) for figure in figures]
    assert "quick look" not in markdown(full)


@pytest.mark.parametrize(("draws", "width"), [(500, 0.25), (5_000, 0.1), (100_000, 0.05)])
def test_fewer_draws_make_wider_bars(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, draws: int, width: float) -> None:
    """At most as wide as Freedman and Diaconis' 2.7 over the cube root of the draws."""
    monkeypatch.setattr(Experiment, "draws_at", lambda experiment, scale: draws)
    figure = gather("fig2", *tiny)
    assert np.diff(figure.edges) == pytest.approx(width)
    units = [np.sum(law.counts) for law in figure.sampled.values()]
    assert all(count > 0 for count in units)
    assert all(len(law.counts) == len(figure.edges) - 1 for law in figure.sampled.values())
    assert width <= max(0.05, 2.7 * draws ** (-1 / 3)) * 1.0001


def test_the_page_needs_nothing_else(written: Path) -> None:
    html = (written / "paper.html").read_text(encoding="utf-8")
    assert re.findall(r"""(?:src|href)=["'](?!data:|#)|<script""", html) == []
    pictures = re.findall(r"<img[^>]*>", html)
    texts = {match[1] for picture in pictures if (match := re.search(r'alt="([^"]{61,})"', picture))}
    assert len(texts) == len(pictures) == 16
    assert "quick look at 0.1% of the published draws" in html
    for name in PUBLISHED:
        assert f'id="{name}"' in html
    drawn = re.search(r'src="data:[^,"]*,([^"]*)"', pictures[0])
    assert drawn
    assert base64.b64decode(drawn[1]).decode().startswith("<?xml")


# Computed values: scores by quadrature, and the published estimator against SciPy -----------------


Layer = ac.AttentionLayer


@pytest.mark.parametrize(
    "layer", [Layer(width=16), Layer(width=12, head_dim=4, query_std=1.5)], ids=["full", "low rank"]
)
def test_scores_follow_the_mixture(layer: Layer) -> None:
    mixture = exact.score_mixture(layer, 24)
    drawn = ac.simulate(layer.replace(seq_len=1), 40_000).scores[:, 0, 0, 0]

    def uniform(scores: FloatArray) -> FloatArray:
        # Interpolation between 2,001 points errs by at most 1e-4; 40,000 draws resolve 1e-2.
        points = np.linspace(0.0, np.abs(scores).max(), 2001)
        tail = np.interp(np.abs(scores), points, mixture.upper_tail(points))
        return np.where(scores < 0, tail, 1 - tail)

    assert stats.kstest(uniform(drawn), "uniform", method="asymp").pvalue > 1e-5
    wrong = ac.simulate(layer.replace(width=64, seq_len=1), 40_000).scores[:, 0, 0, 0]
    assert stats.kstest(uniform(wrong), "uniform", method="asymp").pvalue < 1e-5


def test_moments_of_scores_are_those_of_the_paper_set_up() -> None:
    n = 256
    variance, kurtosis = exact.score_moments(Layer(width=n), 32)
    rho2, rho4 = 1 + 2 / n, (1 + 2 / n) * (1 + 4 / n) * (1 + 6 / n)
    assert variance == pytest.approx(rho2**2, rel=1e-12)
    assert kurtosis == pytest.approx(3 * (1 + 2 / n) * rho4**2 / rho2**4 - 3, rel=1e-9)


def test_score_difference_integrates_to_nothing_and_falls_as_one_over_n() -> None:
    wide = np.linspace(-12, 12, 1201)
    at = {n: exact.score_difference(Layer(width=n), wide, 24) for n in (256, 1024)}
    assert abs(at[256].sum() * (wide[1] - wide[0])) < 1e-9
    assert np.abs(at[256]).max() / np.abs(at[1024]).max() == pytest.approx(4, rel=0.03)


def samples(name: str, size: int) -> FloatArray:
    rng = stream(0, "kernel densities", name, size)
    if name == "normal":
        return rng.standard_normal(size)
    if name == "heavy":
        return rng.standard_t(3, size)
    return np.concatenate([rng.normal(-3, 0.1, size // 2), rng.normal(50, 4, size - size // 2)])


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_divergence_is_the_published_sum(shift: float) -> None:
    first, second = samples("normal", 3_000) + shift, samples("heavy", 3_000)
    grid = np.linspace(min(first.min(), second.min()), max(first.max(), second.max()), 500)
    p, q = (stats.gaussian_kde(each)(grid) + 1e-12 for each in (first, second))
    expected = (p * np.log(p / q)).sum() * (grid[1] - grid[0])
    assert divergence(first, second) == pytest.approx(expected, abs=1e-6)
