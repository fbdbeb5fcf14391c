"""Importance sampling for the far tails.

Standard normals z are drawn from a mixture of proposals and weighted by the balance heuristic. Half of the points are
plain standard normals, so weights are at most two; the other half covers the far tail of the output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import FloatArray

# Accuracy range of the tail, in standard deviations of the output.
_TAIL = 12.0
# Maximum dimension in which enlarged points cover all directions.
_FEW_DIMENSIONS = 6
_LONGEST_SHIFT = 12.0
# Array entries per block, points × centres.
_BLOCK = 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Proposal:
    """A component of a mixture proposal: points size · z + centre, with z normal and equally likely centres, (k, r).

    `share` is the component's share of all points.
    """

    share: float
    size: float
    centres: FloatArray

    def place(self, normals: FloatArray) -> FloatArray:
        """Return points from normals, (points, r).

        Each centre gets a contiguous run of points, since runs of Sobol points are evenly spread.
        """
        which = np.arange(len(normals)) * len(self.centres) // len(normals)
        return np.asarray(self.size * normals + self.centres[which])

    def log_density(self, points: FloatArray) -> FloatArray:
        """Return the log density ratio of the proposal to the standard normal."""
        lengths = np.einsum("pr,pr->p", points, points)
        result = 0.5 * (1 - self.size**-2) * lengths - points.shape[1] * np.log(self.size)
        if not self.centres.any():
            return np.asarray(result)
        step = max(1, _BLOCK // len(self.centres))
        offsets = 0.5 * np.einsum("kr,kr->k", self.centres, self.centres)
        for start in range(0, len(points), step):
            logs = (points[start : start + step] @ self.centres.T - offsets) * self.size**-2
            top = logs.max(axis=1)
            result[start : start + step] += top + np.log(np.exp(logs - top[:, None]).mean(axis=1))
        return np.asarray(result)


def weigh(proposals: tuple[Proposal, ...], points: FloatArray) -> FloatArray:
    """Return balance-heuristic weights of points drawn from the proposals."""
    logs = [np.log(proposal.share) + proposal.log_density(points) for proposal in proposals]
    # Divide by the largest to prevent overflow in high dimensions.
    largest = np.maximum.reduce(logs)
    total = np.sum([np.exp(log - largest) for log in logs], axis=0)
    return np.asarray(np.exp(-largest) / total)


def enlarged(dimension: int) -> tuple[Proposal, ...]:
    """Return plain and enlarged proposals up to the radius that determines the far tail.

    Linear scores have the heaviest tail. There, points of length |z| contribute exp(-t²/(2|z|²) - |z|²/2) |z|^(r-2),
    which is largest where |z|⁴ - (r - 2)|z|² = t², with t = 12√r, twelve standard deviations.
    """
    middle = 0.5 * dimension - 1.0
    square = middle + np.sqrt(middle**2 + _TAIL**2 * dimension)
    size, centre = float(np.sqrt(square / dimension)), np.zeros((1, dimension))
    return Proposal(0.5, 1.0, centre), Proposal(0.25, size**0.5, centre), Proposal(0.25, size, centre)


def towards_keys(
    root: FloatArray, variance: Callable[[FloatArray], FloatArray], mean_variance: float
) -> tuple[Proposal, ...]:
    """Return proposals for softmax scores root @ z, whose far tail comes from selecting one key."""
    dimension = root.shape[1]
    plain, wider, widest = enlarged(dimension)
    if dimension <= _FEW_DIMENSIONS:
        return plain, wider, widest
    lengths = np.linalg.norm(root, axis=1)
    directions = root[lengths > 0] / lengths[lengths > 0, None]
    # Maximise exp(-t²/2v) times the normal density towards one key; other keys are similar.
    shifts = np.linspace(0.0, _LONGEST_SHIFT, 121)
    along = variance(shifts[:, None] * (root @ directions[0]))
    best = np.argmin(_TAIL**2 * mean_variance / along + shifts**2)
    centres = shifts[best] * directions
    quarter = 0.125
    return (
        plain,
        dataclasses.replace(wider, share=quarter),
        dataclasses.replace(widest, share=quarter),
        Proposal(quarter, 1.0, 0.6 * centres),
        Proposal(quarter, 1.0, centres),
    )
