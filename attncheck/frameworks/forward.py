"""Exact formula of attention: mask, scale and map."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.frameworks.notes import Note, wrong
from attncheck.layers.parts import PARTS

#: Axis of the weights, (batch, heads, queries, keys), that each map normalises.
AXES = {"softmax": -1, "softmax over the query axis": -2, "softmax over the heads": -3}
#: A causal mask under which each position also sees the next one.
OFF_BY_ONE = "causal, off by one"
#: Masks under which positions see later positions, but no earlier ones.
BACKWARD = ("anticausal", "strictly anticausal")
LINEAR, RELU, SIGMOID, OTHER = "linear", "relu", "sigmoid", "other"
#: Attention among the heads of each position.
AMONG_HEADS = "softmax among the heads of a position"
REPEATED, TILED = "repeated", "tiled"
#: Factor by which the error bound of a formula is multiplied if its numbers were fitted.
FITTED = 10.0
# Relative tolerance within which a bias of scores takes only two values, as an added mask does.
_TWO_NUMBERS = 1e-2
# Minimum number of positions; with fewer, any bias that depends on the distance takes two values.
_FEWEST = 3
# Masks that are recognised whatever finite number is added to hidden scores. Other masks are recognised only if it is 1
# or -1.
_BY_ANY_NUMBER = ("causal", "anticausal")


#: Description of a part that no field of `AttentionLayer` expresses.
BY_HEAD = "a scale of scores for each head"
#: Description of attention maps whose outputs are added before they are multiplied by W_O.
ADDED = "several attention maps that are added or subtracted"
#: Scale of a correct layer.
RIGHT = "1/sqrt(head_dim)"


@dataclasses.dataclass(frozen=True)
class Forward:
    """Formula of a forward pass.

    Attributes
    ----------
    map : str
        "softmax" (over the keys), "softmax over the query axis", "softmax over the heads", "linear", "relu",
        "sigmoid" or "other".
    mask : str
        "none", "causal", "anticausal", "strictly causal", "strictly anticausal", "window of w", "two-sided window
        of w" or "other".
    scale : str
        Factor of the products of queries and keys, as a name or number; "other" if unknown or different per head.
    factor : float
        The scale as a number; the largest if heads have different scales.
    error : float
        Largest difference of a weight from the formula, relative to the largest weight.
    bound : float
        Largest `error` that rounding can explain.
    biased : bool
        Whether scores have a bias by position, a soft cap, sinks, finite hidden scores, or a factor per head.
    positions : str
        "none", "rotary" or "other".
    rotary_base : float or None
        Base of the angles, with "rotary".
    ties : tuple of str
        Other names of the same scale.
    parts : tuple of (str, value)
        Fields of `attncheck.AttentionLayer` for optional parts other than the mask.
    unlike : str
        Description of a part that no field of `AttentionLayer` expresses; empty if there is none.
    """

    map: str
    mask: str
    scale: str
    factor: float
    error: float
    bound: float
    biased: bool = False
    positions: str = "none"
    rotary_base: float | None = None
    ties: tuple[str, ...] = ()
    parts: tuple[tuple[str, Any], ...] = ()
    unlike: str = ""

    @property
    def scales(self) -> str:
        """All names of the scale."""
        return self.scale if self.scale == RIGHT else " = ".join((self.scale, *self.ties))

    @property
    def known(self) -> bool:
        """Whether the formula gives the weights up to rounding."""
        return self.error <= self.bound

    @property
    def causal(self) -> bool:
        """Whether the mask hides later positions, and some or no earlier ones."""
        return self.mask == "causal" or self.mask.startswith("window of")

    @property
    def shows_later(self) -> bool:
        """Whether each position but the last sees later positions, under a mask that has a name."""
        return self.mask in ("none", *BACKWARD) or self.mask.startswith("two-sided window of")

    def beside(self, unlike: str) -> Forward:
        """Return the formula with the attribute `unlike` set, or unchanged if the given text is empty."""
        scale = OTHER if unlike == BY_HEAD else self.scale
        return dataclasses.replace(self, scale=scale, unlike=unlike) if unlike else self

    @property
    def optional_parts(self) -> str:
        """Text that lists all optional parts other than the mask, or "none"."""
        fields = dict(self.parts)
        descriptions = [part.describe(fields) for part in PARTS if fields.keys() & part.fields.keys()]
        return ", ".join([*descriptions, *filter(None, [self.unlike])]) or "none"

    def __str__(self) -> str:
        if self.error == math.inf:
            return "unknown"
        if not self.known:
            explained = f"where rounding explains {self.bound:.1g}"
            return f"not those of a known formula: the nearest is off by {self.error:.2g}, {explained}"
        mask = {"none": "no mask", "causal": "causal mask"}.get(self.mask, f"mask: {self.mask}")
        if self.rotary_base is not None:
            mask += f", rotary positions (base {self.rotary_base:g})"
        scale = "unknown scale of scores" if self.scale == OTHER else f"scores times {self.scales}"
        scales = [scale] if self.unlike != BY_HEAD else []
        parts = [self.optional_parts] if self.optional_parts != "none" else []
        return f"{', '.join([self.map, mask, *scales, *parts])}; equal to the formula to {self.error:.1g}"


@dataclasses.dataclass(frozen=True)
class Formula:
    """Formula of the attention weights.

    Attributes
    ----------
    map : str
        One of `AXES`, `LINEAR`, `RELU`, `SIGMOID`, `AMONG_HEADS`, or `OTHER`.
    mask : str
        As in `attncheck.frameworks.forward.Forward`.
    factor : float
        Factor of the products of queries and keys; the mean if it differs between heads.
    factors : tuple of float
        Factors of the heads if they differ, else empty.
    offset : float
        Number added to scores before a sigmoid.
    cap : float or None
        c if scores s are replaced by c·tanh(s/c).
    fill : float or None
        Score of hidden keys if it is finite.
    sinks : tuple of float
        Score of an additional key without a value, for each head; empty without such keys.
    groups : {"repeated", "tiled"}
        How G key heads are used by H query heads. Query head h uses key head h // (H/G) if they are "repeated", and
        h % G if they are "tiled".
    bias : ndarray, (heads, positions, keys), or None
        Bias of the scores by position.
    shown : ndarray, (positions, keys) or (heads, positions, keys), or None
        Visible keys per query, for a mask without a name.
    error : float
        Largest difference from the module's weights, relative to the largest weight.
    bound : float
        Largest `error` that rounding can explain.
    """

    map: str = "softmax"
    mask: str = "none"
    factor: float = 1.0
    factors: tuple[float, ...] = ()
    offset: float = 0.0
    cap: float | None = None
    fill: float | None = None
    sinks: tuple[float, ...] = ()
    groups: str = REPEATED
    bias: FloatArray | None = None
    shown: BoolArray | None = None
    error: float = math.inf
    bound: float = 0.0

    @property
    def known(self) -> bool:
        """Whether the formula gives the weights up to rounding."""
        return self.map != OTHER and self.error <= self.bound

    @property
    def adjusted(self) -> bool:
        """Whether scores have a bias by position, a soft cap, sinks, finite hidden scores, or a factor per head."""
        return bool(self.factors or self.sinks) or any(a is not None for a in (self.bias, self.cap, self.fill))

    def compared(self, weights: FloatArray, products: FloatArray, rounding: float, exact: bool = False) -> Formula:
        """Return the formula with `error` and `bound` computed for attention weights and products q·k.

        `rounding` is the rounding error of a weight if scores are of order 1. The bound is wider unless `exact` is
        True, which means that no number of the formula was fitted.
        """
        largest = max(float(np.abs(weights).max()), 1e-300)
        error = float(np.abs(self.weights(products) - weights).max()) / largest
        max_error = rounding * (1.0 + float(np.std(self.scores(products)))) * (1.0 if exact else FITTED)
        return dataclasses.replace(self, error=error, bound=max_error if math.isfinite(max_error) else math.inf)

    def scores(self, products: FloatArray) -> FloatArray:
        """Return scores from products q·k, (batch, heads, positions, keys)."""
        factor = np.array(self.factors or (self.factor,))[:, None, None]
        p = np.zeros_like(products) if math.isnan(self.factor) else products * factor
        return (p if self.cap is None else self.cap * np.tanh(p / self.cap)) + (0.0 if self.bias is None else self.bias)

    def weights(self, products: FloatArray) -> FloatArray:
        """Return weights from products q·k, (batch, heads, positions, keys)."""
        support = visible(self.mask, *products.shape[-2:]) if self.shown is None else self.shown
        p = self.scores(products)
        if self.map in AXES:
            p = np.where(support, p, -np.inf if self.fill is None else self.fill)
            with np.errstate(invalid="ignore"):
                largest = p.max(AXES[self.map], keepdims=True)
                a = np.exp(p - largest)
                sinks = np.exp(np.array(self.sinks)[:, None, None] - largest) if self.sinks else 0.0
                return np.asarray(np.nan_to_num(a / (a.sum(AXES[self.map], keepdims=True) + sinks)))
        if self.map == SIGMOID:
            p = 1 / (1 + np.exp(-p - self.offset))
        return np.asarray((np.maximum(p, 0) if self.map == RELU else p) * support)


def spread(a: FloatArray, heads: int, groups: str) -> FloatArray:
    """Return keys, (batch, key heads, positions, d), repeated for `heads` query heads.

    Consecutive query heads use the same key head if `groups` is "repeated". If it is "tiled", query heads use all key
    heads in turn.
    """
    of = np.arange(heads)
    return a[:, of % a.shape[1] if groups == TILED else of // (heads // a.shape[1])]


def centred(a: FloatArray, use: BoolArray, axis: int) -> FloatArray:
    """Subtract the mean along an axis, taken over the entries that `use` marks."""
    mean = np.sum(a, axis, where=use, keepdims=True) / np.maximum(np.sum(use, axis, keepdims=True), 1)
    return np.asarray(a - mean)


def visible(mask: str, queries: int, keys: int) -> BoolArray:
    """Return which keys each query sees under a named mask, as booleans (queries, keys).

    Examples
    --------
    >>> visible("window of 2", 3, 3).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    behind = np.arange(queries)[:, None] - np.arange(keys)
    rules: dict[str, BoolArray] = {
        "none": np.ones_like(behind, dtype=np.bool_),
        "causal": behind >= 0,
        "anticausal": behind <= 0,
        OFF_BY_ONE: behind >= -1,
        "strictly causal": behind > 0,
        "strictly anticausal": behind < 0,
    }
    if mask in rules:
        return rules[mask]
    kind, _, size = mask.partition(" of ")
    w = int(size)
    return np.asarray((behind >= 0) & (behind < w) if kind == "window" else np.abs(behind) < w)


def masks(queries: int) -> Iterator[str]:
    """Yield the names of all masks for this number of queries, the common ones first."""
    yield from ("none", "causal", "anticausal", *([OFF_BY_ONE] if queries > _FEWEST else []))
    yield from ("strictly causal", "strictly anticausal")
    for kind in ("window", "two-sided window"):
        yield from (f"{kind} of {w}" for w in range(1, queries))


def scales(head_dim: int, width: int, heads: int, positions: int) -> dict[str, float]:
    """Return known score factors by name, the correct one first."""
    return {
        "1/sqrt(head_dim)": head_dim**-0.5,
        "1/head_dim": 1 / head_dim,
        "1": 1.0,
        "1/sqrt(width)": width**-0.5,
        "1/width": 1 / width,
        "sqrt(head_dim)": head_dim**0.5,
        "1/sqrt(heads)": heads**-0.5,
        "1/sqrt(positions)": positions**-0.5,
        "head_dim**(-1/4)": head_dim**-0.25,
    }


#: Names of scales.
NAMED = tuple(scales(1, 1, 1, 1))


def names_of(factor: float, known: dict[str, float], tolerance: float) -> tuple[str, ...]:
    """Return all names in `known` whose value equals a factor, up to a relative tolerance.

    Examples
    --------
    >>> names_of(0.5, scales(head_dim=16, width=64, heads=4, positions=5), 1e-6)
    ('1/sqrt(heads)', 'head_dim**(-1/4)')
    """
    return tuple(name for name, value in known.items() if abs(factor / value - 1) <= tolerance)


def added_mask(bias: FloatArray, most: float = math.inf) -> Note | None:
    """Return a note if a bias of scores, (heads, positions, positions), is a mask added as finite numbers.

    Masks that lower scores by more than `most` are effective and not reported.

    Examples
    --------
    >>> str(added_mask(np.tri(5)[None]))
    'the causal mask is added as 0 and 1: positions that it should hide get a score lower by 1'
    """
    names = (name for name in masks(bias.shape[1]) if name != "none" and not name.endswith(" of 1"))
    for mask in names if bias.shape[1] >= _FEWEST else ():
        support = visible(mask, *bias.shape[1:])
        both = support.any(axis=1) & ~support.all(axis=1)
        visible_mean, hidden = (np.mean(bias[:, both], axis=-1, where=which[both]) for which in (support, ~support))
        less = float(np.mean(visible_mean - hidden))
        residual = bias - less * support
        off = float(np.abs(residual - residual.mean(axis=-1, keepdims=True)).max())
        one = abs(abs(less) - 1.0) <= _TWO_NUMBERS
        if off > _TWO_NUMBERS * abs(less) or not (one or (mask in _BY_ANY_NUMBER and 0.0 < less < most)):
            continue
        numbers = ("0 and 1" if less > 0 else "1 and 0") if one else "a number"
        change = f"{'lower' if less > 0 else 'higher'} by {abs(less):.3g}"
        text = f"the {mask} mask is added as {numbers}: positions that it should hide get a score {change}"
        return wrong(text)
    return None
