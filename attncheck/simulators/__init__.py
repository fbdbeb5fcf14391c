"""The readings of a description: direct, matrix-free, collapsed, limit.

Each reading is a function of (layer, size, coordinates, rng) that returns `Draws`; `simulate` cuts
the work into blocks that each have a random stream of their own.
"""

from __future__ import annotations

from attncheck.simulators.draws import Draws, ProgramDraws, StackDraws
from attncheck.simulators.run import READINGS, Reading, simulate, simulate_chunks

__all__ = ["READINGS", "Draws", "ProgramDraws", "Reading", "StackDraws", "simulate", "simulate_chunks"]
