"""Template data, computed lazily: results, claims by case, plots and texts."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from markupsafe import Markup

from attncheck._lib.names import grouped
from attncheck._lib.text import chance
from attncheck.checks.claims import Claim
from attncheck.checks.registered import claim_named
from attncheck.diagnosis import causes
from attncheck.diagnosis.causes import sharpest, stage
from attncheck.evidence.plot_data import Counts, read_plot
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.attention import SCORE_SCALINGS
from attncheck.layers.features import FEATURES, features_of
from attncheck.layers.inputs import ACTIVATIONS
from attncheck.layers.parts.attention_map import ATTENTION_MAPS
from attncheck.layers.parts.mask import MASKS
from attncheck.records.schema import Result
from attncheck.records.tallies import Space, Tally, layers_of, suspicion
from attncheck.report.intervals import by_case
from attncheck.report.results import of_cause, of_p_values, of_result
from attncheck.report.svg import Drawing
from attncheck.runs.details import MAIN_CHECKS
from attncheck.runs.view import RunView

# Maximum number of cases, which are columns, in the map of claims.
_COLUMNS = 40
#: Headings of the sections, in reading order; the template of each is ``sections/NAME.html.j2``.
HEADINGS = {
    "verdict": "Verdict",
    "failures": "What failed",
    "claims": "Claims",
    "together": "All together",
    "space": "Visited",
    "provenance": "How it was made",
}
#: Maximum numbers of failed checks shown in full, and of pools.
FAILURES, POOLS = 40, 20
# Maximum number of values listed per field.
_VALUES = 14
_CHOICES = {
    "activation": ACTIVATIONS,
    "attention_map": ATTENTION_MAPS,
    "head_scaling": ("yes", "no"),
    "mask": MASKS,
    "score_scaling": SCORE_SCALINGS,
}


@dataclasses.dataclass(frozen=True)
class ClaimMap:
    """Table of worst verdicts: ``rows`` has a row for each claim, with one verdict for each of the ``cases``.

    ``left`` is the number of cases that are not shown.
    """

    cases: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    left: int


@dataclasses.dataclass(frozen=True, eq=False)
class ClaimView:
    """One claim of a run: its name, its checks with their results, and the number of examined cases."""

    name: str
    tallies: tuple[Tally, ...]
    cases: int

    @property
    def about(self) -> Claim:
        """The claim: its text, its place in the paper, and the limitations of a consistent verdict."""
        return claim_named(self.name)

    @property
    def verdict(self) -> str:
        """The worst verdict of its results."""
        return str(Verdict.worst(result.verdict for tally in self.tallies for result in tally.results))

    @property
    def examined(self) -> tuple[Tally, ...]:
        """Checks examined on at least one case."""
        return tuple(tally for tally in self.tallies if tally.examined)

    @property
    def draws(self) -> int:
        """Number of draws of first looks; draws that several checks on one case share count once."""
        draws = sorted((size, case) for tally in self.tallies for case, size in tally.draws.items())
        return sum({case: size for size, case in draws}.values())

    @cached_property
    def plots(self) -> list[Drawing]:
        """Plots of the claim's main check, and of the worst result per type of plot."""
        plotted = (next((r for r in tally.worst if read_plot(r.plot)), None) for tally in self.examined)
        worst: dict[tuple[type, bool], Result] = {}
        for result in sorted(filter(None, plotted), key=suspicion, reverse=True):
            worst.setdefault(_plot_type(result), result)
        examined = {tally.name: tally for tally in self.examined}
        main = next((by_case(examined[name]) for name in MAIN_CHECKS if name in examined), None)
        drawn = [main, *map(of_result, worst.values())]
        return [drawing for drawing in drawn if drawing is not None]


@dataclasses.dataclass(frozen=True, eq=False)
class PageView(RunView):
    """Data of a run for the templates of the page, including plots and tables."""

    @property
    def sections(self) -> list[str]:
        """Sections that are not empty."""
        content = {
            "failures": self.failures or self.doubts,
            "claims": self.run.claim_layers,
            "together": self.together or self.p_values,
            "space": self.run.space.layers,
        }
        return [name for name in HEADINGS if content.get(name, True)]

    @cached_property
    def evidence(self) -> Drawing | None:
        """The plot of a diagnosed cause or, if there is none, of a violated result; None if no check failed."""
        if not self.failures:
            return None
        plots = (explanation.plot for explanation in self.explanations)
        observed = next(filter(None, (of_cause(read_plot(plot)) for plot in plots)), None)
        return observed or of_result(self.smallest) or by_case(self.failures[0])

    @cached_property
    def map(self) -> ClaimMap | None:
        """The table of the worst verdict on each claim by case, or None if no case was examined."""
        layers = self.run.space.layers
        if not layers:
            return None
        # Violated cases take precedence.
        chosen = sorted(layers, key=lambda key: (key not in self.run.space.violated, *layers[key], key))[:_COLUMNS]
        claims = Counter(key for verdicts in self.run.claim_layers.values() for key in verdicts)
        columns = sorted(chosen, key=lambda key: (-claims[key], *layers[key], key))
        rows = tuple(
            (claim, tuple(self.run.claim_layers[claim].get(key, str(Verdict.NOT_EXAMINED)) for key in columns))
            for claim in sorted(self.run.claim_layers, key=stage)
        )
        return ClaimMap(tuple(layers[key][1] for key in columns), rows, len(layers) - len(columns))

    @cached_property
    def claims(self) -> list[ClaimView]:
        """The claims of the run, in the order of the computation."""
        tallies = grouped(self.run.tallies.values(), lambda tally: tally.claim)
        return [
            ClaimView(name, tuple(tallies[name]), len(self.run.claim_layers.get(name, ())))
            for name in sorted(tallies, key=stage)
        ]

    @cached_property
    def groups(self) -> list[causes.Cause]:
        """The violated checks to show in full, grouped by likely cause, the most significant first."""
        return causes.by_cause(self.failures[:FAILURES])

    def plots_of(self, tally: Tally) -> list[Drawing]:
        """Return a violated check's plots, except the one shown as `evidence`."""
        drawn = [by_case(tally), of_result(sharpest(tally))]
        return [drawing for drawing in drawn if drawing is not None and drawing != self.evidence]

    @cached_property
    def together(self) -> list[Result]:
        """The examined pools, the most suspicious first."""
        return sorted((pool for pool in self.run.pools if pool.p_values), key=suspicion, reverse=True)

    @property
    def p_values(self) -> Drawing | None:
        """The plot of the p-values of first looks, which are uniform for a correct simulator."""
        return of_p_values(self.run.conclusion.uniformity)

    @cached_property
    def doubts(self) -> list[Result]:
        """Inconclusive results."""
        worst = (result for tally in self.run.tallies.values() for result in tally.worst)
        return [result for result in worst if result.verdict == Verdict.INCONCLUSIVE]


def _plot_type(result: Result) -> tuple[type, bool]:
    """Return the type of a result's plot; counts with and without a reference are different types."""
    plot = read_plot(result.plot)
    return type(plot), isinstance(plot, Counts) and plot.against > 0


def looks(result: Result) -> Markup:
    """Return the p-values of all looks, with non-breaking minus signs."""
    unbroken = Markup('<span class="nowrap">{}</span>')
    return Markup(", ").join(unbroken.format(chance(p_value)) for p_value in result.p_values)


def pairs(results: Sequence[Result]) -> list[tuple[str, list[int]]]:
    """For each pair of features, count the examined layers that have both.

    Each feature that any examined layer has gives one row (feature, counts), with the counts in the order of the rows.
    """
    of_layers = [features_of(layer) for layer in layers_of(result for result in results if result.p_values)]
    names = [name for name in FEATURES if any(name in features for features in of_layers)]
    return [
        (first, [sum({first, second} <= {*features} for features in of_layers) for second in names]) for first in names
    ]


def visits(space: Space) -> list[tuple[str, list[tuple[str, int]], int]]:
    """Return a row (field, counts, remaining) for each field of the layers that a run visited.

    `counts` are pairs of a frequent value and the number of its layers, which may be 0 for a value that was not
    visited; `remaining` is the number of values left out.
    """
    rows = []
    for field, counter in sorted(space.values.items()):
        counts = {choice: 0 for choice in _CHOICES.get(field, ())} | counter
        frequent = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_VALUES]
        ordered = sorted(frequent, key=lambda pair: _location(pair[0]))
        rows.append((field.replace("_", " "), ordered, len(counts) - len(frequent)))
    return rows


def _location(value: str) -> tuple[float, str]:
    try:
        return float(value), value
    except ValueError:
        return math.inf, value
