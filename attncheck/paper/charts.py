"""Charts of computed quantities, declared as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from attncheck._lib.streams import stream
from attncheck.paper.statement import PanelText, PaperStatement

Arrays = dict[str, NDArray[Any]]
Value = str | int | float | None
Scale = Literal["linear", "log"]


class Series(msgspec.Struct, frozen=True):
    """Values along an axis, with half-widths of their error intervals; ``law`` marks limits and formulas."""

    label: str
    law: bool
    x: list[float]
    value: list[float]
    error: list[float]


class Chart(msgspec.Struct, frozen=True):
    """One plot as data: its series, title and axis labels."""

    title: str
    caption: str
    xlabel: str
    ylabel: str
    xscale: Scale
    yscale: Scale
    series: list[Series]


#: Version of the files, increased when their readers must change.
SCHEMA = 2


class ChartedFigure(msgspec.Struct, frozen=True, tag="charts", tag_field="shows"):
    """A computed figure as data: its charts, and how its numbers were made."""

    schema: int
    name: str
    title: str
    seed: int
    scale: float
    versions: dict[str, str]
    charts: list[Chart]
    statements: list[PaperStatement] = []
    panels: list[PanelText] = []
    setting: str = ""


@dataclasses.dataclass(frozen=True)
class Measure:
    """One series to compute.

    ``compute`` is a picklable function of a seed, a share of the usual number of draws, and the keyword arguments
    ``given``. It returns ``x``, ``value`` and ``error``, (m,) each. ``law`` marks limits and formulas, drawn as lines.
    """

    label: str
    compute: Callable[..., Arrays]
    given: tuple[tuple[str, Value], ...] = ()
    law: bool = False

    def __call__(self, seed: int, scale: float) -> Arrays:
        """Return the series as arrays, from draws independent of other series."""
        own = int(stream(seed, "series", self.key).integers(2**32))
        return self.compute(own, scale, **dict(self.given))

    @property
    def key(self) -> dict[str, Any]:
        """All that determines the numbers of the series, as built-in types."""
        name = f"{self.compute.__module__}.{self.compute.__qualname__}"
        return {"label": self.label, "compute": name, "given": [list(pair) for pair in self.given]}


@dataclasses.dataclass(frozen=True)
class ChartPlan:
    """A chart to compute; its fields are those of `Chart`."""

    title: str
    caption: str
    xlabel: str
    ylabel: str
    measures: tuple[Measure, ...]
    xscale: Scale = "log"
    yscale: Scale = "log"


Read = Callable[[Sequence[Chart]], list[PaperStatement]]


@dataclasses.dataclass(frozen=True)
class FurtherFigure:
    """A figure to compute: ``plans`` describes its charts, and ``read`` returns the statements that they support."""

    name: str
    title: str
    setting: str
    plans: tuple[ChartPlan, ...]
    read: Read

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All series, in chart order."""
        return tuple(measure for plan in self.plans for measure in plan.measures)


def along(x: Sequence[float], value: Sequence[float], error: Sequence[float] | None = None) -> Arrays:
    """Return a series as arrays, with error 0 if it is exact."""
    errors = np.zeros(len(x)) if error is None else np.array(error, dtype=float)
    return {"x": np.array(x, dtype=float), "value": np.array(value, dtype=float), "error": errors}


def charted(plan: ChartPlan, found: Mapping[Measure, Arrays]) -> Chart:
    """Return the chart of a plan from its computed series."""
    series = [
        Series(each.label, each.law, *(found[each][name].tolist() for name in ("x", "value", "error")))
        for each in plan.measures
    ]
    return Chart(plan.title, plan.caption, plan.xlabel, plan.ylabel, plan.xscale, plan.yscale, series)


def order(series: Series, last: int = 3) -> float:
    """Return the slope of the `last` values of a series on logarithmic axes.

    Examples
    --------
    >>> round(order(Series("c/n", False, [8.0, 16.0, 32.0], [0.5, 0.25, 0.125], [0.0] * 3)), 6)
    -1.0
    """
    x, value = np.log(series.x[-last:]), np.log(np.abs(series.value[-last:]))
    return float(np.polyfit(x, value, 1)[0])


def at_end(series: Series) -> str:
    """Return the last value of a series as text, with its error and place on the axis.

    Examples
    --------
    >>> at_end(Series("KL", False, [8.0, 1024.0], [0.5, 0.0123], [0.1, 0.0004]))
    '0.0123 ± 0.0004 at 1,024'
    """
    return told(series, -1)


def told(series: Series, place: int) -> str:
    """Return one value of a series, with its error and place on the axis, as text."""
    value, error = series.value[place], series.error[place]
    off = f" ± {error:.1g}" if error else ""
    return f"{value:.3g}{off} at {_place(series.x[place])}"


def _place(x: float) -> str:
    return f"{x:,.0f}" if x == round(x) and abs(x) < 1e7 else f"{x:.3g}"
