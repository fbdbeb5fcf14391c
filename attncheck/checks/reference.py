"""Draws of the exact law that a subject's draws are compared with, on a stream of their own."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attncheck.attention import AttentionLayer
from attncheck.checks.functionals import FUNCTIONALS
from attncheck.simulators import simulate_chunks

FloatArray = NDArray[np.float64]

#: Reference draws per draw of the subject.
RATIO = 4
_CHUNK_ENTRIES = 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """`RATIO` times as many draws of the collapsed reading, kept only as functionals.

    Attributes
    ----------
    layer : AttentionLayer
    size : int
        Draws of the subject's sample.
    coordinates : int
        Neurons that the subject returns.
    seed : numpy.random.SeedSequence
        The reference's own stream: independent of the subject's, and of every other look.
    """

    layer: AttentionLayer
    size: int
    coordinates: int
    seed: np.random.SeedSequence

    @cached_property
    def functionals(self) -> dict[str, FloatArray]:
        """The values of every functional, (RATIO · size,)."""
        per_draw = 4 * self.layer.num_heads * self.layer.seq_len**2 + self.layer.seq_len
        chunk = max(1, _CHUNK_ENTRIES // per_draw)
        coordinates = min(self.coordinates, 2, self.layer.width)
        wanted = [f for f in FUNCTIONALS if not f.excluded(self.layer, coordinates)]
        parts: dict[str, list[FloatArray]] = {functional.name: [] for functional in wanted}
        draws = simulate_chunks(
            self.layer, RATIO * self.size, chunk, self.seed, reading="collapsed", coordinates=coordinates
        )
        for chunk_draws in draws:
            for functional in wanted:
                parts[functional.name].append(functional.compute(self.layer, chunk_draws))
        return {name: np.concatenate(values) for name, values in parts.items()}
