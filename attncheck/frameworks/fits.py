"""Fits of formulas to the attention weights of a module."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from scipy import optimize, special

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.frameworks.forward import (
    AXES,
    FITTED,
    LINEAR,
    OTHER,
    RELU,
    REPEATED,
    SIGMOID,
    Formula,
    centred,
    masks,
    visible,
)

# Thresholds below which the weight of a key counts as 0: for an exact mask, and for one that adds a large negative
# number to scores.
_NOTHING, _HARDLY = 1e-30, 1e-9
# If the rounding error of weights is smaller than this, even tiny weights have accurate digits.
_FINE = 1e-4
# With at most this many keys, finite hidden scores are not looked for.
_FEWEST = 3
# Masks that are recognised if hidden scores are replaced by a finite number instead of -inf.
_FILLED = ("causal", "anticausal")
# Relative tolerance within which dropout multiplies all weights that it keeps by one number.
_KEPT = 1e-3


def formula_of(weights: FloatArray, products: FloatArray, rounding: float, groups: str = REPEATED) -> Formula:
    """Return the formula that best maps products q·k to attention weights, both (batch, heads, positions, keys).

    The batch must have at least 2 sequences. `rounding` is the rounding error of a weight if scores are of order 1. For
    `groups`, see `Formula`.

    Examples
    --------
    >>> products = np.random.default_rng(0).standard_normal((3, 2, 5, 5))
    >>> right = Formula("softmax over the query axis", "causal", 0.25)
    >>> formula = formula_of(right.weights(products), products, 1e-9)
    >>> formula.map, formula.mask, round(formula.factor, 9), formula.known
    ('softmax over the query axis', 'causal', 0.25, True)
    """
    candidates = []
    for support in _visible(weights, rounding):
        mask = _mask_of(support)
        unnamed = mask == OTHER or support.shape[-1] != support.shape[-2]
        plain = Formula(mask=mask, groups=groups, shown=support if unnamed else None)
        for formula in _fits(plain, weights, products, np.broadcast_to(support, weights.shape[1:]), rounding):
            candidates.append(formula.compared(weights, products, rounding))
            if formula.bias is None and candidates[-1].known:
                return candidates[-1]
    return next((c for c in candidates if c.known), min(candidates, key=lambda c: c.error / c.bound))


def _mask_of(support: BoolArray) -> str:
    """Return the name of a mask, given as booleans (..., positions, keys), True for visible keys.

    The result is `OTHER` if the mask has no name, or hides keys beyond the positions.
    """
    rows = support.shape[-2]
    if not support[..., rows:].all():
        return OTHER
    return next((m for m in masks(rows) if np.array_equal(visible(m, rows, rows), support[..., :rows])), OTHER)


def _visible(weights: FloatArray, tolerance: float) -> Iterator[BoolArray]:
    """Yield possible masks, (positions, keys) or (heads, positions, keys), True for visible keys.

    A key is visible if its weight is above a threshold in any sequence. Two thresholds are tried, and for each a mask
    common to all heads and, if heads differ, separate masks.
    """
    supports: list[BoolArray] = []
    for least in (_NOTHING, _HARDLY):
        per_head = np.asarray((np.abs(weights) > least).any(axis=0))
        # A mask common to all heads is tried first, because a head whose weights are concentrated on a few keys may
        # give other visible keys weights below the threshold.
        union = np.asarray(per_head.any(axis=0))
        # Separate masks are tried only for normalised weights; other maps may give weight 0 to visible keys.
        is_normalised = np.abs(weights.sum(-1) - 1).max() <= FITTED * tolerance
        for support in (union, per_head) if is_normalised and not (per_head == union).all() else (union,):
            if not any(np.array_equal(support, earlier) for earlier in supports):
                supports.append(support)
                yield support


def _fits(
    plain: Formula, weights: FloatArray, products: FloatArray, support: BoolArray, tolerance: float
) -> Iterator[Formula]:
    """Yield fitted formulas, the simplest first.

    `plain` is the formula before the fit, with its mask only. `support` marks the keys that this mask leaves visible,
    and `tolerance` is the rounding error of a weight.
    """
    normalised = False
    for name, axis in AXES.items():
        sums = weights.sum(axis)
        nonempty = np.broadcast_to(support, weights.shape).any(axis)
        if np.abs(np.where(nonempty, sums - 1, 0)).max() <= FITTED * tolerance:
            normalised = True
            yield from _softmaxes(dataclasses.replace(plain, map=name), weights, products, support, tolerance)
    if not normalised:
        yield from _with_sinks(plain, weights, products, support, tolerance)
        for name in (LINEAR, RELU, SIGMOID):
            yield from _unnormalised(dataclasses.replace(plain, map=name), weights, products, support)
    yield dataclasses.replace(plain, map=OTHER)


def _softmaxes(
    plain: Formula, weights: FloatArray, products: FloatArray, support: BoolArray, tolerance: float
) -> Iterator[Formula]:
    """Yield softmax formulas fitted to the logarithms of the weights; for the arguments, see `_fits`."""
    axis = AXES[plain.map]
    # Ignore weights that are so small that a low-precision type has lost their digits.
    least = _NOTHING if tolerance < _FINE else tolerance**1.5
    use = np.broadcast_to(support, weights.shape) & (weights > least)
    logs = centred(np.log(np.where(use, weights, 1.0)), use, axis) * use
    p = centred(products, use, axis) * use
    powers, both = (np.sum(p * a, axis=(0, 2, 3)) for a in (p, logs))
    if powers.sum() <= 0.0:  # all scores are 0, so no factor can be fitted
        yield dataclasses.replace(plain, factor=math.nan)
        return
    fitted = dataclasses.replace(plain, factor=float(both.sum() / powers.sum()))
    yield fitted
    yield _capped(fitted, logs, products, use, axis)
    factors = both / np.maximum(powers, 1e-300)
    yield dataclasses.replace(plain, factor=float(factors.mean()), factors=tuple(map(float, factors)))
    yield from _filled(fitted, weights, products)
    # A bias by position is constant over the batch, so variation over the batch gives the factor.
    use = np.broadcast_to(use.all(axis=0), use.shape)
    logs = centred(np.log(np.maximum(weights, least)), use, axis)
    p = centred(products, use, axis)
    change = np.where(use, p - p.mean(axis=0), 0.0)
    factor = float(np.sum(change * logs)) / max(float(np.sum(change**2)), 1e-300)
    bias = np.average(logs - factor * p, axis=0, weights=np.maximum(weights, _HARDLY))
    yield dataclasses.replace(plain, factor=factor, bias=np.where(support, bias, 0.0))


def _with_sinks(
    plain: Formula, weights: FloatArray, products: FloatArray, support: BoolArray, tolerance: float
) -> Iterator[Formula]:
    """Yield a softmax formula with sinks if no row of weights sums to more than 1, and some sum to less.

    A sink is an additional score per head, of a key without a value. For the arguments, see `_fits`.
    """
    use, sums = np.broadcast_to(support, weights.shape), weights.sum(-1)
    if not np.all(weights[use] > 0) or np.any((sums <= 0) | (sums > 1 + tolerance)) or not np.any(sums < 1):
        return
    logs, p = np.log(np.where(use, weights, 1.0)), centred(products, use, -1) * use
    factor = float(np.sum(p * centred(logs, use, -1))) / max(float(np.sum(p**2)), 1e-300)
    total = special.logsumexp(np.where(use, factor * products, -np.inf), axis=-1)
    # The weight of a sink is 1 minus the sum of a row. Rounding affects small weights most, so they count least in the
    # mean.
    rest = np.maximum(1 - sums, 0.0)
    sinks = np.average(np.log(np.maximum(rest, 1e-300) / sums) + total, axis=(0, 2), weights=rest**2)
    yield dataclasses.replace(plain, factor=factor, sinks=tuple(map(float, sinks)))


def undropped(weights: FloatArray, products: FloatArray) -> tuple[float, FloatArray] | None:
    """Return the rate of dropout after a softmax, and the weights before it; None if weights show no dropout.

    With dropout at rate p, weights are 0 with probability p, and divided by 1 - p otherwise. Both arrays have the shape
    (batch, heads, positions, keys); `products` are q·k.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> products, kept = rng.standard_normal((3, 2, 5, 5)), rng.random((3, 2, 5, 5)) > 0.25
    >>> rate, before = undropped(Formula(mask="causal").weights(products) * kept / 0.75, products)
    >>> round(rate, 6), bool(np.allclose(before, Formula(mask="causal").weights(products)))
    (0.25, True)
    """
    kept = weights > _NOTHING
    p, logs = (centred(a, kept, -1) * kept for a in (products, np.log(np.where(kept, weights, 1.0))))
    factor = float(np.sum(p * logs)) / max(float(np.sum(p**2)), 1e-300)
    for mask in ("none", "causal"):
        before = Formula(mask=mask, factor=factor).weights(products)
        ratios = weights[kept] / np.maximum(before[kept], 1e-300)
        ratio = float(np.median(ratios)) if (before > _HARDLY).sum() > kept.sum() > 0 else 0.0
        if ratio > 1.0 + _KEPT and np.abs(ratios / ratio - 1.0).max() <= _KEPT:
            return 1.0 - 1.0 / ratio, np.where(kept, weights / ratio, before)
    return None


def _filled(plain: Formula, weights: FloatArray, products: FloatArray) -> Iterator[Formula]:
    """Yield formulas with a mask under which all hidden scores are the same finite number.

    `plain` is the formula without a mask.
    """
    if plain.mask != "none" or plain.map != "softmax" or products.shape[-1] <= _FEWEST:
        return
    logs = np.log(np.maximum(weights, 1e-300))
    for mask in _FILLED:
        support = np.broadcast_to(visible(mask, *weights.shape[-2:]), weights.shape)
        p, centred_logs = centred(products, support, -1) * support, centred(logs, support, -1) * support
        factor = float(np.sum(p * centred_logs)) / max(float(np.sum(p**2)), 1e-300)
        # The logarithms of the weights in a row are its scores minus a constant, `less`.
        less = np.mean(factor * products - logs, axis=-1, where=support, keepdims=True)
        fill = float(np.mean(logs + less, where=~support))
        yield dataclasses.replace(plain, mask=mask, factor=factor, fill=fill)


def _capped(plain: Formula, logs: FloatArray, products: FloatArray, use: BoolArray, axis: int) -> Formula:
    """Return the formula with a soft cap: scores s are replaced by c·tanh(s/c), with the factor and c that fit best.

    `logs` are the logarithms of the weights, centred along `axis`, and `use` marks the entries to fit.
    """

    def residuals(logarithms: FloatArray) -> FloatArray:
        factor, cap = np.exp(logarithms)
        scores = cap * np.tanh(factor * products / cap)
        return np.asarray((centred(scores, use, axis) - logs)[use])

    start = np.log([max(abs(plain.factor), 1e-6), 3.0 * max(float(np.abs(plain.factor * products).max()), 1e-6)])
    fit = optimize.least_squares(residuals, start, x_scale=1.0, max_nfev=50)
    factor, cap = np.exp(fit.x)
    return dataclasses.replace(plain, factor=math.copysign(float(factor), plain.factor), cap=float(cap))


def _unnormalised(plain: Formula, weights: FloatArray, products: FloatArray, support: BoolArray) -> Iterator[Formula]:
    """Yield the formula with the map of `plain`, which does not normalise: `LINEAR`, `RELU` or `SIGMOID`.

    The factor, and the offset for `SIGMOID`, are fitted to the weights of the keys that `support` marks as visible.
    """
    use = np.broadcast_to(support, weights.shape)
    if not use.any():
        return
    if plain.map == SIGMOID:
        if np.all((weights > 0) & (weights < 1), where=use):
            logits = np.log(weights[use] / (1 - weights[use]))
            slope, offset = np.polyfit(products[use], logits, 1)
            yield dataclasses.replace(plain, factor=float(slope), offset=float(offset))
        return
    p = products[use] if plain.map == LINEAR else np.maximum(products[use], 0.0)
    if power := float(np.sum(p**2)):
        yield dataclasses.replace(plain, factor=float(np.sum(p * weights[use])) / power)
