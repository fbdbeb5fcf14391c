"""What an item sends along with its report, so that a crashed worker loses its own item only."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest


class ReportPayload(TypedDict):
    """What an item sends along with its report, in built-in types.

    Results, or why there are none and where a subject failed, and the statement of the theory that it is about.
    """

    results: list[dict[str, Any]]
    unusable: str
    traceback: str
    theory: dict[str, Any] | None


def parcel(
    results: list[dict[str, Any]] | None = None,
    unusable: str = "",
    traceback: str = "",
    theory: dict[str, Any] | None = None,
) -> ReportPayload:
    """Return what is sent along; the defaults are nothing."""
    return {"results": results or [], "unusable": unusable, "traceback": traceback, "theory": theory}


def shipped(report: pytest.TestReport | pytest.CollectReport) -> ReportPayload:
    """Return what came along with a report; nothing if it is not of an item that examines a property."""
    found: ReportPayload = getattr(report, "attncheck", parcel())
    return found


def ship(report: pytest.TestReport, sent: ReportPayload) -> None:
    """Send along with a report, as an attribute of its own: properties of a report go into JUnit files."""
    vars(report)["attncheck"] = sent
