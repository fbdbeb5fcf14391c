"""The power of the checks, measured on known-wrong simulators: rows, the table they make, and its text."""

from __future__ import annotations

from attncheck.calibration.power.rows import PilotResult, PowerEntry, PowerRow, level_of
from attncheck.calibration.power.table import entries_of, power_table

__all__ = ["PilotResult", "PowerEntry", "PowerRow", "entries_of", "level_of", "power_table"]
