"""Families without what takes time and is not tested."""

from __future__ import annotations

from attncheck.evidence.exchange import Calls


class Alone(Calls):
    """Calls without the interval, which takes nearly all the time and affects neither p-values nor summaries."""

    @staticmethod
    def _noncentrality(statistic: float, freedom: int, tail: float) -> float:
        return 0.0
