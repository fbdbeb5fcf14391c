"""Exact formula of attention: mask, scale and map."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from attncheck.frameworks.notes import Note
from attncheck.frameworks.trace import FloatArray

Booleans = NDArray[np.bool_]

#: Axis of the weights, (B, H, L, L), that each map normalises.
AXES = {"softmax": -1, "softmax over the query axis": -2, "softmax over the heads": -3}
#: A causal mask that shows the next position too.
OFF_BY_ONE = "causal, off by one"
LINEAR, RELU, SIGMOID, OTHER = "linear", "relu", "sigmoid", "other"
#: Attention among the heads of each position.
AMONG_HEADS = "softmax among the heads of a position"
REPEATED, TILED = "repeated", "tiled"
# Factor of the error bound for fitted numbers.
_FITTED = 10.0
# Weights up to this are those of hidden keys: exactly; where a mask is a large number.
_NOTHING, _HARDLY = 1e-30, 1e-9
# Rounding below which tiny weights keep their digits.
_FINE = 1e-4
# Relative tolerance for a bias that takes two values.
_TWO_NUMBERS = 1e-2
# With fewer positions, any bias by distance takes two values.
_FEWEST = 3
_BY_ANY_NUMBER = ("causal", "anticausal")


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
        Factor of the products of queries and keys, by name or digits; "other" if unknown.
    factor : float
        The same as a number.
    error : float
        Largest difference of a weight from the formula, relative to the largest weight.
    bound : float
        Largest `error` that rounding explains.
    biased : bool
        Whether scores are more than products times one factor: with a bias by position, a soft cap, or a factor for
        each head.
    positions : str
        "none", "rotary" or "other".
    rotary_base : float or None
        Base of the angles, with "rotary".
    ties : tuple of str
        Other names of the same scale.
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

    @property
    def scales(self) -> str:
        """All names of the scale."""
        return self.scale if self.scale == RIGHT else " = ".join((self.scale, *self.ties))

    @property
    def known(self) -> bool:
        """Whether the formula gives the weights up to rounding."""
        return self.error <= self.bound

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
        return f"{self.map}, {mask}, {scale}; equal to the formula to {self.error:.1g}"


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
        Factor of the products of queries and keys; the mean, if heads have their own.
    factors : tuple of float
        Those of the heads, if they differ.
    offset : float
        Added to scores before a sigmoid.
    cap : float or None
        c, where scores s are replaced by c·tanh(s/c).
    fill : float or None
        Score of hidden keys, where it is a number.
    sinks : tuple of float
        One more score of each head, without a value.
    groups : {"repeated", "tiled"}
        Which of G key heads query head h uses: h // (H/G), or h % G.
    bias : ndarray, (H, L, L'), or None
        Bias of the scores by position.
    shown : ndarray, (L, L') or (H, L, L'), or None
        Visible keys per query, for a mask without a name.
    error, bound : float
        Largest difference from the module's weights, relative to the largest, and what rounding explains of it.
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
    shown: Booleans | None = None
    error: float = math.inf
    bound: float = 0.0

    @property
    def known(self) -> bool:
        """Whether the formula gives the weights up to rounding."""
        return self.map != OTHER and self.error <= self.bound

    @property
    def adjusted(self) -> bool:
        """Whether scores are more than products times one factor."""
        return bool(self.factors or self.sinks) or any(each is not None for each in (self.bias, self.cap, self.fill))

    def compared(self, weights: FloatArray, products: FloatArray, rounding: float, exact: bool = False) -> Formula:
        """Return the formula with its difference from weights (B, H, L, L'); `exact`: its numbers are not fitted."""
        largest = max(float(np.abs(weights).max()), 1e-300)
        error = float(np.abs(self.weights(products) - weights).max()) / largest
        bound = rounding * (1.0 + float(np.std(self.scores(products)))) * (1.0 if exact else _FITTED)
        return dataclasses.replace(self, error=error, bound=bound if math.isfinite(bound) else math.inf)

    def scores(self, products: FloatArray) -> FloatArray:
        """Return scores (B, H, L, L') from q·k."""
        factor = np.array(self.factors or (self.factor,))[:, None, None]
        p = np.zeros_like(products) if math.isnan(self.factor) else products * factor
        return (p if self.cap is None else self.cap * np.tanh(p / self.cap)) + (0.0 if self.bias is None else self.bias)

    def weights(self, products: FloatArray) -> FloatArray:
        """Return weights (B, H, L, L') from q·k."""
        shown = visible(self.mask, *products.shape[-2:]) if self.shown is None else self.shown
        p = self.scores(products)
        if self.map in AXES:
            p = np.where(shown, p, -np.inf if self.fill is None else self.fill)
            with np.errstate(invalid="ignore"):
                largest = p.max(AXES[self.map], keepdims=True)
                a = np.exp(p - largest)
                sinks = np.exp(np.array(self.sinks)[:, None, None] - largest) if self.sinks else 0.0
                return np.asarray(np.nan_to_num(a / (a.sum(AXES[self.map], keepdims=True) + sinks)))
        if self.map == SIGMOID:
            p = 1 / (1 + np.exp(-p - self.offset))
        return np.asarray((np.maximum(p, 0) if self.map == RELU else p) * shown)


def spread(a: FloatArray, heads: int, groups: str) -> FloatArray:
    """Return G heads expanded to H, (B, H, L, d)."""
    of = np.arange(heads)
    return a[:, of % a.shape[1] if groups == TILED else of // (heads // a.shape[1])]


def visible(mask: str, queries: int, keys: int) -> Booleans:
    """Return the visible keys per query, (L, L'), as booleans.

    Examples
    --------
    >>> visible("window of 2", 3, 3).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    behind = np.arange(queries)[:, None] - np.arange(keys)
    rules: dict[str, Booleans] = {
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
    """Yield all named masks, the common ones first."""
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
    """Return all names of a factor.

    Examples
    --------
    >>> names_of(0.5, scales(head_dim=16, width=64, heads=4, positions=5), 1e-6)
    ('1/sqrt(heads)', 'head_dim**(-1/4)')
    """
    return tuple(name for name, value in known.items() if abs(factor / value - 1) <= tolerance)


def formula_of(weights: FloatArray, products: FloatArray, rounding: float, groups: str = REPEATED) -> Formula:
    """Return the formula that maps products q·k to weights, both (B, H, L, L'); B of at least 2.

    `rounding` is the error of a weight that rounding explains, where scores are of order 1.

    Examples
    --------
    >>> products = np.random.default_rng(0).standard_normal((3, 2, 5, 5))
    >>> right = Formula("softmax over the query axis", "causal", 0.25)
    >>> found = formula_of(right.weights(products), products, 1e-9)
    >>> found.map, found.mask, round(found.factor, 9), found.known
    ('softmax over the query axis', 'causal', 0.25, True)
    """
    found = []
    for shown in _shown(weights, rounding):
        mask = _mask_of(shown)
        plain = Formula(mask=mask, groups=groups, shown=shown if mask == OTHER or _has_extra(shown) else None)
        for formula in _fits(plain, weights, products, np.broadcast_to(shown, weights.shape[1:]), rounding):
            found.append(formula.compared(weights, products, rounding))
            if formula.bias is None and found[-1].known:
                return found[-1]
    return next((each for each in found if each.known), min(found, key=lambda each: each.error / each.bound))


def _mask_of(shown: Booleans) -> str:
    """Return the name of a mask, (L, L') or (H, L, L'); keys beyond the positions, if any, are visible."""
    rows = shown.shape[-2]
    if not shown[..., rows:].all():
        return OTHER
    return next((m for m in masks(rows) if np.array_equal(visible(m, rows, rows), shown[..., :rows])), OTHER)


def _has_extra(shown: Booleans) -> bool:
    return bool(shown.shape[-1] != shown.shape[-2])


def _shown(weights: FloatArray, tolerance: float) -> Iterator[Booleans]:
    """Yield which keys queries may see, (L, L') or (H, L, L'), by what counts as no weight at all."""
    found: list[Booleans] = []
    for least in (_NOTHING, _HARDLY):
        each = np.asarray((np.abs(weights) > least).any(axis=0))
        shown = np.asarray(each[0]) if (each == each[0]).all() else each
        # Maps that do not normalise may give no weight to what is visible.
        whole = np.abs(weights.sum(-1) - 1).max() <= _FITTED * tolerance
        shown = shown if whole or shown.ndim == 2 else np.asarray(each.any(axis=0))
        if not any(np.array_equal(shown, other) for other in found):
            found.append(shown)
            yield shown


def _fits(
    plain: Formula, weights: FloatArray, products: FloatArray, shown: Booleans, tolerance: float
) -> Iterator[Formula]:
    """Yield fitted formulas, the simplest first."""
    normalised = False
    for name, axis in AXES.items():
        sums = weights.sum(axis)
        some = np.broadcast_to(shown, weights.shape).any(axis)
        if np.abs(np.where(some, sums - 1, 0)).max() <= _FITTED * tolerance:
            normalised = True
            yield from _softmaxes(dataclasses.replace(plain, map=name), weights, products, shown, tolerance)
    if not normalised:
        yield from _with_sinks(plain, weights, products, shown)
        for name in (LINEAR, RELU, SIGMOID):
            yield from _unnormalised(dataclasses.replace(plain, map=name), weights, products, shown)
    yield dataclasses.replace(plain, map=OTHER)


def _softmaxes(
    plain: Formula, weights: FloatArray, products: FloatArray, shown: Booleans, tolerance: float
) -> Iterator[Formula]:
    """Yield formulas of a softmax, from the logarithms of its weights."""
    axis = AXES[plain.map]
    # Weights are accurate relative to their size, down to where a coarse type has fewer digits.
    least = _NOTHING if tolerance < _FINE else tolerance**1.5
    use = np.broadcast_to(shown, weights.shape) & (weights > least)
    logs = _centred(np.log(np.where(use, weights, 1.0)), use, axis) * use
    p = _centred(products, use, axis) * use
    powers, both = (np.sum(p * a, axis=(0, 2, 3)) for a in (p, logs))
    if powers.sum() <= 0.0:  # no scores, and no factor
        yield dataclasses.replace(plain, factor=math.nan)
        return
    whole = dataclasses.replace(plain, factor=float(both.sum() / powers.sum()))
    yield whole
    yield _capped(whole, logs, products, use, axis)
    factors = both / np.maximum(powers, 1e-300)
    yield dataclasses.replace(plain, factor=float(factors.mean()), factors=tuple(map(float, factors)))
    yield from _filled(whole, weights, products)
    # A bias by position is constant over the batch, so variation over the batch gives the factor.
    use = np.broadcast_to(use.all(axis=0), use.shape)
    logs = _centred(np.log(np.maximum(weights, least)), use, axis)
    p = _centred(products, use, axis)
    change = np.where(use, p - p.mean(axis=0), 0.0)
    factor = float(np.sum(change * logs)) / max(float(np.sum(change**2)), 1e-300)
    bias = np.average(logs - factor * p, axis=0, weights=np.maximum(weights, _HARDLY))
    yield dataclasses.replace(plain, factor=factor, bias=np.where(shown, bias, 0.0))


def _with_sinks(plain: Formula, weights: FloatArray, products: FloatArray, shown: Booleans) -> Iterator[Formula]:
    """Yield the formula of a softmax with one more score of each head, for rows that sum to less than 1."""
    use, sums = np.broadcast_to(shown, weights.shape), weights.sum(-1)
    if not (np.all(weights[use] > 0) and np.all((sums > 0) & (sums < 1))):
        return
    logs, p = np.log(np.where(use, weights, 1.0)), _centred(products, use, -1) * use
    factor = float(np.sum(p * _centred(logs, use, -1))) / max(float(np.sum(p**2)), 1e-300)
    total = special.logsumexp(np.where(use, factor * products, -np.inf), axis=-1)
    sinks = (np.log((1 - sums) / sums) + total).mean(axis=(0, 2))
    yield dataclasses.replace(plain, factor=factor, sinks=tuple(map(float, sinks)))


def _filled(plain: Formula, weights: FloatArray, products: FloatArray) -> Iterator[Formula]:
    """Yield formulas with a number in the place of hidden scores."""
    if plain.mask != "none" or plain.map != "softmax" or products.shape[-1] <= _FEWEST:
        return
    logs = np.log(np.maximum(weights, 1e-300))
    for mask in _BY_ANY_NUMBER:
        shown = np.broadcast_to(visible(mask, *weights.shape[-2:]), weights.shape)
        p, own = _centred(products, shown, -1) * shown, _centred(logs, shown, -1) * shown
        factor = float(np.sum(p * own)) / max(float(np.sum(p**2)), 1e-300)
        # Each row's logarithms are its scores less a constant.
        less = np.mean(factor * products - logs, axis=-1, where=shown, keepdims=True)
        fill = float(np.mean(logs + less, where=~shown))
        yield dataclasses.replace(plain, mask=mask, factor=factor, fill=fill)


def _capped(plain: Formula, logs: FloatArray, products: FloatArray, use: Booleans, axis: int) -> Formula:
    """Return the formula with scores replaced by c·tanh(s/c), for the c that fits best."""

    def left(logarithms: FloatArray) -> FloatArray:
        factor, cap = np.exp(logarithms)
        made = cap * np.tanh(factor * products / cap)
        return np.asarray((_centred(made, use, axis) - logs)[use])

    start = np.log([max(abs(plain.factor), 1e-6), 3.0 * max(float(np.abs(plain.factor * products).max()), 1e-6)])
    found = optimize.least_squares(left, start, x_scale=1.0, max_nfev=50)
    factor, cap = np.exp(found.x)
    return dataclasses.replace(plain, factor=math.copysign(float(factor), plain.factor), cap=float(cap))


def added_mask(bias: FloatArray, most: float = math.inf) -> Note | None:
    """Return a note if a bias of scores, (H, L, L), is a mask added as numbers.

    Masks that lower scores by more than `most` are effective.

    Examples
    --------
    >>> str(added_mask(np.tri(5)[None]))
    'the causal mask is added as 0 and 1: positions that it should hide get a score lower by 1'
    """
    names = (name for name in masks(bias.shape[1]) if name != "none" and not name.endswith(" of 1"))
    for mask in names if bias.shape[1] >= _FEWEST else ():
        seen = visible(mask, *bias.shape[1:])
        both = seen.any(axis=1) & ~seen.all(axis=1)
        shown, hidden = (np.mean(bias[:, both], axis=-1, where=which[both]) for which in (seen, ~seen))
        less = float(np.mean(shown - hidden))
        left = bias - less * seen
        off = float(np.abs(left - left.mean(axis=-1, keepdims=True)).max())
        one = abs(abs(less) - 1.0) <= _TWO_NUMBERS
        if off > _TWO_NUMBERS * abs(less) or not (one or (mask in _BY_ANY_NUMBER and 0.0 < less < most)):
            continue
        numbers = ("0 and 1" if less > 0 else "1 and 0") if one else "a number"
        change = f"{'lower' if less > 0 else 'higher'} by {abs(less):.3g}"
        text = f"the {mask} mask is added as {numbers}: positions that it should hide get a score {change}"
        return Note(text, blames=True)
    return None


def _centred(a: FloatArray, use: Booleans, axis: int) -> FloatArray:
    mean = np.sum(a, axis, where=use, keepdims=True) / np.maximum(np.sum(use, axis, keepdims=True), 1)
    return np.asarray(a - mean)


def _unnormalised(plain: Formula, weights: FloatArray, products: FloatArray, shown: Booleans) -> Iterator[Formula]:
    """Yield the formula of a map that does not normalise."""
    use = np.broadcast_to(shown, weights.shape)
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
