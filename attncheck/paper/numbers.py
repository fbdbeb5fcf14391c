"""The paper's statements: published estimator against computed values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from attncheck._lib.measured import table
from attncheck._lib.text import counted
from attncheck.paper.results import Curve, Figure, SampledLaw
from attncheck.paper.run import PaperRun
from attncheck.theory.rates.law import Distance

#: Columns of a figure's statements.
COLUMNS = ("what the paper states", "its estimator on own draws", "computed")


class PaperStatement(NamedTuple):
    """A published statement, its estimate or prediction, and the computed value."""

    published: str
    estimated: str
    computed: str


def statements_of(figure: Figure) -> list[PaperStatement]:
    """Return the paper's statements about a figure, each with its estimate and the computed value."""
    if figure.kind == "histogram":
        return [_scores_normal(figure), _scores_collapse(figure), _tails(figure), _heads(figure)]
    if figure.kind == "low rank":
        return [_low_rank(figure), _gap(figure)]
    return [_decreasing(figure), _small(figure)]


def markdown(figures: Iterable[Figure]) -> str:
    """Return all statements as reproducible Markdown tables."""
    figure_list = list(figures)
    parts = ["# The paper's experiments in numbers", computed_with(figure_list[0].run)]
    for figure in figure_list:
        parts += [f"## {named(figure)}", size_of(figure), table(COLUMNS, statements_of(figure))]
    return "\n\n".join(parts) + "\n"


def named(figure: Figure) -> str:
    """Return a figure's name and subject."""
    return f"Fig. {figure.experiment.name.removeprefix('fig')}: {figure.experiment.title}"


def size_of(figure: Figure) -> str:
    """Return the sampled and published sizes of a figure, and the command to repeat it."""
    experiment, run = figure.experiment, figure.run
    again = f"To repeat it: attncheck paper {experiment.name} --seed {run.seed} --scale {run.scale:g}"
    sampled = f"{figure.draws:,} draws in each of {counted(experiment.trials, 'trial')}"
    if figure.draws == experiment.draws:
        return f"{sampled}, the published size. {again}"
    return f"{sampled}; published were {experiment.draws:,}, so this is only a quick look. {again}"


def computed_with(run: PaperRun) -> str:
    """Return a text that says how the numbers of a run were computed."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    return (
        f"Seed {run.seed}, scale {run.scale:g}, {versions}. Samples are exact in law at finite width. The "
        f"published estimator of KL compares kernel densities of two samples (Scott's bandwidth, 500 points, 1e-12 "
        f"added): mean ± standard deviation over the trials. Computed values are given with four standard errors."
    )


# By width -----------------------------------------------------------------------------------------


def _decreasing(figure: Figure) -> PaperStatement:
    laws, fit = figure.finite, figure.fits[0]
    widths = [law.case.layer.width for law in laws]
    points = [point for point in figure.points_of("y") if point.width in widths]
    exponents = f"fitted exponent −{-fit.order.value:.3f} (−{-fit.order.low:.3f} to −{-fit.order.high:.3f})"
    slope = f"{fit.constant.value:.3g}/n² at large n, {exponents}"
    return PaperStatement(
        "KL(finite ‖ limit) falls as the width grows",
        "; ".join(f"{law.label}: {_estimate(law)}" for law in laws),
        "; ".join(f"n = {point.width:g}: {_value(point)}" for point in points) + f"; {slope}",
    )


def _small(figure: Figure) -> PaperStatement:
    last, floor = figure.finite[-1], figure.sampled["limit"]
    point = next(candidate for candidate in figure.points_of("y") if candidate.width == last.case.layer.width)
    excess = float(np.mean(last.kl)) / point.value
    relation = "does not exceed" if _within(last, floor) else "exceeds"
    return PaperStatement(
        f"at {last.label} the law has almost reached the limit",
        f"{_estimate(last)}, which {relation} the floor {_estimate(floor)} of the limit against itself",
        f"{_value(point)}: the estimate is {times(excess)} times that",
    )


# Scores and heads ---------------------------------------------------------------------------------


def _scores_normal(figure: Figure) -> PaperStatement:
    law, curve = figure.sampled["1/√n"], figure.curves["1/√n"]
    return PaperStatement(
        "scores over √n follow N(0, 1) at n = 256",
        f"variance {_over(law.variance)}, excess kurtosis {_over(law.excess_kurtosis)}",
        f"variance {curve.moments[0]:.5f}, excess kurtosis {curve.moments[2]:.4f}; the density differs from N(0, 1) "
        f"by up to {_largest(curve)}",
    )


def _scores_collapse(figure: Figure) -> PaperStatement:
    law, curve = figure.sampled["1/n"], figure.curves["1/n"]
    return PaperStatement(
        "scores over n collapse to 0",
        f"standard deviation {_over(np.sqrt(law.variance).tolist())}",
        f"standard deviation {np.sqrt(curve.moments[0]):.5f}, n^−½ times that of scores over √n",
    )


def _tails(figure: Figure) -> PaperStatement:
    laws = [law for law in figure.finite if law.case.of == "outputs"]
    computed = []
    for law in laws:
        moments, limit = figure.curves[law.label].moments, figure.limits[law.label]
        at = f"{moments[2]:.4f} ± {moments[3]:.1g} at n = 256"
        computed.append(f"{law.label}: {at}, {limit.excess_kurtosis():.4f} in the limit")
    return PaperStatement(
        "with one head y has heavier tails than a Gaussian, with 256 heads it does not",
        "excess kurtosis " + "; ".join(f"{law.label}: {_over(law.excess_kurtosis)}" for law in laws),
        "excess kurtosis " + "; ".join(computed),
    )


def _heads(figure: Figure) -> PaperStatement:
    computed = [f"{case.label}: {_value(point)}" for case, point in figure.points.items()]
    bars = np.sqrt(0.6 / (np.diff(figure.edges)[0] * figure.draws))
    return PaperStatement(
        "at n = 256 histograms of y follow the limit law for one head and for many",
        f"a bar of the histogram at the centre has a standard deviation of about {bars:.2g}",
        "KL(finite ‖ limit) " + "; ".join(computed),
    )


# Low rank -----------------------------------------------------------------------------------------


def _low_rank(figure: Figure) -> PaperStatement:
    laws = figure.finite
    computed = [f"{law.label}: {_value(figure.points_of(law.label)[0])}" for law in laws]
    return PaperStatement(
        "with 64 neurons per head the law already agrees with the limit",
        "KL " + "; ".join(f"{law.label}: {_estimate(law)}" for law in laws),
        "KL at n = 64 H, " + "; ".join(computed),
    )


def _gap(figure: Figure) -> PaperStatement:
    laws = figure.finite
    return PaperStatement(
        "low-rank heads have the limit of full heads (true if the number of neurons per head grows too)",
        "floor " + "; ".join(f"{law.label}: {_estimate(figure.sampled[f'limit, {law.label}'])}" for law in laws),
        "KL that remains at n = ∞, " + "; ".join(f"{law.label}: {_value(figure.gap_of(law.label))}" for law in laws),
    )


# What rows share ----------------------------------------------------------------------------------


def _estimate(law: SampledLaw) -> str:
    return _over(law.kl)


def _over(values: Sequence[float]) -> str:
    """Return the mean ± standard deviation of `values`, which has one value per trial, as text."""
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    return f"{mean:.3g} ± {deviation:.1g}"


def _value(point: Distance) -> str:
    return f"{point.value:.3g} ± {point.error:.1g}"


def times(factor: float) -> str:
    """Return a factor in plain digits, rounded and marked "about" if large.

    Examples
    --------
    >>> times(1.1234), times(1463.2), times(87654.0)
    ('1.12', 'about 1,500', 'about 88,000')
    """
    return f"{factor:.3g}" if factor < 100.0 else f"about {float(f'{factor:.1e}'):,.0f}"


def _largest(curve: Curve) -> str:
    at = int(np.argmax(np.abs(curve.value)))
    error = curve.error[at]
    return f"{abs(curve.value[at]):.2g} ± {error:.1g}"


def _within(law: SampledLaw, floor: SampledLaw) -> bool:
    """Return whether the mean estimate for a law is at most the largest estimate for two samples of the limit."""
    return float(np.mean(law.kl)) <= max(floor.kl)
