"""Measured power of the checks on known-wrong simulators."""

from __future__ import annotations

from attncheck.calibration.power.rows import PilotResult, PowerEntry, PowerRow
from attncheck.calibration.power.table import entries_of, power_table

__all__ = ["PilotResult", "PowerEntry", "PowerRow", "entries_of", "power_table"]
