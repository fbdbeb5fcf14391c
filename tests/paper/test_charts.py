"""Charts of computed values match the theory, and state what they cannot show."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path

import matplotlib.figure
import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.lines import Line2D

from attncheck.layers.attention import AttentionLayer
from attncheck.paper import plates
from attncheck.paper.charts import ChartedFigure, Measure, Series, order
from attncheck.paper.experiments import EXPERIMENTS
from attncheck.paper.further import FURTHER
from attncheck.paper.further.boundaries import with_output, with_score
from attncheck.paper.numbers import markdown
from attncheck.paper.page import read_paper
from attncheck.paper.panel import panel_of
from attncheck.paper.publish import publish
from attncheck.paper.results import arrays_of, published
from attncheck.paper.run import NAMES, PaperRun, manifest_of, settle_all
from attncheck.theory.rates.one_position import output_kurtosis

Made = tuple[Path, PaperRun]
Figures = dict[str, ChartedFigure]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a run's folder: with `long` with every kind of plot, the others, alike, in one.

    At a hundredth of the draws, orders over seeds have standard deviations of 0.02 at most, a fifth of what is allowed.
    """
    out = tmp_path_factory.mktemp("further")
    manifest = manifest_of(3, 0.01)
    data = settle_all(tuple(FURTHER), out, manifest)
    publish(("long",), out, data, manifest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plates, "PLATES", {"svg": plates.PLATES["svg"]})
        publish([name for name in FURTHER if name != "long"], out, data, manifest)
    return out, manifest


@pytest.fixture(scope="module")
def figures(made: Made) -> Figures:
    return {figure.name: figure for figure in published(made[0]) if isinstance(figure, ChartedFigure)}


def series(figure: ChartedFigure, chart: int) -> dict[str, Series]:
    return {each.label: each for each in figure.charts[chart].series}


def test_every_name_is_of_one_figure() -> None:
    assert (*EXPERIMENTS, *FURTHER) == NAMES
    assert len(set(NAMES)) == len(NAMES)


def test_everything_is_written_and_read_again(made: Made, figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_publish.py` compares the bytes of the other formats."""
    out, manifest = made
    assert list(figures) == list(FURTHER)
    kinds = ("npz", "json", "svg", "pdf", "png")
    expected = {f"{name}.{kind}" for name in FURTHER for kind in kinds[:3]} | {f"long.{kind}" for kind in kinds}
    assert expected <= {path.name for path in out.iterdir()}
    with np.load(out / "long.npz") as kept:
        assert {name: kept[name].tolist() for name in kept.files} == {
            name: value.tolist() for name, value in arrays_of(figures["long"]).items()
        }
    again = out / "again"
    monkeypatch.setattr(plates, "PLATES", {"svg": plates.PLATES["svg"]})
    publish(("long",), again, out / "data", manifest)
    assert all((again / f"long.{kind}").read_bytes() == (out / f"long.{kind}").read_bytes() for kind in kinds[:3])


def test_page_has_each_chart_with_a_text_of_its_numbers(made: Made, figures: Figures) -> None:
    texts = [text for figure in figures.values() for text in figure.panels]
    assert len(texts) == len({text.alt for text in texts}) == sum(len(each.plans) for each in FURTHER.values())
    assert all(len(re.findall(r"\d", text.alt)) >= 8 for text in texts)
    page = (made[0] / "paper.html").read_text(encoding="utf-8")
    assert page.count("<img") == len(texts)
    assert page.count("<section") == len(FURTHER)
    assert "its estimator on own draws" not in page.lower()
    assert [view.columns for view in read_paper(made[0]).experiments] == 5 * [("statement", "predicted", "computed")]
    numbers = markdown(figures.values())
    assert all(row.computed in numbers for figure in figures.values() for row in figure.statements)
    for figure in figures.values():
        again = f"attncheck paper {figure.name} --seed {figure.seed} --scale {figure.scale:g}"
        assert figure.setting
        for text in (numbers, html.unescape(page)):
            assert figure.setting in text
            assert again in text


def _seeds(seed: int, scale: float, *, place: int = 0) -> dict[str, np.ndarray]:
    return {"value": np.array([seed])}


def test_no_two_series_are_of_one_stream() -> None:
    """Series shown side by side have independent draws."""
    measures = [Measure(label, _seeds, (("place", place),)) for label in "ab" for place in range(3)]
    own = [int(measure(seed, 1.0)["value"][0]) for seed in (0, 1) for measure in measures]
    assert len(set(own)) == len(own)


def test_numbers_follow_the_seed_and_no_worker(made: Made, tmp_path: Path) -> None:
    out, manifest = made
    wanted = FURTHER["tangent"].measures[0]
    first, again = (wanted(seed, manifest.scale)["value"] for seed in (3, 3))
    assert first.tolist() == again.tolist()
    assert first.tolist() != wanted(4, manifest.scale)["value"].tolist()
    with np.load(out / "tangent.npz") as kept:
        assert kept["one neuron, by width: over √n"][1].tolist() == first.tolist()


def test_tangent_kernel_stays_random_over_the_root_alone(figures: Figures) -> None:
    for chart in (0, 1):
        found = series(figures["tangent"], chart)
        limit = found["limit over √n"]
        root, over = found["over √n"], found["over n"]
        assert abs(root.value[-1] - limit.value[-1]) < 0.15 * limit.value[-1] + root.error[-1] + limit.error[-1]
        assert over.value[-1] < 0.35 * limit.value[-1]
        assert -0.65 < order(over) < -0.4
    assert all(-0.6 < order(each, 5) < -0.4 for each in figures["tangent"].charts[2].series)


def test_layers_with_a_norm_are_nearer_to_their_limit(figures: Figures) -> None:
    found = series(figures["norms"], 0)
    for place in range(4):
        assert found["RMS norm"].value[place] < found["layer norm"].value[place] < found["no norm"].value[place]
    assert all(abs(order(each) + 1.0) < 0.1 for each in found.values())
    variance = series(figures["norms"], 1)
    assert variance["norm after"].value == pytest.approx(13 * [1.0])
    growth = (1.5**4 / 2.0) ** 4
    assert variance["exploding"].value[-1] == pytest.approx(growth * variance["exploding"].value[-5], rel=0.01)
    assert all(each.value[0] == 0.0 < each.value[-1] <= 1.0 for each in figures["norms"].charts[2].series)


def test_law_of_output_weights_stays_with_small_heads(figures: Figures) -> None:
    full, narrow = (series(figures["weights"], chart) for chart in (0, 1))
    assert {label: round(order(each)) for label, each in full.items()} == {"h": -1, "W": -2, "W_V": -2, "W_O": -1}
    layer = AttentionLayer(width=4, seq_len=1, num_heads=1, head_dim=2, activation="identity")
    gap = output_kurtosis(layer, infinite=True) - output_kurtosis(layer, {"output": "rademacher"}, infinite=True)
    assert narrow["W_O"].value[-1] == pytest.approx(gap, rel=0.01)
    assert all(narrow[label].value[-1] < 0.01 * gap for label in ("h", "W", "W_V"))
    assert len(series(figures["weights"], 2)) == 4


def _look(handle: object) -> tuple[object, ...]:
    line = handle.lines[0] if isinstance(handle, ErrorbarContainer) else handle
    assert isinstance(line, Line2D)
    return str(line.get_color()), line.get_linestyle(), line.get_marker()


def test_no_two_series_of_a_chart_look_alike(figures: Figures) -> None:
    for figure in figures.values():
        for chart in figure.charts:
            axes = matplotlib.figure.Figure().subplots()
            panel_of(chart).paint(axes)
            handles, labels = axes.get_legend_handles_labels()
            assert sorted(labels) == sorted(each.label for each in chart.series)
            assert len(set(map(_look, handles))) == len(handles)


def test_long_sequences_approach_both_limits(figures: Figures) -> None:
    uniform, shares = (series(figures["long"], chart) for chart in (0, 1))
    for std in (0.5, 1.0, 1.5):
        limit = uniform[f"limit, σ = {std:g}"].value[0]
        assert limit == math.expm1(std**2)
        assert uniform[f"σ = {std:g}"].value[-1] == pytest.approx(limit, rel=1e-3)
    gaps = [
        np.abs(np.array(shares[label].value) - shares["limit"].value).max()
        for label in ("s = 10³", "s = 10⁶", "s = 10¹²", "s = 10²⁴")
    ]
    assert gaps == sorted(gaps, reverse=True)


def test_boundaries_are_where_the_assumptions_say(figures: Figures) -> None:
    scores, averages, divergences = (series(figures["boundaries"], chart) for chart in (0, 1, 2))
    for found, formula in ((scores, "√n K"), (averages, "K²/√n")):
        one, two = found["one matrix"], found["two matrices"]
        assert one.value[-1] == pytest.approx(found[formula].value[-1], abs=1.5 * one.error[-1])
        assert all(abs(value) < 1.5 * error for value, error in zip(two.value, two.error, strict=True))
    assert scores["one matrix"].value[-1] > 10 * scores["one matrix"].error[-1]
    assert all(-2.2 < order(each) < -1.7 for each in divergences.values())


def test_programs_are_on_either_side() -> None:
    for tied in (False, True):
        assert ("violates Assumption 1 (b)" in str(with_score(tied=tied).coverage().worst)) is tied
        assert ("violates Assumption 1 (a)" in str(with_output(shared=tied).coverage().worst)) is tied
