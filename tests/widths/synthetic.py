"""Models that draw their taps' sizes from a known law, and NumPy models with known exponents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.scaling.taps import MODULE, Model, Tap

#: Mean logarithm of a size at a width.
Law = Callable[[float], float]


def power_law(exponent: float, next_order: float = 0.0) -> Law:
    return lambda n: exponent * np.log(n) + next_order / n


@dataclasses.dataclass
class Drawn(Model):
    """A model without computation: taps have drawn sizes."""

    sizes: Mapping[str, float]

    def taps(self) -> Mapping[str, Tap]:
        return {name: Tap(np.array([size]), MODULE, "law") for name, size in self.sizes.items()}

    def step(self) -> None:
        self.sizes = {name: 2.0 * size for name, size in self.sizes.items()}


@dataclasses.dataclass(frozen=True)
class Laws:
    """Makes models with a law per tap; `noise` draws an additive term of the logarithms."""

    laws: Mapping[str, Law]
    noise: Callable[[np.random.Generator, int], FloatArray]

    def make(self, width: int, seed: int) -> Drawn:
        noise = self.noise(stream(seed, "laws", width), len(self.laws))
        return Drawn(
            {name: float(np.exp(law(width) + e)) for (name, law), e in zip(self.laws.items(), noise, strict=True)}
        )


def normal(spread: float) -> Callable[[np.random.Generator, int], FloatArray]:
    return lambda rng, count: spread * rng.standard_normal(count)
