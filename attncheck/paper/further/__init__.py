"""Computed figures beyond the published ones, one per module."""

from __future__ import annotations

from attncheck.paper.charts import FurtherFigure
from attncheck.paper.further.boundaries import BOUNDARIES
from attncheck.paper.further.long import LONG
from attncheck.paper.further.norms import NORMS
from attncheck.paper.further.tangent import TANGENT
from attncheck.paper.further.weights import WEIGHTS

FURTHER: dict[str, FurtherFigure] = {each.name: each for each in (TANGENT, NORMS, WEIGHTS, LONG, BOUNDARIES)}
