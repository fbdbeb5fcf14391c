"""How stacks approach their conjectured limit, the paper's open problem: distances, orders, and positions by depth."""

from __future__ import annotations

from attncheck.paper.stacks.distance import StackDistance, distances
from attncheck.paper.stacks.positions import PositionsByDepth, correlation_gap, correlation_rates, positions_by_depth
from attncheck.paper.stacks.rate import StackRate, rates

__all__ = [
    "PositionsByDepth",
    "StackDistance",
    "StackRate",
    "correlation_gap",
    "correlation_rates",
    "distances",
    "positions_by_depth",
    "rates",
]
