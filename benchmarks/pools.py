"""False alarms and biases of pools of small correct samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck.calibration.error_rates import Calibration, small_outcomes
from attncheck.checks.check import Check, Setting
from attncheck.evidence.family import Outcome
from attncheck.evidence.pools import Pool
from attncheck.evidence.summaries import NormalScore, Summary
from attncheck.layers.attention import AttentionLayer


@dataclasses.dataclass(frozen=True, eq=False)
class PoolCalibration(Calibration):
    """First-look p-values of one check's pools on correct samples.

    ``scores``, (replications,), are their normal scores, with mean 0 if ``signed``.
    """

    scores: FloatArray
    signed: bool

    @property
    def bias(self) -> tuple[float, float]:
        """The mean score with its standard error."""
        return float(self.scores.mean()), float(self.scores.std() / len(self.scores) ** 0.5)


def calibrate_pools(
    layers: Iterable[AttentionLayer], checks: Sequence[Check], replications: int
) -> tuple[dict[str, dict[str, Calibration]], dict[str, PoolCalibration]]:
    """Return calibrations on each layer, and of pools of one small sample per layer, by applicable check.

    Summaries are rounded up, so p-values of pools need not be uniform.

    Examples
    --------
    >>> from attncheck.checks.registry import check_named
    >>> layers = [AttentionLayer(width=width, seq_len=2) for width in (4, 6)]
    >>> _, found = calibrate_pools(layers, [check_named("exactness.output")], 30)
    >>> found["exactness.output"].p_values.shape, found["exactness.output"].scores.shape
    ((30,), (30,))
    """
    single: dict[str, dict[str, Calibration]] = {}
    left: dict[str, dict[str, list[Summary | None]]] = {}
    for layer in layers:
        on_layer = single.setdefault(layer.describe(), {})
        for check, setting, outcomes in small_outcomes(layer, checks, replications):
            on_layer[check.name] = calibration_of(check, setting, outcomes)
            summaries = [outcome.summary if outcome.count else None for outcome in outcomes]
            left.setdefault(check.name, {})[layer.key] = summaries
    return single, {name: _of_check(name, by_layer) for name, by_layer in left.items()}


def calibration_of(check: Check, setting: Setting, outcomes: Sequence[Outcome]) -> Calibration:
    """Return the calibration of a check's outcomes, as `attncheck.calibration.error_rates.calibrate` does."""
    uniform = check.kind == "exact" and check.family_on(setting).continuous
    return Calibration(check.name, uniform, np.array([outcome.p_value for outcome in outcomes if outcome.count]))


def _of_check(name: str, by_layer: dict[str, list[Summary | None]]) -> PoolCalibration:
    found: list[Outcome] = []
    signed = True
    for together in zip(*by_layer.values(), strict=True):
        kept = {key: one for key, one in zip(by_layer, together, strict=True) if one is not None}
        if kept:
            found.append(Pool(kept).outcome())
            signed = all(isinstance(one, NormalScore) and not one.one_sided for one in kept.values())
    p_values = np.array([outcome.p_value for outcome in found])
    larger = np.array([outcome.effect >= outcome.null_effect for outcome in found])
    scores = np.where(larger, -1.0, 1.0) * special.ndtri(np.clip(p_values, 1e-300, 1.0) / 2.0)
    return PoolCalibration(name, False, p_values, scores, signed)
