"""Measure accuracy and speed of the output and tangent kernels of infinitely many heads.

``python benchmarks/infinite_heads.py`` measures on one thread and prints a table; ``--write`` updates
benchmarks/infinite_heads.md. The difference between two integrations on different points estimates the error; the
bound is the first integration's own. Both are relative, for the worst entry. Times are processor time.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import attncheck as ac
from attncheck._lib.measured import installed, table

FloatArray = NDArray[np.float64]
Mask = Literal["none", "causal"]

SECONDS, RELATIVE = 2.0, 1e-4
HEADER = ("of", "inputs", "s", "mask", "σ_Qσ_K", "difference", "bound", "s, processor", "target", "verdict")
KERNELS = {"outputs": ac.infinite_heads_kernel, "tangents": ac.infinite_heads_tangent}


def kernels(s: int) -> dict[str, FloatArray]:
    """Return kernels of s positions: independent, equally correlated, decaying with distance, unequal, and random."""
    distance = np.subtract.outer(np.arange(s), np.arange(s))
    smooth = 0.6 * np.exp(-(distance**2) / 8) + 0.4 * np.eye(s)
    stds = np.sqrt(np.random.default_rng(1).uniform(0.6, 1.0, s))
    drawn = np.random.default_rng(100).normal(size=(s, 2 * s))
    drawn *= np.sqrt(np.random.default_rng(101).uniform(0.3, 1.0, s) / (drawn**2).sum(axis=1))[:, None]
    return {
        "identity": np.eye(s),
        "correlation 1/2": 0.5 * np.eye(s) + 0.5,
        "falling correlation": smooth,
        "falling, variances 0.6 to 1": smooth * np.outer(stds, stds),
        "drawn, variances 0.3 to 1": drawn @ drawn.T,
    }


def measure(of: str, kernel: FloatArray, std: float, mask: Mask) -> tuple[float, float, float]:
    """Return the relative difference of two integrations, the relative bound and the processor seconds."""
    start = time.process_time()
    first = KERNELS[of](kernel=kernel, score_std=std, mask=mask)
    seconds = time.process_time() - start
    second = KERNELS[of](kernel=kernel, score_std=std, mask=mask, scramble=1)
    difference = np.abs(first.matrix - second.matrix) / np.abs(first.matrix)
    return float(difference.max()), float(first.error / np.abs(first.matrix).min()), seconds


def rows(s: int, quick: bool) -> Iterator[tuple[str, ...]]:
    settings: Sequence[tuple[float, Mask]] = [(0.1, "none"), (1.0, "none"), (3.0, "none"), (1.0, "causal")]
    settings = settings[:1] if quick else settings
    for of, (name, kernel) in itertools.product(KERNELS, kernels(s).items()):
        for std, mask in settings:
            difference, bound, seconds = measure(of, kernel, std, mask)
            promised = std <= 1.0 and mask == "none"
            met = "met" if difference <= RELATIVE and seconds <= SECONDS else "missed"
            target = f"difference at most {RELATIVE:g} in {SECONDS:g} s" if promised else "for scale"
            figures = (f"{difference:.1e}", f"{bound:.1e}", f"{seconds:.2f}")
            yield of, name, str(s), mask, f"{std:g}", *figures, target, met if promised else ""


def report(s: int, quick: bool = False) -> str:
    return "\n\n".join(
        [
            "# The kernels of infinitely many heads",
            "`python benchmarks/infinite_heads.py --write` makes this page.",
            (
                "Output covariance and tangent kernel for several input kernels: relative difference of two "
                "integrations on different points, and the first one's error bound over its smallest entry. One "
                f"thread. {installed()}."
            ),
            table(HEADER, rows(s, quick)) + "\n",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short sequences, to see that it runs")
    parser.add_argument("--write", action="store_true", help="write benchmarks/infinite_heads.md")
    given = parser.parse_args()
    if given.quick and given.write:
        parser.error("--quick measures nothing worth keeping; leave --write out")
    with threadpool_limits(1):
        page = report(4, quick=True) if given.quick else report(32)
    print(page)
    if given.write:
        Path(__file__).with_suffix(".md").write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
