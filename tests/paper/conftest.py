"""Tiny runs of the experiments, with cheap computed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from attncheck._lib.arrays import FloatArray
from attncheck.paper import exact
from attncheck.paper.experiments import EXPERIMENTS, ExactDistance
from attncheck.paper.run import PaperRun, manifest_of, perform_all
from attncheck.paper.units import Arrays, Task
from attncheck.theory.rates.law import Distance

#: 200 draws a trial.
TINY = 1e-3
PUBLISHED = tuple(EXPERIMENTS)


def cheap(wanted: ExactDistance, grid: FloatArray, seed: int, scale: float = 1.0) -> dict[str, Any]:
    """Return plausible computed values: 11/n², or 1e-4 if a distance stays."""
    width = float("inf") if wanted.infinite else float(wanted.layer.width)
    value = 11.0 / width**2 + (1e-4 if wanted.layer.head_dim else 0.0)
    numbers = (value, 0.01 * value, value, 0.01 * value, width, 256)
    curve = np.cos(3 * grid) * np.exp(-(grid**2)) / wanted.layer.width
    moments = np.array([0.39, 1e-3, 0.2, 1e-3])
    return {
        "distance": Distance("kl", *numbers),
        "difference": curve,
        "difference_error": 0.01 * np.abs(curve),
        "moments": moments,
    }


@pytest.fixture(scope="session")
def tiny() -> tuple[Mapping[Task, Arrays], PaperRun]:
    """Return the results of a tiny whole run, and its manifest."""
    manifest = manifest_of(3, TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "compute", cheap)
        return perform_all(PUBLISHED, manifest), manifest
