"""A law of outputs in a line of words and numbers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

# Standard deviations beyond which a tail is told, and how much of a normal law lies there.
_FAR, _NORMAL = 3.0, 0.0027


class Law(Protocol):
    """A law of one neuron's outputs."""

    def variance(self) -> Any:
        """Return the variance at the first position."""

    def excess_kurtosis(self) -> Any:
        """Return the excess kurtosis there."""

    def sf(self, t: Any) -> Any:
        """Return the chance to lie above a point there."""


def told(what: str, law: Law) -> str:
    """Return what a law is of, and its size, its shape and its tails at the first position."""
    std = float(np.sqrt(law.variance()))
    far = 2.0 * float(law.sf(_FAR * std))
    return (
        f"{what}, one neuron of the first position: standard deviation {std:.4g}, excess kurtosis "
        f"{float(law.excess_kurtosis()):.3g}, P(|y| > {_FAR:g} standard deviations) {far:.2g} (normal: {_NORMAL:g})"
    )
