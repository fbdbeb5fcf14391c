"""Figures, numbers and pages: complete, reproducible and accessible."""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from attncheck.paper.experiments import Experiment
from attncheck.paper.numbers import markdown, named, statements_of
from attncheck.paper.page import write_pages
from attncheck.paper.results import Figure, gather
from attncheck.paper.run import PaperRun
from attncheck.paper.units import Arrays, Task

from .conftest import PUBLISHED

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
    assert [len(law.kl) for law in first.sampled] == 5 * [10]
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
    units = [np.sum(law.counts) for law in figure.sampled]
    assert all(count > 0 for count in units)
    assert all(len(law.counts) == len(figure.edges) - 1 for law in figure.sampled)
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
