"""Data sent with the report of an item."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest


class ReportPayload(TypedDict):
    """Results of an item or the reason for their absence, as built-in types."""

    results: list[dict[str, Any]]
    unusable: str
    traceback: str


def parcel(results: list[dict[str, Any]] | None = None, unusable: str = "", traceback: str = "") -> ReportPayload:
    """Return a payload; empty by default."""
    return {"results": results or [], "unusable": unusable, "traceback": traceback}


def payload_of(report: pytest.TestReport | pytest.CollectReport) -> ReportPayload:
    """Return the payload of a report, empty if there is none."""
    payload: ReportPayload = getattr(report, "attncheck", parcel())
    return payload


def ship(report: pytest.TestReport, sent: ReportPayload) -> None:
    """Attach a payload to a report as an attribute, because report properties are written to JUnit files."""
    vars(report)["attncheck"] = sent
