"""Drift of a statistic over runs: a sum of Shiryaev–Roberts e-detectors, valid at any stopping time.

Under the null, the score z_t of a stream in run t is N(μ, 1) with |μ| at most 0.05, as bias cannot be measured more
accurately. For each stream and drift λ,

    R_t = (1 + R_{t-1}) exp(λ z_t - λ²/2 - 0.05 |λ|)

is the evidence for a drift. The mean of R_t over streams and drifts, with fixed weights, has expectation at most t
under the null: it reaches c within T runs with chance at most T/c, however the streams depend on each other.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray

#: Drifts to detect, in standard deviations of a run's score.
DRIFTS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
#: Largest absolute mean of a score under the null.
BIAS = 0.05
#: Scores are clipped at this absolute value: p-values need not be accurate further out.
CLIP = 3.45
#: Alarm threshold: reached within 1,000 runs of a correct subject with chance at most 0.1%.
ALARM = 1e6
# Cap of the evidence, which avoids overflow.
_MOST = 1e200


@dataclasses.dataclass(frozen=True)
class DriftState:
    """Evidence for a drift after each run, by stream: (..., runs, streams)."""

    evidence: FloatArray

    @property
    def total(self) -> FloatArray:
        """Total evidence after each run, (..., runs)."""
        return np.asarray(self.evidence.sum(axis=-1))

    @property
    def alarm(self) -> int | None:
        """Index of the first run with an alarm in a single history, or None."""
        reached = np.flatnonzero(self.total >= ALARM)
        return int(reached[0]) if len(reached) else None


def course(z: FloatArray, one_sided: BoolArray, weights: FloatArray | None = None) -> DriftState:
    """Return the evidence for a drift after each run.

    Parameters
    ----------
    z : ndarray, (..., runs, streams)
        Normal scores; NaN where missing.
    one_sided : ndarray of bool, (streams,)
        Streams with upward drifts only.
    weights : ndarray, (streams,), optional
        Weights of the streams, with sum at most 1; equal by default.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> z = rng.standard_normal((40, 90))
    >>> course(z, np.zeros(90, bool)).alarm
    >>> z[10:, 7] += 2.0
    >>> course(z, np.zeros(90, bool)).alarm
    14
    """
    *lives, runs, streams = z.shape
    share = np.full(streams, 1.0 / max(1, streams)) if weights is None else weights
    drifts = np.concatenate([DRIFTS, np.negative(DRIFTS)])
    # One-sided streams have upward drifts only, which take the whole weight.
    looked_for = (drifts[:, None] > 0) | ~one_sided
    part = looked_for / looked_for.sum(axis=0) * share
    seen = np.clip(z, -CLIP, CLIP)
    allowed = (0.5 * drifts**2 + BIAS * np.abs(drifts))[:, None]
    detectors = np.zeros((*lives, len(drifts), streams))
    evidence = np.zeros(z.shape)
    for run in range(runs):
        now = seen[..., run, None, :]
        longer = (detectors + 1.0) * np.exp(drifts[:, None] * now - allowed)
        # A run without a score leaves the evidence unchanged.
        detectors = np.minimum(np.where(np.isnan(longer), detectors, longer), _MOST)
        evidence[..., run, :] = (part * detectors).sum(axis=-2)
    return DriftState(evidence)


def begin(z: FloatArray, one_sided: bool) -> int:
    """Return the index of the run at which a drift of the scores, (runs,), most likely began.

    Examples
    --------
    >>> begin(np.array([0.5, -0.5, 1.0, -1.0, 2.0, 1.0, 1.5]), one_sided=False)
    4
    """
    seen = np.clip(z, -CLIP, CLIP)[::-1]
    sums = np.cumsum(seen)
    ratios = (np.maximum(sums, 0.0) if one_sided else sums) ** 2 / np.arange(1, len(seen) + 1)
    return len(seen) - 1 - int(np.argmax(ratios))
