"""Does a statistic drift over runs? A sum of Shiryaev–Roberts e-detectors, valid whenever one looks.

Each run leaves a normal score of each of several streams, N(μ, 1) with |μ| at most 0.05 while nothing is wrong: that
scores are unbiased can only be measured to about this. A stream and a drift λ make
R_t = (1 + R_{t-1}) exp(λ z_t - λ²/2 - 0.05 |λ|): what has been seen so far if the drift began at any run before. The
mean of R over drifts and streams, with weights that no data decide on, has expectation at most t while nothing is
wrong, so that it reaches c within T runs with a chance of at most T/c, however the streams hang together.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Drifts that are looked for, in standard deviations of a run's score.
DRIFTS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
#: How far the mean of a score may be off while nothing is wrong.
BIAS = 0.05
#: Scores count up to here: no p-value was promised to be accurate further out.
CLIP = 3.45
#: Where there is an alarm: within 1,000 runs of a right subject with a chance of at most 0.1%.
ALARM = 1e6
# Beyond this nothing is gained, and doubles end.
_MOST = 1e200


@dataclasses.dataclass(frozen=True)
class DriftState:
    """What runs have shown.

    Attributes
    ----------
    evidence : ndarray, (..., runs, streams)
        The part of each stream after each run.
    """

    evidence: FloatArray

    @property
    def total(self) -> FloatArray:
        """The evidence of all streams after each run, (..., runs): at most the number of runs in expectation."""
        return np.asarray(self.evidence.sum(axis=-1))

    @property
    def alarm(self) -> int | None:
        """The place of the first run of one history with an alarm; None where there is none."""
        reached = np.flatnonzero(self.total >= ALARM)
        return int(reached[0]) if len(reached) else None


def course(z: FloatArray, one_sided: BoolArray, weights: FloatArray | None = None) -> DriftState:
    """Return what runs have shown, in the order in which they are given.

    Parameters
    ----------
    z : ndarray, (..., runs, streams)
        Normal scores; NaN where a run has none of a stream.
    one_sided : ndarray of bool, (streams,)
        Whether only large scores speak against the null.
    weights : ndarray, (streams,), optional
        Shares of the streams, of a sum of at most 1; the same for all by default.

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
    # A drift downwards is none of a stream that is one-sided; its drifts upwards have the whole share.
    looked_for = (drifts[:, None] > 0) | ~one_sided
    part = looked_for / looked_for.sum(axis=0) * share
    seen = np.clip(z, -CLIP, CLIP)
    allowed = (0.5 * drifts**2 + BIAS * np.abs(drifts))[:, None]
    detectors = np.zeros((*lives, len(drifts), streams))
    evidence = np.zeros(z.shape)
    for run in range(runs):
        now = seen[..., run, None, :]
        longer = (detectors + 1.0) * np.exp(drifts[:, None] * now - allowed)
        # A run without a score leaves what was seen as it is.
        detectors = np.minimum(np.where(np.isnan(longer), detectors, longer), _MOST)
        evidence[..., run, :] = (part * detectors).sum(axis=-2)
    return DriftState(evidence)


def begin(z: FloatArray, one_sided: bool) -> int:
    """Return the place of the run with which a drift most likely began: the likelihood ratio of its best size decides.

    Parameters
    ----------
    z : ndarray, (runs,)
        The scores of one stream, of one run at least.
    one_sided : bool
        Whether only a drift upwards is one.

    Examples
    --------
    >>> begin(np.array([0.5, -0.5, 1.0, -1.0, 2.0, 1.0, 1.5]), one_sided=False)
    4
    """
    seen = np.clip(z, -CLIP, CLIP)[::-1]
    sums = np.cumsum(seen)
    ratios = (np.maximum(sums, 0.0) if one_sided else sums) ** 2 / np.arange(1, len(seen) + 1)
    return len(seen) - 1 - int(np.argmax(ratios))
